package host

import (
	"unsafe"

	"github.com/weftgo/weft/channel"
)

// RefusedCall marks the call of a rank that refuses: the rest is what PutRefusal returns.
const RefusedCall = 1 << 63

// Slots is how many rounds a rank's slots hold. The package documentation says why four are enough
// and three are not.
const Slots = 4

// Slot is what one rank says in one round. It lies in shared memory, where only that rank writes
// it.
//
//	 0  the number of the round, published last, and who sleeps on it (a channel.Counter)
//	16  the call, in the round that opens an operation
//	24  40 bytes in the cache line of the number, which arrive with it: a short payload, or where the
//	    payload is in the ring
type Slot struct {
	round *channel.Counter
	Call  *uint64
	near  unsafe.Pointer
}

const (
	slotSize  = channel.Stride
	callAt    = 16
	nearAt    = 24
	NearBytes = 64 - nearAt
)

func slotAt(mem []byte, offset int) Slot {
	return Slot{
		round: channel.CounterAt(mem, offset),
		Call:  (*uint64)(unsafe.Pointer(&mem[offset+callAt])),
		near:  unsafe.Pointer(&mem[offset+nearAt]),
	}
}

func (s *Slot) InLine(n int) []byte { return unsafe.Slice((*byte)(s.near), n) }
func (s *Slot) RingAt() *uint64     { return (*uint64)(s.near) }

// Pad is a rank's memory in the owner's window: its slots, then its ring.
//
// The ring holds payloads that are longer than a slot has room for. It is written from front to
// back, round after round, so that a line is written again only when it has long left the caches of
// those who read it. Writing a line that another core still caches costs several times as much as
// writing one that has gone to the shared cache.
type Pad struct {
	slots [Slots]Slot
	Ring  []byte
}

func newPad(mem []byte) *Pad {
	b := &Pad{Ring: mem[Slots*slotSize:]}
	for i := range b.slots {
		b.slots[i] = slotAt(mem, i*slotSize)
	}
	return b
}

// RingShare is how many payloads of the greatest length a ring holds. When a rank fills the slot of
// a round, others may be reading the payloads of the three rounds before; with the one to be
// written, and the end of the ring that is skipped where a payload does not fit, five would do.
const RingShare = 8

func PadSize(ring int) int { return Slots*slotSize + ring }

// payload is where the rank put the n bytes of a round.
func (b *Pad) payload(round uint64, n int) []byte {
	s := &b.slots[round%Slots]
	if n <= NearBytes {
		return s.InLine(n)
	}
	at := *s.RingAt()
	if at > uint64(len(b.Ring)-n) {
		// The owner has gone on without this rank, which will hear of it before it returns.
		at = 0
	}
	return b.Ring[at:][:n:n]
}
