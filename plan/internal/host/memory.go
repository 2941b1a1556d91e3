package host

import (
	"context"
	"math/bits"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/plan/internal/launch"
)

// grown makes a window of at least n bytes in place of one that has fewer. It is collective, and no rank uses the
// window before.
func grown(ctx context.Context, comm *weft.Comm, w *weft.Window, n int) (_ *weft.Window, fresh bool, err error) {
	if w != nil && w.Size() >= n {
		return w, false, nil
	}
	n = max(n, 1<<12)
	if room := 1 << bits.Len(uint(n-1)); n < 1<<30 {
		n = room
	}
	if w != nil {
		if err := w.Close(); err != nil {
			return nil, false, err
		}
	}
	w, err = comm.Alloc(ctx, n)
	return w, true, err
}

// scratch is that of a plan, or of several that share it.
type scratch struct {
	window *weft.Window
	used   int // bytes that may not be zeros
	plan   *launch.Plan
	chunk  int
	era    uint64 // the upper half of the number of the round that last used it
}

// claim makes scratch ready for a launch, and says whether this rank has changed its own: then the ranks meet before
// any uses it.
func (s *scratch) claim(ctx context.Context, comm *weft.Comm, p *launch.Plan, chunk int, round uint64) (bool, error) {
	n := p.Scratch(chunk)
	if n == 0 {
		return false, nil
	}
	var fresh bool
	var err error
	if s.window, fresh, err = grown(ctx, comm, s.window, n); err != nil {
		return false, err
	}
	another := s.plan != p || s.chunk != chunk
	stale := round>>32 != s.era || another && (p.Mixed || s.plan != p)
	s.plan, s.chunk, s.era = p, chunk, round>>32
	if fresh {
		s.used = n
		return false, nil
	}
	if stale {
		clear(s.window.Bytes()[:s.used])
		s.used = 0
	}
	s.used = max(s.used, n)
	return stale, nil
}

func (s *scratch) close() error {
	if s.window == nil {
		return nil
	}
	w := s.window
	s.window = nil
	return w.Close()
}

// stage is memory for operands that lie in no window: the input, and behind it the output.
type stage struct{ window *weft.Window }

// claim makes room for operands of up to n bytes.
func (s *stage) claim(ctx context.Context, comm *weft.Comm, n int) (err error) {
	s.window, _, err = grown(ctx, comm, s.window, 2*n)
	return err
}

// of is a rank's memory for an operand of so many bytes.
func (s *stage) of(rank, kind, n int) []byte {
	return s.window.Peer(rank)[kind*s.window.Size()/2:][:n:n]
}

func (s *stage) close() error {
	if s.window == nil {
		return nil
	}
	w := s.window
	s.window = nil
	return w.Close()
}
