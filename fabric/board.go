package fabric

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// The board is the memory of a domain that peers write into beside regions. Each source rank has a
// part of it, which that rank and this domain alone write:
//
//	offset                 size               what                          written by
//	0                      8 * signals        values of signals             see Signal
//	up to a line           64                 a word to write into, unread  the source
//	behind it              64 * ring          requests                      the source
//
// Behind the parts lies what this domain writes from: a line for each token.

const (
	line     = 64
	ring     = 64       // requests of a rank that this one may hold
	answerAt = ring / 4 // so many executed requests are told without being asked
	most     = 1 << 10  // ranks, and what sourceBits can tell apart
	mostIDs  = 1 << 16  // signals of a peer
	wordSize = 8
)

type board struct {
	signals int
	part    int    // bytes for each source rank
	payload int    // where the lines of tokens begin
	memory  []byte // begins at a multiple of 64
}

func newBoard(ranks, signals, tokens int) board {
	b := board{signals: signals}
	b.part = b.ring() + ring*line
	b.payload = ranks * b.part
	words := make([]uint64, (b.payload+tokens*line+line)/wordSize)
	start := unsafe.Pointer(unsafe.SliceData(words))
	all := unsafe.Slice((*byte)(start), len(words)*wordSize)
	b.memory = all[-uintptr(start)&(line-1):][:b.payload+tokens*line]
	return b
}

// unread is the offset, in a part, of the word that nothing reads.
func (b *board) unread() int { return (b.signals*wordSize + line - 1) / line * line }

// ring is the offset of the requests in a part.
func (b *board) ring() int { return b.unread() + line }

// signal is the word of a source's signal.
func (b *board) signal(source, id int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&b.memory[source*b.part+id*wordSize]))
}

// line is what a token's write may carry.
func (b *board) line(token uint32) []byte { return b.memory[b.payload+int(token)*line:][:line] }

// request is a source's request of a number.
func (b *board) request(source int, number uint64) request {
	return decodeRequest(b.memory[source*b.part+b.ring()+int(number%ring)*line:])
}

// A request asks the owner of a board to do what no write can: to publish a signal behind writes that
// arrive in any order, or to add to a word.
type request struct {
	kind   uint64
	key    uint64 // of the region to add to
	offset uint64 // in it; or the signal
	value  uint64
	covers uint64 // how many writes must have arrived before
}

const (
	requestSignal = 1
	requestAdd    = 2
	requestMark   = 3 // nothing but an answer: the writes that it covers have arrived
)

func (r request) encode(into []byte) {
	for i, v := range []uint64{r.kind, r.key, r.offset, r.value, r.covers} {
		binary.LittleEndian.PutUint64(into[i*wordSize:], v)
	}
}

const requestSize = 5 * wordSize

func decodeRequest(b []byte) request {
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[i*wordSize:]) }
	return request{word(0), word(1), word(2), word(3), word(4)}
}

// Data is what a write brings to the target's queue, in 32 bits: kind, source rank and a number. Four
// bytes are what every network carries. Where it carries eight, the upper ones are the target's password.
const (
	kindBits   = 2
	sourceBits = 10
	numberBits = 32 - kindBits - sourceBits

	kindWrite   = 0 // the number of the write, where writes arrive in any order
	kindRaise   = 0 // the signal that this raises, and a count of such, where writes arrive in theirs
	kindRequest = 1 // the number of the request
	kindAnswer  = 2 // how many requests were executed, and above them whether one was refused
	kindNotice  = 3 // how many signals were raised; it wakes the target

	answerBits = numberBits - 1
	refused    = 1 << answerBits

	idBits = 16                    // of a signal in a raise, below the count
	absurd = 1 << (numberBits - 1) // so many signals were never raised more: who hears of it has lost some, too
)

func data(kind uint32, source int, number uint64) uint64 {
	return uint64(kind<<(32-kindBits) | uint32(source)<<numberBits | uint32(number)&(1<<numberBits-1))
}

func undata(all uint64) (kind uint32, source int, number uint32) {
	d := uint32(all)
	return d >> (32 - kindBits), int(d >> numberBits & (1<<sourceBits - 1)), d & (1<<numberBits - 1)
}
