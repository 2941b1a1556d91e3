package channel

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// chain lets ranks wait, each for the peer that it is given, and returns when their records say so.
func (c *crew) chain(t *testing.T, peers map[int]int) map[int]<-chan error {
	t.Helper()
	waits := map[int]<-chan error{}
	for rank, peer := range peers {
		waits[rank] = c.wait(t.Context(), rank, peer)
		awaitRecord(t, c.control[rank], peer)
	}
	return waits
}

// halt gives a rank the record of a process that was stopped while it waited: nothing in it moves.
func (c *crew) halt(rank, peer int) {
	c.control[rank].setRecord(Record{Op: "test wait", Peer: peer, Expected: 1})
}

// TestBlame: at its deadline rank 0 blames the rank that holds everyone up, and all waiting ranks
// return the same.
func TestBlame(t *testing.T) {
	for _, c := range []struct {
		name    string
		waits   map[int]int // who waits for whom, beside rank 0 for rank 1
		halted  map[int]int // and who was stopped while it waited for whom
		culprit int
	}{
		{"an idle peer", nil, nil, 1},
		{"an idle rank behind a waiting peer", map[int]int{1: 2}, nil, 2},
		{"an idle rank behind two", map[int]int{1: 2, 2: 3}, nil, 3},
		{"a stopped peer", nil, map[int]int{1: 2}, 1},
		{"a stopped peer that waits for this rank", nil, map[int]int{1: 0}, 1},
		{"a stopped rank behind a waiting peer", map[int]int{1: 2}, map[int]int{2: 3}, 2},
		{"a stopped rank behind two", map[int]int{1: 2, 2: 3}, map[int]int{3: 0}, 3},
		{"a peer that waits for this rank", map[int]int{1: 0}, nil, -1},
		{"a ring", map[int]int{1: 2, 2: 0}, nil, -1},
		{"a ring behind a waiting peer", map[int]int{1: 2, 2: 3, 3: 2}, nil, -1},
		{"a ring with a stopped rank", map[int]int{1: 2}, map[int]int{2: 0}, 2},
	} {
		for _, p := range phases {
			switch p.name {
			case "sleep":
			case "spin", "crowded goroutines":
				if testing.Short() {
					continue
				}
			default:
				continue
			}
			t.Run(c.name+"/"+p.name, func(t *testing.T) {
				crew := newCrew(t, 5, p.Policy)
				for rank, peer := range c.halted {
					crew.halt(rank, peer)
				}
				waits := crew.chain(t, c.waits)
				crew.waiter[0].Timeout = 10 * time.Millisecond
				waits[0] = crew.wait(t.Context(), 0, 1)
				for _, done := range waits {
					err := result(t, done)
					mustBlame(t, err, "test wait", c.culprit, ErrTimeout)
				}
				for r, control := range crew.control {
					if f := control.Fault(); f != (Fault{Cause: CauseTimeout, Rank: c.culprit, Reporter: 0}) {
						t.Errorf("rank %d was told of %+v", r, f)
					}
				}
			})
		}
	}
}

// TestBlameRing follows ranks that wait for each other in a ring that this rank is not part of.
// No rank is blamed, and the walk ends.
func TestBlameRing(t *testing.T) {
	crew := newCrew(t, 4, Policy{})
	crew.chain(t, map[int]int{1: 2, 2: 3, 3: 1})
	if got := crew.waiter[0].Culprit(Record{Op: "test wait", Peer: 1}, 0); got != -1 {
		t.Errorf("rank %d is blamed", got)
	}
}

// TestBlameMessages: the error of ranks that wait for each other speaks of messages if a wait of the cycle is for one,
// whatever its operation is called.
func TestBlameMessages(t *testing.T) {
	for _, c := range []struct {
		op       string
		messages []int // the ranks that wait for one
		speaks   bool
	}{
		{"batch", []int{0, 1, 2}, true},
		{"batch", []int{2}, true},
		{"send", nil, false},
		{"receive", []int{3}, false},
	} {
		t.Run(fmt.Sprint(c.op, c.messages), func(t *testing.T) {
			crew := newCrew(t, 4, Policy{})
			for _, w := range crew.waiter {
				w.Object = "group 1"
			}
			for _, r := range c.messages {
				crew.waiter[r].Message = true
			}
			crew.waiter[0].Timeout = 20 * time.Millisecond
			waits := make([]<-chan error, 4)
			for rank, peer := range []int{1, 2, 0, 0} { // rank 3 waits for the others, which wait for each other
				done := make(chan error, 1)
				waits[rank] = done
				crew.waits.Go(func() { done <- crew.waiter[rank].Wait(t.Context(), crew.counter[peer], 1, c.op, peer) })
			}
			for rank, done := range waits {
				err := result(t, done)
				mustBlame(t, err, c.op, -1, ErrTimeout)
				if err != nil && strings.Contains(err.Error(), "and messages that face each other in one batch") != c.speaks {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		})
	}
}

// TestBlameUnseen: a chain ends where this rank does not see further.
func TestBlameUnseen(t *testing.T) {
	crew := newCrew(t, 4, Policy{})
	crew.chain(t, map[int]int{1: 2})
	w := crew.waiter[0]
	w.Peers = []*Status{crew.status[0], crew.status[1], nil}
	for peer, want := range map[int]int{1: 2, 2: 2, 3: 3, 100: 100, -1: -1} {
		if got := w.Culprit(Record{Op: "test wait", Peer: peer}, 0); got != want {
			t.Errorf("for rank %d, rank %d is blamed, want %d", peer, got, want)
		}
	}
	w.Peers = nil
	if got := w.Culprit(Record{Op: "test wait", Peer: 1}, 0); got != 1 {
		t.Errorf("rank %d is blamed", got)
	}
	crew.control[3].setRecord(Record{Op: "garbage", Peer: 1 << 20})
	stop := crew.beat(3)
	defer stop()
	w.Peers = crew.status
	if got := w.Culprit(Record{Op: "test wait", Peer: 3}, 0); got != 1<<20 && got != 3 {
		t.Errorf("rank %d is blamed", got)
	}
}

// beat lets a rank's record beat until stop is called.
func (c *crew) beat(rank int) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			case <-time.After(100 * time.Microsecond):
				c.control[rank].beat.Add(1)
			}
		}
	}()
	return func() { close(quit); <-ended }
}

// TestBlameAwake: a rank that follows the chain is itself awake, and others that ask must see that.
func TestBlameAwake(t *testing.T) {
	crew := newCrew(t, 3, Policy{})
	crew.halt(1, 2)
	before := crew.control[0].beat.Load()
	start := time.Now()
	if got := crew.waiter[0].Culprit(Record{Op: "test wait", Peer: 1}, 0); got != 1 {
		t.Errorf("rank %d is blamed", got)
	}
	if took := time.Since(start); took < standstill {
		t.Errorf("a rank was taken for stopped after %v", took)
	}
	if beats := crew.control[0].beat.Load() - before; beats < 2 {
		t.Errorf("%d beats while the chain was followed", beats)
	}
}

// hook is a context that calls a function when it is asked for its error, as a wait does before it
// looks at the clock.
type hook struct {
	context.Context
	f func()
}

func (h hook) Err() error {
	h.f()
	return h.Context.Err()
}

// TestBlameHeard: what another rank says while this one makes up its mind comes first. Else two
// ranks would name two culprits.
func TestBlameHeard(t *testing.T) {
	heard := Fault{Cause: CauseDied, Rank: 3, Reporter: 2}
	for way, wait := range ways {
		t.Run(way+"/while it looks", func(t *testing.T) {
			crew := newCrew(t, 4, Policy{})
			w := crew.waiter[0]
			w.Timeout = 1
			w.Blame = func(f Fault) { t.Errorf("blames %+v", f) }
			ctx := hook{t.Context(), func() { crew.control[0].Abort(heard) }}
			mustBlame(t, wait(ctx, w, crew.counter[1]), "test wait", 3, ErrDied)
		})
		t.Run(way+"/while it tells", func(t *testing.T) {
			crew := newCrew(t, 4, Policy{})
			w := crew.waiter[0]
			w.Timeout = 1
			var blamed []Fault
			w.Blame = func(f Fault) { blamed = append(blamed, f); crew.control[0].Abort(heard) }
			mustBlame(t, wait(t.Context(), w, crew.counter[1]), "test wait", 3, ErrDied)
			if len(blamed) != 1 || blamed[0] != (Fault{Cause: CauseTimeout, Rank: 1, Reporter: 0}) {
				t.Errorf("told of %+v", blamed)
			}
		})
		t.Run(way+"/nobody listens", func(t *testing.T) {
			crew := newCrew(t, 2, Policy{})
			w := crew.waiter[0]
			w.Timeout, w.Blame = 1, nil
			mustBlame(t, wait(t.Context(), w, crew.counter[1]), "test wait", 1, ErrTimeout)
		})
	}
}
