package proxied

import (
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/engine/gpu/proxy"
	"github.com/weftgo/weft/internal/simd"
)

// bridge takes bytes from the GPU to memory of the host and back, through two areas of pinned memory.
type bridge struct {
	pinned *cuda.HostMemory
	hand   *proxy.Hand
	done   [2]proxy.Mark // by area: the last copy from or to it
}

// areaBytes is the size of an area: a few hundred orders' time on the bus, so that turns cost little.
const areaBytes = 2 << 20

// A move is bytes of the GPU and their place on the host.
type move struct {
	gpu  cuda.Pointer
	host []byte
}

// placed is a move, or a part of one, in an area.
type placed struct {
	move
	at int
}

// begin begins an operation.
func (b *bridge) begin(h *proxy.Hand) { b.hand, b.done = h, [2]proxy.Mark{} }

// fill places as many bytes of the moves as an area takes. A place has the address of the GPU's bytes within 16, so
// that they are copied in units of those. It returns what is left.
func fill(moves []move, area int, all []placed) (now []placed, rest []move) {
	now = all[:0]
	at := 0
	for len(moves) > 0 {
		m := &moves[0]
		if len(m.host) == 0 {
			moves = moves[1:]
			continue
		}
		at = (at+15)&^15 + int(m.gpu%16)
		n := min(len(m.host), areaBytes-at)
		if n <= 0 {
			break
		}
		now = append(now, placed{move{m.gpu, m.host[:n]}, area*areaBytes + at})
		at += n
		m.gpu, m.host = m.gpu.Add(n), m.host[n:]
	}
	return now, moves
}

// fetch takes bytes from the GPU. The host sees them when it returns.
func (b *bridge) fetch(moves ...move) error {
	var turns [2][]placed
	for i := 0; ; i++ {
		area := i % 2
		if err := b.hand.Await(b.done[area]); err != nil { // of a store
			return err
		}
		turns[area], moves = fill(moves, area, turns[area])
		for _, p := range turns[area] {
			var err error
			if b.done[area], err = b.hand.Copy(b.pinned.Pointer().Add(p.at), p.gpu, len(p.host)); err != nil {
				return err
			}
		}
		if before := turns[1-area]; len(before) > 0 {
			if err := b.hand.Await(b.done[1-area]); err != nil {
				return err
			}
			for _, p := range before {
				copyBytes(p.host, b.pinned.Bytes()[p.at:])
			}
			turns[1-area] = before[:0]
		}
		if len(turns[area]) == 0 {
			return nil
		}
	}
}

// store takes bytes to the GPU. They are read when it returns, and there before the operation ends.
func (b *bridge) store(moves ...move) error {
	var now []placed
	for i := 0; ; i++ {
		area := i % 2
		if now, moves = fill(moves, area, now); len(now) == 0 {
			return nil
		}
		if err := b.hand.Await(b.done[area]); err != nil {
			return err
		}
		for _, p := range now {
			copyBytes(b.pinned.Bytes()[p.at:], p.host)
			var err error
			if b.done[area], err = b.hand.Copy(p.gpu, b.pinned.Pointer().Add(p.at), len(p.host)); err != nil {
				return err
			}
		}
	}
}

// copyBytes copies as many bytes as the shorter of the two has.
func copyBytes(dst, src []byte) {
	n := min(len(dst), len(src))
	simd.Copy(pointer(dst), pointer(src), n, false)
}

// pointer is where bytes of the host stand.
func pointer(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// bytesOf views n bytes of the host.
func bytesOf(p unsafe.Pointer, n int) []byte { return unsafe.Slice((*byte)(p), n) }
