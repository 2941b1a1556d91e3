package relay

import (
	"sync"

	"github.com/weftgo/weft/internal/control"
	"github.com/weftgo/weft/internal/rankset"
)

// ledger is what the processes of a test have learned.
type ledger struct {
	lock    sync.Mutex
	size    int // ranks
	dead    rankset.Set
	ended   map[int]bool // by process
	chosen  []choice
	learned map[int][]control.Decision // by process
}

// choice is a decision that votes have made.
type choice struct {
	last, next control.Decision
	dead       rankset.Set // at that time
}

// bury notes that a process is dead.
func (w *ledger) bury(process int, ranks []int) {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.ended == nil {
		w.ended = map[int]bool{}
	}
	w.ended[process] = true
	w.dead = w.dead.With(ranks...)
}

func (w *ledger) learn(process int, last, next control.Decision, chosen bool) {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.learned == nil {
		w.learned = map[int][]control.Decision{}
	}
	w.learned[process] = append(w.learned[process], next)
	if chosen {
		w.chosen = append(w.chosen, choice{last, next, w.dead})
	}
}

// check looks at all that processes which live have learned. Of the decisions after one they know one at
// most, and it has a member of the one before it, unless all members that it leaves out were dead.
func (w *ledger) check(t interface{ Errorf(string, ...any) }) {
	w.lock.Lock()
	defer w.lock.Unlock()
	known := map[control.Decision]bool{}
	for process, all := range w.learned {
		for _, d := range all {
			if !w.ended[process] {
				known[d] = true
			}
		}
	}
	after := map[control.Decision]control.Decision{}
	for _, c := range w.chosen {
		if !known[c.next] {
			continue
		}
		if other, ok := after[c.last]; ok && other != c.next {
			t.Errorf("after %+v there are %+v and %+v", c.last, c.next, other)
		}
		after[c.last] = c.next
		members := rankset.Below(w.size).Minus(c.last.Out)
		if members.Minus(c.next.Out).Empty() && !c.dead.Contains(members) {
			t.Errorf("decision %+v has no member of %+v, whose members are not dead", c.next, c.last)
		}
	}
}
