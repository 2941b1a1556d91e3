package ep

import (
	"context"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// DispatchBackwardArgs are the gradients that go home, and where to.
type DispatchBackwardArgs struct {
	Routing                     *Routing
	GradRows, GradTokens        weft.Tensor
	GradRowWeights, GradWeights weft.Tensor // or none
}

// DispatchBackward is the gradient of Dispatch: GradTokens[t] = sum over k of GradRows[row of (t,k)], in
// the handle's reduction, without weights. GradRows has the shape of what Dispatch returned, GradTokens
// is [tokens, hidden], both of the Spec's Output type; they do not overlap.
//
// GradRowWeights, fp32 [Rows()] (with top-k numbers a row for the layouts with one row per rank),
// holds the gradients of the weights that arrived with the rows; each goes back to its selection in
// GradWeights, fp32 [tokens, top-k], unchanged; selections that went nowhere get 0. Both are
// absent, on every rank, or neither. Both may be of the first rows alone where Combine's Rows may.
func (h *Handle) DispatchBackward(ctx context.Context, s *weft.Stream, b DispatchBackwardArgs) error {
	return h.engine.DispatchBackward(ctx, s, spec.SumArgs{
		Batch: b.Routing.shared(), Rows: b.GradRows, Out: b.GradTokens,
		Scalars: b.GradRowWeights, OutScalars: b.GradWeights,
	})
}

// CombineBackwardArgs are the gradients that go to the experts, and where to.
type CombineBackwardArgs struct {
	Routing           *Routing
	GradOut, GradRows weft.Tensor
	Rows, GradWeights weft.Tensor // or none
}

// CombineBackward is the gradient of Combine: GradRows[row of (t,k)] = weight[t,k] * GradOut[t],
// rounded once (GradOut[t] itself where Combine sums plainly), and zeros in pads. GradOut is
// [tokens, hidden], GradRows, in any memory but that, has the shape of Combine's Rows.
//
// With Rows and GradWeights, which weighted sums allow, GradWeights[t,k], fp32 [tokens, top-k], is the
// dot product of GradOut[t] and Rows[row of (t,k)] in fp32: element i is added, fused, to lane i mod
// 64, and the lanes are summed as a tree. Selections that went nowhere get 0. Both are given on
// every rank or on none. Then GradRows may be Rows itself, whose rows it overwrites once they were
// read, but may not overlap a part of it.
func (h *Handle) CombineBackward(ctx context.Context, s *weft.Stream, b CombineBackwardArgs) error {
	return h.engine.CombineBackward(ctx, s, spec.SpreadArgs{
		Batch: b.Routing.shared(), GradOut: b.GradOut, Rows: b.Rows, GradRows: b.GradRows, GradWeights: b.GradWeights,
	})
}

// GradientBuffer returns memory of the handle's for the gradients of the output that
// CombineBackward is to take: [MaxTokens, hidden] of the Spec's Output type, of which gradOut is
// the first rows. On GPUs others read them, and it spares the copy that gradients elsewhere cost.
// On the host no memory is better than another, and the Tensor is zero; so is that of a closed
// handle, and of one that has no sums.
//
// There is one. It is free again when the operation that took it has ended on its stream, and any
// CombineBackward that copies copies here. SetMask may move it, so ask again then.
func (h *Handle) GradientBuffer() weft.Tensor {
	if h.base.Closed {
		return weft.Tensor{}
	}
	_, gradient := h.engine.OperandBuffers()
	return gradient
}
