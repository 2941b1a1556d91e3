package verify

import (
	"github.com/weftgo/weft/plan/internal/meaning"
	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// model says what orders operations. The plain one has all that works on today's GPUs: relaxed signals and packets
// order too. The strong one has what is guaranteed. The loose one has signals and waits without a nop beside them. In
// the split one threads of a block know of packets what others got only behind a nop. Runs of the last three look at
// order alone.
type model struct{ strong, loose, split bool }

// orderOnly says that a run computes no contents.
func (m model) orderOnly() bool { return m.strong || m.loose || m.split }

// engine runs a program once. Channels, barriers, semaphores and packets are a Kahn network, where every counter has
// one side in one block: what one run orders, all do, and where one run stops, all stop. Each block runs until it
// must wait.
type engine struct {
	p     *program.Program
	model model
	trace bool
	a     *meaning.Algebra

	pages    *pages // of clocks
	blocks   []process
	ports    map[int]*portAgent // of used ends
	owners   []int              // their ranks
	counters []counter
	barriers map[[2]int]*meeting
	memories []memory
	slots    []memory       // of each rank's scratch
	asleep   []map[int]bool // blocks that wait for packets, of each rank
	queue    []int
	queued   []bool

	accesses []access
	remotes  map[[2]int]*[2]int32 // the last read and write of an owner's buffers by a process
	ends     []time               // what each rank knows when its last block ends
	found    []Finding
	said     map[[2]int32]bool
}

// process is a block that runs.
type process struct {
	time
	id      int // its number
	rank    int
	steps   []program.Step
	pc      int
	nop     uint32    // the last step at which its threads met
	longest int       // range of a step since then
	pending []pending // what single threads know, until then
	waits   map[int]int
	at      *meeting // where it waits
	turn    int
}

// noThread is one that signals nothing.
const noThread = -1

// pending is what a thread knows, and the others will at the next nop.
type pending struct {
	thread int
	stamp  stamp
}

// portAgent is what moves data of an end of a port: it does what is pushed in order.
type portAgent struct {
	time
	id            int // the process of its reads; that of its writes follows
	rank          int
	reads, writes uint32
	source        int32 // its last reading of what is not scratch
	tells         bool  // something waits for it: it signals, or is flushed
}

// counter counts signals of a channel end, or releases of a semaphore.
type counter struct {
	initial  int
	signals  map[int][]stamp // of each process
	arrived  int
	taken    int
	total    map[int]int // signals of a launch, of each block or port
	waiters  map[int]int // waits of a launch, of each block
	sleepers []int
}

// meeting is a barrier.
type meeting struct {
	turn  int
	here  []stamp
	done  *time // what all know who met in the last turn
	sleep []int
}

// memory is a buffer's contents, and who touched them last.
type memory struct {
	value, form []meaning.Value
	cells       []cell
	plain, slot []int32 // of physical scratch: an access of each kind
}

// cell is who touched a cell: numbers of accesses, from 1.
type cell struct {
	write int32
	reads []int32
	stamp *stamp // of a slot
}

// access is a range that a step touched.
type access struct {
	process int
	own     uint32 // of the process's steps
	step    *program.Step
	place   program.Range
	write   bool
	small   bool // by threads that have a packet's payload each
	started []uint64
}

func newEngine(p *program.Program, m model, trace bool) *engine {
	e := &engine{
		p: p, model: m, trace: trace, ports: make(map[int]*portAgent), barriers: make(map[[2]int]*meeting),
		remotes: make(map[[2]int]*[2]int32), said: make(map[[2]int32]bool),
	}
	e.a = meaning.Of(p.File, trace)
	e.count()
	ranks := len(p.File.Ranks)
	most := 1 // blocks of a rank
	for r := range ranks {
		most = max(most, p.First[r+1]-p.First[r])
	}
	e.pages = newPages(most, len(p.Blocks)+2*len(e.ports))
	for i := range p.Blocks {
		b := &p.Blocks[i]
		e.blocks = append(e.blocks, process{
			time: newTime(e.pages, ranks, b.Rank), id: i, rank: b.Rank, steps: b.Steps, waits: make(map[int]int),
		})
		e.queue = append(e.queue, i)
	}
	e.queued = make([]bool, len(p.Blocks))
	for end, a := range e.ports {
		a.time, a.rank = newTime(e.pages, ranks, p.Ends[end].Rank), p.Ends[end].Rank
	}
	for i, size := range p.Memories {
		m := newMemory(size)
		for c := range m.value {
			m.value[c] = meaning.Junk(uint64(i)<<40 | uint64(c))
			m.form[c] = m.value[c]
		}
		e.memories = append(e.memories, m)
		if i%program.Buffers == int(spec.Scratch) {
			s := newMemory(size / 2)
			e.memories[i].plain, e.memories[i].slot = make([]int32, size), make([]int32, size)
			e.slots = append(e.slots, s)
			e.asleep = append(e.asleep, make(map[int]bool))
		}
	}
	for r := range ranks {
		in := p.Whole(r, spec.Input)
		for c := in.From; c < in.To; c++ {
			v := e.a.Leaf(meaning.Symbol{Rank: r, Cell: c - in.From})
			e.memories[in.Memory].value[c], e.memories[in.Memory].form[c] = v, v
		}
	}
	return e
}

func newMemory(size int) memory {
	return memory{
		value: make([]meaning.Value, size), form: make([]meaning.Value, size), cells: make([]cell, size),
	}
}

// count finds who uses which counter, and how often.
func (e *engine) count() {
	p := e.p
	e.counters = make([]counter, len(p.Ends)+len(p.Semaphores))
	for i := range e.counters {
		e.counters[i] = counter{signals: map[int][]stamp{}, total: map[int]int{}, waiters: map[int]int{}}
		if i >= len(p.Ends) {
			e.counters[i].initial = p.Semaphores[i-len(p.Ends)]
		}
	}
	n := 1
	for b := range p.Blocks {
		for i := range p.Blocks[b].Steps {
			s := &p.Blocks[b].Steps[i]
			n += len(s.Src) + len(s.Dst)
			if s.Op.Via == spec.Port {
				for _, end := range s.Counters {
					if e.ports[end] == nil {
						e.ports[end] = &portAgent{id: len(p.Blocks) + 2*len(e.ports)}
						e.owners = append(e.owners, p.Blocks[b].Rank)
					}
					e.ports[end].tells = e.ports[end].tells || s.Op.Kind != spec.PutPackets && s.Op.Kind != spec.ReadPutPackets &&
						s.Op.Kind != spec.Put
				}
			}
			for _, c := range s.Counters {
				if to := e.p.Signalled(s, c); to >= 0 {
					e.counters[to].total[b]++
				}
				if from := e.p.Awaited(s, c); from >= 0 {
					e.counters[from].waiters[b]++
				}
			}
		}
	}
	e.accesses = make([]access, 1, n) // the first is none
}

// run runs all blocks as far as they get, and says whether all ended.
func (e *engine) run() bool {
	for i := range e.queued {
		e.queued[i] = true
	}
	for len(e.queue) > 0 {
		b := e.queue[0]
		e.queue = e.queue[1:]
		e.queued[b] = false
		for q := &e.blocks[b]; q.pc < len(q.steps) && e.step(q); q.pc++ {
		}
	}
	for i := range e.blocks {
		if e.blocks[i].pc < len(e.blocks[i].steps) {
			return false
		}
	}
	return true
}

func (e *engine) wake(b int) {
	if !e.queued[b] {
		e.queued[b] = true
		e.queue = append(e.queue, b)
	}
}

// step runs a block's next step, unless it must wait.
func (e *engine) step(q *process) bool {
	s := &q.steps[q.pc]
	now := uint32(q.pc) + 1
	switch s.Op.Kind {
	case spec.Nop:
		q.meet(now)
	case spec.Barrier:
		return e.barrier(q, s, now)
	case spec.Wait, spec.RelaxedWait, spec.SemAcquire:
		return e.wait(q, s)
	case spec.Signal, spec.RelaxedSignal, spec.SemRelease:
		for i, c := range s.Counters {
			e.signal(q, s, i, c)
		}
	case spec.Flush:
		for i, c := range s.Counters {
			e.flushed(q, i, e.ports[c])
		}
	default:
		if !e.ready(q, s) {
			return false
		}
		if s.Op.Via == spec.Port {
			e.push(q, s, now)
		} else {
			e.touch(q, s, now)
		}
	}
	return true
}

// meet is a barrier of the block's threads.
func (q *process) meet(now uint32) {
	for _, p := range q.pending {
		q.join(p.stamp)
	}
	q.pending = q.pending[:0]
	q.nop, q.longest = now, 0
}

// published is how many steps of a block a signal of one of its threads publishes: those before the last nop.
func (e *engine) published(q *process) uint32 {
	if e.model.loose {
		return uint32(q.pc) + 1
	}
	return q.nop
}

// publish is the stamp of a signal, or of what is pushed into a port, by a thread.
func (e *engine) publish(q *process, thread int) stamp {
	s := q.stamp(q.id, e.published(q))
	for _, p := range q.pending {
		if p.thread == thread {
			t := e.pages.time(s.clock, s.started)
			t.join(p.stamp)
			s.clock, s.started = t.clock, t.started
		}
	}
	return s
}

// learn is what a thread learns.
func (e *engine) learn(q *process, thread int, s stamp) {
	if e.model.loose {
		q.join(s)
		return
	}
	q.pending = append(q.pending, pending{thread, s})
}

func (e *engine) signal(q *process, s *program.Step, thread, c int) {
	to := e.p.Signalled(s, c)
	if to < 0 {
		return // nobody can wait for it
	}
	stamped := e.publish(q, thread)
	switch {
	case s.Op.Via == spec.Port:
		a := e.ports[c]
		a.join(stamped)
		stamped = a.stamp(-1, 0)
	case e.model.strong && s.Op.Kind == spec.RelaxedSignal:
		stamped = stamp{started: stamped.started}
	}
	e.arrive(to, q.id, stamped)
}

// arrive adds a signal to a counter.
func (e *engine) arrive(to, from int, s stamp) {
	c := &e.counters[to]
	c.signals[from] = append(c.signals[from], s)
	c.arrived++
	for _, b := range c.sleepers {
		e.wake(b)
	}
	c.sleepers = c.sleepers[:0]
}

// wait takes one of each counter, unless one has none.
func (e *engine) wait(q *process, s *program.Step) bool {
	need := make(map[int]int, 1)
	for _, c := range s.Counters {
		c = e.p.Awaited(s, c)
		need[c]++
		if at := &e.counters[c]; at.initial+at.arrived-at.taken < need[c] {
			at.sleepers = append(at.sleepers, q.id)
			return false
		}
	}
	for i, c := range s.Counters {
		c = e.p.Awaited(s, c)
		e.counters[c].taken++
		q.waits[c]++
		e.order(q, i, &e.counters[c], q.waits[c], e.model.strong && s.Op.Kind == spec.RelaxedWait)
	}
	return true
}

// order adds what the n-th wait of a block on a counter orders. All signals but n might be those of other blocks: what
// is left must be those of this one.
func (e *engine) order(q *process, thread int, c *counter, n int, relaxed bool) {
	all := 0
	for _, k := range c.total {
		all += k
	}
	for from, k := range c.total {
		must := n - c.initial - (all - k)
		if must < 1 || must > len(c.signals[from]) {
			continue
		}
		s := c.signals[from][must-1]
		if relaxed || s.clock == nil {
			q.begin(s.started)
			continue
		}
		e.learn(q, thread, s)
	}
}

// barrier meets the other blocks of the rank.
func (e *engine) barrier(q *process, s *program.Step, now uint32) bool {
	key := [2]int{q.rank, s.Op.Barrier}
	m := e.barriers[key]
	if m == nil {
		m = new(meeting)
		e.barriers[key] = m
	}
	if q.at == nil {
		q.meet(now)
		q.at, q.turn = m, m.turn
		m.here = append(m.here, q.stamp(q.id, now))
		if len(m.here) == s.Op.Blocks {
			m.turn++
			m.done = e.pages.met(m.here)
			m.here = m.here[:0]
			for _, b := range m.sleep {
				e.wake(b)
			}
			m.sleep = nil
		}
	}
	if m.turn == q.turn {
		m.sleep = append(m.sleep, q.id)
		return false
	}
	q.at = nil
	q.follow(m.done)
	return true
}

// flushed says that a port has read its sources.
func (e *engine) flushed(q *process, thread int, a *portAgent) {
	s := a.stamp(-1, 0)
	t := e.pages.time(s.clock, s.started)
	t.put(a.id+1, q.clock.of(a.id+1)) // where they were written is another matter
	e.learn(q, thread, t.stamp(-1, 0))
}

// waits says whether a step waits for the packets of its sources.
func waits(s *program.Step) bool { return s.Op.Kind.Packets() && s.Op.Kind != spec.PutPackets }

// ready says whether the packets of a step's sources are there, and what that orders.
func (e *engine) ready(q *process, s *program.Step) bool {
	if !waits(s) {
		return true
	}
	for _, r := range s.Src {
		if !r.Slot {
			continue
		}
		for c := r.From; c < r.To; c++ {
			if e.slots[r.Rank()].cells[c].write == 0 {
				e.asleep[r.Rank()][q.id] = true
				return false
			}
		}
	}
	if e.model.strong {
		return true // they order nothing
	}
	var last *stamp
	for _, r := range s.Src {
		if !r.Slot {
			continue
		}
		for _, c := range e.slots[r.Rank()].cells[r.From:r.To] {
			if c.stamp != last {
				if last = c.stamp; e.model.split {
					got := *last
					if w := e.accesses[c.write].place; r.From <= w.From && w.To <= r.To {
						got.own = max(got.own, got.whole)
					}
					e.learn(q, noThread, got)
				} else {
					q.join(*last)
				}
			}
		}
	}
	return true
}
