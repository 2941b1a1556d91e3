package ep

import (
	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda/device"
)

// regions are where the parts of a handle's window stand: what kernels/exchange.cuh describes. Blocks of received rows are in it where senders write them directly.
type regions struct {
	heads, counts, combineHeads, records int64
	arrived, returned, ready             int64
	rows, home                           int64
	blocks                               int64
	total                                int64

	slotBytes, rowTurn, homeTurn int64 // a slot of rows, one turn of rows and of home
	rowTurns, homeTurns          int64
	block                        blockShape
	direct                       bool
}

// newRegions lays out the window of a handle whose dispatches and combines have so many blocks.
func newRegions(g *geometry, s Spec, t tuning, dispatchBlocks, combineBlocks int) regions {
	ranks, tokens, topk := int64(g.ranks), int64(g.tokens), int64(g.topk)
	r := regions{direct: !t.valueDispatch && s.Layout == RankMajor && s.Live < 32, block: newBlockShape(s, g.rows())}
	r.slotBytes = int64(s.rowBytes()) + (int64(s.scaleBytes())+15)&^15
	r.rowTurn = ranks * tokens * r.slotBytes
	r.rowTurns, r.homeTurns = 2, 2
	if t.valueDispatch {
		r.rowTurns = 3
	}
	if t.valueCombine {
		r.homeTurns = 3
	}
	if r.direct {
		r.rowTurns = 0
	}
	if s.combines() {
		slots := ranks
		if s.Layout.byExpert() && s.Reduction == Exact {
			slots = topk
		}
		r.homeTurn = slots * tokens * int64(s.outputBytes())
	}
	at := int64(0)
	region := func(size int64) int64 {
		from := at
		at += (size + 127) &^ 127
		return from
	}
	r.heads = region(3 * ranks * 16)
	counts := int64(0)
	if s.Layout.byExpert() {
		counts = 3 * ranks * int64(countWords+g.local) * 4
	}
	r.counts = region(counts)
	r.combineHeads = region(3 * ranks * 16)
	r.records = region(3 * ranks * tokens * topk * int64(pairBytes))
	r.arrived = region(ranks * int64(dispatchBlocks) * 4)
	r.returned = region(ranks * int64(combineBlocks) * 4)
	r.ready = region(ranks * 4)
	r.rows = region(r.rowTurns * r.rowTurn)
	r.home = region(r.homeTurns * r.homeTurn)
	if r.direct {
		r.blocks = region(int64(s.Live) * r.block.bytes)
	}
	r.total = at
	return r
}

// countWords stand before a source's counts: what kernels/exchange.cuh names.
const countWords = 1

// locals are where things stand in a handle's memory that no peer reaches.
type locals struct {
	state                 int // and behind it the counts of dispatch, then those of combine
	combineCounts         int // the first of the latter
	filled, combineFilled int
	credits               int
	total                 int
}

func newLocals(g *geometry, dispatchBlocks, combineBlocks int) locals {
	// Every block has a count, and the clerk.
	l := locals{combineCounts: dispatchBlocks + 1}
	region := func(size int) int {
		from := l.total
		l.total += (size + 127) &^ 127
		return from
	}
	l.state = region(device.StateBytes + (dispatchBlocks+combineBlocks+2)*device.CountBytes)
	l.filled = region(3 * g.ranks * g.tokens * 4)
	l.combineFilled = region(3 * g.tokens * 8)
	l.credits = region(4 * weft.MaxRanks)
	return l
}
