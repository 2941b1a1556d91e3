package ep_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// TestHotPath counts what a batch allocates: what it returns to the caller is made for many batches
// at once.
func TestHotPath(t *testing.T) {
	ctx := testContext(t)
	for _, s := range []ep.Spec{valueRows, tokenRows} {
		t.Run(s.Layout.String(), func(t *testing.T) {
			s := sized(s, 1)
			b := evenly(s, 1, 1, 2).Batch()
			group := join(t, 1)
			h := handles(t, group, s)[0]
			round, err := b.Round(eptest.NewHost(), group[0], h)
			if err != nil {
				t.Fatal(err)
			}
			topk, weights, rows, out := round.Operands()
			if allocs := testing.AllocsPerRun(100, func() {
				received, err := h.Dispatch(ctx, nil, ep.DispatchArgs{TopK: topk, Weights: weights, Rows: rows})
				if err != nil {
					t.Fatal(err)
				}
				if err := h.Combine(ctx, nil, ep.CombineArgs{
					Routing: received.Routing, Rows: received.Data, Out: out,
				}); err != nil {
					t.Fatal(err)
				}
				received.Routing.Release()
				received.Release()
			}); allocs > 0 {
				t.Errorf("a batch allocates %v times", allocs)
			}
			if err := round.Free(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestHotPathOnGPUs counts what a batch allocates on the host, and the time that its calls take
// there, without the GPU's. Emulated launches allocate themselves, so the count holds only where a
// driver runs.
func TestHotPathOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		s := sized(valueRows, 1)
		b := evenly(s, 1, 1, 2).Batch()
		members(t, m, 1, s, gpuDeadline, func(ctx context.Context, r *member) error {
			round, err := b.Round(r.e, r.Comm, r.handle)
			if err != nil {
				return err
			}
			topk, weights, rows, out := round.Operands()
			batch := func() {
				received, err := r.handle.Dispatch(ctx, r.stream, ep.DispatchArgs{
					TopK: topk, Weights: weights, Rows: rows,
				})
				if err != nil {
					t.Fatal(err)
				}
				if err := r.handle.Combine(ctx, r.stream, ep.CombineArgs{
					Routing: received.Routing, Rows: received.Data, Out: out,
				}); err != nil {
					t.Fatal(err)
				}
				received.Routing.Release()
				received.Release()
			}
			for range 20 {
				batch()
			}
			if err := r.Wait(ctx, r.stream); err != nil {
				return err
			}
			n := m.times(50, 400) // fewer than a stream takes before a launch waits
			allocs := testing.AllocsPerRun(n, batch)
			if err := r.Wait(ctx, r.stream); err != nil {
				return err
			}
			start := time.Now()
			for range n {
				batch()
			}
			t.Logf("a batch: %v allocations, %v of the host's time", allocs, time.Since(start)/time.Duration(n))
			if !m.emulated && allocs > 0 {
				t.Errorf("a batch allocates %v times", allocs)
			}
			return errors.Join(r.Wait(ctx, r.stream), round.Free())
		})
	})
}
