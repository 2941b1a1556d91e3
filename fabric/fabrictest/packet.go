package fabrictest

import (
	"bytes"
	"hash/maphash"
	"sync/atomic"
	"unsafe"

	"github.com/weftgo/weft/fabric/internal/provider"
)

// A packet is one write that is underway.
type packet struct {
	network   *Network
	link      *link
	from, to  *endpoint
	token     uint32
	source    []byte // the initiator's, until snapshot
	sum       uint64 // of source when it was posted
	remote    uint64
	key       uint64
	data      uint64
	hasData   bool
	early     bool // it may complete before it has landed
	completed bool
	lost      bool    // its connection has ended
	left      []piece // that have not landed, in the order in which they will
	held      []byte  // where they will land, whatever becomes of the key; nil: that is looked up again
}

// A piece is a range of a packet's bytes that lands at once.
type piece struct{ at, n int }

var hashSeed = maphash.MakeSeed()

// divide cuts a packet into pieces and shuffles them.
func (p *packet) divide() {
	random, n := p.network.random, len(p.source)
	most := max(n/32, 128)
	for at := 0; at < n; {
		size := most
		if p.network.class.Words {
			size -= int((p.remote + uint64(at) + uint64(size)) % 128) // pieces end where lines do
		} else {
			size = 1 + random.IntN(most)
		}
		size = min(size, n-at)
		p.left = append(p.left, piece{at, size})
		at += size
	}
	random.Shuffle(len(p.left), func(i, j int) { p.left[i], p.left[j] = p.left[j], p.left[i] })
}

// reach is where the packet's bytes go.
func (p *packet) reach() ([]byte, error) {
	return p.to.reach(p.remote, p.key, len(p.source), p.network.class.Unchecked)
}

// land lands the next piece, and now and then the same one once more.
func (p *packet) land() error {
	into := p.held
	if into == nil {
		var err error
		if into, err = p.reach(); err != nil {
			return err
		}
	}
	if p.network.class.Holds && !p.lost {
		p.held = into
	}
	if len(p.left) == 0 {
		return nil
	}
	next := p.left[0]
	if p.network.class.Ordered || p.completed || p.network.random.IntN(16) > 0 {
		p.left = p.left[1:]
	}
	place(into[next.at:][:next.n], p.source[next.at:][:next.n])
	return nil
}

// place copies as a device does: words whole, where they are aligned.
func place(into, from []byte) {
	for len(into) > 0 {
		to := unsafe.Pointer(unsafe.SliceData(into))
		if uintptr(to)%8 == 0 && len(into) >= 8 {
			atomic.StoreUint64((*uint64)(to), word(from))
			into, from = into[8:], from[8:]
			continue
		}
		into[0] = from[0]
		into, from = into[1:], from[1:]
	}
}

func word(b []byte) (w uint64) {
	copy((*[8]byte)(unsafe.Pointer(&w))[:], b)
	return w
}

// snapshot makes the packet independent of the initiator's memory.
func (p *packet) snapshot() {
	if !p.completed {
		p.source = bytes.Clone(p.source)
	}
}

// complete tells the initiator.
func (p *packet) complete(err error) {
	if p.completed {
		return
	}
	if maphash.Bytes(hashSeed, p.source) != p.sum {
		p.network.mistake("a source of %d bytes changed before its write completed", len(p.source))
	}
	if err == nil {
		err, p.link.broken = p.link.broken, nil
	}
	p.completed = true
	p.from.underway--
	p.from.queue(provider.Completion{Token: p.token, Err: err})
}
