package gpu

import (
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep/spec"
)

// regions are where the parts of a handle's window stand: what exchange.cuh describes.
// Blocks of received rows are in it where senders write them directly.
type regions struct {
	enginegpu.Workspace

	heads, counts, combineHeads, records    int64
	arrived, returned, ready                int64
	rows, home                              int64
	totals, befores, openings, marks, stage int64 // of placed rows
	gradientOpenings, gradientMarks         int64
	scalars, pullScalars, gradients         int64
	blocks                                  int64

	slotBytes, rowTurn, homeTurn int64 // a slot of rows, one turn of rows and of home
	rowTurns, homeTurns          int64
	block                        spec.BlockShape
	// rows are stored where the caller reads them; blocks of received rows are in the window
	direct, inWindow bool
}

// newRegions lays out the window of a handle whose dispatches and combines have so many blocks.
func newRegions(g *spec.Geometry, s spec.Spec, t spec.Choice, b blocks) regions {
	ranks, tokens, topk := int64(g.Ranks), int64(g.Tokens), int64(g.TopK)
	r := regions{
		direct: !t.ValueDispatch && s.Layout == spec.RankMajor && s.Live < 32,
		block:  spec.NewBlockShape(s, g.Rows()),
	}
	r.inWindow = r.direct
	r.slotBytes = int64(s.RowSize()) + (int64(s.ScaleSize())+15)&^15
	r.rowTurn = ranks * tokens * r.slotBytes
	r.rowTurns = 2
	if t.ValueDispatch {
		r.rowTurns = 3
	}
	if r.direct {
		r.rowTurns = 0
	}
	r.heads = r.Ones(3 * ranks * device.OpeningBytes)
	if s.Layout.ByExpert() {
		r.counts = r.Ones(3 * ranks * int64(countWords+g.Local) * 4)
	}
	r.records = r.Ones(3 * ranks * tokens * topk * int64(pairBytes))
	r.arrived = r.Zeros(ranks * int64(b.dispatch) * 4)
	r.ready = r.Zeros(ranks * 4)
	r.addGradients(g, s, b.gradients)
	if size := r.rowTurns * r.rowTurn; t.ValueDispatch {
		r.rows = r.Ones(size)
	} else {
		r.rows = r.Raw(size)
	}
	r.addCombine(g, s, t, b.combine)
	if r.direct {
		r.blocks = r.Raw(int64(s.Live) * r.block.Bytes)
	}
	return r
}

// countWords stand before a source's counts: what exchange.cuh names.
const countWords = 1

// locals are where things stand in a handle's memory that no peer reaches: behind the lane's state,
// with the counts of dispatch, those of combine, and those of gradients.
type locals struct {
	enginegpu.Workspace
	combineCounts         int // the first of the latter
	gradientCounts        int // and of the first of gradients
	filled, combineFilled int64
	credits               int64
	counts, bases         int64 // of place
}

func newLocals(g *spec.Geometry, placed bool, b blocks) locals {
	// Every block has a count.
	l := locals{combineCounts: b.dispatchGrid(), gradientCounts: b.dispatchGrid() + b.combineGrid()}
	l.Workspace = *enginegpu.NewLocal(l.gradientCounts + b.gradients)
	domain := device.Domain(g.Ranks)
	l.credits = l.Zeros(4 * int64(domain))
	l.combineFilled = l.Zeros(3 * (int64(g.Tokens) + 1) * int64(spec.CeilDiv(domain, 64)) * 8) // sets of ranks
	if !placed {
		l.filled = l.Zeros(3 * int64(g.Ranks) * (int64(g.Tokens) + 1) * 4)
		return l
	}
	l.counts = l.Zeros(int64(b.dispatch) * int64(g.Experts+g.Ranks) * 8)
	l.bases = l.Zeros(int64(b.dispatch) * 4 * int64(max(g.Experts, g.Ranks)) * 4)
	return l
}
