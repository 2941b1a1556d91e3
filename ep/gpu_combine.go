package ep

import (
	"context"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
)

func (h *gpu) combine(ctx context.Context, s *weft.Stream, r *Routing, y, out weft.Tensor, bias []weft.Tensor) error {
	if err := h.startCombine(ctx, s, r, y, out, bias, whatSend|whatReceive); err != nil {
		return err
	}
	return h.finish(ctx, s)
}

func (h *gpu) sendCombine(ctx context.Context, s *weft.Stream, r *Routing, y, out weft.Tensor, bias []weft.Tensor) (*weft.Work, error) {
	if err := h.startCombine(ctx, s, r, y, out, bias, whatSend); err != nil {
		return nil, err
	}
	h.pending = opCombine
	operation := h.operations
	return weft.NewWork(func(ctx context.Context) error {
		if err := h.resume(opCombine, operation); err != nil {
			return err
		}
		stream := s.CUDA()
		if stream == nil {
			stream = h.device.Stream()
		}
		if err := h.launchCombine(stream, whatReceive); err != nil {
			return err
		}
		return h.finish(ctx, s)
	}), nil
}

func (h *gpu) startCombine(ctx context.Context, s *weft.Stream, r *Routing, y, out weft.Tensor, bias []weft.Tensor, what uint32) error {
	stream, err := h.enter(ctx, opCombine, s)
	if err != nil {
		return err
	}
	if err := h.checkCombineOperands(r, y, out, bias); err != nil {
		return err
	}
	a, p := h.combineArg, r.placement.(*gpuRouting)
	a.routed, a.landings = p.at(p.off.home), p.at(p.off.landings)
	a.y, a.out, a.tokens, a.biases = addressOf(y), addressOf(out), uint32(r.tokens), uint32(len(bias))
	for i, b := range bias {
		a.bias[i] = addressOf(b)
	}
	if err := h.launchCombine(stream, what); err != nil {
		return err
	}
	h.operations++
	return nil
}

// checkCombineOperands says what is wrong with the arguments of a combine.
func (h *gpu) checkCombineOperands(r *Routing, y, out weft.Tensor, bias []weft.Tensor) error {
	if err := h.checkCombine(opCombine, r, y, out, bias); err != nil {
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
		if err := aligned(opCombine, o.what, o.tensor); err != nil {
			return err
		}
	}
	return nil
}

func (h *gpu) launchCombine(stream *cuda.Stream, what uint32) error {
	a := h.combineArg
	a.what = a.what&^(whatSend|whatReceive) | what
	var err error
	if a.free, err = h.free(stream); err != nil {
		return err
	}
	return h.combining.Start(stream)
}
