package weft

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// Gate counts the calls that are inside an object of a communicator: a group, or a handle. Memory below a call
// is not taken away: while one is inside, neither the object closes nor the communicator.
//
// Calls enter and leave. An object closes its gate before it gives memory up; a communicator that closes closes
// the gates of all its objects, or none.
type Gate struct {
	comm   *Comm
	kind   string
	inside atomic.Int64 // from shut on when it is closed
}

const shut = math.MinInt64

// Gate makes the gate of an object. Errors call the object by its kind.
func (o Operations) Gate(kind string) *Gate {
	g := &Gate{comm: o.comm, kind: kind}
	o.comm.gates.add(g)
	return g
}

// Enter begins a call. Unless it returns an error the call ends with Leave.
func (g *Gate) Enter(op string) error {
	for g.inside.Add(1) <= 0 {
		g.inside.Add(-1)
		if g.comm.gates.closed(g) {
			kind := g.kind
			if g.comm.closed.Load() {
				kind = "communicator"
			}
			return fmt.Errorf("%s: %s %w", op, kind, ErrClosed)
		}
	}
	return nil
}

// Leave ends a call.
func (g *Gate) Leave() { g.inside.Add(-1) }

// Closed reports whether the gate is closed.
func (g *Gate) Closed() bool { return g.inside.Load() < 0 }

// Idle reports whether no call is inside.
func (g *Gate) Idle() bool { return g.inside.Load() <= 0 }

// Close lets no call in any more. It fails with [ErrBusy] while one is inside. Closed again, it does nothing.
func (g *Gate) Close(op string) error {
	if !g.comm.gates.closeOne(g) {
		return fmt.Errorf("%s: %w", op, g.busy())
	}
	return nil
}

func (g *Gate) close() bool { return g.inside.CompareAndSwap(0, shut) || g.Closed() }

// busy says which call is inside, as far as this rank shows it.
func (g *Gate) busy() error {
	what := "a call of a " + g.kind
	if g.kind == "communicator" {
		what = "a call"
	}
	if r := g.comm.control.Waiter.Own.Record(); r.Peer >= 0 {
		what = fmt.Sprintf("%s, which waits for rank %d,", r.What(), r.Peer)
	}
	return fmt.Errorf("%w: %s is in progress; close when it has returned, and Abort ends it", ErrBusy, what)
}

// gates are those of a communicator's objects that are open, its own among them. Gates are closed under the lock, as
// a communicator that finds one busy opens again those that it has just closed.
type gates struct {
	sync.Mutex
	all []*Gate
}

func (s *gates) add(g *Gate) {
	s.Lock()
	defer s.Unlock()
	s.all = append(s.all, g)
}

// closed reports whether a gate is closed for good.
func (s *gates) closed(g *Gate) bool {
	s.Lock()
	defer s.Unlock()
	return g.Closed()
}

// closeOne closes a gate, unless a call is inside.
func (s *gates) closeOne(g *Gate) bool {
	s.Lock()
	defer s.Unlock()
	if !g.close() {
		return false
	}
	s.all = slices.DeleteFunc(s.all, func(o *Gate) bool { return o == g })
	return true
}

// close closes all gates, or none and says what is in progress.
func (s *gates) close() error {
	s.Lock()
	defer s.Unlock()
	for i, g := range s.all {
		if !g.close() {
			for _, open := range s.all[:i] {
				open.inside.Add(shut) // which wraps
			}
			return g.busy()
		}
	}
	s.all = nil
	return nil
}
