package ep_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
)

// TestOverflowRefused routes more rows to a rank than its capacity. Every rank's Prepare returns
// the same error, and the next batch, which fits, works.
func TestOverflowRefused(t *testing.T) {
	const ranks = 3
	rank := func(s *ep.Spec) { s.Reduction, s.Weighting = ep.Partial, ep.Plain }
	tests := []struct {
		layout   ep.Layout
		capacity int
		set      func(*ep.Spec)
		want     ep.OverflowError
	}{
		// Every token of every rank selects experts 2 and 3, both of rank 1.
		{ep.ExpertMajor, 11, func(*ep.Spec) {}, ep.OverflowError{Rank: 1, Expert: 2, Demand: 12, Capacity: 11}},
		{
			ep.ExpertPacked, 31, func(s *ep.Spec) { s.Alignment = 16 },
			ep.OverflowError{Rank: 1, Expert: -1, Demand: 32, Capacity: 31},
		},
		{ep.ExpertPacked, 5, func(*ep.Spec) {}, ep.OverflowError{Rank: 1, Expert: -1, Demand: 24, Capacity: 5}},
		{ep.TokenMajor, 11, rank, ep.OverflowError{Rank: 1, Expert: -1, Demand: 12, Capacity: 11}},
	}
	group := join(t, ranks)
	ctx := testContext(t)
	for _, test := range tests {
		t.Run(fmt.Sprintf("%v/%d", test.layout, test.capacity), func(t *testing.T) {
			s := small(ranks)
			s.Layout, s.Capacity = test.layout, test.capacity
			test.set(&s)
			made := handles(t, group, s)
			each(t, group, func(c *weft.Comm) error {
				h := made[c.Rank()]
				weights := weft.TensorOf(make([]float32, 8), 4, 2)
				_, err := h.Prepare(ctx, nil, weft.TensorOf(slices.Repeat([]int32{2, 3}, 4), 4, 2), weights)
				overflow, ok := errors.AsType[*ep.OverflowError](err)
				if !ok || !errors.Is(err, weft.ErrUnsupported) {
					return fmt.Errorf("%v is no overflow", err)
				}
				if d := cmp.Diff(&test.want, overflow); d != "" {
					return errors.New(d)
				}
				r, err := h.Prepare(ctx, nil, weft.TensorOf([]int32{2, -1}, 1, 2), weft.TensorOf(make([]float32, 2), 1, 2))
				if err != nil {
					return err
				}
				r.Release()
				return nil
			})
			// What a masked rank has no room for is nobody's trouble.
			each(t, []*weft.Comm{group[0], group[2]}, func(c *weft.Comm) error {
				if err := c.SetMask(ctx, 1); err != nil {
					return err
				}
				r, err := made[c.Rank()].Prepare(ctx, nil, weft.TensorOf(slices.Repeat([]int32{2, 3}, 4), 4, 2),
					weft.TensorOf(make([]float32, 8), 4, 2))
				if err != nil {
					return err
				}
				r.Release()
				return nil
			})
			each(t, group, func(c *weft.Comm) error { return c.SetMask(ctx) })
		})
	}
}

// TestOverflowDropped leaves rows out, in row order, and reports what was asked for.
func TestOverflowDropped(t *testing.T) {
	const ranks = 2
	s := small(ranks)
	s.Layout, s.Capacity, s.Overflow, s.Alignment = ep.ExpertPacked, 6, ep.OverflowDrop, 4
	group := join(t, ranks)
	made := handles(t, group, s)
	ctx := testContext(t)
	each(t, group, func(c *weft.Comm) error {
		h := made[c.Rank()]
		// Expert 0 gets five rows, padded to eight, of which six fit; expert 1 gets two, of which
		// none does.
		topk := [][]int32{{0, -1, 0, -1, 0, 1}, {0, -1, 1, 0}}[c.Rank()]
		r, err := h.Prepare(ctx, nil, weft.TensorOf(topk, len(topk)/2, 2),
			weft.TensorOf(make([]float32, len(topk)), len(topk)/2, 2))
		if err != nil {
			return err
		}
		defer r.Release()
		if c.Rank() == 1 {
			if r.Received() != 0 || r.Demand() != 0 || r.Rows() != 0 {
				return fmt.Errorf("rank 1 received %d of %d", r.Received(), r.Demand())
			}
			return nil
		}
		got := [][]int32{
			{int32(r.Received()), int32(r.Demand()), int32(r.Rows())},
			weft.SliceOf[int32](r.ExpertCounts()), weft.SliceOf[int32](r.ExpertDemand()),
			weft.SliceOf[int32](r.PaddedCounts()), weft.SliceOf[int32](r.SourceTokens()), weft.SliceOf[int32](r.SourceRanks()),
		}
		want := [][]int32{{6, 12, 6}, {5, 0}, {5, 2}, {6, 0}, {0, 1, 2, 0, 1, -1}, {0, 0, 0, 1, 1, -1}}
		if d := cmp.Diff(want, got); d != "" {
			return errors.New(d)
		}
		return nil
	})
}
