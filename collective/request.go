package collective

import (
	"fmt"

	"github.com/weftgo/weft"
)

// Collective is a kind of operation.
type Collective uint8

// The collectives.
const (
	Barrier Collective = iota
	AllReduce
	AllGather
	Broadcast
	collectives
)

var collectiveNames = [collectives]string{"barrier", "all-reduce", "all-gather", "broadcast"}

// String is the collective's name: "all-reduce".
func (c Collective) String() string {
	if c >= collectives {
		return fmt.Sprintf("collective(%d)", uint8(c))
	}
	return collectiveNames[c]
}

// Request is what the choice of an algorithm depends on. It is the same on every rank: its first
// part because the ranks' calls must agree, its second because they have told each other.
type Request struct {
	Collective Collective
	Op         weft.Op    // AllReduce
	DType      weft.DType // of the elements
	Count      int        // elements of one rank's input
	Bytes      int        // the same in bytes
	Root       int        // Broadcast
	Ranks      int        // ranks that take part
	Slot       int        // payload bytes that one round can carry

	Windows Windows // known once all ranks have entered; empty before
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

// A fingerprint is a call in one word, nothing lost: equal words are equal calls.
//
//	63      0: see package host
//	58..62  collective
//	53..57  element type
//	50..52  reduction
//	44..49  root
//	0..43   elements of one rank's input
type fingerprint uint64

const (
	countBits  = 44
	maxElems   = 1<<countBits - 1
	rootShift  = countBits
	opShift    = rootShift + 6
	dtypeShift = opShift + 3
	kindShift  = dtypeShift + 5
)

func (q *Request) fingerprint() fingerprint {
	return fingerprint(q.Collective)<<kindShift | fingerprint(q.DType)<<dtypeShift | fingerprint(q.Op)<<opShift |
		fingerprint(q.Root)<<rootShift | fingerprint(q.Count)
}

// differs says how a peer's call differs from this rank's.
func differs(own, peer uint64) string {
	return fmt.Sprintf("it calls %v, this rank %v", fingerprint(peer), fingerprint(own))
}

// String says the call in words: "all-reduce sum of 12 fp32".
func (f fingerprint) String() string {
	kind := Collective(f >> kindShift & 31)
	what := fmt.Sprintf("%d %v", uint64(f&maxElems), weft.DType(f>>dtypeShift&31))
	switch kind {
	case Barrier:
		return "barrier"
	case AllReduce:
		return fmt.Sprintf("all-reduce %v of %s", weft.Op(f>>opShift&7), what)
	case Broadcast:
		return fmt.Sprintf("broadcast of %s from rank %d", what, f>>rootShift&63)
	default:
		return fmt.Sprintf("%v of %s", kind, what)
	}
}
