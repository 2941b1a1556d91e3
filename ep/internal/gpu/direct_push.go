package gpu

import (
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

// push dispatches rows straight into receive buffers: the kernel of direct_push.cu. It reads the rows
// that a row map has computed.
type push struct {
	launcher[pushArgs] // the second is of calls that bring weights
	*rowMap            // prepares
	request            request
	// Where the weights come that a call brings: an offset in the window, of token-major rows. By expert they come to
	// the records of the prepare. Token-major those are words that carry their operation's number.
	weightRecords int64
}

// pushArgs are the arguments of a dispatch: the Push of direct_push.cu.
type pushArgs struct {
	shape                                shape
	state                                uint64
	openings, marks, blocks              uint64
	blockBytes, scalesAt                 uint64
	flags, tokens, call, block           uint32
	pieces                               device.Divisor
	rowBytes, scaleWords, pieceWords     uint32
	zone, rows, hidden, align, chunk     uint32
	chunks                               device.Divisor
	carriers                             uint32
	_                                    uint32
	x, scales                            uint64
	home, destRows, recvRows, recvTokens uint64
	described                            uint64
	weightRecords, weights               uint64
	group                                device.Group
}

// pushKernel is that of a dispatch of rows whose final rows are known, and of one that also gives the
// routing other weights.
func pushKernel(quantize weft.DType, withWeights bool, arch string) kernel.Spec {
	name := "push"
	if withWeights {
		name += " with weights"
	}
	s := kernelSpec(name+quantising(quantize), "direct_push.cu", arch,
		[]string{directDispatch}, "direct.cuh", "quantize.cuh")
	s.Defines["WEFT_WEIGHTS"] = strconv.FormatBool(withWeights)
	s.Defines["WEFT_QUANTIZE"] = strconv.Itoa(typeNumber(quantize))
	s.Defines["WEFT_PUSH_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(pushArgs{})))
	return s
}

func (k *push) load(p *programs) {
	p.add(pushKernel(k.h.Spec.Quantize, false, p.arch), &k.functions[0])
	p.add(pushKernel(k.h.Spec.Quantize, true, p.arch), &k.functions[1])
}

func (k *push) want() *request {
	c := &k.h.choice
	k.request = request{of: ofDispatch, grid: grid{moving: c.DispatchBlocks, threads: c.DispatchThreads}, whole: true}
	return &k.request
}

func (k *push) layout(window, _ *enginegpu.Workspace) {
	rows := &k.h.received
	size := int64(k.h.Spec.Live) * rows.block.Bytes
	rows.inWindow, rows.at = true, window.Raw(size)
	k.h.lend(rows.at, size)
	if g := &k.h.Geometry; !g.Layout.ByExpert() {
		k.weightRecords = window.Raw(2 * int64(g.Ranks) * int64(g.Tokens) * int64(g.TopK) * int64(pairBytes))
	}
}

func (k *push) addRouting(l *routingLayout) {
	g := &k.h.Geometry
	l.destRows = l.region(g.Tokens * g.TopK * 4)
	l.recvTokens = l.region(g.Ranks * g.Tokens * 4)
	l.overflows = true
}

func (k *push) prepare() error {
	h, g, s := k.h, &k.h.Geometry, &k.h.Spec
	rows, units := &h.received, spec.MostUnits(*s)
	a := pushArgs{
		shape: h.shape(), openings: uint64(k.openings), marks: uint64(k.marks),
		weightRecords: uint64(k.weightRecords), blocks: uint64(rows.at),
		blockBytes: uint64(rows.block.Bytes), scalesAt: uint64(rows.block.ScalesAt),
		flags:  layoutFlags(s.Layout)&flagRowPerToken | quantizeFlags(s),
		pieces: device.NewDivisor(spec.CeilDiv(s.RowSize(), units*spec.UnitBytes)), rowBytes: uint32(s.RowSize()),
		scaleWords: uint32(s.ScaleSize() / 4),
		pieceWords: pieceWords(s, units), zone: uint32(g.Capacity), rows: uint32(g.Capacity),
		hidden: uint32(s.Hidden), align: uint32(g.Align),
	}
	if g.Layout.ByExpert() {
		a.weightRecords = uint64(k.records)
	}
	if s.ScaleOrder == spec.ColumnMajorScales {
		a.flags |= flagColumnScales
	}
	if s.Layout.Packed() && s.Counts == spec.HostCounts {
		a.zone = 0 // tensors have exactly the rows that come
	}
	bulk, err := h.bulk()
	if err != nil {
		return err
	}
	config := h.config(k.request.grid, false)
	if c := s.PushCarry(k.request.threads); bulk && c.Warps > 0 {
		a.flags |= flagBulk
		a.chunk, a.carriers = uint32(c.Chunk), uint32(c.Warps)
		a.chunks = device.NewDivisor(spec.CeilDiv(s.RowSize(), c.Chunk))
		config.Shared = c.Chunk * c.Warps
	}
	return k.layOut(config, a)
}

func (k *push) point() {
	h := k.h
	k.pointed(func(a *pushArgs) { a.group, a.state = h.lane.Group(h.waits.dispatch), h.localAt(0) })
}

// move implements [dispatcher]. A batch that is prepared on the way is there before rows leave.
func (k *push) move(ctx context.Context, stream *cuda.Stream, m spec.MoveArgs, half uint32) (spec.Arrived, error) {
	h, r, call, tokens := k.h, m.Batch, uint32(tagDispatch), 0
	if m.Prepares() {
		call, tokens = tagPrepareDispatch, m.TopK.Shape[0]
	} else {
		tokens = r.Tokens
	}
	if m.BringsWeights() {
		call = tagWeightDispatch
	}
	if err := h.checkDispatch(tokens, &m); err != nil {
		return spec.Arrived{}, err
	}
	buffer, err := h.ring.Take(spec.OpDispatch) // before anything is enqueued
	if err != nil {
		return spec.Arrived{}, err
	}
	if m.Prepares() {
		if r, err = k.start(ctx, spec.OpDispatch, call, stream, m.TopK, m.Weights); err != nil {
			h.Put(buffer)
			return spec.Arrived{}, err
		}
	}
	k.call(r, &m, buffer).call = call
	if err := h.lane.Start(stream, k.doing(half, m.BringsWeights())); err != nil {
		h.Put(buffer)
		if m.Prepares() {
			r.Release()
		}
		return spec.Arrived{}, err
	}
	if m.BringsWeights() {
		gotWeights(r, stream)
	}
	shape := h.received.block
	shape.Rows = r.Info.Rows()
	return h.arrived(buffer, r, shape), nil
}

// call begins a dispatch of rows to a buffer that was taken for them.
func (k *push) call(r *spec.Batch, m *spec.MoveArgs, buffer int) *pushArgs {
	a, p, l := k.begin(), r.Info.(*gpuRouting), &k.h.routing
	a.home, a.destRows, a.recvRows = p.at(l.home), p.at(l.destRows), p.at(l.recvRows)
	a.recvTokens, a.described = p.at(l.recvTokens), p.at(l.described)
	a.tokens, a.block = uint32(r.Tokens), uint32(buffer)
	a.x, a.scales = addressOf(m.Data), addressOf(m.Scales)
	if m.BringsWeights() {
		a.weights = addressOf(m.Weights)
	}
	return a
}

// receive implements [dispatcher]. What only receives tells no rank which call it is.
func (k *push) receive(stream *cuda.Stream, _, withWeights bool) error {
	k.args.call = 0
	return k.h.lane.Receive(stream, k.doing(flagReceive, withWeights))
}

// doing is the launch that does so much of the call.
func (k *push) doing(half uint32, withWeights bool) *cuda.Launch {
	a := k.args
	a.flags = a.flags&^(flagSend|flagReceive) | half
	if withWeights {
		return k.launches[1]
	}
	return k.launches[0]
}

// pushPrograms are those of all handles.
func pushPrograms(arch string) (all []kernel.Spec) {
	for _, from := range []weft.DType{weft.InvalidDType, weft.BFloat16, weft.Float16, weft.Float32} {
		all = append(all, pushKernel(from, false, arch), pushKernel(from, true, arch))
	}
	return all
}
