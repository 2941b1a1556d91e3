package ep_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// TestSideBySideOnGPUs has batches of two handles under way at once, on streams of their own, of one communicator and of two. Ranks begin with
// another of the two, and enqueue many before they look: nobody starves.
func TestSideBySideOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		twice := func(s ep.Spec) [2]ep.Spec { return [2]ep.Spec{s, s} }
		specs := [][2]ep.Spec{
			twice(sized(exactRows, ranks)), twice(sized(directRows, ranks)), twice(sized(valueRows, ranks)),
			{sized(valueRows, ranks), sized(tokenRows, ranks)},
			{sized(packedRows, ranks), sized(tokenRows, ranks)},
		}
		if !m.emulated {
			// Handles that take as much as they can get, and whose next kernels may be placed while the ones before still wait.
			large := ep.Spec{
				Experts: 8, TopK: 8, Hidden: 7168, MaxTokens: 64, Layout: ep.RankMajor, Wire: ep.PerRank, Reduction: ep.Partial, Sum: ep.Plain,
				Counts: ep.DeviceCounts,
			}
			specs = append(specs, twice(large))
			large.MaxTokens = 200
			specs = append(specs, twice(large))
			// Of these the next kernels are not placed early.
			large.Layout, large.Reduction, large.Sum, large.MaxTokens = ep.ExpertMajor, ep.Exact, ep.Weighted, 96
			specs = append(specs, twice(large))
		}
		for i, both := range specs {
			for _, comms := range []int{1, 2} {
				t.Run(fmt.Sprintf("%d/%d communicators", i, comms), func(t *testing.T) {
					ctx := testContext(t)
					var batch [2]*eptest.Batch
					for j, s := range both {
						batch[j] = evenly(s, ranks, uint64(1+j), min(s.MaxTokens, 9)).Batch()
					}
					engines := [2]*eptest.Device{m.engine(t, ranks, gpuDeadline)}
					if engines[1] = engines[0]; comms == 2 {
						engines[1] = m.engine(t, ranks, gpuDeadline)
					}
					var second [ranks]*weft.Comm
					if err := engines[1].Ranks(ranks, func(c *weft.Comm) error { second[c.Rank()] = c; return nil }); err != nil {
						t.Fatal(err)
					}
					err := engines[0].Ranks(ranks, func(c *weft.Comm) error {
						var sides [2]*side
						for j, of := range []*weft.Comm{c, second[c.Rank()]} {
							var err error
							if sides[j], err = newSide(ctx, engines[j], of, both[j], batch[j]); err != nil {
								return err
							}
						}
						err := sideBySide(ctx, m, sides, c.Rank() == 1)
						for _, s := range sides {
							err = errors.Join(err, s.round.Free(), s.handle.Close(), s.own.Close())
						}
						return err
					})
					if err != nil {
						t.Fatal(err)
					}
				})
			}
		}
	})
}

// side is one of two handles.
type side struct {
	member
	own   *cuda.Stream
	round *eptest.Round
}

func newSide(ctx context.Context, e *eptest.Device, c *weft.Comm, s ep.Spec, b *eptest.Batch) (*side, error) {
	h, err := ep.NewHandle(ctx, c, s)
	if err != nil {
		return nil, err
	}
	own, err := c.Device().Context().NewStream(cuda.StreamOptions{})
	if err != nil {
		return nil, err
	}
	round, err := b.Round(e, c, h)
	return &side{member{c, e, h, weft.StreamOf(own)}, own, round}, err
}

// sideBySide makes batches on both sides: on emulated GPUs, where a stream runs what it is given before the call returns, from a goroutine for each.
func sideBySide(ctx context.Context, m *gpuMachine, sides [2]*side, swapped bool) error {
	if err := eptest.Meet(sides[0].Comm); err != nil {
		return err
	}
	if swapped {
		sides[0], sides[1] = sides[1], sides[0]
	}
	one := func(s *side) error {
		for i := range m.times(10, 300) {
			if err := errors.Join(s.round.PrepareDispatch(ctx, s.stream), s.round.Combine(ctx, s.stream)); err != nil {
				return fmt.Errorf("batch %d: %w", i, err)
			}
		}
		return nil
	}
	other := make(chan error, 1)
	go func() { other <- one(sides[1]) }()
	err := errors.Join(one(sides[0]), <-other)
	for _, s := range sides {
		err = errors.Join(err, s.Wait(ctx, s.stream))
	}
	for _, s := range sides {
		if err == nil {
			err = s.round.Check()
		}
	}
	return err
}

// TestNoRoomOnGPUs makes handles until a GPU has no room for the kernels of another: it is refused on every rank, in words, and found once one is
// closed.
func TestNoRoomOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		s := sized(valueRows, ranks)
		s.MaxTokens, s.Hidden, s.SMs = 120, 2048, 0 // as much as it can get
		ctx := testContext(t)
		err := m.engine(t, ranks, gpuDeadline).Ranks(ranks, func(c *weft.Comm) error {
			var made []*ep.Handle
			var refused error
			for len(made) < 64 && refused == nil {
				h, err := ep.NewHandle(ctx, c, s)
				if refused = err; err == nil {
					made = append(made, h)
				}
			}
			if len(made) < 3 || !errors.Is(refused, weft.ErrUnsupported) || !strings.Contains(refused.Error(), "close one") {
				return fmt.Errorf("after %d handles: %w", len(made), refused)
			}
			if err := errors.Join(made[0].Close(), eptest.Meet(c)); err != nil {
				return err
			}
			h, err := ep.NewHandle(ctx, c, s)
			if err != nil {
				return fmt.Errorf("where one was closed: %w", err)
			}
			for _, h := range append(made, h) {
				err = errors.Join(err, h.Close())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}
