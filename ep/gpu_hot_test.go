package ep_test

import (
	"context"
	"errors"
	"testing"
	"time"
)

// hotAllocs is what a batch allocates on the host: a Routing and a Received, which it hands to the caller.
const hotAllocs = 2

// TestHotPathOnGPUs counts what a batch allocates on the host, and the time that its calls take there, without the GPU's. Emulated launches
// allocate themselves, so the count holds only where a driver runs.
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
				received, err := r.handle.PrepareDispatch(ctx, r.stream, topk, weights, rows)
				if err != nil {
					t.Fatal(err)
				}
				if err := r.handle.Combine(ctx, r.stream, received.Routing, received.Data, out); err != nil {
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
			if !m.emulated && allocs > hotAllocs {
				t.Errorf("a batch allocates %v times, want %d", allocs, hotAllocs)
			}
			return errors.Join(r.Wait(ctx, r.stream), round.Free())
		})
	})
}
