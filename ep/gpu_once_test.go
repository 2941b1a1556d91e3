package ep_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/ep/spec"
	"github.com/weftgo/weft/fabric/fabrictest"
	"github.com/weftgo/weft/fabric/ibgda"
	"github.com/weftgo/weft/internal/eptest"
)

// once has rows of dispatches go once to each host, until the test ends.
func once(t *testing.T) {
	t.Helper()
	t.Setenv(spec.CopiesVariable, "host")
	t.Cleanup(ep.SetHostCopies())
}

// TestOncePerHostOnGPUs runs the suite where kernels and port channels take a row once to each host.
func TestOncePerHostOnGPUs(t *testing.T) {
	once(t)
	for _, where := range []string{"emulated", "real"} {
		t.Run(where, func(t *testing.T) {
			m, cases := realMachine, gpuCases(t)
			if where == "emulated" {
				m, cases = fewMachine, emulatedCases(t, 6)
			}
			on, ways := m(t), []struct{ hosts, each int }{{2, 2}, {3, 2}, {2, 4}}
			if where == "emulated" && !emulate.Everything() {
				ways, cases = ways[:1], 1
			}
			for _, way := range ways {
				t.Run(fmt.Sprintf("%d x %d ranks", way.hosts, way.each), func(t *testing.T) {
					eptest.RunSome(t, on.between(way.each).engine(t, way.hosts*way.each, 20*time.Second), cases)
				})
			}
		})
	}
}

// onceWays are ways of few tokens and of many, by expert and by rank.
var onceWays = []way{{"rank", rankRows}, {"flag", flagRows}, {"value", valueRows}, {"direct", directRows}}

// TestLateRankOncePerHostOnGPUs is TestLateRankBetweenGPUs where rows go once to each host: of hosts with as many
// ranks, and with more on one.
func TestLateRankOncePerHostOnGPUs(t *testing.T) {
	once(t)
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		for _, ranks := range []int{4, 3} {
			ways := onceWays
			if m.emulated && !emulate.Everything() {
				if ways = ways[:2]; ranks == 3 {
					ways = ways[:1]
				}
			}
			t.Run(fmt.Sprintf("%d ranks", ranks), func(t *testing.T) { withoutLate(t, m.between(2), ranks, ways) })
		}
	})
}

// TestLateKeeperOnGPUs: who waits for rows that a rank of its host is to bring names that rank if it is late, and their
// source if that is late, however early it began to wait.
func TestLateKeeperOnGPUs(t *testing.T) {
	once(t)
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks, late, deadline = 4, 1, 2 * time.Second
		for i, way := range onceWays[:2] {
			if m.emulated && !emulate.Everything() && i > 0 {
				break
			}
			for _, sends := range []bool{true, false} { // the late rank, which does not receive
				t.Run(fmt.Sprint(way.name, " ", sends), func(t *testing.T) {
					m := m.between(2).parallel(t)
					s := sized(way.spec, ranks)
					b := evenly(s, ranks, 1, min(s.MaxTokens, 20)).Batch()
					over := make(chan struct{}, ranks)
					members(t, m, ranks, s, deadline, func(ctx context.Context, r *member) error {
						round, err := b.Round(r.e, r.Comm, r.handle)
						if err != nil {
							return err
						}
						if err := errors.Join(r.exchange(ctx, round), eptest.Meet(r.Comm)); err != nil {
							return err
						}
						if r.Rank() == late+2 { // which keeps for the late rank
							time.Sleep(deadline * 6 / 10)
						}
						if r.Rank() != late || sends {
							if err := round.SendPrepareDispatch(ctx, r.stream); err != nil {
								return err
							}
						}
						if r.Rank() == late {
							for range ranks - 1 {
								if err := await(ctx, over); err != nil {
									return err
								}
							}
						} else {
							err := round.Receive(ctx)
							if err == nil {
								err = r.Wait(ctx, r.stream)
							}
							peer, ok := errors.AsType[*weft.PeerError](err)
							named := ok && peer.Rank == late && errors.Is(err, weft.ErrTimeout)
							if !named && (err != nil || !sends || r.Rank() == 0) {
								return fmt.Errorf("without rank %d: %w", late, err)
							}
							over <- struct{}{}
						}
						round.Release()
						if err := r.SetMask(ctx); err != nil {
							return err
						}
						return errors.Join(r.exchange(ctx, round), round.Free())
					})
				})
			}
		}
	})
}

// TestGraphsOncePerHostOnGPUs is TestGraphsBetweenGPUs where rows go once to each host.
func TestGraphsOncePerHostOnGPUs(t *testing.T) {
	once(t)
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) { replay(t, m.between(2), 4, onceWays[:2]) })
}

// TestCardOncePerHostOnGPUs has ranks of which one is alone on its host exchange rows by a card made of Go.
func TestCardOncePerHostOnGPUs(t *testing.T) {
	once(t)
	t.Setenv(ibgda.NICVariable, "software")
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) { checkCard(t, m.between(2), onceWays[:1]) })
}

// TestPartsOncePerHostOnGPUs has rows that take several channels to each keeper.
func TestPartsOncePerHostOnGPUs(t *testing.T) {
	once(t)
	eachMachineAtLength(t, func(t *testing.T, m *gpuMachine) {
		for _, spec := range []ep.Spec{exactRows, rankRows} {
			t.Run(fmt.Sprint(spec.Layout), func(t *testing.T) {
				const ranks = 3
				s := sized(spec, ranks)
				s.Hidden, s.MaxTokens = 4096, 70 // three parts
				members(t, m.between(2), ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					for i, tokens := range [][]int{{70, 2, 9}, {1, 5, 0}, {0, 8, 70}} {
						if err := r.batch(ctx, routed(s, uint64(i), tokens, spread(s, uint64(i))).Batch()); err != nil {
							return fmt.Errorf("batch %d: %w", i, err)
						}
					}
					return nil
				})
			})
		}
	})
}

// TestCopiesVariable: what the variable may not hold is refused on every rank.
func TestCopiesVariable(t *testing.T) {
	m := tornMachine(t)
	t.Setenv(spec.CopiesVariable, "both")
	err := m.between(1).engine(t, 2, gpuDeadline).Ranks(2, func(c *weft.Comm) error {
		_, err := ep.NewHandle(testContext(t), c, sized(rankRows, 2))
		if !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), spec.CopiesVariable) {
			return fmt.Errorf("a third way: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// onceHosts makes an engine of ranks whose hosts have those names.
func (m *gpuMachine) onceHosts(t *testing.T, names string, deadline time.Duration,
) (*eptest.Device, *fabrictest.Network) {
	t.Helper()
	network := fabrictest.New(fabrictest.TCP(), 1)
	e := eptest.NewDeviceHosts(names, func(rank int) []weft.Option {
		return append(m.Options(rank), weft.WithDeadline(deadline), weft.WithFabric(network.Open), weft.WithLogger(m.logger))
	})
	t.Cleanup(func() {
		if err := errors.Join(e.Close(), network.Check()); err != nil {
			t.Error(err)
		}
	})
	return e, network
}

// TestPortBytesOnGPUs compares the bytes that kernels and port channels send to other hosts with the formulas of
// docs/design/gpu-engine.md, where rows go to each rank and where they go once to each host.
func TestPortBytesOnGPUs(t *testing.T) {
	for _, copies := range []string{"rank", "host"} {
		for _, s := range []ep.Spec{exactRows, rankRows, fewRows} {
			for _, names := range []string{"aabb", "abbb"} {
				if !emulate.Everything() && (names == "abbb") != (s == rankRows) {
					continue
				}
				t.Run(fmt.Sprint(copies, " ", names, " ", s.Layout, " ", s.MaxTokens), func(t *testing.T) {
					once(t)
					t.Setenv(spec.CopiesVariable, copies)
					s := sized(s, len(names))
					if s.Payload == ep.FP8 {
						s.Hidden = 128
					}
					checkPortBytes(t, fewMachine(t), names, s, copies == "host")
				})
			}
		}
	}
}

// fewRows has so few tokens that ranks count rows from the records.
var fewRows = ep.Spec{Layout: ep.ExpertMajor, Reduction: ep.Partial, Payload: ep.FP8, MaxTokens: 3}

func checkPortBytes(t *testing.T, m *gpuMachine, names string, s ep.Spec, host bool) {
	n := len(names)
	c := evenly(s, n, 1, min(s.MaxTokens, 20))
	e, network := m.onceHosts(t, names, gpuDeadline)
	c.Hosts = e.Hosts()
	b := c.Batch()
	if err := e.Ranks(n, func(comm *weft.Comm) error {
		ctx := testContext(t)
		h, err := ep.NewHandle(ctx, comm, s)
		if err != nil {
			return err
		}
		defer h.Close()
		steps, err := b.Steps(e, comm, h)
		if err != nil {
			return err
		}
		defer steps.Free()
		for _, step := range []struct {
			name        string
			do          func() error
			route, move bool
		}{
			{"prepare", func() error { return steps.Prepare(ctx) }, true, false},
			{"dispatch", func() error { return steps.Dispatch(ctx, 0) }, false, true},
		} {
			if err := eptest.Meet(comm); err != nil {
				return err
			}
			before := network.Carried(comm.Rank())
			if err := errors.Join(step.do(), comm.Wait(ctx, nil), eptest.Meet(comm)); err != nil {
				return fmt.Errorf("%s: %w", step.name, err)
			}
			want := portBytes(c, comm.Rank(), host, step.route, step.move)
			if got := network.Carried(comm.Rank()) - before; got != want {
				return fmt.Errorf("%s sends %d bytes to other hosts, want %d", step.name, got, want)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// portBytes is what a rank sends in a prepare or a dispatch, by one link to each rank.
func portBytes(c eptest.Case, rank int, host, route, move bool) (bytes int) {
	s := c.Spec.Normalize()
	local, tokens := s.Experts/c.Ranks, len(c.TopK[rank])/s.TopK
	up := func(n int) int { return (n + 15) &^ 15 }
	member := func(r int) (m, of int) {
		for i, h := range c.Hosts {
			if h == c.Hosts[r] {
				if of++; i < r {
					m++
				}
			}
		}
		return m, of
	}
	own, owns := member(rank)
	for peer, h := range c.Hosts {
		if h == c.Hosts[rank] {
			continue
		}
		m, of := member(peer)
		keeps := m == own%of
		switch {
		case host && !keeps && own != m%owns:
			continue // no link is used
		case host && !keeps:
			bytes += 32
			continue
		}
		wants := func(e int32) bool {
			if !host {
				return e >= 0 && int(e)/local == peer
			}
			return e >= 0 && c.Hosts[int(e)/local] == h
		}
		each, index := 1, 1
		if host {
			each, index = of, 2
		}
		bytes += 32 + up(tokens*index*4)
		if route {
			bytes += up(tokens * s.TopK * 8)
			if s.Layout == ep.ExpertMajor && !spec.FewTokens(s, c.Ranks) {
				bytes += up(each * (1 + local) * 4)
			}
		}
		for t := range tokens {
			if move && slices.ContainsFunc(c.TopK[rank][t*s.TopK:(t+1)*s.TopK], wants) {
				bytes += s.RowSize() + up(s.ScaleSize())
			}
		}
	}
	return bytes
}
