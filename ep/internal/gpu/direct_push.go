package gpu

import (
	"cmp"
	"context"
	"strconv"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep/spec"
)

// pushArgs are the arguments of a dispatch: the Push of direct_push.cu.
type pushArgs struct {
	shape                              shape
	state                              uint64
	openings, marks, blocks            uint64
	blockBytes, scalesAt               uint64
	flags, tokens, call, block         uint32
	pieces                             device.Divisor
	rowBytes, scaleWords, pieceWords   uint32
	zone, rows, hidden, align, chunk   uint32
	chunks                             device.Divisor
	carriers                           uint32
	_                                  uint32
	x, scales                          uint64
	home, places, recvRows, recvTokens uint64
	described                          uint64
	records, weights                   uint64
	group                              device.Group
}

// pushKernel is that of a dispatch of rows whose places are known, and of one that gives the
// routing other weights as well.
func pushKernel(quantize weft.DType, weighs bool, arch string) kernel.Spec {
	name := "push"
	if weighs {
		name += " with weights"
	}
	s := kernelSpec(name+quantising(quantize), "direct_push.cu", arch,
		[]string{directDispatch}, "direct.cuh", "quantize.cuh")
	s.Defines["WEFT_WEIGHTS"] = strconv.FormatBool(weighs)
	s.Defines["WEFT_QUANTIZE"] = strconv.Itoa(typeNumber(quantize))
	s.Defines["WEFT_PUSH_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(pushArgs{})))
	return s
}

// pushed is the second half of a dispatch.
type pushed struct {
	enginegpu.Half
	h      *placed
	at     spec.Arrived
	made   bool // the batch was prepared with it
	weighs bool // weights come with the rows
}

func (h *placed) Dispatch(ctx context.Context, s *weft.Stream, a spec.MoveArgs) (spec.Arrived, error) {
	return h.push(ctx, s, &a, flagSend|flagReceive)
}

func (h *placed) SendDispatch(ctx context.Context, s *weft.Stream, a spec.MoveArgs) (spec.SecondHalf, error) {
	at, err := h.push(ctx, s, &a, flagSend)
	if err != nil {
		return nil, err
	}
	return &pushed{Half: h.lane.Sent(spec.OpDispatch, s), h: h, at: at, made: a.Prepares(), weighs: a.Weighs()}, nil
}

// Receive enqueues what waits for the rows.
func (p *pushed) Receive(ctx context.Context) (spec.Arrived, error) {
	h := p.h
	stream, err := p.Resume()
	if err == nil {
		err = h.lane.Receive(stream, h.pushLaunch(p.at.Batch, p.at.Buffer, flagReceive, 0, p.weighs))
	}
	if err == nil {
		err = p.Finish(ctx)
	}
	if err != nil {
		h.Put(p.at.Buffer)
		if p.made {
			p.at.Batch.Release()
		}
		return spec.Arrived{}, err
	}
	return p.at, nil
}

// push dispatches, by a batch that is there or by one that it prepares.
func (h *placed) push(ctx context.Context, s *weft.Stream, m *spec.MoveArgs, flags uint32) (spec.Arrived, error) {
	if m.Prepares() {
		return h.pushNew(ctx, s, m, flags)
	}
	stream, err := h.lane.Enter(ctx, spec.OpDispatch, s)
	if err != nil {
		return spec.Arrived{}, err
	}
	if err := m.Check(h.Base, spec.OpDispatch); err != nil {
		return spec.Arrived{}, err
	}
	if err := h.checkDispatch(m.Batch.Tokens, m); err != nil {
		return spec.Arrived{}, err
	}
	buffer, err := h.ring.Take(spec.OpDispatch)
	if err != nil {
		return spec.Arrived{}, err
	}
	call, weights := uint32(tagDispatch), weft.Tensor{}
	if m.Weighs() {
		call, weights = tagWeightDispatch, m.Weights
	}
	return h.pushRows(ctx, s, stream, m.Batch, m, weights, buffer, flags, call)
}

// pushNew prepares, and dispatches by the batch that comes of it.
func (h *placed) pushNew(ctx context.Context, s *weft.Stream, m *spec.MoveArgs, flags uint32) (spec.Arrived, error) {
	stream, err := h.lane.Enter(ctx, spec.OpDispatch, s)
	if err != nil {
		return spec.Arrived{}, err
	}
	if err := cmp.Or(m.Check(h.Base, spec.OpDispatch),
		h.checkSelections(spec.OpPrepareDispatch, m.TopK, m.Weights)); err != nil {
		return spec.Arrived{}, err
	}
	if err := h.checkDispatch(m.TopK.Shape[0], m); err != nil {
		return spec.Arrived{}, err
	}
	buffer, err := h.ring.Take(spec.OpDispatch) // before anything is enqueued
	if err != nil {
		return spec.Arrived{}, err
	}
	r, err := h.place(ctx, spec.OpDispatch, tagPrepareDispatch, stream, m.TopK, m.Weights)
	if err != nil {
		h.Put(buffer)
		return spec.Arrived{}, err
	}
	at, err := h.pushRows(ctx, s, stream, r, m, weft.Tensor{}, buffer, flags, tagPrepareDispatch)
	if err != nil {
		r.Release()
	}
	return at, err
}

// pushRows enqueues a dispatch of rows to a buffer that was taken for them, and of weights, if there
// are any.
func (h *placed) pushRows(ctx context.Context, s *weft.Stream, stream *cuda.Stream, r *spec.Batch, m *spec.MoveArgs,
	weights weft.Tensor, buffer int, flags, call uint32,
) (spec.Arrived, error) {
	a := h.direct.push.args
	a.x, a.scales, a.weights = addressOf(m.Data), addressOf(m.Scales), addressOf(weights)
	weighs := !weights.IsZero()
	if err := h.lane.Start(stream, h.pushLaunch(r, buffer, flags, call, weighs)); err != nil {
		h.Put(buffer)
		return spec.Arrived{}, err
	}
	if weighs {
		reweighed(r, stream)
	}
	shape := h.regions.block
	shape.Rows = r.Info.Rows()
	at := h.arrived(buffer, r, shape)
	if flags&flagReceive != 0 {
		if err := h.lane.Finish(ctx, s); err != nil {
			h.Put(buffer)
			return spec.Arrived{}, err
		}
	}
	return at, nil
}

// pushLaunch is the launch that does so much of a dispatch. What only receives tells no one which
// call it is.
func (h *placed) pushLaunch(r *spec.Batch, place int, flags, call uint32, weighs bool) *cuda.Launch {
	k := h.direct.push
	k.setRouting(r.Info.(*gpuRouting))
	a := k.args
	a.flags = a.flags&^(flagSend|flagReceive) | flags
	a.tokens, a.block, a.call = uint32(r.Tokens), uint32(place), call
	if weighs {
		return k.weighed
	}
	return k.launch
}

// push is the kernel of a dispatch: it stores rows at their places.
type push struct {
	launch  *cuda.Launch
	weighed *cuda.Launch // of a dispatch that brings weights
	args    *pushArgs
}

// newPush lays out the launches.
func (h *gpu) newPush(f functions, config cuda.LaunchConfig) (*push, error) {
	g, s, r := &h.Geometry, &h.Spec, &h.regions
	units := spec.MostUnits(*s)
	a := pushArgs{
		shape: h.shape(), openings: uint64(r.openings), marks: uint64(r.marks), blocks: uint64(r.blocks),
		blockBytes: uint64(r.block.Bytes), scalesAt: uint64(r.block.ScalesAt),
		flags:  layoutFlags(s.Layout)&flagRowPerToken | quantizeFlags(s),
		pieces: device.NewDivisor(spec.CeilDiv(s.RowSize(), units*spec.UnitBytes)), rowBytes: uint32(s.RowSize()),
		scaleWords: uint32(s.ScaleSize() / 4),
		pieceWords: pieceWords(s, units), zone: uint32(g.Capacity), rows: uint32(g.Capacity),
		hidden: uint32(s.Hidden), align: uint32(g.Align), records: uint64(r.records),
	}
	if s.ScaleOrder == spec.ColumnMajorScales {
		a.flags |= flagColumnScales
	}
	if s.Layout.Packed() && s.Counts == spec.HostCounts {
		a.zone = 0 // tensors have exactly the rows that come
	}
	bulk, err := h.bulk()
	if err != nil {
		return nil, err
	}
	if c := s.PushCarry(int(config.Block.X)); bulk && c.Warps > 0 {
		a.flags |= flagBulk
		a.chunk, a.carriers = uint32(c.Chunk), uint32(c.Warps)
		a.chunks = device.NewDivisor(spec.CeilDiv(s.RowSize(), c.Chunk))
		config.Shared = c.Chunk * c.Warps
		if err := cmp.Or(f.dispatch.SetMaxDynamicShared(config.Shared),
			f.weightDispatch.SetMaxDynamicShared(config.Shared)); err != nil {
			return nil, err
		}
	}
	k := &push{}
	if k.launch, err = f.dispatch.Prepare(config, a); err != nil {
		return nil, err
	}
	if k.weighed, err = k.launch.For(f.weightDispatch); err == nil {
		k.args, err = cuda.Arg[pushArgs](k.launch, 0)
	}
	return k, err
}

func (k *push) point(group device.Group, at func(int64) uint64) {
	k.args.group, k.args.state = group, at(0)
}

// setRouting points the launches at what p knows of a batch.
func (k *push) setRouting(p *gpuRouting) {
	a := k.args
	a.home, a.places, a.recvRows = p.at(p.off.home), p.at(p.off.places), p.at(p.off.recvRows)
	a.recvTokens, a.described = p.at(p.off.recvTokens), p.at(p.off.described)
}
