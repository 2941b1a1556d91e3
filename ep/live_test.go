package ep_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
	"github.com/weftgo/weft/internal/ranktest"
)

// TestHandlesInterleaved has batches on handles of different layouts and top-k under way at the
// same time.
func TestHandlesInterleaved(t *testing.T) {
	const ranks = 3
	group := join(t, ranks)
	ctx := testContext(t)
	specs := soakSpecs(ranks)
	var made [][]*ep.Handle
	var batches []*eptest.Batch
	for i, s := range specs {
		s.TopK = i + 1
		made = append(made, handles(t, group, s))
		c := eptest.Fixed(s, ranks, uint64(i))
		c.Split = i%2 == 0
		batches = append(batches, c.Batch())
	}
	engine := eptest.NewHost()
	each(t, group, func(c *weft.Comm) (err error) {
		steps := make([]*eptest.Steps, len(specs))
		for i, b := range batches {
			if steps[i], err = b.Steps(engine, c, made[i][c.Rank()]); err != nil {
				return err
			}
			if err := steps[i].Prepare(ctx); err != nil {
				return fmt.Errorf("handle %d: %w", i, err)
			}
		}
		for i, s := range steps {
			if err := s.Dispatch(ctx, 0); err != nil {
				return fmt.Errorf("handle %d: %w", i, err)
			}
		}
		rng := rand.New(rand.NewPCG(3, 4)) // the same on every rank
		for range 200 {
			i := rng.IntN(len(steps))
			op := []func() error{
				func() error { return steps[i].Dispatch(ctx, rng.IntN(2)) },
				func() error { return steps[i].Combine(ctx) },
				func() error { return steps[i].DispatchBackward(ctx) },
				func() error { return steps[i].CombineBackward(ctx) },
			}[rng.IntN(4)]
			if err := op(); err != nil {
				return fmt.Errorf("handle %d: %w", i, err)
			}
		}
		for _, s := range steps {
			err = errors.Join(err, s.Free())
		}
		return err
	})
}

// TestSendsInterleaved receives on several handles in another order than it sent.
func TestSendsInterleaved(t *testing.T) {
	const ranks = 2
	group := join(t, ranks)
	ctx := testContext(t)
	made := make([][]*ep.Handle, 3)
	for i := range made {
		made[i] = handles(t, group, small(ranks))
	}
	each(t, group, func(c *weft.Comm) error {
		pending := make([]*ep.PendingDispatch, len(made))
		o := operandsFor(made[0][c.Rank()], c.Rank())
		for i := range made {
			h := made[i][c.Rank()]
			r, err := h.Prepare(ctx, nil, o.topk, o.weights)
			if err != nil {
				return err
			}
			if pending[i], err = h.SendDispatch(ctx, nil, ep.DispatchArgs{Routing: r, Rows: o.x}); err != nil {
				return err
			}
		}
		for i := range made {
			if c.Rank() == 0 {
				i = len(made) - 1 - i
			}
			d, err := pending[i].Receive(ctx)
			if err != nil {
				return err
			}
			d.Release()
		}
		return nil
	})
}

// TestCommunicatorsSideBySide runs batches on several communicators of one process at the same
// time.
func TestCommunicatorsSideBySide(t *testing.T) {
	engine := eptest.NewHost()
	var running sync.WaitGroup
	for i, ranks := range []int{2, 3, 4} {
		group := join(t, ranks)
		running.Go(func() {
			for j := range 5 {
				batch := eptest.Fixed(small(ranks), ranks, uint64(10*i+j))
				err := ranktest.Each(group, func(c *weft.Comm) error { return batch.Do(engine, c) })
				if err != nil {
					t.Errorf("communicator of %d: %v", ranks, err)
				}
			}
		})
	}
	running.Wait()
}

// TestFullPool holds every received tensor that the handle has room for. The next dispatch is
// refused on every rank with the same error, and works once one is given back. It is refused too
// when only one rank holds on to its tensors.
func TestFullPool(t *testing.T) {
	const ranks = 3
	group := join(t, ranks)
	s := small(ranks)
	s.Live = 2
	made := handles(t, group, s)
	ctx := testContext(t)
	for _, holders := range [][]int{{0, 1, 2}, {1}} {
		each(t, group, func(c *weft.Comm) error {
			h := made[c.Rank()]
			o := operandsFor(h, c.Rank())
			r, err := h.Prepare(ctx, nil, o.topk, o.weights)
			if err != nil {
				return err
			}
			defer r.Release()
			holds := false
			for _, holder := range holders {
				holds = holds || holder == c.Rank()
			}
			var held []*ep.Received
			for range s.Live {
				d, err := h.Dispatch(ctx, nil, ep.DispatchArgs{Routing: r, Rows: o.x})
				if err != nil {
					return err
				}
				if holds {
					held = append(held, d)
				} else {
					d.Release()
				}
			}
			for range 2 {
				err = operation(ctx, "dispatch", h, r, o)
				if !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), "release a received tensor") {
					return fmt.Errorf("with a full pool: %v", err)
				}
			}
			for _, d := range held {
				d.Release()
			}
			return operation(ctx, "dispatch", h, r, o)
		})
	}
}

// TestOperandsInWindows compares operands in windows, which move without a copy, with operands outside.
func TestOperandsInWindows(t *testing.T) {
	const ranks = 4
	group := join(t, ranks)
	engine := eptest.NewHost()
	for _, s := range soakSpecs(ranks) {
		for _, where := range []eptest.Operand{eptest.PlainOperand, eptest.WindowOperand, eptest.ReceivedOperand} {
			batch := eptest.Fixed(s, ranks, 5)
			batch.Operand = where
			each(t, group, func(c *weft.Comm) error { return batch.Do(engine, c) })
		}
	}
}

// TestGradientsInPlace has combine backward write the gradients of rows over the rows themselves,
// which it needs for the gradients of weights.
func TestGradientsInPlace(t *testing.T) {
	const ranks = 3
	group := join(t, ranks)
	engine := eptest.NewHost()
	for _, s := range soakSpecs(4) {
		if s.Weighting != ep.Weighted {
			continue
		}
		for _, where := range []eptest.Operand{eptest.PlainOperand, eptest.WindowOperand} {
			c := eptest.Full(s, ranks, 1) // a seed that asks for gradients of weights
			c.Operand, c.InPlace = where, true
			batch := c.Batch()
			each(t, group, func(c *weft.Comm) error { return batch.Do(engine, c) })
		}
	}
}

// TestManyRanks runs batches on more ranks than a word has bits, and on numbers of ranks and
// experts that divide nothing.
func TestManyRanks(t *testing.T) {
	const many = 80
	engine := eptest.NewHost()
	for i, shape := range []struct{ ranks, experts, topk, hidden, tokens int }{
		{many, 2 * many, 8, 8, 3},
		{many, many, ep.MaxTopK, 24, 2},
		{many, 3 * many, 1, 8, 1},
		{7, 35, 5, 40, 3},
		{13, 65, 3, 8, 3},
		{1, ep.MaxTopK, ep.MaxTopK, 72, 5},
		{2, 2 * ep.MaxTopK, ep.MaxTopK, 7176, 3},
	} {
		group := join(t, shape.ranks)
		for j, cell := range []ep.Cell{
			{Layout: ep.ExpertMajor},
			{Layout: ep.ExpertPacked, Reduction: ep.Partial},
			{Layout: ep.RankMajor, Reduction: ep.Partial, Weighting: ep.Plain},
			{Layout: ep.TokenMajor, Reduction: ep.Partial, Weighting: ep.Plain},
		} {
			if testing.Short() && (i+j)%4 != 0 {
				continue
			}
			s := cell.Spec(shape.ranks)
			s.Experts, s.TopK, s.Hidden, s.MaxTokens = shape.experts, shape.topk, shape.hidden, shape.tokens
			c := eptest.Full(s, shape.ranks, uint64(shape.ranks))
			c.Wide = j%2 == 0
			batch := c.Batch()
			each(t, group, func(c *weft.Comm) error { return batch.Do(engine, c) })
		}
	}
}

// TestManyRoutings prepares several batches on one handle and uses them again and again, in any
// order.
func TestManyRoutings(t *testing.T) {
	const ranks = 3
	group := join(t, ranks)
	ctx := testContext(t)
	engine := eptest.NewHost()
	for i, s := range soakSpecs(4) {
		batches := make([]*eptest.Batch, 4)
		for j := range batches {
			c := eptest.Fixed(s, ranks, uint64(100*i+j))
			c.Split = j%2 == 0
			batches[j] = c.Batch()
		}
		s.Live = len(batches) + 1 // every routing keeps a tensor while it receives the next
		made := handles(t, group, s)
		each(t, group, func(c *weft.Comm) (err error) {
			steps := make([]*eptest.Steps, len(batches))
			for j, b := range batches {
				if steps[j], err = b.Steps(engine, c, made[c.Rank()]); err != nil {
					return err
				}
				if err := steps[j].Prepare(ctx); err != nil {
					return err
				}
			}
			for j, s := range steps {
				if err := s.Dispatch(ctx, 0); err != nil {
					return fmt.Errorf("first dispatch of routing %d: %w", j, err)
				}
			}
			rng := rand.New(rand.NewPCG(5, uint64(i))) // the same on every rank
			for range 60 {
				j := rng.IntN(len(steps))
				if err := sequence(steps[j])[1+rng.IntN(4)](ctx); err != nil {
					return fmt.Errorf("routing %d: %w", j, err)
				}
			}
			for _, s := range steps {
				err = errors.Join(err, s.Free())
			}
			return err
		})
	}
}

// TestBesideAlignment has operands at addresses that only their elements are aligned to.
func TestBesideAlignment(t *testing.T) {
	const ranks = 2
	group := join(t, ranks)
	engine := eptest.NewHost()
	for i, s := range soakSpecs(4) {
		for _, where := range []eptest.Operand{eptest.PlainOperand, eptest.WindowOperand} {
			for skew := 1; skew < 8; skew += 2 {
				c := eptest.Fixed(s, ranks, uint64(i))
				c.Operand, c.Skew, c.Biases, c.Wide = where, skew, 2, skew == 3
				batch := c.Batch()
				each(t, group, func(c *weft.Comm) error { return batch.Do(engine, c) })
			}
		}
	}
}

// TestLargeMoves moves so much that rows are shared among goroutines (1 MiB) and stored past the
// caches (4 MiB).
func TestLargeMoves(t *testing.T) {
	engine := eptest.NewHost()
	for _, ranks := range []int{1, 2} {
		group := join(t, ranks)
		for i, s := range []ep.Spec{
			{
				TopK: 2, MaxTokens: 520, Layout: ep.ExpertMajor, Payload: ep.Opaque, RowBytes: 8208,
				ScaleBytes: 16, Capacity: 300, Overflow: ep.OverflowDrop,
			},
			{TopK: 2, MaxTokens: 520, Layout: ep.ExpertPacked, Payload: ep.Opaque, RowBytes: 8208},
			{TopK: 8, MaxTokens: 80, Layout: ep.ExpertPacked, Payload: ep.FP32, Hidden: 1812, Alignment: 16},
			{
				TopK: 8, MaxTokens: 80, Layout: ep.ExpertMajor, Payload: ep.FP32, Hidden: 1812,
				Reduction: ep.Partial,
			},
			{
				TopK: 2, MaxTokens: 176, Layout: ep.TokenMajor, Reduction: ep.Partial, Weighting: ep.Plain,
				Payload: ep.FP8UE8M0, Hidden: 6144, Quantize: weft.Float32, Output: weft.Float32, ScaleOrder: ep.ColumnMajorScales,
			},
		} {
			if testing.Short() && i != ranks {
				continue
			}
			s.Experts = 8
			c := eptest.Full(s, ranks, uint64(i))
			c.Operand = eptest.Operand((i + ranks) % 2)
			batch := c.Batch()
			each(t, group, func(c *weft.Comm) error { return batch.Do(engine, c) })
		}
	}
}
