package ep

import (
	"context"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// DispatchBackwardArgs are the operands of [Handle.DispatchBackward].
type DispatchBackwardArgs struct {
	Routing                     *Routing
	GradRows, GradTokens        weft.Tensor
	GradRowWeights, GradWeights weft.Tensor // optional: both or neither
}

// DispatchBackward is the gradient of Dispatch: GradTokens[t] = sum over k of GradRows[row of
// (t,k)], in the handle's reduction, without weights. GradRows has the shape of the received rows,
// GradTokens is [tokens, hidden]. Both have the Spec's Output type and do not overlap.
//
// GradRowWeights is fp32 [Rows()], with top-k numbers a row for the layouts with one row per rank:
// the gradients of the weights that arrived with the rows. Each goes unchanged to its selection in
// GradWeights, fp32 [tokens, top-k]; selections that went nowhere get 0. Every rank gives both, or
// none gives either. GradRows and GradRowWeights may hold the first rows only where Combine's Rows
// may.
func (h *Handle) DispatchBackward(ctx context.Context, s *weft.Stream, b DispatchBackwardArgs) error {
	if err := h.base.Gate.Enter(spec.OpDispatchBackward); err != nil {
		return err
	}
	defer h.base.Gate.Leave()
	return h.engine.DispatchBackward(ctx, s, spec.SumArgs{
		Batch: b.Routing.shared(), Rows: b.GradRows, Out: b.GradTokens,
		Scalars: b.GradRowWeights, OutScalars: b.GradWeights,
	})
}

// CombineBackwardArgs are the operands of [Handle.CombineBackward].
type CombineBackwardArgs struct {
	Routing           *Routing
	GradOut, GradRows weft.Tensor
	Rows, GradWeights weft.Tensor // optional: both or neither
}

// CombineBackward is the gradient of Combine: GradRows[row of (t,k)] = weight[t,k] * GradOut[t],
// rounded once (GradOut[t] itself for plain weighting), and zeros in pads. GradOut is [tokens,
// hidden]. GradRows has the shape of Combine's Rows and does not overlap GradOut.
//
// With weighted sums Rows and GradWeights may be given, on every rank or on none. Then
// GradWeights[t,k], fp32 [tokens, top-k], is the dot product of GradOut[t] and Rows[row of (t,k)] in
// fp32: element i is added, fused, to lane i mod 64, and the lanes are summed as a tree. Selections
// that went nowhere get 0. GradRows may be the same tensor as Rows, whose rows are overwritten after
// they were read, but may not overlap it otherwise.
func (h *Handle) CombineBackward(ctx context.Context, s *weft.Stream, b CombineBackwardArgs) error {
	if err := h.base.Gate.Enter(spec.OpCombineBackward); err != nil {
		return err
	}
	defer h.base.Gate.Leave()
	return h.engine.CombineBackward(ctx, s, spec.SpreadArgs{
		Batch: b.Routing.shared(), GradOut: b.GradOut, Rows: b.Rows, GradRows: b.GradRows, GradWeights: b.GradWeights,
	})
}

// GradientBuffer returns the handle's buffer for the GradOut of a CombineBackward: [MaxTokens,
// hidden] of the Spec's Output type. On GPUs peers read GradOut in place if it begins at the
// buffer's start; gradients in other memory are copied to the buffer first. The Tensor is zero on
// the host, where no copy is needed, for a closed handle, and for a handle that has no sums.
//
// A handle has one such buffer. It is free again when the operation that read it has ended on its
// stream. A CombineBackward with gradients in other memory overwrites it. SetMask may move it: ask
// again then.
func (h *Handle) GradientBuffer() weft.Tensor {
	if h.base.Gate.Closed() {
		return weft.Tensor{}
	}
	_, gradient := h.engine.OperandBuffers()
	return gradient
}
