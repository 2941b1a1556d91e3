package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/cuda/occupancy"
	enginegpu "github.com/weftgo/weft/engine/gpu"
)

// gpu is the engine of a handle on GPUs: every operation is one kernel on every rank, two if it is
// sent and received apart, or if rows have their places before they leave and a dispatch prepares
// them, enqueued on the caller's stream. See slots_dispatch.cu and slots_combine.cu for how
// rows move, and docs/design/gpu-engine.md for why it is right.
//
// A call that is refused has not been made: nothing was enqueued, and the caller may make it again,
// as it should be.
type gpu struct {
	*spec.Base
	device  *weft.Device
	tuning  spec.Choice
	regions regions
	locals  locals
	program *enginegpu.Program
	room    *enginegpu.Room
	lane    *enginegpu.Lane
	ring    *enginegpu.Ring // of received rows
	rows    *cuda.Memory    // they, unless they are in the window

	blocks                             blocks
	dispatching, combining, describing *cuda.Launch
	fusedDispatching, fusedCombining   *cuda.Launch // for calls that do everything at once
	moving                             *cuda.Launch // gradients
	gradientArg                        *gradientArgs
	dispatchArg                        *dispatchArgs
	combineArg                         *combineArgs
	describeArg                        *describeArgs
	weighing                           *cuda.Launch
	weighArg                           *weighArgs
	copying                            *cuda.Launch
	copyArg                            *copyArgs
	staging                            *cuda.Launch // of handles whose rows are pulled, and counted on the GPU alone
	stageArg                           *copyArgs
	// where rows have their places before they leave: instead of a dispatch, and maybe of a combine
	direct *directKernels

	dispatchWaits, combineWaits uint64 // where waits are counted, or 0

	batches spec.Slab[spec.Batch]

	mu            sync.Mutex
	idle, graphed []*gpuRouting // that nobody has; the latter are written by graphs
	all           []*gpuRouting
}

// NewGPU makes the engine of a handle on GPUs.
func NewGPU(ctx context.Context, of *spec.Base) (spec.RowEngine, error) {
	h := &gpu{Base: of, device: of.Comm.Device(), tuning: spec.Choose(of.Spec, of.Comm.Size())}
	if err := h.open(ctx); err != nil {
		_, again := h.Close()
		return nil, errors.Join(err, again)
	}
	if h.tuning.Placed {
		return &placed{h}, nil
	}
	return h, nil
}

func (h *gpu) open(ctx context.Context) error {
	const op = "new handle"
	functions, err := h.load(ctx)
	if err != nil {
		return err
	}
	if h.blocks, err = h.fit(ctx, functions); err != nil {
		return err
	}
	if h.tuning.Placed {
		h.regions = newPlacedRegions(&h.Geometry, h.Spec, h.tuning, h.blocks)
	} else {
		h.regions = newRegions(&h.Geometry, h.Spec, h.tuning, h.blocks)
	}
	h.locals = newLocals(&h.Geometry, h.tuning.Placed, h.blocks)
	if size := h.regions.Size(); h.tuning.Placed && size > spec.MostPlacedBytes {
		return weft.Unsupportedf("%s: it would take %d GiB, and at most %d: lower MaxTokens or Live, or "+
			"give a Capacity", op, size>>30, spec.MostPlacedBytes>>30)
	}
	// Launches are laid out first: the lane points them at its memory.
	h.ring = enginegpu.NewRing(h.Buffers, h.regions.direct)
	err = h.prepareLaunches(functions)
	if err == nil {
		err = h.allocate()
	}
	if err := h.Comm.Operations().VerifySame(ctx, op, "memory", err); err != nil {
		return err
	}
	h.lane, err = enginegpu.NewLane(ctx, h.Comm, enginegpu.LaneSpec{
		Op: op, Owner: "handle", Words: laneWords, Window: &h.regions.Workspace, Local: &h.locals.Workspace, Ring: h.ring,
		RingInWindow: h.regions.inWindow, Moved: h.pointAt,
	})
	return err
}

// functions are the kernels of a handle.
type functions struct {
	describe, weigh, copy, dispatch, fusedDispatch, weightDispatch, combine, fusedCombine,
	place, gradients *cuda.Function
}

// blocks is how many blocks the operations of a handle have: those that move rows, and the clerks.
// Copies wait for nobody, and so take no room.
type blocks struct{ dispatch, dispatchClerks, combine, combineClerks, gradients, gradientThreads, copies int }

// dispatchGrid and combineGrid are all blocks of a launch.
func (b blocks) dispatchGrid() int { return b.dispatch + b.dispatchClerks }
func (b blocks) combineGrid() int  { return b.combine + b.combineClerks }

// load loads the kernels of the handle on all ranks.
func (h *gpu) load(ctx context.Context) (f functions, err error) {
	arch, ranks, t := h.device.Arch(), h.Geometry.Ranks, &h.tuning
	var sources []enginegpu.Source
	var into [][]**cuda.Function
	add := func(s kernel.Spec, to ...**cuda.Function) {
		sources, into = append(sources, enginegpu.Source{Spec: s}), append(into, to)
	}
	add(describeKernel(arch), &f.describe, &f.weigh)
	add(copyKernel(arch), &f.copy)
	if t.Placed {
		add(placeKernel(placeFormOf(&h.Spec, ranks), arch), &f.place)
		add(pushKernel(h.Spec.Quantize, false, arch), &f.dispatch)
		add(pushKernel(h.Spec.Quantize, true, arch), &f.weightDispatch)
	} else {
		form, fused := dispatchFormOf(t, &h.Spec), fusedDispatchFormOf(t, &h.Spec, ranks)
		add(dispatchKernel(form, arch), &f.dispatch)
		if fused != form {
			add(dispatchKernel(fused, arch), &f.fusedDispatch)
		}
	}
	switch {
	case !h.Spec.Combines():
	case t.Pulls:
		add(pullKernel(pullFormOf(&h.Spec), arch), &f.combine)
	default:
		form, fused := combineFormOf(t, &h.Spec, ranks), fusedCombineFormOf(t, &h.Spec, ranks)
		add(combineKernel(form, arch), &f.combine)
		if fused != form {
			add(combineKernel(fused, arch), &f.fusedCombine)
		}
	}
	if h.Spec.Combines() {
		add(gradientKernel(h.Spec.Output, arch), &f.gradients)
	}
	if h.program, err = enginegpu.Load(ctx, h.Comm, "new handle", sources...); err != nil {
		return f, err
	}
	for i, functions := range into {
		for k, to := range functions {
			*to = h.program.Functions(i)[k]
		}
	}
	return f, nil
}

// weigher says how much of an SM a block takes: enginegpu.Cost. Its error is that of the first
// question that the driver did not answer.
type weigher struct{ err error }

func (w *weigher) weigh(threads int, functions ...*cuda.Function) (weight int) {
	weight, err := enginegpu.Cost(threads, functions...)
	w.err = cmp.Or(w.err, err)
	return max(weight, threads)
}

// widen gives blocks more threads while they stay within a weight, so that fewer of them have as
// many warps.
func (w *weigher) widen(threads, blocks *int, enough, weight int, functions ...*cuda.Function) {
	for *blocks > enough && *threads <= 256 && w.weigh(2**threads, functions...) <= weight {
		*threads, *blocks = 2**threads, spec.CeilDiv(*blocks, 2)
	}
}

// fit settles how many blocks the operations have, on every rank alike, and takes room for them.
// Rows that go through slots have blocks more, the clerks. Only a handle that nobody can share the
// GPU with has as many blocks of each kernel as fit.
func (h *gpu) fit(ctx context.Context, f functions) (n blocks, err error) {
	var w weigher
	t := &h.tuning
	dispatchWeight := w.weigh(t.DispatchThreads, f.dispatch, f.fusedDispatch)
	combineWeight := w.weigh(t.CombineThreads, f.combine, f.fusedCombine)
	gradientWeight := w.weigh(gradientThreads, f.gradients)
	if t.Placed {
		dispatchWeight = occupancy.SMThreads // its shared memory takes a whole SM
	}
	if t.Pulls {
		combineWeight = occupancy.SMThreads
	}
	weight := max(dispatchWeight, combineWeight, gradientWeight)
	n.dispatchClerks, n.combineClerks = t.Clerks()
	least := 1 // blocks that an operation needs: one that moves rows, and a clerk where there are any
	if n.dispatchClerks > 0 || n.combineClerks > 0 && h.Spec.Combines() {
		least = 2
	}
	h.room, err = enginegpu.Fit(ctx, h.Comm,
		enginegpu.Want{Op: "new handle", Cost: weight, SMs: h.Spec.SMs, SerialGroup: h.Spec.SerialGroup, Least: least})
	if err != nil {
		return n, err
	}
	room, slots, sms := h.room.Blocks, h.room.PerSM, h.device.SMs()
	weight = occupancy.SMThreads / slots
	if tuned := h.Spec.Tuning; !h.room.Alone {
		if !t.Placed && tuned.Dispatch.Threads == 0 && !(t.ValueDispatch && t.DispatchUnits == 1) {
			w.widen(&t.DispatchThreads, &t.DispatchBlocks, room, weight, f.dispatch, f.fusedDispatch)
		}
		if !t.Pulls && tuned.Combine.Threads == 0 {
			w.widen(&t.CombineThreads, &t.CombineBlocks, room, weight, f.combine, f.fusedCombine)
		}
	}
	most := func(own, clerks int) int {
		n := room
		if h.room.Alone {
			n = sms * (occupancy.SMThreads / own)
		}
		if n > sms {
			n -= n % sms // so that all SMs have the same to do
		}
		return max(1, n-clerks)
	}
	if most(dispatchWeight, 0) <= n.dispatchClerks {
		n.dispatchClerks = min(n.dispatchClerks, 1)
	}
	n.dispatch = min(t.DispatchBlocks, most(dispatchWeight, n.dispatchClerks))
	n.combine = min(t.CombineBlocks, most(combineWeight, n.combineClerks))
	reserved := min(max(n.dispatchGrid(), n.combineGrid()), room) // a handle that is alone may have more, of lighter ones
	n.copies = h.copyBlocks(spec.CeilDiv(room, slots))
	n.gradients, n.gradientThreads = reserved, gradientThreads
	for wide := 2 * gradientThreads; wide <= mostGradientThreads && w.weigh(wide, f.gradients) <= weight; wide *= 2 {
		n.gradientThreads = wide
	}
	return n, h.room.Take(ctx, reserved,
		fmt.Sprintf("blocks %+v of %d and %d threads", n, t.DispatchThreads, t.CombineThreads), w.err)
}

func (h *gpu) allocate() (err error) {
	if !h.regions.inWindow {
		if h.rows, err = h.device.Context().Alloc(int(h.regions.block.Bytes) * h.Spec.Live); err != nil {
			return err
		}
	}
	for range h.Spec.Live + 1 {
		r, err := h.newRouting()
		if err != nil {
			return err
		}
		h.idle = append(h.idle, r)
	}
	return nil
}

// prepareLaunches lays out the launches, with all that does not change from call to call.
func (h *gpu) prepareLaunches(f functions) (err error) {
	major, err := h.device.Context().Device().Attribute(cuda.ComputeCapabilityMajor)
	if err != nil {
		return err
	}
	config := func(blocks, threads int, dependent bool) cuda.LaunchConfig {
		return cuda.LaunchConfig{
			Grid: cuda.Dim{X: uint32(blocks)}, Block: cuda.Dim{X: uint32(threads)},
			Dependent: dependent && major >= 9,
		}
	}
	t := &h.tuning
	if h.tuning.Placed {
		err = h.prepareDirect(f, config(h.blocks.dispatchGrid(), t.DispatchThreads, t.DependentDispatch),
			config(h.blocks.combineGrid(), t.CombineThreads, t.DependentCombine))
	} else {
		err = h.prepareDispatchLaunch(f, config(h.blocks.dispatchGrid(), t.DispatchThreads, t.DependentDispatch))
	}
	if err == nil {
		err = h.prepareDescribe(f)
	}
	if err == nil {
		err = h.prepareCopies(f, config(h.blocks.copies, copyThreads, t.DependentDispatch))
	}
	if err == nil && h.tuning.Pulls && h.Spec.Counts == spec.DeviceCounts {
		err = h.prepareStaging(f, config(h.blocks.copies, copyThreads, t.DependentCombine))
	}
	if err == nil && h.Spec.Combines() && !h.tuning.Pulls {
		err = h.prepareCombine(f, config(h.blocks.combineGrid(), t.CombineThreads, t.DependentCombine))
	}
	if err == nil && h.Spec.Combines() {
		err = h.prepareGradients(f)
	}
	return err
}

// shape is what kernels know of the Spec.
func (h *gpu) shape() shape {
	g := &h.Geometry
	return shape{
		capacity: uint32(g.Tokens), topk: uint32(g.TopK), experts: uint32(g.Experts), local: uint32(g.Local),
		reciprocal: reciprocal(g.Local),
	}
}

// reciprocal is 2^32 / n, rounded up; 0 for 1, of which kernels know.
func reciprocal(n int) uint32 { return uint32((1<<32 + uint64(n) - 1) / uint64(n)) }

// quantizeWhat is what a dispatch does when it quantises.
func quantizeFlags(s *spec.Spec) (flags uint32) {
	if s.Quantize != weft.InvalidDType {
		if s.Payload == spec.FP8UE8M0 {
			flags |= flagExponents | flagPowerOfTwo
		}
		if s.PowerOfTwoScales {
			flags |= flagPowerOfTwo
		}
	}
	return flags
}

// pieceWords is how many words of scales go with a piece of so many units, at most.
func pieceWords(s *spec.Spec, units int) uint32 {
	switch s.Payload {
	case spec.FP8:
		return uint32(units * spec.UnitBytes / spec.ScaleBlock)
	case spec.FP8UE8M0:
		return uint32(units)
	default:
		return uint32(spec.CeilDiv(s.ScaleSize()/4, spec.CeilDiv(s.RowSize(), units*spec.UnitBytes)))
	}
}

func (h *gpu) Bytes() int {
	n := h.lane.Bytes()
	if h.rows != nil {
		n += h.rows.Size()
	}
	return n + len(h.all)*h.routingBytes()
}

func (h *gpu) SMs() (dispatch, combine, gradients int) {
	of := func(l *cuda.Launch) int {
		if l == nil {
			return 0
		}
		return min(int(l.Grid().X), h.device.SMs())
	}
	gradients = of(h.moving)
	switch {
	case !h.tuning.Placed:
		return of(h.dispatching), of(h.combining), gradients
	case h.tuning.Pulls:
		return of(h.direct.push.launch), of(h.direct.pull.launch), gradients
	default:
		return of(h.direct.push.launch), of(h.combining), gradients
	}
}

func (h *gpu) Close() (released bool, err error) {
	if h.lane != nil {
		if released, err = h.lane.Close(); !released {
			return false, err
		}
	}
	errs := []error{err}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.all {
		errs = append(errs, r.close())
	}
	if h.rows != nil {
		errs = append(errs, h.rows.Close())
	}
	h.room.Release()
	return true, errors.Join(append(errs, h.program.Close())...)
}

// pointAt points the launches at the memory of the handle's lane.
func (h *gpu) pointAt(l *enginegpu.Lane) {
	h.lane = l
	// Rows that came before ranks were masked stay their receiver's.
	var before []uintptr
	if h.regions.inWindow {
		for w := range l.Former() {
			before = append(before, uintptr(w.Pointer().Add(int(h.regions.blocks))))
		}
	}
	h.Buffers.Place(uintptr(h.regions.block.Bytes), uintptr(h.placeOf(0)), before...)
	h.point()
}

// point is pointAt again, when anything else has changed.
func (h *gpu) point() {
	at := func(offset int64) uint64 { return uint64(h.lane.Local(offset)) }
	dispatch, combine := h.lane.Group(h.dispatchWaits), h.lane.Group(h.combineWaits)
	if d := h.dispatchArg; d != nil {
		d.group, d.state, d.filled, d.credits = dispatch, at(0), at(h.locals.filled), at(h.locals.credits)
	}
	if h.direct != nil {
		h.direct.point(dispatch, combine, at, &h.locals)
	}
	if a := h.gradientArg; a != nil {
		a.group, a.state = dispatch, at(0)
	}
	if c := h.combineArg; c != nil {
		c.group, c.state, c.filled, c.credits = combine, at(0), at(h.locals.combineFilled), at(h.locals.credits)
	}
}

func (h *gpu) CountWaits(dispatch, combine weft.Tensor) {
	h.dispatchWaits, h.combineWaits = addressOf(dispatch), addressOf(combine)
	h.point()
}

// Put implements [RowEngine].
func (h *gpu) Put(buffer int) { h.Buffers.Put(buffer) }

// arrived describes what arrives in a buffer.
func (h *gpu) arrived(buffer int, b *spec.Batch, shape spec.BlockShape) spec.Arrived {
	return spec.Arrived{
		Batch: b, Buffer: buffer, Memory: pointer(h.placeOf(buffer)), Shape: shape,
		Generation: h.Buffers.Fill(buffer, b.Epoch),
	}
}

// placeOf is where the rows of a place stand.
func (h *gpu) placeOf(place int) cuda.Pointer {
	at := place * int(h.regions.block.Bytes)
	if h.regions.inWindow {
		return h.lane.Window().Pointer().Add(int(h.regions.blocks) + at)
	}
	return h.rows.Pointer().Add(at)
}

// pointer views an address of the device as Go sees memory that is not its own.
func pointer(p cuda.Pointer) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// addressOf is the address that a tensor on the device has.
func addressOf(t weft.Tensor) uint64 { return uint64(uintptr(t.Data)) }

// whole refuses numbers that begin within one.
func whole(op, what string, t weft.Tensor) error {
	if n := uint64(t.DType.Size()); n > 0 && addressOf(t)%n != 0 {
		return weft.Unsupportedf("%s: %s begin at %#x; on GPUs %v begin on multiples of %d bytes: copy "+
			"them there", op, what, addressOf(t), t.DType, n)
	}
	return nil
}

// aligned refuses rows that do not begin on 16 bytes.
func aligned(op, what string, t weft.Tensor) error {
	if addressOf(t)%16 != 0 {
		return weft.Unsupportedf("%s: %s begin at %#x; on GPUs rows begin on multiples of 16 bytes: copy "+
			"them there", op, what, addressOf(t))
	}
	return nil
}
