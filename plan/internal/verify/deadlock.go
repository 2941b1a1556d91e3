package verify

import (
	"fmt"
	"maps"
	"slices"

	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// stop is why a block does not go on, and which block should let it.
type stop struct {
	event Event
	next  int // the block, or -1 where there is none
	why   string
}

// stopped follows the blocks that wait for each other, from each that waits: a circle, or one that waits for what
// never comes. Each block is named once.
func (e *engine) stopped() {
	seen := make(map[int]bool)
	for b := range e.blocks {
		if e.done(b) || seen[b] {
			continue
		}
		var path []int
		var stops []stop
		at := b
		for at >= 0 && !seen[at] {
			seen[at] = true
			path = append(path, at)
			s := e.stop(at)
			stops = append(stops, s)
			at = s.next
		}
		from := 0
		text := ""
		switch {
		case at < 0:
			text = stops[len(stops)-1].why
			from = len(stops) - 1
		case slices.Contains(path, at):
			from = slices.Index(path, at)
			text = "blocks wait for each other in a circle"
		default:
			continue // it waits for blocks that are named already
		}
		f := Finding{Class: Deadlock, Text: text}
		for _, s := range stops[from:] {
			f.Events = append(f.Events, s.event)
		}
		e.found = append(e.found, f)
	}
}

func (e *engine) done(b int) bool { return e.blocks[b].pc >= len(e.blocks[b].steps) }

// stop says why a block waits.
func (e *engine) stop(b int) stop {
	q := &e.blocks[b]
	s := &q.steps[q.pc]
	at := stop{event: Event{Site: s.Site, Op: s.Op.Kind.String()}, next: -1}
	switch s.Op.Kind {
	case spec.Barrier:
		e.absent(q, s, &at)
	case spec.Wait, spec.RelaxedWait, spec.SemAcquire:
		e.unsignalled(s, &at)
	default:
		e.unwritten(q, s, &at)
	}
	return at
}

// absent finds a block that has not come to a barrier.
func (e *engine) absent(q *process, s *program.Step, at *stop) {
	at.event.Does = fmt.Sprintf("waits for %d blocks at barrier %d", s.Op.Blocks, s.Op.Barrier)
	at.why = "other blocks do not come to a barrier"
	for b := e.p.First[q.rank]; b < e.p.First[q.rank+1]; b++ {
		other := &e.blocks[b]
		if e.done(b) || other.at == q.at {
			continue
		}
		for i := other.pc; i < len(other.steps); i++ {
			if op := other.steps[i].Op; op.Kind == spec.Barrier && op.Barrier == s.Op.Barrier {
				at.next = b
				return
			}
		}
	}
}

// unsignalled finds a block that would signal.
func (e *engine) unsignalled(s *program.Step, at *stop) {
	needs := make(map[int]int) // by counter: an operation may name one several times
	for _, c := range s.Counters {
		needs[e.p.Awaited(s, c)]++
	}
	for _, c := range s.Counters {
		c = e.p.Awaited(s, c)
		k := &e.counters[c]
		if k.initial+k.arrived-k.taken >= needs[c] {
			continue
		}
		what := "waits for a release of " + e.counterName(c)
		if s.Op.Kind != spec.SemAcquire {
			what = "waits for a signal of " + e.counterName(c)
		}
		at.event.Does = what
		at.why = "no operation is left that would let a block go on"
		if c < len(e.p.Ends) && e.p.Ends[c].Peer < 0 {
			at.why = fmt.Sprintf("rank %d has no channel that pairs with the one on which a block waits", e.p.Ends[c].To)
			return
		}
		// Others come first: where blocks compete, one that waits may be to give back itself what it waits for.
		from := slices.Sorted(maps.Keys(k.total))
		here := e.p.First[s.Site.Rank] + s.Site.Block
		if i := slices.Index(from, here); i >= 0 {
			from = append(slices.Delete(from, i, i+1), here)
		}
		for _, b := range from {
			q := &e.blocks[b]
			for i := q.pc; i < len(q.steps); i++ {
				for _, to := range q.steps[i].Counters {
					if e.p.Signalled(&q.steps[i], to) == c {
						at.next = b
						return
					}
				}
			}
		}
	}
}

// counterName says which channel or semaphore it is.
func (e *engine) counterName(c int) string {
	if c >= len(e.p.Ends) {
		rank := 0
		c -= len(e.p.Ends)
		for c >= len(e.p.File.Ranks[rank].Semaphores) {
			c -= len(e.p.File.Ranks[rank].Semaphores)
			rank++
		}
		return fmt.Sprintf("semaphore %d of rank %d", c, rank)
	}
	end := e.p.Ends[c]
	return fmt.Sprintf("%v channel %d of rank %d, from rank %d", end.Type, end.ID, end.Rank, end.To)
}

// unwritten finds a block that would write packets.
func (e *engine) unwritten(q *process, s *program.Step, at *stop) {
	for _, r := range s.Src {
		if !r.Slot {
			continue
		}
		for c := r.From; c < r.To; c++ {
			if e.slots[r.Rank()].cells[c].write > 0 {
				continue
			}
			r.From, r.To = c, c+1
			at.event.Does = "waits for " + e.p.Name(r)
			at.why = "no operation writes packets for which a block waits"
			for b := range e.blocks {
				if b != q.id && e.writes(b, r) {
					at.next = b
					return
				}
			}
			if e.writes(q.id, r) {
				at.why = "a block waits for packets that it writes later itself"
			}
			return
		}
	}
}

// writes says whether a block would still write packets of a range.
func (e *engine) writes(b int, r program.Range) bool {
	for i := e.blocks[b].pc; i < len(e.blocks[b].steps); i++ {
		for _, d := range e.blocks[b].steps[i].Dst {
			if d.Slot && d.Memory == r.Memory && d.From < r.To && r.From < d.To {
				return true
			}
		}
	}
	return false
}
