package gpu

import (
	"cmp"
	"context"

	"github.com/weftgo/weft"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep/spec"
)

func (h *handle) Prepare(ctx context.Context, s *weft.Stream, a spec.PrepareArgs) (*spec.Batch, error) {
	const op = spec.OpPrepare
	stream, err := h.lane.Enter(ctx, op, s)
	if err != nil {
		return nil, err
	}
	if err := h.checkSelections(op, a.TopK, a.Weights); err != nil {
		return nil, err
	}
	r, err := h.dispatcher.route(ctx, stream, a)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(h.lane.Finish(ctx, s), h.awaitCounts(ctx, r)); err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

func (h *handle) Dispatch(ctx context.Context, s *weft.Stream, a spec.MoveArgs) (spec.Arrived, error) {
	at, err := h.startDispatch(ctx, s, &a, flagSend|flagReceive)
	if err != nil {
		return at, err
	}
	return h.finishDispatch(ctx, at, a.Prepares(), h.lane.Finish(ctx, s))
}

func (h *handle) SendDispatch(ctx context.Context, s *weft.Stream, a spec.MoveArgs) (spec.SecondHalf, error) {
	at, err := h.startDispatch(ctx, s, &a, flagSend)
	if err != nil {
		return nil, err
	}
	return &sent{h.lane.Sent(spec.OpDispatch, s), h, at, a.Prepares(), a.BringsWeights()}, nil
}

// sent is the second half of a dispatch.
type sent struct {
	enginegpu.Half
	h           *handle
	at          spec.Arrived
	made        bool // the batch was prepared with it
	withWeights bool // weights come with the rows
}

// Receive enqueues what waits for the rows.
func (p *sent) Receive(ctx context.Context) (spec.Arrived, error) {
	stream, err := p.Resume()
	if err == nil {
		err = p.h.dispatcher.receive(stream, p.made, p.withWeights)
	}
	if err == nil {
		err = p.Finish(ctx)
	}
	return p.h.finishDispatch(ctx, p.at, p.made, err)
}

// startDispatch checks how a dispatch is to find where rows go, and enqueues it.
func (h *handle) startDispatch(ctx context.Context, s *weft.Stream, a *spec.MoveArgs, half uint32,
) (spec.Arrived, error) {
	stream, err := h.lane.Enter(ctx, spec.OpDispatch, s)
	if err != nil {
		return spec.Arrived{}, err
	}
	if err := a.Check(h.Base, spec.OpDispatch); err != nil {
		return spec.Arrived{}, err
	}
	if a.Prepares() {
		if err := h.checkSelections(spec.OpPrepareDispatch, a.TopK, a.Weights); err != nil {
			return spec.Arrived{}, err
		}
	}
	return h.dispatcher.move(ctx, stream, *a, half)
}

// finishDispatch waits for the counts of what arrives, if it was prepared with the dispatch, and
// gives everything back if the dispatch has failed.
func (h *handle) finishDispatch(ctx context.Context, at spec.Arrived, made bool, err error) (spec.Arrived, error) {
	if err == nil && made {
		err = h.awaitCounts(ctx, at.Batch)
	}
	if err == nil {
		return at, nil
	}
	h.Put(at.Buffer)
	if made {
		at.Batch.Release()
	}
	return spec.Arrived{}, err
}

// checkSelections says what is wrong with the arguments of a prepare.
func (h *handle) checkSelections(op string, topk, weights weft.Tensor) error {
	return cmp.Or(h.CheckRouting(op, topk, weights), whole(op, "topk", topk), whole(op, "weights", weights))
}

// checkDispatch says what is wrong with the rows of a dispatch.
func (h *handle) checkDispatch(tokens int, x *spec.MoveArgs) error {
	return cmp.Or(h.CheckRows(spec.OpDispatch, tokens, x), aligned(spec.OpDispatch, "rows", x.Data),
		aligned(spec.OpDispatch, "scales", x.Scales), whole(spec.OpDispatch, "weights", x.Weights))
}
