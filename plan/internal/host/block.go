package host

import (
	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/plan/internal/program"
	"github.com/weftgo/weft/plan/spec"
)

// block is a block in a launch.
type block struct {
	rank  *rank
	steps []step
	pc    int
	at    int // of the step: the channels or semaphores, or the bytes, that are done
	begun int // steps of which a test was told

	pushed int // of the step: what of its pushes is done
	part   int // bytes of the next one
	mark   fabric.Mark
	marked bool

	stop  stop
	which int    // the channel end, the semaphore or the barrier
	turn  int    // of the barrier
	slot  []byte // whose first packet is awaited
	chunk int    // of scratch, in which it lies
}

// step is an operation, of a pipeline one in one window.
type step struct {
	*program.Step
	folds   []program.Range
	pushes  []push // if some go to other hosts
	barrier int
	name    string // in errors; made when it is first needed
}

// stop is what a block waits for.
type stop uint8

const (
	running stop = iota
	onEnd
	onSemaphore
	onBarrier
	onPacket
	onFabric
)

func (b *block) begin() {
	b.pc, b.at, b.begun, b.stop = 0, 0, 0, running
	b.pushed, b.part, b.marked = 0, 0, false
}

// name is the operation at which the block stands.
func (b *block) name() string {
	s := &b.steps[b.pc]
	if s.name == "" {
		s.name = b.rank.plan.At(s.Site)
	}
	return s.name
}

// peer is the rank for which the block waits, maybe its own.
func (b *block) peer() int {
	switch b.stop {
	case onEnd:
		return b.rank.ends[b.which].peer
	case onPacket:
		return b.rank.writers[b.chunk]
	case onFabric:
		return b.steps[b.pc].pushes[b.pushed].link.rank
	}
	return b.rank.self
}

// ready says whether a block that stopped can go on.
func (b *block) ready() bool {
	switch r := b.rank; b.stop {
	case running:
		return b.pc < len(b.steps)
	case onEnd:
		return r.ends[b.which].come()
	case onSemaphore:
		return r.semaphores[b.which] > 0
	case onBarrier:
		return r.barriers[b.which].turn != b.turn
	case onPacket:
		return channel.InSlot(b.slot, 0, r.flag)
	case onFabric:
		return b.goesOn()
	}
	return false
}

// advance runs the block until it must wait, and says whether it did anything.
func (b *block) advance() (moved bool) {
	if b.pc == len(b.steps) || b.stop != running && !b.ready() {
		return false
	}
	for b.pc < len(b.steps) {
		b.stop = running
		if b.rank.Step != nil && b.begun == b.pc {
			b.begun++
			b.rank.Step()
		}
		at, pushed, part := b.at, b.pushed, b.part
		if !b.do(&b.steps[b.pc]) {
			return moved || b.at != at || b.pushed != pushed || b.part != part
		}
		b.pc++
		b.at, b.pushed = 0, 0
		moved = true
	}
	return true
}

// do runs an operation, or as much of it as can be done, and says whether that is all.
func (b *block) do(s *step) bool {
	r := b.rank
	if s.pushes != nil {
		return b.push(s)
	}
	switch s.Op.Kind {
	case spec.Nop, spec.Flush:
		return true
	case spec.Barrier:
		return b.meet(s)
	case spec.SemRelease:
		for _, i := range s.Counters {
			r.semaphores[i-r.before]++
		}
		return true
	case spec.SemAcquire:
		for ; b.at < len(s.Counters); b.at++ {
			i := s.Counters[b.at] - r.before
			if r.semaphores[i] == 0 {
				b.stop, b.which = onSemaphore, i
				return false
			}
			r.semaphores[i]--
		}
		return true
	case spec.Signal, spec.RelaxedSignal:
		r.signal(s.Counters)
		return true
	case spec.Wait, spec.RelaxedWait:
		for ; b.at < len(s.Counters); b.at++ {
			i := s.Counters[b.at] - r.first
			x := &r.ends[i]
			if !x.come() {
				b.stop, b.which = onEnd, i
				return false
			}
			x.take()
		}
		return true
	}
	if len(s.Dst) == 0 || s.Dst[0].From == s.Dst[0].To && !s.signals() {
		return true
	}
	if !s.Op.Kind.Packets() {
		b.move(s)
		return true
	}
	return b.packets(s)
}

// signals says whether a transfer of the operation is followed by a signal.
func (s *step) signals() bool {
	return s.Op.Kind == spec.PutWithSignal || s.Op.Kind == spec.PutWithSignalAndFlush
}

// signal raises the counters of the peers' ends.
func (r *rank) signal(counters []int) {
	for _, c := range counters {
		if x := &r.ends[c-r.first]; x.out != nil {
			x.sent++
			x.out.Publish(x.sent)
		}
	}
}

// meet waits at a barrier of blocks.
func (b *block) meet(s *step) bool {
	x := &b.rank.barriers[s.barrier]
	if b.at > 0 {
		return x.turn != b.turn
	}
	if x.here++; x.here == s.Op.Blocks {
		x.here = 0
		x.turn++
		return true
	}
	b.at, b.turn = 1, x.turn
	b.stop, b.which = onBarrier, s.barrier
	return false
}
