package pull

import (
	"github.com/weftgo/weft"
	"github.com/weftgo/weft/engine"
)

// pool hands out buffers of a window for received tensors. Received rows lie in a window so that
// combine can take them, or what was computed in place, without a copy. Every buffer has room for the
// largest tensor: with buffers cut to measure, the gaps between a few that are held could each be too
// small for the next.
type pool struct {
	window  *weft.Window
	size    int // of a buffer
	buffers *engine.Buffers
}

// get returns the offset of a free buffer.
func (p *pool) get() (int, bool) {
	i, ok := p.buffers.Take()
	return i * p.size, ok
}

func (p *pool) put(offset int) { p.buffers.Put(offset / p.size) }
