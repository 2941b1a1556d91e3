package spec

import "fmt"

// Collective is a kind of operation.
type Collective uint8

// The collectives. Those whose name ends in V have parts of different lengths.
const (
	Barrier Collective = iota
	AllReduce
	AllGather
	AllGatherV
	ReduceScatter
	ReduceScatterV
	AllToAll
	AllToAllV
	Broadcast
	Reduce
	Gather
	Scatter
	Collectives // how many there are

	// PointToPoint is no collective: a call of it has messages between pairs of ranks, see [Transfer].
	PointToPoint
)

var collectiveNames = [Collectives]string{
	Barrier: "barrier", AllReduce: "all-reduce", AllGather: "all-gather", AllGatherV: "all-gather-v",
	ReduceScatter: "reduce-scatter", ReduceScatterV: "reduce-scatter-v", AllToAll: "all-to-all",
	AllToAllV: "all-to-all-v", Broadcast: "broadcast", Reduce: "reduce", Gather: "gather", Scatter: "scatter",
}

// String is the collective's name: "all-reduce".
func (c Collective) String() string {
	if c == PointToPoint {
		return "point-to-point"
	}
	if c >= Collectives {
		return fmt.Sprintf("collective(%d)", uint8(c))
	}
	return collectiveNames[c]
}

// Reduces reports whether the collective reduces elements.
func (c Collective) Reduces() bool {
	return c == AllReduce || c == ReduceScatter || c == ReduceScatterV || c == Reduce
}

// Rooted reports whether the collective has a root.
func (c Collective) Rooted() bool {
	return c == Broadcast || c == Reduce || c == Gather || c == Scatter
}

// Varies reports whether parts have different lengths.
func (c Collective) Varies() bool { return c == AllGatherV || c == ReduceScatterV || c == AllToAllV }

// HasInput and HasOutput report whether a rank has such an operand.
func (c Collective) HasInput(rank, root int) bool {
	return c != Barrier && (c != Broadcast && c != Scatter || rank == root)
}

// HasOutput is described with HasInput.
func (c Collective) HasOutput(rank, root int) bool {
	return c != Barrier && (c != Reduce && c != Gather || rank == root)
}

// OperandsAlike reports which operands every rank has, of a length that all ranks know. Only of these does a rank
// know where they lie on others, if calls are symmetric: not of one that a root alone has, nor of one that may be
// empty on some ranks.
func (c Collective) OperandsAlike() (in, out bool) {
	const notRoot, root = 0, 1
	in = c.HasInput(notRoot, root) && c != AllGatherV && c != AllToAllV
	out = c.HasOutput(notRoot, root) && c != ReduceScatterV && c != AllToAllV
	return in, out
}

// windowsAlike are the same operands as what an algorithm may need.
func (c Collective) windowsAlike() (w Windows) {
	in, out := c.OperandsAlike()
	if in {
		w |= Inputs
	}
	if out {
		w |= Outputs
	}
	return w
}

// PlacedAlike reports whether all ranks of a call are in place if one is. A root may be so alone, and a rank of which
// the part is empty never is.
func (c Collective) PlacedAlike() bool { return !c.Rooted() && !c.Varies() }

// InParts and OutParts report whether an operand has a part for each rank.
func (c Collective) InParts() bool {
	return c == ReduceScatter || c == ReduceScatterV || c == AllToAll || c == AllToAllV || c == Scatter
}

func (c Collective) OutParts() bool {
	return c == AllGather || c == AllGatherV || c == AllToAll || c == AllToAllV || c == Gather
}
