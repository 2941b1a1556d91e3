package ep_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// TestGradientsOnGPUs moves gradients of rows that a warp has to take in a little more than one chunk, and in several, with products in the order that the host has.
func TestGradientsOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 3
		for _, way := range ways {
			for _, hidden := range []int{1032, 2440} {
				t.Run(fmt.Sprintf("%s/%d", way.name, hidden), func(t *testing.T) {
					if !m.holds(ranks) {
						t.Skip("ranks would share a GPU")
					}
					s := sized(way.spec, ranks)
					s.Hidden = hidden
					b := routed(s, uint64(hidden), []int{5, 0, 6}, spread(s, 1)).Batch()
					members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
						round, err := b.Round(r.e, r.Comm, r.handle)
						if err != nil {
							return err
						}
						if err := r.exchange(ctx, round); err != nil {
							return err
						}
						err = errors.Join(round.Backward(ctx, r.stream), r.Wait(ctx, r.stream), round.CheckGradients())
						return errors.Join(err, round.Free())
					})
				})
			}
		}
	})
}
