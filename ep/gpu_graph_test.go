package ep_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// capture makes a graph of what fn enqueues on the rank's stream.
func (r *member) capture(fn func() error) (*cuda.GraphExec, error) {
	g, err := r.stream.CUDA().Capture(fn)
	if err != nil {
		return nil, err
	}
	exec, err := g.Instantiate()
	return exec, errors.Join(err, g.Close())
}

// rest waits until nothing of the handle is on its way, at any rank.
func (r *member) rest(ctx context.Context) error {
	return errors.Join(r.Wait(ctx, r.stream), eptest.Meet(r.Comm))
}

// TestAnnouncedInCaptureOnGPUs: in a capture an operation says only of that memory that nobody
// reads it which the same capture has taken and given back.
func TestAnnouncedInCaptureOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		s := sized(directRows, ranks)
		batch := evenly(s, ranks, 1, min(s.MaxTokens, 9)).Batch()
		members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
			round, err := batch.Round(r.e, r.Comm, r.handle)
			if err != nil {
				return err
			}
			step := func(what string, want uint32, do ...func() error) func() error {
				return func() error {
					for _, do := range do {
						if err := do(); err != nil {
							return err
						}
					}
					if got := ep.Announced(r.handle); got != want {
						return fmt.Errorf("%s: announced %#b, want %#b", what, got, want)
					}
					return nil
				}
			}
			dispatch := func() error { return round.PrepareDispatch(ctx, r.stream) }
			release := func() error { round.Release(); return nil }
			rest := func() error { return r.rest(ctx) }
			captured := func(steps ...func() error) func() error {
				return func() error {
					exec, err := r.capture(func() error {
						for _, s := range steps {
							if err := s(); err != nil {
								return err
							}
						}
						return nil
					})
					if err != nil {
						return err
					}
					return exec.Close()
				}
			}
			for _, s := range []func() error{
				step("eager, held", 0b10, dispatch, rest),
				step("eager, released", 0b11, release),
				captured(
					step("first, held", 0, dispatch), step("first, released", 0b10, release),
					step("second, held", 0b10, dispatch), step("second, released", 0b11, release),
				),
				captured(step("another capture, held", 0, dispatch), step("another capture, released", 0b10, release)),
				step("eager again", 0b10, dispatch, rest),
				step("and released", 0b11, release),
			} {
				if err := s(); err != nil {
					return err
				}
			}
			return round.Free()
		})
	})
}

// graphs are the orders of operations that are captured: f is routing and rows in one, p a prepare,
// d a dispatch, y a copy of what has arrived, c a combine, g their gradients. A space begins a new
// batch.
var graphs = []string{"fyc", "pdcg", "fdyc", "fyc fc", "pdcddycc", "fy", "fc p pg fdgcdc", "fc pdyc f fcyg fcdc"}

// graphBatches makes the batches of all graphs, with some sets of contents for each. Ranks have
// many, few, one or no tokens: in most batches each another number, in the last four, which are in
// one graph, all the same.
func graphBatches(s ep.Spec, ranks, many, variants int) (of [][][]*eptest.Batch) {
	numbers := []int{many, 5, 1, 0}
	n := 0
	for _, ops := range graphs {
		var batches [][]*eptest.Batch
		for range strings.Fields(ops) {
			tokens := make([]int, ranks)
			for r := range tokens {
				tokens[r] = numbers[(n+r*(3-n/4%4))%4]
			}
			var contents []*eptest.Batch
			for v := range variants {
				seed := uint64(100*n + v)
				contents = append(contents, routed(s, seed, tokens, spread(s, seed)).Batch())
			}
			batches = append(batches, contents)
			n++
		}
		of = append(of, batches)
	}
	return of
}

// replayed is a graph of batches, each of which has its memory.
type replayed struct {
	ops    string
	exec   *cuda.GraphExec
	rounds []*eptest.Round
}

// newReplayed captures operations.
func newReplayed(ctx context.Context, r *member, ops string, batches [][]*eptest.Batch) (*replayed, error) {
	g := &replayed{ops: ops}
	for _, contents := range batches {
		round, err := contents[0].Round(r.e, r.Comm, r.handle)
		if err != nil {
			return nil, err
		}
		g.rounds = append(g.rounds, round)
	}
	// The memory of a Routing is not allocated in a capture.
	for _, round := range g.rounds {
		if err := round.Prepare(ctx, r.stream); err != nil {
			return nil, err
		}
	}
	for _, round := range g.rounds {
		round.Release()
	}
	var err error
	if g.exec, err = r.capture(func() error { return enqueue(ctx, r, g.rounds, ops) }); err != nil {
		return nil, fmt.Errorf("capture of %q: %w", ops, err)
	}
	return g, nil
}

// fresh puts inputs into place, and poison where results will stand.
func (g *replayed) fresh(ctx context.Context, r *member, batches [][]*eptest.Batch, variant int) error {
	if err := r.rest(ctx); err != nil {
		return err
	}
	for i, round := range g.rounds {
		if err := errors.Join(round.Load(batches[i][variant]), round.Blank()); err != nil {
			return err
		}
	}
	return eptest.Meet(r.Comm)
}

// check compares all that the graph makes with the reference, once the stream has passed.
func (g *replayed) check() error {
	for i, ops := range strings.Fields(g.ops) {
		round := g.rounds[i]
		var err error
		if strings.ContainsAny(ops, "fd") {
			err = round.CheckReceived()
		}
		if err == nil && strings.Contains(ops, "y") {
			err = round.CheckCopied()
		}
		if err == nil && strings.Contains(ops, "c") {
			err = round.CheckCombined()
		}
		if err == nil && strings.Contains(ops, "g") {
			err = round.CheckGradients()
		}
		if err != nil {
			return fmt.Errorf("batch %d: %w", i, err)
		}
	}
	return nil
}

func (g *replayed) close() (err error) {
	for _, round := range g.rounds {
		err = errors.Join(err, round.Free())
	}
	return errors.Join(err, g.exec.Close())
}

// TestGraphsOnGPUs captures operations, in graphs of all orders over one handle, and replays them
// in turn: on GPUs 10,000 times for each of the ways in which rows move and each number of ranks,
// on emulated ones 12 times and with smaller batches. The batches of a graph have different numbers
// of tokens. Now and then, and last of all, results are looked at, with other inputs than before
// and poison where they will stand; and operations run beside that no graph holds.
func TestGraphsOnGPUs(t *testing.T) {
	const variants = 3
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		for i, way := range ways {
			for _, ranks := range []int{1, 2, 3, 4} {
				// Emulated GPUs are slow: there every other way has odd numbers of ranks, and the
				// rest even ones.
				if !m.holds(ranks) || m.emulated && ((i+ranks)%2 == 0 || ranks > 2 && !emulate.Everything()) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d", way.name, ranks), func(t *testing.T) {
					s := sized(way.spec, ranks)
					// What a graph has received stays its own for as long as it is replayed.
					s.Live = 24
					batches := graphBatches(s, ranks, min(s.MaxTokens, m.times(20, s.MaxTokens)), variants)
					other := evenly(s, ranks, 9999, 4).Batch()
					lends := way.name == "direct" // buffers are taken in turn, whoever holds one
					replays := m.times(len(graphs)+4, 10000)
					// Ranks that share a GPU may share what launches wait for, so none runs far
					// ahead of those that it waits for.
					crowded := ranks > len(m.Contexts)
					members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
						made := make([]*replayed, len(graphs))
						for i, ops := range graphs {
							var err error
							if made[i], err = newReplayed(ctx, r, ops, batches[i]); err != nil {
								return err
							}
							for _, round := range made[i].rounds {
								if lends {
									round.Lend()
								}
							}
						}
						eager, err := other.Round(r.e, r.Comm, r.handle)
						if err != nil {
							return err
						}
						for i := range replays {
							n := i % len(made)
							g := made[n]
							looks := i < len(made) || i >= replays-m.times(2, len(made)) || i%97 == 0
							// Where the graphs' buffers are lent, an operation beside them would
							// leave rows in what is looked at.
							beside := i%4 == 1 && !(lends && looks)
							if looks {
								if err := g.fresh(ctx, r, batches[n], i%variants); err != nil {
									return err
								}
							}
							if beside {
								if err := errors.Join(eager.PrepareDispatch(ctx, r.stream), eager.Combine(ctx, r.stream)); err != nil {
									return err
								}
							}
							if err := g.exec.Launch(r.stream.CUDA()); err != nil {
								return err
							}
							if looks || crowded && i%8 == 0 {
								if err := r.Wait(ctx, r.stream); err != nil {
									return fmt.Errorf("replay %d, of %q: %w", i, g.ops, err)
								}
							}
							if !looks {
								continue
							}
							if err := g.check(); err != nil {
								return fmt.Errorf("replay %d, of %q: %w", i, g.ops, err)
							}
							if beside {
								if err := eager.CheckCombined(); err != nil {
									return fmt.Errorf("before replay %d: %w", i, err)
								}
							}
						}
						err = errors.Join(r.rest(ctx), eager.CheckCombined(), eager.Free())
						for _, g := range made {
							err = errors.Join(err, g.close())
						}
						return err
					})
				})
			}
		}
	})
}

// enqueue enqueues operations, of one round after another. A round without a dispatch of its own
// takes the rows of the round before.
func enqueue(ctx context.Context, r *member, rounds []*eptest.Round, ops string) error {
	for _, op := range ops {
		var err error
		switch op {
		case ' ':
			rounds = rounds[1:]
		case 'f':
			err = rounds[0].PrepareDispatch(ctx, r.stream)
		case 'p':
			err = rounds[0].Prepare(ctx, r.stream)
		case 'd':
			err = rounds[0].Dispatch(ctx, r.stream)
		case 'y':
			err = rounds[0].Copy(ctx, r.stream)
		case 'c':
			err = rounds[0].Combine(ctx, r.stream)
		case 'g':
			err = rounds[0].Backward(ctx, r.stream)
		}
		if err != nil {
			return fmt.Errorf("%c: %w", op, err)
		}
	}
	return nil
}

// TestGraphWithoutRankOnGPUs replays a graph whose first operation finds a rank missing. The second
// must not give the missing rank, which comes after all, what it could not compute.
func TestGraphWithoutRankOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks, late = 2, 1
		const deadline = time.Second
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				m := m.parallel(t)
				s := sized(way.spec, ranks)
				s.TopK = s.Experts // so that every rank has something for every token, and old routing will do
				every := func(_, token, k int) int32 { return int32((token + k) % s.Experts) }
				first, second := routed(s, 1, []int{5, 5}, every).Batch(), routed(s, 2, []int{5, 5}, every).Batch()
				launched, over := make(chan struct{}), make(chan struct{})
				members(t, m, ranks, s, deadline, func(ctx context.Context, r *member) error {
					round, err := first.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					if err := r.exchange(ctx, round); err != nil {
						return err
					}
					round.Release()
					g, err := r.capture(func() error { return enqueue(ctx, r, []*eptest.Round{round}, "fc") })
					if err != nil {
						return err
					}
					replay := func() error {
						return errors.Join(eptest.Meet(r.Comm), g.Launch(r.stream.CUDA()), r.Wait(ctx, r.stream))
					}
					if err := errors.Join(replay(), round.Check(), eptest.Meet(r.Comm), round.Load(second),
						round.Blank(), eptest.Meet(r.Comm)); err != nil {
						return err
					}
					if r.Rank() == late {
						if err := await(ctx, launched); err != nil {
							return err
						}
						time.Sleep(deadline * 5 / 4) // between the deadlines of the first operation and of the second
						err := errors.Join(g.Launch(r.stream.CUDA()), r.Wait(ctx, r.stream))
						if err == nil {
							err = round.Check()
						} else if errors.Is(err, weft.ErrTimeout) || errors.Is(err, weft.ErrAborted) {
							err = nil
						}
						close(over)
						if err != nil {
							return fmt.Errorf("what the other had given up: %w", err)
						}
					} else {
						close(launched)
						err := errors.Join(g.Launch(r.stream.CUDA()))
						if err := await(ctx, over); err != nil {
							return err
						}
						if err = errors.Join(err, r.Wait(ctx, r.stream)); err == nil {
							err = round.Check() // this rank's GPU began so late that the other came in time
						} else if errors.Is(err, weft.ErrTimeout) {
							err = nil
						}
						if err != nil {
							return fmt.Errorf("a replay without rank %d: %w", late, err)
						}
					}
					if err := errors.Join(r.SetMask(ctx), round.Load(first), round.Blank(), eptest.Meet(r.Comm)); err != nil {
						return err
					}
					other, err := first.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					if err := errors.Join(r.exchange(ctx, other), eptest.Meet(r.Comm), round.Blank(), replay(),
						round.Check()); err != nil {
						return err
					}
					return errors.Join(g.Close(), other.Free(), round.Free())
				})
			})
		}
	})
}

// TestReplayAfterMaskOnGPUs replays a graph as the first thing after a failure and SetMask. It may
// work or say that it does not.
func TestReplayAfterMaskOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks, late = 2, 1
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				m := m.parallel(t)
				s := sized(way.spec, ranks)
				first, second := evenly(s, ranks, 1, 5).Batch(), evenly(s, ranks, 2, 5).Batch()
				over := make(chan struct{})
				var loaded [ranks]chan struct{} // no Meet: what a fast rank's replay comes to would end it
				for i := range loaded {
					loaded[i] = make(chan struct{})
				}
				members(t, m, ranks, s, time.Second, func(ctx context.Context, r *member) error {
					round, err := first.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					if err := r.exchange(ctx, round); err != nil {
						return err
					}
					round.Release()
					g, err := r.capture(func() error { return enqueue(ctx, r, []*eptest.Round{round}, "f") })
					if err != nil {
						return err
					}
					if r.Rank() == late {
						err = await(ctx, over)
					} else {
						err = errors.Join(round.Prepare(ctx, r.stream), r.Wait(ctx, r.stream))
						if !errors.Is(err, weft.ErrTimeout) {
							return fmt.Errorf("without rank %d: %w", late, err)
						}
						close(over)
						err = nil
					}
					if err := errors.Join(err, r.SetMask(ctx), round.Load(second), round.Blank()); err != nil {
						return err
					}
					close(loaded[r.Rank()])
					if err := await(ctx, loaded[1-r.Rank()]); err != nil {
						return err
					}
					err = errors.Join(g.Launch(r.stream.CUDA()), r.Wait(ctx, r.stream))
					if err == nil {
						if err := round.CheckReceived(); err != nil {
							return fmt.Errorf("a replay after SetMask that seems to have worked: %w", err)
						}
					} else if err := r.SetMask(ctx); err != nil {
						return err
					}
					if err := r.exchange(ctx, round); err != nil {
						return err
					}
					return errors.Join(g.Close(), round.Free())
				})
			})
		}
	})
}

// TestReceivedAcrossReplaysOnGPUs holds what one batch has received while a graph, captured when
// nobody held it, is replayed: a faster rank's next dispatch must not be taken to where it stands.
func TestReceivedAcrossReplaysOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks, slow = 2, 1
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				s := sized(way.spec, ranks)
				s.Live = 2
				b := evenly(s, ranks, 1, 6).Batch()
				looked := make(chan struct{})
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					rounds := make([]*eptest.Round, 4)
					for i := range rounds {
						var err error
						if rounds[i], err = b.Round(r.e, r.Comm, r.handle); err != nil {
							return err
						}
					}
					graph, held, between, last := rounds[0], rounds[1], rounds[2], rounds[3]
					g, err := r.capture(func() error { return enqueue(ctx, r, []*eptest.Round{graph}, "fc") }) // the first place
					if err != nil {
						return err
					}
					graph.Release()
					if err := held.PrepareDispatch(ctx, r.stream); err != nil { // the second
						return err
					}
					if err := between.PrepareDispatch(ctx, r.stream); err != nil { // the first
						return err
					}
					between.Release()
					if err := errors.Join(g.Launch(r.stream.CUDA()), r.rest(ctx)); err != nil {
						return err
					}
					data := held.Received().Data
					before, after := make([]byte, data.Bytes()), make([]byte, data.Bytes())
					if r.Rank() == slow {
						poison := bytes.Repeat([]byte{0x5A}, data.Bytes())
						if err := errors.Join(r.e.Upload(r.Comm, data.Data, poison),
							r.e.Download(r.Comm, before, data.Data), eptest.Meet(r.Comm)); err != nil {
							return err
						}
						for start := time.Now(); time.Since(start) < 300*time.Millisecond; {
							if err := r.e.Download(r.Comm, after, data.Data); err != nil {
								return err
							}
							if !bytes.Equal(before, after) {
								return errors.New("what is held was overwritten by a rank that had gone on")
							}
						}
						close(looked)
					} else if err := eptest.Meet(r.Comm); err != nil {
						return err
					}
					held.Release()
					if err := last.PrepareDispatch(ctx, r.stream); err != nil { // the second again
						return err
					}
					if err := errors.Join(await(ctx, looked), r.rest(ctx), last.CheckReceived(), g.Close()); err != nil {
						return err
					}
					for _, round := range rounds {
						err = errors.Join(err, round.Free())
					}
					return err
				})
			})
		}
	})
}

// TestRoutingAcrossReplaysOnGPUs combines by a Routing that was prepared after one that a graph
// writes was given back, when the graph has been replayed meanwhile. Captures go on with what
// graphs write already, of which there is no more than one needs.
func TestRoutingAcrossReplaysOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				s := sized(way.spec, ranks)
				s.Live = 2
				tokens := []int{6, 6}
				theirs, ours := routed(s, 1, tokens, spread(s, 1)), routed(s, 2, tokens, spread(s, 2))
				ours.Operand = eptest.PlainOperand // its received rows stand where the graph's do
				before, after := theirs.Batch(), ours.Batch()
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					graph, err := before.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					held, err := after.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					for range 3 {
						g, err := r.capture(func() error { return enqueue(ctx, r, []*eptest.Round{graph}, "fc") })
						if err != nil {
							return err
						}
						graph.Release()
						if err := held.PrepareDispatch(ctx, r.stream); err != nil {
							return err
						}
						if err := errors.Join(g.Launch(r.stream.CUDA()), r.rest(ctx), graph.CheckCombined()); err != nil {
							return err
						}
						if err := errors.Join(held.Combine(ctx, r.stream), r.rest(ctx), held.CheckCombined(), g.Close()); err != nil {
							return err
						}
						held.Release()
					}
					if n := ep.GraphedRoutings(r.handle); n != 1 {
						return fmt.Errorf("three captures, one after another, have written %d Routings", n)
					}
					return errors.Join(graph.Free(), held.Free())
				})
			})
		}
	})
}

// TestLeftOutReplaysOnGPUs has a rank that was left out send what it was asked for before: nobody
// takes it for what somebody else sends.
func TestLeftOutReplaysOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		m.Abandons = true
		const ranks, lost = 3, 2
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				s := sized(way.spec, ranks)
				local := s.Experts / ranks
				// Before, all go to the rank that is lost; after, to the others.
				whole := routed(s, 1, []int{5, 5, 5}, func(_, _, k int) int32 { return int32(lost*local + k) }).Batch()
				rest := routed(s, 2, []int{5, 5, 5}, func(_, _, k int) int32 { return int32(k) }).Batch(lost)
				captured, sent, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
				ready := make(chan struct{}, ranks)
				var captures atomic.Int32
				members(t, m, ranks, s, time.Second, func(ctx context.Context, r *member) error {
					round, err := whole.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					if err := errors.Join(round.PrepareDispatch(ctx, r.stream), r.rest(ctx)); err != nil {
						return err
					}
					g, err := r.capture(func() error { return round.Combine(ctx, r.stream) })
					if err != nil {
						return err
					}
					// SetMask waits for the GPU, which a driver refuses while another rank captures there.
					if captures.Add(1) == ranks {
						close(captured)
					}
					if r.Rank() == lost {
						for range ranks - 1 {
							if err := await(ctx, ready); err != nil {
								return err
							}
						}
						err := errors.Join(g.Launch(r.stream.CUDA()), r.Wait(ctx, r.stream))
						close(sent)
						if err == nil {
							return errors.New("the rank that was left out goes on alone")
						}
						return errors.Join(await(ctx, over), g.Close())
					}
					if err := errors.Join(await(ctx, captured), r.SetMask(ctx, lost)); err != nil {
						return err
					}
					next, err := rest.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					if err := errors.Join(next.PrepareDispatch(ctx, r.stream), r.rest(ctx)); err != nil {
						return err
					}
					ready <- struct{}{}
					if err := await(ctx, sent); err != nil {
						return err
					}
					if r.Rank() == 0 {
						time.Sleep(100 * time.Millisecond) // what it sends would hide what the other has sent
					}
					if err := errors.Join(next.Combine(ctx, r.stream), r.Wait(ctx, r.stream), next.Check(), next.Free()); err != nil {
						return fmt.Errorf("what the left-out rank sent was taken: %w", err)
					}
					if r.Rank() == 0 {
						close(over)
					}
					return g.Close()
				})
			})
		}
	})
}
