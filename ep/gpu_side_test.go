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

// largeRows is a handle that takes as much as it can get, and whose next kernels may start
// while the ones before still wait.
var largeRows = ep.Spec{
	Experts: 8, TopK: 8, Hidden: 7168, MaxTokens: 64, Layout: ep.RankMajor,
	Reduction: ep.Partial, Weighting: ep.Plain, Counts: ep.DeviceCounts,
}

// TestSideBySideOnGPUs has batches of two handles under way at once, on streams of their own, of
// one communicator and of two. Ranks begin with another of the two, and enqueue many before they
// look: nobody starves.
func TestSideBySideOnGPUs(t *testing.T) {
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		twice := func(s ep.Spec) [2]ep.Spec { return [2]ep.Spec{s, s} }
		specs := [][2]ep.Spec{
			twice(sized(exactRows, ranks)), twice(sized(directRows, ranks)), twice(sized(valueRows, ranks)),
			{sized(valueRows, ranks), sized(tokenRows, ranks)},
			{sized(packedRows, ranks), sized(tokenRows, ranks)},
		}
		if !m.emulated {
			large := largeRows
			specs = append(specs, twice(large))
			large.MaxTokens = 200
			specs = append(specs, twice(large))
			// Of these the next kernels do not start early.
			large.Layout, large.Reduction, large.Weighting, large.MaxTokens = ep.ExpertMajor, ep.Exact, ep.Weighted, 96
			specs = append(specs, twice(large))
		}
		for i, both := range specs {
			for _, comms := range []int{1, 2} {
				t.Run(fmt.Sprintf("%d/%d communicators", i, comms), func(t *testing.T) {
					var batch [2]*eptest.Batch
					for j, s := range both {
						batch[j] = evenly(s, ranks, uint64(1+j), min(s.MaxTokens, 9)).Batch()
					}
					twoSides(t, m, both, comms, func(ctx context.Context, sides [2]*side) (err error) {
						var rounds [2]*eptest.Round
						for j, s := range sides {
							if rounds[j], err = batch[j].Round(s.e, s.Comm, s.handle); err != nil {
								return err
							}
						}
						err = sideBySide(ctx, m, sides, rounds)
						return errors.Join(err, rounds[0].Free(), rounds[1].Free())
					})
				})
			}
		}
	})
}

// TestGraphsSideBySideOnGPUs replays graphs of two handles at once, on streams of their own, of one
// communicator and of two. One rank launches them in another order than the other, and none waits
// before it has launched many.
func TestGraphsSideBySideOnGPUs(t *testing.T) {
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		const ranks, contents = 2, 2
		exact, value, token := sized(exactRows, ranks), sized(valueRows, ranks), sized(tokenRows, ranks)
		type pair struct {
			name  string
			specs [2]ep.Spec
		}
		pairs := []pair{
			{"exact and exact", [2]ep.Spec{exact, exact}},
			{"value and exact", [2]ep.Spec{value, exact}},
			{"value and token", [2]ep.Spec{value, token}},
		}
		if !m.emulated {
			// Who takes what is left comes last.
			pairs = append(pairs, pair{"large and large", [2]ep.Spec{largeRows, largeRows}},
				pair{"token and large", [2]ep.Spec{token, largeRows}})
		}
		for _, both := range pairs {
			for _, comms := range []int{1, 2} {
				t.Run(fmt.Sprintf("%s/%d communicators", both.name, comms), func(t *testing.T) {
					var batches [2][][]*eptest.Batch
					for j, s := range both.specs {
						for i, tokens := range [][]int{{6, 1}, {0, 5}} {
							var of []*eptest.Batch
							for v := range contents {
								seed := uint64(100*j + 10*i + v)
								of = append(of, routed(s, seed, tokens, spread(s, seed)).Batch())
							}
							batches[j] = append(batches[j], of)
						}
					}
					twoSides(t, m, both.specs, comms, func(ctx context.Context, sides [2]*side) (err error) {
						var made [2]*replayed
						for j, s := range sides {
							if made[j], err = newReplayed(ctx, &s.member, "fc pdc", batches[j]); err != nil {
								return err
							}
						}
						for i := range m.times(3, 50) {
							for j, s := range sides {
								if err := made[j].fresh(ctx, &s.member, batches[j], i%contents); err != nil {
									return err
								}
							}
							if err := replaySides(ctx, m, sides, made, m.times(3, 100)); err != nil {
								return fmt.Errorf("round %d: %w", i, err)
							}
							for j, g := range made {
								if err := g.check(); err != nil {
									return fmt.Errorf("round %d, side %d: %w", i, j, err)
								}
							}
						}
						return errors.Join(sides[0].rest(ctx), sides[1].rest(ctx), made[0].close(), made[1].close())
					})
				})
			}
		}
	})
}

// replaySides launches both sides' graphs n times: those of the second rank in the other order. On
// emulated GPUs, where a stream runs what it is given before the call returns, each side has a
// goroutine.
func replaySides(ctx context.Context, m *gpuMachine, sides [2]*side, made [2]*replayed, n int) error {
	order := []int{0, 1}
	if sides[0].Rank() == 1 {
		order = []int{1, 0}
	}
	replay := func(order ...int) (err error) {
		for range n {
			for _, i := range order {
				err = errors.Join(err, made[i].exec.Launch(sides[i].stream.CUDA()))
			}
		}
		return err
	}
	var err error
	if m.emulated {
		other := make(chan error, 1)
		go func() { other <- replay(order[1]) }()
		err = errors.Join(replay(order[0]), <-other)
	} else {
		err = replay(order...)
	}
	return errors.Join(err, sides[0].Wait(ctx, sides[0].stream), sides[1].Wait(ctx, sides[1].stream))
}

// side is one of two handles.
type side struct {
	member
	own *cuda.Stream
}

func newSide(ctx context.Context, e *eptest.Device, c *weft.Comm, s ep.Spec) (*side, error) {
	h, err := ep.NewHandle(ctx, c, s)
	if err != nil {
		return nil, err
	}
	own, err := c.Device().Context().NewStream(cuda.StreamOptions{})
	if err != nil {
		return nil, err
	}
	return &side{member{c, e, h, weft.StreamOf(own)}, own}, nil
}

// twoSides runs body on two ranks, which have two handles, of one communicator or of two.
func twoSides(t *testing.T, m *gpuMachine, both [2]ep.Spec, comms int,
	body func(ctx context.Context, sides [2]*side) error,
) {
	const ranks = 2
	ctx := testContext(t)
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
			if sides[j], err = newSide(ctx, engines[j], of, both[j]); err != nil {
				return err
			}
		}
		err := body(ctx, sides)
		for _, s := range sides {
			err = errors.Join(err, s.handle.Close(), s.own.Close())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// sideBySide makes batches on both sides, the second rank's in the other order: on emulated GPUs,
// where a stream runs what it is given before the call returns, from a goroutine for each.
func sideBySide(ctx context.Context, m *gpuMachine, sides [2]*side, rounds [2]*eptest.Round) error {
	if err := eptest.Meet(sides[0].Comm); err != nil {
		return err
	}
	one := func(i int) error {
		s, round := sides[i], rounds[i]
		for i := range m.times(10, 300) {
			if err := errors.Join(round.PrepareDispatch(ctx, s.stream), round.Combine(ctx, s.stream)); err != nil {
				return fmt.Errorf("batch %d: %w", i, err)
			}
		}
		return nil
	}
	first := sides[0].Rank()
	other := make(chan error, 1)
	go func() { other <- one(1 - first) }()
	err := errors.Join(one(first), <-other)
	for _, s := range sides {
		err = errors.Join(err, s.Wait(ctx, s.stream))
	}
	for _, round := range rounds {
		if err == nil {
			err = round.Check()
		}
	}
	return err
}

// TestNoRoomOnGPUs makes handles until a GPU has no room for the kernels of another: it is refused
// on every rank, in words, and found once one is closed.
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
