package ep

import (
	"context"

	"github.com/weftgo/weft"
)

const (
	opDispatchBackward = "dispatch backward"
	opCombineBackward  = "combine backward"
)

// DispatchBackward is the gradient of Dispatch: gradX[t] = sum over k of gradRows[row of (t,k)], in
// the handle's reduction, without weights. gradRows has the shape of what Dispatch returned, gradX
// is [tokens, hidden], both of the Spec's Output type; they do not overlap.
//
// gradRowWeights, fp32 [Rows()] (with top-k numbers a row for the layouts with one row per rank),
// holds the gradients of the weights that arrived with the rows; each goes back to its selection in
// gradWeights, fp32 [tokens, top-k], unchanged; selections that went nowhere get 0. Both are
// absent, on every rank, or neither. Both may be of the first rows alone where Combine's y may.
func (h *Handle) DispatchBackward(ctx context.Context, s *weft.Stream, r *Routing, gradRows, gradRowWeights,
	gradX, gradWeights weft.Tensor,
) error {
	return h.engine.dispatchBackward(ctx, s, r, gradRows, gradRowWeights, gradX, gradWeights)
}

// CombineBackward is the gradient of Combine: gradRows[row of (t,k)] = weight[t,k] * gradOut[t],
// rounded once (gradOut[t] itself where Combine sums plainly), and zeros in pads. gradOut is
// [tokens, hidden], gradRows, in any memory but that, has the shape of Combine's y.
//
// With y and gradWeights, which weighted sums allow, gradWeights[t,k], fp32 [tokens, top-k], is the
// dot product of gradOut[t] and y[row of (t,k)] in fp32: element i is added, fused, to lane i mod
// 64, and the lanes are summed as a tree. Selections that went nowhere get 0. Both are given on
// every rank or on none. Then gradRows may be y itself, whose rows it overwrites once they were
// read, but may not overlap a part of it.
func (h *Handle) CombineBackward(ctx context.Context, s *weft.Stream, r *Routing, gradOut, y, gradRows,
	gradWeights weft.Tensor,
) error {
	return h.engine.combineBackward(ctx, s, r, gradOut, y, gradRows, gradWeights)
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
	if h.closed {
		return weft.Tensor{}
	}
	return h.engine.gradientBuffer()
}

// checkScalars says what is wrong with the gradients of weights of a dispatch backward.
func (h *Handle) checkScalars(op string, r *Routing, scalars, out weft.Tensor) error {
	if scalars.IsZero() != out.IsZero() {
		return weft.Invalidf("%s: gradients of weights go from rows to selections; give both tensors or neither", op)
	}
	if scalars.IsZero() {
		return nil
	}
	n, each := scalars.Elems(), 1
	if !h.spec.Layout.byExpert() {
		each = h.spec.TopK
	}
	if scalars.DType != weft.Float32 || n%each != 0 || n < r.fewest()*each || n > r.Rows()*each ||
		scalars.Data == nil && n > 0 {
		return weft.Invalidf("%s: gradients of the rows' weights are %v, want fp32 with %d numbers", op,
			scalars, r.Rows()*each)
	}
	return checkTensor(op, "gradients of weights", out, weft.Float32, r.tokens, h.spec.TopK)
}

// checkCombineBackward says what is wrong with the arguments of a combine backward.
func (h *Handle) checkCombineBackward(r *Routing, gradOut, y, gradRows, gradWeights weft.Tensor, op string) error {
	s := &h.spec
	if !s.combines() {
		return weft.Unsupportedf("%s: opaque rows cannot be reduced; give the Spec an Output type and Hidden", op)
	}
	if err := r.check(h, op); err != nil {
		return err
	}
	if err := r.checkWeighted(h, op, weightedEverywhere); err != nil {
		return err
	}
	if err := checkTensor(op, "gradients of the output", gradOut, s.Output, r.tokens, s.Hidden); err != nil {
		return err
	}
	if err := h.checkExpertRows(op, "gradients of rows", r, gradRows, r.Rows()); err != nil {
		return err
	}
	if overlap(gradOut, gradRows) {
		return weft.Invalidf("%s: gradients of rows overlap those of the output, which other ranks read; "+
			"give them memory of their own", op)
	}
	if gradWeights.IsZero() {
		return nil
	}
	if s.Weighting != Weighted {
		return weft.Invalidf("%s: plain weighting has no weights whose gradients could be asked for", op)
	}
	if err := h.checkExpertRows(op, "rows", r, y, r.Rows()); err != nil {
		return err
	}
	if overlapInPart(gradRows, y) {
		return weft.Invalidf("%s: gradients of rows overlap a part of the rows; give them memory of their "+
			"own, or the very same", op)
	}
	return checkTensor(op, "gradients of weights", gradWeights, weft.Float32, r.tokens, s.TopK)
}

// overlapInPart reports whether two tensors share memory and are not the same.
func overlapInPart(a, b weft.Tensor) bool {
	return a.Data != b.Data && overlap(a, b)
}
