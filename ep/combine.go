package ep

import (
	"context"
	"slices"

	"github.com/weftgo/weft"
)

// Combine brings the experts' rows home and sums them: out[t] = bias + sum over k of weight[t,k] *
// y[row of (t,k)], in the handle's reduction. y has the shape of what Dispatch returned, with rows
// of the Spec's Output type; out and each bias (none, one or two) are [tokens, hidden] of that
// type.
//
// On the host, rows of y that lie in a window (received memory does) are read by their home ranks
// where they are, and Combine returns when all have. Others are copied to a staging window first.
// The partial reduction reads y only here.
//
// Memory for received rows is taken only while it holds what was received by r: y in it is refused
// once that was released, or another batch lies there, of which a later one by r is known by
// [weft.Tensor].Generation. Memory for the received rows of another handle of the communicator is
// refused always. The rows of WeighCombine and of both gradients are taken by the same rules.
// Captures are checked when they are made, not when they are replayed. Any other memory is the
// caller's.
//
// With [DeviceCounts] and a packed layout y may be the first rows alone, if all that have come are
// among them: who knows their number hands over no more. out overlaps neither y, which other ranks
// read, nor a part of a bias.
func (h *Handle) Combine(ctx context.Context, s *weft.Stream, r *Routing, y, out weft.Tensor,
	bias ...weft.Tensor,
) error {
	return h.engine.combine(ctx, s, r, weft.Tensor{}, y, out, h.keep(bias))
}

// CombineBuffer returns memory of the handle's for rows that Combine, or DispatchBackward, is to
// take: [Capacity(), hidden] of the Spec's Output type, of which the tensor that they are given is
// the first rows. On GPUs the rows of packed layouts, and those of a Capacity that can overflow,
// are read by their homes, unless ranks sum first (partial reductions, by expert) or room for the
// most that can come would be far larger than what is received. It spares the copy that rows
// elsewhere cost, those of received memory apart: who dispatches fp8 and combines bf16 lets the
// experts store here. CombineBackward reads gradOut from here without a copy too. For everything
// else no memory is better than another, and the Tensor is zero; so is that of a closed handle.
//
// There is one. It is free again when the operation that took it has ended on its stream, and any
// operation that copies its rows copies them here. SetMask may move it, so ask again then.
func (h *Handle) CombineBuffer() weft.Tensor {
	if h.closed {
		return weft.Tensor{}
	}
	return h.engine.combineBuffer()
}

// SendCombine is the first half of [Handle.Combine]; Wait on the result is the second. y, out and
// bias are borrowed until then, and the handle does nothing else before.
//
// What is copied to a staging window, and partial sums, may have to wait for it: until every rank
// has received the operation that last used it.
func (h *Handle) SendCombine(ctx context.Context, s *weft.Stream, r *Routing, y, out weft.Tensor,
	bias ...weft.Tensor,
) (*weft.Work, error) {
	return h.engine.sendCombine(ctx, s, r, weft.Tensor{}, y, out, h.keep(bias))
}

// keep puts biases where the engine can be handed them without the caller's going to the heap. Too
// many are the engine's to refuse.
func (h *Handle) keep(bias []weft.Tensor) []weft.Tensor {
	if len(bias) > len(h.biases) {
		return slices.Clone(bias)
	}
	return h.biases[:copy(h.biases[:], bias)]
}

// checkCombine says what is wrong with the arguments of a combine, which may bring weights, or of a
// dispatch backward.
func (h *Handle) checkCombine(op string, r *Routing, y, out weft.Tensor, bias []weft.Tensor, weighs bool) error {
	s := &h.spec
	if len(bias) > len(h.biases) {
		return weft.Invalidf("%s: %d biases, want at most %d", op, len(bias), len(h.biases))
	}
	if !s.combines() {
		return weft.Unsupportedf("%s: opaque rows cannot be reduced; give the Spec an Output type and "+
			"Hidden, and combine rows of that type", op)
	}
	if err := r.check(h, op); err != nil {
		return err
	}
	if op == opCombine && !weighs {
		if err := r.checkWeighted(h, op, weightedAtHome); err != nil {
			return err
		}
	}
	if err := h.checkExpertRows(op, "rows", r, y, r.fewest()); err != nil {
		return err
	}
	if err := checkTensor(op, "output rows", out, s.Output, r.tokens, s.Hidden); err != nil {
		return err
	}
	if overlap(out, y) {
		return weft.Invalidf("%s: the output rows overlap the rows, which other ranks read; give them "+
			"memory of their own", op)
	}
	for _, b := range bias {
		if err := checkTensor(op, "biases", b, s.Output, r.tokens, s.Hidden); err != nil {
			return err
		}
		if overlapInPart(out, b) {
			return weft.Invalidf("%s: the output rows overlap a part of a bias; give them memory of their "+
				"own, or the very same", op)
		}
	}
	return nil
}

// checkExpertRows checks a tensor of the shape that Dispatch returns, with elements of the Output
// type, or of its first rows, of which there are so many at least.
func (h *Handle) checkExpertRows(op, what string, r *Routing, t weft.Tensor, fewest int) error {
	s := &h.spec
	ok := t.DType == s.Output && len(t.Shape) >= 2 && t.Shape[len(t.Shape)-1] == s.Hidden
	elems := t.Elems()
	if n := elems / s.Hidden; !ok || n < fewest || n > r.Rows() {
		if s.Layout == ExpertMajor {
			return weft.Invalidf("%s: %s are %v, want %v[%d %d %d]", op, what, t, s.Output, h.geometry.local,
				h.geometry.capacity, s.Hidden)
		}
		return weft.Invalidf("%s: %s are %v, want %v[%d %d]", op, what, t, s.Output, r.Rows(), s.Hidden)
	}
	if t.Data == nil && elems > 0 {
		return weft.Invalidf("%s: %s have no memory", op, what)
	}
	return h.checkBatch(op, what, r, t, elems*s.Output.Size())
}
