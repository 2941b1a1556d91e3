package gpu

import (
	"cmp"
	"context"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/ep/spec"
)

func (h *handle) Combine(ctx context.Context, s *weft.Stream, a spec.SumArgs) error {
	if err := h.startCombine(ctx, s, &a, flagSend|flagReceive|h.weighted()); err != nil {
		return err
	}
	return h.lane.Finish(ctx, s)
}

func (h *handle) SendCombine(ctx context.Context, s *weft.Stream, a spec.SumArgs) (*weft.Work, error) {
	if err := h.startCombine(ctx, s, &a, flagSend|h.weighted()); err != nil {
		return nil, err
	}
	half := h.lane.Sent(spec.OpCombine, s)
	return weft.NewWork(func(ctx context.Context) error {
		if err := h.Gate.Enter(spec.OpCombine); err != nil {
			return err
		}
		defer h.Gate.Leave()
		stream, err := half.Resume()
		if err != nil {
			return err
		}
		if err := h.combiner.receive(stream, flagReceive|h.weighted()); err != nil {
			return err
		}
		return half.Finish(ctx)
	}), nil
}

// weighted says whether sums are.
func (h *handle) weighted() uint32 {
	if h.Spec.Weighting == spec.Weighted {
		return flagWeighted
	}
	return 0
}

// startCombine checks the arguments of a combine and enqueues it.
func (h *handle) startCombine(ctx context.Context, s *weft.Stream, a *spec.SumArgs, flags uint32) error {
	const op = spec.OpCombine
	stream, err := h.lane.Enter(ctx, op, s)
	if err != nil {
		return err
	}
	if err := h.checkSum(op, a); err != nil {
		return err
	}
	if !a.Weights.IsZero() {
		if err := h.setCombineWeights(stream, a, flags); err != nil {
			return err
		}
	}
	return h.combiner.send(stream, tagCombine, *a, flags)
}

// setCombineWeights gives the batch a combine's own weights, unless its kernel does.
func (h *handle) setCombineWeights(stream *cuda.Stream, a *spec.SumArgs, flags uint32) error {
	if err := whole(spec.OpCombine, "weights", a.Weights); err != nil {
		return err
	}
	a.Batch.Weights = spec.WeightsAtHome
	if h.combiner.keepsWeights(flags) {
		a.Batch.Info.(*gpuRouting).rewrite()
		return nil
	}
	return moverOf[*describe](h).setWeights(stream, a.Batch, addressOf(a.Weights), 0)
}

// checkSum says what is wrong with the arguments of a combine, but for its own weights if it has
// some.
func (h *handle) checkSum(op string, a *spec.SumArgs) error {
	return cmp.Or(h.CheckSum(op, a), aligned(op, "rows", a.Rows), aligned(op, "output rows", a.Out),
		aligned(op, "biases", a.Bias[0]), aligned(op, "biases", a.Bias[1]))
}

func (h *handle) OperandBuffers() (combine, gradient weft.Tensor) {
	if h.combiner == nil {
		return weft.Tensor{}, weft.Tensor{}
	}
	return h.combiner.buffer(), moverOf[*gradients](h).buffer()
}

// sums views memory in the window as so many rows of the Output type.
func (h *handle) sums(at int64, rows int) weft.Tensor {
	return weft.Tensor{
		Data: pointer(h.lane.Window().Pointer().Add(int(at))), DType: h.Spec.Output,
		Shape: []int{rows, h.Spec.Hidden},
	}
}
