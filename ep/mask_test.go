package ep_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// TestMasks leaves ranks out, in every layout, and takes them back.
func TestMasks(t *testing.T) {
	const ranks = 4
	group := join(t, ranks)
	ctx := testContext(t)
	engine := eptest.NewHost()
	specs := soakSpecs(ranks)
	made := make([][]*ep.Handle, len(specs))
	for i, s := range specs {
		made[i] = handles(t, group, s)
	}
	for _, masked := range [][]int{{1}, {1, 3}, {0}, {0, 1, 2}, {}} {
		batches := make([]*eptest.Batch, len(specs))
		for i, s := range specs {
			batches[i] = eptest.Fixed(s, ranks, uint64(i)).Batch(masked...)
		}
		var alive []*weft.Comm
		for _, c := range group {
			if !slices.Contains(masked, c.Rank()) {
				alive = append(alive, c)
			}
		}
		each(t, alive, func(c *weft.Comm) error {
			if err := c.SetMask(ctx, masked...); err != nil {
				return err
			}
			for i, b := range batches {
				// The handles from before, and new ones.
				steps, err := b.Steps(engine, c, made[i][c.Rank()])
				if err != nil {
					return err
				}
				for _, op := range sequence(steps) {
					err = errors.Join(err, op(ctx))
				}
				if err := errors.Join(err, steps.Free()); err != nil {
					return fmt.Errorf("handle %d without %v: %w", i, masked, err)
				}
				if err := b.Do(engine, c); err != nil {
					return fmt.Errorf("new handle %d without %v: %w", i, masked, err)
				}
			}
			return nil
		})
	}
}

// TestRoutingAcrossMasks uses routings from before a mask, and routings made under a mask after it
// was lifted.
func TestRoutingAcrossMasks(t *testing.T) {
	const ranks, lost = 3, 2
	group := join(t, ranks)
	s := small(ranks)
	s.Payload, s.Hidden = ep.FP32, 4
	made := handles(t, group, s)
	ctx := testContext(t)
	routings := make([]*ep.Routing, ranks)
	// Every rank has one token, for expert 1 of rank 0 and expert 5 of the rank that will be lost.
	topk, weights := weft.TensorOf([]int32{1, 5}, 1, 2), weft.TensorOf([]float32{2, 100}, 1, 2)
	each(t, group, func(c *weft.Comm) (err error) {
		h := made[c.Rank()]
		if routings[c.Rank()], err = h.Prepare(ctx, nil, topk, weights); err != nil {
			return err
		}
		// The memory of received rows holds something from now on.
		d, err := h.Dispatch(ctx, nil, ep.DispatchArgs{
			Routing: routings[c.Rank()], Rows: ep.Rows{Data: weft.TensorOf([]float32{7, 7, 7, 7}, 1, 4)},
		})
		if err == nil {
			d.Release()
		}
		return err
	})
	var under *ep.Routing
	each(t, group[:lost], func(c *weft.Comm) error {
		if err := c.SetMask(ctx, lost); err != nil {
			return err
		}
		h, r := made[c.Rank()], routings[c.Rank()]
		x := slices.Repeat([]float32{float32(c.Rank() + 1)}, 4)
		d, err := h.Dispatch(ctx, nil, ep.DispatchArgs{Routing: r, Rows: ep.Rows{Data: weft.TensorOf(x, 1, 4)}})
		if err != nil {
			return err
		}
		defer d.Release()
		if got := weft.SliceOf[float32](d.Data); c.Rank() == 0 {
			// The zone of expert 1 begins at row 12; the row of the lost rank is zeros.
			want := []float32{1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0}
			if !slices.Equal(got[12*4:12*4+12], want) {
				return fmt.Errorf("received %v, want %v", got[12*4:12*4+12], want)
			}
		}
		out := make([]float32, 4)
		if err := h.Combine(ctx, nil, ep.CombineArgs{
			Routing: r, Rows: d.Data, Out: weft.TensorOf(out, 1, 4),
		}); err != nil {
			return err
		}
		if want := 2 * float32(c.Rank()+1); out[0] != want || out[3] != want {
			return fmt.Errorf("combined %v, want %v: the lost rank's contribution is omitted", out, want)
		}
		u, err := h.Prepare(ctx, nil, topk, weights)
		if c.Rank() == 0 {
			under = u
		}
		return err
	})
	each(t, group, func(c *weft.Comm) error {
		if err := c.SetMask(ctx); err != nil {
			return err
		}
		r := routings[c.Rank()]
		if c.Rank() == 0 {
			r = under
		}
		_, err := made[c.Rank()].Dispatch(ctx, nil, ep.DispatchArgs{
			Routing: r, Rows: ep.Rows{Data: weft.TensorOf(make([]float32, 4), 1, 4)},
		})
		if !errors.Is(err, weft.ErrInvalid) {
			return fmt.Errorf("a routing that lacks a rank: %v", err)
		}
		return nil
	})
}

// TestCancelled cancels one rank's context in the middle of an operation: all ranks return, naming
// it, and go on after they have agreed to.
func TestCancelled(t *testing.T) {
	const ranks = 3
	group := join(t, ranks)
	made := handles(t, group, small(ranks))
	ctx := testContext(t)
	engine := eptest.NewHost()
	for _, op := range []string{"prepare", "dispatch", "combine", "dispatch backward", "combine backward"} {
		cancelled := make(chan struct{})
		each(t, group, func(c *weft.Comm) error {
			h := made[c.Rank()]
			o := operandsFor(h, c.Rank())
			r, err := h.Prepare(ctx, nil, o.topk, o.weights)
			if err != nil {
				return err
			}
			switch c.Rank() {
			case 0: // comes only when rank 1 has given up, and finds the operation over
				<-cancelled
				err = operation(ctx, op, h, r, o)
			case 1:
				short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
				err = operation(short, op, h, r, o)
				cancel()
				close(cancelled)
				if !errors.Is(err, context.DeadlineExceeded) {
					return fmt.Errorf("%s with a cancelled context: %v", op, err)
				}
				err = c.Err()
			case 2:
				err = operation(ctx, op, h, r, o)
			}
			if peer, ok := errors.AsType[*weft.PeerError](err); !ok || peer.Rank != 1 || !errors.Is(err, weft.ErrAborted) {
				return fmt.Errorf("%s after rank 1 gave up: %v", op, err)
			}
			if err := operation(ctx, "prepare", h, nil, o); !errors.Is(err, weft.ErrAborted) {
				return fmt.Errorf("prepare after rank 1 gave up: %v", err)
			}
			if err := c.SetMask(ctx); err != nil {
				return err
			}
			return eptest.Fixed(small(ranks), ranks, 3).Do(engine, c)
		})
	}
}

// TestReceiveAfterMask receives what was sent before ranks were masked.
func TestReceiveAfterMask(t *testing.T) {
	const ranks = 2
	group := join(t, ranks)
	s := small(ranks)
	s.Live = 1
	made := handles(t, group, s)
	ctx := testContext(t)
	each(t, group, func(c *weft.Comm) error {
		h := made[c.Rank()]
		o := operandsFor(h, c.Rank())
		r, err := h.Prepare(ctx, nil, o.topk, o.weights)
		if err != nil {
			return err
		}
		p, err := h.SendDispatch(ctx, nil, ep.DispatchArgs{Routing: r, Rows: o.x})
		if err != nil {
			return err
		}
		if err := c.SetMask(ctx); err != nil {
			return err
		}
		if _, err := p.Receive(ctx); !errors.Is(err, weft.ErrAborted) {
			return fmt.Errorf("received across a mask: %v", err)
		}
		// Its memory is free again, and so is the handle.
		return errors.Join(operation(ctx, "prepare", h, nil, o), operation(ctx, "dispatch", h, r, o))
	})
}

// heldContext holds whoever asks it whether it has ended, until it is let go.
type heldContext struct {
	context.Context
	once  sync.Once
	asked chan struct{}
	free  chan struct{}
}

func (c *heldContext) Err() error {
	c.once.Do(func() {
		close(c.asked)
		<-c.free
	})
	return c.Context.Err()
}

// TestLeftOutInside leaves a rank out while it is inside an operation that the others have
// finished. They overwrite what it is about to read; it must not take that for a result.
func TestLeftOutInside(t *testing.T) {
	const ranks, victim = 3, 1
	group := join(t, ranks)
	engine := eptest.NewHost()
	s := small(ranks)
	made := handles(t, group, s)
	ctx := testContext(t)
	// of a seed that asks for no gradients of weights, which would take the others a second
	// exchange
	whole := eptest.Full(s, ranks, 3).Batch()
	rest := eptest.Full(s, ranks, 4).Batch(victim)
	for last, name := range operations {
		held := &heldContext{Context: ctx, asked: make(chan struct{}), free: make(chan struct{})}
		var out sync.WaitGroup // the others, who go on without the victim
		out.Add(ranks - 1)
		go func() {
			out.Wait()
			close(held.free)
		}()
		each(t, group, func(c *weft.Comm) (err error) {
			if c.Rank() != victim {
				defer out.Done()
			}
			steps, err := whole.Steps(engine, c, made[c.Rank()])
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, steps.Free()) }()
			for _, op := range sequence(steps)[:last] {
				if err := op(ctx); err != nil {
					return err
				}
			}
			// Nobody reads anything of the operations before: what the victim waits for next is the
			// others' part in this one.
			if err := c.Operations().VerifySame(ctx, "test", name, nil); err != nil {
				return err
			}
			op := sequence(steps)[last]
			if c.Rank() == victim {
				if err := op(held); !errors.Is(err, weft.ErrMasked) {
					return fmt.Errorf("%s of a rank that was left out inside: %v", name, err)
				}
				return nil
			}
			// The victim is inside when it waits for the others.
			select {
			case <-held.asked:
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := errors.Join(op(ctx), c.SetMask(ctx, victim)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			without, err := rest.Steps(engine, c, made[c.Rank()])
			if err != nil {
				return err
			}
			for _, op := range sequence(without) {
				if err := op(ctx); err != nil {
					return fmt.Errorf("without %d: %w", victim, err)
				}
			}
			return without.Free()
		})
		each(t, group, func(c *weft.Comm) error { return c.SetMask(ctx) })
	}
}

// sequence lists the operations of a batch in their order.
func sequence(s *eptest.Steps) []func(context.Context) error {
	return []func(context.Context) error{
		s.Prepare, func(ctx context.Context) error { return s.Dispatch(ctx, 0) }, s.Combine, s.DispatchBackward,
		s.CombineBackward,
	}
}
