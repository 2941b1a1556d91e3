package ep

import (
	"context"
	"sync/atomic"

	"github.com/weftgo/weft"
)

// pool hands out places of a window for received tensors. Received rows lie in a window so that combine can take them, or what was computed in
// their place, without a copy. Every place has room for the largest tensor: with places cut to measure, the gaps between a few that are held could
// each be too small for the next.
type pool struct {
	window  *weft.Window
	size    int // of a place
	batches *batches
}

// get returns the offset of a free place.
func (p *pool) get() (int, bool) {
	i, ok := p.batches.take()
	return i * p.size, ok
}

func (p *pool) put(offset int) { p.batches.put(offset / p.size) }

// batches says what the places for received rows hold. A place is given back by any goroutine; all else is for the handle's operations, of which one runs at a time.
type batches struct {
	places []batch
	last   uint32    // the generation that was given last
	bases  []uintptr // where the places begin; and where they once did whose rows may still be held
	size   uintptr   // of a place
}

// batch is what a place holds.
type batch struct {
	generation atomic.Uint32 // 0: the place is free
	routing    uint64        // the epoch of the Routing by which its rows came, or noRouting
}

const (
	// noRouting is the epoch of no Routing: that of a place whose rows have not come.
	noRouting = ^uint64(0)
	// NoGeneration is the [weft.Tensor].Generation of no batch: rows that were released, of which only that is known.
	NoGeneration = ^uint32(0)
)

// take takes the first free place, whose memory is the likeliest to be in a cache.
func (b *batches) take() (place int, ok bool) {
	for i := range b.places {
		if b.takeAt(i) {
			return i, true
		}
	}
	return 0, false
}

// takeAt takes a place, if it is free.
func (b *batches) takeAt(place int) bool {
	p := &b.places[place]
	if p.generation.Load() != 0 {
		return false
	}
	if b.last++; b.last == NoGeneration {
		b.last = 1
	}
	p.routing = noRouting
	p.generation.Store(b.last)
	return true
}

// fill says that a place which was taken has the rows that come by a Routing, and returns their generation.
func (b *batches) fill(place int, r *Routing) uint32 {
	p := &b.places[place]
	p.routing = r.epoch
	return p.generation.Load()
}

// put takes a place back.
func (b *batches) put(place int) { b.places[place].generation.Store(0) }

// held reports whether somebody has a place.
func (b *batches) held(place int) bool { return b.places[place].generation.Load() != 0 }

// any reports whether somebody has one at all.
func (b *batches) any() bool {
	for i := range b.places {
		if b.held(i) {
			return true
		}
	}
	return false
}

// checkBatch refuses rows, of so many bytes, in memory for received rows that does not hold those of the Routing any more.
func (h *Handle) checkBatch(op, what string, r *Routing, t weft.Tensor, bytes int) error {
	b := &h.batches
	from := uintptr(t.Data)
	to, size := from+uintptr(bytes), b.size*uintptr(len(b.places))
	for _, base := range b.bases {
		if to <= base || from >= base+size || from == to {
			continue
		}
		for i := (max(from, base) - base) / b.size; i < uintptr(len(b.places)) && base+i*b.size < to; i++ {
			p, holds := &b.places[i], ""
			switch g := p.generation.Load(); {
			case g == 0:
				holds = "was released"
			case p.routing != r.epoch:
				holds = "holds another routing's batch"
			case t.Generation != 0 && t.Generation != g:
				holds = "holds another batch of the routing by now"
			default:
				continue
			}
			return weft.Invalidf("%s: the %s lie in memory for received rows that %s; give what was received by this routing and not released, or memory of your own",
				op, what, holds)
		}
	}
	return nil
}

// slab makes what operations return, many at a time. None is used twice: who releases one again must not release another's.
type slab[T any] struct{ left []T }

func (s *slab[T]) take() *T {
	if len(s.left) == 0 {
		s.left = make([]T, 32)
	}
	v := &s.left[0]
	s.left = s.left[1:]
	return v
}

// blockShape is the memory of one received tensor.
type blockShape struct {
	rows     int
	scalesAt int64
	bytes    int64
}

func newBlockShape(s Spec, rows int) blockShape {
	b := blockShape{rows: rows, scalesAt: align(int64(rows) * int64(s.rowBytes()))}
	b.bytes = max(64, b.scalesAt+align(int64(rows)*int64(s.scaleBytes())))
	return b
}

// stage is a window for operands that peers pull from. It may be written again once all peers have finished the epoch that last used it; that is
// asked when it is needed, not when the operation ends.
type stage struct {
	window *weft.Window
	epoch  uint64 // the epoch that last used it; 0 = none
}

// claim waits until the stage may be written, for use in the epoch.
func (s *stage) claim(ctx context.Context, h *host, epoch uint64, op string) error {
	if s.epoch != 0 {
		if err := h.awaitDone(ctx, s.epoch, op); err != nil {
			return err
		}
	}
	s.epoch = epoch
	return nil
}

func (s *stage) forget() {
	if s != nil {
		s.epoch = 0
	}
}
