package simulate

import (
	"slices"

	"github.com/weftgo/weft/plan/internal/meaning"
	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// port is what moves the data of an end of a port channel: what is pushed, in order, a cell at a time.
type port struct {
	m       *machine
	rank    *rank
	end     int
	queue   []*trigger
	flights []store // cells that have been read and have not arrived
}

// trigger is what is pushed.
type trigger struct {
	signal   bool
	src, dst program.Range
	at, to   int   // offsets of the halves of scratch
	left     []int // cells that have not been read
	launch   int
}

func (q *port) push(t trigger) { q.queue = append(q.queue, &t) }

// unread says whether the port has sources to read.
func (q *port) unread() bool {
	return slices.ContainsFunc(q.queue, func(t *trigger) bool { return !t.signal })
}

func (q *port) step() bool {
	m := q.m
	if n := len(q.flights); n > 0 && (len(q.queue) == 0 || q.queue[0].signal || m.random.IntN(2) == 0) {
		i := m.random.IntN(n)
		m.arrive(q.flights[i])
		q.flights = slices.Delete(q.flights, i, i+1)
		return true
	}
	if len(q.queue) == 0 {
		return false
	}
	t := q.queue[0]
	if t.signal {
		if peer := m.p.Ends[q.end].Peer; peer >= 0 {
			m.inbound[peer]++
		}
		q.queue = q.queue[1:]
		return true
	}
	if len(t.left) > 0 {
		i := m.random.IntN(len(t.left))
		q.read(t, t.left[i])
		t.left = slices.Delete(t.left, i, i+1)
	}
	if len(t.left) == 0 {
		q.queue = q.queue[1:]
		if q.rank.left == 0 && !q.rank.closed {
			q.rank.end()
		}
	}
	return true
}

// read reads a cell of a source.
func (q *port) read(t *trigger, c int) {
	m := q.m
	s := store{memory: t.dst.Memory, cell: t.to + t.dst.From + c, slot: t.dst.Slot, launch: t.launch}
	at := t.at + t.src.From + c
	if t.src.Slot {
		k := &m.slots[t.src.Rank()]
		s.value, s.launch = k.value[at], k.launch[at] // whatever flag is there
		if s.launch == 0 {
			s.value = meaning.Junk(uint64(at))
		}
	} else {
		s.value = m.memory[t.src.Memory][at]
	}
	q.flights = append(q.flights, s)
}

// push gives a thread's share of an operation's transfers to ports.
func (t *thread) push(s *program.Step) bool {
	b := t.b
	if s.Op.Kind == spec.ReadPutPackets && t.wave == 0 {
		// All threads wait for their packets, and meet.
		r := s.Src[0]
		if c := t.mine(r.To - r.From); c >= 0 {
			if !b.there(r, c) {
				return false
			}
			t.unit++
			return true
		}
		return t.meet(func() { t.wave++; t.unit = 0 })
	}
	if s.Op.Kind == spec.ReadPutPackets && t.wave == 1 {
		t.wave, t.unit = 2, 0
	}
	i := t.mine(len(s.Counters))
	if i < 0 {
		t.next()
		return true
	}
	q := b.m.ports[s.Counters[i]]
	if !t.asked {
		b.release(t.id)
		x := trigger{src: s.Src[min(i, len(s.Src)-1)], dst: s.Dst[i], launch: b.rank.launch}
		x.at, x.to = b.offset(x.src), b.offset(x.dst)
		if x.src.Slot {
			x.at, x.to = x.at/2, x.to/2
		}
		for c := range x.src.To - x.src.From {
			x.left = append(x.left, c)
		}
		q.push(x)
		if s.Op.Kind == spec.PutWithSignal || s.Op.Kind == spec.PutWithSignalAndFlush {
			q.push(trigger{signal: true})
		}
		t.asked = true
		return true
	}
	if s.Op.Kind == spec.PutWithSignalAndFlush && q.unread() {
		return false
	}
	t.asked = false
	t.unit++
	return true
}
