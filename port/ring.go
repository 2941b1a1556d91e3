package port

import (
	"math/bits"
	"sync/atomic"
)

// A ring carries triggers from many pushers to the proxy. Bit 63 of each word of a slot is the parity of
// the slot's lap: ones in the first. So a slot is whole when all of its words have it, in whatever
// order they landed; a ring of zeros is empty, and nothing is ever cleared.
//
// A pusher claims a slot only when there is room, and then fills it without waiting: who gives up has
// claimed nothing, and the proxy never waits for a slot.
type ring struct {
	slots []slot
	mask  uint64
	lap   uint // log2 of the number of slots
	head  *atomic.Uint64
	tail  *atomic.Uint64 // what the proxy has taken, as pushers see it; with the top bit, no room any more
	taken uint64         // the same, of the proxy
	// flushed is told that a channel has flushed what was pushed up to a position.
	flushed func(l *lane, position uint64)
}

type slot [triggerWords]atomic.Uint64

// shut in a tail says that nothing is taken any more.
const shut = uint64(1) << 63

// newRing lays a ring over slots, of which there is a power of two.
func newRing(slots []slot, head, tail *atomic.Uint64) *ring {
	n := uint64(len(slots))
	return &ring{slots: slots, mask: n - 1, lap: uint(bits.TrailingZeros64(n)), head: head, tail: tail}
}

// parityOf is the parity of a position.
func (r *ring) parityOf(position uint64) uint64 { return ^(position >> r.lap) << 63 }

// push claims a slot and fills it. It returns the position, and whether there was room.
func (r *ring) push(t trigger) (position uint64, ok bool) {
	for {
		tail := r.tail.Load() // before the head, which is then never behind it
		h := r.head.Load()
		if tail&shut != 0 || h-tail > r.mask {
			return 0, false
		}
		if r.head.CompareAndSwap(h, h+1) {
			s, p, words := &r.slots[h&r.mask], r.parityOf(h), t.encode()
			for i := range words {
				s[i].Store(words[i] | p)
			}
			return h, true
		}
	}
}

// next is the trigger that the proxy takes next, if it is whole.
func (r *ring) next() (t trigger, ok bool) {
	s, p := &r.slots[r.taken&r.mask], r.parityOf(r.taken)
	var words [triggerWords]uint64
	for i := range words {
		words[i] = s[i].Load()
		if words[i]&parity != p {
			return t, false
		}
	}
	return decode(words), true
}

// publish gives taken slots back to pushers.
func (r *ring) publish() {
	if r.tail.Load() != r.taken {
		r.tail.Store(r.taken)
	}
}
