package simulate

import (
	"slices"

	"github.com/weftgo/weft/plan/internal/meaning"
	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// thread is one of a block's.
type thread struct {
	b        *block
	id       int
	pc       int
	unit     int  // of the operation: how many it has done, or how many ids of a list
	asked    bool // it has raised what its wait expects
	at       bool // it stands at a nop
	wave     int  // the meetings of a barrier or a port's operation that it has passed
	turn     int
	barriers map[[2]int]*barrier
	running  bool
}

// begin begins a launch of the block.
func (b *block) begin() {
	b.epoch, b.here = 0, 0
	b.left = len(b.threads)
	b.rank.left++
	for _, t := range b.threads {
		*t = thread{b: b, id: t.id, barriers: t.barriers, running: true}
	}
}

// step does one thing, or says that the thread must wait.
func (t *thread) step() bool {
	if !t.running {
		return false
	}
	b := t.b
	if t.pc >= len(b.steps) {
		t.running = false
		if b.left--; b.left == 0 {
			b.end()
		}
		return true
	}
	s := &b.steps[t.pc]
	switch s.Op.Kind {
	case spec.Nop:
		return t.meet(t.next)
	case spec.Barrier:
		return t.barrier(s)
	case spec.Signal, spec.RelaxedSignal, spec.SemRelease, spec.Wait, spec.RelaxedWait, spec.SemAcquire, spec.Flush:
		return t.sync(s)
	}
	if s.Op.Via == spec.Port {
		return t.push(s)
	}
	return t.move(s)
}

func (t *thread) next() {
	t.pc++
	t.unit, t.asked, t.at, t.wave = 0, false, false, 0
}

// end drains the block's stores, as the end of a kernel does.
func (b *block) end() {
	b.release(-1)
	b.m.trace("rank %d, block %d ends launch %d", b.rank.id, b.id, b.rank.launch)
	if b.rank.left--; b.rank.left == 0 {
		b.rank.end()
	}
}

// meet waits for the other threads of the block. Then all go on.
func (t *thread) meet(on func()) bool {
	b := t.b
	if t.at {
		return false
	}
	t.at = true
	if b.here++; b.here < len(b.threads) {
		return true
	}
	b.here = 0
	b.epoch++
	for _, o := range b.threads {
		o.at = false
		if o == t {
			on()
		} else {
			o.met(b.steps[o.pc].Op.Kind)
		}
	}
	return true
}

// met goes on behind a meeting.
func (t *thread) met(kind spec.Kind) {
	if kind == spec.Nop {
		t.next()
		return
	}
	t.wave++
}

// barrier meets the block's threads, then other blocks, then the threads again.
func (t *thread) barrier(s *program.Step) bool {
	b := t.b
	switch t.wave {
	case 0:
		return t.meet(func() {
			t.wave++
			key := [2]int{b.rank.id, s.Op.Barrier}
			if t.barriers[key] == nil {
				t.barriers[key] = new(barrier)
			}
			b.barrier = t.barriers[key]
			b.release(-1)
			t.turn = b.barrier.turn
			for _, o := range b.threads {
				o.turn = t.turn
			}
			if b.barrier.here++; b.barrier.here == s.Op.Blocks {
				b.barrier.here = 0
				b.barrier.turn++
			}
		})
	default:
		if b.barrier.turn == t.turn {
			return false
		}
		t.next()
		return true
	}
}

// mine is the next of n things that the threads divide, or -1.
func (t *thread) mine(n int) int {
	if i := t.id + t.unit*len(t.b.threads); i < n {
		return i
	}
	return -1
}

// sync signals or waits through the thread's share of a list.
func (t *thread) sync(s *program.Step) bool {
	i := t.mine(len(s.Counters))
	if i < 0 {
		t.next()
		return true
	}
	m, c := t.b.m, s.Counters[i]
	switch s.Op.Kind {
	case spec.Signal, spec.RelaxedSignal:
		if s.Op.Kind == spec.Signal || !m.Weak {
			t.b.release(t.id)
		}
		if s.Op.Via == spec.Port {
			m.ports[c].push(trigger{signal: true})
		} else if peer := m.p.Ends[c].Peer; peer >= 0 {
			m.inbound[peer]++
		}
	case spec.SemRelease:
		t.b.release(t.id)
		m.values[c]++
	case spec.SemAcquire:
		if m.values[c] == 0 {
			return false
		}
		m.values[c]--
	case spec.Flush:
		if m.ports[c].unread() {
			return false
		}
	default:
		if !t.asked {
			t.asked = true
			m.expect[c]++
			t.turn = m.expect[c]
			return true
		}
		if m.inbound[c] < t.turn {
			return false
		}
		t.asked = false
	}
	t.unit++
	return true
}

// offset is where the launch's half of scratch begins.
func (b *block) offset(r program.Range) int {
	if r.Scratch() && b.m.p.File.DoubleScratch && b.rank.launch%2 == 0 {
		return b.m.p.Memories[r.Memory]
	}
	return 0
}

// move does one unit of an operation on data.
func (t *thread) move(s *program.Step) bool {
	size := 2 // a unit is two cells, and a packet carries one
	if s.Op.Kind.Packets() {
		size = 1
	}
	length := s.Dst[0].To - s.Dst[0].From
	units := (length + size - 1) / size
	lists := 1
	if s.Paired() {
		lists = len(s.Dst)
	}
	u := t.mine(units)
	if u < 0 || lists == 0 {
		t.next()
		return true
	}
	// A thread does its unit of every pair before the next unit of any.
	for _, r := range s.Src {
		if !r.Slot {
			continue
		}
		for c := u * size; c < min((u+1)*size, length); c++ {
			if !t.b.there(r, c) {
				return false
			}
		}
	}
	for list := range lists {
		for c := u * size; c < min((u+1)*size, length); c++ {
			var v meaning.Value
			if s.Paired() {
				v = t.load(s.Src[list], c)
				t.store(s.Dst[list], c, v)
				continue
			}
			from := s.Folds()
			args := make([]meaning.Value, len(from))
			for i, r := range from {
				args[i] = t.load(r, c)
			}
			v = args[0]
			if len(args) > 1 {
				v = t.b.m.a.Fold(s.Op.Reduce, args...)
			}
			for _, r := range s.Dst {
				t.store(r, c, v)
			}
		}
	}
	t.unit++
	return true
}

// there says whether a packet has arrived, or is the block's own.
func (b *block) there(r program.Range, c int) bool {
	at := b.offset(r)/2 + r.From + c
	if b.m.slots[r.Rank()].launch[at] == b.rank.launch {
		return true
	}
	return slices.ContainsFunc(b.stores, func(s store) bool {
		return s.slot && s.memory == r.Memory && s.cell == at && s.launch == b.rank.launch
	})
}

// load reads a cell: what the block's own stores that the thread sees left there, or memory.
func (t *thread) load(r program.Range, c int) meaning.Value {
	b := t.b
	at := b.offset(r)
	if r.Slot {
		at /= 2
	}
	at += r.From + c
	for i := len(b.stores) - 1; i >= 0; i-- {
		s := &b.stores[i]
		if s.memory == r.Memory && s.cell == at && s.slot == r.Slot &&
			(s.thread == t.id || s.epoch < b.epoch || r.Slot) {
			return s.value
		}
	}
	if r.Slot {
		return b.m.slots[r.Rank()].value[at]
	}
	return b.m.memory[r.Memory][at]
}

// store puts a cell into the block's buffer of stores.
func (t *thread) store(r program.Range, c int, v meaning.Value) {
	at := t.b.offset(r)
	if r.Slot {
		at /= 2
	}
	t.b.stores = append(t.b.stores, store{
		memory: r.Memory, cell: at + r.From + c, slot: r.Slot, value: v, launch: t.b.rank.launch, thread: t.id,
		epoch: t.b.epoch,
	})
}

// release lets those stores arrive that a thread's release publishes: its own, and those before the last nop. Thread -1
// is all.
func (b *block) release(thread int) {
	kept := b.stores[:0]
	for _, s := range b.stores {
		if thread >= 0 && s.thread != thread && s.epoch == b.epoch {
			kept = append(kept, s)
			continue
		}
		b.m.arrive(s)
	}
	b.stores = kept
}

// arrive is a store's arrival in memory. Packets and other data lie in the same bytes.
func (m *machine) arrive(s store) {
	if s.slot {
		k := &m.slots[s.memory/program.Buffers]
		k.value[s.cell], k.launch[s.cell] = s.value, s.launch
		m.memory[s.memory][2*s.cell] = meaning.Junk(uint64(s.cell))
		m.memory[s.memory][2*s.cell+1] = meaning.Junk(uint64(s.cell))
		return
	}
	m.memory[s.memory][s.cell] = s.value
	if s.memory%program.Buffers == int(spec.Scratch) {
		m.slots[s.memory/program.Buffers].launch[s.cell/2] = 0
	}
}

// drain lets a store of a block arrive now and then.
type drain struct{ b *block }

func (d drain) step() bool {
	b := d.b
	if len(b.stores) == 0 {
		return false
	}
	i := b.m.random.IntN(len(b.stores))
	s := b.stores[i]
	for k := range i {
		// Stores of one thread to one place stay in order.
		if o := b.stores[k]; o.memory == s.memory && o.cell == s.cell && o.slot == s.slot &&
			(o.thread == s.thread || o.epoch < s.epoch) {
			i, s = k, o
			break
		}
	}
	b.stores = slices.Delete(b.stores, i, i+1)
	b.m.arrive(s)
	return true
}
