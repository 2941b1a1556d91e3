package ep_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/ep"
	"github.com/weftgo/weft/internal/eptest"
)

// The ways in which the GPU engine moves rows.
var (
	// values that are their own flags
	exactRows = ep.Spec{MaxTokens: 6, Layout: ep.ExpertMajor, Reduction: ep.Exact}
	// the same
	valueRows = ep.Spec{MaxTokens: 7, Layout: ep.ExpertMajor, Reduction: ep.Partial}
	// a word a block
	flagRows = ep.Spec{MaxTokens: 270, Layout: ep.ExpertMajor, Reduction: ep.Partial}
	// values again
	rankRows = ep.Spec{MaxTokens: 8, Layout: ep.RankMajor, Reduction: ep.Partial, Weighting: ep.Plain}
	// the same, at their final rows
	directRows = ep.Spec{MaxTokens: 270, Layout: ep.RankMajor, Reduction: ep.Partial, Weighting: ep.Plain}
	// in direct mode
	packedRows = ep.Spec{
		MaxTokens: 9, Layout: ep.ExpertPacked, Reduction: ep.Exact, Alignment: 4, Capacity: 60,
		Overflow: ep.OverflowDrop,
	}
	// the same, and read where they are
	tokenRows = ep.Spec{MaxTokens: 300, Layout: ep.TokenMajor, Reduction: ep.Partial, Weighting: ep.Plain}
)

var ways = []way{
	{"exact", exactRows},
	{"value", valueRows},
	{"flag", flagRows},
	{"rank", rankRows},
	{"direct", directRows},
	{"packed", packedRows},
	{"token", tokenRows},
}

type way struct {
	name string
	spec ep.Spec
}

// sized fills in the shape of one of the ways.
func sized(s ep.Spec, ranks int) ep.Spec {
	s.Experts, s.TopK, s.Hidden, s.SMs, s.Counts = 3*ranks, 3, 40, 2*ranks, ep.DeviceCounts
	return s
}

// routed makes a case in which every rank has so many tokens, with experts that pick chooses, and
// rows that go straight from dispatch to combine.
func routed(s ep.Spec, seed uint64, tokens []int, pick func(rank, token, k int) int32) eptest.Case {
	n := len(tokens)
	c := eptest.Case{
		Ranks: n, Spec: s, Weights: true, Seed: seed, Even: true, Operand: eptest.ReceivedOperand,
		TopK: make([][]int32, n),
	}
	for r, n := range tokens {
		for t := range n {
			for k := range s.TopK {
				c.TopK[r] = append(c.TopK[r], pick(r, t, k))
			}
		}
	}
	return c
}

// spread chooses distinct experts at random, now and then none.
func spread(s ep.Spec, seed uint64) func(rank, token, k int) int32 {
	return func(rank, token, k int) int32 {
		rng := rand.New(rand.NewPCG(seed, uint64(rank)<<32|uint64(token)))
		e := rng.Perm(s.Experts)[k]
		if (uint64(token)+seed)%7 == 3 && k == 0 {
			return -1
		}
		return int32(e)
	}
}

// evenly is spread, with so many tokens on every rank.
func evenly(s ep.Spec, ranks int, seed uint64, tokens int) eptest.Case {
	return routed(s, seed, slices.Repeat([]int{tokens}, ranks), spread(s, seed))
}

// member is what a rank of a test has.
type member struct {
	*weft.Comm
	e      *eptest.Device
	handle *ep.Handle
	stream *weft.Stream
}

// members runs body on every rank with a handle, which it closes. The context of all ends when one
// of them fails. The kernels are there already: no deadline comes while they are compiled.
func members(t *testing.T, m *gpuMachine, ranks int, s ep.Spec, deadline time.Duration,
	body func(ctx context.Context, r *member) error,
) {
	t.Helper()
	ctx := testContext(t)
	open := func(e *eptest.Device, body func(ctx context.Context, r *member) error) {
		t.Helper()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		err := e.Ranks(ranks, func(c *weft.Comm) (err error) {
			defer func() {
				if err != nil {
					cancel()
				}
			}()
			h, err := ep.NewHandle(ctx, c, s)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, h.Close()) }()
			return body(ctx, &member{c, e, h, e.Stream(c)})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if deadline < gpuDeadline {
		open(m.engine(t, ranks, gpuDeadline), func(context.Context, *member) error { return nil })
	}
	open(m.engine(t, ranks, deadline), body)
}

// exchange enqueues a batch and looks at what comes out.
func (r *member) exchange(ctx context.Context, round *eptest.Round) error {
	if err := errors.Join(r.e.Sync(r.Comm), eptest.Meet(r.Comm)); err != nil {
		return err
	}
	if err := round.PrepareDispatch(ctx, r.stream); err != nil {
		return err
	}
	return errors.Join(round.Combine(ctx, r.stream), r.Wait(ctx, r.stream), round.Check())
}

// batch is exchange of a batch of its own.
func (r *member) batch(ctx context.Context, b *eptest.Batch) error {
	round, err := b.Round(r.e, r.Comm, r.handle)
	if err != nil {
		return err
	}
	return errors.Join(r.exchange(ctx, round), round.Free())
}

// usable makes sure that the rank's GPU works as before.
func (r *member) usable() error {
	c := r.Device().Context()
	m, err := c.Alloc(64)
	if err != nil {
		return err
	}
	want, got := bytes.Repeat([]byte{7}, 64), make([]byte, 64)
	err = errors.Join(c.Upload(m.Pointer(), want), c.Synchronize(), c.Download(got, m.Pointer()), m.Close())
	if err == nil && !bytes.Equal(got, want) {
		err = errors.New("the GPU does not keep what it is given")
	}
	return err
}

// await ends with the context.
func await(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestLateRankOnGPUs has a rank that does not call. The others say so at their deadline, leave it
// out and go on; then all go on together. It does so as the first thing of a handle and after some
// batches, and with operations that wait in different phases.
func TestLateRankOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks, late = 3, 1
		deadline := 500 * time.Millisecond
		if m.emulated {
			deadline = 2 * time.Second // other tests run beside it
		}
		for i, way := range ways {
			ops := []string{"prepare", "dispatch", "combine", "gradients"}
			if m.emulated && !emulate.Everything() {
				ops = ops[i%len(ops):][:1] // each once
			}
			for _, op := range ops {
				for _, before := range []int{0, 1} {
					// Without a GPU the first operation of all is a prepare, every other time.
					if testing.Short() && before > 0 || m.emulated &&
						(before == 0 && op != "prepare" || op == "prepare" && before != i%2) {
						continue
					}
					t.Run(fmt.Sprintf("%s/%s/%d", way.name, op, before), func(t *testing.T) {
						m := m.parallel(t)
						s := sized(way.spec, ranks)
						tokens := min(s.MaxTokens, 20)
						whole := [3]*eptest.Batch{}
						for i := range whole {
							whole[i] = evenly(s, ranks, uint64(i), tokens).Batch()
						}
						rest := [2]*eptest.Batch{evenly(s, ranks, 8, tokens).Batch(late), evenly(s, ranks, 9, tokens).Batch(late)}
						over := make(chan struct{})
						ready := make(chan struct{}, ranks)
						members(t, m, ranks, s, deadline, func(ctx context.Context, r *member) error {
							round, err := whole[0].Round(r.e, r.Comm, r.handle)
							if err != nil {
								return err
							}
							for range before {
								if err := r.exchange(ctx, round); err != nil {
									return err
								}
							}
							if op == "combine" || op == "gradients" {
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
							} else {
								start := time.Now()
								switch op {
								case "prepare":
									err = round.Prepare(ctx, r.stream)
								case "dispatch":
									err = round.PrepareDispatch(ctx, r.stream)
								case "combine":
									err = round.Combine(ctx, r.stream)
								case "gradients":
									err = round.Backward(ctx, r.stream)
								}
								if err == nil { // it was enqueued
									err = r.Wait(ctx, r.stream)
								}
								took := time.Since(start)
								peer, ok := errors.AsType[*weft.PeerError](err)
								if !ok || peer.Rank != late || !errors.Is(err, weft.ErrTimeout) {
									return fmt.Errorf("%s without rank %d: %w", op, late, err)
								}
								if took < deadline*9/10 || took > deadline+30*time.Second {
									return fmt.Errorf("a deadline of %v came after %v", deadline, took)
								}
								if err := r.Err(); !errors.Is(err, weft.ErrTimeout) {
									return fmt.Errorf("the failure does not stick: %w", err)
								}
								if err := round.PrepareDispatch(ctx, r.stream); !errors.Is(err, weft.ErrTimeout) {
									return fmt.Errorf("the next operation: %w", err)
								}
								if err := r.usable(); err != nil {
									return err
								}
								if err := r.SetMask(ctx, late); err != nil {
									return err
								}
								round.Release()
								for i, b := range rest {
									if err := r.batch(ctx, b); err != nil {
										return fmt.Errorf("batch %d without rank %d: %w", i, late, err)
									}
								}
								ready <- struct{}{}
								if r.Rank() == 0 {
									for range ranks - 1 {
										if err := await(ctx, ready); err != nil {
											return err
										}
									}
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
		}
	})
}

// TestRefusedOnGPUs has one rank's call refused, because of what another found, which had called
// already: after SetMask both dispatch to the same rows.
func TestRefusedOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		m.Abandons = true
		const ranks, late, refused = 3, 1, 2
		s := sized(directRows, ranks)
		whole, rest := evenly(s, ranks, 1, 40).Batch(), evenly(s, ranks, 2, 40).Batch(late)
		failed, over := make(chan struct{}), make(chan struct{})
		deadline := 700 * time.Millisecond
		if m.emulated {
			deadline = 2 * time.Second // other tests run beside it
		}
		members(t, m, ranks, s, deadline, func(ctx context.Context, r *member) error {
			if err := r.batch(ctx, whole); err != nil {
				return err
			}
			round, err := whole.Round(r.e, r.Comm, r.handle)
			if err != nil {
				return err
			}
			switch r.Rank() {
			case late:
				return await(ctx, over)
			case refused:
				if err := errors.Join(await(ctx, failed)); err != nil {
					return err
				}
				err = round.PrepareDispatch(ctx, r.stream)
			default:
				defer close(over)
				err = errors.Join(round.PrepareDispatch(ctx, r.stream), r.Wait(ctx, r.stream))
				close(failed)
			}
			if !errors.Is(err, weft.ErrTimeout) {
				return fmt.Errorf("without rank %d: %w", late, err)
			}
			round.Release()
			if err := r.SetMask(ctx, late); err != nil {
				return err
			}
			for range 3 {
				if err := r.batch(ctx, rest); err != nil {
					return fmt.Errorf("without rank %d: %w", late, err)
				}
			}
			return nil
		})
	})
}

// TestFailedLaunchOnGPUs makes a call that cannot be enqueued again, on a stream that can take it.
func TestFailedLaunchOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				s := sized(way.spec, ranks)
				b := evenly(s, ranks, 1, 6).Batch()
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					round, err := b.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					if r.Rank() == 0 {
						closed, err := r.Device().Context().NewStream(cuda.StreamOptions{})
						if err := errors.Join(err, closed.Close()); err != nil {
							return err
						}
						for range 2*s.Live + 3 { // an odd number of times
							if err := round.PrepareDispatch(ctx, weft.StreamOf(closed)); err == nil {
								return errors.New("a closed stream takes work")
							}
						}
					}
					return errors.Join(r.exchange(ctx, round), round.Free())
				})
			})
		}
	})
}

// TestReceiveAcrossMasksOnGPUs receives what was sent before ranks were masked, after as many
// operations as there had been then.
func TestReceiveAcrossMasksOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				s := sized(way.spec, ranks)
				b := evenly(s, ranks, 1, 6).Batch()
				members(t, m, ranks, s, 2*time.Second, func(ctx context.Context, r *member) error {
					round, err := b.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					if err := errors.Join(round.SendPrepareDispatch(ctx, r.stream), r.Wait(ctx, r.stream),
						eptest.Meet(r.Comm)); err != nil {
						return err
					}
					old := round.Pending()
					if err := r.SetMask(ctx); err != nil {
						return err
					}
					if err := errors.Join(round.Prepare(ctx, r.stream), r.Wait(ctx, r.stream), eptest.Meet(r.Comm)); err != nil {
						return err
					}
					if _, err := old.Receive(ctx); !errors.Is(err, weft.ErrAborted) {
						return fmt.Errorf("received across a mask: %w", err)
					}
					return errors.Join(r.exchange(ctx, round), round.Free())
				})
			})
		}
	})
}

// TestAbortOnGPUs ends a kernel that waits: by Abort from another goroutine of its rank or of
// another's, and by the end of the context of a Wait, after which the work is still there.
func TestAbortOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, way := range ways {
			for _, aborts := range []int{0, 1} {
				t.Run(fmt.Sprintf("%s/%d", way.name, aborts), func(t *testing.T) {
					s := sized(way.spec, ranks)
					b := evenly(s, ranks, 1, 6).Batch()
					cancelled := make(chan struct{})
					members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
						round, err := b.Round(r.e, r.Comm, r.handle)
						if err != nil {
							return err
						}
						if err := r.exchange(ctx, round); err != nil {
							return err
						}
						if r.Rank() == 0 {
							called := make(chan error, 1)
							go func() { called <- round.PrepareDispatch(ctx, r.stream) }()
							if !m.emulated { // the call only enqueues
								if err := <-called; err != nil {
									return err
								}
								called <- nil
							} else if err := busy(ctx, r.stream); err != nil {
								return err
							}
							short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
							err := r.Wait(short, r.stream)
							cancel()
							if !errors.Is(err, context.DeadlineExceeded) {
								return fmt.Errorf("the end of a Wait's context: %w", err)
							}
							close(cancelled)
							if aborts == 0 {
								r.Abort()
							}
							err = errors.Join(<-called, r.Wait(ctx, r.stream))
							if peer, ok := errors.AsType[*weft.PeerError](err); !ok || peer.Rank != aborts ||
								!errors.Is(err, weft.ErrAborted) {
								return fmt.Errorf("after Abort by rank %d: %w", aborts, err)
							}
							if err := r.usable(); err != nil {
								return err
							}
						} else {
							if err := await(ctx, cancelled); err != nil {
								return err
							}
							if aborts == 1 {
								r.Abort()
							}
						}
						if err := r.SetMask(ctx); err != nil {
							return err
						}
						round.Release()
						return errors.Join(r.exchange(ctx, round), round.Free())
					})
				})
			}
		}
	})
}

// busy waits until something runs on the stream.
func busy(ctx context.Context, s *weft.Stream) error {
	for {
		done, err := s.CUDA().Query()
		if err != nil || !done {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// TestMismatchOnGPUs has two ranks make calls that do not go together. Both say so, naming the other
// and its call, neither waits for the deadline, and both go on after SetMask.
func TestMismatchOnGPUs(t *testing.T) {
	const ranks = 2
	type call struct {
		name string
		make func(round *eptest.Round, ctx context.Context, s *weft.Stream) error
	}
	dispatchBackward := func(weights bool) func(*eptest.Round, context.Context, *weft.Stream) error {
		return func(r *eptest.Round, ctx context.Context, s *weft.Stream) error {
			return r.DispatchBackward(ctx, s, weights)
		}
	}
	combineBackward := func(weights bool) func(*eptest.Round, context.Context, *weft.Stream) error {
		return func(r *eptest.Round, ctx context.Context, s *weft.Stream) error {
			return r.CombineBackward(ctx, s, weights)
		}
	}
	pairs := []struct {
		name     string
		weighted bool // there are such calls only where sums are
		calls    [ranks]call
	}{
		{"prepare", false, [ranks]call{
			{"prepare", (*eptest.Round).Prepare},
			{"a dispatch that prepares", (*eptest.Round).PrepareDispatch},
		}},
		{"sum", false, [ranks]call{
			{"dispatch backward without gradients of weights", dispatchBackward(false)},
			{"combine", (*eptest.Round).Combine},
		}},
		{"dispatch backward", false, [ranks]call{
			{"dispatch backward without gradients of weights", dispatchBackward(false)},
			{"dispatch backward with gradients of weights", dispatchBackward(true)},
		}},
		{"combine backward", true, [ranks]call{
			{"combine backward with gradients of weights", combineBackward(true)},
			{"combine backward without gradients of weights", combineBackward(false)},
		}},
	}
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		for _, way := range ways {
			for _, pair := range pairs {
				if pair.weighted && way.spec.Weighting != ep.Weighted {
					continue
				}
				t.Run(way.name+"/"+pair.name, func(t *testing.T) {
					s := sized(way.spec, ranks)
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
						if err = pair.calls[r.Rank()].make(round, ctx, r.stream); err == nil {
							err = r.Wait(ctx, r.stream)
						}
						errs[r.Rank()] = err
						if peer, ok := errors.AsType[*weft.PeerError](err); !ok || peer.Rank != 1-r.Rank() {
							return fmt.Errorf("calls that do not go together: %w", err)
						}
						round.Release()
						if err := r.SetMask(ctx); err != nil {
							return err
						}
						if err := errors.Join(r.exchange(ctx, round), round.Backward(ctx, r.stream), r.Wait(ctx, r.stream)); err != nil {
							return err
						}
						return errors.Join(round.CheckGradients(), round.Free())
					})
					for r, err := range errs {
						words := fmt.Sprintf("it calls %s, this rank %s", pair.calls[1-r].name, pair.calls[r].name)
						if !errors.Is(err, weft.ErrMismatch) || !strings.Contains(err.Error(), words) {
							t.Errorf("rank %d: %v, want %q", r, err, words)
						}
					}
				})
			}
		}
	})
}

// TestNoPlaceOnGPUs has one rank refuse a call because it still holds what it received before.
// Nothing was enqueued: the other waits, and the call is made when there is a buffer.
func TestNoPlaceOnGPUs(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpuMachine) {
		const ranks = 2
		for _, spec := range []ep.Spec{packedRows, tokenRows} {
			t.Run(spec.Layout.String(), func(t *testing.T) {
				s := sized(spec, ranks)
				s.Live = 1
				b := evenly(s, ranks, 1, 5).Batch()
				members(t, m, ranks, s, gpuDeadline, func(ctx context.Context, r *member) error {
					held, err := b.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					round, err := b.Round(r.e, r.Comm, r.handle)
					if err != nil {
						return err
					}
					if err := errors.Join(held.PrepareDispatch(ctx, r.stream), r.rest(ctx)); err != nil {
						return err
					}
					if r.Rank() == 0 {
						if err := round.PrepareDispatch(ctx, r.stream); !errors.Is(err, weft.ErrUnsupported) ||
							!strings.Contains(err.Error(), "release a received tensor") {
							return fmt.Errorf("without a buffer: %w", err)
						}
					}
					held.Release()
					if err := errors.Join(round.PrepareDispatch(ctx, r.stream), round.Combine(ctx, r.stream),
						r.Wait(ctx, r.stream), round.Check()); err != nil {
						return err
					}
					return errors.Join(held.Free(), round.Free())
				})
			})
		}
	})
}

// TestCloseOnBusyEmulatedGPUs closes handles while somebody else's kernel runs on and on in their
// context. Close says so at the deadline and frees nothing; when the kernel has ended it frees all.
func TestCloseOnBusyEmulatedGPUs(t *testing.T) {
	m := emulatedMachine(t, 1, emulate.Options{Limit: time.Minute})
	const deadline = 200 * time.Millisecond
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			begun, end := make(chan struct{}), make(chan struct{})
			m.Machine.Kernel("endless", func(*cudatest.Call) { close(begun); <-end })
			s := sized(way.spec, 1)
			b := evenly(s, 1, 1, 3).Batch()
			members(t, m, 1, s, deadline, func(ctx context.Context, r *member) (err error) {
				if err := r.batch(ctx, b); err != nil {
					return err
				}
				c := r.Device().Context()
				module, err := c.LoadModule([]byte("another's"))
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, module.Close()) }()
				f, err := module.Function("endless")
				if err != nil {
					return err
				}
				launch, err := f.Prepare(cuda.LaunchConfig{})
				if err != nil {
					return err
				}
				stream, err := c.NewStream(cuda.StreamOptions{})
				if err != nil {
					return err
				}
				ended := make(chan error, 1)
				go func() { ended <- launch.Start(stream) }()
				stop := sync.OnceValue(func() error { close(end); return errors.Join(<-ended, stream.Close()) })
				defer func() { err = errors.Join(err, stop()) }()
				if err := await(ctx, begun); err != nil {
					return err
				}
				frees := func() int {
					return m.Machine.Calls("cuMemFree") + m.Machine.Calls("cuMemUnmap") + m.Machine.Calls("cuModuleUnload")
				}
				before := frees()
				start := time.Now()
				err = r.handle.Close()
				if took := time.Since(start); took < deadline || took > deadline+30*time.Second {
					return fmt.Errorf("a deadline of %v came after %v", deadline, took)
				}
				if !errors.Is(err, weft.ErrTimeout) || !strings.Contains(err.Error(), "close handle") ||
					!strings.Contains(err.Error(), "call Close again") {
					return fmt.Errorf("beside a kernel that does not end: %w", err)
				}
				if n := frees(); n != before {
					return fmt.Errorf("%d calls that free something", n-before)
				}
				if _, err := r.handle.Prepare(ctx, r.stream, weft.Tensor{}, weft.Tensor{}); !errors.Is(err, weft.ErrClosed) {
					return fmt.Errorf("a handle that was closed: %w", err)
				}
				return errors.Join(stop(), r.handle.Close(), r.handle.Close())
			})
		})
	}
}
