package ep

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/device"
	"github.com/weftgo/weft/cuda/kernel"
)

// gpu is the engine of a handle on GPUs: every operation is one kernel on every rank, two if it is sent and received apart, or if rows
// have their places before they leave and a dispatch prepares them, enqueued on the caller's stream. See
// kernels/dispatch.cu and kernels/combine.cu for how rows move, and docs/design/gpu-engine.md for why it is right.
//
// A call that is refused has not been made: nothing was enqueued, and the caller may make it again, as it should be.
type gpu struct {
	*Handle
	device      *weft.Device
	tuning      tuning
	regions     regions
	locals      locals
	window      *weft.Window
	memory      *cuda.Memory // locals
	room        *cuda.Memory // received rows, unless they are in the window
	reservation *weft.Reservation
	modules     []*cuda.Module

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
	placed                             *placedLaunches // where rows have their places before they leave: instead of a dispatch, and maybe of a combine

	dispatchWaits, combineWaits uint64 // where waits are counted, or 0

	before   []former
	captured bool // a graph knows the present memory

	capture    uint64 // in which the call is; 0: in none
	generation uint64
	operations uint64 // enqueued
	pending    string // the operation whose second half is still to come

	received slab[Received]
	routings slab[Routing]

	mu            sync.Mutex
	took          []uint64      // the capture in which a place for received rows was taken last
	next          int           // the place that is taken next, where all ranks take the same
	idle, graphed []*gpuRouting // that nobody has; the latter are written by graphs
	all           []*gpuRouting
}

// former is what a handle used before ranks were masked.
type former struct {
	window   *weft.Window
	memory   *cuda.Memory
	captured bool // a graph knows it
}

func (f former) close() error {
	if f.window == nil {
		return f.memory.Close()
	}
	return errors.Join(f.window.Close(), f.memory.Close())
}

// newGPU makes the engine of a handle on GPUs.
func newGPU(ctx context.Context, of *Handle) (engine, error) {
	h := &gpu{Handle: of, device: of.comm.Device(), tuning: tune(of.spec, of.comm.Size())}
	h.generation = h.comm.Generation()
	if err := h.open(ctx); err != nil {
		_, again := h.close()
		return nil, errors.Join(err, again)
	}
	if h.tuning.placed {
		return &placed{h}, nil
	}
	return h, nil
}

func (h *gpu) open(ctx context.Context) error {
	const op = "new handle"
	functions, err := h.load(ctx)
	if err := h.comm.AgreeOn(ctx, op, "kernels", err); err != nil {
		return err
	}
	if h.blocks, err = h.reserve(ctx, functions); err != nil {
		return err
	}
	if h.tuning.placed {
		h.regions = newPlacedRegions(&h.geometry, h.spec, h.tuning, h.blocks)
	} else {
		h.regions = newRegions(&h.geometry, h.spec, h.tuning, h.blocks)
	}
	h.locals = newLocals(&h.geometry, h.tuning.placed, h.blocks)
	if h.tuning.placed && h.regions.total > mostPlacedBytes {
		return weft.Unsupportedf("%s: it would take %d GiB, and at most %d: lower MaxTokens or Live, or give a Capacity", op, h.regions.total>>30, mostPlacedBytes>>30)
	}
	if h.window, err = h.comm.Alloc(ctx, int(h.regions.total)); err != nil {
		return err
	}
	err = h.allocate()
	if err == nil {
		err = h.begin()
	}
	if err == nil {
		err = h.prepareLaunches(functions)
	}
	// Nobody may write into a window that is not yet as the kernels want it.
	return h.comm.AgreeOn(ctx, op, "memory", err)
}

// functions are the kernels of a handle.
type functions struct{ describe, weigh, copy, dispatch, fusedDispatch, weightDispatch, combine, fusedCombine, place, gradients *cuda.Function }

// blocks is how many blocks the operations of a handle have: those that move rows, and the clerks. Copies wait for nobody, and so take no room.
type blocks struct{ dispatch, dispatchClerks, combine, combineClerks, gradients, gradientThreads, copies int }

// dispatchGrid and combineGrid are all blocks of a launch.
func (b blocks) dispatchGrid() int { return b.dispatch + b.dispatchClerks }
func (b blocks) combineGrid() int  { return b.combine + b.combineClerks }

// load compiles what is not in the cache yet.
func (h *gpu) load(ctx context.Context) (f functions, err error) {
	arch, ranks, t := h.device.Arch(), h.geometry.ranks, &h.tuning
	var specs []kernel.Spec
	var into [][]**cuda.Function
	add := func(s kernel.Spec, to ...**cuda.Function) { specs, into = append(specs, s), append(into, to) }
	add(describeKernel(arch), &f.describe, &f.weigh)
	add(copyKernel(arch), &f.copy)
	if t.placed {
		add(placeKernel(h.spec.placeForm(ranks), arch), &f.place)
		add(pushKernel(h.spec.Quantize, false, arch), &f.dispatch)
		add(pushKernel(h.spec.Quantize, true, arch), &f.weightDispatch)
	} else {
		form, fused := t.dispatchForm(h.spec), t.fusedDispatchForm(h.spec, ranks)
		add(dispatchKernel(form, arch), &f.dispatch)
		if fused != form {
			add(dispatchKernel(fused, arch), &f.fusedDispatch)
		}
	}
	switch {
	case !h.spec.combines():
	case t.pulls:
		add(pullKernel(h.spec.pullForm(), arch), &f.combine)
	default:
		form, fused := t.combineForm(h.spec, ranks), t.fusedCombineForm(h.spec, ranks)
		add(combineKernel(form, arch), &f.combine)
		if fused != form {
			add(combineKernel(fused, arch), &f.fusedCombine)
		}
	}
	if h.spec.combines() {
		add(gradientKernel(h.spec.Output, arch), &f.gradients)
	}
	cubins, err := h.device.Kernels().LoadAll(ctx, specs)
	if err != nil {
		return f, err
	}
	for i, functions := range into {
		m, err := h.device.Context().LoadModule(cubins[i].Image())
		if err != nil {
			return f, err
		}
		h.modules = append(h.modules, m)
		for k, to := range functions {
			if *to, err = m.Function(cubins[i].Symbol(specs[i].Kernels[k])); err != nil {
				return f, err
			}
			if err := (*to).PreferShared(sharedPercent); err != nil {
				return f, err
			}
		}
	}
	return f, nil
}

// sharedPercent is how much of an SM's memory all kernels want shared, half of it: enough for as many blocks as an SM has registers for, unless they are of fewer threads
// than 128. A kernel that wants none would leave none where its blocks wait, and others would not find room there.
const sharedPercent = 50

// smThreads is how many threads of 64 registers an SM holds.
const smThreads = 1024

// weigher says how much of an SM a block takes, in threads of 64 registers. Its error is that of the first question that the driver did not answer.
type weigher struct{ err error }

func (w *weigher) weigh(threads int, functions ...*cuda.Function) (weight int) {
	weight = threads
	for _, f := range functions {
		if f == nil {
			continue
		}
		n, err := f.Occupancy(threads, 0)
		w.err = cmp.Or(w.err, err)
		weight = max(weight, smThreads/max(1, n))
	}
	return weight
}

// widen gives blocks more threads while they stay within a weight, so that fewer of them have as many warps.
func (w *weigher) widen(threads, blocks *int, enough, weight int, functions ...*cuda.Function) {
	for *blocks > enough && *threads <= 256 && w.weigh(2**threads, functions...) <= weight {
		*threads, *blocks = 2**threads, ceil(*blocks, 2)
	}
}

// reserve settles how many blocks the operations have, on every rank alike, and takes room for them. Rows that go through slots have blocks
// more, the clerks.
//
// Room is taken for blocks of the heaviest kernel, and each of the others has at most as many: many light blocks would stand in the way of more heavy ones than they
// weigh, for they are spread over all SMs. Only a handle that nobody can share the GPU with has as many of each as fit.
func (h *gpu) reserve(ctx context.Context, f functions) (n blocks, err error) {
	const op = "new handle"
	var w weigher
	t := &h.tuning
	dispatchWeight := w.weigh(t.dispatchThreads, f.dispatch, f.fusedDispatch)
	combineWeight := w.weigh(t.combineThreads, f.combine, f.fusedCombine)
	gradientWeight := w.weigh(gradientThreads, f.gradients)
	if t.placed {
		dispatchWeight = smThreads // its shared memory takes a whole SM
	}
	if t.pulls {
		combineWeight = smThreads
	}
	weight := max(dispatchWeight, combineWeight, gradientWeight)
	slots := max(1, smThreads/weight)
	weight = smThreads / slots // what an SM has left beside as many as it holds is of no use

	// By default a quarter of what is there is left for others.
	sms := h.device.SMs()
	room := h.device.Room(h.spec.Series, weight)
	if h.spec.SMs > 0 {
		room = min(room, h.spec.SMs*slots)
	} else {
		room -= room / 4
	}
	held := h.device.Held(h.spec.Series, weight)
	if h.spec.SMs > 0 {
		held = min(held, h.spec.SMs*slots)
	}
	room, alone, err := h.shareRoom(ctx, op, room, held, sms*slots)
	if err != nil {
		return n, err
	}
	if tuned := h.spec.Tuning; !alone {
		if !t.placed && tuned.Dispatch.Threads == 0 && !(t.valueDispatch && t.dispatchUnits == 1) {
			w.widen(&t.dispatchThreads, &t.dispatchBlocks, room, weight, f.dispatch, f.fusedDispatch)
		}
		if !t.pulls && tuned.Combine.Threads == 0 {
			w.widen(&t.combineThreads, &t.combineBlocks, room, weight, f.combine, f.fusedCombine)
		}
	}
	most := func(own, clerks int) int {
		n := room
		if alone {
			n = sms * (smThreads / own)
		}
		if n > sms {
			n -= n % sms // so that all SMs have the same to do
		}
		return max(1, n-clerks)
	}
	n.dispatchClerks, n.combineClerks = t.clerks()
	if most(dispatchWeight, 0) <= n.dispatchClerks {
		n.dispatchClerks = min(n.dispatchClerks, 1)
	}
	n.dispatch = min(t.dispatchBlocks, most(dispatchWeight, n.dispatchClerks))
	n.combine = min(t.combineBlocks, most(combineWeight, n.combineClerks))
	reserved := min(max(n.dispatchGrid(), n.combineGrid()), room) // a handle that is alone may have more, of lighter ones
	n.copies = h.copyBlocks(ceil(room, slots))
	n.gradients, n.gradientThreads = reserved, gradientThreads
	for wide := 2 * gradientThreads; wide <= mostGradientThreads && w.weigh(wide, f.gradients) <= weight; wide *= 2 {
		n.gradientThreads = wide
	}
	least := 1 // blocks that an operation needs: one that moves rows, and a clerk where there are any
	if n.dispatchClerks > 0 || n.combineClerks > 0 && h.spec.combines() {
		least = 2
	}
	switch {
	case w.err != nil:
		err = w.err
	case h.spec.SMs > 0 && h.spec.SMs*slots < least:
		err = weft.Unsupportedf("SMs %d: its kernels take %d at least", h.spec.SMs, ceil(least, slots))
	case room < least:
		err = weft.Unsupportedf("no room for its kernels, which wait for peers, beside those of the handles that are there: ask for fewer SMs in their Specs, make those that take turns of one Series, or close one")
	}
	if err == nil {
		h.reservation, err = h.device.Reserve(h.spec.Series, weight, reserved)
	}
	return n, h.comm.AgreeOn(ctx, op, fmt.Sprintf("blocks %+v of %d and %d threads", n, t.dispatchThreads, t.combineThreads), err)
}

// shareRoom settles how much of the room that every rank has on its GPU each can take, where it is shared with the ranks that are there too, or that all have held for
// handles of the Series, and whether that is the whole GPU everywhere.
func (h *gpu) shareRoom(ctx context.Context, op string, mine, held, whole int) (room int, alone bool, err error) {
	bus, err := h.device.Context().Device().PCIBusID()
	if err := h.comm.AgreeOn(ctx, op, "", err); err != nil {
		return 0, false, err
	}
	note := binary.LittleEndian.AppendUint32(nil, uint32(mine))
	note = binary.LittleEndian.AppendUint32(note, uint32(whole))
	note = binary.LittleEndian.AppendUint32(note, uint32(held))
	notes, err := h.comm.Agree(ctx, op, append(note, bus...))
	if err != nil {
		return 0, false, err
	}
	notes = slices.DeleteFunc(notes, func(n []byte) bool { return n == nil }) // of ranks that are left out
	here := map[string]int{}
	for _, n := range notes {
		here[string(n[12:])]++
	}
	room = mine
	for _, n := range notes {
		room = min(room, int(binary.LittleEndian.Uint32(n))/here[string(n[12:])])
		held = min(held, int(binary.LittleEndian.Uint32(n[8:])))
	}
	room = max(room, held)
	alone = !slices.ContainsFunc(notes, func(n []byte) bool { return int(binary.LittleEndian.Uint32(n[4:])) != room })
	return room, alone, nil
}

func (h *gpu) allocate() (err error) {
	c := h.device.Context()
	if h.memory, err = c.Alloc(h.locals.total); err != nil {
		return err
	}
	if !h.regions.inWindow {
		if h.room, err = c.Alloc(int(h.regions.block.bytes) * h.spec.Live); err != nil {
			return err
		}
	}
	h.took = make([]uint64, h.spec.Live)
	for range h.spec.Live + 1 {
		r, err := h.newRouting()
		if err != nil {
			return err
		}
		h.idle = append(h.idle, r)
	}
	return nil
}

// begin makes the memory as the first operation of a generation wants it, when nothing of the handle runs.
func (h *gpu) begin() error {
	r, s := &h.regions, h.device.Stream()
	base := h.window.Pointer()
	for _, e := range r.empty {
		if err := s.Memset(base.Add(int(e.at)), 0xFF, int(e.size)); err != nil {
			return err
		}
	}
	for _, z := range r.zero {
		if err := s.Memset(base.Add(int(z.at)), 0, int(z.size)); err != nil {
			return err
		}
	}
	if err := s.Memset(h.memory.Pointer(), 0, h.memory.Size()); err != nil {
		return err
	}
	if err := s.Synchronize(); err != nil {
		return err
	}
	state := device.State{Mask: h.comm.Mask(), Timeout: uint64(max(h.comm.Deadline(), time.Millisecond))}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&state)), unsafe.Sizeof(state))
	return h.device.Context().Upload(h.memory.Pointer().Add(h.locals.state), raw)
}

// prepareLaunches lays out the launches, with all that does not change from call to call.
func (h *gpu) prepareLaunches(f functions) (err error) {
	major, err := h.device.Context().Device().Attribute(cuda.ComputeCapabilityMajor)
	if err != nil {
		return err
	}
	config := func(blocks, threads int, dependent bool) cuda.LaunchConfig {
		return cuda.LaunchConfig{Grid: cuda.Dim{X: uint32(blocks)}, Block: cuda.Dim{X: uint32(threads)}, Dependent: dependent && major >= 9}
	}
	t := &h.tuning
	if h.tuning.placed {
		err = h.preparePlaced(f, config(h.blocks.dispatchGrid(), t.dispatchThreads, t.dependentDispatch), config(h.blocks.combineGrid(), t.combineThreads, t.dependentCombine))
	} else {
		err = h.prepareDispatchLaunch(f, config(h.blocks.dispatchGrid(), t.dispatchThreads, t.dependentDispatch))
	}
	if err == nil {
		err = h.prepareDescribe(f)
	}
	if err == nil {
		err = h.prepareCopies(f, config(h.blocks.copies, copyThreads, t.dependentDispatch))
	}
	if err == nil && h.tuning.pulls && h.spec.Counts == DeviceCounts {
		err = h.prepareStaging(f, config(h.blocks.copies, copyThreads, t.dependentCombine))
	}
	if err == nil && h.spec.combines() && !h.tuning.pulls {
		err = h.prepareCombine(f, config(h.blocks.combineGrid(), t.combineThreads, t.dependentCombine))
	}
	if err == nil && h.spec.combines() {
		err = h.prepareGradients(f)
	}
	if err == nil {
		h.point()
	}
	return err
}

// shape is what kernels know of the Spec.
func (h *gpu) shape() shape {
	g := &h.geometry
	return shape{
		capacity: uint32(g.tokens), topk: uint32(g.topk), experts: uint32(g.experts), local: uint32(g.local),
		reciprocal: reciprocal(g.local),
	}
}

// reciprocal is 2^32 / n, rounded up; 0 for 1, of which kernels know.
func reciprocal(n int) uint32 { return uint32((1<<32 + uint64(n) - 1) / uint64(n)) }

// quantizeWhat is what a dispatch does when it quantises.
func quantizeWhat(s *Spec) (what uint32) {
	if s.Quantize != weft.InvalidDType {
		if s.Payload == FP8UE8M0 {
			what |= whatExponents | whatPowerOfTwo
		}
		if s.PowerOfTwoScales {
			what |= whatPowerOfTwo
		}
	}
	return what
}

// pieceWords is how many words of scales go with a piece of so many units, at most.
func pieceWords(s *Spec, units int) uint32 {
	switch s.Payload {
	case FP8:
		return uint32(units * unitBytes / ScaleBlock)
	case FP8UE8M0:
		return uint32(units)
	default:
		return uint32(ceil(s.scaleBytes()/4, ceil(s.rowBytes(), units*unitBytes)))
	}
}

// strides say where the scales of received rows stand: row x number + zone x number of the zone's first row + word x number of the word of scales. They are the Strides of
// kernels/copy.cu.
type strides struct{ row, zone, word uint32 }

func scaleStrides(order ScaleOrder, words, zoneRows uint32) strides {
	if order == RowMajorScales || words == 0 {
		return strides{row: words, word: 1}
	}
	return strides{row: 1, zone: words - 1, word: zoneRows}
}

func (h *gpu) prepareDispatchLaunch(f functions, config cuda.LaunchConfig) (err error) {
	g, s, r, units := &h.geometry, &h.spec, &h.regions, h.tuning.dispatchUnits
	d := dispatchArgs{
		shape: h.shape(),
		heads: uint64(r.heads), counts: uint64(r.counts), records: uint64(r.records), rows: uint64(r.rows), arrived: uint64(r.arrived), ready: uint64(r.ready),
		pieces: device.NewDivisor(ceil(s.rowBytes(), units*unitBytes)), ranks: device.NewDivisor(g.ranks), selections: device.NewDivisor(g.tokens * g.topk),
		turnBytes: uint64(r.rowTurn), slotBytes: uint32(r.slotBytes), rowBytes: uint32(s.rowBytes()),
		scaleWords: uint32(s.scaleBytes() / 4), pieceWords: pieceWords(s, units), hidden: uint32(s.Hidden),
		zone: device.NewDivisor(g.capacity), senders: senders(h.blocks.dispatch, h.tuning.dispatchSenders), clerks: uint32(h.blocks.dispatchClerks), what: quantizeWhat(s),
	}
	scales := scaleStrides(s.ScaleOrder, d.scaleWords, d.zone.By)
	d.scaleRow, d.scaleZone, d.scaleWord = scales.row, scales.zone, scales.word
	if r.direct {
		d.what |= whatDirect
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

func (h *gpu) prepareDescribe(f functions) (err error) {
	e := describeArgs{shape: h.shape(), ranks: uint32(h.geometry.ranks)}
	if h.geometry.layout.byExpert() {
		e.byExpert = 1
	}
	if h.describing, err = f.describe.Prepare(cuda.LaunchConfig{Grid: cuda.Dim{X: 64}, Block: cuda.Dim{X: 256}}, e); err != nil {
		return err
	}
	if h.describeArg, err = cuda.Arg[describeArgs](h.describing, 0); err != nil {
		return err
	}
	if h.weighing, err = f.weigh.Prepare(cuda.LaunchConfig{Grid: cuda.Dim{X: 64}, Block: cuda.Dim{X: 256}}, weighArgs{}); err != nil {
		return err
	}
	h.weighArg, err = cuda.Arg[weighArgs](h.weighing, 0)
	return err
}

func (h *gpu) prepareCombine(f functions, config cuda.LaunchConfig) (err error) {
	s, r := &h.spec, &h.regions
	c := combineArgs{
		shape: h.shape(), senders: senders(h.blocks.combine, h.tuning.combineSenders), first: uint32(h.locals.combineCounts),
		heads: uint64(r.combineHeads), home: uint64(r.home), returned: uint64(r.returned), turnBytes: uint64(r.homeTurn),
		rowBytes: uint32(s.outputBytes()), pieces: device.NewDivisor(ceil(s.outputBytes(), unitBytes)),
	}
	if s.combines() && h.geometry.ranks > 1 {
		c.groups = device.NewDivisor(h.tuning.combineGroups(*s, h.geometry.ranks))
	}
	if h.combining, err = f.combine.Prepare(config, c); err != nil {
		return err
	}
	if h.fusedCombining = h.combining; f.fusedCombine != nil {
		if h.fusedCombining, err = h.combining.For(f.fusedCombine); err != nil {
			return err
		}
	}
	h.combineArg, err = cuda.Arg[combineArgs](h.combining, 0)
	return err
}

func (h *gpu) memoryBytes() int {
	n := h.window.Size() + h.memory.Size()
	if h.room != nil {
		n += h.room.Size()
	}
	for _, f := range h.before {
		if n += f.memory.Size(); f.window != nil {
			n += f.window.Size()
		}
	}
	return n + len(h.all)*h.routingBytes()
}

func (h *gpu) sms() (dispatch, combine, gradients int) {
	of := func(l *cuda.Launch) int {
		if l == nil {
			return 0
		}
		return min(int(l.Grid().X), h.device.SMs())
	}
	gradients = of(h.moving)
	switch {
	case !h.tuning.placed:
		return of(h.dispatching), of(h.combining), gradients
	case h.tuning.pulls:
		return of(h.placed.pushing), of(h.placed.pulling), gradients
	default:
		return of(h.placed.pushing), of(h.combining), gradients
	}
}

func (h *gpu) close() (released bool, err error) {
	var errs []error
	if h.window != nil {
		// Whoever closes a handle is done with it; its last kernels may still be ending.
		ctx, cancel := context.WithTimeoutCause(context.Background(), h.comm.Deadline(), weft.ErrTimeout)
		defer cancel()
		if err := h.device.Quiesce(ctx, "close handle"); err != nil && ctx.Err() != nil {
			// What goes on may be a kernel or a graph of this handle's. Memory that went from under it would take the whole context with it, so
			// all of it is left behind, with the room for the kernels, unless the caller comes back.
			return false, fmt.Errorf("%w after %v; end it (streams, graphs and other libraries of the process count) and call Close again: until then the handle's memory stays",
				err, h.comm.Deadline())
		} else if err != nil {
			errs = append(errs, err)
		}
		errs = append(errs, h.window.Close())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.all {
		errs = append(errs, r.close())
	}
	for _, f := range h.before {
		errs = append(errs, f.close())
	}
	for _, m := range []*cuda.Memory{h.memory, h.room} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	for _, m := range h.modules {
		errs = append(errs, m.Close())
	}
	if h.reservation != nil {
		h.reservation.Release()
	}
	return true, errors.Join(errs...)
}

// enter begins a call: it returns the stream to enqueue on.
func (h *gpu) enter(ctx context.Context, op string, s *weft.Stream) (*cuda.Stream, error) {
	if h.closed {
		return nil, fmt.Errorf("%s: handle %w", op, weft.ErrClosed)
	}
	if err := h.comm.Begin(op); err != nil {
		return nil, err
	}
	stream := h.streamOf(s)
	if g := h.comm.Generation(); g != h.generation {
		if status, err := stream.CaptureStatus(); err != nil || status != cuda.NotCapturing {
			return nil, cmp.Or(err, weft.Unsupportedf("%s: the first operation after ranks were masked cannot be captured; run one before", op))
		}
		if err := h.beginAnew(ctx, op); err != nil {
			return nil, err
		}
		h.generation, h.pending = g, ""
		h.operations++ // what was sent before cannot be received any more
	}
	if h.pending != "" {
		return nil, weft.Invalidf("%s: the handle's %s has been sent and not received; receive it first", op, h.pending)
	}
	return stream, h.note(stream)
}

// note remembers whether what is about to be enqueued goes into a graph.
func (h *gpu) note(stream *cuda.Stream) (err error) {
	h.capture, err = stream.CaptureID()
	h.captured = h.captured || h.capture != 0
	return err
}

// beginAnew goes on after a failure. SetMask has seen to it that nothing of before runs on this GPU. If all ranks go on that began together, so do graphs that were
// captured before. A rank that was left out alive may still write where it knows the others' memory, so they take other memory then, and again when it comes
// back; their graphs, which know the old one too, find it stopped for good. What no graph knows is freed.
func (h *gpu) beginAnew(ctx context.Context, op string) error {
	other := byte(0)
	for r := range h.geometry.ranks {
		if h.comm.Masked(r) || h.window.PeerPointer(r) == 0 {
			other = 1
		}
	}
	// This is also where ranks meet before any empties what another's last operation may still read.
	notes, err := h.comm.Agree(ctx, op, binary.LittleEndian.AppendUint32([]byte{other}, h.held()))
	if err != nil {
		return err
	}
	held := uint32(0)
	for _, n := range notes {
		if len(n) == 5 {
			other |= n[0]
			held |= binary.LittleEndian.Uint32(n[1:])
		}
	}
	// The turn of places begins anew as well, with one that nobody holds. A capture that goes on begins with other operations than a replay will make.
	h.advance(bits.TrailingZeros32(^held)%len(h.took) - 1)
	clear(h.took)
	if other != 0 {
		if err := h.relocate(ctx, op); err != nil {
			return err
		}
	}
	// Nobody sends before all are as at the beginning.
	return h.comm.AgreeOn(ctx, op, "begun anew", cmp.Or(h.begin(), h.drop(ctx)))
}

// relocate takes other memory, and leaves what knows the present one stopped.
func (h *gpu) relocate(ctx context.Context, op string) error {
	err := h.stop()
	memory, again := h.device.Context().Alloc(h.locals.total)
	if err := h.comm.AgreeOn(ctx, op, "memory", cmp.Or(err, again)); err != nil {
		if memory != nil {
			err = errors.Join(err, memory.Close())
		}
		return err
	}
	f := former{memory: h.memory, captured: h.captured}
	h.memory = memory
	window, err := h.comm.Alloc(ctx, int(h.regions.total))
	if err != nil {
		h.before = append(h.before, f)
		return err
	}
	f.window, h.window = h.window, window
	h.before = append(h.before, f)
	h.captured = false
	h.point()
	return nil
}

// dropPatience is how long drop waits for work that may still read rows that were received and released. Peers wait meanwhile.
const dropPatience = time.Second

// drop frees former memory that nothing reaches any more. Ranks that were left out alive have mappings of their own, whose memory stays, if it is virtual. A
// graph may be launched as long as the handle lives, and rows are their receiver's until Release: where there is one or the other memory stays, till the next
// time or till Close.
func (h *gpu) drop(ctx context.Context) error {
	if !h.device.Virtual() || h.regions.inWindow && h.batches.any() || !slices.ContainsFunc(h.before, func(f former) bool { return !f.captured }) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(dropPatience, h.comm.Deadline()/4))
	defer cancel()
	if h.device.Quiesce(ctx, "drop") != nil {
		return nil // whoever is concerned will be told
	}
	var errs []error
	h.before = slices.DeleteFunc(h.before, func(f former) bool {
		if !f.captured {
			errs = append(errs, f.close())
		}
		return !f.captured
	})
	h.pointBatches()
	return errors.Join(errs...)
}

// stop lets nothing run any more that knows the handle's present memory.
func (h *gpu) stop() error {
	stopped := device.State{Stopped: 1}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&stopped)), unsafe.Sizeof(stopped))
	return h.device.Context().Upload(h.memory.Pointer().Add(h.locals.state), raw)
}

// pointBatches says where received rows are. Those that came before ranks were masked stay their receiver's.
func (h *gpu) pointBatches() {
	b := &h.batches
	b.size = uintptr(h.regions.block.bytes)
	b.bases = append(b.bases[:0], uintptr(h.placeOf(0)))
	for _, f := range h.before {
		if h.regions.inWindow && f.window != nil {
			b.bases = append(b.bases, uintptr(f.window.Pointer().Add(int(h.regions.blocks))))
		}
	}
}

// point points the launches at the handle's memory.
func (h *gpu) point() {
	h.pointBatches()
	at := func(offset int) uint64 { return uint64(h.memory.Pointer().Add(offset)) }
	dispatch := device.Group{
		Abort: uint64(h.device.Abort()), Record: uint64(h.device.Record()), Claim: uint64(h.device.Claim()), Waits: h.dispatchWaits,
		Ranks: uint32(h.geometry.ranks), Rank: uint32(h.comm.Rank()),
	}
	for rank := range h.geometry.ranks {
		dispatch.Window[rank] = uint64(h.window.PeerPointer(rank))
	}
	combine := dispatch
	combine.Waits = h.combineWaits
	if d := h.dispatchArg; d != nil {
		d.group, d.state, d.filled, d.credits = dispatch, at(h.locals.state), at(h.locals.filled), at(h.locals.credits)
	}
	if h.placed != nil {
		h.placed.point(dispatch, combine, at, &h.locals)
	}
	if a := h.gradientArg; a != nil {
		a.group, a.state = dispatch, at(h.locals.state)
	}
	if c := h.combineArg; c != nil {
		c.group, c.state, c.filled, c.credits = combine, at(h.locals.state), at(h.locals.combineFilled), at(h.locals.credits)
	}
}

func (h *gpu) countWaits(dispatch, combine weft.Tensor) {
	h.dispatchWaits, h.combineWaits = addressOf(dispatch), addressOf(combine)
	h.point()
}

// streamOf is the stream to enqueue on: the caller's, or the communicator's.
func (h *gpu) streamOf(s *weft.Stream) *cuda.Stream {
	if stream := s.CUDA(); stream != nil {
		return stream
	}
	return h.device.Stream()
}

// finish waits for the work if the caller gave no stream.
func (h *gpu) finish(ctx context.Context, s *weft.Stream) error {
	if s.CUDA() != nil {
		return nil
	}
	return h.comm.Wait(ctx, nil)
}

// resume begins the second half of an operation.
func (h *gpu) resume(op string, s *weft.Stream, operation uint64) error {
	if h.closed {
		return fmt.Errorf("%s: handle %w", op, weft.ErrClosed)
	}
	if h.operations != operation || h.generation != h.comm.Generation() {
		return fmt.Errorf("%s: %w: ranks were masked after it was sent; prepare and send again", op, weft.ErrAborted)
	}
	h.pending = ""
	return cmp.Or(h.comm.Begin(op), h.note(h.streamOf(s)))
}

// free is the set of places whose rows are no longer read by anything that was not enqueued yet. When a graph is replayed others may be held than when it was captured.
// So it says so only of what it has taken itself before, which is overwritten by then whoever holds it, and given back.
func (h *gpu) free() (set uint32) {
	if !h.regions.direct {
		return 0
	}
	set = (1<<uint(len(h.took)) - 1) &^ h.held()
	for i := range h.took {
		if h.capture != 0 && h.took[i] != h.capture {
			set &^= 1 << uint(i)
		}
	}
	return set
}

// held is the set of places whose rows somebody has.
func (h *gpu) held() (set uint32) {
	for i := range min(h.spec.Live, 32) {
		if h.batches.held(i) {
			set |= 1 << uint(i)
		}
	}
	return set
}

// take takes a place for received rows. Where senders write there it is the next in turn, the same on every rank; the turn goes on when the call has been made.
func (h *gpu) take(op string) (int, error) {
	if !h.regions.direct {
		if i, ok := h.batches.take(); ok {
			return i, nil
		}
	} else if h.batches.takeAt(h.next) {
		return h.next, nil
	} else if bits.OnesCount32(h.held()) < h.spec.Live {
		return 0, weft.Unsupportedf("%s: the memory for received rows whose turn it is is in use: release received tensors in the order in which they came, "+
			"or make the handle with more than %d Live", op, h.spec.Live)
	}
	return 0, weft.Unsupportedf("%s: all memory for received rows is in use: release a received tensor, or make the handle with more than %d Live", op, h.spec.Live)
}

// keep is what follows when the call has been made that took a place.
func (h *gpu) keep(place int) {
	h.advance(place)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.took[place] = h.capture
}

// advance goes on to the place after one.
func (h *gpu) advance(place int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next = (place + 1) % len(h.took)
}

// put takes a place back.
func (h *gpu) put(place int) { h.batches.put(place) }

// receivedAt describes what arrives at a place.
func (h *gpu) receivedAt(place int, r *Routing, shape blockShape) *Received {
	out := h.received.take()
	*out = Received{Routing: r, owner: h, place: place}
	out.setTensors(h.Handle, pointer(h.placeOf(place)), shape, h.batches.fill(place, r))
	return out
}

// placeOf is where the rows of a place stand.
func (h *gpu) placeOf(place int) cuda.Pointer {
	at := place * int(h.regions.block.bytes)
	if h.regions.inWindow {
		return h.window.Pointer().Add(int(h.regions.blocks) + at)
	}
	return h.room.Pointer().Add(at)
}

// pointer views an address of the device as Go sees memory that is not its own.
func pointer(p cuda.Pointer) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// addressOf is the address that a tensor on the device has.
func addressOf(t weft.Tensor) uint64 { return uint64(uintptr(t.Data)) }

// whole refuses numbers that begin within one.
func whole(op, what string, t weft.Tensor) error {
	if n := uint64(t.DType.Size()); n > 0 && addressOf(t)%n != 0 {
		return weft.Unsupportedf("%s: %s begin at %#x; on GPUs %v begin on multiples of %d bytes: copy them there", op, what, addressOf(t), t.DType, n)
	}
	return nil
}

// aligned refuses rows that do not begin on 16 bytes.
func aligned(op, what string, t weft.Tensor) error {
	if addressOf(t)%16 != 0 {
		return weft.Unsupportedf("%s: %s begin at %#x; on GPUs rows begin on multiples of 16 bytes: copy them there", op, what, addressOf(t))
	}
	return nil
}
