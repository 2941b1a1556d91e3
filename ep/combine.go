package ep

import (
	"context"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// CombineArgs are what a combine takes home.
type CombineArgs struct {
	Routing *Routing
	// Rows, y below, has the shape of what Dispatch returned, with rows of the Spec's Output type.
	Rows weft.Tensor
	// Out and each of Bias (none, one or two) are [tokens, hidden] of that type.
	Out  weft.Tensor
	Bias []weft.Tensor
	// Weights, fp32 [tokens, top-k], are those of this combine: the Routing gets them first, as by
	// [Handle.Weigh]. On GPUs that is one kernel, unless rows are read by their homes (see
	// [Handle.CombineBuffer]). They are borrowed as the rows are.
	Weights weft.Tensor
}

// Combine brings the experts' rows home and sums them: out[t] = bias + sum over k of weight[t,k] *
// y[row of (t,k)], in the handle's reduction. See [CombineArgs].
//
// On the host, rows of y that lie in a window (received memory does) are read by their home ranks
// where they are, and Combine returns when all have. Others are copied to a staging window first.
// The partial reduction reads y only here.
//
// Memory for received rows is taken only while it holds what was received by r: y in it is refused
// once that was released, or another batch lies there, of which a later one by r is known by
// [weft.Tensor].Generation. Memory for the received rows of another handle of the communicator is
// refused always. The rows of both gradients are taken by the same rules.
// Captures are checked when they are made, not when they are replayed. Any other memory is the
// caller's.
//
// With [DeviceCounts] and a packed layout y may be the first rows alone, if all that have come are
// among them: who knows their number hands over no more. out overlaps neither y, which other ranks
// read, nor a part of a bias.
func (h *Handle) Combine(ctx context.Context, s *weft.Stream, c CombineArgs) error {
	if err := h.checkOwnWeights(&c); err != nil {
		return err
	}
	return h.engine.Combine(ctx, s, c.sum())
}

// SendCombine is the first half of [Handle.Combine]; Wait on the result is the second. Tensors are
// borrowed until then, and the handle does nothing else before.
//
// What is copied to a staging window, and partial sums, may have to wait for it: until every rank
// has received the operation that last used it.
func (h *Handle) SendCombine(ctx context.Context, s *weft.Stream, c CombineArgs) (*weft.Work, error) {
	if err := h.checkOwnWeights(&c); err != nil {
		return nil, err
	}
	return h.engine.SendCombine(ctx, s, c.sum())
}

func (h *Handle) checkOwnWeights(c *CombineArgs) error {
	if c.Weights.IsZero() {
		return nil
	}
	return h.checkWeigh(spec.OpCombine, c.Routing, c.Weights)
}

func (c *CombineArgs) sum() spec.SumArgs {
	a := spec.SumArgs{Batch: c.Routing.shared(), Rows: c.Rows, Out: c.Out, Weights: c.Weights, Biases: len(c.Bias)}
	copy(a.Bias[:], c.Bias)
	return a
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
	if h.base.Closed {
		return weft.Tensor{}
	}
	combine, _ := h.engine.OperandBuffers()
	return combine
}
