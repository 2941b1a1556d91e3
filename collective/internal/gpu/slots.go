package gpu

import (
	"math/bits"

	"github.com/weftgo/weft"
)

// vectorBytes is what a thread moves at a time.
const vectorBytes = 16

// vectors is how many vectors so many bytes are, of which the last may be shorter.
func vectors(n int) int { return (n + vectorBytes - 1) / vectorBytes }

// encoding is how data travels in slots: those of encodings.cuh.
type encoding int

const (
	words   encoding = 1 + iota // a word of ones is "not there yet"
	doubles                     // the same with words of 64 bits
	pairs                       // any bytes: each four have a word beside them
	encodings
)

func (e encoding) String() string {
	return [...]string{words: "words", doubles: "doubles", pairs: "pairs"}[e]
}

// encodingOf is that of the elements of a type.
func encodingOf(t weft.DType) encoding {
	switch t {
	case weft.BFloat16, weft.Float16, weft.Float32, weft.Float8E4M3, weft.Float8E5M2:
		return words
	case weft.Float64:
		return doubles
	default:
		return pairs
	}
}

// lineBytes is what GPUs store at a time: turns and the slots of a rank begin at multiples of it.
const lineBytes = 128

// slotSize is how many bytes of slots so many bytes of data take.
func (e encoding) slotSize(n int) int {
	return (vectors(n)*e.vectorSlot() + lineBytes - 1) &^ (lineBytes - 1)
}

func (e encoding) vectorSlot() int {
	if e == pairs {
		return 2 * vectorBytes
	}
	return vectorBytes
}

// capacity is how many bytes of data fit into so many bytes of slots: whole vectors.
func (e encoding) capacity(slots int) int {
	return slots &^ (lineBytes - 1) / e.vectorSlot() * vectorBytes
}

// turns are those of slots, which operations use in turn.
const turns = 3

// sideShare is how many bytes of slots have a byte of side words.
const sideShare = 4

// laneArgs are what kernels of all collectives have: the Lane of lane.cuh.
type laneArgs struct {
	state, own       uint64
	slots, turnBytes uint64
	cleared, sides   uint64
	heard            uint64
	counts, clear    uint32
	op, plain        uint32
}

// operand is memory of the caller's: the Operand of operands.cuh.
type operand struct {
	at, bytes uint64
	unit, _   uint32
}

// operandAt is an operand whose parts begin at multiples of step from its beginning.
func operandAt(at uint64, bytes, step int) operand {
	return operand{at: at, bytes: uint64(bytes), unit: uint32(unitOf(at | uint64(step)))}
}

// unitOf is the greatest power of two, at most a vector, that divides a number.
func unitOf(n uint64) uint64 { return 1 << bits.TrailingZeros64(n|vectorBytes) }
