package ep

import (
	"context"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/engine"
)

// pool hands out places of a window for received tensors. Received rows lie in a window so that
// combine can take them, or what was computed in their place, without a copy. Every place has room
// for the largest tensor: with places cut to measure, the gaps between a few that are held could
// each be too small for the next.
type pool struct {
	window  *weft.Window
	size    int // of a place
	buffers *engine.Buffers
}

// get returns the offset of a free place.
func (p *pool) get() (int, bool) {
	i, ok := p.buffers.Take()
	return i * p.size, ok
}

func (p *pool) put(offset int) { p.buffers.Put(offset / p.size) }

// NoGeneration is the [weft.Tensor].Generation of no batch: rows that were released, of which only
// that is known.
const NoGeneration = engine.NoGeneration

// checkBatch refuses rows, of so many bytes, in memory for received rows that does not hold those
// of the Routing any more, or is another handle's.
func (h *Handle) checkBatch(op, what string, r *Routing, t weft.Tensor, bytes int) error {
	holds, foreign := "", "holds another routing's batch"
	content := h.buffers.Check(uintptr(t.Data), uintptr(bytes), r.epoch, t.Generation)
	if content == engine.None {
		content, foreign = h.comm.Shelf().Check(h.buffers, uintptr(t.Data), uintptr(bytes)), "holds another handle's batch"
	}
	switch content {
	case engine.Released:
		holds = "was released"
	case engine.Foreign:
		holds = foreign
	case engine.Later:
		holds = "holds another batch of the routing by now"
	default:
		return nil
	}
	return weft.Invalidf("%s: the %s lie in memory for received rows that %s; give what was received by "+
		"this routing and not released, or memory of your own",
		op, what, holds)
}

// slab makes what operations return, many at a time. None is used twice: who releases one again
// must not release another's.
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

// stage is a window for operands that peers pull from. It may be written again once all peers have
// finished the epoch that last used it; that is asked when it is needed, not when the operation
// ends.
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
