package ep_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
				err = errors.Join(steps.Prepare(ctx), steps.Dispatch(ctx, 0), steps.Combine(ctx), steps.DispatchBackward(ctx), steps.CombineBackward(ctx), steps.Free())
				if err != nil {
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

// TestRoutingAcrossMasks uses routings from before a mask, and routings made under a mask after it was lifted.
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
		routings[c.Rank()], err = made[c.Rank()].Prepare(ctx, nil, topk, weights)
		return err
	})
	var under *ep.Routing
	each(t, group[:lost], func(c *weft.Comm) error {
		if err := c.SetMask(ctx, lost); err != nil {
			return err
		}
		h, r := made[c.Rank()], routings[c.Rank()]
		x := slices.Repeat([]float32{float32(c.Rank() + 1)}, 4)
		d, err := h.Dispatch(ctx, nil, r, ep.Rows{Data: weft.TensorOf(x, 1, 4)})
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
		if err := h.Combine(ctx, nil, r, d.Data, weft.TensorOf(out, 1, 4)); err != nil {
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
		_, err := made[c.Rank()].Dispatch(ctx, nil, r, ep.Rows{Data: weft.TensorOf(make([]float32, 4), 1, 4)})
		if !errors.Is(err, weft.ErrInvalid) {
			return fmt.Errorf("a routing that lacks a rank: %v", err)
		}
		return nil
	})
}

// TestCancelled cancels one rank's context in the middle of an operation: all ranks return, naming it, and go on after they have agreed to.
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
		p, err := h.SendDispatch(ctx, nil, r, o.x)
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
