package channel

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"
)

// Packets carry their flag inside the data: each 8-byte word holds 4 bytes of payload and the
// 32-bit number of the round, written by one store. A reader knows from the word itself that the
// payload has arrived, so a message costs one trip of the cache line and no fence. The price is
// twice the memory; packets are for messages of up to a few kilobytes.
//
// A buffer has two halves, used by odd and even rounds. Invariant: a rank writes round n only after
// the peer has read round n-2. Reading the peer's round n-1 proves that if the peer reads each
// round before it writes the next, as two ranks that exchange messages do. An empty message is one
// word for that reason. After an exchange that failed, the two ranks may be in different rounds:
// Packets can then no longer be used.
type Packets struct {
	peer    int
	in, out []byte
	half    int // bytes of payload in one half
	round   uint32
	waiter  *Waiter
}

// PacketBytes is the size of the memory that Packets with messages of up to payload bytes need on
// each side.
func PacketBytes(payload int) int { return 2 * 2 * ((max(payload, 1) + 3) &^ 3) }

// NewPackets makes a packet channel from zeroed memory: in lies in this rank's memory and is
// written by the peer, out lies in the peer's. Both have [PacketBytes] of the same payload and are
// 8-byte aligned.
func NewPackets(w *Waiter, peer int, in, out []byte) (*Packets, error) {
	if len(in) != len(out) || len(in)%16 != 0 || len(in) == 0 {
		return nil, fmt.Errorf("packet buffers of %d and %d bytes: want two of the same size, a multiple of 16",
			len(in), len(out))
	}
	if uintptr(unsafe.Pointer(&in[0]))%8 != 0 || uintptr(unsafe.Pointer(&out[0]))%8 != 0 {
		return nil, fmt.Errorf("packet buffers must be 8-byte aligned")
	}
	return &Packets{peer: peer, in: in, out: out, half: len(in) / 4, round: 0, waiter: w}, nil
}

func (p *Packets) word(mem []byte, round uint32, i int) *atomic.Uint64 {
	off := int(round&1)*2*p.half + 8*i
	return (*atomic.Uint64)(unsafe.Pointer(&mem[off]))
}

// lastRounds begins the last two rounds before the numbers start again. Each rank writes its half
// whole: a word that no message has written since then would still carry a number that is about to
// be used again.
const lastRounds = math.MaxUint32 - 1

// Exchange sends data and receives as many bytes into recv (both of the same length on both ranks)
// as one round.
func (p *Packets) Exchange(ctx context.Context, recv, data []byte) error {
	if len(data) > p.half {
		return fmt.Errorf("packet message of %d bytes: the channel carries up to %d", len(data), p.half)
	}
	if len(recv) != len(data) {
		return fmt.Errorf("packet exchange of %d bytes into %d", len(data), len(recv))
	}
	p.round++
	if p.round == 0 { // 0 is what fresh memory holds
		p.round = 2
	}
	flag := uint64(p.round) << 32
	words := max(1, (len(data)+3)/4)
	written := words
	if p.round >= lastRounds {
		written = p.half / 4
	}
	for i := range written {
		w := p.word(p.out, p.round, i)
		release(unsafe.Pointer(w))
		w.Store(flag | uint64(load32(data[min(4*i, len(data)):])))
	}
	for i := range words {
		w := p.word(p.in, p.round, i)
		v := w.Load()
		if uint32(v>>32) != p.round {
			var err error
			if v, err = p.await(ctx, w); err != nil {
				return err
			}
		}
		acquire(unsafe.Pointer(w))
		store32(recv[min(4*i, len(recv)):], uint32(v))
	}
	return nil
}

// await uses the Waiter's policy and its reasons to end for a word that is no Counter.
func (p *Packets) await(ctx context.Context, w *atomic.Uint64) (uint64, error) {
	var v uint64
	round := p.round
	err := p.waiter.Until(ctx, "packet exchange", p.peer, func() bool {
		v = w.Load()
		return uint32(v>>32) == round
	})
	return v, err
}

func load32(b []byte) uint32 {
	if len(b) >= 4 {
		return binary.LittleEndian.Uint32(b)
	}
	var w [4]byte
	copy(w[:], b)
	return binary.LittleEndian.Uint32(w[:])
}

func store32(b []byte, v uint32) {
	if len(b) >= 4 {
		binary.LittleEndian.PutUint32(b, v)
		return
	}
	var w [4]byte
	binary.LittleEndian.PutUint32(w[:], v)
	copy(b, w[:])
}
