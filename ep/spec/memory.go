package spec

import "github.com/weftgo/weft/channel"

// RecordSize is the size of a record of routing metadata: a token on its way to one rank.
func (g *Geometry) RecordSize() int { return (4+2*g.TopK+3)&^3 + 4*g.TopK }

// Records is the most (token, destination rank) pairs that one rank can have.
func (g *Geometry) Records() int { return g.Tokens * min(g.TopK, g.Ranks) }

// MetadataHead is the size of what stands before the records.
func (g *Geometry) MetadataHead() int { return 4*g.Experts + 8*g.Ranks }

// MetadataSize is the size of a rank's routing metadata.
func (g *Geometry) MetadataSize() int64 {
	n := int64(g.MetadataHead()) + int64(g.Records())*int64(g.RecordSize())
	return (n + channel.Stride - 1) &^ (channel.Stride - 1)
}

// windowSizes are the bytes of a handle's windows; 0 for those that it does not need.
type windowSizes struct {
	Metadata int64 // of two operations that follow each other
	Block    int64 // of one received tensor; the pool has Live of them
	Stage    int64
	Partial  int64
	Scalars  int64
}

// WindowSizes computes them. The limits of a Spec's numbers keep every one of them within 64 bits.
func (g *Geometry) WindowSizes(s Spec) windowSizes {
	tokens, rows := int64(g.Tokens), int64(g.Rows())
	row, scale, output := int64(s.RowSize()), int64(s.ScaleSize()), int64(s.OutputSize())
	size := windowSizes{
		Metadata: 2 * g.MetadataSize(),
		Block:    NewBlockShape(s, g.Rows()).Bytes,
		// A rank stages the tokens of a dispatch, quantised or not, or the rows of a combine. One
		// buffer serves both, because operations follow each other.
		Stage: tokens * max(AlignUp(row)+AlignUp(scale), output),
	}
	if !s.Combines() {
		return size
	}
	size.Stage = max(size.Stage, rows*output)
	if (s.Reduction == Partial || s.Reduction == PartialBySelection) && s.Layout.ByExpert() {
		size.Partial = int64(g.Ranks) * tokens * output
	}
	perRow := int64(1)
	if !s.Layout.ByExpert() {
		perRow = int64(s.TopK)
	}
	size.Scalars = rows * perRow * 4
	return size
}

// fit reports whether windows of these sizes fit into half of an address space; the system has the
// other half.
func (w *windowSizes) fit(live int, addresses int64) bool {
	return max(w.Metadata, w.Stage, w.Partial, w.Scalars) <= addresses/2 && w.Block <= addresses/2/int64(live)
}
