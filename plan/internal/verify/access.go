package verify

import (
	"fmt"
	"slices"

	"github.com/weftgo/weft/plan/internal/meaning"
	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// actor is a process at one of its steps.
type actor struct {
	*time
	process int
	rank    int
	own     uint32
	nop     uint32 // of a block: steps up to here are before all its threads
	port    bool
	by      int // of a port: the block that pushed, which had done its first steps, up to one
	done    uint32
}

// touch does a step's reads and then its writes.
func (e *engine) touch(q *process, s *program.Step, now uint32) {
	who := actor{time: &q.time, process: q.id, rank: q.rank, own: now, nop: q.nop}
	for _, r := range s.Src {
		e.read(who, s, r)
	}
	values := e.compute(s)
	for i, r := range s.Dst {
		e.write(who, s, r, values.of(i), func(process int, own uint32) stamp { return e.sent(q, r, process, own) })
	}
	if len(s.Dst) > 0 {
		q.longest = max(q.longest, s.Dst[0].To-s.Dst[0].From) // all ranges of a step are alike
	}
}

// sent is what packets of a range publish. Where threads are told apart, all of the range say that the step is done,
// and with it what threads did before that have none of the packets: if no step since the last nop was longer, there
// are no such threads.
func (e *engine) sent(q *process, r program.Range, process int, own uint32) stamp {
	if !e.model.split {
		return q.time.stamp(process, own)
	}
	s := q.time.stamp(process, q.nop)
	if q.longest <= r.To-r.From {
		s.whole = own
	}
	return s
}

// push gives a step's transfers to ports, which do them at once: if their order to anything matters, it shows as a
// race. What they read is what the pushing thread knows to be there.
func (e *engine) push(q *process, s *program.Step, now uint32) {
	if s.Op.Kind == spec.ReadPutPackets {
		q.meet(now) // all threads have seen the packets
	}
	values := e.compute(s)
	for i, c := range s.Counters {
		a := e.ports[c]
		pushed := e.publish(q, i)
		a.reads++
		a.writes++
		who := actor{process: a.id, rank: a.rank, own: a.reads, port: true, by: q.id, done: pushed.own}
		if a.tells {
			a.join(pushed)
			a.set(a.id, a.reads)
			a.set(a.id+1, a.writes)
			who.time = &a.time
		} else {
			t := e.pages.time(pushed.clock, pushed.started)
			who.time = &t
		}
		src := s.Src[min(i, len(s.Src)-1)]
		e.read(who, s, src)
		if !src.Scratch() && src.From < src.To {
			a.source = int32(len(e.accesses) - 1)
		}
		who.process, who.own = a.id+1, a.writes
		// Packets say what their own push said, and not what was pushed before them.
		e.write(who, s, s.Dst[i], values.of(i), func(int, uint32) stamp { return pushed })
		if s.Op.Kind == spec.PutWithSignal || s.Op.Kind == spec.PutWithSignalAndFlush {
			if to := e.p.Signalled(s, c); to >= 0 {
				e.arrive(to, q.id, a.stamp(-1, 0))
			}
		}
		if s.Op.Kind == spec.PutWithSignalAndFlush {
			e.flushed(q, i, a)
		}
	}
}

// contents is values and how they were made. It is nil in a run that looks at order alone.
type contents struct{ value, form []meaning.Value }

// written is what a step writes: to each destination its own, or to all the same.
type written []contents

func (w written) of(i int) contents {
	if len(w) == 0 {
		return contents{}
	}
	return w[min(i, len(w)-1)]
}

// compute is what a step writes.
func (e *engine) compute(s *program.Step) written {
	if e.model.orderOnly() {
		return nil
	}
	from := s.Folds()
	all := make(written, len(from))
	for i, r := range from {
		m := &e.memories[r.Memory]
		if r.Slot {
			m = &e.slots[r.Rank()]
		}
		all[i] = contents{m.value[r.From:r.To], m.form[r.From:r.To]}
	}
	if s.Paired() || len(from) == 1 {
		// A source that overlaps a destination is read first.
		for i := range all {
			all[i] = contents{slices.Clone(all[i].value), slices.Clone(all[i].form)}
		}
		return all
	}
	n := len(all[0].value)
	out := contents{make([]meaning.Value, n), make([]meaning.Value, n)}
	args := make([]meaning.Value, len(from))
	for u := range n {
		for i := range args {
			args[i] = all[i].value[u]
		}
		out.value[u] = e.a.Fold(s.Op.Reduce, args...)
		for i := range args {
			args[i] = all[i].form[u]
		}
		out.form[u] = meaning.Form(args...)
	}
	return written{out}
}

// add lists an access.
func (e *engine) add(who actor, s *program.Step, r program.Range, write bool) int32 {
	a := access{
		process: who.process, own: who.own, step: s, place: r, write: write, small: s.Op.Kind.Packets(),
	}
	if write && r.Scratch() {
		who.lent = true
		a.started = who.started
	}
	n := int32(len(e.accesses))
	e.accesses = append(e.accesses, a)
	if owner := r.Rank(); owner != who.rank && !r.Scratch() && r.From < r.To {
		key := [2]int{owner, who.process}
		last := e.remotes[key]
		if last == nil {
			last = new([2]int32)
			e.remotes[key] = last
		}
		i := 0
		if write {
			i = 1
		}
		last[i] = n
		if !has(who.started, owner) && !(e.model.split && a.small) {
			e.report(n, 0, Finding{
				Class: Lifetime, Warning: true,
				Text: fmt.Sprintf("nothing says that rank %d has begun, so its buffer may still be in use", owner),
			})
		}
	}
	return n
}

// report adds a finding whose events are two accesses, once.
func (e *engine) report(a, b int32, f Finding) {
	key := [2]int32{a, b}
	if e.said[key] {
		return
	}
	e.said[key] = true
	f.Events = append(f.Events, e.event(a))
	if b > 0 {
		f.Events = append(f.Events, e.event(b))
	}
	e.found = append(e.found, f)
}

// event says what an access does.
func (e *engine) event(n int32) Event {
	a := &e.accesses[n]
	does := "reads "
	if a.write {
		does = "writes "
	}
	return Event{Site: a.step.Site, Op: a.step.Op.Kind.String(), Does: does + e.p.Name(a.place)}
}

// before says whether an access is before an actor's.
func (e *engine) before(n int32, who actor, now int32) bool {
	a := &e.accesses[n]
	if a.process != who.process {
		// A port does one thing after the other.
		return e.samePort(a.process, who.process) || who.knows(a.process, a.own) ||
			who.port && a.process == who.by && a.own <= who.done
	}
	if who.port || a.own <= who.nop {
		return true
	}
	b := &e.accesses[now]
	return a.small == b.small && a.place.From == b.place.From && a.place.Slot == b.place.Slot // the same threads
}

// samePort says whether two processes are those of one port.
func (e *engine) samePort(a, b int) bool {
	n := len(e.blocks)
	return a >= n && b >= n && (a-n)/2 == (b-n)/2
}

// read does a step's reading of a range.
func (e *engine) read(who actor, s *program.Step, r program.Range) {
	if r.From >= r.To {
		return
	}
	now := e.add(who, s, r, false)
	if r.Slot {
		e.readSlot(who, now, r, waits(s))
		return
	}
	m := &e.memories[r.Memory]
	for c := r.From; c < r.To; c++ {
		at := &m.cells[c]
		if m.plain != nil {
			m.plain[c] = now
		}
		if at.write > 0 && !e.before(at.write, who, now) {
			e.race(now, at.write, who, false)
		}
		e.remember(at, who, now)
	}
}

// remember adds a reading to a cell, and drops those before it.
func (e *engine) remember(at *cell, who actor, now int32) {
	kept := at.reads[:0]
	for _, n := range at.reads {
		if !e.before(n, who, now) {
			kept = append(kept, n)
		}
	}
	at.reads = append(kept, now)
}

// readSlot reads packets. A port reads them as bytes, and does not wait for them.
func (e *engine) readSlot(who actor, now int32, r program.Range, waited bool) {
	m := &e.slots[r.Rank()]
	e.mark(r, now)
	for c := r.From; c < r.To; c++ {
		at := &m.cells[c]
		switch {
		case waited:
		case at.write == 0:
			e.report(now, 0, Finding{
				Class: Packets, Text: "a port sends packets that no operation of the launch has written",
			})
		case !e.before(at.write, who, now):
			e.report(now, at.write, Finding{Class: Packets, Text: "a port sends packets that may not be there yet"})
		}
		e.remember(at, who, now)
	}
}

// mark notes which bytes of scratch are packets.
func (e *engine) mark(r program.Range, now int32) {
	m := &e.memories[r.Memory]
	for c := 2 * r.From; c < 2*r.To; c++ {
		m.slot[c] = now
	}
}

// write does a step's writing of a range.
func (e *engine) write(who actor, s *program.Step, r program.Range, data contents, publish func(int, uint32) stamp) {
	if r.From >= r.To {
		return
	}
	now := e.add(who, s, r, true)
	if r.Slot {
		e.writeSlot(now, r, data, publish(who.process, who.own))
		return
	}
	m := &e.memories[r.Memory]
	for c := r.From; c < r.To; c++ {
		at := &m.cells[c]
		if m.plain != nil {
			m.plain[c] = now
		}
		equal := data.value != nil && m.value[c] == data.value[c-r.From]
		if at.write > 0 && !e.before(at.write, who, now) {
			e.race(now, at.write, who, equal)
		}
		for _, n := range at.reads {
			if !e.before(n, who, now) {
				e.race(now, n, who, false)
			}
		}
		at.write, at.reads = now, at.reads[:0]
		if data.value != nil {
			m.value[c], m.form[c] = data.value[c-r.From], data.form[c-r.From]
		}
	}
}

// writeSlot writes packets, whose readers wait for them.
func (e *engine) writeSlot(now int32, r program.Range, data contents, s stamp) {
	m := &e.slots[r.Rank()]
	e.mark(r, now)
	for c := r.From; c < r.To; c++ {
		at := &m.cells[c]
		if at.write > 0 && data.value != nil && m.value[c] != data.value[c-r.From] {
			e.report(now, at.write, Finding{
				Class: Packets,
				Text:  "a slot is written twice in one launch, and its reader cannot tell the packets apart",
			})
		}
		if at.write == 0 {
			at.write, at.stamp = now, &s
			if data.value != nil {
				m.value[c], m.form[c] = data.value[c-r.From], data.form[c-r.From]
			}
		}
	}
	for b := range e.asleep[r.Rank()] {
		e.wake(b)
	}
	clear(e.asleep[r.Rank()])
}

const unordered = "nothing orders two operations on the same bytes"

// race reports two accesses that nothing orders.
func (e *engine) race(now, before int32, who actor, equal bool) {
	a := &e.accesses[before]
	if a.process == who.process {
		text := "threads of a block touch the same bytes, and no nop is between"
		if equal {
			text += "; both write equal data"
		}
		e.report(now, before, Finding{Class: RaceInBlock, Warning: equal, Text: text})
		return
	}
	f := Finding{Class: Race, Text: unordered, readFirst: !a.write}
	if e.model.split {
		if a.write || a.small && e.accesses[now].small {
			return // the strong run has the first, and of packets threads have the same units
		}
		f = Finding{
			Class: WeakOrder, Warning: true,
			Text: "packets order two operations for the threads that got them, and others touch the same bytes; " +
				"a nop is missing",
		}
	}
	if e.model.strong {
		if !a.write {
			return // a reading that began before is not undone by a later writing
		}
		f = Finding{
			Class: WeakOrder, Warning: true,
			Text: "only packets or relaxed signals order two operations on the same bytes",
		}
	}
	e.report(now, before, f)
}
