package ep

import (
	"cmp"
	"context"
	"fmt"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// Routing says which row of which rank each selection of a batch goes to, and which rows arrive at
// this rank. It serves any number of dispatches and combines of its handle, beside other Routings.
// Release, which is optional, lets the handle's next Prepare reuse its memory.
//
// The tensors that its methods return lie where the handle's rows do: in host memory, or on the
// GPU. On GPUs some methods wait for the GPU or allocate memory at their first call. They cannot do
// so while the stream of the Prepare captures, or after it was closed: numbers are then 0 and
// tensors absent. Call them once before the capture; from then on tensors that describe rows can be
// captured. A Routing that a graph prepares describes the last replay; wait for that first if it was
// launched on another stream.
type Routing struct {
	batch    *spec.Batch
	released bool
}

// String says how many tokens of this rank the Routing is of. It does not wait.
func (r *Routing) String() string {
	switch {
	case r == nil:
		return "no routing"
	case r.released:
		return "routing, released"
	}
	return fmt.Sprintf("routing of %d tokens", r.batch.Tokens)
}

// shared is the engine's part of r, which may be nil.
func (r *Routing) shared() *spec.Batch {
	if r == nil {
		return nil
	}
	return r.batch
}

// routing makes the caller's Routing of a batch.
func (h *Handle) routing(b *spec.Batch) *Routing {
	r := h.routings.Take()
	r.batch = b
	return r
}

// Release gives the Routing's memory back to its handle. Do not use the Routing after, nor tensors
// that it returned, nor the routing metadata of received batches. Replays write the memory of a
// Routing that was prepared in a capture: only later captures reuse it, other operations do not.
func (r *Routing) Release() {
	if !r.released {
		r.released = true
		r.batch.Release()
	}
}

// Prepare exchanges selections and returns a [Routing]. topk holds the experts that each of this
// rank's tokens selects: int32 or int64 [tokens, top-k], -1 for none. A token selects an expert at
// most once: the host engine checks that, GPUs do not (see Engines in the package's documentation).
// weights are fp32 [tokens, top-k]. They may be absent if the Spec's weighting is plain, or if a
// Dispatch or [Handle.SetWeights] brings them later. The caller may change both once Prepare has returned
// or, with a stream, by later work in that stream.
func (h *Handle) Prepare(ctx context.Context, s *weft.Stream, topk, weights weft.Tensor) (*Routing, error) {
	if err := h.base.Gate.Enter(spec.OpPrepare); err != nil {
		return nil, err
	}
	defer h.base.Gate.Leave()
	b, err := h.engine.Prepare(ctx, s, spec.PrepareArgs{TopK: topk, Weights: weights})
	if err != nil {
		return nil, err
	}
	return h.routing(b), nil
}

// SetWeights replaces the weights of this rank's tokens in a Routing: fp32 [tokens, top-k]. Later
// Combines sum by them. It is local and sends nothing: [Routing.RowWeights] at the receivers keeps
// the old weights. CombineBackward, which weights rows there, is therefore refused until a Dispatch
// brings weights. SetWeights is for the exact weighted reduction, which uses weights at home only; for
// others use the Weights of a Dispatch.
//
// On GPUs it enqueues one small kernel; use the stream of the later combine. With a nil stream it
// runs in the communicator's own stream, and SetWeights returns when it is done.
func (h *Handle) SetWeights(ctx context.Context, s *weft.Stream, r *Routing, weights weft.Tensor) error {
	if err := h.base.Gate.Enter(spec.OpSetWeights); err != nil {
		return err
	}
	defer h.base.Gate.Leave()
	if err := h.checkWeights(spec.OpSetWeights, r, weights); err != nil {
		return err
	}
	if err := h.engine.SetWeights(ctx, s, r.batch, weights); err != nil {
		return err
	}
	r.batch.Weights = spec.WeightsAtHome
	return nil
}

// checkWeights refuses weights that do not fit a Routing.
func (h *Handle) checkWeights(op string, r *Routing, weights weft.Tensor) error {
	b := h.base
	if err := cmp.Or(b.Comm.Operations().Begin(op), r.shared().Check(b, op)); err != nil {
		return err
	}
	if b.Spec.Weighting != spec.Weighted || b.Spec.Reduction != spec.Exact {
		return weft.Unsupportedf("%s: this handle weights rows at the experts' ranks or not at all, but not at "+
			"home; dispatch with the weights", op)
	}
	return spec.CheckTensor(op, "weights", weights, weft.Float32, r.batch.Tokens, b.Spec.TopK)
}

// Traffic returns the counts of this rank.
func (r *Routing) Traffic() spec.Traffic { return r.batch.Info.Traffic() }

// Tokens is the number of tokens that this rank dispatches.
func (r *Routing) Tokens() int { return r.batch.Tokens }

// Rows is the number of rows of the tensors that Dispatch returns and Combine takes: for
// [HostCounts] with a packed layout the rows that arrive, else the capacity.
func (r *Routing) Rows() int { return r.batch.Info.Rows() }

// Received is the number of rows that exist here: pads included, dropped rows excluded.
func (r *Routing) Received() int { return r.batch.Info.Received() }

// Demand is the number of rows routed here, pads and dropped ones included: more than
// [Routing.Received] when rows were dropped.
func (r *Routing) Demand() int { return r.batch.Info.Demand() }

// RowDemand returns [Routing.Demand] as a tensor, without a wait: int32 [1].
func (r *Routing) RowDemand() weft.Tensor { return r.batch.Info.Tensor(spec.RowDemand) }

// ExpertCounts returns the number of rows in each local expert's zone, pads excluded: int32 [local
// experts]. For layouts with one row per rank it counts the selections of each local expert. The
// tensor is borrowed from the Routing.
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

// Ranges returns, for the layouts by expert, the range of each source rank's rows in each local
// expert's zone, as begin<<32 | count: int64 [local experts, ranks]. Begin counts from the start of
// the zone. Here and below, a layout without such a tensor returns the zero Tensor.
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

// ofExperts returns a part that only layouts by expert have.
func (r *Routing) ofExperts(part spec.Part) weft.Tensor {
	if !r.byExpert() {
		return weft.Tensor{}
	}
	return r.batch.Info.Tensor(part)
}

// byExpert reports whether each row belongs to one expert.
func (r *Routing) byExpert() bool { return r.batch.Base != nil && r.batch.Base.Spec.Layout.ByExpert() }
