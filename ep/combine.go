package ep

import (
	"context"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// CombineArgs are the operands of [Handle.Combine].
type CombineArgs struct {
	Routing *Routing
	// Rows, y below, has the shape of the received rows, with elements of the Spec's Output type.
	Rows weft.Tensor
	// Out and each of Bias (none, one or two) are [tokens, hidden] of that type.
	Out  weft.Tensor
	Bias []weft.Tensor
	// Weights, fp32 [tokens, top-k], replace the Routing's weights at home first, as [Handle.SetWeights]
	// does. On GPUs that costs a kernel, unless homes read rows in place (see
	// [Handle.CombineBuffer]). They are borrowed as long as the rows.
	Weights weft.Tensor
}

// Combine brings the experts' rows home and sums them: out[t] = bias + sum over k of weight[t,k] *
// y[row of (t,k)], in the handle's reduction. See [CombineArgs].
//
// On the host, home ranks read rows of y in place if they lie in a window, as received rows do, and
// Combine returns when all have read them. It copies other rows to a staging window first. The
// partial reduction reads y on this rank only.
//
// Combine refuses y in a receive buffer that does not hold the Routing's batch: if the batch was
// released, or if the buffer holds another one. [weft.Tensor].Generation tells a later batch of the
// same Routing. It always refuses a receive buffer of another handle of the communicator. The rows
// of both gradients follow the same rules. A capture is checked when it is made, not when it is
// replayed.
//
// With [DeviceCounts] and a packed layout y may hold the first rows only, if it holds all that have
// arrived. Out does not overlap y, which other ranks read. Out may be the same tensor as a bias, but
// may not overlap it otherwise.
func (h *Handle) Combine(ctx context.Context, s *weft.Stream, c CombineArgs) error {
	if err := h.base.Gate.Enter(spec.OpCombine); err != nil {
		return err
	}
	defer h.base.Gate.Leave()
	if err := h.checkOwnWeights(&c); err != nil {
		return err
	}
	return h.engine.Combine(ctx, s, c.sum())
}

// SendCombine is the first half of [Handle.Combine]; Wait on the result is the second. Tensors are
// borrowed until then, and the handle runs no other operation before.
//
// A combine that stages rows or sums partially may wait first, until every rank has received the
// operation that last used the staging window.
func (h *Handle) SendCombine(ctx context.Context, s *weft.Stream, c CombineArgs) (*weft.Work, error) {
	if err := h.base.Gate.Enter(spec.OpCombine); err != nil {
		return nil, err
	}
	defer h.base.Gate.Leave()
	if err := h.checkOwnWeights(&c); err != nil {
		return nil, err
	}
	return h.engine.SendCombine(ctx, s, c.sum())
}

func (h *Handle) checkOwnWeights(c *CombineArgs) error {
	if c.Weights.IsZero() {
		return nil
	}
	return h.checkWeights(spec.OpCombine, c.Routing, c.Weights)
}

func (c *CombineArgs) sum() spec.SumArgs {
	a := spec.SumArgs{Batch: c.Routing.shared(), Rows: c.Rows, Out: c.Out, Weights: c.Weights, Biases: len(c.Bias)}
	copy(a.Bias[:], c.Bias)
	return a
}

// CombineBuffer returns the handle's buffer for the rows of a Combine or DispatchBackward:
// [Capacity(), hidden] of the Spec's Output type. Rows that begin at its start, or that lie in a
// receive buffer, need no copy; rows in other memory are copied here first. Let the experts store
// here if you dispatch fp8 and combine bf16. CombineBackward reads GradOut from here without a copy
// too.
//
// The buffer exists on GPUs where homes read rows in place: for packed layouts and for a Capacity
// that can overflow. It does not exist if ranks sum first (partial reductions, by expert), or if
// the worst case would be far larger than the received rows. Then the Tensor is zero, as it is on
// the host and for a closed handle.
//
// A handle has one such buffer. It is free again when the operation that read it has ended on its
// stream. An operation whose rows are copied overwrites it. SetMask may move it: ask again then.
func (h *Handle) CombineBuffer() weft.Tensor {
	if h.base.Gate.Closed() {
		return weft.Tensor{}
	}
	combine, _ := h.engine.OperandBuffers()
	return combine
}
