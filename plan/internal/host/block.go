package host

import (
	"context"

	"github.com/weftgo/weft"
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

// step is an operation, of a pipeline one in one window. What launches look at is in it, and that of all steps lies
// together: data that operations move leaves nothing of a plan in the first caches.
type step struct {
	kind     spec.Kind
	paired   bool
	far      bool // some of its pushes go to other hosts
	op       weft.Op
	src, dst []program.Range
	counters []int // numbers of the rank's own ends, or of its semaphores
	folds    []program.Range
	barrier  int
	pushes   []push
	whole    *program.Step
	name     string // in errors; made when it is first needed
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
		s.name = b.rank.plan.At(s.whole.Site)
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
	if s.far {
		return b.push(s)
	}
	switch s.kind {
	case spec.Nop, spec.Flush:
		return true
	case spec.Barrier:
		return b.meet(s)
	case spec.SemRelease:
		for _, i := range s.counters {
			r.semaphores[i]++
		}
		return true
	case spec.SemAcquire:
		for ; b.at < len(s.counters); b.at++ {
			i := s.counters[b.at]
			if r.semaphores[i] == 0 {
				b.stop, b.which = onSemaphore, i
				return false
			}
			r.semaphores[i]--
		}
		return true
	case spec.Signal, spec.RelaxedSignal:
		r.signal(s.counters)
		return true
	case spec.Wait, spec.RelaxedWait:
		for ; b.at < len(s.counters); b.at++ {
			i := s.counters[b.at]
			x := &r.ends[i]
			if !x.come() {
				b.stop, b.which = onEnd, i
				return false
			}
			x.take()
		}
		return true
	}
	if len(s.dst) == 0 || s.dst[0].From == s.dst[0].To && !s.signals() {
		return true
	}
	if !s.kind.Packets() {
		b.move(s)
		return true
	}
	return b.packets(s)
}

// signals says whether a transfer of the operation is followed by a signal.
func (s *step) signals() bool {
	return s.kind == spec.PutWithSignal || s.kind == spec.PutWithSignalAndFlush
}

// signal raises the counters of the peers' ends.
func (r *rank) signal(ends []int) {
	for _, i := range ends {
		if x := &r.ends[i]; x.out != nil {
			x.sent++
			x.out.Publish(x.sent)
		}
	}
}

// hear waits for all signals that a block still awaits at its operation, where no other block can go on meanwhile.
func (b *block) hear(ctx context.Context, waiter *channel.Waiter) error {
	s := &b.steps[b.pc]
	for ; b.at < len(s.counters); b.at++ {
		x := &b.rank.ends[s.counters[b.at]]
		if err := waiter.Wait(ctx, x.in, x.awaited+1, b.name(), x.peer); err != nil {
			return err
		}
		x.take()
	}
	b.stop = running
	return nil
}

// meet waits at a barrier of blocks.
func (b *block) meet(s *step) bool {
	x := &b.rank.barriers[s.barrier]
	if b.at > 0 {
		return x.turn != b.turn
	}
	if x.here++; x.here == s.whole.Op.Blocks {
		x.here = 0
		x.turn++
		return true
	}
	b.at, b.turn = 1, x.turn
	b.stop, b.which = onBarrier, s.barrier
	return false
}
