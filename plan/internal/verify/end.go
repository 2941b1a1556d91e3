package verify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/weftgo/weft/plan/internal/meaning"
	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// balance reports counters that a launch does not leave as it found them, and sides that several blocks use. What is
// known of deadlocks there it adds.
func (e *engine) balance(deadlocks string) {
	for c := range e.counters {
		k := &e.counters[c]
		signals, waits := 0, 0
		for _, n := range k.total {
			signals += n
		}
		for _, n := range k.waiters {
			waits += n
		}
		var users []int
		for _, b := range slices.Concat(slices.Sorted(maps.Keys(k.waiters)), slices.Sorted(maps.Keys(k.total))) {
			if !slices.Contains(users, b) {
				users = append(users, b)
			}
		}
		if signals != waits {
			done, verb := "signals", "waits"
			text := fmt.Sprintf("%s gets %d %s and %d %s a launch", e.counterName(c), signals, done, waits, verb)
			if c >= len(e.p.Ends) {
				text = fmt.Sprintf("%s begins a launch at %d and ends it at %d: %d releases, %d acquires",
					e.counterName(c), k.initial, k.initial+signals-waits, signals, waits)
			}
			f := Finding{Class: Balance, Text: text}
			for _, b := range users[:min(len(users), 2)] {
				f.Events = append(f.Events, e.user(b, c))
			}
			e.found = append(e.found, f)
		}
		if len(k.total) > 1 || len(k.waiters) > 1 {
			f := Finding{Class: SharedSide, Warning: true, Text: fmt.Sprintf(
				"several blocks use one side of %s, so its order is not the same in every run%s", e.counterName(c), deadlocks)}
			for _, b := range users {
				f.Events = append(f.Events, e.user(b, c))
			}
			e.found = append(e.found, f)
		}
	}
	for b := range e.blocks {
		for i := range e.blocks[b].steps {
			s := &e.blocks[b].steps[i]
			for _, c := range s.Counters {
				if kind := s.Op.Kind; (kind == spec.Signal || kind == spec.RelaxedSignal) && e.p.Ends[c].Peer < 0 {
					end := e.p.Ends[c]
					e.found = append(e.found, Finding{
						Class: Balance, Text: fmt.Sprintf("rank %d has no channel that pairs with %v channel %d of rank %d",
							end.To, end.Type, end.ID, end.Rank),
						Events: []Event{{Site: s.Site, Op: kind.String()}},
					})
				}
			}
		}
	}
}

// user is the first operation of a block that uses a counter.
func (e *engine) user(b, c int) Event {
	for i := range e.blocks[b].steps {
		s := &e.blocks[b].steps[i]
		for _, k := range s.Counters {
			if e.p.Signalled(s, k) == c || e.p.Awaited(s, k) == c {
				return Event{Site: s.Site, Op: s.Op.Kind.String()}
			}
		}
	}
	return Event{Site: spec.Nowhere}
}

// meetings reports barriers that other blocks use than meet there.
func (e *engine) meetings() {
	type key struct{ rank, id int }
	users := make(map[key]map[int]*program.Step)
	for b := range e.blocks {
		for i := range e.blocks[b].steps {
			s := &e.blocks[b].steps[i]
			if s.Op.Kind != spec.Barrier {
				continue
			}
			k := key{e.blocks[b].rank, s.Op.Barrier}
			if users[k] == nil {
				users[k] = make(map[int]*program.Step)
			}
			if users[k][b] == nil || s.Op.Blocks > len(users[k]) {
				users[k][b] = s
			}
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(users), func(a, b key) int {
		return cmp.Or(a.rank-b.rank, a.id-b.id)
	}) {
		for _, b := range slices.Sorted(maps.Keys(users[k])) {
			if s := users[k][b]; s.Op.Blocks != len(users[k]) {
				e.found = append(e.found, Finding{
					Class: Deadlock, Text: fmt.Sprintf("%d blocks meet at barrier %d of rank %d, and %d use it",
						s.Op.Blocks, k.id, k.rank, len(users[k])),
					Events: []Event{{Site: s.Site, Op: s.Op.Kind.String()}},
				})
				break
			}
		}
	}
}

// finish joins what each rank knows when its last block ends.
func (e *engine) finish() {
	for r := range e.p.File.Ranks {
		end := newTime(e.pages, len(e.p.File.Ranks), r)
		for b := e.p.First[r]; b < e.p.First[r+1]; b++ {
			q := &e.blocks[b]
			q.meet(uint32(len(q.steps)))
			end.join(q.stamp(b, uint32(len(q.steps))))
		}
		e.ends = append(e.ends, end)
	}
}

// lifetimes reports accesses to buffers whose owner may have ended.
func (e *engine) lifetimes() {
	for _, key := range slices.SortedFunc(maps.Keys(e.remotes), func(a, b [2]int) int {
		return cmp.Or(a[0]-b[0], a[1]-b[1])
	}) {
		owner, process := key[0], key[1]
		for i, n := range e.remotes[key] {
			if n == 0 || e.ends[owner].knows(process, e.accesses[n].own) {
				continue
			}
			verb := "read"
			if i == 1 {
				verb = "written"
			}
			e.report(n, -1, Finding{
				Class: Lifetime, Warning: i == 0,
				Text: fmt.Sprintf("rank %d may end before its buffer is %s", owner, verb),
			})
		}
	}
	for _, c := range slices.Sorted(maps.Keys(e.ports)) {
		a := e.ports[c]
		// Sources in scratch nobody changes before the next launch, and a launch ends when they are read.
		if n := a.source; n > 0 && !e.ends[a.rank].knows(a.id, e.accesses[n].own) {
			e.report(n, -2, Finding{
				Class: Lifetime, Warning: true,
				Text: "a port may still read its source when the rank ends; nothing flushes or acknowledges it",
			})
		}
	}
}

// mixed reports scratch that holds packets and other data.
func (e *engine) mixed() {
	for i := range e.memories {
		m := &e.memories[i]
		for c := range m.plain {
			if m.plain[c] > 0 && m.slot[c] > 0 {
				e.report(m.plain[c], m.slot[c], Finding{
					Class: Packets, Text: "bytes of scratch are packets in one operation and other data in another",
				})
			}
		}
	}
}

// relaunch reports scratch that the next launch, or the next but one of double scratch, may write before this one is
// done with it.
func (e *engine) relaunch() {
	for n := 1; n < len(e.accesses); n++ {
		w := &e.accesses[n]
		if !w.write || !w.place.Scratch() {
			continue
		}
		cells := e.memories[w.place.Memory].cells
		if w.place.Slot {
			cells = e.slots[w.place.Rank()].cells
		}
		last := int32(0)
		for c := w.place.From; c < w.place.To; c++ {
			if before := cells[c].write; before > 0 && before != last {
				last = before
				e.again(int32(n), before)
			}
			for _, before := range cells[c].reads {
				if before != last {
					last = before
					e.again(int32(n), before)
				}
			}
		}
	}
}

// again reports a writing that in the next launch may come before an access of this one. It comes later if the writer
// knows then that the other rank has begun the next launch, or knew at its end that the access was done.
func (e *engine) again(n, before int32) {
	w, a := &e.accesses[n], &e.accesses[before]
	writer, other := e.rank(w.process), e.rank(a.process)
	if writer == other || has(w.started, other) || e.ends[writer].knows(a.process, a.own) ||
		e.p.File.DoubleScratch && has(e.ends[writer].started, other) {
		return
	}
	text := "the next launch may write scratch before this one has read it"
	if a.write {
		text = "the next launch may write scratch before this one has written it"
	}
	e.report(n, before, Finding{Class: Lifetime, Warning: true, Text: text})
}

// rank is whose process it is.
func (e *engine) rank(process int) int {
	if process < len(e.blocks) {
		return e.blocks[process].rank
	}
	return e.owners[(process-len(e.blocks))/2]
}

// results compares outputs with the collective's definition, and says whether there is one.
func (e *engine) results() bool {
	ops := meaning.Reductions(e.p.File)
	want, err := meaning.Expected(e.p)
	switch {
	case err != nil:
		e.found = append(e.found, Finding{Class: Result, Text: err.Error()})
		return true
	case e.p.File.Collective == spec.SendRecv:
		e.permutation()
		return true
	case want != nil && len(ops) > 1:
		e.found = append(e.found, Finding{Class: Result, Text: "operations of one plan have different reductions"})
		return true
	}
	for r, cells := range want {
		out := e.p.Whole(r, spec.Output)
		m := &e.memories[out.Memory]
		for c, symbols := range cells {
			got := m.value[out.From+c]
			if got == e.fold(symbols) {
				continue
			}
			chunk := c / e.p.Shape.Chunk
			text := fmt.Sprintf("chunk %d of the output of rank %d is wrong: %s", chunk, r,
				e.a.Explain(got, symbols))
			f := Finding{Class: Result, Text: text}
			if w := m.cells[out.From+c].write; w > 0 {
				f.Events = append(f.Events, e.event(w))
			} else {
				f.Events = append(f.Events, Event{Site: spec.Site{Rank: r, Block: -1, Op: -1, Inner: -1}})
			}
			e.found = append(e.found, f)
		}
	}
	return want != nil
}

func (e *engine) fold(symbols []meaning.Symbol) meaning.Value {
	if len(symbols) == 1 {
		return e.a.Leaf(symbols[0])
	}
	values := make([]meaning.Value, len(symbols))
	for i, s := range symbols {
		values[i] = e.a.Leaf(s)
	}
	return e.a.Fold(e.a.Op, values...)
}

// permutation checks that every output is another rank's input.
func (e *engine) permutation() {
	from := make(map[int]int)
	for r := range e.p.File.Ranks {
		out := e.p.Whole(r, spec.Output)
		if out.From == out.To {
			continue
		}
		m := &e.memories[out.Memory]
		source := -1
		for q := range e.p.File.Ranks {
			if e.a.Leaf(meaning.Symbol{Rank: q}) == m.value[out.From] {
				source = q
			}
		}
		text := ""
		for c := 0; c < out.To-out.From && source >= 0; c++ {
			if m.value[out.From+c] != e.a.Leaf(meaning.Symbol{Rank: source, Cell: c}) {
				text = fmt.Sprintf("chunk %d of the output of rank %d is not that of rank %d's input",
					c/e.p.Shape.Chunk, r, source)
				break
			}
		}
		if source < 0 {
			text = fmt.Sprintf("the output of rank %d is no rank's input", r)
		} else if other, twice := from[source]; twice {
			text = fmt.Sprintf("ranks %d and %d both have the input of rank %d", other, r, source)
		}
		from[source] = r
		if text != "" {
			e.found = append(e.found, Finding{Class: Result, Text: text, Events: []Event{
				{Site: spec.Site{Rank: r, Block: -1, Op: -1, Inner: -1}},
			}})
		}
	}
}

// rankOrder says whether every output is one fold of all ranks' inputs in their order.
func (e *engine) rankOrder() bool {
	want, err := meaning.Expected(e.p)
	if err != nil || want == nil {
		return false
	}
	for r, cells := range want {
		out := e.p.Whole(r, spec.Output)
		for c, symbols := range cells {
			var forms []meaning.Value
			for _, s := range symbols {
				forms = append(forms, e.a.Leaf(s))
			}
			form := forms[0]
			if len(forms) > 1 {
				form = meaning.Form(forms...)
			}
			if e.memories[out.Memory].form[out.From+c] != form {
				return false
			}
		}
	}
	return true
}
