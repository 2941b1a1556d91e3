package verify

import "slices"

// A clock says for every process how many of its steps are before now. Processes are blocks, and two of each end
// of a port: what reads sources and what writes destinations. A clock that something else holds is not changed any
// more, nor are its pages.
//
// It has as many pages as ranks have blocks, and process p is on page p modulo their number. So blocks of one number,
// which mostly talk with each other, are on one page. A page of which nothing is known is not there.
type clock []*page

// page is the steps of some processes, or nil for none of any.
type page struct {
	steps  []uint32
	number uint64 // of all pages of a run
}

// of is the steps of a process.
func (c clock) of(process int) uint32 {
	i, at := c.place(process)
	if c[i] == nil {
		return 0
	}
	return c[i].steps[at]
}

// place is where a process is: its page, and where there.
func (c clock) place(process int) (i, at uint32) {
	n := uint32(len(c))
	at = uint32(process) / n
	return uint32(process) - at*n, at
}

// stamp is what a step publishes: what was before it, and its process's own steps up to one.
type stamp struct {
	clock   clock
	process int // or -1, of a port, whose clock has its own steps
	own     uint32
	whole   uint32   // and up to this one, for who gets all packets of the step
	started []uint64 // the ranks that are known to have begun the launch
}

// time is what a process knows.
type time struct {
	clock   clock
	shared  bool   // a stamp holds the clock
	fresh   []bool // pages that nothing else holds
	started []uint64
	lent    bool // a stamp holds started
	pages   *pages
}

// newTime is what a process of a rank knows at its beginning: nothing.
func newTime(p *pages, ranks, rank int) time {
	t := p.time(p.none, make([]uint64, (ranks+63)/64))
	t.lent = false
	t.started[rank/64] |= 1 << (rank % 64)
	return t
}

// knows says whether the first own steps of a process are before now.
func (t *time) knows(process int, own uint32) bool { return t.clock.of(process) >= own }

// set says that the first own steps of a process are before now.
func (t *time) set(process int, own uint32) {
	if t.clock.of(process) < own {
		t.put(process, own)
	}
}

// put says how many steps of a process are before now.
func (t *time) put(process int, own uint32) {
	i, at := t.clock.place(process)
	t.own()
	if !t.fresh[i] {
		fresh := make([]uint32, t.pages.size)
		if t.clock[i] != nil {
			copy(fresh, t.clock[i].steps)
		}
		t.clock[i], t.fresh[i] = t.pages.of(fresh), true
	}
	t.clock[i].steps[at] = own
}

// own makes the clock changeable, but for its pages.
func (t *time) own() {
	if t.shared {
		t.clock, t.shared = slices.Clone(t.clock), false
		clear(t.fresh)
	}
}

// join adds what a stamp knows.
func (t *time) join(s stamp) {
	t.begin(s.started)
	t.merge(s.clock)
	if s.process >= 0 {
		t.set(s.process, s.own)
	}
}

// merge adds what a clock has.
func (t *time) merge(c clock) {
	if &c[0] == &t.clock[0] {
		return
	}
	for i, there := range c {
		here := t.clock[i]
		if there == nil || here == there {
			continue
		}
		if !t.shared && t.fresh[i] {
			at := here.steps[:len(there.steps)]
			for k, v := range there.steps {
				at[k] = max(at[k], v)
			}
			continue
		}
		if both := t.pages.merge(here, there); both != here {
			t.own()
			t.clock[i] = both
		}
	}
}

// begin adds ranks that have begun.
func (t *time) begin(started []uint64) {
	for i, v := range started {
		if v&^t.started[i] != 0 {
			if t.lent {
				t.started, t.lent = slices.Clone(t.started), false
			}
			t.started[i] |= v
		}
	}
}

// stamp publishes what the process knows and its own first steps.
func (t *time) stamp(process int, own uint32) stamp {
	t.shared, t.lent = true, true
	return stamp{clock: t.clock, process: process, own: own, started: t.started}
}

// met is what all know together, as their stamps say.
func (p *pages) met(all []stamp) *time {
	t := p.time(all[0].clock, all[0].started)
	for _, s := range all {
		t.join(s)
	}
	return &t
}

// follow takes what a meeting knows, at which the process was. It has not gone on since.
func (t *time) follow(m *time) {
	s := m.stamp(-1, 0)
	t.clock, t.shared, t.started, t.lent = s.clock, true, s.started, true
}

func has(started []uint64, rank int) bool { return started[rank/64]>>(rank%64)&1 != 0 }

// pages makes the pages of the clocks of a run.
type pages struct {
	none   clock // of who knows nothing
	size   int
	count  uint64
	buffer []uint32
	// known are merges, at places that the numbers of their pages give. Blocks that have met know the same, and often hear
	// the same of others.
	known [1 << knownBits]merged
}

const knownBits = 10

// merged is a page that has all of two.
type merged struct{ a, b, both *page }

// newPages is for clocks of so many pages and processes.
func newPages(count, processes int) *pages {
	p := &pages{none: make(clock, count), size: (processes + count - 1) / count}
	p.buffer = make([]uint32, p.size)
	return p
}

// of makes a page.
func (p *pages) of(steps []uint32) *page {
	p.count++
	return &page{steps: steps, number: p.count}
}

// time is what a process knows that has a clock, and knows of ranks that have begun. It changes neither.
func (p *pages) time(c clock, started []uint64) time {
	return time{clock: c, shared: true, fresh: make([]bool, len(c)), started: started, lent: true, pages: p}
}

// merge is a page that has all of two, of which neither changes any more. It may be one of them.
func (p *pages) merge(a, b *page) *page {
	if a == nil {
		return b
	}
	m := &p.known[(a.number*31+b.number)*0x9E3779B97F4A7C15>>(64-knownBits)]
	if m.a == a && m.b == b {
		return m.both
	}
	more, other := uint32(0), uint32(0) // not 0 if both has what a has not, and b
	there, both := b.steps[:len(a.steps)], p.buffer[:len(a.steps)]
	for i, x := range a.steps {
		y := there[i]
		z := max(x, y)
		both[i] = z
		more |= z ^ x
		other |= z ^ y
	}
	*m = merged{a, b, a}
	switch {
	case more == 0:
	case other == 0:
		m.both = b
	default:
		m.both = p.of(slices.Clone(both))
	}
	return m.both
}
