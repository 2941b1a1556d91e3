package relay

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weftgo/weft/internal/control"
)

// TestLeavesWithWordsOnTheWay: the process that others are seen through leaves while a message of one to
// another is on its way to it. Ranks that share memory do that: they have seen the message elsewhere.
func TestLeavesWithWordsOnTheWay(t *testing.T) {
	w := newNetwork(layout{perProcess: []int{1, 1, 1}, heartbeat: 20 * time.Second, timeout: 30 * time.Second})
	defer w.close()
	w.formed(t)
	gatherAll(t, w.all(), 2)
	first, rest := w.procs[0].ranks[0], []*rank{w.procs[1].ranks[0], w.procs[2].ranks[0]}
	w.darken(0, 1, true)
	var gathers sync.WaitGroup
	gathers.Go(func() { first.gather([]byte("last")) }) // the error is that it has left
	w.procs[2].awaitNote(t, 0, "last")
	gathers.Go(func() {
		for i, err := range each(rest, func(k *rank) error {
			_, err := k.gather([]byte("last"))
			return err
		}) {
			if err != nil {
				t.Errorf("rank %d: %v", rest[i].number, err)
			}
		}
	})
	w.procs[1].awaitNote(t, 1, "last")
	gathers.Go(first.member.Leave)
	time.Sleep(farewell / 10) // it would be gone by then
	w.darken(0, 1, false)
	for end := time.Now().Add(20 * time.Second); !rest[1].Left(0); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("rank 2 is not told that rank 0 has left")
		}
	}
	first.kill()
	gathers.Wait()
}

// TestHeirLeaves: the heir of a process leaves before that one's last word has come, and passes it on all the same.
func TestHeirLeaves(t *testing.T) {
	w := newNetwork(layout{perProcess: []int{1, 1, 1}, heartbeat: 20 * time.Second, timeout: 30 * time.Second, fanout: 1})
	defer w.close()
	w.formed(t)
	gatherAll(t, w.all(), 1)
	first, heir := w.procs[0], w.procs[1]
	linked := func(is func(l *link) bool) func() bool {
		return func() bool {
			heir.mu.Lock()
			defer heir.mu.Unlock()
			for l := range heir.links {
				if l.peer == 0 && is(l) {
					return true
				}
			}
			return heir.closed
		}
	}
	w.darken(0, 1, true)
	var leaves sync.WaitGroup
	leaves.Go(first.ranks[0].member.Leave)
	await(t, "process 0 to leave", func() bool {
		first.mu.Lock()
		defer first.mu.Unlock()
		return first.leaving
	})
	w.halt(0)
	w.darken(0, 1, false)
	await(t, "the heir's answer", linked(func(l *link) bool { return l.said }))
	w.darken(0, 1, true)
	w.goOn(0)
	leaves.Go(heir.ranks[0].member.Leave)
	await(t, "the heir to resign", linked(func(l *link) bool { return l.asked }))
	w.darken(0, 1, false)
	w.awaitLeft(t, 2, 0)
	w.awaitLeft(t, 2, 1)
	leaves.Wait()
	w.noneDied(t)
}

// TestNewsForOneThatLeaves: a process that leaves, and is kept from it, learns who has left meanwhile from neighbours
// that have answered it.
func TestNewsForOneThatLeaves(t *testing.T) {
	w := newNetwork(layout{perProcess: []int{1, 1, 1, 1}, heartbeat: 20 * time.Second, timeout: 30 * time.Second})
	defer w.close()
	w.formed(t)
	gatherAll(t, w.all(), 1)
	first := w.procs[0]
	w.darken(0, 3, true)
	var leaves sync.WaitGroup
	leaves.Go(first.ranks[0].member.Leave)
	await(t, "the answers of 1 and 2, and their link", func() bool {
		first.mu.Lock()
		n := 0
		for l := range first.links {
			if l.bye {
				n++
			}
		}
		first.mu.Unlock()
		w.procs[2].mu.Lock()
		defer w.procs[2].mu.Unlock()
		return n == 2 && w.procs[2].beside(1)
	})
	leaves.Go(w.procs[2].ranks[0].member.Leave)
	await(t, "process 0 to learn that 2 has left", func() bool {
		first.mu.Lock()
		defer first.mu.Unlock()
		return first.processes[2].gone
	})
	w.darken(0, 3, false)
	leaves.Wait()
	w.awaitLeft(t, 3, 2)
	w.awaitLeft(t, 1, 0)
	w.noneDied(t)
}

// await returns when something is so.
func await(t testing.TB, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for %s", what)
		}
	}
}

// TestLeaveTogether: ranks that have gathered leave at about the same time. The last ones learn that the others have
// left, take none of them for dead, and wait for none.
func TestLeaveTogether(t *testing.T) {
	for _, fanout := range []int{1, 2, 32} {
		for seed := range uint64(20) {
			w := newNetwork(layout{
				perProcess: []int{1, 1, 2, 1, 1}[:3+seed%3], heartbeat: 20 * time.Second, timeout: 30 * time.Second,
				late: 2 * time.Millisecond, fanout: fanout, seed: seed,
			})
			w.formed(t)
			gatherAll(t, w.all(), 1)
			random := rand.New(rand.NewPCG(seed, 2))
			var leaves sync.WaitGroup
			for _, k := range w.all() {
				pause := time.Duration(random.Int64N(int64(4 * time.Millisecond)))
				leaves.Go(func() {
					time.Sleep(pause)
					k.member.Leave()
				})
			}
			leaves.Wait()
			w.close()
			w.noneDied(t)
			for _, q := range w.procs {
				if q.alone.Load() {
					t.Errorf("process %d left because its time was up", q.number)
				}
			}
			if t.Failed() {
				t.Fatalf("%d wide, seed %d", fanout, seed)
			}
		}
	}
}

// noneDied checks that no rank takes another for dead.
func (w *network) noneDied(t testing.TB) {
	t.Helper()
	for _, k := range w.all() {
		for r := range w.size {
			if k.Died(r) {
				t.Errorf("rank %d is told that rank %d has died", k.number, r)
			}
		}
	}
}

// TestLeftBehind: a process looks for a new parent, and comes to one that has said its last word and is about to close
// its door. Another one, which is busy, knows that it has left.
func TestLeftBehind(t *testing.T) {
	come, admit := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w := newNetwork(layout{
		perProcess: []int{1, 1, 1, 1}, heartbeat: 5 * time.Second, timeout: 30 * time.Second,
		dialed: func(from, to int) {
			if from == 3 && to == 1 {
				once.Do(func() {
					close(come)
					<-admit
				})
			}
		},
	})
	defer w.close()
	w.formed(t)
	gatherAll(t, w.all(), 1)
	left, last := w.procs[1], w.procs[3]
	left.closes = make(chan struct{})
	w.procs[0].ranks[0].member.Leave()
	<-come
	var leaves sync.WaitGroup
	leaves.Go(left.ranks[0].member.Leave)
	w.awaitLeft(t, 2, 1)
	w.halt(2)
	close(admit)
	close(left.closes)
	leaves.Wait()
	w.awaitMissed(t, last, 1)
	w.goOn(2)
	w.awaitLeft(t, 3, 1)
	w.noneDied(t)
}

// awaitLeft returns when a rank knows that another has left.
func (w *network) awaitLeft(t testing.TB, rank, other int) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !w.procs[rank].ranks[0].Left(other); time.Sleep(time.Millisecond) {
		if time.Now().After(end) || w.procs[rank].ranks[0].Died(other) {
			t.Fatalf("rank %d is not told that rank %d has left", rank, other)
		}
	}
}

// awaitMissed returns when a process has found at least twice that nothing listens in the place of another.
func (w *network) awaitMissed(t testing.TB, q *proc, other int) {
	t.Helper()
	found := time.Duration(0)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		q.mu.Lock()
		missed, avoid, died := q.processes[other].missed, q.avoid[other], q.processes[other].died
		q.mu.Unlock()
		switch {
		case died != nil || time.Now().After(end):
			t.Fatalf("process %d: process %d: %v", q.number, other, died)
		case missed != 0 && found == 0:
			found = avoid
		case found != 0 && avoid > found:
			return
		}
	}
}

// awaitNote returns when the stream of a rank's process has brought its note here.
func (n *Node) awaitNote(t testing.TB, rank int, note string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		n.mu.Lock()
		notes := control.AppendPart(nil, n.pages[rank], control.Notes)
		n.mu.Unlock()
		if bytes.Contains(notes, []byte(note)) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("rank %d's note has not come", rank)
		}
	}
}
