package host

import (
	"unsafe"

	"github.com/weftgo/weft/channel"
)

// headers is how many headers a pad has, one for each of as many rounds that follow each other. The
// package documentation says why four are enough and three are not.
const headers = 4

// header is what a rank says in one round. It lies in shared memory, where that rank alone writes
// it, and fills one cache line: a reader that sees the number has the rest already.
//
//	 0  the number of the round, published last (a channel.Counter)
//	12  the choice, in a round that opens an operation
//	16  the call, in the same
//	24  40 bytes: the payload, or its offset in the ring
type header struct {
	round  *channel.Counter
	choice *uint32
	call   *uint64
	inLine unsafe.Pointer
}

const (
	headerBytes = channel.Stride
	ringAt      = headers*headerBytes + channel.Stride
	choiceAt    = channel.CounterBytes
	callAt      = 16
	inLineAt    = 24
	inLineBytes = 64 - inLineAt
)

func headerAt(mem []byte, offset int) header {
	return header{
		round:  channel.CounterAt(mem, offset),
		choice: (*uint32)(unsafe.Pointer(&mem[offset+choiceAt])),
		call:   (*uint64)(unsafe.Pointer(&mem[offset+callAt])),
		inLine: unsafe.Pointer(&mem[offset+inLineAt]),
	}
}

func (h *header) payload(n int) []byte { return unsafe.Slice((*byte)(h.inLine), n) }
func (h *header) offset() *uint64      { return (*uint64)(h.inLine) }

// pad is a rank's memory of the owner's window: headers, a counter, the ring, then what the owner
// uses itself.
//
// The ring has the payloads that a header has no room for. A rank writes it from front to back,
// round after round, so that a line has long left the readers' caches when it is written again:
// writing a line that another core still caches costs several times as much.
type pad struct {
	headers [headers]header
	left    *channel.Counter // the round of the last operation that this rank has left
	ring    []byte
	own     []byte
}

// RingShare is how many payloads of the greatest length a ring holds. A rank that fills a header may
// write beside payloads of three rounds that peers still read. With its own payload, and the end of
// the ring that it skips where a payload does not fit, five would do.
const RingShare = 8

func newPad(mem []byte, ring int) *pad {
	p := &pad{left: channel.CounterAt(mem, headers*headerBytes), ring: mem[ringAt:][:ring:ring], own: mem[ringAt+ring:]}
	for i := range p.headers {
		p.headers[i] = headerAt(mem, i*headerBytes)
	}
	return p
}

func (p *pad) at(round uint64) *header { return &p.headers[round%headers] }

// payload is where the rank put the n bytes of a round.
func (p *pad) payload(round uint64, n int) []byte {
	h := p.at(round)
	if n <= inLineBytes {
		return h.payload(n)
	}
	at := *h.offset()
	if at > uint64(len(p.ring)-n) {
		// The peer has gone on without this rank, which hears of that before it returns.
		at = 0
	}
	return p.ring[at:][:n:n]
}
