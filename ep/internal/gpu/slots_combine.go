package gpu

import (
	"cmp"
	"context"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
)

func (h *gpu) Combine(ctx context.Context, s *weft.Stream, a spec.SumArgs) error {
	if err := h.enterCombine(ctx, s, &a, flagSend|flagReceive|h.weighted()); err != nil {
		return err
	}
	return h.lane.Finish(ctx, s)
}

func (h *gpu) SendCombine(ctx context.Context, s *weft.Stream, a spec.SumArgs) (*weft.Work, error) {
	if err := h.enterCombine(ctx, s, &a, flagSend|h.weighted()); err != nil {
		return nil, err
	}
	half := h.lane.Sent(spec.OpCombine, s)
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
	if h.Spec.Weighting == spec.Weighted {
		return flagWeighted
	}
	return 0
}

// enterCombine checks the arguments of a combine and enqueues it.
func (h *gpu) enterCombine(ctx context.Context, s *weft.Stream, a *spec.SumArgs, flags uint32) error {
	const op = spec.OpCombine
	stream, err := h.lane.Enter(ctx, op, s)
	if err != nil {
		return err
	}
	if err := h.checkCombineOperands(op, a); err != nil {
		return err
	}
	if !a.Weights.IsZero() {
		if err := whole(op, "weights", a.Weights); err != nil {
			return err
		}
		a.Batch.Weights = spec.WeightsAtHome
		if h.tuning.Pulls || flags&phases != flagSend|flagReceive {
			if err := h.startWeigh(stream, a.Batch, addressOf(a.Weights), 0); err != nil {
				return err
			}
		} else { // the kernel reads them where they are, and keeps them
			a.Batch.Info.(*gpuRouting).rewrite()
			h.combineArg.weights = addressOf(a.Weights)
			defer func() { h.combineArg.weights = 0 }()
		}
	}
	return h.startCombine(tagCombine, stream, a, flags)
}

// checkCombineOperands says what is wrong with the arguments of a combine, but for its own weights
// if it has some.
func (h *gpu) checkCombineOperands(op string, a *spec.SumArgs) error {
	if err := cmp.Or(h.CheckSum(op, a), aligned(op, "rows", a.Rows), aligned(op, "output rows", a.Out)); err != nil {
		return err
	}
	return cmp.Or(aligned(op, "biases", a.Bias[0]), aligned(op, "biases", a.Bias[1]))
}

// startCombine enqueues what brings rows home; a pull brings gradients of weights besides.
func (h *gpu) startCombine(call uint32, stream *cuda.Stream, a *spec.SumArgs, flags uint32) error {
	if h.tuning.Pulls {
		if err := h.setPull(call, stream, a); err != nil {
			return err
		}
	} else {
		h.setCombine(call, a)
	}
	return h.lane.Start(stream, h.combineLaunch(flags))
}

// setCombine points the launch at the caller's tensors.
func (h *gpu) setCombine(call uint32, c *spec.SumArgs) {
	a, p := h.combineArg, c.Batch.Info.(*gpuRouting)
	a.routed, a.recvRows, a.sent = p.at(p.off.home), p.at(p.off.recvRows), p.sent()
	a.call, a.y, a.out = call, addressOf(c.Rows), addressOf(c.Out)
	a.tokens, a.biases = uint32(c.Batch.Tokens), uint32(c.Biases)
	for i, b := range c.Bias[:c.Biases] {
		a.bias[i] = addressOf(b)
	}
}

// combineLaunch is the launch that does so much of a combine.
func (h *gpu) combineLaunch(flags uint32) *cuda.Launch {
	if h.tuning.Pulls {
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
