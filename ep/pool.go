package ep

import (
	"context"
	"slices"
	"sync"

	"github.com/weftgo/weft"
)

// pool hands out places of a window for received tensors. Received rows lie in a window so that combine can take them, or what was computed in
// their place, without a copy. Every place has room for the largest tensor: with places cut to measure, the gaps between a few that are held could
// each be too small for the next.
type pool struct {
	window *weft.Window
	size   int // of a place
	mu     sync.Mutex
	used   []bool
}

func newPool(w *weft.Window, size, places int) *pool {
	return &pool{window: w, size: size, used: make([]bool, places)}
}

// get returns the offset of the first free place, whose memory is the likeliest to be in a cache.
func (p *pool) get() (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.used, false)
	if i < 0 {
		return 0, false
	}
	p.used[i] = true
	return i * p.size, true
}

// put takes a place back.
func (p *pool) put(offset int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used[offset/p.size] = false
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
