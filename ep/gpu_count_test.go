package ep_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// TestEpochsWrapOnGPUs has handles that have made nearly as many operations as words have room to
// count: 16 bits with what stands beside them, or 32.
func TestEpochsWrapOnGPUs(t *testing.T) {
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, way := range ways {
			for _, bits := range []int{16, 32} {
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

// TestRoutingsApartOnGPUs has ranks go by different routings of the same handle, which is a
// mistake: they hear of it, and of whom, long before the deadline, whatever stood in the memory of
// their routings before.
func TestRoutingsApartOnGPUs(t *testing.T) {
	calls := map[string]func(*eptest.Round, context.Context, *weft.Stream) error{
		"dispatch": (*eptest.Round).Dispatch,
		"combine":  (*eptest.Round).Combine,
		"dispatch backward": func(r *eptest.Round, ctx context.Context, s *weft.Stream) error {
			return r.DispatchBackward(ctx, s, false)
		},
		"combine backward": func(r *eptest.Round, ctx context.Context, s *weft.Stream) error {
			return r.CombineBackward(ctx, s, false)
		},
	}
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		m.Abandons = true
		const ranks = 2
		for _, way := range ways {
			if m.emulated && (way.name == "value" || way.name == "flag" || way.name == "rank") {
				continue // they begin as others do
			}
			for name, call := range calls {
				t.Run(way.name+"/"+name, func(t *testing.T) {
					s := sized(way.spec, ranks)
					few, many := evenly(s, ranks, 1, 1).Batch(), evenly(s, ranks, 2, min(s.MaxTokens, 40)).Batch()
					var errs [ranks]error
					members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
						rounds := [2]*eptest.Round{}
						err := ep.SoilRoutings(r.handle)
						for i, b := range []*eptest.Batch{few, many} {
							if err == nil {
								rounds[i], err = b.Round(r.e, r.Comm, r.handle)
							}
							if err == nil {
								err = errors.Join(r.e.Sync(r.Comm), eptest.Meet(r.Comm),
									rounds[i].PrepareDispatch(ctx, r.stream), rounds[i].Combine(ctx, r.stream))
							}
						}
						if err = errors.Join(err, r.Wait(ctx, r.stream), eptest.Meet(r.Comm)); err != nil {
							return err
						}
						round := rounds[r.Rank()]
						if name == "dispatch" { // what comes needs their rows
							rounds[0].Received().Release()
							rounds[1].Received().Release()
						}
						errs[r.Rank()] = errors.Join(call(round, ctx, r.stream), r.Wait(ctx, r.stream))
						return r.usable()
					})
					for r, err := range errs {
						peer, ok := errors.AsType[*weft.PeerError](err)
						if !errors.Is(err, weft.ErrMismatch) || !strings.Contains(err.Error(), "it goes by another routing") ||
							!ok || peer.Rank != 1-r {
							t.Errorf("rank %d: %v", r, err)
						}
					}
				})
			}
		}
	})
}
