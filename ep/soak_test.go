package ep_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

var (
	soakOps  = flag.Int("soak.ops", 10_000, "operations of TestSoak, each one checked; 100000 or more in make test-all")
	soakSeed = flag.Uint64("soak.seed", 1, "seed of TestSoak")
)

// soakSpecs are the handles that live side by side in the soak: every layout, reduction
// and payload, with different top-k.
func soakSpecs(ranks int) []ep.Spec {
	base := ep.Spec{Experts: 3 * ranks, MaxTokens: 4, Hidden: 24}
	with := func(k int, f func(*ep.Spec)) ep.Spec {
		s := base
		s.TopK = k
		f(&s)
		return s
	}
	return []ep.Spec{
		with(2, func(*ep.Spec) {}),
		with(3, func(s *ep.Spec) {
			s.Layout, s.Reduction, s.Alignment = ep.ExpertPacked, ep.Partial, 4
		}),
		with(1, func(s *ep.Spec) {
			s.Layout, s.Payload, s.Hidden = ep.ExpertPacked, ep.FP32, 4
			s.Counts, s.Capacity, s.Overflow = ep.DeviceCounts, 9, ep.OverflowDrop
		}),
		with(4, func(s *ep.Spec) {
			s.Layout, s.Reduction, s.Weighting, s.Payload = ep.RankMajor, ep.Partial, ep.Plain, ep.FP16
		}),
		with(5, func(s *ep.Spec) {
			s.Layout, s.Reduction = ep.TokenMajor, ep.Partial
			s.Weighting, s.Capacity, s.Overflow = ep.Plain, 7, ep.OverflowDrop
		}),
		with(2, func(s *ep.Spec) {
			s.Payload, s.Hidden, s.Quantize, s.ScaleOrder = ep.FP8, 128, weft.BFloat16, ep.ColumnMajorScales
		}),
		with(12, func(s *ep.Spec) {
			s.Layout, s.Payload, s.RowBytes = ep.ExpertPacked, ep.Opaque, 48
			s.ScaleBytes, s.Output, s.Hidden = 16, weft.BFloat16, 8
		}),
	}
}

// TestSoak mixes operations of many handles, phases, operands and masks, and checks every output.
func TestSoak(t *testing.T) {
	ops := *soakOps
	switch {
	case testing.Short():
		ops = min(ops, 2000)
	case emulate.Everything():
		ops = max(ops, 100_000)
	}
	const ranks = 4
	group := join(t, ranks)
	specs := soakSpecs(ranks)
	made := make([][]*ep.Handle, len(specs))
	for i, s := range specs {
		made[i] = handles(t, group, s)
	}
	engine := eptest.NewHost()
	plan := &soak{specs: specs, ranks: ranks, batches: map[int]*soakBatch{}}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute+time.Duration(ops)*2*time.Millisecond)
	defer cancel()
	start := time.Now()
	var done [ranks]int
	each(t, group, func(c *weft.Comm) (err error) {
		defer func() {
			if err != nil {
				cancel()
			}
		}()
		mask := -1
		for i := 0; done[c.Rank()] < ops; i++ {
			b := plan.batch(i)
			if b.mask != mask {
				// The rank that is left out sits out; before others are, it comes back. It must be
				// out of its operations, which the others can leave before it does.
				var out []int
				if b.mask >= 0 {
					out = []int{b.mask}
					if err := b.meet(ctx, ranks); err != nil {
						return err
					}
				}
				if c.Rank() != b.mask {
					if err := c.SetMask(ctx, out...); err != nil {
						return err
					}
				}
				mask = b.mask
			}
			if c.Rank() == mask {
				done[c.Rank()] += len(b.ops)
				continue
			}
			if err := b.run(ctx, engine, c, made[b.handle][c.Rank()]); err != nil {
				return fmt.Errorf("batch %d of seed %d: %w\n%v", i, *soakSeed, err, b.of)
			}
			done[c.Rank()] += len(b.ops)
		}
		return nil
	})
	t.Logf("%d operations on %d ranks in %v", done[0], ranks, time.Since(start).Round(time.Millisecond))
}

// soak makes the batches that all ranks run, each once.
type soak struct {
	specs   []ep.Spec
	ranks   int
	mu      sync.Mutex
	batches map[int]*soakBatch
}

type soakBatch struct {
	once   sync.Once
	came   atomic.Int32
	all    chan struct{} // closed when all ranks have come
	handle int
	mask   int
	of     eptest.Case
	batch  *eptest.Batch
	ops    []int
}

func (s *soak) batch(i int) *soakBatch {
	s.mu.Lock()
	b := s.batches[i]
	if b == nil {
		b = &soakBatch{}
		s.batches[i] = b
		delete(s.batches, i-64) // ranks are in step to within a batch or so, but for the one that sits out
	}
	s.mu.Unlock()
	b.once.Do(func() { b.make(s, i) })
	return b
}

func (b *soakBatch) make(s *soak, i int) {
	rng := rand.New(rand.NewPCG(*soakSeed, uint64(i)))
	b.all = make(chan struct{})
	b.handle, b.mask = rng.IntN(len(s.specs)), -1
	// Every thirty-second stretch of eight batches goes without one of the ranks.
	if stretch := i / 8; stretch%32 == 31 {
		b.mask = stretch / 32 % s.ranks
	}
	b.of = eptest.Fixed(s.specs[b.handle], s.ranks, rng.Uint64())
	b.of.Split = rng.IntN(2) == 0
	b.of.Wild = rng.IntN(4) == 0
	b.of.Wide = rng.IntN(2) == 0
	b.of.Biases = rng.IntN(3)
	if rng.IntN(16) == 0 {
		b.of.Operand = eptest.WindowOperand
	} else if rng.IntN(2) == 0 {
		b.of.Operand = eptest.ReceivedOperand
	}
	var masked []int
	if b.mask >= 0 {
		masked = []int{b.mask}
	}
	b.batch = b.of.Batch(masked...)
	b.ops = []int{soakPrepare, soakDispatch}
	for range 2 + rng.IntN(8) {
		b.ops = append(b.ops, rng.IntN(soakKinds))
	}
}

// meet returns when all ranks have come to the batch.
func (b *soakBatch) meet(ctx context.Context, ranks int) error {
	if int(b.came.Add(1)) == ranks {
		close(b.all)
	}
	select {
	case <-b.all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

const (
	soakPrepare = iota
	soakDispatch
	soakDispatchAgain
	soakCombine
	soakDispatchBackward
	soakCombineBackward
	soakKinds
)

func (b *soakBatch) run(ctx context.Context, e eptest.Engine, c *weft.Comm, h *ep.Handle) (err error) {
	s, err := b.batch.Steps(e, c, h)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Free()) }()
	for i, op := range b.ops {
		switch op {
		case soakPrepare:
			err = s.Prepare(ctx)
			if err == nil && i > 0 { // a combine takes no rows of the routing before
				err = s.Dispatch(ctx, 0)
			}
		case soakDispatch, soakDispatchAgain:
			err = s.Dispatch(ctx, op-soakDispatch)
		case soakCombine:
			err = s.Combine(ctx)
		case soakDispatchBackward:
			err = s.DispatchBackward(ctx)
		case soakCombineBackward:
			err = s.CombineBackward(ctx)
		}
		if err != nil {
			return fmt.Errorf("operation %d of %v: %w", i, b.ops, err)
		}
	}
	return nil
}
