package spec

import "github.com/weftgo/weft"

// Request is what the choice of an algorithm depends on. It is the same on every rank: its first
// part because the ranks' calls must agree, its second because they have told each other.
type Request struct {
	Collective Collective
	Op         weft.Op    // of a reduction
	DType      weft.DType // of the elements
	Count      int        // elements of a part; 0 in a V form
	Bytes      int        // the same in bytes
	Root       int
	Ranks      int // ranks that take part
	Slot       int // bytes that a rank can stage at a time

	Windows Windows // known once all ranks have entered; empty before

	Sent int // on the host: the most bytes that a rank sends, to all others together
}

// Request is the call's.
func (c *Call) Request(ranks, slot int) Request {
	q := Request{Collective: c.Collective, DType: c.DType, Ranks: ranks, Slot: slot}
	if c.Collective.Reduces() {
		q.Op = c.Op
	}
	if c.Collective.Rooted() {
		q.Root = c.Root
	}
	if !c.Collective.Varies() {
		q.Count, q.Bytes = c.Count, c.Bytes
	}
	return q
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
)

// String names the parts: "inputs+outputs".
func (w Windows) String() string {
	s := ""
	for i, name := range [...]string{"inputs", "outputs", "in place"} {
		if w>>i&1 != 0 {
			if s != "" {
				s += "+"
			}
			s += name
		}
	}
	return s
}
