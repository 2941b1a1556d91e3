package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/cmd/weft/internal/bench"
	"github.com/weftgo/weft/cmd/weft/internal/measure"
	"github.com/weftgo/weft/plan"
	"github.com/weftgo/weft/plan/executor"
	"github.com/weftgo/weft/plan/spec"
)

// hostRun runs a plan on ranks of this host, on numbers of 32 bits.
type hostRun struct {
	file       *plan.File
	bytes      size // of a message; 0: the least that is at least 4 KiB in each chunk
	launches   int
	unverified bool
}

// run runs it on ranks of this process, or on this process as one of those that a launcher has started.
func (h *hostRun) run(ctx context.Context, w io.Writer, name string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	chunk, err := h.chunk()
	if err != nil {
		return err
	}
	n := len(h.file.Ranks)
	var took time.Duration
	if launched() > 0 {
		comm, err := weft.Join(ctx)
		if err != nil {
			return err
		}
		took, err = h.rank(ctx, comm, chunk)
		if err := errors.Join(err, comm.Close()); err != nil || os.Getenv("WEFT_RANK") != "0" {
			return err
		}
	} else {
		ranks, err := bootstrap.NewInProcess(n)
		if err != nil {
			return err
		}
		all, errs := make([]time.Duration, n), make([]error, n)
		var running sync.WaitGroup
		for r, b := range ranks {
			running.Go(func() {
				comm, err := weft.Join(ctx, weft.WithBootstrap(b))
				if err == nil {
					all[r], err = h.rank(ctx, comm, chunk)
					err = errors.Join(err, comm.Close())
				}
				errs[r] = err
			})
		}
		running.Wait()
		if err := errors.Join(distinct(errs)...); err != nil {
			return err
		}
		took = slices.Max(all)
	}
	right := "right"
	if !h.defined() {
		right = "done"
	}
	_, err = fmt.Fprintf(w, "%s: %s in %s of %s on %s, %s in chunks, the first in %.1f ms\n", name, right,
		launches(h.launches), measure.Size(int64(max(h.file.Ranks[0].Input, h.file.Ranks[0].Output)*chunk)),
		measure.Count(n, "rank"), measure.Size(int64(chunk)), float64(took.Microseconds())/1000)
	return err
}

func launches(n int) string {
	if n == 1 {
		return "1 launch"
	}
	return fmt.Sprintf("%d launches", n)
}

// distinct is errors without those that say the same.
func distinct(errs []error) (kept []error) {
	said := make(map[string]bool)
	for _, err := range errs {
		if err != nil && !said[err.Error()] {
			said[err.Error()] = true
			kept = append(kept, err)
		}
	}
	return kept
}

// chunk is the bytes of a chunk.
func (h *hostRun) chunk() (int, error) {
	f := h.file
	rank := &f.Ranks[0]
	chunks := max(rank.Input, 1)
	if f.Collective == spec.AllGather || rank.Input == 0 {
		chunks = max(rank.Output, 1)
	}
	unit := f.Alignment
	for unit%4 != 0 {
		unit += f.Alignment
	}
	if h.bytes == 0 {
		const enough = 4 << 10
		least := max(enough, int(min(f.MinBytes, 1<<40))/chunks)
		return (least + unit - 1) / unit * unit, nil
	}
	if h.bytes%size(chunks*unit) != 0 {
		return 0, usageError{fmt.Errorf("--bytes %d: it is no multiple of %d: %d chunks of %d", h.bytes, chunks*unit, chunks,
			unit)}
	}
	return int(h.bytes) / chunks, nil
}

// rank runs one rank, and says how long loading and the first launch took.
func (h *hostRun) rank(ctx context.Context, comm *weft.Comm, chunk int) (took time.Duration, err error) {
	x, err := executor.New(ctx, comm, executor.Options{Unverified: h.unverified})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	begun := time.Now()
	p, err := x.Load(ctx, h.file)
	if err != nil {
		return 0, err
	}
	r := comm.Rank()
	inAt, outAt, _ := h.file.Place(r, chunk)
	w, err := comm.Alloc(ctx, int(max(h.longest(chunk), 1)))
	if err != nil {
		return 0, err
	}
	in := w.Bytes()[inAt:][:h.file.Ranks[r].Input*chunk]
	out := w.Bytes()[outAt:][:h.file.Ranks[r].Output*chunk]
	for i := range h.launches {
		for k := range len(in) / 4 {
			binary.LittleEndian.PutUint32(in[4*k:], number(r, k, i))
		}
		err := p.Execute(ctx, nil, weft.TensorAt(out, weft.Int32, len(out)/4), weft.TensorAt(in, weft.Int32, len(in)/4))
		if err != nil {
			return 0, err
		}
		if i == 0 {
			took = time.Since(begun)
		}
		for k := 0; h.defined() && k < len(out)/4; k++ {
			if got, want := binary.LittleEndian.Uint32(out[4*k:]), h.want(r, k, i, len(in)/4, len(out)/4); got != want {
				return 0, fmt.Errorf("launch %d: element %d of the output of rank %d is %d, want %d", i, k, r, int32(got),
					int32(want))
			}
		}
	}
	return took, nil
}

// number is an element of an input.
func number(rank, at, launch int) uint32 {
	return uint32((rank+1)*1_000_003 + at*7919 + launch*104_729)
}

// defined says whether the plan's collective says what is in outputs.
func (h *hostRun) defined() bool {
	switch h.file.Collective {
	case spec.AllReduce, spec.AllGather, spec.ReduceScatter, spec.AllToAll:
		return true
	case spec.Broadcast:
		return h.root() >= 0
	}
	return false
}

// root is the one rank of a broadcast that has an input, or -1.
func (h *hostRun) root() int {
	root := -1
	for r := range h.file.Ranks {
		if h.file.Ranks[r].Input == 0 {
			continue
		}
		if root >= 0 {
			return -1
		}
		root = r
	}
	return root
}

// want is an element of an output.
func (h *hostRun) want(rank, at, launch, ins, outs int) uint32 {
	n := len(h.file.Ranks)
	switch h.file.Collective {
	case spec.AllGather:
		return number(at/ins, at%ins, launch)
	case spec.AllToAll:
		part := ins / n
		return number(at/part, rank*part+at%part, launch)
	case spec.Broadcast:
		return number(h.root(), at, launch)
	case spec.ReduceScatter:
		at += rank * outs
	}
	sum := int32(number(0, at, launch))
	for r := 1; r < n; r++ {
		x := int32(number(r, at, launch))
		switch h.reduction() {
		case spec.Min:
			sum = min(sum, x)
		case spec.Max:
			sum = max(sum, x)
		default:
			sum += x
		}
	}
	return uint32(sum)
}

// reduction is the plan's first one.
func (h *hostRun) reduction() spec.Reduction {
	for r := range h.file.Ranks {
		for b := range h.file.Ranks[r].Blocks {
			for _, op := range h.file.Ranks[r].Blocks[b].Ops {
				for _, o := range append([]spec.Op{op}, op.Ops...) {
					if o.Reduce != spec.NoReduction {
						return o.Reduce
					}
				}
			}
		}
	}
	return spec.Sum
}

// longest is the bytes of the longest region of a rank.
func (h *hostRun) longest(chunk int) (n int64) {
	for r := range h.file.Ranks {
		_, _, size := h.file.Place(r, chunk)
		n = max(n, int64(size))
	}
	return n
}

func newPlanBench() *cobra.Command {
	c := &collectiveFlags{
		operand: window, device: onHost, sizes: sizes{64 << 10, 1 << 20, 16 << 20},
		sweep: defaultCollective(""),
	}
	s := &c.sweep
	cmd := &cobra.Command{
		Use:   "bench FILE",
		Short: "Measure a plan, and beside it the algorithm that the library would choose",
		Args:  onePlan,
	}
	describe(cmd, "plan_bench")
	out, f := outputFlags(cmd), cmd.Flags()
	f.Var(&c.sizes, "sizes", "bytes of the operations")
	oneOf(cmd, &c.operand, "operand", []string{heap, window}, "where operands are, in any memory or in registered memory")
	f.StringVar(&s.Algorithm, "algorithm", "", "the library's algorithm beside it (default: its choice)")
	f.StringVar(&s.DType, "dtype", s.DType, "element type")
	effortFlags(cmd, &s.Effort)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.sweep.Heap, c.sweep.Bytes = c.operand == heap, c.sizes
		planned, ranks, err := c.sweep.Planned(args[0])
		if err != nil {
			return err
		}
		if n := launched(); n > 0 && n != ranks {
			return usageError{fmt.Errorf("%s: it is for %d ranks, and the launcher has started %d", args[0], ranks, n)}
		}
		native := planned
		native.Plan, native.Algorithm = "", c.sweep.Algorithm
		jobs := []job{{ranks, bench.Task{Collective: &planned}}, {ranks, bench.Task{Collective: &native}}}
		if launched() > 0 {
			return sweepAsMember(cmd.Context(), *out, jobs)
		}
		return sweep(*out, jobs)
	}
	return cmd
}
