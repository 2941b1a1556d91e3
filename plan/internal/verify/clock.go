package verify

import "slices"

// A clock says for every process how many of its steps are before now. Processes are blocks, and two of each end
// of a port: what reads sources and what writes destinations. A clock that something else holds is not changed any
// more.
type clock []uint32

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
	shared  bool // a stamp holds the clock
	started []uint64
	lent    bool // a stamp holds started
	joined  map[*uint32]bool
}

// newTime is what a process of a rank knows at its beginning: nothing, as the given clock says.
func newTime(none clock, ranks, rank int) time {
	t := time{clock: none, shared: true, started: make([]uint64, (ranks+63)/64), joined: make(map[*uint32]bool)}
	t.started[rank/64] |= 1 << (rank % 64)
	return t
}

// knows says whether the first own steps of a process are before now.
func (t *time) knows(process int, own uint32) bool { return t.clock[process] >= own }

// set says that the first own steps of a process are before now.
func (t *time) set(process int, own uint32) {
	if t.clock[process] < own {
		t.own()
		t.clock[process] = own
	}
}

// own makes the clock changeable.
func (t *time) own() {
	if t.shared {
		t.clock, t.shared = slices.Clone(t.clock), false
	}
}

// join adds what a stamp knows.
func (t *time) join(s stamp) {
	t.begin(s.started)
	if key := &s.clock[0]; !t.joined[key] {
		t.joined[key] = true
		if !t.shared || !covers(t.clock, s.clock) {
			t.own()
			at := t.clock[:len(s.clock)]
			for i, v := range s.clock {
				at[i] = max(at[i], v)
			}
		}
	}
	if s.process >= 0 {
		t.set(s.process, s.own)
	}
}

func covers(a, b clock) bool {
	a = a[:len(b)]
	for i, v := range b {
		if a[i] < v {
			return false
		}
	}
	return true
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

func has(started []uint64, rank int) bool { return started[rank/64]>>(rank%64)&1 != 0 }
