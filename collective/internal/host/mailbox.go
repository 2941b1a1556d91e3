package host

import (
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft/channel"
	"github.com/weftgo/weft/engine/host"
)

// part is a pair of cache lines in which a rank hands a peer a message, or one chunk of it. A message of at
// most 104 bytes is in the part, one of 40 in its first line. Of a longer one the part says where it lies.
type part struct {
	_    [2]uint64    // a channel.Counter: the part's number, published last
	call uint64       // in a message's first part: its fingerprint, or a refusal
	data [inPart]byte // or a place
}

const (
	inPart = channel.Stride - 24
	wants  = 5
)

func (p *part) number() *channel.Counter { return (*channel.Counter)(unsafe.Pointer(p)) }
func (p *part) place() *place            { return (*place)(unsafe.Pointer(&p.data)) }

// place is where a message, or the part of it, lies.
type place struct {
	window uint64 // the sender's segment of a window; 0: its pool
	offset uint64 // there; announced: chunks follow
}

// announced is the offset in a first part that has no chunk.
const announced = 1<<64 - 1

// receipt is a cache line in which a rank tells a peer which of the peer's parts it has taken.
type receipt struct {
	// A channel.Counter: twice the number of the last part taken, or one less: this rank waits for a message
	// that begins in the part, or reads it.
	_ [2]uint64
	// differs has a bit for each of the last 64 parts: the message that begins there is not the one that
	// this rank receives, and nothing of it was moved.
	differs atomic.Uint64
	// wanted are the fingerprints of what this rank waits for, or receives instead, or its refusals.
	wanted [wants]uint64
	_      [channel.Stride - 64]byte
}

func (r *receipt) number() *channel.Counter { return (*channel.Counter)(unsafe.Pointer(r)) }

// mailboxes says how a rank's memory for messages is laid out: for each peer a receipt and parts, then a
// text and chunks for messages that lie in no window.
type mailboxes struct {
	ranks      int
	parts      int // of a peer; a power of two, and at most as many as a receipt has bits
	chunks     int
	chunkBytes int
}

// A rank has as many parts as keep its memory small, whatever the number of ranks.
const (
	mostParts  = 64
	leastParts = 4
	allParts   = 1024
	poolChunks = 16
	mostChunk  = 64 << 10
	poolShare  = 4 // of the memory to stage operands
)

func mailboxesFor(ranks, scratch int) mailboxes {
	m := mailboxes{ranks: ranks, parts: mostParts, chunks: poolChunks}
	for m.parts > leastParts && m.parts*ranks > allParts {
		m.parts /= 2
	}
	m.chunkBytes = max(64, min(mostChunk, scratch/poolShare/m.chunks)&^63)
	return m
}

func (m *mailboxes) pairBytes() int { return channel.Stride * (1 + m.parts) }
func (m *mailboxes) textAt() int    { return m.ranks * m.pairBytes() }
func (m *mailboxes) poolAt() int    { return m.textAt() + host.RefusalBytes }
func (m *mailboxes) bytes() int     { return m.poolAt() + m.chunks*m.chunkBytes }

// lines are enough for all parts that may be on their way between two ranks of different hosts, and their receipts.
func (m *mailboxes) lines() int { return 3 * m.parts }

// mailbox is what a rank has written for a peer.
type mailbox struct {
	*receipt
	parts []part
}

// of is what the rank whose memory it is has written for a peer.
func (m *mailboxes) of(mem []byte, peer int) mailbox {
	mem = mem[peer*m.pairBytes():][:m.pairBytes()]
	return mailbox{
		(*receipt)(unsafe.Pointer(unsafe.SliceData(mem))),
		unsafe.Slice((*part)(unsafe.Pointer(&mem[channel.Stride])), m.parts),
	}
}

func (b *mailbox) at(n uint64) *part { return &b.parts[n%uint64(len(b.parts))] }

func (m *mailboxes) text(mem []byte) []byte { return mem[m.textAt():][:host.RefusalBytes] }

// piece is n bytes of a rank's pool. A rank that the others have left behind may read any offset.
func (m *mailboxes) piece(mem []byte, offset uint64, n int) []byte {
	pool := mem[m.poolAt():]
	return pool[min(offset, uint64(len(pool)-n)):][:n:n]
}
