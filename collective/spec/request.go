package spec

import (
	"math/bits"

	"github.com/weftgo/weft"
)

// Request is what the choice of an algorithm depends on. It is the same on every rank: because the ranks'
// calls must agree, or, where operands lie, because ranks have told each other.
type Request struct {
	Collective Collective
	Variant    Variant
	Op         weft.Op    // of a reduction
	DType      weft.DType // of the elements
	Windows    Windows    // known once all ranks have entered; empty before
	MixedPlace bool       // some ranks are in place, and others are not; known as Windows are
	Count      int        // elements of a part; 0 in a V form
	Bytes      int        // the same in bytes; of a V form whose counts all ranks have, of the longest part
	Root       int
	Ranks      int // ranks that take part
	Hosts      int // of these ranks; 0 where all share memory
	Slot       int // bytes of staging that an operation has; on the host, that a round carries
	Able       Abilities
	// Sent is the most bytes that a rank sends of its input, to all others together; 0 where ranks do not know.
	Sent int
}

// Abilities are what the GPUs of all ranks can do.
type Abilities uint8

const (
	// BulkCopies move memory to and from shared memory without registers: Hopper and later.
	BulkCopies Abilities = 1 << iota
	// Lines: 128 bytes that a warp stores at once arrive at any rank at once.
	Lines
)

// Request is the call's.
func (c *Call) Request(ranks, slot int) Request {
	q := Request{Collective: c.Collective, DType: c.DType, Ranks: ranks, Slot: slot}
	if c.Collective.Reduces() {
		q.Op = c.Op
	}
	switch {
	case c.Norm != nil:
		q.Variant = WithNorm
	case c.Words.Given():
		q.Variant = WithWords
	}
	if c.Collective.Rooted() {
		q.Root = c.Root
	}
	if c.Collective == AllToAllV { // whose counts ranks do not know of each other
		return q
	}
	if !c.Collective.Varies() {
		q.Count = c.Count
	}
	q.Bytes, q.Sent = c.Bytes, c.Bytes
	if c.Collective.InParts() {
		q.Sent *= ranks
	}
	return q
}

// Class is the number of the request's class: sizes up to the same power of two, and more than half of it. No
// bytes are as one.
func (q *Request) Class() int {
	if q.Sent <= 1 {
		return 0
	}
	return bits.Len(uint(q.Sent - 1))
}

// Typical is the request of the middle of its class, for which costs are compared: all sizes of a class
// have the same order of algorithms.
func (q *Request) Typical() Request {
	t := *q
	t.Root = 0
	class := q.Class()
	if class < 2 {
		t.SetSent(1 << class)
	} else {
		t.SetSent(3 << (class - 2))
	}
	return t
}

// SetSent makes the request one in which a rank sends so many bytes, and all that follows from that.
func (q *Request) SetSent(bytes int) {
	q.Sent, q.Bytes = bytes, bytes
	if q.Collective.InParts() {
		q.Bytes /= max(q.Ranks, 1)
	}
	q.Count = q.Bytes / max(q.DType.Size(), 1)
}

// Windows says which operands lie in windows, where peers can reach them without a copy.
type Windows uint8

const (
	// Inputs is set when every input that others need lies in a window: Broadcast's at the root
	// only.
	Inputs Windows = 1 << iota
	// Outputs is set when every rank's output does.
	Outputs
	// InPlace is set when some rank's output is its input.
	InPlace
	// Multicast is set when every operand that lies in a window lies in one with multicast addresses
	// ([weft.Window.Multicast]), and no rank is masked.
	Multicast
)

// String names the parts: "inputs+outputs".
func (w Windows) String() string {
	s := ""
	for i, name := range [...]string{"inputs", "outputs", "in place", "multicast"} {
		if w>>i&1 != 0 {
			if s != "" {
				s += "+"
			}
			s += name
		}
	}
	return s
}
