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

// TestLeaveTogether: ranks that have gathered leave at about the same time. The last ones learn that the others have
// left, and take none of them for dead.
func TestLeaveTogether(t *testing.T) {
	for _, fanout := range []int{1, 32} {
		for seed := range uint64(20) {
			w := newNetwork(layout{
				perProcess: []int{1, 1, 2, 1, 1}, heartbeat: 20 * time.Second, timeout: 30 * time.Second,
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
