package pull

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
