package ep

import (
	"cmp"
	"context"
	"fmt"

	"github.com/weftgo/weft/ep/spec"

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
	batch    *spec.Batch
	released bool
}

// shared is what the engine knows of r, which may be nil.
func (r *Routing) shared() *spec.Batch {
	if r == nil {
		return nil
	}
	return r.batch
}

// routing is what a caller gets of a batch.
func (h *Handle) routing(b *spec.Batch) *Routing {
	r := h.routings.Take()
	r.batch = b
	return r
}

// Release gives the Routing's memory back to its handle. The Routing, tensors that it returned, and
// received tensors as far as they describe their rows, must not be used after. What a capture has
// written, replays write again: later captures take its memory, operations outside of captures do
// not.
func (r *Routing) Release() {
	if !r.released {
		r.released = true
		r.batch.Release()
	}
}

// Prepare turns routing into a [Routing]: topk holds the experts that each of this rank's tokens
// selects, int32 or int64 [tokens, top-k], -1 for none, the experts of a token distinct, which the
// host engine checks and GPUs take on trust (see the package's Engines); weights their weights,
// fp32 [tokens, top-k], which may be absent if the Spec sums plainly, or if they come later: with
// the rows of a Dispatch, or by [Handle.Weigh]. Both may be changed once Prepare has returned, or,
// with a stream, by what comes after it there.
func (h *Handle) Prepare(ctx context.Context, s *weft.Stream, topk, weights weft.Tensor) (*Routing, error) {
	b, err := h.engine.Prepare(ctx, s, spec.PrepareArgs{TopK: topk, Weights: weights})
	if err != nil {
		return nil, err
	}
	return h.routing(b), nil
}

// Weigh gives a Routing other weights of this rank's tokens, fp32 [tokens, top-k], from now on, and
// tells nobody: [Handle.Combine] sums by them. [Routing.RowWeights] where the rows are stays as it
// was, and so CombineBackward, which weights rows there, is refused until a Dispatch brings weights
// again. Weigh is local, and for the exact weighted reduction, whose weights are used at home
// alone; rows that are weighted elsewhere get other weights by the Weights of a
// Dispatch. On GPUs it enqueues
// one small kernel, in the stream where the combine comes after it; with a nil stream it goes into
// the communicator's own, and Weigh returns when it is done.
func (h *Handle) Weigh(ctx context.Context, s *weft.Stream, r *Routing, weights weft.Tensor) error {
	if err := h.checkWeigh(spec.OpWeigh, r, weights); err != nil {
		return err
	}
	if err := h.engine.Weigh(ctx, s, r.batch, weights); err != nil {
		return err
	}
	r.batch.Weights = spec.WeightsAtHome
	return nil
}

// checkWeigh says what is wrong with other weights of a Routing.
func (h *Handle) checkWeigh(op string, r *Routing, weights weft.Tensor) error {
	b := h.base
	if b.Closed {
		return fmt.Errorf("%s: handle %w", op, weft.ErrClosed)
	}
	if err := cmp.Or(b.Comm.Operations().Begin(op), r.shared().Check(b, op)); err != nil {
		return err
	}
	if b.Spec.Weighting != spec.Weighted || b.Spec.Reduction != spec.Exact {
		return weft.Unsupportedf("%s: this handle does not weight rows at home, but where the experts are "+
			"or not at all; dispatch with the weights", op)
	}
	return spec.CheckTensor(op, "weights", weights, weft.Float32, r.batch.Tokens, b.Spec.TopK)
}

// Traffic returns the counts of this rank.
func (r *Routing) Traffic() spec.Traffic { return r.batch.Info.Traffic() }

// Tokens is the number of tokens that this rank dispatches.
func (r *Routing) Tokens() int { return r.batch.Tokens }

// Rows is the number of rows of the tensors that Dispatch returns and Combine takes: what arrives
// for [HostCounts] with a packed layout, else the capacity.
func (r *Routing) Rows() int { return r.batch.Info.Rows() }

// Received is the number of rows that exist here, pads included, dropped ones not.
func (r *Routing) Received() int { return r.batch.Info.Received() }

// Demand is the number of rows routed here, pads and dropped ones included: more than
// [Routing.Received] when rows were dropped.
func (r *Routing) Demand() int { return r.batch.Info.Demand() }

// RowDemand returns [Routing.Demand] where the rows are, and waits for nothing: int32 [1].
func (r *Routing) RowDemand() weft.Tensor { return r.batch.Info.Tensor(spec.RowDemand) }

// ExpertCounts returns the rows that stand in each local expert's zone, pads not counted: int32
// [local experts]. For layouts with one row per rank it counts the selections of each local expert.
// The tensor is borrowed from the Routing.
func (r *Routing) ExpertCounts() weft.Tensor { return r.batch.Info.Tensor(spec.ExpertCounts) }

// ExpertDemand returns the selections of each local expert, dropped ones included: int32 [local
// experts].
func (r *Routing) ExpertDemand() weft.Tensor { return r.batch.Info.Tensor(spec.ExpertDemand) }

// PaddedCounts returns the rows of each local expert's zone, pads included: int32 [local experts].
func (r *Routing) PaddedCounts() weft.Tensor { return r.batch.Info.Tensor(spec.PaddedCounts) }

// ExpertOffsets returns the first row of each local expert's zone: int32 [local experts].
func (r *Routing) ExpertOffsets() weft.Tensor { return r.batch.Info.Tensor(spec.ExpertOffsets) }

// SourceCounts returns the tokens that each rank sends here: int32 [ranks].
func (r *Routing) SourceCounts() weft.Tensor { return r.batch.Info.Tensor(spec.SourceCounts) }

// Ranges returns, for the layouts by expert, where each source rank's rows stand in each local
// expert's zone, as begin<<32 | count: int64 [local experts, ranks]. Begin counts from the start of
// the zone. What a layout does not have is the zero Tensor, here and below.
func (r *Routing) Ranges() weft.Tensor { return r.ofExperts(spec.Ranges) }

// SourceTokens returns, for each row, the token's index at its source rank, or -1 for rows that
// hold no token: int32 [Rows()].
func (r *Routing) SourceTokens() weft.Tensor { return r.batch.Info.Tensor(spec.SourceTokens) }

// SourceRanks returns, for each row, its source rank, or -1 for rows that hold no token: int32
// [Rows()].
func (r *Routing) SourceRanks() weft.Tensor { return r.batch.Info.Tensor(spec.SourceRanks) }

// SourceSelections returns, for the layouts by expert, which of its token's selections each row is,
// or -1 for rows that hold no token: int32 [Rows()].
func (r *Routing) SourceSelections() weft.Tensor { return r.ofExperts(spec.SourceSelections) }

// RowWeights returns, for the layouts by expert, the weight of each row's selection, 0 for rows
// that hold no token: fp32 [Rows()].
func (r *Routing) RowWeights() weft.Tensor { return r.ofExperts(spec.RowWeights) }

// RowSelections returns, for the layouts with one row per rank, each row's local experts and their
// weights, in the order of the token's selections: int32 [Rows(), top-k], -1 where the selection is
// another rank's, and fp32 [Rows(), top-k], 0 there.
func (r *Routing) RowSelections() (experts, weights weft.Tensor) {
	if r.byExpert() {
		return weft.Tensor{}, weft.Tensor{}
	}
	return r.batch.Info.Tensor(spec.RowExperts), r.batch.Info.Tensor(spec.RowSelectionWeights)
}

// ofExperts is what layouts by expert say of their rows.
func (r *Routing) ofExperts(part spec.Part) weft.Tensor {
	if !r.byExpert() {
		return weft.Tensor{}
	}
	return r.batch.Info.Tensor(part)
}

// byExpert reports whether a row is that of one expert.
func (r *Routing) byExpert() bool { return r.batch.Base != nil && r.batch.Base.Spec.Layout.ByExpert() }
