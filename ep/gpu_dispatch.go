package ep

import (
	"cmp"
	"context"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

func (h *gpu) prepare(ctx context.Context, s *weft.Stream, topk, weights weft.Tensor) (*Routing, error) {
	const op = opPrepare
	stream, err := h.lane.Enter(ctx, op, s)
	if err != nil {
		return nil, err
	}
	if err := h.checkSelections(op, topk, weights); err != nil {
		return nil, err
	}
	r, err := h.route(stream, topk.Shape[0], !weights.IsZero())
	if err != nil {
		return nil, err
	}
	a := h.dispatchArg
	h.setRouting(r, topk, weights)
	if err := h.lane.Start(stream, h.dispatchLaunch(flagSend|flagReceive|flagRoute, r.tokens)); err != nil {
		r.Release()
		return nil, err
	}
	a.ids, a.weights = 0, 0
	if err := cmp.Or(h.lane.Finish(ctx, s), h.settle(ctx, r)); err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

// dispatched is the second half of a dispatch.
type dispatched struct {
	enginegpu.Half
	h        *gpu
	received *Received
	routed   bool // routing travels with the rows
	made     bool // and is that of a new Routing
}

func (h *gpu) dispatch(ctx context.Context, s *weft.Stream, r *Routing, x Rows) (*Received, error) {
	return h.move(ctx, s, r, x, flagSend|flagReceive)
}

func (h *gpu) prepareDispatch(ctx context.Context, s *weft.Stream, topk, weights weft.Tensor,
	x Rows,
) (*Received, error) {
	return h.moveNew(ctx, s, topk, weights, x, flagSend|flagReceive)
}

func (h *gpu) sendDispatch(ctx context.Context, s *weft.Stream, r *Routing, x Rows) (*PendingDispatch, error) {
	received, err := h.move(ctx, s, r, x, flagSend)
	return h.halve(s, received, err, dispatched{routed: !x.Weights.IsZero()})
}

func (h *gpu) sendPrepareDispatch(ctx context.Context, s *weft.Stream, topk, weights weft.Tensor,
	x Rows,
) (*PendingDispatch, error) {
	received, err := h.moveNew(ctx, s, topk, weights, x, flagSend)
	return h.halve(s, received, err, dispatched{routed: true, made: true})
}

func (h *gpu) halve(s *weft.Stream, received *Received, err error, d dispatched) (*PendingDispatch, error) {
	if err != nil {
		return nil, err
	}
	d.Half, d.h, d.received = h.lane.Sent(opDispatch, s), h, received
	return &PendingDispatch{second: &d}, nil
}

// receive enqueues what waits for the rows.
func (d *dispatched) receive(ctx context.Context) (*Received, error) {
	h, r := d.h, d.received
	give := func(err error) (*Received, error) {
		r.Release()
		if d.made {
			r.Routing.Release()
		}
		return nil, err
	}
	stream, err := d.Resume()
	if err != nil {
		return give(err)
	}
	flags := uint32(flagReceive | flagMove)
	if d.routed {
		flags |= flagRoute
	}
	h.setPlace(r.Routing, r.place)
	if err := h.lane.Receive(stream, h.dispatchLaunch(flags, r.tokens)); err != nil {
		return give(err)
	}
	err = d.Finish(ctx)
	if err == nil && d.made {
		err = h.settle(ctx, r.Routing)
	}
	if err != nil {
		return give(err)
	}
	return r, nil
}

// move dispatches by a routing that is there.
func (h *gpu) move(ctx context.Context, s *weft.Stream, r *Routing, x Rows, phases uint32) (*Received, error) {
	stream, err := h.lane.Enter(ctx, opDispatch, s)
	if err != nil {
		return nil, err
	}
	if err := r.check(h.Handle, opDispatch); err != nil {
		return nil, err
	}
	flags := phases | flagMove
	if !x.Weights.IsZero() {
		if err := h.recall(stream, r, x); err != nil {
			return nil, err
		}
		flags |= flagRoute
	}
	received, err := h.startMove(stream, r, x, flags)
	h.dispatchArg.ids, h.dispatchArg.weights = 0, 0
	if err == nil && flags&flagRoute != 0 {
		r.reweighed(stream)
	}
	if err == nil && phases&flagReceive != 0 {
		if err = h.lane.Finish(ctx, s); err != nil {
			received.Release()
		}
	}
	return received, err
}

// recall points the launch at the experts of a Routing that is there, so that a dispatch tells them
// anew, with other weights.
func (h *gpu) recall(stream *cuda.Stream, r *Routing, x Rows) error {
	if h.comm.Mask() != r.masked {
		return weft.Unsupportedf("%s: ranks were masked since the routing was prepared, whose rows would "+
			"have other places if it were told anew; prepare again, or leave the weights out", opDispatch)
	}
	if err := h.checkDispatch(r.tokens, x); err != nil {
		return err
	}
	p := r.placement.(*gpuRouting)
	experts := p.at(p.off.experts)
	if err := h.startWeigh(stream, r, 0, experts); err != nil {
		return err
	}
	a := h.dispatchArg
	a.ids, a.weights = experts, addressOf(x.Weights)
	a.flags &^= flagWideIDs
	return nil
}

// moveNew dispatches with the routing.
func (h *gpu) moveNew(ctx context.Context, s *weft.Stream, topk, weights weft.Tensor, x Rows,
	phases uint32,
) (*Received, error) {
	stream, err := h.lane.Enter(ctx, opDispatch, s)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(x.checkFused(opDispatch), h.checkSelections(opPrepareDispatch, topk, weights)); err != nil {
		return nil, err
	}
	r, err := h.route(stream, topk.Shape[0], !weights.IsZero())
	if err != nil {
		return nil, err
	}
	h.setRouting(r, topk, weights)
	received, err := h.startMove(stream, r, x, phases|flagMove|flagRoute)
	h.dispatchArg.ids, h.dispatchArg.weights = 0, 0
	if err != nil {
		r.Release()
		return nil, err
	}
	if phases&flagReceive == 0 {
		return received, nil
	}
	if err := cmp.Or(h.lane.Finish(ctx, s), h.settle(ctx, r)); err != nil {
		received.Release()
		r.Release()
		return nil, err
	}
	return received, nil
}

// startMove enqueues a dispatch of rows.
func (h *gpu) startMove(stream *cuda.Stream, r *Routing, x Rows, flags uint32) (*Received, error) {
	if err := h.checkDispatch(r.tokens, x); err != nil {
		return nil, err
	}
	place, err := h.ring.Take(opDispatch)
	if err != nil {
		return nil, err
	}
	a := h.dispatchArg
	a.x, a.scales = addressOf(x.Data), addressOf(x.Scales)
	h.setPlace(r, place)
	if err := h.lane.Start(stream, h.dispatchLaunch(flags, r.tokens)); err != nil {
		h.put(place)
		return nil, err
	}
	h.ring.Keep(place, h.lane.Capture())
	return h.receivedAt(place, r, h.regions.block), nil
}

// checkSelections says what is wrong with the arguments of a prepare.
func (h *gpu) checkSelections(op string, topk, weights weft.Tensor) error {
	return cmp.Or(h.checkRouting(op, topk, weights), whole(op, "top-k experts", topk), whole(op, "weights", weights))
}

// checkDispatch says what is wrong with the rows of a dispatch.
func (h *gpu) checkDispatch(tokens int, x Rows) error {
	return cmp.Or(h.checkRows(tokens, x, opDispatch), aligned(opDispatch, "rows", x.Data),
		aligned(opDispatch, "scales", x.Scales), whole(opDispatch, "weights", x.Weights))
}

// setRouting points the launch at the caller's routing.
func (h *gpu) setRouting(r *Routing, topk, weights weft.Tensor) {
	a := h.dispatchArg
	a.ids, a.weights = addressOf(topk), addressOf(weights)
	a.flags &^= flagWideIDs
	if topk.DType == weft.Int64 {
		a.flags |= flagWideIDs
	}
	h.setPlace(r, -1)
}

// setPlace points the launch at the memory of a Routing and, unless place is negative, at that of
// received rows.
func (h *gpu) setPlace(r *Routing, place int) {
	a, p := h.dispatchArg, r.placement.(*gpuRouting)
	a.home, a.recvRows, a.described, a.ranges = p.at(p.off.home), p.at(p.off.recvRows), p.at(p.off.described), 0
	if h.geometry.layout.byExpert() {
		a.ranges = p.at(p.off.ranges)
	}
	if place < 0 {
		return
	}
	to := h.placeOf(place)
	a.out, a.outScales = uint64(to), uint64(to.Add(int(h.regions.block.scalesAt)))
	if h.regions.direct {
		a.block = uint32(place)
		a.direct = uint64(to - h.lane.Window().Pointer())
		a.directScales = a.direct + uint64(h.regions.block.scalesAt)
	}
}

// phases are the parts of an operation that a launch does, which differ from call to call.
const phases = flagSend | flagReceive | flagRoute | flagMove

// dispatchLaunch is the launch that does so much of a dispatch.
func (h *gpu) dispatchLaunch(flags uint32, tokens int) *cuda.Launch {
	a := h.dispatchArg
	a.flags, a.free, a.tokens = a.flags&^phases|flags, h.ring.Free(h.lane.Capture()), uint32(tokens)
	if flags == phases {
		return h.fusedDispatching
	}
	return h.dispatching
}
