package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	benchep "github.com/weftgo/weft/cmd/weft/internal/bench/ep"
	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/cmd/weft/internal/terminal"
	"github.com/weftgo/weft/internal/matmul"
)

func newBenchOverlap() *cobra.Command {
	o := &overlapFlags{
		onGPUsFlags: newOnGPUsFlags(4096, "token-major"), sms: counts{8, 24}, operations: 10, replays: 5,
		product: matmul.Shape{Rows: 4096, Columns: 4096, Inner: 7168},
	}
	cmd := &cobra.Command{
		Use:   "overlap",
		Short: "Measure exchanges beside matrix products on the same GPUs",
		Args:  noArgs,
	}
	describe(cmd, "bench_overlap")
	f := cmd.Flags()
	o.add(cmd)
	f.Var(&o.sms, "sms", "SMs for the exchanges' kernels")
	f.IntVar(&o.product.Rows, "product-rows", o.product.Rows, "rows of a product, a multiple of 64")
	f.IntVar(&o.product.Columns, "product-columns", o.product.Columns, "columns of a product, a multiple of 64")
	f.IntVar(&o.product.Inner, "product-inner", o.product.Inner, "the summed dimension of a product, a multiple of 32")
	f.IntVar(&o.operations, "operations", o.operations, "how many operations a graph has")
	f.IntVar(&o.replays, "replays", o.replays, "how many runs of each kind are timed")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.ep.setDefaults(cmd)
		return o.run(cmd)
	}
	return cmd
}

// overlapFlags are the flags of bench overlap.
type overlapFlags struct {
	onGPUsFlags
	sms                 counts
	product             matmul.Shape
	operations, replays int
}

// shapes are the shapes to measure.
func (o *overlapFlags) shapes() []benchep.Shape {
	var all []benchep.Shape
	for _, n := range o.sms {
		s := o.ep.shape
		s.SMs = n
		all = append(all, s)
	}
	return all
}

// check refuses flags that are wrong whatever the GPUs.
func (o *overlapFlags) check() error {
	if o.gpus < 0 || o.ranks < 0 || o.deadline <= 0 {
		return errors.New("--gpus, --ranks, --deadline: want at least 0, at least 0, and more than 0s")
	}
	if o.operations < 1 || o.operations > timing.MostOperations || o.replays < 1 || o.replays > timing.MostReplays {
		return fmt.Errorf("--operations, --replays: want 1 to %d, and 1 to %d", timing.MostOperations, timing.MostReplays)
	}
	for _, s := range o.shapes() {
		if _, err := s.DeviceSpec(max(o.ranks, 1)); err != nil {
			return err
		}
	}
	return o.product.Validate()
}

func (o *overlapFlags) run(cmd *cobra.Command) (err error) {
	if err := o.check(); err != nil {
		return usageError{err}
	}
	p := &overlapPrinter{gpuPrinter{to: cmd.OutOrStdout(), json: o.json, progress: terminal.NewProgress(os.Stderr)}}
	defer p.progress.Close()
	p.to = p.progress.Above(os.Stdout)
	closeLines, err := p.createLines(o.lines)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeLines()) }()
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	contexts, ranks, closeAll, err := openRanks(o.gpus, o.ranks)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	return o.measure(ctx, benchep.Overlap{Product: o.product, GPUs: timing.GPUs{
		Contexts: contexts, Ranks: ranks, Operations: o.operations, Replays: o.replays, Deadline: o.deadline,
		Cache: kernels(p.progress.Above(os.Stderr)),
	}}, p)
}

func (o *overlapFlags) measure(ctx context.Context, m benchep.Overlap, p *overlapPrinter) error {
	if err := p.locate(m.Contexts[0]); err != nil {
		return err
	}
	shapes := o.shapes()
	bar := p.progress.Start("overlap, "+measure.Count(m.Ranks, "rank"), 2*len(shapes))
	defer bar.Done("")
	if err := m.Measure(ctx, shapes, func(r benchep.OverlapRow) error { bar.Advance(1); return p.row(r) }); err != nil {
		return err
	}
	if p.wrong {
		return errors.New("some output was wrong: see the rows that are not verified")
	}
	return nil
}

// overlapPrinter shows rows as they come.
type overlapPrinter struct{ gpuPrinter }

func (p *overlapPrinter) row(r benchep.OverlapRow) error {
	p.wrong = p.wrong || !r.Verified
	if err := p.encode(struct {
		benchep.OverlapRow
		where
	}{r, p.here}); err != nil || p.json {
		return err
	}
	const format = "%-26s %-9s %6s %4s %9s %9s %6s  %9s %9s %6s %6s  %s\n"
	var b strings.Builder
	if !p.headed {
		p.headed = true
		measure.Comment(&b, fmt.Sprintf("%s on %s (%s)\n"+
			"alone, beside: us of the slowest rank, of an operation and then of a product, alone and beside the other. "+
			"times: beside over alone; 1 is no slow-down.\n"+
			"product: of bf16 matrices, %s, %.0f TFLOPS alone. floor: times of a product that loses the operation's SMs "+
			"and nothing else.", measure.Count(r.Ranks, "rank"), measure.Count(r.GPUs, "GPU"), p.here.Device, r.Product,
			r.TFlops))
		fmt.Fprintf(&b, format, "contract", "op", "tokens", "SMs", "alone", "beside", "times", "product",
			"beside", "times", "floor", "output")
	}
	output := "verified"
	if !r.Verified {
		output = "WRONG: " + strings.Join(r.Problems, "; ")
	}
	if !r.Covered {
		output += ", not covered: times are lower bounds"
	}
	us := func(v float64) string { return fmt.Sprintf("%.1f", v) }
	times := func(v float64) string { return fmt.Sprintf("%.2f", v) }
	fmt.Fprintf(&b, format, r.Contract, r.Op, fmt.Sprint(r.Tokens), fmt.Sprint(r.SMsUsed), us(r.Alone),
		us(r.Beside), times(r.Slowdown), us(r.ProductAlone),
		us(r.ProductBeside), times(r.ProductSlowdown), times(r.Share), output)
	_, err := io.WriteString(p.to, b.String())
	return err
}
