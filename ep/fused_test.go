package ep_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
)

// TestPrepareDispatch compares one call with two, in both phases: the same rows, by routings that
// say the same and are as good for what comes after.
func TestPrepareDispatch(t *testing.T) {
	const ranks = 3
	group := join(t, ranks)
	s := small(ranks)
	s.Live = 3
	made := handles(t, group, s)
	ctx := testContext(t)
	each(t, group, func(c *weft.Comm) error {
		h := made[c.Rank()]
		o := operandsFor(h, c.Rank())
		for i, v := range weft.SliceOf[weft.BF16](o.x.Data) {
			weft.SliceOf[weft.BF16](o.x.Data)[i] = v + weft.BF16(1000*c.Rank()+i)
		}
		for i := range weft.SliceOf[float32](o.weights) {
			weft.SliceOf[float32](o.weights)[i] = float32(i + c.Rank())
		}
		r, err := h.Prepare(ctx, nil, o.topk, o.weights)
		if err != nil {
			return err
		}
		want, err := h.Dispatch(ctx, nil, ep.DispatchArgs{Routing: r, Rows: o.x})
		if err != nil {
			return err
		}
		fused, err := h.Dispatch(ctx, nil, ep.DispatchArgs{TopK: o.topk, Weights: o.weights, Rows: o.x})
		if err != nil {
			return err
		}
		p, err := h.SendDispatch(ctx, nil, ep.DispatchArgs{TopK: o.topk, Weights: o.weights, Rows: o.x})
		if err != nil {
			return err
		}
		// The routing is the handle's by now.
		for i := range weft.SliceOf[int32](o.topk) {
			weft.SliceOf[int32](o.topk)[i], weft.SliceOf[float32](o.weights)[i] = -7, -7
		}
		later, err := p.Receive(ctx)
		if err != nil {
			return err
		}
		if again, err := p.Receive(ctx); err != nil || again != later {
			return fmt.Errorf("received again: %p, not %p: %w", again, later, err)
		}
		combined := func(d *ep.Received) ([]byte, error) {
			err := h.Combine(ctx, nil, ep.CombineArgs{Routing: d.Routing, Rows: d.Data, Out: o.out})
			return bytes.Clone(o.out.Raw()), err
		}
		for _, got := range []*ep.Received{fused, later} {
			if got.Routing == want.Routing || got.Traffic() != want.Traffic() ||
				got.Tokens() != want.Tokens() || got.Rows() != want.Rows() {
				return fmt.Errorf("routing %+v, want another like %+v", got.Traffic(), want.Traffic())
			}
			if !bytes.Equal(got.RowWeights().Raw(), want.RowWeights().Raw()) ||
				!bytes.Equal(got.SourceTokens().Raw(), want.SourceTokens().Raw()) {
				return errors.New("the routing's rows differ")
			}
			if tokens := weft.SliceOf[int32](got.SourceTokens()); sameRows(got.Data, want.Data, tokens) != nil {
				return sameRows(got.Data, want.Data, tokens)
			}
			a, err := combined(got)
			if err != nil {
				return err
			}
			b, err := combined(want)
			if err != nil {
				return err
			}
			if !bytes.Equal(a, b) {
				return errors.New("what comes home by the routing differs")
			}
		}
		for _, d := range []*ep.Received{want, fused, later} {
			d.Release()
			d.Routing.Release()
			d.Routing.Release()
		}
		return nil
	})
}

// sameRows compares the rows that hold a token.
func sameRows(a, b weft.Tensor, tokens []int32) error {
	n := a.Shape[len(a.Shape)-1] * a.DType.Size()
	held := 0
	for i, token := range tokens {
		if token < 0 {
			continue
		}
		held++
		if !bytes.Equal(a.Raw()[i*n:(i+1)*n], b.Raw()[i*n:(i+1)*n]) {
			return fmt.Errorf("row %d differs", i)
		}
	}
	if held == 0 {
		return errors.New("no row holds a token")
	}
	return nil
}

// TestPrepareDispatchOverflow refuses more rows than there is room for, before any has moved.
func TestPrepareDispatchOverflow(t *testing.T) {
	const ranks = 2
	group := join(t, ranks)
	s := small(ranks)
	s.Capacity = 1
	made := handles(t, group, s)
	ctx := testContext(t)
	each(t, group, func(c *weft.Comm) error {
		h := made[c.Rank()]
		o := operandsFor(h, c.Rank())
		for _, op := range []string{"prepare dispatch", "send prepare dispatch"} {
			err := operation(ctx, op, h, nil, o)
			if over, ok := errors.AsType[*ep.OverflowError](err); !ok || over.Capacity != 1 {
				return fmt.Errorf("%s: %w", op, err)
			}
		}
		o.topk.Shape, o.weights.Shape, o.x.Data.Shape = []int{0, 2}, []int{0, 2}, []int{0, 24}
		return operation(ctx, "prepare dispatch", h, nil, o)
	})
}

// TestPrepareDispatchHoldsNothing has it fail half-way, where the routing was made and rows could
// not follow: a full pool, ranks that are masked before the second half. The memory of both is the
// handle's again.
func TestPrepareDispatchHoldsNothing(t *testing.T) {
	const ranks = 2
	group := join(t, ranks)
	s := small(ranks)
	s.Live = 1
	made := handles(t, group, s)
	ctx := testContext(t)
	each(t, group, func(c *weft.Comm) error {
		h := made[c.Rank()]
		o := operandsFor(h, c.Rank())
		first, err := h.Dispatch(ctx, nil, ep.DispatchArgs{TopK: o.topk, Weights: o.weights, Rows: o.x})
		if err != nil {
			return err
		}
		for _, op := range []string{"prepare dispatch", "send prepare dispatch"} {
			err := operation(ctx, op, h, nil, o)
			if !errors.Is(err, weft.ErrUnsupported) || !strings.Contains(err.Error(), "release a received tensor") {
				return fmt.Errorf("%s with a full pool: %w", op, err)
			}
		}
		first.Release()
		p, err := h.SendDispatch(ctx, nil, ep.DispatchArgs{TopK: o.topk, Weights: o.weights, Rows: o.x})
		if err != nil {
			return err
		}
		if err := c.SetMask(ctx); err != nil {
			return err
		}
		for range 2 {
			if d, err := p.Receive(ctx); d != nil || !errors.Is(err, weft.ErrAborted) {
				return fmt.Errorf("received across a mask: %w", err)
			}
		}
		return operation(ctx, "prepare dispatch", h, nil, o)
	})
}
