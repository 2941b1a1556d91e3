package pull

import (
	"context"

	enginehost "github.com/weftgo/weft/engine/host"

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

// claim waits until a stage may be written, for use in the epoch.
func (h *host) claim(ctx context.Context, s *enginehost.Stage, epoch uint64, op string) error {
	if finished := s.Claim(epoch); finished != 0 {
		return h.awaitDone(ctx, finished, op)
	}
	return nil
}
