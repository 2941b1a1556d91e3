package ep

import (
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
)

// Routing is what Prepare makes of the tokens' selections: for every (token, selection) the rank and the row where it goes, and for this rank the
// rows that come. It stays good for any number of dispatches and combines of its handle, beside other Routings, and holds no memory but its own.
// Release, which may be left out, lets the handle's next Prepare use that memory again.
//
// The tensors that its methods return lie where the handle's rows do: in host memory, or on the GPU. What a GPU has to be waited for, or memory to be allocated for, is not
// to be had while the stream in which it was prepared captures, or once that is closed: numbers are 0 then and tensors absent. Ask once before the capture; from then on
// tensors that describe rows can be captured. A Routing that a graph prepares says what the last replay has made of the selections, which the caller waits for if it was
// launched on another stream.
type Routing struct {
	handle    *Handle // nil once it was released
	placement placement
	tokens    int    // tokens of this rank
	masked    uint64 // ranks left out when it was prepared
	epoch     uint64 // of its Prepare: the same on every rank
}

// Traffic counts what a dispatch by a Routing moves, in rows, from this rank's point of view. Times the bytes of a row it gives the usual ways to
// count bandwidth.
type Traffic struct {
	// Tokens this rank dispatches, and rows that it receives.
	Tokens, Received int
	// Selections of this rank's tokens (DeepEP's low-latency convention, local ones included).
	Selections int
	// Visits: distinct (token, rank) pairs of this rank's tokens (the logical convention, local ones included).
	Visits int
	// RemoteRows that cross to other ranks in the handle's wire form.
	RemoteRows int
}

// Release gives the Routing's memory back to its handle. The Routing, tensors that it returned, and received tensors as far as they describe their
// rows, must not be used after.
func (r *Routing) Release() {
	if r.handle == nil {
		return
	}
	r.handle = nil
	r.placement.release()
}

// check refuses a Routing of another handle.
func (r *Routing) check(h *Handle, op string) error {
	if r == nil || r.handle != h {
		return weft.Invalidf("%s: the routing was not prepared by this handle", op)
	}
	if h.comm.Mask()&r.masked != r.masked {
		return fmt.Errorf("%s: %w: the routing was prepared while ranks were masked that now take part; prepare again", op, weft.ErrInvalid)
	}
	return nil
}

// Traffic returns the counts of this rank.
func (r *Routing) Traffic() Traffic { return r.placement.Traffic() }

// Tokens is the number of tokens that this rank dispatches.
func (r *Routing) Tokens() int { return r.tokens }

// Rows is the number of rows of the tensors that Dispatch returns and Combine takes: what arrives for [HostCounts] with a packed layout, else the
// capacity.
func (r *Routing) Rows() int { return r.placement.Rows() }

// Received is the number of rows that exist here, pads included, dropped ones not.
func (r *Routing) Received() int { return r.placement.Received() }

// Demand is the number of rows routed here, pads and dropped ones included: more than [Routing.Received] when rows were dropped.
func (r *Routing) Demand() int { return r.placement.Demand() }

// RowDemand returns [Routing.Demand] where the rows are, and waits for nothing: int32 [1].
func (r *Routing) RowDemand() weft.Tensor { return r.placement.RowDemand() }

// ExpertCounts returns the rows that stand in each local expert's zone, pads not counted: int32 [local experts]. For layouts with one row per rank
// it counts the selections of each local expert. The tensor is borrowed from the Routing.
func (r *Routing) ExpertCounts() weft.Tensor { return r.placement.ExpertCounts() }

// ExpertDemand returns the selections of each local expert, dropped ones included: int32 [local experts].
func (r *Routing) ExpertDemand() weft.Tensor { return r.placement.ExpertDemand() }

// PaddedCounts returns the rows of each local expert's zone, pads included: int32 [local experts].
func (r *Routing) PaddedCounts() weft.Tensor { return r.placement.PaddedCounts() }

// ExpertOffsets returns the first row of each local expert's zone: int32 [local experts].
func (r *Routing) ExpertOffsets() weft.Tensor { return r.placement.ExpertOffsets() }

// SourceCounts returns the tokens that each rank sends here: int32 [ranks].
func (r *Routing) SourceCounts() weft.Tensor { return r.placement.SourceCounts() }

// Ranges returns, for the layouts by expert, where each source rank's rows stand in each local expert's zone, as begin<<32 | count: int64 [local
// experts, ranks]. Begin counts from the start of the zone.
func (r *Routing) Ranges() weft.Tensor { return r.placement.Ranges() }

// SourceTokens returns, for each row, the token's index at its source rank, or -1 for rows that hold no token: int32 [Rows()].
func (r *Routing) SourceTokens() weft.Tensor { return r.placement.SourceTokens() }

// SourceRanks returns, for each row, its source rank, or -1 for rows that hold no token: int32 [Rows()].
func (r *Routing) SourceRanks() weft.Tensor { return r.placement.SourceRanks() }

// RowWeights returns, for the layouts by expert, the weight of each row's selection, 0 for rows that hold no token: fp32 [Rows()].
func (r *Routing) RowWeights() weft.Tensor { return r.placement.RowWeights() }

// RowSelections returns, for the layouts with one row per rank, each row's local experts and their weights, in the order of the token's
// selections: int32 [Rows(), top-k], -1 where the selection is another rank's, and fp32 [Rows(), top-k], 0 there.
func (r *Routing) RowSelections() (experts, weights weft.Tensor) { return r.placement.RowSelections() }

// selections reads a tensor of expert indices, int32 or int64, one at a time.
type selections struct {
	narrow []int32
	wide   []int64
}

func selectionsOf(t weft.Tensor) selections {
	n := t.Elems()
	if t.DType == weft.Int64 {
		return selections{wide: unsafe.Slice((*int64)(t.Data), n)}
	}
	return selections{narrow: unsafe.Slice((*int32)(t.Data), n)}
}

func (s selections) at(i int) int64 {
	if s.wide != nil {
		return s.wide[i]
	}
	return int64(s.narrow[i])
}
