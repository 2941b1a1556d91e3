package channel

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"testing"
	"time"
)

// patience bounds waits that end at once unless something is broken.
const patience = time.Minute

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// long takes the number of rounds of a stress test, and makes it smaller where rounds are slow or
// time is short.
func long(rounds int) int {
	if raceEnabled {
		rounds /= 5
	}
	if testing.Short() {
		rounds /= 3
	}
	return rounds
}

// phase is a policy with a name.
type phase struct {
	name string
	Policy
}

// phases are policies that stay in one phase of waiting for good, and those that ranks have.
var phases = []phase{
	{"spin", Policy{Spin: math.MaxInt}},
	{"yield", Policy{Yield: math.MaxInt}},
	{"sleep", Policy{}},
	{"goroutines yield", Policy{Yield: math.MaxInt, Goroutines: true}},
	{"goroutines nap", Policy{Goroutines: true}},
	{"alone", PolicyFor(2, 1, 2)},
	{"crowded", PolicyFor(3, 1, 2)},
	{"crowded goroutines", PolicyFor(3, 3, 2)},
}

// rounds is long for ranks that wait by the policy. Those that never let go of their thread are
// slow where processors are few, and naps are slow everywhere.
func (p phase) rounds(n int) int {
	switch {
	case !p.Goroutines && (max(p.Spin, p.Yield) == math.MaxInt || runtime.GOMAXPROCS(0) == 1):
		n /= 20
	case p.Goroutines && p.Yield == 0:
		n /= 5
	}
	return long(n)
}

// crew is ranks that are goroutines, with the memory that they share.
type crew struct {
	waits   sync.WaitGroup // their contexts end with the test, and its memory goes after them
	control []*Control
	status  []*Status // of the same
	waiter  []*Waiter
	counter []*Counter // one each, which the rank raises
}

// newCrew makes ranks whose waiters tell all of them whom they blame, as those of a communicator
// do.
func newCrew(t testing.TB, ranks int, p Policy) *crew {
	t.Helper()
	const each = ControlSize + Stride
	mem, _ := twice(t, ranks*each)
	c := &crew{}
	t.Cleanup(c.waits.Wait)
	for r := range ranks {
		c.control = append(c.control, ControlAt(mem, r*each))
		c.status = append(c.status, &c.control[r].Status)
		c.counter = append(c.counter, CounterAt(mem, r*each+ControlSize))
	}
	for r := range ranks {
		c.waiter = append(c.waiter, &Waiter{
			Policy: p, Rank: r, Own: c.control[r], Peers: c.status,
			Timeout: patience, Blame: c.spread,
		})
	}
	return c
}

func (c *crew) spread(f Fault) {
	for _, o := range c.control {
		o.Abort(f)
	}
}

// wait lets a rank wait for another until that has raised its counter to one.
func (c *crew) wait(ctx context.Context, rank, peer int) <-chan error {
	done := make(chan error, 1)
	c.waits.Go(func() { done <- c.waiter[rank].Wait(ctx, c.counter[peer], 1, "test wait", peer) })
	return done
}

// awaitRecord returns when a rank's record says that it waits for the peer.
func awaitRecord(t testing.TB, c *Control, peer int) {
	t.Helper()
	for start := time.Now(); c.Record().Peer != peer; runtime.Gosched() {
		if time.Since(start) > patience {
			t.Fatalf("no wait for rank %d: %v", peer, c.Record())
		}
	}
}

// result returns what a wait came to.
func result(t testing.TB, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatal("the wait does not end")
		return nil
	}
}

// mustBlame fails the test unless err is a PeerError of the operation that names the rank and wraps
// the cause.
func mustBlame(t testing.TB, err error, op string, rank int, cause error) {
	t.Helper()
	peer, ok := errors.AsType[*PeerError](err)
	if !ok || peer.Rank != rank || peer.Op != op || !errors.Is(err, cause) {
		t.Errorf("got %v, want %s to blame rank %d: %v", err, op, rank, cause)
	}
}

// mustPanic fails the test unless f panics.
func mustPanic(t testing.TB, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	f()
}
