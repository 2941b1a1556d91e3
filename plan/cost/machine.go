package cost

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"

	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// machine runs a program event by event, in the order of time.
type machine struct {
	Model
	*network
	p      *program.Program
	events queue
	number int // of events, which orders those of one time

	busy    []float64 // until when each link is
	traffic []Traffic
	detours map[[2]int]bool
	blocks  []block
	ends    []counter // signals of each channel end, and then semaphores
	ports   []float64 // until when each end's transfers are in their link
	packets []packets // of each rank's scratch
	meets   map[[2]int]*meeting
	now     float64
	last    float64
}

// block is where a block is in its steps.
type block struct {
	pc   int
	took int // counters of its step that it has
}

// counter has the times of what arrives. Waits take them in order.
type counter struct {
	at      []float64
	taken   int
	waiting []int // blocks
}

// packets has when each range of a scratch was written: bounds divide it.
type packets struct {
	bounds  []int
	at      []float64 // infinite before
	waiting []int     // blocks
}

type meeting struct {
	blocks []int
	at     float64
}

// event is something that happens at a time.
type event struct {
	at     float64
	number int
	do     func(at float64)
}

// queue is a heap of events.
type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, k int) bool {
	return cmp.Or(cmp.Compare(q[i].at, q[k].at), q[i].number-q[k].number) < 0
}
func (q queue) Swap(i, k int) { q[i], q[k] = q[k], q[i] }
func (q *queue) Push(e any)   { *q = append(*q, e.(event)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	*q = (*q)[:last]
	return e
}

func newMachine(m Model, p *program.Program) *machine {
	x := &machine{
		Model: m, network: newNetwork(m.Topology), p: p, detours: make(map[[2]int]bool),
		blocks: make([]block, len(p.Blocks)), ends: make([]counter, len(p.Ends)+len(p.Semaphores)),
		ports: make([]float64, len(p.Ends)), packets: make([]packets, len(p.File.Ranks)),
		meets: make(map[[2]int]*meeting),
	}
	x.busy, x.traffic = make([]float64, len(x.links)), make([]Traffic, len(x.links))
	for i, l := range x.links {
		x.traffic[i].From, x.traffic[i].To = l.From, l.To
	}
	for i, value := range p.Semaphores {
		x.ends[len(p.Ends)+i].at = make([]float64, value)
	}
	for b := range p.Blocks {
		for i := range p.Blocks[b].Steps {
			s := &p.Blocks[b].Steps[i]
			for _, r := range slices.Concat(s.Src, s.Dst) {
				if r.Slot {
					slots := &x.packets[r.Rank()]
					slots.bounds = append(slots.bounds, r.From, r.To)
				}
			}
		}
	}
	for i := range x.packets {
		slots := &x.packets[i]
		slices.Sort(slots.bounds)
		slots.bounds = slices.Compact(slots.bounds)
		slots.at = make([]float64, len(slots.bounds))
		for k := range slots.at {
			slots.at[k] = math.Inf(1)
		}
	}
	return x
}

// after has something happen at a time.
func (x *machine) after(at float64, do func(at float64)) {
	x.number++
	heap.Push(&x.events, event{at, x.number, do})
}

// next has a block go on at a time.
func (x *machine) next(b int, at float64) {
	x.last = max(x.last, at)
	x.after(at, func(at float64) { x.step(b, at) })
}

// done has a block go on with its next step.
func (x *machine) done(b int, at float64) {
	x.blocks[b].pc++
	x.next(b, at)
}

func (x *machine) run() (Cost, error) {
	if err := x.reach(); err != nil {
		return Cost{}, err
	}
	for b := range x.blocks {
		x.next(b, 0)
	}
	for len(x.events) > 0 {
		e := heap.Pop(&x.events).(event)
		x.now = e.at
		e.do(e.at)
	}
	for b := range x.blocks {
		if steps := x.p.Blocks[b].Steps; x.blocks[b].pc < len(steps) {
			s := &steps[x.blocks[b].pc]
			return Cost{}, fmt.Errorf("cost: plan %s: %v (%v) waits for what never comes", x.p.File.Name, s.Site, s.Op.Kind)
		}
	}
	c := Cost{Time: x.last, Links: x.traffic}
	for pair := range x.detours {
		c.Detours = append(c.Detours, pair)
	}
	slices.SortFunc(c.Detours, func(a, b [2]int) int { return cmp.Or(a[0]-b[0], a[1]-b[1]) })
	return c, nil
}

// reach notes pairs of ranks without a link, and refuses those without a path.
func (x *machine) reach() error {
	direct := make(map[[2]int]bool)
	for _, l := range x.links {
		direct[[2]int{l.From, l.To}] = true
	}
	note := func(s *program.Step, from, to int) error {
		if from == to || direct[[2]int{from, to}] {
			return nil
		}
		if x.first[from][to] < 0 {
			return fmt.Errorf("cost: plan %s: %v (%v) needs a path from rank %d to rank %d, and the topology has none",
				x.p.File.Name, s.Site, s.Op.Kind, from, to)
		}
		x.detours[[2]int{from, to}] = true
		return nil
	}
	for b := range x.p.Blocks {
		rank := x.p.Blocks[b].Rank
		for i := range x.p.Blocks[b].Steps {
			s := &x.p.Blocks[b].Steps[i]
			var err error
			for _, r := range s.Src {
				if r.Rank() != rank && err == nil {
					if err = note(s, r.Rank(), rank); err == nil {
						err = note(s, rank, r.Rank())
					}
				}
			}
			for _, r := range s.Dst {
				if err == nil {
					err = note(s, rank, r.Rank())
				}
			}
			if s.Op.Kind == spec.Signal || s.Op.Kind == spec.RelaxedSignal {
				for _, c := range s.Counters {
					if err == nil {
						err = note(s, rank, x.p.Ends[c].To)
					}
				}
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// step does a block's step at a time, or leaves the block with what it waits for.
func (x *machine) step(b int, at float64) {
	steps := x.p.Blocks[b].Steps
	if x.blocks[b].pc >= len(steps) {
		return
	}
	s := &steps[x.blocks[b].pc]
	switch s.Op.Kind {
	case spec.Nop:
		x.done(b, at+x.Op)
	case spec.Barrier:
		x.meet(b, s, at)
	case spec.SemRelease:
		for _, c := range s.Counters {
			x.arrive(len(x.p.Ends)+c, at+x.Op)
		}
		x.done(b, at+x.Op)
	case spec.SemAcquire:
		x.wait(b, s, len(x.p.Ends), at)
	case spec.Wait, spec.RelaxedWait:
		x.wait(b, s, 0, at)
	case spec.Signal, spec.RelaxedSignal:
		x.signal(s, at)
		x.done(b, at+x.Op)
	case spec.Flush:
		for _, c := range s.Counters {
			at = max(at, x.ports[c])
		}
		x.done(b, at+x.Op)
	default:
		if x.ready(b, s, at) {
			x.move(b, s, at)
		}
	}
}

// signal sends signals of channels, which are behind what their ports have.
func (x *machine) signal(s *program.Step, at float64) {
	for _, c := range s.Counters {
		end := &x.p.Ends[c]
		if end.Peer < 0 {
			continue
		}
		sent := at + x.Op
		if end.Type == spec.Port {
			sent = max(sent, x.ports[c])
		}
		arrival := sent + x.delay(end.Rank, end.To)
		x.last = max(x.last, arrival)
		x.arrive(end.Peer, arrival)
	}
}

// arrive adds to a counter, and wakes who waits for it.
func (x *machine) arrive(c int, at float64) {
	k := &x.ends[c]
	i, _ := slices.BinarySearch(k.at[k.taken:], at)
	k.at = slices.Insert(k.at, k.taken+i, at)
	waiting := k.waiting
	k.waiting = nil
	for _, b := range waiting { // to see what else it waits for, and until when
		x.next(b, x.now)
	}
}

// wait takes one of each counter of a step, those that follow a first one, or leaves the block at the first that has
// none.
func (x *machine) wait(b int, s *program.Step, first int, at float64) {
	for ; x.blocks[b].took < len(s.Counters); x.blocks[b].took++ {
		c := first + s.Counters[x.blocks[b].took]
		k := &x.ends[c]
		if k.taken == len(k.at) {
			k.waiting = append(k.waiting, b)
			return
		}
		if k.at[k.taken] > at {
			x.next(b, k.at[k.taken])
			return
		}
		k.taken++
	}
	x.blocks[b].took = 0
	x.done(b, at+x.Op)
}

// meet brings a block to a barrier.
func (x *machine) meet(b int, s *program.Step, at float64) {
	key := [2]int{s.Site.Rank, s.Op.Barrier}
	m := x.meets[key]
	if m == nil {
		m = new(meeting)
		x.meets[key] = m
	}
	m.blocks, m.at = append(m.blocks, b), max(m.at, at)
	if len(m.blocks) < s.Op.Blocks {
		return
	}
	delete(x.meets, key)
	for _, other := range m.blocks {
		x.done(other, m.at+x.Op)
	}
}

// ready says whether all packets of a step are there; if not, the block goes on when they are.
func (x *machine) ready(b int, s *program.Step, at float64) bool {
	if s.Op.Kind == spec.PutPackets { // of a port: it takes what there is
		return true
	}
	for _, r := range s.Src {
		if !r.Slot {
			continue
		}
		slots := &x.packets[r.Rank()]
		switch there := slots.there(r); {
		case math.IsInf(there, 1):
			slots.waiting = append(slots.waiting, b)
			return false
		case there > at:
			x.next(b, there)
			return false
		}
	}
	return true
}

// part is the bounds of a range.
func (p *packets) part(r program.Range) (from, to int) {
	from, _ = slices.BinarySearch(p.bounds, r.From)
	to, _ = slices.BinarySearch(p.bounds, r.To)
	return from, to
}

func (p *packets) there(r program.Range) (at float64) {
	from, to := p.part(r)
	for _, t := range p.at[from:to] {
		at = max(at, t)
	}
	return at
}

// written has packets be there at a time.
func (x *machine) written(r program.Range, at float64) {
	slots := &x.packets[r.Rank()]
	from, to := slots.part(r)
	for i := from; i < to; i++ {
		slots.at[i] = at
	}
	waiting := slots.waiting
	slots.waiting = nil
	for _, b := range waiting { // to see what else it waits for, and until when
		x.next(b, x.now)
	}
}

// move does an operation on data.
func (x *machine) move(b int, s *program.Step, at float64) {
	rank := x.p.Blocks[b].Rank
	if s.Op.Via == spec.Port {
		x.push(s, rank, at)
		x.done(b, at+x.Op)
		return
	}
	local := 0.0
	o := &operation{machine: x, step: s, block: b, rank: rank, begin: at, end: at}
	for _, r := range s.Src {
		if r.Rank() == rank {
			local += length(r)
		} else if r.To > r.From {
			o.reads++
		}
	}
	for _, r := range s.Dst {
		if r.Rank() == rank {
			local += length(r)
		}
	}
	o.local = x.Op
	if x.CopyGBps > 0 {
		o.local += local / x.CopyGBps / 1e3
	}
	if o.reads == 0 {
		o.write()
		return
	}
	for _, r := range s.Src {
		if r.Rank() != rank && r.To > r.From {
			x.after(at+x.delay(rank, r.Rank()), func(at float64) { o.read(r, at) })
		}
	}
}

// operation is one that is under way.
type operation struct {
	*machine
	step          *program.Step
	block, rank   int
	reads, writes int
	begin, end    float64 // when its data comes, and when it has come
	local         float64
}

// read takes the links from another rank.
func (o *operation) read(r program.Range, at float64) {
	begin, _, end := o.send(r.Rank(), o.rank, length(r), at, at)
	o.begin, o.end = max(o.begin, begin), max(o.end, end)
	if o.reads--; o.reads == 0 {
		o.write()
	}
}

// write takes the links to other ranks, as soon as data comes.
func (o *operation) write() {
	begin := o.begin
	for i, r := range o.step.Dst {
		if r.Rank() == o.rank || r.To == r.From {
			continue
		}
		o.writes++
		o.after(begin, func(at float64) {
			_, sent, there := o.send(o.rank, r.Rank(), length(o.step.Dst[i]), at, o.end)
			o.end = max(o.end, sent)
			o.last = max(o.last, there)
			if r.Slot {
				o.written(r, there)
			}
			if o.writes--; o.writes == 0 {
				o.finish()
			}
		})
	}
	if o.writes == 0 {
		o.finish()
	}
}

// finish ends the operation.
func (o *operation) finish() {
	end := max(o.end, o.begin+o.local)
	for _, r := range o.step.Dst {
		if r.Slot && r.Rank() == o.rank {
			o.written(r, end)
		}
	}
	o.done(o.block, end)
}

// push has a port move what a step says, beside its block.
func (x *machine) push(s *program.Step, rank int, at float64) {
	for i, r := range s.Dst {
		c := s.Counters[min(i, len(s.Counters)-1)]
		begin := max(at, x.ports[c])
		_, sent, there := x.send(rank, r.Rank(), length(r), begin, begin)
		x.ports[c], x.last = sent, max(x.last, there)
		if r.Slot {
			x.written(r, there)
		}
	}
	if s.Op.Kind == spec.PutWithSignal || s.Op.Kind == spec.PutWithSignalAndFlush {
		x.signal(s, at)
	}
}

// send takes the links from a rank to another for a message that is not all there before whole. Its first byte arrives
// at begin, its last leaves at sent and arrives at there.
func (x *machine) send(from, to int, bytes, at, whole float64) (begin, sent, there float64) {
	begin, there, sent = at, whole, at
	for i, l := range x.path(from, to) {
		link := &x.links[l]
		took := bytes / link.GBps / 1e3
		begin = max(begin, x.busy[l])
		x.busy[l] = begin + took
		x.traffic[l].Bytes += bytes
		x.traffic[l].Busy += took
		there = max(begin+took, there)
		if i == 0 {
			sent = there
		}
		begin, there = begin+link.Us, there+link.Us
	}
	return begin, sent, there
}

// length is the bytes of a range as it travels.
func length(r program.Range) float64 {
	from, to := r.Bytes()
	return float64(to - from)
}
