package ep_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// TestEpochsWrapOnGPUs has handles that have made nearly as many operations as words have room to count: 28 bits with the call beside them, or 32.
func TestEpochsWrapOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, way := range ways {
			for _, bits := range []int{28, 32} {
				t.Run(fmt.Sprintf("%s/%d bits", way.name, bits), func(t *testing.T) {
					s := sized(way.spec, ranks)
					var batches []*eptest.Batch
					for i := range 7 {
						tokens := []int{i * 5 % (min(s.MaxTokens, 15) + 1), min(s.MaxTokens, 9)}
						batches = append(batches, routed(s, uint64(i), tokens, spread(s, uint64(i))).Batch())
					}
					members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
						if err := errors.Join(ep.SetEpoch(r.handle, 1<<bits-3), eptest.Meet(r.Comm)); err != nil {
							return err
						}
						for i, b := range batches {
							round, err := b.Round(r.e, r.Comm, r.handle)
							if err != nil {
								return err
							}
							err = errors.Join(r.exchange(ctx, round), round.Backward(ctx, r.stream), r.Wait(ctx, r.stream))
							if err := errors.Join(err, round.CheckGradients(), round.Free()); err != nil {
								return fmt.Errorf("batch %d: %w", i, err)
							}
						}
						return nil
					})
				})
			}
		}
	})
}

// TestRoutingsApartOnGPUs has one rank dispatch by a routing of few tokens and the other by one of many, which is a mistake. Nothing is written where no row belongs,
// whatever stood in the memory of their routings before, and who waits for rows that nobody sends does so until the deadline.
func TestRoutingsApartOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		m.abandons = true
		const ranks = 2
		s := sized(ep.Spec{MaxTokens: 40, Layout: ep.ExpertMajor, Reduction: ep.Exact}, ranks)
		few, many := evenly(s, ranks, 1, 1).Batch(), evenly(s, ranks, 2, 40).Batch()
		members(t, m, ranks, s, 2*time.Second, func(ctx context.Context, r *member) error {
			short, err := few.Round(r.e, r.Comm, r.handle)
			if err != nil {
				return err
			}
			long, err := many.Round(r.e, r.Comm, r.handle)
			if err != nil {
				return err
			}
			if err := ep.SoilRoutings(r.handle); err != nil {
				return err
			}
			if err := errors.Join(eptest.Meet(r.Comm), short.Prepare(ctx, r.stream), long.Prepare(ctx, r.stream), r.Wait(ctx, r.stream), eptest.Meet(r.Comm)); err != nil {
				return err
			}
			round := long
			if r.Rank() == 0 {
				round = short
			}
			err = errors.Join(round.Dispatch(ctx, r.stream), r.Wait(ctx, r.stream))
			if r.Rank() == 1 && !errors.Is(err, weft.ErrTimeout) {
				return fmt.Errorf("rows that nobody sends: %w", err)
			}
			return r.usable()
		})
	})
}
