package ep

import (
	"context"
	"slices"
	"sync"

	"github.com/weftgo/weft"
)

// pool hands out blocks of a window for received tensors. Received rows lie in a window so that combine can take them, or what was computed in
// their place, without a copy. Blocks are of the size that is needed, first fit.
type pool struct {
	window *weft.Window
	mu     sync.Mutex
	used   []span // ascending
}

type span struct{ from, to int }

func newPool(w *weft.Window) *pool { return &pool{window: w} }

// get returns the offset of n free bytes.
func (p *pool) get(n int) (int, bool) {
	n = max(align(n), 64)
	p.mu.Lock()
	defer p.mu.Unlock()
	from := 0
	for i, u := range p.used {
		if u.from-from >= n {
			p.used = slices.Insert(p.used, i, span{from, from + n})
			return from, true
		}
		from = u.to
	}
	if p.window.Size()-from < n {
		return 0, false
	}
	p.used = append(p.used, span{from, from + n})
	return from, true
}

// put takes a block back.
func (p *pool) put(from int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used = slices.DeleteFunc(p.used, func(s span) bool { return s.from == from })
}

// blockShape is the memory of one received tensor.
type blockShape struct {
	rows     int
	data     int // bytes of the rows
	scalesAt int
	bytes    int
}

func newBlockShape(s Spec, rows int) blockShape {
	b := blockShape{rows: rows, data: rows * s.rowBytes()}
	b.scalesAt = align(b.data)
	b.bytes = max(64, b.scalesAt+align(rows*s.scaleBytes()))
	return b
}

// stage is a window for operands that peers pull from. It may be written again once all peers have finished the epoch that last used it; that is
// asked when it is needed, not when the operation ends.
type stage struct {
	window *weft.Window
	epoch  uint64 // the epoch that last used it; 0 = none
}

// claim waits until the stage may be written, for use in the epoch.
func (s *stage) claim(ctx context.Context, h *Handle, epoch uint64, op string) error {
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
