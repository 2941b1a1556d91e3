package ep

import (
	"cmp"
	"context"
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
)

// Routing is what Prepare makes of the tokens' selections: for every (token, selection) the rank
// and the row where it goes, and for this rank the rows that come. It stays good for any number of
// dispatches and combines of its handle, beside other Routings, and holds no memory but its own.
// Release, which may be left out, lets the handle's next Prepare use that memory again.
//
// The tensors that its methods return lie where the handle's rows do: in host memory, or on the
// GPU. What a GPU has to be waited for, or memory to be allocated for, is not to be had while the
// stream in which it was prepared captures, or once that is closed: numbers are 0 then and tensors
// absent. Ask once before the capture; from then on tensors that describe rows can be captured. A
// Routing that a graph prepares says what the last replay has made of the selections, which the
// caller waits for if it was launched on another stream.
type Routing struct {
	handle    *Handle // nil once it was released
	placement placement
	tokens    int          // tokens of this rank
	masked    weft.RankSet // ranks left out when it was prepared
	weighted  weighted
	epoch     uint64 // of its Prepare: the same on every rank
}

// weighted says where a Routing has weights.
type weighted uint8

const (
	unweighted weighted = iota
	weightedAtHome
	weightedEverywhere
)

func weightedIf(given bool) weighted {
	if given {
		return weightedEverywhere
	}
	return unweighted
}

// Traffic counts what a dispatch by a Routing moves, in rows, from this rank's point of view. Times
// the bytes of a row it gives the usual ways to count bandwidth.
type Traffic struct {
	// Tokens this rank dispatches, and rows that it receives.
	Tokens, Received int
	// Selections of this rank's tokens (DeepEP's low-latency convention, local ones included).
	Selections int
	// Visits: distinct (token, rank) pairs of this rank's tokens (the logical convention, local
	// ones included).
	Visits int
	// RemoteRows cross to other ranks: one for each visit of another rank.
	RemoteRows int
}

// Release gives the Routing's memory back to its handle. The Routing, tensors that it returned, and
// received tensors as far as they describe their rows, must not be used after. What a capture has
// written, replays write again: later captures take its memory, operations outside of captures do
// not.
func (r *Routing) Release() {
	if r.handle == nil {
		return
	}
	r.handle = nil
	r.placement.release()
}

// Weigh gives a Routing other weights of this rank's tokens, fp32 [tokens, top-k], from now on, and
// tells nobody: [Handle.Combine] sums by them. [Routing.RowWeights] where the rows are stays as it
// was, and so CombineBackward, which weights rows there, is refused until a Dispatch brings weights
// again. Weigh is local, and for the exact weighted reduction, whose weights are used at home
// alone; rows that are weighted elsewhere get other weights by [Rows].Weights. On GPUs it enqueues
// one small kernel, in the stream where the combine comes after it; with a nil stream it goes into
// the communicator's own, and Weigh returns when it is done.
func (h *Handle) Weigh(ctx context.Context, s *weft.Stream, r *Routing, weights weft.Tensor) error {
	const op = "weigh"
	if err := h.checkWeigh(op, r, weights); err != nil {
		return err
	}
	if err := h.engine.weigh(ctx, s, r, weights); err != nil {
		return err
	}
	r.weighted = weightedAtHome
	return nil
}

// WeighCombine is [Handle.Weigh] and [Handle.Combine] in one: on GPUs in one kernel, unless rows
// are read by their homes (see [Handle.CombineBuffer]). The weights are borrowed as the rows are.
// What is refused leaves the Routing as it was.
func (h *Handle) WeighCombine(ctx context.Context, s *weft.Stream, r *Routing, weights, y, out weft.Tensor,
	bias ...weft.Tensor,
) error {
	if err := h.checkWeigh(opCombine, r, weights); err != nil {
		return err
	}
	return h.engine.combine(ctx, s, r, weights, y, out, h.keep(bias))
}

// SendWeighCombine is the first half of WeighCombine, as SendCombine is that of Combine.
func (h *Handle) SendWeighCombine(ctx context.Context, s *weft.Stream, r *Routing, weights, y, out weft.Tensor,
	bias ...weft.Tensor,
) (*weft.Work, error) {
	if err := h.checkWeigh(opCombine, r, weights); err != nil {
		return nil, err
	}
	return h.engine.sendCombine(ctx, s, r, weights, y, out, h.keep(bias))
}

// checkWeigh says what is wrong with other weights of a Routing.
func (h *Handle) checkWeigh(op string, r *Routing, weights weft.Tensor) error {
	if h.closed {
		return fmt.Errorf("%s: handle %w", op, weft.ErrClosed)
	}
	if err := cmp.Or(h.comm.Begin(op), r.check(h, op)); err != nil {
		return err
	}
	if h.spec.Weighting != Weighted || h.spec.Reduction != Exact {
		return weft.Unsupportedf("%s: this handle does not weight rows at home, but where the experts are "+
			"or not at all; dispatch with the weights in Rows", op)
	}
	return checkTensor(op, "weights", weights, weft.Float32, r.tokens, h.spec.TopK)
}

// checkWeighted refuses a Routing that has no weights where there must be some.
func (r *Routing) checkWeighted(h *Handle, op string, least weighted) error {
	switch {
	case h.spec.Weighting != Weighted || r.weighted >= least:
		return nil
	case r.weighted == weightedAtHome:
		return weft.Invalidf("%s: the routing got its weights from Weigh, which tells no other rank; "+
			"dispatch with the weights in Rows", op)
	default:
		return weft.Invalidf("%s: the routing has no weights; give them to Prepare, or with the rows of a Dispatch", op)
	}
}

// check refuses a Routing of another handle.
func (r *Routing) check(h *Handle, op string) error {
	if r == nil || r.handle != h {
		return weft.Invalidf("%s: the routing was not prepared by this handle", op)
	}
	if !h.comm.Mask().Contains(r.masked) {
		return fmt.Errorf("%s: %w: the routing was prepared while ranks were masked that now take part; "+
			"prepare again", op, weft.ErrInvalid)
	}
	return nil
}

// Traffic returns the counts of this rank.
func (r *Routing) Traffic() Traffic { return r.placement.Traffic() }

// Tokens is the number of tokens that this rank dispatches.
func (r *Routing) Tokens() int { return r.tokens }

// Rows is the number of rows of the tensors that Dispatch returns and Combine takes: what arrives
// for [HostCounts] with a packed layout, else the capacity.
func (r *Routing) Rows() int { return r.placement.Rows() }

// fewest is how many rows a tensor has at least that an operation reads them from.
func (r *Routing) fewest() int {
	if s := &r.handle.spec; s.Layout.packed() && s.Counts == DeviceCounts {
		return r.placement.told()
	}
	return r.Rows()
}

// Received is the number of rows that exist here, pads included, dropped ones not.
func (r *Routing) Received() int { return r.placement.Received() }

// Demand is the number of rows routed here, pads and dropped ones included: more than
// [Routing.Received] when rows were dropped.
func (r *Routing) Demand() int { return r.placement.Demand() }

// RowDemand returns [Routing.Demand] where the rows are, and waits for nothing: int32 [1].
func (r *Routing) RowDemand() weft.Tensor { return r.placement.RowDemand() }

// ExpertCounts returns the rows that stand in each local expert's zone, pads not counted: int32
// [local experts]. For layouts with one row per rank it counts the selections of each local expert.
// The tensor is borrowed from the Routing.
func (r *Routing) ExpertCounts() weft.Tensor { return r.placement.ExpertCounts() }

// ExpertDemand returns the selections of each local expert, dropped ones included: int32 [local
// experts].
func (r *Routing) ExpertDemand() weft.Tensor { return r.placement.ExpertDemand() }

// PaddedCounts returns the rows of each local expert's zone, pads included: int32 [local experts].
func (r *Routing) PaddedCounts() weft.Tensor { return r.placement.PaddedCounts() }

// ExpertOffsets returns the first row of each local expert's zone: int32 [local experts].
func (r *Routing) ExpertOffsets() weft.Tensor { return r.placement.ExpertOffsets() }

// SourceCounts returns the tokens that each rank sends here: int32 [ranks].
func (r *Routing) SourceCounts() weft.Tensor { return r.placement.SourceCounts() }

// Ranges returns, for the layouts by expert, where each source rank's rows stand in each local
// expert's zone, as begin<<32 | count: int64 [local experts, ranks]. Begin counts from the start of
// the zone. What a layout does not have is the zero Tensor, here and below.
func (r *Routing) Ranges() weft.Tensor { return r.ofExperts(r.placement.Ranges) }

// SourceTokens returns, for each row, the token's index at its source rank, or -1 for rows that
// hold no token: int32 [Rows()].
func (r *Routing) SourceTokens() weft.Tensor { return r.placement.SourceTokens() }

// SourceRanks returns, for each row, its source rank, or -1 for rows that hold no token: int32
// [Rows()].
func (r *Routing) SourceRanks() weft.Tensor { return r.placement.SourceRanks() }

// SourceSelections returns, for the layouts by expert, which of its token's selections each row is,
// or -1 for rows that hold no token: int32 [Rows()].
func (r *Routing) SourceSelections() weft.Tensor { return r.ofExperts(r.placement.SourceSelections) }

// RowWeights returns, for the layouts by expert, the weight of each row's selection, 0 for rows
// that hold no token: fp32 [Rows()].
func (r *Routing) RowWeights() weft.Tensor { return r.ofExperts(r.placement.RowWeights) }

// RowSelections returns, for the layouts with one row per rank, each row's local experts and their
// weights, in the order of the token's selections: int32 [Rows(), top-k], -1 where the selection is
// another rank's, and fp32 [Rows(), top-k], 0 there.
func (r *Routing) RowSelections() (experts, weights weft.Tensor) {
	if r.byExpert() {
		return weft.Tensor{}, weft.Tensor{}
	}
	return r.placement.RowSelections()
}

// ofExperts is what layouts by expert say of their rows.
func (r *Routing) ofExperts(say func() weft.Tensor) weft.Tensor {
	if !r.byExpert() {
		return weft.Tensor{}
	}
	return say()
}

// byExpert reports whether a row is that of one expert.
func (r *Routing) byExpert() bool { return r.handle != nil && r.handle.spec.Layout.byExpert() }

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
