package ep_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/weftgo/weft/internal/eptest"
)

// TestFewOfManyOnGPUs has batches of few tokens and of many, unlike on each rank, on handles that
// are made for many. Nobody looks at what is beyond the tokens that there are, and were: what an
// earlier batch left there must not show, also where a routing of few comes back after a batch of
// many.
func TestFewOfManyOnGPUs(t *testing.T) {
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 3
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				if !m.holds(ranks) {
					t.Skip("ranks would share a GPU")
				}
				s := sized(way.spec, ranks)
				most := min(s.MaxTokens, m.times(24, 300))
				var batches []*eptest.Batch
				for i, tokens := range [][]int{
					{1, 1, 1},
					{most, 0, 2},
					{0, 0, 0},
					{1, 1, 1},
					{2, most, most},
					{most, most, most},
					{0, 1, 0},
					{0, 0, 0},
					{1, 0, 3},
					{0, most, 0},
				} {
					batches = append(batches, routed(s, uint64(i), tokens, spread(s, uint64(i))).Batch())
				}
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					few, err := batches[0].Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					if err := r.exchange(ctx, few); err != nil {
						return err
					}
					for i, b := range batches {
						few.Lend() // where rows are direct they have to be given back in turn
						if err := r.batch(ctx, b); err != nil {
							return fmt.Errorf("batch %d: %w", i, err)
						}
						if err := errors.Join(r.e.Sync(r.Comm), eptest.Meet(r.Comm), few.Blank(), eptest.Meet(r.Comm)); err != nil {
							return err
						}
						err := errors.Join(few.Dispatch(ctx, r.stream), few.Combine(ctx, r.stream),
							few.Backward(ctx, r.stream), r.Wait(ctx, r.stream))
						if err := errors.Join(err, few.Check(), few.CheckGradients(), few.Describe()); err != nil {
							return fmt.Errorf("the first after batch %d: %w", i, err)
						}
					}
					return few.Free()
				})
			})
		}
	})
}
