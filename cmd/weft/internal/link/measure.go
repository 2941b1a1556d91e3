package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/bench/timing"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/internal/closer"
)

// Options select the measurements. The zero value has the defaults.
type Options struct {
	// Bytes that a GPU sends to each receiver in one operation, rounded up to 16. Nil means 64 MiB,
	// more than caches hold.
	Bytes []int64
	// SMs are how many SMs move the bytes. Counts above the SMs of some GPU are left out; nil means
	// 1, 4, 6, 8, 12, 24, 48, 96, 132, and all.
	SMs []int
	// Movers are the ways to measure; nil means all that the GPUs have. The small operations are
	// always measured.
	Movers []Way
	// Tokens of a GPU whose rows of [RowBytes] are moved as a dispatch of top-8 of 256 experts moves them, up to 2^20; 0
	// means none.
	Tokens int
	// Replays are how many are timed; 0 means 5.
	Replays int
	// Timeout bounds each wait on a GPU; 0 means 10 s.
	Timeout time.Duration
	// Cache has the kernels; nil means the user's.
	Cache *kernel.Cache
	// Each gets every row when it is measured, and the number of rows.
	Each func(row Row, done, total int)

	patience time.Duration // of the gate, until the host has enqueued everything
}

// withDefaults are the options with defaults filled in, or an error.
func (o Options) withDefaults(sms int) (Options, error) {
	if len(o.Bytes) == 0 {
		o.Bytes = []int64{64 << 20}
	}
	o.Bytes = slices.Clone(o.Bytes)
	for i, b := range o.Bytes {
		if b < 1 || b > 1<<40 {
			return o, fmt.Errorf("link: %d bytes: want 1 to %d", b, int64(1)<<40)
		}
		o.Bytes[i] = (b + 15) &^ 15
	}
	if len(o.SMs) == 0 {
		o.SMs = []int{1, 4, 6, 8, 12, 24, 48, 96, 132, sms}
	}
	o.SMs = slices.DeleteFunc(slices.Clone(o.SMs), func(n int) bool { return n > sms })
	slices.Sort(o.SMs)
	o.SMs = slices.Compact(o.SMs)
	if len(o.SMs) == 0 || o.SMs[0] < 1 {
		return o, fmt.Errorf("link: numbers of SMs: want 1 to %d, which the GPUs have", sms)
	}
	if len(o.Movers) == 0 {
		o.Movers = Movers
	}
	for _, w := range o.Movers {
		if !slices.Contains(Movers, w) {
			return o, fmt.Errorf("link: %q moves no bytes", w)
		}
	}
	if o.Tokens < 0 || o.Tokens > 1<<20 {
		return o, fmt.Errorf("link: rows of %d tokens: want 0 to %d", o.Tokens, 1<<20)
	}
	if o.Replays < 0 || o.Replays > 1000 {
		return o, fmt.Errorf("link: %d replays: want 1 to 1000", o.Replays)
	}
	o.Replays = cmp.Or(o.Replays, 5)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.patience = cmp.Or(o.patience, 2*time.Second)
	if o.Cache == nil {
		o.Cache = kernel.New(kernel.Options{})
	}
	if o.Each == nil {
		o.Each = func(Row, int, int) {}
	}
	return o, nil
}

// Measure measures the links between the contexts' devices, each its own; with one, its own memory
// instead. It takes a window of (devices + 1) x the largest of o.Bytes on each, or of the rows of
// o.Tokens if they are more, and gives it back.
// Rows that are not verified are in the Ceiling and count for nothing.
//
// It fails if a device cannot reach another's memory (the error wraps [cuda.ErrUnsupported]), if a
// wait on a GPU is in vain (a [*weft.PeerError]), or with ctx.
func Measure(ctx context.Context, contexts []*cuda.Context, o Options) (c Ceiling, err error) {
	if err := reachable(contexts); err != nil {
		return Ceiling{}, err
	}
	c.GPUs = len(contexts)
	for _, x := range contexts {
		n, err := x.Device().Multiprocessors()
		if err != nil {
			return Ceiling{}, fmt.Errorf("link: %w", err)
		}
		if c.SMs == 0 || n < c.SMs {
			c.SMs = n
		}
	}
	if c.Device, err = contexts[0].Device().Name(); err != nil {
		return Ceiling{}, fmt.Errorf("link: %w", err)
	}
	if o, err = o.withDefaults(c.SMs); err != nil {
		return Ceiling{}, err
	}
	g, err := timing.GPUs{
		Contexts: contexts, Replays: o.Replays, Samples: 1, Deadline: o.Timeout, Patience: o.patience, Cache: o.Cache,
	}.WithDefaults()
	if err == nil {
		err = g.Run(ctx, func(ctx context.Context, t *timing.GPU) error {
			return (&gpu{GPU: t, options: o, sms: c.SMs}).measure(ctx, &c)
		})
	}
	if err != nil {
		return c, fmt.Errorf("link: %w", err)
	}
	return c, nil
}

// measure measures all rows. The first GPU reports them.
func (g *gpu) measure(ctx context.Context, c *Ceiling) (err error) {
	var made closer.Stack
	defer func() { err = errors.Join(err, made.Close()) }()
	if err := g.open(ctx, max(int(slices.Max(g.options.Bytes)), g.options.Tokens*RowBytes), &made); err != nil {
		return err
	}
	trials := g.trials()
	for i, t := range trials {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		row, err := t(ctx)
		if err != nil {
			return err
		}
		if g.Me == 0 {
			c.Rows = append(c.Rows, row)
			g.options.Each(row, i+1, len(trials))
		}
	}
	return g.Meet(nil)
}

// reachable refuses impossible measurements, before anything is made.
func reachable(contexts []*cuda.Context) error {
	if len(contexts) == 0 || len(contexts) > maxGPUs {
		return fmt.Errorf("link: %d GPUs: want 1 to %d", len(contexts), maxGPUs)
	}
	for i, c := range contexts {
		if !c.Device().Has(cuda.VirtualMemory) {
			return fmt.Errorf("link: GPU %d: %w: it cannot map other GPUs' memory (no virtual memory "+
				"management)", i, cuda.ErrUnsupported)
		}
		for k, peer := range contexts {
			if k == i {
				continue
			}
			if peer.Device() == c.Device() {
				return fmt.Errorf("link: GPUs %d and %d are the same device", min(i, k), max(i, k))
			}
			can, err := c.Device().CanAccessPeer(peer.Device())
			if err != nil {
				return fmt.Errorf("link: GPUs %d and %d: %w", i, k, err)
			}
			if !can {
				return fmt.Errorf("link: GPU %d cannot reach GPU %d's memory: %w: take GPUs that can "+
					"(CUDA_VISIBLE_DEVICES), or one", i, k, cuda.ErrUnsupported)
			}
		}
	}
	return nil
}

// A trial measures one row.
type trial func(context.Context) (Row, error)

// trials are all that will be measured, in order.
func (g *gpu) trials() []trial {
	all := g.smallTrials()
	for _, size := range g.options.Bytes {
		for _, p := range patterns(g.Ranks) {
			for _, w := range g.options.Movers {
				switch {
				case w == Engine:
					all = append(all, func(ctx context.Context) (Row, error) { return g.move(ctx, w, p, int(size), 0) })
				case (w == BulkStore || w == BulkLoad) && !g.bulk:
				default:
					for _, n := range g.options.SMs {
						all = append(all, func(ctx context.Context) (Row, error) { return g.move(ctx, w, p, int(size), n) })
					}
				}
			}
		}
	}
	return append(all, g.rowTrials()...)
}
