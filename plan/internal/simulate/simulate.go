// Package simulate runs a plan in one process, under one order of events that a seed chooses: which thread of which
// block goes on, when which stores arrive, in which pieces, and when a port moves what. What goes wrong on a machine
// only now and then goes wrong under some seed, and again under the same one.
//
// A block has a few threads, which divide the units of an operation as those of a GPU do. Stores wait in a buffer of
// the block and arrive in any order, halves of a unit apart, but for what a release orders. A rank begins its next
// launch when it has ended one, whatever the others do.
package simulate

import (
	"fmt"
	"math/rand/v2"

	"github.com/weftgo/weft/plan/internal/meaning"
	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// Options choose a run.
type Options struct {
	Seed     uint64
	Launches int // 0: three
	Threads  int // of a block; 0: three
	// Weak lets relaxed signals arrive before the stores that precede them. Today's GPUs keep that order, and nothing
	// guarantees it.
	Weak bool
	// Trace gets what happens, line by line.
	Trace func(line string)
}

// Report is what came of a run.
type Report struct {
	Steps   int
	Failure string // or nothing
}

// Run runs a plan that [spec.File.Check] passes.
func Run(f *spec.File, o Options) Report {
	if o.Launches == 0 {
		o.Launches = 3
	}
	if o.Threads == 0 {
		o.Threads = 3
	}
	m := newMachine(f, o)
	m.run()
	return Report{m.steps, m.failure}
}

// machine is all ranks. Its cells are halves of a unit: what a packet carries.
type machine struct {
	Options
	p       *program.Program
	a       *meaning.Algebra
	random  *rand.Rand
	actors  []actor
	weights []int
	ranks   []*rank
	blocks  []*block
	ports   map[int]*port
	inbound []int // signals of each channel end
	expect  []int // and how many its waits have asked for
	values  []int // of semaphores
	memory  [][]meaning.Value
	slots   []slots // of each rank
	steps   int
	failure string
	trace   func(string, ...any)
}

// actor is what the seed chooses among. It says whether it did anything.
type actor interface{ step() bool }

// slots is the packets of a rank's scratch.
type slots struct {
	value  []meaning.Value
	launch []int // of the packet that is there
}

type rank struct {
	m      *machine
	id     int
	launch int // from 1
	left   int // blocks that run
	ends   []*port
	closed bool
}

// block is a thread block in a launch.
type block struct {
	m       *machine
	rank    *rank
	id      int
	steps   []program.Step
	threads []*thread
	stores  []store
	epoch   int
	here    int // threads at a nop
	left    int // threads that have not ended
	barrier *barrier
}

// store is one that has not arrived.
type store struct {
	memory, cell int
	slot         bool
	value        meaning.Value
	launch       int
	thread       int
	epoch        int
}

type barrier struct{ here, turn int }

func newMachine(f *spec.File, o Options) *machine {
	m := &machine{Options: o, random: rand.New(rand.NewPCG(o.Seed, 0x9E3779B97F4A7C15)), ports: make(map[int]*port)}
	m.trace = func(format string, args ...any) {
		if o.Trace != nil {
			o.Trace(fmt.Sprintf(format, args...))
		}
	}
	shape := program.Any(f, m.random.IntN)
	scale := 2 // halves
	if m.random.IntN(2) == 0 {
		scale *= o.Threads
	}
	if window := shape.Window; window != nil {
		shape.Window = func(unit uint64) int { return window(unit) * scale }
	}
	shape.Chunk, shape.Align = shape.Chunk*scale, 2
	m.p = program.Of(f, shape)
	m.a = meaning.Of(f, false)
	m.inbound, m.expect = make([]int, len(m.p.Ends)), make([]int, len(m.p.Ends))
	m.values = append([]int(nil), m.p.Semaphores...)
	for i, size := range m.p.Memories {
		if i%program.Buffers == int(spec.Scratch) && f.DoubleScratch {
			size *= 2
		}
		m.memory = append(m.memory, make([]meaning.Value, size))
		if i%program.Buffers == int(spec.Scratch) {
			m.slots = append(m.slots, slots{make([]meaning.Value, size/2+1), make([]int, size/2+1)})
		}
	}
	for r := range f.Ranks {
		m.ranks = append(m.ranks, &rank{m: m, id: r})
	}
	barriers := make(map[[2]int]*barrier)
	for i := range m.p.Blocks {
		at := &m.p.Blocks[i]
		b := &block{m: m, rank: m.ranks[at.Rank], id: at.ID, steps: at.Steps}
		for t := range o.Threads {
			b.threads = append(b.threads, &thread{b: b, id: t, barriers: barriers})
			m.actors = append(m.actors, b.threads[t])
		}
		m.actors = append(m.actors, drain{b})
		m.blocks = append(m.blocks, b)
		for k := range at.Steps {
			s := &at.Steps[k]
			if s.Op.Via != spec.Port {
				continue
			}
			for _, end := range s.Counters {
				if m.ports[end] == nil {
					q := &port{m: m, rank: b.rank, end: end}
					m.ports[end] = q
					b.rank.ends = append(b.rank.ends, q)
					m.actors = append(m.actors, q)
				}
			}
		}
	}
	for _, r := range m.ranks {
		r.begin()
	}
	return m
}

// fail ends the run.
func (m *machine) fail(format string, args ...any) {
	if m.failure == "" {
		m.failure = fmt.Sprintf(format, args...)
		m.trace("%s", m.failure)
	}
}

// run lets actors step until all ranks have ended all launches. Actors are unequal, and which are slow changes.
func (m *machine) run() {
	m.weights = make([]int, len(m.actors))
	idle := 0
	for m.failure == "" && !m.done() {
		if m.steps%512 == 0 && idle == 0 {
			for i := range m.weights {
				m.weights[i] = 1 << (2 * m.random.IntN(5))
			}
		}
		i := m.random.IntN(len(m.actors))
		if m.weights[i] < 1<<(2*m.random.IntN(5)) {
			continue
		}
		if m.actors[i].step() {
			m.steps++
			idle = 0
			continue
		}
		if idle++; idle < 4*len(m.actors) {
			continue
		}
		idle = 0
		if !m.any() {
			m.stuck()
			return
		}
	}
}

// any lets one actor step that can.
func (m *machine) any() bool {
	from := m.random.IntN(len(m.actors))
	for i := range m.actors {
		if m.actors[(from+i)%len(m.actors)].step() {
			m.steps++
			return true
		}
	}
	return false
}

func (m *machine) done() bool {
	for _, r := range m.ranks {
		if !r.closed {
			return false
		}
	}
	return true
}

// stuck says where blocks wait.
func (m *machine) stuck() {
	text := ""
	for _, b := range m.blocks {
		for _, t := range b.threads {
			if t.pc < len(b.steps) {
				s := &b.steps[t.pc]
				text += fmt.Sprintf("; %v (%v), thread %d, launch %d", s.Site, s.Op.Kind, t.id, b.rank.launch)
				break
			}
		}
	}
	if text == "" {
		text = "; a port does not end"
	}
	m.fail("deadlock: nothing goes on%s", text)
}

// begin begins a rank's next launch: its input has new symbols, and its output none.
func (r *rank) begin() {
	m := r.m
	r.launch++
	out, in := m.p.Whole(r.id, spec.Output), m.p.Whole(r.id, spec.Input)
	for c := out.From; c < out.To; c++ {
		m.memory[out.Memory][c] = meaning.Junk(uint64(r.launch)<<48 | uint64(r.id)<<32 | uint64(c))
	}
	for c := in.From; c < in.To; c++ {
		m.memory[in.Memory][c] = m.a.Leaf(m.symbol(r.id, r.launch, c-in.From))
	}
	m.trace("rank %d begins launch %d", r.id, r.launch)
	for b := m.p.First[r.id]; b < m.p.First[r.id+1]; b++ {
		m.blocks[b].begin()
	}
	if r.left == 0 {
		r.end()
	}
}

func (m *machine) symbol(rank, launch, cell int) meaning.Symbol {
	return meaning.Symbol{Rank: rank + launch<<20, Cell: cell}
}

// end ends a launch when its last block has ended and its ports have read their sources.
func (r *rank) end() {
	for _, q := range r.ends {
		if q.unread() {
			return
		}
	}
	m := r.m
	r.check()
	m.trace("rank %d ends launch %d", r.id, r.launch)
	if r.launch == m.Launches || m.failure != "" {
		r.closed = true
		return
	}
	if len(m.p.Blocks) == 0 || m.p.First[r.id] == m.p.First[r.id+1] {
		r.closed = true // it does nothing in any launch
		return
	}
	r.begin()
}

// check compares the output with the collective's.
func (r *rank) check() {
	m := r.m
	want, err := m.expected(r.launch)
	if err != nil {
		m.fail("%v", err)
	}
	out := m.p.Whole(r.id, spec.Output)
	if m.p.File.Collective == spec.SendRecv && !r.received(m.memory[out.Memory][out.From:out.To]) {
		m.fail("launch %d: the output of rank %d is no rank's input when the rank ends", r.launch, r.id)
	}
	if want == nil {
		return
	}
	for c, v := range want[r.id] {
		if got := m.memory[out.Memory][out.From+c]; got != v {
			m.fail("launch %d: chunk %d of the output of rank %d is wrong when the rank ends",
				r.launch, c/m.p.Shape.Chunk, r.id)
			return
		}
	}
}

// received says whether an output is the input of a rank in the same launch.
func (r *rank) received(out []meaning.Value) bool {
	m := r.m
	for q := range m.ranks {
		same := true
		for c, v := range out {
			if same = v == m.a.Leaf(m.symbol(q, r.launch, c)); !same {
				break
			}
		}
		if same {
			return true
		}
	}
	return false
}

// expected is the outputs of a launch.
func (m *machine) expected(launch int) ([][]meaning.Value, error) {
	symbols, err := meaning.Expected(m.p)
	if err != nil || symbols == nil {
		return nil, err
	}
	var all [][]meaning.Value
	for _, cells := range symbols {
		values := make([]meaning.Value, len(cells))
		for i, cell := range cells {
			args := make([]meaning.Value, len(cell))
			for k, s := range cell {
				args[k] = m.a.Leaf(m.symbol(s.Rank, launch, s.Cell))
			}
			values[i] = args[0]
			if len(args) > 1 {
				values[i] = m.a.Fold(m.a.Op, args...)
			}
		}
		all = append(all, values)
	}
	return all, nil
}
