package ep

import "github.com/weftgo/weft/channel"

const (
	doneAt   = 2 * channel.Stride
	textAt   = 3 * channel.Stride
	textSize = 2 * channel.Stride
	// routingAt is where routing begins.
	routingAt = textAt + 2*textSize
)

func (g *geometry) recordSize() int { return (4+2*g.topk+3)&^3 + 4*g.topk }

// records is the most (token, destination rank) pairs that one rank can have.
func (g *geometry) records() int { return g.tokens * min(g.topk, g.ranks) }

// routingSize is the size of one routing on a board.
func (g *geometry) routingSize() int64 {
	n := 4*int64(g.experts) + 8*int64(g.ranks) + int64(g.records())*int64(g.recordSize())
	return (n + channel.Stride - 1) &^ (channel.Stride - 1)
}

func (g *geometry) boardSize() int64 { return routingAt + 2*g.routingSize() }

// windowSizes are the bytes of a handle's windows; 0 for those that it has no use for.
type windowSizes struct {
	board   int64
	block   int64 // of one received tensor, of which the pool has Live
	stage   int64
	partial int64
	scalars int64
}

// windowSizes computes them. The limits of a Spec's numbers keep every one of them within 64 bits.
func (g *geometry) windowSizes(s Spec) windowSizes {
	tokens, rows := int64(g.tokens), int64(g.rows())
	row, scale, output := int64(s.RowSize()), int64(s.ScaleSize()), int64(s.OutputSize())
	size := windowSizes{
		board: g.boardSize(),
		block: newBlockShape(s, g.rows()).bytes,
		// What is staged: the tokens of a dispatch, quantised or not, or the rows of a combine. One
		// buffer serves both, as operations follow each other.
		stage: tokens * max(align(row)+align(scale), output),
	}
	if !s.combines() {
		return size
	}
	size.stage = max(size.stage, rows*output)
	if s.Reduction != Exact && s.Layout.byExpert() {
		size.partial = int64(g.ranks) * tokens * output
	}
	perRow := int64(1)
	if !s.Layout.byExpert() {
		perRow = int64(s.TopK)
	}
	size.scalars = rows * perRow * 4
	return size
}

// fit reports whether windows of these sizes can be had in an address space of so many bytes, of
// which half is the system's.
func (w *windowSizes) fit(live int, addresses int64) bool {
	return max(w.board, w.stage, w.partial, w.scalars) <= addresses/2 && w.block <= addresses/2/int64(live)
}
