package ep_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/fabric/ibgda"
	"github.com/weftgo/weft/fabric/softnic"
	"github.com/weftgo/weft/fabric/verbstest"
	"github.com/weftgo/weft/internal/eptest"
	"github.com/weftgo/weft/internal/ranktest"
)

// TestBetweenGPUs runs the suite between GPUs of several hosts, which do not map each other's memory: by port channels
// where there are few tokens, and by the hosts' processors.
func TestBetweenGPUs(t *testing.T) {
	for _, where := range []string{"emulated", "real"} {
		t.Run(where, func(t *testing.T) {
			m, cases := realMachine, gpuCases(t)
			if where == "emulated" {
				m, cases = fewMachine, emulatedCases(t, 6)
			}
			on, ways := m(t), []struct{ hosts, each int }{{2, 2}, {2, 1}, {4, 1}}
			if where == "emulated" && !emulate.Everything() {
				ways = ways[:2]
			}
			for _, way := range ways {
				t.Run(fmt.Sprintf("%d x %d ranks", way.hosts, way.each), func(t *testing.T) {
					few := cases
					if where == "emulated" && !emulate.Everything() {
						few = 1
					}
					eptest.RunSome(t, on.between(way.each).engine(t, way.hosts*way.each, gpuDeadline), few)
				})
				t.Run(fmt.Sprintf("%d x %d ranks, by processors", way.hosts, way.each), func(t *testing.T) {
					t.Cleanup(ep.SetPortTokens(0))
					many := cases
					if where == "emulated" && emulate.Everything() { // of which the hand-over is the only kernel
						many = 3 * cases
					}
					eptest.RunSome(t, on.between(way.each).engine(t, way.hosts*way.each, gpuDeadline), many)
				})
			}
		})
	}
}

func realMachine(t *testing.T) *gpuMachine { return &gpuMachine{GPUs: ranktest.Real(t)} }

func fewMachine(t *testing.T) *gpuMachine {
	return emulatedMachine(t, 2, emulate.Options{Limit: 2 * time.Minute, Seed: 1, Tear: true})
}

// eachHost runs a test between GPUs of a rank each, on emulated ones and on the machine's.
func eachHost(t *testing.T, body func(t *testing.T, m *gpuMachine)) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) { body(t, m.between(1)) })
}

// TestLateRankBetweenGPUs: a rank that comes late is waited for. One that does not come is named at the deadline, and
// left out; the others go on, and then all do. What was on its way meanwhile is nowhere taken for anything else.
func TestLateRankBetweenGPUs(t *testing.T) {
	eachHost(t, func(t *testing.T, m *gpuMachine) {
		ways := ways
		if !emulate.Everything() && testing.Short() {
			ways = ways[:2]
		}
		withoutLate(t, m, 3, ways)
	})
}

// withoutLate is TestLateRankBetweenGPUs, of so many ranks.
func withoutLate(t *testing.T, m *gpuMachine, ranks int, ways []way) {
	const late = 1
	for i, way := range ways {
		op := []string{"prepare", "dispatch", "combine", "receive"}[i%4]
		t.Run(way.name+"/"+op, func(t *testing.T) {
			m := m.parallel(t)
			s := sized(way.spec, ranks)
			tokens := min(s.MaxTokens, 20)
			batch := func(seed uint64, masked ...int) *eptest.Batch {
				return evenly(s, ranks, seed, tokens).Batch(masked...)
			}
			whole := []*eptest.Batch{batch(0), batch(1), batch(2)}
			rest := []*eptest.Batch{batch(8, late), batch(9, late)}
			over := make(chan struct{})
			ready := make(chan struct{}, ranks)
			members(t, m, ranks, s, 2*time.Second, func(ctx context.Context, r *member) error {
				round, err := whole[0].Round(r.e, r.Comm, r.handle)
				if err != nil {
					return err
				}
				if r.Rank() == late {
					time.Sleep(300 * time.Millisecond)
				}
				if err := r.exchange(ctx, round); err != nil {
					return err
				}
				if op == "combine" {
					if err := errors.Join(round.PrepareDispatch(ctx, r.stream), r.Wait(ctx, r.stream)); err != nil {
						return err
					}
				}
				if err := eptest.Meet(r.Comm); err != nil {
					return err
				}
				if r.Rank() == late {
					if err := await(ctx, over); err != nil {
						return err
					}
					if err := round.PrepareDispatch(ctx, r.stream); err == nil {
						return errors.New("the late rank goes on alone")
					}
				} else if err := r.without(ctx, round, op, late, rest); err != nil {
					return err
				} else {
					ready <- struct{}{}
					for range ranks - 1 {
						if r.Rank() == 0 {
							if err := await(ctx, ready); err != nil {
								return err
							}
						}
					}
					if r.Rank() == 0 {
						close(over)
					} else if err := await(ctx, over); err != nil {
						return err
					}
				}
				if err := r.SetMask(ctx); err != nil {
					return err
				}
				round.Release()
				for i, b := range whole {
					if err := r.batch(ctx, b); err != nil {
						return fmt.Errorf("batch %d of all: %w", i, err)
					}
				}
				return round.Free()
			})
		})
	}
}

// without makes a call that a rank does not, and goes on without that rank.
func (r *member) without(ctx context.Context, round *eptest.Round, op string, late int, rest []*eptest.Batch) error {
	var err error
	switch op {
	case "prepare":
		err = round.Prepare(ctx, r.stream)
	case "dispatch":
		err = round.PrepareDispatch(ctx, r.stream)
	case "combine":
		err = round.Combine(ctx, r.stream)
	case "receive":
		if err = errors.Join(round.SendPrepareDispatch(ctx, r.stream), r.Wait(ctx, r.stream)); err != nil {
			return fmt.Errorf("what is only sent: %w", err)
		}
		err = round.Receive(ctx)
	}
	if err == nil {
		err = r.Wait(ctx, r.stream)
	}
	if peer, ok := errors.AsType[*weft.PeerError](err); !ok || peer.Rank != late || !errors.Is(err, weft.ErrTimeout) {
		return fmt.Errorf("%s without rank %d: %w", op, late, err)
	}
	if err := errors.Join(r.usable(), r.SetMask(ctx, late)); err != nil {
		return err
	}
	round.Release()
	for i, b := range rest {
		if err := r.batch(ctx, b); err != nil {
			return fmt.Errorf("batch %d without rank %d: %w", i, late, err)
		}
	}
	return nil
}

// TestAbortBetweenGPUs ends kernels that wait for a signal, by Abort of either rank.
func TestAbortBetweenGPUs(t *testing.T) {
	eachHost(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for i, way := range ways {
			aborts := i % ranks
			t.Run(fmt.Sprintf("%s/%d", way.name, aborts), func(t *testing.T) {
				s := sized(way.spec, ranks)
				b := evenly(s, ranks, 1, 6).Batch()
				met, waits := make(chan struct{}), make(chan struct{})
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					round, err := b.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					if err := errors.Join(r.exchange(ctx, round), eptest.Meet(r.Comm)); err != nil {
						return err
					}
					if r.Rank() == 0 {
						if err := await(ctx, met); err != nil { // an Abort would end the other rank's Meet
							return err
						}
						called := make(chan error, 1)
						go func() { called <- errors.Join(round.PrepareDispatch(ctx, r.stream), r.Wait(ctx, r.stream)) }()
						time.Sleep(50 * time.Millisecond) // it waits, or will: the same is true
						close(waits)
						if aborts == 0 {
							r.Abort()
						}
						err := <-called
						if peer, ok := errors.AsType[*weft.PeerError](err); !ok || peer.Rank != aborts ||
							!errors.Is(err, weft.ErrAborted) {
							return fmt.Errorf("after Abort by rank %d: %w", aborts, err)
						}
					} else {
						close(met)
						if err := await(ctx, waits); err != nil {
							return err
						}
						if aborts == 1 {
							r.Abort()
						}
					}
					if err := errors.Join(r.usable(), r.SetMask(ctx)); err != nil {
						return err
					}
					round.Release()
					return errors.Join(r.exchange(ctx, round), round.Free())
				})
			})
		}
	})
}

// TestMismatchBetweenGPUs has two ranks make calls that do not go together. Both say so before the deadline.
func TestMismatchBetweenGPUs(t *testing.T) {
	eachHost(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		s := sized(exactRows, ranks)
		b := evenly(s, ranks, 1, 5).Batch()
		var errs [ranks]error
		members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
			round, err := b.Round(r.e, r.Comm, r.handle)
			if err != nil {
				return err
			}
			if err := errors.Join(r.exchange(ctx, round), eptest.Meet(r.Comm)); err != nil {
				return err
			}
			if r.Rank() == 0 {
				err = round.Prepare(ctx, r.stream)
			} else {
				err = round.PrepareDispatch(ctx, r.stream)
			}
			if err == nil {
				err = r.Wait(ctx, r.stream)
			}
			errs[r.Rank()] = err
			round.Release()
			if err := r.SetMask(ctx); err != nil {
				return err
			}
			return errors.Join(r.exchange(ctx, round), round.Free())
		})
		calls := [ranks]string{"prepare", "a dispatch that prepares"}
		for r, err := range errs {
			words := fmt.Sprintf("it calls %s, this rank %s", calls[1-r], calls[r])
			peer, ok := errors.AsType[*weft.PeerError](err)
			if !ok || peer.Rank != 1-r || !errors.Is(err, weft.ErrMismatch) || !strings.Contains(err.Error(), words) {
				t.Errorf("rank %d: %v, want %q", r, err, words)
			}
		}
	})
}

// TestGraphsBetweenGPUs replays operations of several launches, of batches of different sizes.
func TestGraphsBetweenGPUs(t *testing.T) {
	eachHost(t, func(t *testing.T, m *gpuMachine) { replay(t, m, 2, ways) })
}

// replay is TestGraphsBetweenGPUs, of so many ranks.
func replay(t *testing.T, m *gpuMachine, ranks int, ways []way) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			s := sized(way.spec, ranks)
			s.Live = 24
			var batches [][]*eptest.Batch
			for n, first := range []int{min(s.MaxTokens, 9), 0} {
				tokens := slices.Repeat([]int{3}, ranks)
				tokens[0] = first
				var contents []*eptest.Batch
				for v := range uint64(2) {
					seed := uint64(n)*10 + v
					contents = append(contents, routed(s, seed, tokens, spread(s, seed)).Batch())
				}
				batches = append(batches, contents)
			}
			members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
				g, err := newReplayed(ctx, r, "fyc pdc", batches)
				if err != nil {
					return err
				}
				for i := range m.times(3, 1000) {
					if err := errors.Join(g.fresh(ctx, r, batches, i%2), g.exec.Launch(r.stream.CUDA()),
						r.Wait(ctx, r.stream)); err != nil {
						return fmt.Errorf("replay %d: %w", i, err)
					}
					if err := g.check(); err != nil {
						return fmt.Errorf("replay %d: %w", i, err)
					}
				}
				return errors.Join(r.rest(ctx), g.close())
			})
		})
	}
}

// TestGradientsInGraphsBetweenGPUs: the memory of gradients between hosts is made by the first call of one, is counted
// as the handle's, and is not made in a capture, which goes on without the call. Replays then bring all gradients.
func TestGradientsInGraphsBetweenGPUs(t *testing.T) {
	eachHost(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		s := sized(exactRows, ranks)
		s.Live = 8
		var contents []*eptest.Batch
		for v := range uint64(2) {
			contents = append(contents, routed(s, v, []int{min(s.MaxTokens, 9), 3}, spread(s, v)).Batch())
		}
		members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
			first, err := contents[0].Round(r.e, r.Comm, r.handle)
			if err != nil {
				return err
			}
			if err := r.exchange(ctx, first); err != nil {
				return err
			}
			before := r.handle.MemoryBytes()
			if n := r.handle.GradientSMs(); n != 0 {
				return fmt.Errorf("before the first gradient it has %d SMs", n)
			}
			early, err := r.capture(func() error {
				if err := first.CombineBackward(ctx, r.stream, true); !errors.Is(err, weft.ErrUnsupported) ||
					!strings.Contains(err.Error(), "make the call once before") {
					return fmt.Errorf("the first gradient in a capture: %w", err)
				}
				return first.Combine(ctx, r.stream)
			})
			if err != nil {
				return err
			}
			if err := errors.Join(early.Launch(r.stream.CUDA()), r.Wait(ctx, r.stream), first.CheckCombined(),
				early.Close()); err != nil {
				return err
			}
			if err := errors.Join(first.Backward(ctx, r.stream), r.Wait(ctx, r.stream), first.CheckGradients(),
				first.Free()); err != nil {
				return err
			}
			of := r.handle.Spec()
			outputs := of.MaxTokens * of.Hidden * of.Output.Size() // that a window has room for
			if n := r.handle.MemoryBytes(); n < before+outputs || r.handle.GradientSMs() == 0 {
				return fmt.Errorf("%d bytes before the first gradient and %d after it, with %d SMs", before, n,
					r.handle.GradientSMs())
			}
			batches := [][]*eptest.Batch{contents}
			g, err := newReplayed(ctx, r, "pdcg", batches)
			if err != nil {
				return err
			}
			for i := range m.times(3, 100) {
				if err := errors.Join(g.fresh(ctx, r, batches, i%2), g.exec.Launch(r.stream.CUDA()),
					r.Wait(ctx, r.stream), g.check()); err != nil {
					return fmt.Errorf("replay %d: %w", i, err)
				}
			}
			return errors.Join(r.rest(ctx), g.close())
		})
	})
}

// TestPartsBetweenGPUs has rows that take several channels to each rank, also where there are fewer tokens than
// channels.
func TestPartsBetweenGPUs(t *testing.T) {
	eachHost(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, spec := range []ep.Spec{exactRows, rankRows} {
			t.Run(fmt.Sprintf("%v/%v", spec.Layout, spec.Reduction), func(t *testing.T) {
				s := sized(spec, ranks)
				s.Hidden, s.MaxTokens = 4096, 70 // three parts
				var batches []*eptest.Batch
				for i, tokens := range [][]int{{70, 2}, {1, 5}, {0, 8}} {
					batches = append(batches, routed(s, uint64(i), tokens, spread(s, uint64(i))).Batch())
				}
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					for i, b := range batches {
						if err := r.batch(ctx, b); err != nil {
							return fmt.Errorf("batch %d: %w", i, err)
						}
					}
					return nil
				})
			})
		}
	})
}

// TestGradientsBetweenGPUs brings all gradients of batches whose rows go by port channels, and refuses those of a
// routing of before a mask.
func TestGradientsBetweenGPUs(t *testing.T) {
	eachHost(t, func(t *testing.T, m *gpuMachine) {
		const ranks, out = 3, 2
		for _, spec := range []ep.Spec{exactRows, rankRows} {
			t.Run(fmt.Sprintf("%v/%v", spec.Layout, spec.Reduction), func(t *testing.T) {
				s := sized(spec, ranks)
				all, rest := evenly(s, ranks, 1, 5).Batch(), evenly(s, ranks, 2, 6).Batch(out)
				over := make(chan struct{}) // for the rank that is masked: who still waits is told of it
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					round, err := all.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					for range 2 {
						if err := errors.Join(r.exchange(ctx, round), round.Backward(ctx, r.stream), r.Wait(ctx, r.stream)); err != nil {
							return err
						}
						if err := round.CheckGradients(); err != nil {
							return err
						}
					}
					if r.Rank() == out {
						close(over)
					} else {
						if err := errors.Join(await(ctx, over), r.SetMask(ctx, out)); err != nil {
							return err
						}
						if err := r.batch(ctx, rest); err != nil {
							return err
						}
						if err := round.CombineBackward(ctx, r.stream, true); !errors.Is(err, weft.ErrInvalid) ||
							!strings.Contains(err.Error(), "prepare again") {
							return fmt.Errorf("gradients by a routing of before the mask: %w", err)
						}
					}
					round.Release()
					if err := r.SetMask(ctx); err != nil {
						return err
					}
					return errors.Join(r.exchange(ctx, round), round.Backward(ctx, r.stream), r.Wait(ctx, r.stream),
						round.CheckGradients(), round.Free())
				})
			})
		}
	})
}

// TestMaskBetweenHalvesBetweenGPUs masks ranks after a dispatch was sent. Its second half is refused, and the
// handle has memory for what arrives from then on.
func TestMaskBetweenHalvesBetweenGPUs(t *testing.T) {
	t.Cleanup(ep.SetPortTokens(0))
	eachHost(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		s := sized(exactRows, ranks)
		b := evenly(s, ranks, 1, 5).Batch()
		members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
			round, err := b.Round(r.e, r.Comm, r.handle)
			if err != nil {
				return err
			}
			for range 2 {
				if err := errors.Join(r.exchange(ctx, round), round.SendDispatch(ctx, r.stream), r.Wait(ctx, r.stream),
					eptest.Meet(r.Comm), r.SetMask(ctx)); err != nil {
					return err
				}
				if err := round.Receive(ctx); !errors.Is(err, weft.ErrAborted) {
					return fmt.Errorf("the second half after a mask: %w", err)
				}
			}
			return errors.Join(r.exchange(ctx, round), round.Free())
		})
	})
}

// TestBytesBetweenGPUs compares the bytes that each operation sends to other hosts with the formulas of the package's
// documentation.
func TestBytesBetweenGPUs(t *testing.T) {
	t.Cleanup(ep.SetPortTokens(0))
	m := fewMachine(t)
	layouts := [][2]int{{4, 2}, {3, 1}} // ranks, and those of a host
	if !emulate.Everything() {
		layouts = layouts[:1]
	}
	for _, l := range layouts {
		e := m.between(l[1]).engine(t, l[0], gpuDeadline)
		for i, s := range []ep.Spec{
			{Layout: ep.ExpertMajor},
			{Layout: ep.ExpertPacked, Reduction: ep.Partial, Payload: ep.FP8},
			{Layout: ep.ExpertMajor, Reduction: ep.PartialByHost, Payload: ep.FP8UE8M0},
			{Layout: ep.RankMajor, Reduction: ep.Partial, Weighting: ep.Plain},
			{Layout: ep.TokenMajor, Reduction: ep.PartialByHost, Weighting: ep.Plain},
		} {
			if !emulate.Everything() && i != 1 && i != 4 {
				continue
			}
			s.Experts, s.TopK, s.Hidden, s.MaxTokens, s.SMs = 3*l[0], 4, 512, 40, 2*l[0]
			t.Run(fmt.Sprint(l, " ", s), func(t *testing.T) { checkBytes(t, e, e.Hosts(), s) })
		}
	}
}

// TestNoPeerOnGPUs: with WEFT_NO_PEER=1 each rank is a host of its own.
func TestNoPeerOnGPUs(t *testing.T) {
	t.Setenv(weft.NoPeerVariable, "1")
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		for _, ranks := range []int{2, 4} {
			t.Run(fmt.Sprintf("%d ranks", ranks), func(t *testing.T) {
				s := sized(valueRows, ranks)
				b := evenly(s, ranks, 1, 5).Batch()
				// All ranks give one name.
				members(t, m.between(ranks), ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					for peer := range ranks {
						if peer != r.Rank() && r.Host(peer) == r.Host(r.Rank()) {
							return fmt.Errorf("rank %d is on the host of rank %d", peer, r.Rank())
						}
					}
					return r.batch(ctx, b)
				})
			})
		}
	})
}

// TestSoftwareCardOnGPUs: with WEFT_NIC=software kernels write by queue pairs of a card made of Go, which finds no
// mistake in them. A rank that does not come is named, and the others go on.
func TestSoftwareCardOnGPUs(t *testing.T) {
	t.Setenv(ibgda.NICVariable, "software")
	eachHost(t, func(t *testing.T, m *gpuMachine) {
		checkCard(t, m, []way{{"exact", exactRows}, {"flag", flagRows}})
	})
}

// TestHardwareCardOnGPUs is TestSoftwareCardOnGPUs of queue pairs that a libibverbs and a libmlx5 for tests have made,
// and that a card made of Go serves.
func TestHardwareCardOnGPUs(t *testing.T) {
	if testing.Short() {
		t.Skip("emulated kernels are slow: of them the short tests run some of the suite")
	}
	l, m, log := withCard(t)
	rings := uint64(0)
	checkCard(t, m, []way{{"exact", exactRows}}, func() {
		for _, q := range l.Queues() {
			rings += q.Rings()
		}
	})
	if rings == 0 || !strings.Contains(log.String(), "way=card") || strings.Contains(log.String(), "way=proxy") {
		t.Errorf("%d rings; the log:\n%s", rings, log)
	}
}

// withCard has hosts with a card that libraries for tests know, and a log of all that ranks say.
func withCard(t *testing.T) (*verbstest.Library, *gpuMachine, *lines) {
	t.Helper()
	l := verbstest.New(t, verbstest.Options{Softnic: softnic.Options{Seed: 1}})
	address := verbstest.GID{Kind: verbstest.RoCE2, Bytes: netip.MustParseAddr("10.0.0.1").As16()}
	l.Add(verbstest.Card{Name: "mlx5_0", Link: verbstest.Ethernet, GIDs: []verbstest.GID{address}})
	t.Setenv(ibgda.UseVariable, "1")
	m := tornMachine(t).between(1)
	log := new(lines)
	m.logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return l, m, log
}

// TestCardOfOneRankOnGPUs: where one rank can drive a card and another none, all push to the proxy. What libraries
// refuse when the card is known to do is every rank's error.
func TestCardOfOneRankOnGPUs(t *testing.T) {
	if testing.Short() {
		t.Skip("emulated kernels are slow: of them the short tests run some of the suite")
	}
	ep.WarnAgain()
	s := sized(valueRows, 2)
	l, m, log := withCard(t)
	l.Fail("ibv_open_device", syscall.EACCES, 1) // of the second rank
	members(t, m, 2, s, gpuDeadline, func(ctx context.Context, r *member) error {
		return r.batch(ctx, evenly(s, 2, 1, 3).Batch())
	})
	if n := strings.Count(log.String(), ibgda.UseVariable); n != 1 || strings.Contains(log.String(), "way=card") {
		t.Errorf("%d lines of the log say why kernels drive no card:\n%s", n, log)
	}
	l.Fail("ibv_open_device", 0, 0)
	l.Fail("ibv_reg_mr", syscall.ENOMEM, 1)
	err := m.engine(t, 2, gpuDeadline).Ranks(2, func(c *weft.Comm) error {
		_, err := ep.NewHandle(testContext(t), c, s)
		if err == nil || errors.Is(err, syscall.ENOMEM) == isPeer(err) {
			return fmt.Errorf("memory that is not registered: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// checkCard has ranks exchange rows by a card, without one of them, and again with all. Then, if told, it looks at the
// queue pairs.
func checkCard(t *testing.T, m *gpuMachine, ways []way, look ...func()) {
	const ranks, late = 3, 1
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			s := sized(way.spec, ranks)
			tokens := min(s.MaxTokens, 20)
			whole := evenly(s, ranks, 1, tokens).Batch()
			rest := []*eptest.Batch{evenly(s, ranks, 8, tokens).Batch(late)}
			over := make(chan struct{})
			members(t, m, ranks, s, 2*time.Second, func(ctx context.Context, r *member) error {
				round, err := whole.Round(r.e, r.Comm, r.handle)
				if err != nil {
					return err
				}
				for range m.times(10, 1000) { // laps of the queues
					if err := r.exchange(ctx, round); err != nil {
						return err
					}
				}
				if err := eptest.Meet(r.Comm); err != nil {
					return err
				}
				switch r.Rank() {
				case late:
					err = await(ctx, over)
				case 0:
					err = r.without(ctx, round, "dispatch", late, rest)
					close(over)
				default:
					err = errors.Join(r.without(ctx, round, "dispatch", late, rest), await(ctx, over))
				}
				if err := errors.Join(err, r.SetMask(ctx)); err != nil {
					return err
				}
				round.Release()
				if err := errors.Join(r.exchange(ctx, round), round.Free(), eptest.Meet(r.Comm)); err != nil {
					return err
				}
				if r.Rank() == 0 {
					for _, f := range look {
						f()
					}
				}
				return eptest.Meet(r.Comm)
			})
		})
	}
}

// TestChosenWayOnGPUs: kernels that are to drive a card where none can be driven push to the proxy, and one line of
// the log says so. What the variables may not hold is refused.
func TestChosenWayOnGPUs(t *testing.T) {
	ep.WarnAgain()
	m := tornMachine(t)
	s := sized(valueRows, 2)
	t.Setenv(ibgda.UseVariable, "1")
	t.Setenv("WEFT_LIBIBVERBS", t.TempDir()) // which has no libraries
	log := new(lines)
	m.logger = slog.New(slog.NewTextHandler(log, nil))
	members(t, m.between(1), 2, s, gpuDeadline, func(ctx context.Context, r *member) error {
		return r.batch(ctx, evenly(s, 2, 1, 3).Batch())
	})
	if n := strings.Count(log.String(), ibgda.UseVariable); n != 1 {
		t.Errorf("%d lines of the log say why kernels drive no card:\n%s", n, log)
	}
	t.Setenv(ibgda.NICVariable, "gold")
	err := m.between(1).engine(t, 2, gpuDeadline).Ranks(2, func(c *weft.Comm) error {
		_, err := ep.NewHandle(testContext(t), c, s)
		if !errors.Is(err, weft.ErrInvalid) || !strings.Contains(err.Error(), ibgda.NICVariable) {
			return fmt.Errorf("a card of gold: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// isPeer says whether an error is another rank's.
func isPeer(err error) bool {
	_, ok := errors.AsType[*weft.PeerError](err)
	return ok
}

// lines is a log.
type lines struct {
	mu sync.Mutex
	strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.Write(b)
}
