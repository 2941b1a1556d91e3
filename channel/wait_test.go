package channel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPolicyFor(t *testing.T) {
	const alone, crowded = 4000, 4
	for _, c := range []struct{ local, inProcess, cpus, spin int }{
		{1, 1, 1, alone},
		{2, 1, 2, alone},
		{8, 8, 8, alone},
		{8, 1, 192, alone},
		{2, 1, 1, crowded},
		{3, 1, 2, crowded},
		{8, 1, 2, crowded},
		{8, 8, 2, crowded},
		{64, 1, 63, crowded},
		{1, 1, 0, crowded},
	} {
		want := Policy{Spin: c.spin, Yield: 100, Goroutines: c.inProcess > 1}
		if d := cmp.Diff(want, PolicyFor(c.local, c.inProcess, c.cpus)); d != "" {
			t.Errorf("%d ranks, %d of them here, on %d processors (-want +got):\n%s", c.local, c.inProcess, c.cpus, d)
		}
	}
}

func TestNap(t *testing.T) {
	if nap(0) != 20*time.Microsecond || nap(math.MaxInt) != time.Millisecond {
		t.Errorf("naps from %v to %v", nap(0), nap(math.MaxInt))
	}
	for i := range 200 {
		if nap(i+1) < nap(i) {
			t.Errorf("nap %d is shorter than the one before", i+1)
		}
	}
}

// ways are the two ways to wait for a counter of rank 1 to reach one.
var ways = map[string]func(ctx context.Context, w *Waiter, c *Counter) error{
	"Wait": func(ctx context.Context, w *Waiter, c *Counter) error { return w.Wait(ctx, c, 1, "test wait", 1) },
	"Until": func(ctx context.Context, w *Waiter, c *Counter) error {
		return w.Until(ctx, "test wait", 1, func() bool { return c.Load() >= 1 })
	},
}

// ending is a reason for which a wait ends. The event happens when the wait is in its long phase.
type ending struct {
	name  string
	adapt func(s *scene)
	event func(s *scene)
	check func(t *testing.T, s *scene, err error)
}

type scene struct {
	*crew
	ctx    context.Context
	cancel context.CancelFunc
	w      *Waiter // rank 0's
	gone   atomic.Bool
	asked  atomic.Int64
}

// blameless fails the test if the end of a context is held against somebody.
func blameless(t *testing.T, s *scene, err, cause error) {
	t.Helper()
	if _, ok := errors.AsType[*PeerError](err); ok || !errors.Is(err, cause) || errors.Is(err, ErrTimeout) {
		t.Errorf("got %v, want nobody blamed and %v", err, cause)
	} else if text := err.Error(); !strings.Contains(text, "test wait") || !strings.Contains(text, "rank 1") {
		t.Errorf("%q names neither operation nor peer", text)
	}
	for r, c := range s.control {
		if f := c.Fault(); f != (Fault{}) {
			t.Errorf("rank %d was told of %+v", r, f)
		}
	}
}

var endings = []ending{
	{
		name:  "value",
		event: func(s *scene) { s.counter[1].Publish(1) },
		check: func(t *testing.T, _ *scene, err error) {
			if err != nil {
				t.Error(err)
			}
		},
	},
	{
		name:  "deadline",
		adapt: func(s *scene) { s.w.Timeout = 15 * time.Millisecond },
		check: func(t *testing.T, s *scene, err error) {
			mustBlame(t, err, "test wait", 1, ErrTimeout)
			for r, c := range s.control {
				if f := c.Fault(); f != (Fault{Cause: CauseTimeout, Rank: 1}) {
					t.Errorf("rank %d was told of %+v", r, f)
				}
			}
		},
	},
	{
		name:  "cancelled",
		event: func(s *scene) { s.cancel() },
		check: func(t *testing.T, s *scene, err error) { blameless(t, s, err, context.Canceled) },
	},
	{
		name:  "context's deadline",
		adapt: func(s *scene) { s.ctx, s.cancel = context.WithTimeout(s.ctx, 15*time.Millisecond) },
		check: func(t *testing.T, s *scene, err error) { blameless(t, s, err, context.DeadlineExceeded) },
	},
	{
		name:  "abort",
		event: func(s *scene) { s.control[0].Abort(Fault{Cause: CauseDied, Rank: 2, Reporter: 3}) },
		check: func(t *testing.T, _ *scene, err error) { mustBlame(t, err, "test wait", 2, ErrDied) },
	},
	{
		name:  "peer leaves",
		adapt: func(s *scene) { s.w.Gone = func(peer int) bool { return peer == 1 && s.gone.Load() } },
		event: func(s *scene) { s.gone.Store(true) },
		check: func(t *testing.T, _ *scene, err error) { mustBlame(t, err, "test wait", 1, ErrLeft) },
	},
	{
		// The news that the peer has left overtakes what it published before.
		name: "value before the peer leaves",
		adapt: func(s *scene) {
			s.w.Gone = func(int) bool {
				if !s.gone.Load() {
					return false
				}
				s.counter[1].Publish(1)
				return true
			}
		},
		event: func(s *scene) { s.gone.Store(true) },
		check: func(t *testing.T, _ *scene, err error) {
			if err != nil {
				t.Errorf("what the peer published before it left does not count: %v", err)
			}
		},
	},
	{
		name: "abort that concerns others",
		adapt: func(s *scene) {
			s.w.Fault = func(op string) error {
				if f := s.control[0].Fault(); f.Rank != 3 {
					return f.Err(op)
				}
				if s.asked.Add(1) == 3 {
					s.counter[1].Publish(1)
				}
				return nil
			}
		},
		event: func(s *scene) { s.control[0].Abort(Fault{Cause: CauseTimeout, Rank: 3, Reporter: 3}) },
		check: func(t *testing.T, s *scene, err error) {
			if err != nil || s.asked.Load() < 3 {
				t.Errorf("asked %d times: %v", s.asked.Load(), err)
			}
		},
	},
	{
		name: "abort as the communicator reads it",
		adapt: func(s *scene) {
			s.w.Fault = func(op string) error { return fmt.Errorf("%s: %w", op, errors.ErrUnsupported) }
		},
		event: func(s *scene) { s.control[0].Abort(Fault{Cause: CauseAbort, Rank: 3, Reporter: 3}) },
		check: func(t *testing.T, _ *scene, err error) {
			if !errors.Is(err, errors.ErrUnsupported) || !strings.HasPrefix(err.Error(), "test wait") {
				t.Errorf("got %v", err)
			}
		},
	},
}

// TestWaitEnds ends waits for every reason in every phase of waiting.
func TestWaitEnds(t *testing.T) {
	for _, p := range phases {
		for way, wait := range ways {
			for _, e := range endings {
				t.Run(p.name+"/"+way+"/"+e.name, func(t *testing.T) {
					s := &scene{crew: newCrew(t, 4, p.Policy)}
					s.w = s.waiter[0]
					s.ctx, s.cancel = context.WithCancel(t.Context())
					if e.adapt != nil {
						e.adapt(s)
					}
					defer func() { s.cancel() }()
					done := make(chan error, 1)
					s.waits.Go(func() { done <- wait(s.ctx, s.w, s.counter[1]) })
					if e.event != nil {
						awaitRecord(t, s.control[0], 1)
						if r := s.control[0].Record(); r.Op != "test wait" || r.Expected != 1 || r.Seen != 0 {
							t.Errorf("the record says %v", r)
						}
						e.event(s)
					}
					err := result(t, done)
					e.check(t, s, err)
					if r := s.control[0].Record(); r.Peer >= 0 {
						t.Errorf("after the wait, the record says that rank 0 %v", r)
					}
				})
			}
		}
	}
}

// TestWaitReached: what is there needs no wait, whatever else has happened.
func TestWaitReached(t *testing.T) {
	for way, wait := range ways {
		c := newCrew(t, 2, PolicyFor(2, 1, 2))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		c.waiter[0].Timeout = 1
		c.waiter[0].Gone = func(int) bool { return true }
		c.counter[1].Publish(math.MaxUint64)
		c.control[0].Abort(Fault{Cause: CauseDied, Rank: 1})
		if err := wait(ctx, c.waiter[0], c.counter[1]); err != nil {
			t.Errorf("%s: %v", way, err)
		}
	}
}

// TestWaitAfterSleep: a value that a rank finds when it has slept may mean something else by then,
// if the others have given it up.
func TestWaitAfterSleep(t *testing.T) {
	for _, goroutines := range []bool{false, true} {
		for way, wait := range ways {
			c := newCrew(t, 2, Policy{Goroutines: goroutines})
			w := c.waiter[0]
			w.Gone = func(int) bool { // asked between the look at the abort word and the sleep
				c.control[0].Abort(Fault{Cause: CauseTimeout, Rank: 0, Reporter: 1})
				c.counter[1].Publish(1)
				return false
			}
			t.Run(fmt.Sprintf("%s/goroutines %t", way, goroutines), func(t *testing.T) {
				mustBlame(t, wait(t.Context(), w, c.counter[1]), "test wait", 0, ErrTimeout)
			})
		}
	}
}

// TestWaitTwice lets two goroutines of a rank wait at once. One's wait ends, and the record still
// says what the rank waits for.
func TestWaitTwice(t *testing.T) {
	for way, wait := range ways {
		c := newCrew(t, 3, Policy{Yield: 4})
		first := make(chan error, 1)
		c.waits.Go(func() { first <- wait(t.Context(), c.waiter[0], c.counter[1]) })
		awaitRecord(t, c.control[0], 1)
		second := c.wait(t.Context(), 0, 2)
		awaitRecord(t, c.control[0], 2)
		c.counter[2].Publish(1)
		if err := result(t, second); err != nil {
			t.Error(err)
		}
		awaitRecord(t, c.control[0], 1)
		c.counter[1].Publish(1)
		if err := result(t, first); err != nil {
			t.Errorf("%s: %v", way, err)
		}
		if r := c.control[0].Record(); r.Peer >= 0 {
			t.Errorf("%s: the rank waits no longer, and %v", way, r)
		}
	}
}
