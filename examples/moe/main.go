// Command moe trains a small mixture-of-experts language model, byte by byte, on Go source, with its experts spread over the ranks of a job:
//
//	weft run -n 4 build/moe        four ranks on this machine
//	build/moe -steps 100           one rank
//
// In each layer a router selects 2 of 16 experts for every token. Tokens travel to their experts by ep's Dispatch, the experts' outputs come home, weighted and
// summed, by Combine, and gradients take the same ways back (moe.go). All other parameters are the same on every rank, and their gradients
// are gathered by collective's AllGather (model.go). The losses of 1, 2 and 4 ranks are the same bit for bit: compare the hashes that are printed last.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/weftgo/weft"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "moe:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	cfg := DefaultConfig()
	goroot, _ := exec.Command("go", "env", "GOROOT").Output() // without Go, there is the environment, or -text
	library := filepath.Join(cmp.Or(os.Getenv("GOROOT"), strings.TrimSpace(string(goroot))), "src", "*", "*.go")
	files := flag.String("text", library, "pattern of the files to learn")
	check := flag.Bool("check", true, "fail unless the loss ends 0.5 nats per byte below the unigram entropy")
	flag.IntVar(&cfg.Steps, "steps", cfg.Steps, "training steps")
	flag.IntVar(&cfg.Layers, "layers", cfg.Layers, "mixture-of-experts layers")
	flag.IntVar(&cfg.Hidden, "hidden", cfg.Hidden, "numbers that a token is between layers, a multiple of 4")
	flag.IntVar(&cfg.Verify, "verify", cfg.Verify, "verify the exchange every so many steps, 0 for never")
	flag.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "seed of the parameters and the samples")
	flag.Parse()
	text, err := readText(*files)
	if err != nil {
		return err
	}
	comm, err := weft.Join(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, comm.Close()) }()
	model, err := newModel(ctx, comm, cfg)
	if err != nil {
		return err
	}
	out := io.Discard
	if comm.Rank() == 0 {
		out = os.Stdout
	}
	unigram, size := entropy(text), cfg.denseSize()+cfg.Layers*cfg.Experts*cfg.expertSize()
	fmt.Fprintf(out, "%d bytes of text, unigram entropy %.4f nats per byte; %d layers of %d experts, top-%d, %d parameters, %d ranks\n",
		len(text), unigram, cfg.Layers, cfg.Experts, cfg.TopK, size, comm.Size())

	begin, hash, mean := time.Now(), fnv.New64a(), 0.0 // the mean loss of about fifty steps
	told, last, exchange := begin, 0, time.Duration(0)
	for step := 1; step <= cfg.Steps; step++ {
		loss, err := model.step(ctx, text, step-1)
		if err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		fmt.Fprintf(hash, "%x,", loss)
		mean += (float64(loss) - mean) / float64(min(step, 50))
		if d := time.Since(told).Seconds(); d >= 1 || step == cfg.Steps {
			fmt.Fprintf(out, "step %4d of %d: loss %.4f, %6.0f tokens/s, %2.0f%% of the time in exchange, %d verified\n", step, cfg.Steps, mean,
				float64((step-last)*microBatches*cfg.Tokens)/d, 100*(model.exchange-exchange).Seconds()/d, model.verified)
			told, last, exchange = time.Now(), step, model.exchange
		}
	}
	fmt.Fprintf(out, "%.1f s; exchanges verified against a computation without them: %d on each rank\n", time.Since(begin).Seconds(), model.verified)
	fmt.Fprintf(out, "loss %.4f nats per byte, %.4f below the unigram entropy\n", mean, unigram-mean)
	fmt.Fprintf(out, "hash of all losses %016x, the same on 1, 2 and 4 ranks\n", hash.Sum64())
	if *check && !(mean <= unigram-0.5) {
		return errors.New("the loss is not 0.5 nats per byte below the unigram entropy")
	}
	return nil
}
