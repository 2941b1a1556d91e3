// Command moe trains a small mixture-of-experts language model, byte by byte, on Go source, with
// its experts spread over the ranks of a job:
//
//	weft run -n 4 build/moe        four ranks on this machine
//	build/moe -steps 100           one rank
//	weft run -n 4 build/moe -device gpu    with the experts on GPUs
//
// In each layer (layer.go) a router selects 2 of 16 experts for every token. Dispatch takes tokens
// to their experts, Combine brings the experts' outputs home, weighted and summed, and gradients
// take the same ways back. All other parameters are on every rank, and their gradients are summed
// by collective's AllReduce (train.go). The losses of 1, 2 and 4 ranks are the same bit for bit:
// compare the hashes that are printed last.
//
// Experts work on the host (host.go), or on GPUs, through kernels of this program's own (gpu.go,
// gpu_layer.go, experts.cu). Everything else is on the host either way. Losses on GPUs have last
// bits, and a hash, of their own.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/weftgo/weft"
)

func main() {
	// Ctrl-C ends what waits, here and on the other ranks.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "moe:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	cfg, flags := defaults, flag.NewFlagSet("moe", flag.ExitOnError)
	goroot, _ := exec.Command("go", "env", "GOROOT").Output() // without Go, there is the environment, or -text
	library := filepath.Join(cmp.Or(os.Getenv("GOROOT"), strings.TrimSpace(string(goroot))), "src", "*", "*.go")
	files := flags.String("text", library, "pattern of the files to learn")
	check := flags.Bool("check", true, "fail unless the loss ends 0.5 nats per byte below the unigram entropy")
	device := flags.String("device", "host", "where experts work: host or gpu")
	flags.IntVar(&cfg.Steps, "steps", cfg.Steps, "training steps")
	flags.IntVar(&cfg.Layers, "layers", cfg.Layers, "mixture-of-experts layers")
	flags.IntVar(&cfg.Verify, "verify", cfg.Verify, "verify the exchange every so many steps, 0 for never")
	flags.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "seed of the parameters and the samples")
	_ = flags.Parse(args) // exits if it cannot
	if *device != "host" && *device != "gpu" {
		return fmt.Errorf("-device %s: want host or gpu", *device)
	}
	text, err := readText(*files)
	if err != nil {
		return err
	}
	comm, err := weft.Join(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, comm.Close()) }()
	exchange := comm
	if *device == "gpu" {
		if exchange, err = joinOwnGPU(ctx, comm); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, exchange.Close()) }()
	}
	model, err := newModel(ctx, comm, exchange, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, model.close()) }()
	if comm.Rank() != 0 {
		out = io.Discard
	}
	unigram, size := entropy(text), cfg.denseSize()+cfg.Layers*cfg.Experts*cfg.expertSize()
	fmt.Fprintf(out, "%d bytes of text, unigram entropy %.4f nats per byte; %d layers of %d experts, "+
		"top-%d, %d parameters, %d ranks\n",
		len(text), unigram, cfg.Layers, cfg.Experts, cfg.TopK, size, comm.Size())
	loss, hash, err := model.train(ctx, text, out)
	if err != nil {
		return err
	}
	where := "below"
	if loss > unigram {
		where = "above"
	}
	fmt.Fprintf(out, "loss %.4f nats per byte, %.4f %s the unigram entropy\n", loss, math.Abs(unigram-loss), where)
	fmt.Fprintf(out, "hash of all losses %016x; on 1, 2 and 4 ranks it must be the same: compare\n", hash)
	if *check && !(loss <= unigram-0.5) {
		return fmt.Errorf("a loss of %.4f is not 0.5 nats per byte below the unigram entropy of %.4f: take more -steps "+
			"than %d, or -check=false", loss, unigram, cfg.Steps)
	}
	return nil
}
