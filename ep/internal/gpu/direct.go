package gpu

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"unsafe"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// placed is the engine of handles on GPUs whose rows have their final places before they leave: the
// packed layouts, and all whose capacity can overflow. Prepare, which is direct_row_map.cu, gives
// every row its place; Dispatch, direct_push.cu, stores it there; its token's home reads it from
// there in Combine, direct_pull.cu. Where a rank first sums the rows that it has of a token,
// Combine is that of the other handles.
type placed struct{ *gpu }

// placeArgs are the arguments of a prepare: the Place of direct_row_map.cu.
type placeArgs struct {
	shape                              shape
	state                              uint64
	openings, totals, records          uint64
	befores, marks                     uint64
	flags, tokens, call, rows, align   uint32
	blocks, mapEntries, _              uint32
	ids, weights                       uint64
	home, places, recvRows, recvTokens uint64
	described, ranges                  uint64
	counts, bases                      uint64
	group                              device.Group
}

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

// pullArgs are the arguments of a combine: the Pull of direct_pull.cu.
type pullArgs struct {
	shape                    shape
	state                    uint64
	openings, marks          uint64
	first, flags, tokens, at uint32
	pieces                   device.Divisor
	rowBytes, biases, chunk  uint32
	chunks                   device.Divisor
	carriers, depth, most    uint32
	call                     uint32
	home, places, described  uint64
	out                      uint64
	bias                     [2]uint64
	scalars                  scalarArgs
	group                    device.Group
}

func placedKernels(arch string) []kernel.Spec {
	var all []kernel.Spec
	for _, form := range []placeForm{{}, {even: true}, {byRank: true}, {byRank: true, even: true}} {
		all = append(all, placeKernel(form, arch))
	}
	for _, from := range []weft.DType{weft.InvalidDType, weft.BFloat16, weft.Float16, weft.Float32} {
		all = append(all, pushKernel(from, false, arch), pushKernel(from, true, arch))
	}
	for _, of := range []weft.DType{weft.BFloat16, weft.Float16, weft.Float32} {
		for _, order := range []string{"RANKS", "SELECTIONS", "EXACT"} {
			all = append(all, pullKernel(pullForm{order, of}, arch))
		}
	}
	return all
}

// placeForm is what handles differ in whose prepares are programs of their own.
type placeForm struct {
	byRank bool // a token has one row at a rank
	even   bool // a Map has a bucket for all that is counted, and selections of a token are fours
}

func placeKernel(form placeForm, arch string) kernel.Spec {
	name := "place"
	if form.byRank {
		name += ", by rank"
	}
	if form.even {
		name += ", even"
	}
	s := kernelSpec(name, "direct_row_map.cu", arch, []string{directRowMap}, "direct.cuh")
	s.Defines["WEFT_PLACE_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(placeArgs{})))
	s.Defines["WEFT_BY_RANK"], s.Defines["WEFT_EVEN"] = number(form.byRank), number(form.even)
	return s
}

// pushKernel is that of a dispatch of rows whose places are known, and of one that gives the
// routing other weights as well.
func pushKernel(quantize weft.DType, weighs bool, arch string) kernel.Spec {
	name := "push"
	if weighs {
		name += " with weights"
	}
	s := kernelSpec(name+quantising(quantize), "direct_push.cu", arch, []string{directDispatch}, "direct.cuh", "quantize.cuh")
	s.Defines["WEFT_WEIGHTS"] = strconv.FormatBool(weighs)
	s.Defines["WEFT_QUANTIZE"] = strconv.Itoa(typeNumber(quantize))
	s.Defines["WEFT_PUSH_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(pushArgs{})))
	return s
}

// pullForm is what handles differ in whose combines of rows where they are are programs of their
// own.
type pullForm struct {
	order string // of a token's rows: the Order of direct_pull.cu
	of    weft.DType
}

func pullKernel(f pullForm, arch string) kernel.Spec {
	s := kernelSpec(fmt.Sprintf("pull of %v, %s", f.of, strings.ToLower(f.order)), "direct_pull.cu", arch,
		[]string{directCombine}, "direct.cuh", "scalars.cuh")
	s.Defines["WEFT_TYPE"], s.Defines["WEFT_ORDER"] = strconv.Itoa(typeNumber(f.of)), f.order
	s.Defines["WEFT_PULL_BYTES"] = strconv.Itoa(int(unsafe.Sizeof(pullArgs{})))
	return s
}

// A prepare has placeBlocks blocks with something to do, if there are as many, or more if each
// would have more than placeTokens tokens: a block asks all before it what they have counted.
const placeBlocks, placeTokens = 32, 512

// What a block of a prepare counts stands in two Maps of direct_row_map.cu, and what their numbers
// are raised by behind them, if there is room: there are mapBuckets things to count at a time. A
// map has mapEntries entries, or fewMapEntries on a GPU with little shared memory.
const mapBuckets, mapEntries, fewMapEntries, placeOwnBytes = 1024, 9 << 10, 2 << 10, 1 << 10

func mapBytes(entries int) int { return entries*8 + mapBuckets*4 }

func placeBytes(entries int) int { return 2*mapBytes(entries) + 4*mapBuckets*4 }

// A block of a prepare has two threads for every placeQuad selections of a token, QUAD of
// direct_row_map.cu, within these bounds: a token has a power of two.
const fewestPlaceThreads, mostPlaceThreads, placeQuad = 256, 768, 4

func placeThreads(g *spec.Geometry, blocks int) int {
	lanes := 1 << bits.Len(uint((g.TopK-1)/placeQuad))
	return min(max(fewestPlaceThreads, spec.CeilDiv(spec.CeilDiv(g.Tokens, blocks)*lanes, 32)*64), mostPlaceThreads)
}

// placing is how many of so many blocks have something to do in a prepare.
func placing(g *spec.Geometry, blocks int) int {
	return min(blocks, max(placeBlocks, spec.CeilDiv(g.Tokens, placeTokens)))
}

// newPlacedRegions lays out the window of a handle whose rows have their final places before they
// leave: what direct.cuh describes.
func newPlacedRegions(g *spec.Geometry, s spec.Spec, t spec.Choice, b blocks) regions {
	ranks, tokens := int64(g.Ranks), int64(g.Tokens)
	r := regions{inWindow: true, block: spec.NewBlockShape(s, g.Rows())}
	r.totals = r.Zeros(2 * ranks * int64(g.Experts+g.Ranks+1) * 8)
	r.openings = r.Ones(2 * 3 * ranks * device.OpeningBytes)
	r.marks = r.Zeros(ranks * int64(b.dispatch+b.combine) * 4)
	r.addGradients(g, s, b.gradients)
	r.records = r.Raw(2 * ranks * tokens * int64(g.TopK) * int64(pairBytes))
	if t.Pulls {
		r.stage = r.Raw(int64(g.Rows()) * int64(s.OutputSize()))
		r.pullScalars = r.Raw(2 * tokens * int64(g.TopK) * 4)
	} else {
		r.addCombine(g, s, t, b.combine)
	}
	columns := 1 // that a rank is told of, of what the blocks before one have
	if s.Layout.ByExpert() {
		columns = g.Local
	}
	r.befores = r.Zeros(2 * ranks * int64(placing(g, b.dispatch)*columns) * 8)
	r.blocks = r.Raw(int64(s.Live) * r.block.Bytes)
	return r
}

// placedLaunches are the launches of a handle whose rows have their final places before they leave.
type placedLaunches struct {
	placing, pushing, pulling *cuda.Launch
	weighing                  *cuda.Launch // a push with weights
	place                     *placeArgs
	push                      *pushArgs
	pull                      *pullArgs
	pullBulk                  uint32 // what a pull does besides
}

// preparePlaced lays out the launches.
func (h *gpu) preparePlaced(f functions, dispatch, combine cuda.LaunchConfig) (err error) {
	g, s, r, l := &h.Geometry, &h.Spec, &h.regions, &placedLaunches{}
	h.placed = l
	ranks, blocks := uint64(g.Ranks), uint64(dispatch.Grid.X)
	flags := uint32(0)
	switch s.Layout {
	case spec.ExpertPacked:
		flags = flagPacked
	case spec.TokenMajor:
		flags = flagRowPerToken
	}
	entries, err := h.mapEntries()
	if err != nil {
		return err
	}
	place := placeArgs{
		shape: h.shape(), openings: uint64(r.openings), totals: uint64(r.totals), records: uint64(r.records),
		befores: uint64(r.befores), marks: uint64(r.marks),
		flags: flags, rows: uint32(g.Capacity), align: uint32(g.Align), blocks: uint32(placing(g, h.blocks.dispatch)),
		mapEntries: uint32(entries),
	}
	config := cuda.LaunchConfig{
		Grid:  dispatch.Grid,
		Block: cuda.Dim{X: uint32(placeThreads(g, placing(g, h.blocks.dispatch)))}, Shared: placeBytes(entries),
	}
	if err := f.place.SetMaxDynamicShared(config.Shared); err != nil {
		return err
	}
	if l.placing, err = f.place.Prepare(config, place); err != nil {
		return err
	}
	if l.place, err = cuda.Arg[placeArgs](l.placing, 0); err != nil {
		return err
	}
	units := spec.MostUnits(*s)
	push := pushArgs{
		shape: h.shape(), openings: uint64(r.openings), marks: uint64(r.marks), blocks: uint64(r.blocks),
		blockBytes: uint64(r.block.Bytes), scalesAt: uint64(r.block.ScalesAt),
		flags:  flags&flagRowPerToken | quantizeFlags(s),
		pieces: device.NewDivisor(spec.CeilDiv(s.RowSize(), units*spec.UnitBytes)), rowBytes: uint32(s.RowSize()),
		scaleWords: uint32(s.ScaleSize() / 4),
		pieceWords: pieceWords(s, units), zone: uint32(g.Capacity), rows: uint32(g.Capacity),
		hidden: uint32(s.Hidden), align: uint32(g.Align), records: uint64(r.records),
	}
	if s.ScaleOrder == spec.ColumnMajorScales {
		push.flags |= flagColumnScales
	}
	if s.Layout.Packed() && s.Counts == spec.HostCounts {
		push.zone = 0 // tensors have exactly the rows that come
	}
	bulk, err := h.bulk()
	if err != nil {
		return err
	}
	if c := s.PushCarry(int(dispatch.Block.X)); bulk && c.Warps > 0 {
		push.flags |= flagBulk
		push.chunk, push.carriers = uint32(c.Chunk), uint32(c.Warps)
		push.chunks = device.NewDivisor(spec.CeilDiv(s.RowSize(), c.Chunk))
		dispatch.Shared = c.Chunk * c.Warps
		if err := cmp.Or(f.dispatch.SetMaxDynamicShared(dispatch.Shared),
			f.weightDispatch.SetMaxDynamicShared(dispatch.Shared)); err != nil {
			return err
		}
	}
	if l.pushing, err = f.dispatch.Prepare(dispatch, push); err != nil {
		return err
	}
	if l.weighing, err = l.pushing.For(f.weightDispatch); err != nil {
		return err
	}
	if l.push, err = cuda.Arg[pushArgs](l.pushing, 0); err != nil || !h.tuning.Pulls {
		return err
	}
	pull := pullArgs{
		shape: h.shape(), openings: uint64(r.openings) + 3*ranks*device.OpeningBytes, marks: uint64(r.marks) + ranks*blocks*4,
		first:    uint32(h.locals.combineCounts),
		pieces:   device.NewDivisor(spec.CeilDiv(s.OutputSize(), spec.PullUnits*spec.UnitBytes)),
		rowBytes: uint32(s.OutputSize()),
		scalars:  scalarArgs{at: uint64(r.pullScalars), topk: device.NewDivisor(g.TopK)},
	}
	most := s.PullRows(g.Ranks)
	if c := s.PullCarry(int(combine.Block.X), most); bulk && c.Warps > 0 {
		l.pullBulk = flagBulk
		pull.chunk, pull.chunks = uint32(c.Chunk), device.NewDivisor(spec.CeilDiv(s.OutputSize(), c.Chunk))
		pull.carriers, pull.depth, pull.most = uint32(c.Warps), spec.PullDepth, uint32(most)
		combine.Shared = c.Warps * spec.PullDepth * most * c.Chunk
		if err := f.combine.SetMaxDynamicShared(combine.Shared); err != nil {
			return err
		}
	}
	if l.pulling, err = f.combine.Prepare(combine, pull); err != nil {
		return err
	}
	l.pull, err = cuda.Arg[pullArgs](l.pulling, 0)
	return err
}

// bulk says whether the GPU has bulk copies, and the shared memory for them.
func (h *gpu) bulk() (bool, error) {
	d := h.device.Context().Device()
	major, _, err := d.ComputeCapability()
	if err != nil || major < 9 {
		return false, err
	}
	shared, err := d.Attribute(cuda.SharedMemoryPerBlockOptIn)
	return shared >= spec.BulkSharedBytes+spec.BulkOwnBytes, err
}

// mapEntries is how many entries a Map has on this GPU.
func (h *gpu) mapEntries() (int, error) {
	shared, err := h.device.Context().Device().Attribute(cuda.SharedMemoryPerBlockOptIn)
	if shared >= placeBytes(mapEntries)+placeOwnBytes {
		return mapEntries, err
	}
	return fewMapEntries, err
}

// point points the launches at the handle's memory.
func (l *placedLaunches) point(dispatch, combine device.Group, at func(int64) uint64, locals *locals) {
	l.place.group, l.place.state = dispatch, at(0)
	l.place.counts, l.place.bases = at(locals.counts), at(locals.bases)
	l.push.group, l.push.state = dispatch, at(0)
	if l.pull != nil {
		l.pull.group, l.pull.state = combine, at(0)
	}
}

// setRouting points a launch's routing at the memory of r.
func (l *placedLaunches) setRouting(p *gpuRouting) {
	a := l.push
	a.home, a.places, a.recvRows = p.at(p.off.home), p.at(p.off.places), p.at(p.off.recvRows)
	a.recvTokens, a.described = p.at(p.off.recvTokens), p.at(p.off.described)
}

func (h *placed) Prepare(ctx context.Context, s *weft.Stream, a spec.PrepareArgs) (*spec.Batch, error) {
	stream, err := h.lane.Enter(ctx, spec.OpPrepare, s)
	if err != nil {
		return nil, err
	}
	r, err := h.place(ctx, spec.OpPrepare, tagPrepare, stream, a.TopK, a.Weights)
	if err != nil {
		return nil, err
	}
	if err := h.lane.Finish(ctx, s); err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

// place enqueues a prepare, and waits for its counts if the host wants them.
func (h *placed) place(ctx context.Context, op string, call uint32, stream *cuda.Stream, topk,
	weights weft.Tensor,
) (*spec.Batch, error) {
	if err := h.checkSelections(op, topk, weights); err != nil {
		return nil, err
	}
	if h.Spec.Counts == spec.HostCounts {
		if status, err := stream.CaptureStatus(); err != nil || status != cuda.NotCapturing {
			return nil, cmp.Or(err, weft.Unsupportedf("%s: in a capture the host cannot be told how many "+
				"rows come; make the handle with DeviceCounts", op))
		}
	}
	r, err := h.route(stream, topk.Shape[0], !weights.IsZero())
	if err != nil {
		return nil, err
	}
	a, p := h.gpu.placed.place, r.Info.(*gpuRouting)
	a.home, a.places = p.at(p.off.home), p.at(p.off.places)
	a.recvRows, a.recvTokens = p.at(p.off.recvRows), p.at(p.off.recvTokens)
	a.described, a.ranges = p.at(p.off.described), p.at(p.off.ranges)
	a.ids, a.weights, a.tokens, a.call = addressOf(topk), addressOf(weights), uint32(r.Tokens), call
	a.flags &^= flagWideIDs
	if topk.DType == weft.Int64 {
		a.flags |= flagWideIDs
	}
	if err := h.lane.Start(stream, h.gpu.placed.placing); err != nil {
		r.Release()
		return nil, err
	}
	if err := cmp.Or(h.settle(ctx, r), p.overflow()); err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

// overflow says which rank has no room for its rows, if that is to be refused: the same on every
// rank, which all have been told how many come to each.
func (r *gpuRouting) overflow() error {
	h, g := r.h, &r.h.Geometry
	if h.Spec.Overflow != spec.OverflowRefuse || !r.counted {
		return nil
	}
	for rank := range g.Ranks {
		e := &spec.OverflowError{Rank: rank, Expert: -1, Demand: int(r.described.wanted[rank]), Capacity: g.Capacity}
		if g.Layout == spec.ExpertMajor {
			if e.Expert = int(r.described.over[rank]); e.Expert < 0 {
				continue
			}
			e.Demand = int(r.described.excess[rank])
		}
		if e.Demand > e.Capacity {
			return e
		}
	}
	return nil
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
	a := h.gpu.placed.push
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
	l := h.gpu.placed
	l.setRouting(r.Info.(*gpuRouting))
	a := l.push
	a.flags = a.flags&^(flagSend|flagReceive) | flags
	a.tokens, a.block, a.call = uint32(r.Tokens), uint32(place), call
	if weighs {
		return l.weighing
	}
	return l.pushing
}

// setPull points the launch at the caller's tensors. Rows that were received are read where they
// are, others are copied into the window.
func (h *gpu) setPull(call uint32, stream *cuda.Stream, c *spec.SumArgs) error {
	a, p := h.placed.pull, c.Batch.Info.(*gpuRouting)
	at, ok := h.readable(c.Rows)
	if !ok {
		at = h.regions.stage
		if err := h.stage(stream, c.Batch, c.Rows); err != nil {
			return err
		}
	}
	a.home, a.places, a.described = p.at(p.off.home), p.at(p.off.places), p.at(p.off.described)
	a.call, a.out, a.tokens, a.biases = call, addressOf(c.Out), uint32(c.Batch.Tokens), uint32(c.Biases)
	a.at = uint32(at / 16)
	for i, b := range c.Bias[:c.Biases] {
		a.bias[i] = addressOf(b)
	}
	a.scalars.set(p, c)
	return nil
}

// readable says where in the window a tensor is that others read where it is: where placed rows
// were received, in the combine buffer, or in that of gradients.
func (h *gpu) readable(t weft.Tensor) (at int64, ok bool) {
	within := func(from, size int64) bool { return at >= from && at+int64(t.Bytes()) <= from+size }
	at, r := int64(addressOf(t)-uint64(h.lane.Window().Pointer())), &h.regions
	ok = h.tuning.Placed && within(r.blocks, r.Size()-r.blocks) || h.tuning.Pulls && within(r.stage, h.stageBytes()) ||
		h.Spec.Combines() && within(r.gradients, int64(h.Geometry.Tokens)*int64(h.Spec.OutputSize()))
	return at, ok
}

// stageBytes is how large the copy is that others read of rows that they cannot read where they
// are.
func (h *gpu) stageBytes() int64 { return int64(h.Geometry.Rows()) * int64(h.Spec.OutputSize()) }

func (h *gpu) CombineBuffer() weft.Tensor {
	if !h.tuning.Pulls {
		return weft.Tensor{}
	}
	return h.sums(h.regions.stage, h.Geometry.Rows())
}

func (h *gpu) GradientBuffer() weft.Tensor {
	if !h.Spec.Combines() {
		return weft.Tensor{}
	}
	return h.sums(h.regions.gradients, h.Geometry.Tokens)
}

// sums views memory in the window as so many rows of the Output type.
func (h *gpu) sums(at int64, rows int) weft.Tensor {
	return weft.Tensor{
		Data: pointer(h.lane.Window().Pointer().Add(int(at))), DType: h.Spec.Output,
		Shape: []int{rows, h.Spec.Hidden},
	}
}
