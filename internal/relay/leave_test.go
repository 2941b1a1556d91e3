package relay

import (
	"bytes"
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
