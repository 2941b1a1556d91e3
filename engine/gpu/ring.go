package gpu

import (
	"math/bits"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/engine"
)

// Ring hands out the buffers that operations receive into, in the order that peers and graphs need.
// A caller holds a buffer from the operation that filled it until it is put back.
//
// Where peers write into the buffers, every rank takes the same buffer for an operation: the ring
// is ordered, and hands out the next in turn. A peer must then know which buffers are free here:
// Free sends that with every operation. Otherwise any free buffer will do.
//
// Its methods are for the owner's operations, which run one at a time.
type Ring struct {
	buffers *engine.Buffers
	ordered bool
	taken   []uint64 // by buffer: the capture in which it was taken last, or 0
	next    int      // the next buffer
}

// MaxOrdered is the most buffers of an ordered ring: sets of them are words of 32 bits, and one
// stays free.
const MaxOrdered = 31

// NewRing makes a ring of buffers.
func NewRing(b *engine.Buffers, ordered bool) *Ring {
	return &Ring{buffers: b, ordered: ordered, taken: make([]uint64, b.Len())}
}

// Take takes a free buffer. It fails, and names op, if no buffer is free or, in an ordered ring, if
// the next one is held. The turn goes on with Keep.
func (r *Ring) Take(op string) (int, error) {
	n := r.buffers.Len()
	if !r.ordered {
		if i, ok := r.buffers.Take(); ok {
			return i, nil
		}
	} else if r.buffers.TakeAt(r.next) {
		return r.next, nil
	} else if bits.OnesCount32(r.Held()) < n {
		return 0, weft.Unsupportedf("%s: the memory for received rows whose turn it is is in use: release "+
			"received tensors in the order in which they came, "+
			"or make the handle with more than %d Live", op, n)
	}
	return 0, weft.Unsupportedf("%s: all memory for received rows is in use: release a received tensor, or "+
		"make the handle with more than %d Live", op, n)
}

// Keep says that the operation has been enqueued for which a buffer was taken, in a capture or (0)
// in none.
func (r *Ring) Keep(i int, capture uint64) {
	r.next = (i + 1) % len(r.taken)
	r.taken[i] = capture
}

// Held is the set of the first 32 buffers that are held, one bit each.
func (r *Ring) Held() (set uint32) {
	for i := range min(r.buffers.Len(), 32) {
		if r.buffers.Held(i) {
			set |= 1 << uint(i)
		}
	}
	return set
}

// Free is the set of buffers that have no reader after the enqueued work: an ordered ring sends it
// to peers. It is empty for other rings.
//
// Inside a capture only buffers are free that this same capture took and that were put back: a
// replay may run while callers hold others.
func (r *Ring) Free(capture uint64) (set uint32) {
	if !r.ordered {
		return 0
	}
	set = (1<<uint(len(r.taken)) - 1) &^ r.Held()
	for i, taken := range r.taken {
		if capture != 0 && taken != capture {
			set &^= 1 << uint(i)
		}
	}
	return set
}

// restart begins the turn anew with a buffer. A capture that goes on begins with other operations
// than a replay will make, so it has taken none.
func (r *Ring) restart(next int) {
	r.next = next % len(r.taken)
	clear(r.taken)
}
