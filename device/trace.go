package device

import (
	"encoding/binary"
	"math/bits"
)

// TraceDefine is the preprocessor's name that has kernels trace: see trace.cuh. Without it they have no instruction of
// it.
const TraceDefine = "WEFT_TRACE"

// TraceRecordBytes is the size of a [TraceRecord], and TraceSites how many a line has before those of arrivals.
const (
	TraceRecordBytes = 16
	TraceSites       = 16
)

// TraceRecord is a record of a traced lane.
type TraceRecord struct {
	Time   uint64 // of %globaltimer, in nanoseconds
	Epoch  uint32 // the low half of the operation's number
	Site   uint8  // a trace.Site
	Peer   uint8  // TraceNoPeer: none
	Detail uint8  // of a beginning: the operation; of signals and arrivals: the phase
}

const traceCheck = 0x9E3779B1

// ParseTraceRecord reads a record as trace.cuh lays it out. It is false if none is there, or not all of it yet.
func ParseTraceRecord(b []byte) (r TraceRecord, ok bool) {
	low, high := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	epoch, word := binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])
	r = TraceRecord{uint64(high)<<32 | uint64(low), epoch, uint8(word & 15), uint8(word >> 4), uint8(word >> 12)}
	return r, r.Site != 0 && (low^high<<7^epoch<<13)*traceCheck>>20 == word>>20
}

// TraceNoPeer is the peer of records that concern no peer, or all.
const TraceNoPeer = 255

// TraceRing is how the ring of a traced lane is laid out. It ends where the lane's [State] begins, and numbers go
// down: operation e is the (e modulo Operations)-th before the State.
type TraceRing struct {
	Counts, Ranks int
	Operations    int // a power of two
}

// traceOperations is the most operations that a ring has, and traceBytes how large it is at the most, if it has 16.
const (
	traceOperations = 256
	traceBytes      = 4 << 20
)

// NewTraceRing is the ring of a lane of so many counts and ranks.
func NewTraceRing(counts, ranks int) TraceRing {
	r := TraceRing{Counts: counts, Ranks: ranks, Operations: 16}
	for r.Operations < traceOperations && 2*r.Bytes() <= traceBytes {
		r.Operations *= 2
	}
	return r
}

// LineBytes is the size of a block's line.
func (r TraceRing) LineBytes() int { return ((TraceSites+2*r.Ranks)*TraceRecordBytes + 127) &^ 127 }

// OperationBytes is the size of an operation's lines.
func (r TraceRing) OperationBytes() int { return r.Counts * r.LineBytes() }

// Bytes is the size of the ring, a multiple of 128.
func (r TraceRing) Bytes() int { return r.Operations * r.OperationBytes() }

// Word is State.Trace of a lane with the ring.
func (r TraceRing) Word() uint32 {
	return uint32(r.OperationBytes()/128)<<5 | uint32(bits.TrailingZeros(uint(r.Operations)))
}

// At is where an operation's lines begin, in bytes from the ring's beginning.
func (r TraceRing) At(epoch uint64) int {
	return (r.Operations - 1 - int(epoch&uint64(r.Operations-1))) * r.OperationBytes()
}
