package host

import (
	"context"
	"math/bits"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/plan/internal/launch"
)

// memory is a window that grows. All ranks claim it at the same time, for as many bytes.
//
// An allocation that a failure has interrupted may have succeeded on some ranks alone. So all begin anew in the next
// era.
type memory struct {
	window *weft.Window
	era    uint64 // of its last use
}

// eraOf is the upper half of a round's number: another one in each generation of the communicator, and whenever the
// lower half begins anew.
func eraOf(round uint64) uint64 { return round >> 32 }

// claim makes it at least n bytes, and says whether the window is new, which is zeros.
func (m *memory) claim(ctx context.Context, comm *weft.Comm, n int, round uint64) (fresh bool, err error) {
	era := eraOf(round)
	if m.window != nil && m.era == era && m.window.Size() >= n {
		return false, nil
	}
	if err := m.close(); err != nil {
		return false, err
	}
	n = max(n, 1<<12)
	if room := 1 << bits.Len(uint(n-1)); n < 1<<30 {
		n = room
	}
	m.era = era
	m.window, err = comm.Alloc(ctx, n)
	return true, err
}

func (m *memory) close() error {
	if m.window == nil {
		return nil
	}
	w := m.window
	m.window = nil
	return w.Close()
}

// scratch is that of a plan, or of several that share it.
type scratch struct {
	memory
	used  int // bytes that may not be zeros
	plan  *launch.Plan
	chunk int
}

// claim makes scratch ready for a launch, and says whether it is new, or whether this rank has changed its own: then
// the ranks meet before any uses it.
func (s *scratch) claim(ctx context.Context, comm *weft.Comm, p *launch.Plan, chunk int, round uint64,
) (fresh, changed bool, err error) {
	n := p.Scratch(chunk)
	if n == 0 {
		return false, false, nil
	}
	if fresh, err = s.memory.claim(ctx, comm, n, round); err != nil {
		return false, false, err
	}
	stale := s.plan != p || s.chunk != chunk && p.Mixed
	s.plan, s.chunk = p, chunk
	if fresh {
		s.used = n
		return true, false, nil
	}
	if stale {
		clear(s.window.Bytes()[:s.used])
		s.used = 0
	}
	s.used = max(s.used, n)
	return false, stale, nil
}

// stage is memory for operands that lie in no window: the input, and in its second half the output.
type stage struct{ memory }

// at is where it has an operand.
func (s *stage) at(kind int) int { return kind * s.window.Size() / 2 }
