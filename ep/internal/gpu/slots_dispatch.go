package gpu

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

func (h *gpu) Prepare(ctx context.Context, s *weft.Stream, c spec.PrepareArgs) (*spec.Batch, error) {
	const op = spec.OpPrepare
	stream, err := h.lane.Enter(ctx, op, s)
	if err != nil {
		return nil, err
	}
	if err := h.checkSelections(op, c.TopK, c.Weights); err != nil {
		return nil, err
	}
	r, err := h.route(stream, c.TopK.Shape[0], !c.Weights.IsZero())
	if err != nil {
		return nil, err
	}
	a := h.dispatchArg
	h.setRouting(r, c.TopK, c.Weights)
	if err := h.lane.Start(stream, h.dispatchLaunch(flagSend|flagReceive|flagRoute, r.Tokens)); err != nil {
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
	h      *gpu
	at     spec.Arrived
	routed bool // routing travels with the rows
	made   bool // and is that of a new batch
}

func (h *gpu) Dispatch(ctx context.Context, s *weft.Stream, a spec.MoveArgs) (spec.Arrived, error) {
	return h.move(ctx, s, &a, flagSend|flagReceive)
}

func (h *gpu) SendDispatch(ctx context.Context, s *weft.Stream, a spec.MoveArgs) (spec.SecondHalf, error) {
	at, err := h.move(ctx, s, &a, flagSend)
	if err != nil {
		return nil, err
	}
	return &dispatched{
		Half: h.lane.Sent(spec.OpDispatch, s), h: h, at: at, routed: a.Prepares() || a.Weighs(), made: a.Prepares(),
	}, nil
}

// Receive enqueues what waits for the rows.
func (d *dispatched) Receive(ctx context.Context) (spec.Arrived, error) {
	h, r := d.h, d.at.Batch
	give := func(err error) (spec.Arrived, error) {
		h.Put(d.at.Buffer)
		if d.made {
			r.Release()
		}
		return spec.Arrived{}, err
	}
	stream, err := d.Resume()
	if err != nil {
		return give(err)
	}
	flags := uint32(flagReceive | flagMove)
	if d.routed {
		flags |= flagRoute
	}
	h.setPlace(r, d.at.Buffer)
	if err := h.lane.Receive(stream, h.dispatchLaunch(flags, r.Tokens)); err != nil {
		return give(err)
	}
	err = d.Finish(ctx)
	if err == nil && d.made {
		err = h.settle(ctx, r)
	}
	if err != nil {
		return give(err)
	}
	return d.at, nil
}

// move dispatches, with the routing or by one that is there.
func (h *gpu) move(ctx context.Context, s *weft.Stream, a *spec.MoveArgs, phases uint32) (spec.Arrived, error) {
	if a.Prepares() {
		return h.moveNew(ctx, s, a, phases)
	}
	return h.moveBy(ctx, s, a, phases)
}

// moveBy dispatches by a routing that is there.
func (h *gpu) moveBy(ctx context.Context, s *weft.Stream, m *spec.MoveArgs, phases uint32) (spec.Arrived, error) {
	stream, err := h.lane.Enter(ctx, spec.OpDispatch, s)
	if err != nil {
		return spec.Arrived{}, err
	}
	r := m.Batch
	if err := m.Check(h.Base, spec.OpDispatch); err != nil {
		return spec.Arrived{}, err
	}
	flags := phases | flagMove
	if m.Weighs() {
		if err := h.recall(stream, m); err != nil {
			return spec.Arrived{}, err
		}
		flags |= flagRoute
	}
	at, err := h.startMove(stream, r, m, flags)
	h.dispatchArg.ids, h.dispatchArg.weights = 0, 0
	if err == nil && flags&flagRoute != 0 {
		reweighed(r, stream)
	}
	if err == nil && phases&flagReceive != 0 {
		if err = h.lane.Finish(ctx, s); err != nil {
			h.Put(at.Buffer)
		}
	}
	return at, err
}

// recall points the launch at the experts of a Routing that is there, so that a dispatch tells them
// anew, with other weights.
func (h *gpu) recall(stream *cuda.Stream, m *spec.MoveArgs) error {
	r := m.Batch
	if h.Comm.Mask() != r.Masked {
		return weft.Unsupportedf("%s: ranks were masked since the routing was prepared, whose rows would "+
			"have other places if it were told anew; prepare again, or leave the weights out", spec.OpDispatch)
	}
	if err := h.checkDispatch(r.Tokens, m); err != nil {
		return err
	}
	p := r.Info.(*gpuRouting)
	experts := p.at(p.off.experts)
	if err := h.startWeigh(stream, r, 0, experts); err != nil {
		return err
	}
	a := h.dispatchArg
	a.ids, a.weights = experts, addressOf(m.Weights)
	a.flags &^= flagWideIDs
	return nil
}

// moveNew dispatches with the routing.
func (h *gpu) moveNew(ctx context.Context, s *weft.Stream, m *spec.MoveArgs, phases uint32) (spec.Arrived, error) {
	stream, err := h.lane.Enter(ctx, spec.OpDispatch, s)
	if err != nil {
		return spec.Arrived{}, err
	}
	if err := cmp.Or(m.Check(h.Base, spec.OpDispatch),
		h.checkSelections(spec.OpPrepareDispatch, m.TopK, m.Weights)); err != nil {
		return spec.Arrived{}, err
	}
	r, err := h.route(stream, m.TopK.Shape[0], !m.Weights.IsZero())
	if err != nil {
		return spec.Arrived{}, err
	}
	h.setRouting(r, m.TopK, m.Weights)
	at, err := h.startMove(stream, r, m, phases|flagMove|flagRoute)
	h.dispatchArg.ids, h.dispatchArg.weights = 0, 0
	if err != nil {
		r.Release()
		return at, err
	}
	if phases&flagReceive == 0 {
		return at, nil
	}
	if err := cmp.Or(h.lane.Finish(ctx, s), h.settle(ctx, r)); err != nil {
		h.Put(at.Buffer)
		r.Release()
		return at, err
	}
	return at, nil
}

// startMove enqueues a dispatch of rows.
func (h *gpu) startMove(stream *cuda.Stream, r *spec.Batch, m *spec.MoveArgs, flags uint32) (spec.Arrived, error) {
	if err := h.checkDispatch(r.Tokens, m); err != nil {
		return spec.Arrived{}, err
	}
	buffer, err := h.ring.Take(spec.OpDispatch)
	if err != nil {
		return spec.Arrived{}, err
	}
	a := h.dispatchArg
	a.x, a.scales = addressOf(m.Data), addressOf(m.Scales)
	h.setPlace(r, buffer)
	if err := h.lane.Start(stream, h.dispatchLaunch(flags, r.Tokens)); err != nil {
		h.Put(buffer)
		return spec.Arrived{}, err
	}
	h.ring.Keep(buffer, h.lane.Capture())
	return h.arrived(buffer, r, h.regions.block), nil
}

// checkSelections says what is wrong with the arguments of a prepare.
func (h *gpu) checkSelections(op string, topk, weights weft.Tensor) error {
	return cmp.Or(h.CheckRouting(op, topk, weights), whole(op, "top-k experts", topk), whole(op, "weights", weights))
}

// checkDispatch says what is wrong with the rows of a dispatch.
func (h *gpu) checkDispatch(tokens int, x *spec.MoveArgs) error {
	return cmp.Or(h.CheckRows(spec.OpDispatch, tokens, x), aligned(spec.OpDispatch, "rows", x.Data),
		aligned(spec.OpDispatch, "scales", x.Scales), whole(spec.OpDispatch, "weights", x.Weights))
}

// setRouting points the launch at the caller's routing.
func (h *gpu) setRouting(r *spec.Batch, topk, weights weft.Tensor) {
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
func (h *gpu) setPlace(r *spec.Batch, place int) {
	a, p := h.dispatchArg, r.Info.(*gpuRouting)
	a.home, a.recvRows, a.described, a.ranges = p.at(p.off.home), p.at(p.off.recvRows), p.at(p.off.described), 0
	if h.Geometry.Layout.ByExpert() {
		a.ranges = p.at(p.off.ranges)
	}
	if place < 0 {
		return
	}
	to := h.placeOf(place)
	a.out, a.outScales = uint64(to), uint64(to.Add(int(h.regions.block.ScalesAt)))
	if h.regions.direct {
		a.block = uint32(place)
		a.direct = uint64(to - h.lane.Window().Pointer())
		a.directScales = a.direct + uint64(h.regions.block.ScalesAt)
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

func (h *gpu) prepareDispatchLaunch(f functions, config cuda.LaunchConfig) (err error) {
	g, s, r, units := &h.Geometry, &h.Spec, &h.regions, h.tuning.DispatchUnits
	d := dispatchArgs{
		shape: h.shape(),
		heads: uint64(r.heads), counts: uint64(r.counts), records: uint64(r.records), rows: uint64(r.rows),
		arrived: uint64(r.arrived), ready: uint64(r.ready),
		pieces: device.NewDivisor(spec.CeilDiv(s.RowSize(), units*spec.UnitBytes)), ranks: device.NewDivisor(g.Ranks),
		selections: device.NewDivisor(g.Tokens * g.TopK),
		turnBytes:  uint64(r.rowTurn), slotBytes: uint32(r.slotBytes), rowBytes: uint32(s.RowSize()),
		scaleWords: uint32(s.ScaleSize() / 4), pieceWords: pieceWords(s, units), hidden: uint32(s.Hidden),
		zone: device.NewDivisor(g.Capacity), senders: spec.Senders(h.blocks.dispatch, h.tuning.DispatchSenders),
		notifyBlocks: uint32(h.blocks.dispatchClerks), flags: quantizeFlags(s),
	}
	scales := spec.ScaleStrides(s.ScaleOrder, d.scaleWords, d.zone.By)
	d.scaleRow, d.scaleZone, d.scaleWord = scales.Row, scales.Zone, scales.Word
	if r.direct {
		d.flags |= flagInPlace
	}
	if h.dispatching, err = f.dispatch.Prepare(config, d); err != nil {
		return err
	}
	if h.fusedDispatching = h.dispatching; f.fusedDispatch != nil {
		if h.fusedDispatching, err = h.dispatching.For(f.fusedDispatch); err != nil {
			return err
		}
	}
	h.dispatchArg, err = cuda.Arg[dispatchArgs](h.dispatching, 0)
	return err
}

// dispatchFormOf is that of a dispatch through slots.
func dispatchFormOf(t *spec.Choice, s *spec.Spec) dispatchForm {
	f := dispatchForm{byExpert: s.Layout.ByExpert(), quantize: s.Quantize, kind: byFlag, units: t.DispatchUnits}
	if t.ValueDispatch {
		f.kind = byValue
	}
	f.gathers = f == gatherForm && s.MaxTokens == 1 && s.Payload == spec.Opaque && s.TopK == s.Experts
	return f
}

// fusedDispatchFormOf is that of calls that prepare, send and receive at once; they may have no other
// than the rest.
func fusedDispatchFormOf(t *spec.Choice, s *spec.Spec, ranks int) dispatchForm {
	f := dispatchFormOf(t, s)
	switch {
	case !t.ValueDispatch:
	case !spec.FewTokens(*s, ranks):
		f.kind = byMany
	case t.DispatchUnits == 1:
		f.kind = byFew
	}
	return f
}

// dispatchArgs are the arguments of a dispatch: the Dispatch of slots_dispatch.cuh. Fields that
// are addresses lie on this GPU; offsets are those of a window.
type dispatchArgs struct {
	shape                              shape
	state                              uint64
	heads, counts, records, rows       uint64
	arrived, ready                     uint64
	turnBytes                          uint64
	direct, directScales               uint64
	pieces, ranks, selections, zone    device.Divisor
	slotBytes, rowBytes                uint32
	scaleWords, pieceWords             uint32
	scaleRow, scaleZone, scaleWord     uint32
	flags, tokens, hidden              uint32
	senders, block, free, notifyBlocks uint32
	ids, weights, x, scales            uint64
	home, recvRows, described, ranges  uint64
	filled, credits, out, outScales    uint64
	group                              device.Group
}

// kind is what the kernels of an operation through slots differ in besides: what tells that a row
// has come, and whether one serves every call.
type kind string

const (
	byValue kind = "value" // rows are their own flags
	byMany  kind = "many"  // as byValue, for calls that do everything at once
	byFew   kind = "few"   // as byMany, of few tokens
	byFlag  kind = "flag"  // a word a block tells of rows
)

// dispatchForm is what handles differ in whose dispatches are programs of their own.
type dispatchForm struct {
	byExpert bool
	quantize weft.DType
	kind     kind
	units    int  // of a piece
	gathers  bool // every token goes to everybody: an all-gather, which profilers are told of by that name
}

// gatherForm is the only form of a dispatch that gathers: it carries a few bytes, which may be any.
var gatherForm = dispatchForm{quantize: weft.InvalidDType, kind: byFlag, units: 1}

func dispatchKernel(f dispatchForm, arch string) kernel.Spec {
	name, layout := slotsDispatch, spec.RankMajor
	if f.gathers {
		name = slotsGather
	}
	if f.byExpert {
		layout = spec.ExpertMajor
	}
	s := kernelSpec(fmt.Sprintf("%s, %s %d, %v%s", bare(name), f.kind, f.units, layout, quantising(f.quantize)),
		"slots_dispatch.cu", arch,
		[]string{name}, "slots_dispatch.cuh", "expert_index.cuh", "notify.cuh", "quantize.cuh")
	s.Defines["WEFT_KERNEL"] = bare(name)
	s.Defines["WEFT_BY_EXPERT"] = number(f.byExpert)
	s.Defines["WEFT_QUANTIZE"] = strconv.Itoa(typeNumber(f.quantize))
	s.Defines["WEFT_VALUE"], s.Defines["WEFT_UNITS"] = strconv.FormatBool(f.kind != byFlag), strconv.Itoa(f.units)
	s.Defines["WEFT_PURPOSE"] = "ANY"
	if f.kind == byMany || f.kind == byFew {
		s.Defines["WEFT_PURPOSE"] = strings.ToUpper(string(f.kind))
	}
	s.Defines["WEFT_DISPATCH_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(dispatchArgs{})))
	return s
}
