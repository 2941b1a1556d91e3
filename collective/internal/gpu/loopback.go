package gpu

import (
	"errors"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// loopback makes one rank the first of several whose windows are regions of its own. Every slot is
// filled from the beginning, and what operations make ones is a twin of the slots, so no wait ever
// lasts: what is measured is launches, instructions and the GPU's own memory. Of 0 ranks it is none.
type loopback struct {
	ranks  int
	region int64 // from a rank's window to the next one's
}

// layOut adds the twin, and the windows of the other ranks.
func (l *loopback) layOut(w *enginegpu.Workspace, a *laneArgs) {
	if l.ranks == 0 {
		return
	}
	a.cleared = uint64(w.Raw(turns * int64(a.turnBytes)))
	l.region = w.Size()
	w.Raw(l.region * int64(l.ranks-1))
}

// point gives the group the other ranks' windows.
func (l *loopback) point(g *device.Group) {
	if l.ranks == 0 {
		return
	}
	g.Ranks = uint32(l.ranks)
	for r := range l.ranks {
		g.Window[r] = g.Window[0] + uint64(int64(r)*l.region)
	}
}

// fill makes slots and words look as if every rank had sent.
func (l *loopback) fill(e *Engine) error {
	if l.ranks == 0 {
		return nil
	}
	base, s := e.lane.Window().Pointer(), e.comm.Device().Stream()
	fill := func(at uint64, value byte, bytes int) error { return s.Memset(base.Add(int(at)), value, bytes) }
	const late = 0x3F // in each byte of a word: of an operation that never comes
	errs := []error{fill(e.args.slots, 0, turns*e.turnBytes), fill(e.args.heard, late, 8*e.ranks)}
	for _, words := range []uint64{e.direct.ready, e.direct.done, e.push.sent, e.push.got} {
		errs = append(errs, fill(words, late, 8*e.ranks*e.blocks))
	}
	return errors.Join(append(errs, s.Synchronize())...)
}

// operands are those of all ranks: the others' lie in the window of the only one as well, in regions of the same
// size, if there is room; else all have the same.
func (l *loopback) operands(w *weft.Window, offset, bytes int) (at operands) {
	region := w.Size() / l.ranks &^ 0xFF
	if offset+bytes > region {
		region = 0
	}
	for r := range l.ranks {
		at[r] = uint64(w.Pointer().Add(offset + r*region))
	}
	return at
}
