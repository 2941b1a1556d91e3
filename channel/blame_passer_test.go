package channel

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestBlamePasser: rank 0 waits for what rank 1 says and rank 2 passes on. The one that has yet to do its part is to
// blame, or whom that one waits for.
func TestBlamePasser(t *testing.T) {
	for _, c := range []struct {
		name    string
		said    uint64 // by rank 1, of 7
		forgot  bool   // it shows other objects instead
		waits   map[int]int
		culprit int
	}{
		{name: "the peer has said nothing", culprit: 1},
		{name: "the peer has said too little", said: 6, culprit: 1},
		{name: "the peer waits for a third rank", said: 6, waits: map[int]int{1: 3}, culprit: 3},
		{name: "the passer is idle", said: 7, culprit: 2},
		{name: "the passer is idle, and the peer waits for this rank", said: 8, waits: map[int]int{1: 0}, culprit: 2},
		{name: "the passer waits for a third rank", said: 7, waits: map[int]int{2: 3}, culprit: 3},
		{name: "the passer waits for this rank", said: 7, waits: map[int]int{2: 0}, culprit: -1},
		{name: "nothing shows which", forgot: true, culprit: -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			crew := newCrew(t, 4, Policy{})
			const of = 100
			if c.said > 0 {
				crew.waiter[1].Say(of, c.said)
			}
			for i := range uint64(saidObjects + 1) {
				if c.forgot {
					crew.waiter[1].Say(1+i, 100)
				}
			}
			waits := crew.chain(t, c.waits)
			w := crew.waiter[0]
			w.Timeout = 10 * time.Millisecond
			err := w.UntilPassed(t.Context(), "test wait", 1, 2, of, 7, time.Sleep, func() bool { return false })
			mustBlame(t, err, "test wait", c.culprit, ErrTimeout)
			for _, done := range waits {
				mustBlame(t, result(t, done), "test wait", c.culprit, ErrTimeout)
			}
			const words = "one of two ranks holds up all others: rank 0 for rank 1 or rank 2"
			if c.forgot != strings.Contains(fmt.Sprint(err), words) {
				t.Error(err)
			}
		})
	}
}

// TestSaid: a rank shows what it said last, of as many objects as there is room for, and forgets the one that it has
// shown longest.
func TestSaid(t *testing.T) {
	crew := newCrew(t, 1, Policy{})
	s := crew.status[0]
	for i := range 3 * saidObjects {
		of := func(i int) uint64 { return uint64(100 + i) }
		if _, known := s.Said(of(i)); known != (i <= saidObjects) {
			t.Errorf("of object %d: known %v, with as many others shown before", i, known)
		}
		for _, number := range []uint64{5, 6} {
			s.say(of(i), number)
		}
		for j := range 2 * saidObjects {
			number, known := s.Said(of(i - j))
			want := uint64(0)
			if j < saidObjects && j <= i {
				want = 6
			}
			if number != want || known != (want != 0 || i < saidObjects) {
				t.Errorf("after object %d: of object %d: %d, %v", i, i-j, number, known)
			}
		}
	}
}
