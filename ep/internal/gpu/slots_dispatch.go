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

// slotDispatch prepares and dispatches by slots: the kernel of slots_dispatch.cu.
type slotDispatch struct {
	launcher[dispatchArgs] // the second is of calls that do everything at once
	h                      *handle
	request                request

	heads, counts, records, rows, arrived, ready int64 // offsets in the window
	slotBytes, turnBytes                         int64 // of a slot, and of a turn of all
	filled                                       int64 // in this GPU's own memory

	carry carrier[dispatchArgs] // to and from far ranks
}

func (d *slotDispatch) load(p *programs) {
	s, c := &d.h.Spec, &d.h.choice
	form, fused := dispatchFormOf(c, s), fusedDispatchFormOf(c, s, d.h.Geometry.Ranks)
	p.add(dispatchKernel(form, p.arch), d.carry.with(form.ports, &d.functions[0])...)
	if fused != form {
		p.add(dispatchKernel(fused, p.arch), &d.functions[1])
	}
}

func (d *slotDispatch) want() *request {
	c := &d.h.choice
	d.request = request{
		of: ofDispatch, functions: append(d.functions[:], d.carry.functions[:]...),
		grid:   grid{moving: c.DispatchBlocks, notify: c.DispatchNotify, threads: c.DispatchThreads},
		widens: d.h.Spec.Tuning.Dispatch.Threads == 0 && !(c.ValueDispatch && c.DispatchUnits == 1),
	}
	return &d.request
}

// inPlace says whether peers store rows where the caller reads them, rather than in slots.
func (d *slotDispatch) inPlace() bool {
	s := &d.h.Spec
	return !d.h.choice.ValueDispatch && !d.h.choice.Ports && s.Layout == spec.RankMajor && s.Live < 32
}

func (d *slotDispatch) layout(window, local *enginegpu.Workspace) {
	g, s := &d.h.Geometry, &d.h.Spec
	ranks, tokens := int64(g.Ranks), int64(g.Tokens)
	d.heads = window.Ones(3 * ranks * device.OpeningBytes)
	if s.Layout.ByExpert() {
		turns := int64(3)
		if d.h.choice.OncePerHost {
			turns++ // of what is for far ranks
		}
		d.counts = window.Ones(turns * ranks * int64(countWords+g.Local) * 4)
	}
	d.records = window.Ones(3 * ranks * tokens * int64(g.TopK) * int64(pairBytes))
	d.arrived = window.Zeros(ranks * int64(d.request.moving) * 4)
	d.ready = window.Zeros(ranks * 4)
	d.slotBytes = int64(s.RowSize()) + (int64(s.ScaleSize())+15)&^15
	d.turnBytes = ranks * tokens * d.slotBytes
	switch {
	case d.h.choice.ValueDispatch:
		d.rows = window.Ones(3 * d.turnBytes)
	case !d.inPlace():
		d.rows = window.Raw(2 * d.turnBytes)
	default:
		at := window.Raw(int64(s.Live) * d.h.received.block.Bytes)
		d.h.received.inWindow, d.h.received.inTurn, d.h.received.at = true, true, at
	}
	d.filled = local.Zeros(3 * ranks * (tokens + 1) * 4)
}

func (d *slotDispatch) addRouting(l *routingLayout) {
	l.experts = l.region(d.h.Geometry.Tokens * d.h.Geometry.TopK * 4)
}

func (d *slotDispatch) prepare() error {
	h := d.h
	g, s, c := &h.Geometry, &h.Spec, &h.choice
	a := dispatchArgs{
		shape: h.shape(),
		heads: uint64(d.heads), counts: uint64(d.counts), records: uint64(d.records), rows: uint64(d.rows),
		arrived: uint64(d.arrived), ready: uint64(d.ready),
		pieces:     device.NewDivisor(spec.CeilDiv(s.RowSize(), c.DispatchUnits*spec.UnitBytes)),
		ranks:      device.NewDivisor(g.Ranks),
		selections: device.NewDivisor(g.Tokens * g.TopK),
		turnBytes:  uint64(d.turnBytes), slotBytes: uint32(d.slotBytes), rowBytes: uint32(s.RowSize()),
		scaleWords: uint32(s.ScaleSize() / 4), pieceWords: pieceWords(s, c.DispatchUnits), hidden: uint32(s.Hidden),
		zone: device.NewDivisor(g.Capacity), senders: spec.Senders(d.request.moving, c.DispatchSenders),
		notifyBlocks: uint32(d.request.notify), flags: quantizeFlags(s),
	}
	scales := spec.ScaleStrides(s.ScaleOrder, a.scaleWords, a.zone.By)
	a.scaleRow, a.scaleZone, a.scaleWord = scales.Row, scales.Zone, scales.Word
	if d.inPlace() {
		a.flags |= flagInPlace
	}
	return cmp.Or(d.layOut(h.config(d.request.grid, c.DependentDispatch), a), d.carry.prepare(h, d.request, a))
}

func (d *slotDispatch) point() {
	h := d.h
	d.pointed(func(a *dispatchArgs) {
		a.group, a.state = h.lane.Group(h.waits.dispatch), h.localAt(0)
		a.filled, a.credits = h.localAt(d.filled), h.localAt(h.credits)
	})
	d.carry.point(h)
}

func (d *slotDispatch) route(_ context.Context, stream *cuda.Stream, c spec.PrepareArgs) (*spec.Batch, error) {
	r, err := d.h.newBatch(stream, c.TopK.Shape[0], !c.Weights.IsZero())
	if err != nil {
		return nil, err
	}
	d.call(r).selects(c.TopK, c.Weights)
	if err := d.enqueue(stream, flagSend|flagReceive|flagRoute); err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

func (d *slotDispatch) move(_ context.Context, stream *cuda.Stream, m spec.MoveArgs, half uint32,
) (spec.Arrived, error) {
	switch {
	case m.Prepares():
		r, err := d.h.newBatch(stream, m.TopK.Shape[0], !m.Weights.IsZero())
		if err != nil {
			return spec.Arrived{}, err
		}
		d.call(r).selects(m.TopK, m.Weights)
		at, err := d.start(stream, r, &m, half|flagMove|flagRoute)
		if err != nil {
			r.Release()
		}
		return at, err
	case m.BringsWeights():
		if err := d.recall(stream, &m); err != nil {
			return spec.Arrived{}, err
		}
		a := d.call(m.Batch)
		a.ids, a.weights = m.Batch.Info.(*gpuRouting).at(d.h.routing.experts), addressOf(m.Weights)
		at, err := d.start(stream, m.Batch, &m, half|flagMove|flagRoute)
		if err == nil {
			gotWeights(m.Batch, stream)
		}
		return at, err
	default:
		d.call(m.Batch)
		return d.start(stream, m.Batch, &m, half|flagMove)
	}
}

// receive implements [dispatcher]. The rows are still there that were sent. What routes them has
// been read, and may have changed.
func (d *slotDispatch) receive(stream *cuda.Stream, made, withWeights bool) error {
	d.args.ids, d.args.weights = 0, 0
	flags := uint32(flagReceive | flagMove)
	if made || withWeights {
		flags |= flagRoute
	}
	return d.enqueue(stream, flags)
}

// enqueue enqueues so much of the call: one launch, or between hosts several.
func (d *slotDispatch) enqueue(stream *cuda.Stream, flags uint32) error {
	return enqueue(d.h, d, &d.carry, d.args, stream, flags)
}

// recall has the experts of a Routing that is there read into its memory, so that a dispatch tells
// them anew, with other weights.
func (d *slotDispatch) recall(stream *cuda.Stream, m *spec.MoveArgs) error {
	h, r := d.h, m.Batch
	if h.Comm.Mask() != *r.Masked {
		return weft.Unsupportedf("%s: ranks were masked since the routing was prepared, and its rows would "+
			"move if it were sent again; prepare again, or leave the weights out", spec.OpDispatch)
	}
	if err := h.checkDispatch(r.Tokens, m); err != nil {
		return err
	}
	return moverOf[*describe](h).setWeights(stream, r, 0, r.Info.(*gpuRouting).at(h.routing.experts))
}

// start enqueues a dispatch of rows, of a call that has begun.
func (d *slotDispatch) start(stream *cuda.Stream, r *spec.Batch, m *spec.MoveArgs, flags uint32) (spec.Arrived, error) {
	h := d.h
	if err := h.checkDispatch(r.Tokens, m); err != nil {
		return spec.Arrived{}, err
	}
	buffer, err := h.ring.Take(spec.OpDispatch)
	if err != nil {
		return spec.Arrived{}, err
	}
	a, to := d.args, h.bufferOf(buffer)
	a.x, a.scales = addressOf(m.Data), addressOf(m.Scales)
	a.out, a.outScales = uint64(to), uint64(to.Add(int(h.received.block.ScalesAt)))
	if d.inPlace() {
		a.block, a.direct = uint32(buffer), uint64(to-h.lane.Window().Pointer())
		a.directScales = a.direct + uint64(h.received.block.ScalesAt)
	}
	if err := d.enqueue(stream, flags); err != nil {
		h.Put(buffer)
		return spec.Arrived{}, err
	}
	h.ring.Keep(buffer, h.lane.Capture())
	return h.arrived(buffer, r, h.received.block), nil
}

// call begins a call that goes by a routing.
func (d *slotDispatch) call(r *spec.Batch) *dispatchArgs {
	h, a, p := d.h, d.begin(), r.Info.(*gpuRouting)
	a.tokens = uint32(r.Tokens)
	a.home, a.recvRows, a.described = p.at(h.routing.home), p.at(h.routing.recvRows), p.at(h.routing.described)
	if h.Geometry.Layout.ByExpert() {
		a.ranges = p.at(h.routing.ranges)
	}
	return a
}

// selects points the call at the caller's selections.
func (a *dispatchArgs) selects(topk, weights weft.Tensor) {
	a.ids, a.weights = addressOf(topk), addressOf(weights)
	if topk.DType == weft.Int64 {
		a.flags |= flagWideIDs
	}
}

// phases are the parts of an operation that a launch does, which differ from call to call.
const phases = flagSend | flagReceive | flagRoute | flagMove

// doing is the launch that does so much of the call.
func (d *slotDispatch) doing(flags uint32) *cuda.Launch {
	a := d.args
	a.flags, a.free = a.flags&^phases|flags, d.h.ring.Free(d.h.lane.Capture())
	if flags == phases {
		return d.launches[1]
	}
	return d.launches[0]
}

// slotDispatchPrograms are those of all handles.
func slotDispatchPrograms(arch string) (all []kernel.Spec) {
	for _, byExpert := range []bool{false, true} {
		for _, from := range []weft.DType{weft.InvalidDType, weft.BFloat16, weft.Float16, weft.Float32} {
			f := dispatchForm{byExpert: byExpert, quantize: from, kind: byFew, units: 1}
			all = append(all, dispatchKernel(f, arch))
			if wholeOf(from) {
				whole := f
				whole.whole = true
				all = append(all, dispatchKernel(whole, arch))
				for whole.kind = byMany; whole.units <= spec.MostUnits(spec.Spec{Quantize: from}); whole.units *= 2 {
					all = append(all, dispatchKernel(whole, arch))
				}
			}
			ports := f
			ports.kind, ports.ports = byFlag, true
			all = append(all, dispatchKernel(ports, arch))
			ports.once = true
			all = append(all, dispatchKernel(ports, arch))
			for ; f.units <= spec.MostUnits(spec.Spec{Quantize: from}); f.units *= 2 {
				for _, f.kind = range []kind{byValue, byMany, byFlag} {
					all = append(all, dispatchKernel(f, arch))
				}
			}
		}
	}
	gather := gatherForm
	gather.gathers = true
	return append(all, dispatchKernel(gather, arch))
}

// dispatchFormOf is that of a dispatch through slots.
func dispatchFormOf(t *spec.Choice, s *spec.Spec) dispatchForm {
	f := dispatchForm{
		byExpert: s.Layout.ByExpert(), quantize: s.Quantize, kind: byFlag, units: t.DispatchUnits, ports: t.Ports,
		once: t.OncePerHost,
	}
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
	f.whole = s.MaxTokens <= wholeTokens && (f.kind == byMany || f.kind == byFew) && wholeOf(s.Quantize) &&
		s.RowSize()%(t.DispatchUnits*spec.UnitBytes) == 0 && (s.Quantize != weft.InvalidDType || s.ScaleSize() == 0)
	return f
}

// Up to so many tokens kernels for rows of whole pieces gain; for more they have not been measured.
const wholeTokens = 128

// wholeOf reports whether there are kernels for rows of whole pieces that are quantised from a type, or not at all.
func wholeOf(from weft.DType) bool { return from == weft.InvalidDType || from == weft.BFloat16 }

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
	ports    bool // there are far ranks
	once     bool // to whose hosts rows go once
	whole    bool // rows are of whole pieces, and have scales only if they are quantised here
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
		[]string{name}, "slots_dispatch.cuh", "expert_index.cuh", "notify.cuh", "slots_send.cuh",
		"slots_final_row.cuh", "slots_receive.cuh", "quantize.cuh")
	switch {
	case f.once:
		carryBy(&s, portsOnce, "ports_hosts.cuh", "ports_rows.cuh")
		s.Name += ", once"
		s.Defines["WEFT_PORTS"] = "2"
	case f.ports:
		carryBy(&s, portsDispatch, "ports_dispatch.cuh", "ports_rows.cuh")
	}
	if f.whole {
		s.Name += ", whole"
		s.Defines["WEFT_WHOLE"] = "1"
	}
	if f.kind != byFlag {
		s.Defines[device.DomainDefine] = strconv.Itoa(device.LaneRanks)
	}
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

// countWords stand before a source's counts: what exchange.cuh names.
const countWords = 1
