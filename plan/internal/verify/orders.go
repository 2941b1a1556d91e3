package verify

import (
	"fmt"
	"slices"

	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// Where several blocks wait on one counter, who comes first takes what another one then lacks, so one run does not
// decide for all. orders follows every run, of counters, barriers and packets alone. What takes nothing from anybody
// is done at once, for it can come no better later: runs part only where blocks compete. A state of the search is how
// far every thread is.
//
// Threads that matter are those with an entry of a list of channels or semaphores: each waits for its own.
type orders struct {
	p       *program.Program
	threads []waiter
	first   []int  // the first thread of each block, and how many there are
	shared  []bool // counters that blocks compete for
	free    []bool // semaphores that a block gives back before it waits for anything else
	slots   map[[2]int][]writer
	budget  int // steps
}

// waiter is a thread of a block.
type waiter struct{ block, id int }

// writer is a step of a block that writes packets.
type writer struct{ block, step int }

// state is how far a run is.
type state struct {
	pc     []int32 // of threads
	tokens []int32 // of counters
	left   []int32 // waits of each counter that are to come
}

func (s *state) clone() *state {
	return &state{slices.Clone(s.pc), slices.Clone(s.tokens), slices.Clone(s.left)}
}

func newOrders(p *program.Program, budget int) (*orders, *state) {
	n := len(p.Ends) + len(p.Semaphores)
	o := &orders{
		p: p, shared: make([]bool, n), free: make([]bool, n), slots: make(map[[2]int][]writer), budget: budget,
	}
	s := &state{tokens: make([]int32, n), left: make([]int32, n)}
	for i, value := range p.Semaphores {
		s.tokens[len(p.Ends)+i] = int32(min(value, 1<<30))
	}
	by := make([]int, n)
	for b := range p.Blocks {
		threads := 1
		for i := range p.Blocks[b].Steps {
			step := &p.Blocks[b].Steps[i]
			threads = max(threads, len(step.Counters))
			for _, c := range step.Counters {
				if c = p.Awaited(step, c); c >= 0 {
					s.left[c]++
					o.shared[c] = o.shared[c] || by[c] > 0 && by[c] != b+1
					by[c] = b + 1
				}
			}
			for _, r := range step.Dst {
				for c := r.From; r.Slot && c < r.To; c++ {
					at := [2]int{r.Memory, c}
					o.slots[at] = append(o.slots[at], writer{b, i})
				}
			}
		}
		o.first = append(o.first, len(o.threads))
		for t := range threads {
			o.threads = append(o.threads, waiter{b, t})
		}
	}
	o.first = append(o.first, len(o.threads))
	s.pc = make([]int32, len(o.threads))
	for i := range p.Semaphores {
		c := len(p.Ends) + i
		o.free[c] = o.shared[c] && p.Semaphores[i] > 0 && o.lock(c)
	}
	return o, s
}

// lock says whether every block that takes one of a semaphore gives it back before it waits for anything. Then nobody
// waits for it for ever, and it may be left out.
func (o *orders) lock(c int) bool {
	for b := range o.p.Blocks {
		holds := false
		for i := range o.p.Blocks[b].Steps {
			s := &o.p.Blocks[b].Steps[i]
			takes, gives := false, false
			for _, k := range s.Counters {
				takes = takes || o.p.Awaited(s, k) == c
				gives = gives || o.p.Signalled(s, k) == c
			}
			switch {
			case (takes || gives) && len(s.Counters) > 1, gives && !holds:
				return false
			case holds && (waits(s) || s.Op.Kind == spec.Barrier || s.Op.Kind == spec.Wait ||
				s.Op.Kind == spec.RelaxedWait || s.Op.Kind == spec.SemAcquire):
				return false
			}
			holds = takes || holds && !gives
		}
		if holds {
			return false
		}
	}
	return true
}

// search looks for a run that ends with blocks that wait. It gives the state there, or nil, and whether it saw all.
func (o *orders) search(from *state) (stuck *state, all bool) {
	seen := make(map[string]bool)
	stack := []*state{from}
	key := make([]byte, 0, 4*len(from.pc))
	for len(stack) > 0 {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		o.advance(s)
		if o.budget <= 0 {
			return nil, false
		}
		key = key[:0]
		for _, pc := range s.pc {
			key = append(key, byte(pc), byte(pc>>8), byte(pc>>16), byte(pc>>24))
		}
		if seen[string(key)] {
			continue
		}
		seen[string(key)] = true
		ended, next := true, false
		for t := range o.threads {
			step := o.at(s, t)
			if step == nil {
				continue
			}
			ended = false
			if c := o.awaited(step, t); c >= 0 && o.shared[c] && s.tokens[c] > 0 {
				n := s.clone()
				o.take(n, t, c)
				stack = append(stack, n)
				next = true
			}
		}
		if !ended && !next {
			return s, true
		}
	}
	return nil, true
}

// at is the step at which a thread is, or nil.
func (o *orders) at(s *state, t int) *program.Step {
	steps := o.p.Blocks[o.threads[t].block].Steps
	if int(s.pc[t]) >= len(steps) {
		return nil
	}
	return &steps[s.pc[t]]
}

// awaited is the counter on which a thread waits at a step, or -1.
func (o *orders) awaited(step *program.Step, t int) int {
	if id := o.threads[t].id; id < len(step.Counters) {
		return o.p.Awaited(step, step.Counters[id])
	}
	return -1
}

func (o *orders) take(s *state, t, c int) {
	s.tokens[c]--
	s.left[c]--
	s.pc[t]++
}

// advance lets all threads go on as far as they take nothing that others compete for.
func (o *orders) advance(s *state) {
	for moved := true; moved; {
		moved = false
		for t := range o.threads {
			for o.step(s, t) {
				moved = true
			}
		}
		if o.budget -= len(o.threads); o.budget <= 0 {
			return
		}
	}
}

// step lets a thread do its next step, unless it must wait or others compete for what it takes.
func (o *orders) step(s *state, t int) bool {
	step := o.at(s, t)
	if step == nil {
		return false
	}
	o.budget--
	switch step.Op.Kind {
	case spec.Nop:
		return o.meet(s, o.threads[t].block)
	case spec.Barrier:
		return o.barrier(s, o.threads[t].block, step)
	}
	if c := o.awaited(step, t); c >= 0 {
		switch {
		case o.free[c]:
			s.pc[t]++
			return true
		case s.tokens[c] == 0, o.shared[c] && s.tokens[c] < s.left[c]:
			return false
		}
		o.take(s, t, c)
		return true
	}
	if waits(step) && !o.written(s, step) {
		return false
	}
	if id := o.threads[t].id; id < len(step.Counters) {
		if c := o.p.Signalled(step, step.Counters[id]); c >= 0 {
			s.tokens[c]++
		}
	}
	s.pc[t]++
	return true
}

// together says whether all threads of a block are at one step.
func (o *orders) together(s *state, b int) bool {
	all := s.pc[o.first[b]:o.first[b+1]]
	return !slices.ContainsFunc(all, func(pc int32) bool { return pc != all[0] })
}

// meet lets the threads of a block go on behind a nop, if all are there.
func (o *orders) meet(s *state, b int) bool {
	if !o.together(s, b) {
		return false
	}
	for t := o.first[b]; t < o.first[b+1]; t++ {
		s.pc[t]++
	}
	return true
}

// barrier lets the blocks go on that meet at a barrier, if as many are there as it is for.
func (o *orders) barrier(s *state, b int, step *program.Step) bool {
	var here []int
	rank := o.p.Blocks[b].Rank
	for k := o.p.First[rank]; k < o.p.First[rank+1]; k++ {
		at := o.at(s, o.first[k])
		if at != nil && at.Op.Kind == spec.Barrier && at.Op.Barrier == step.Op.Barrier && o.together(s, k) {
			here = append(here, k)
		}
	}
	if len(here) < step.Op.Blocks || !slices.Contains(here, b) {
		return false
	}
	for _, k := range here {
		o.meet(s, k)
	}
	return true
}

// done is how many steps a block's threads have all done.
func (o *orders) done(s *state, b int) int { return int(slices.Min(s.pc[o.first[b]:o.first[b+1]])) }

// written says whether the packets for which a step waits are there.
func (o *orders) written(s *state, step *program.Step) bool {
	for _, r := range step.Src {
		for c := r.From; r.Slot && c < r.To; c++ {
			if !slices.ContainsFunc(o.slots[[2]int{r.Memory, c}], func(w writer) bool { return o.done(s, w.block) > w.step }) {
				return false
			}
		}
	}
	return true
}

// mostSteps bounds the search for an order in which blocks wait for each other.
const mostSteps = 1 << 22

// competing is a deadlock that a run has in some order of events, of blocks that compete for counters. It says whether
// all orders were looked at.
func competing(e *engine) (found []Finding, all bool) {
	if !slices.ContainsFunc(e.counters, func(c counter) bool { return len(c.waiters) > 1 }) {
		return nil, true
	}
	o, begin := newOrders(e.p, mostSteps)
	stuck, all := o.search(begin)
	if stuck == nil {
		return nil, all
	}
	found = stopped(o, stuck)
	for i := range found {
		found[i].Text = "in some order of events, " + found[i].Text
	}
	return found, true
}

// stopped says which blocks wait for each other in a state from which nothing goes on.
func stopped(o *orders, s *state) []Finding {
	e := newEngine(o.p, model{}, false)
	e.reach(o, s)
	e.stopped()
	return e.found
}

// reach puts the engine's blocks and counters, which have not begun, where a state has them.
func (e *engine) reach(o *orders, s *state) {
	for b := range e.blocks {
		q := &e.blocks[b]
		q.pc = o.done(s, b)
		for i := range min(q.pc, len(q.steps)) {
			for _, r := range q.steps[i].Dst {
				for c := r.From; r.Slot && c < r.To; c++ {
					e.slots[r.Rank()].cells[c].write = 1
				}
			}
		}
		if q.pc < len(q.steps) && q.steps[q.pc].Op.Kind == spec.Barrier {
			key := [2]int{q.rank, q.steps[q.pc].Op.Barrier}
			if e.barriers[key] == nil {
				e.barriers[key] = new(meeting)
			}
			q.at = e.barriers[key]
		}
	}
	for c := range e.counters {
		e.counters[c].initial, e.counters[c].arrived, e.counters[c].taken = int(s.tokens[c]), 0, 0
	}
}

// far decides deadlock where leads of pipelines may add up: of so many windows that all are used up.
func far(f *spec.File, leads program.Leads) []Finding {
	if !leads.Linked && leads.Behind == 0 {
		return nil
	}
	steps := 1
	each(f, func(*spec.Op) { steps++ })
	n := min(leads.Sum+leads.Behind+2, program.MostWindows(f))
	possible := max(3, mostUnrolled/steps)
	p := program.Of(f, program.Pipelined(f, min(n, possible)))
	o, begin := newOrders(p, mostSteps)
	clear(o.shared) // of those, all orders are tried at the sizes that are looked at
	stuck, all := o.search(begin)
	switch {
	case stuck != nil:
		return stopped(o, stuck)
	case n > possible, !all:
		return []Finding{{Class: Undecided, Warning: true, Text: fmt.Sprintf(
			"pipelines may run ahead of each other by %d windows in all, more than can be tried, so a deadlock cannot be "+
				"ruled out; begin semaphores at less, or signal less before pipelines", leads.Sum+leads.Behind)}}
	}
	return nil
}

// mostUnrolled bounds the operations of a program whose pipelines have many windows.
const mostUnrolled = 1 << 17
