package ep

import (
	"context"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
)

func (h *gpu) combine(ctx context.Context, s *weft.Stream, r *Routing, weights, y, out weft.Tensor,
	bias []weft.Tensor,
) error {
	if err := h.enterCombine(ctx, opCombine, s, r, y, out, bias, weights, flagSend|flagReceive|h.weighted()); err != nil {
		return err
	}
	return h.lane.Finish(ctx, s)
}

func (h *gpu) sendCombine(ctx context.Context, s *weft.Stream, r *Routing, weights, y, out weft.Tensor,
	bias []weft.Tensor,
) (*weft.Work, error) {
	if err := h.enterCombine(ctx, opCombine, s, r, y, out, bias, weights, flagSend|h.weighted()); err != nil {
		return nil, err
	}
	half := h.lane.Sent(opCombine, s)
	return weft.NewWork(func(ctx context.Context) error {
		stream, err := half.Resume()
		if err != nil {
			return err
		}
		if err := h.lane.Receive(stream, h.combineLaunch(flagReceive|h.weighted())); err != nil {
			return err
		}
		return half.Finish(ctx)
	}), nil
}

// weighted says whether sums are.
func (h *gpu) weighted() uint32 {
	if h.spec.Weighting == Weighted {
		return flagWeighted
	}
	return 0
}

// enterCombine checks the arguments of a combine and enqueues it.
func (h *gpu) enterCombine(ctx context.Context, op string, s *weft.Stream, r *Routing, y, out weft.Tensor,
	bias []weft.Tensor, weights weft.Tensor, flags uint32,
) error {
	stream, err := h.lane.Enter(ctx, op, s)
	if err != nil {
		return err
	}
	if err := h.checkCombineOperands(op, r, y, out, bias, !weights.IsZero()); err != nil {
		return err
	}
	if !weights.IsZero() {
		if err := whole(op, "weights", weights); err != nil {
			return err
		}
		r.weighted = weightedAtHome
		if h.tuning.pulls || flags&phases != flagSend|flagReceive {
			if err := h.startWeigh(stream, r, addressOf(weights), 0); err != nil {
				return err
			}
		} else { // the kernel reads them where they are, and keeps them
			r.placement.(*gpuRouting).rewrite()
			h.combineArg.weights = addressOf(weights)
			defer func() { h.combineArg.weights = 0 }()
		}
	}
	return h.startCombine(tagCombine, stream, r, y, out, bias, scalars{}, flags)
}

// checkCombineOperands says what is wrong with the arguments of a combine, but for its own weights
// if it has some.
func (h *gpu) checkCombineOperands(op string, r *Routing, y, out weft.Tensor, bias []weft.Tensor, weighs bool) error {
	if err := h.checkCombine(op, r, y, out, bias, weighs); err != nil {
		return err
	}
	operands := []struct {
		what   string
		tensor weft.Tensor
	}{{"rows", y}, {"output rows", out}, {"biases", weft.Tensor{}}, {"biases", weft.Tensor{}}}
	for i, b := range bias {
		operands[2+i].tensor = b
	}
	for _, o := range operands {
		if err := aligned(op, o.what, o.tensor); err != nil {
			return err
		}
	}
	return nil
}

// startCombine enqueues what brings rows home; a pull brings gradients of weights besides.
func (h *gpu) startCombine(call uint32, stream *cuda.Stream, r *Routing, y, out weft.Tensor, bias []weft.Tensor,
	weights scalars, flags uint32,
) error {
	if h.tuning.pulls {
		if err := h.setPull(call, stream, r, y, out, bias, weights); err != nil {
			return err
		}
	} else {
		h.setCombine(call, r, y, out, bias)
	}
	return h.lane.Start(stream, h.combineLaunch(flags))
}

// setCombine points the launch at the caller's tensors.
func (h *gpu) setCombine(call uint32, r *Routing, y, out weft.Tensor, bias []weft.Tensor) {
	a, p := h.combineArg, r.placement.(*gpuRouting)
	a.routed, a.recvRows, a.sent = p.at(p.off.home), p.at(p.off.recvRows), p.sent()
	a.call, a.y, a.out, a.tokens, a.biases = call, addressOf(y), addressOf(out), uint32(r.tokens), uint32(len(bias))
	for i, b := range bias {
		a.bias[i] = addressOf(b)
	}
}

// combineLaunch is the launch that does so much of a combine.
func (h *gpu) combineLaunch(flags uint32) *cuda.Launch {
	if h.tuning.pulls {
		h.placed.pull.flags = flags | h.placed.pullBulk
		return h.placed.pulling
	}
	a := h.combineArg
	a.flags, a.free = flags, h.ring.Free(h.lane.Capture())
	if flags&phases == flagSend|flagReceive {
		return h.fusedCombining
	}
	return h.combining
}
