package gpu

import (
	"context"
	"errors"
	"sync"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/ep/spec"
)

const opNew = "new handle"

// handle is the engine of a handle on GPUs: what its movers share. An operation is one kernel on
// every rank, enqueued on the caller's stream. It is two if it is sent and received apart, or if a
// direct dispatch prepares. docs/design/gpu-engine.md says why it is right.
//
// A call that is refused has not been made: nothing was enqueued, and the caller may make it again,
// as it should be.
type handle struct {
	*spec.Base
	device *weft.Device
	choice spec.Choice
	major  int // of the GPU's compute capability

	movers     []mover
	dispatcher dispatcher // among them
	combiner   combiner   // nil where rows cannot be summed, as gradients are
	ports      *ports     // nil where all ranks' memory is mapped
	between    NewGradients

	program *enginegpu.Program
	room    *enginegpu.Room
	grids   [operations]grid
	whole   bool // a block has an SM to itself
	counts  int  // of the lane's: one a block
	parts   []enginegpu.Part

	lane          *enginegpu.Lane
	window, local *enginegpu.Workspace
	credits       int64  // in local: the buffers that each rank had free in the last operation
	lent          []span // of the window, where peers read operands

	ring     *enginegpu.Ring // of received rows
	received received

	waits struct{ dispatch, combine uint64 } // where they are counted, or 0

	batches spec.Slab[spec.Batch]
	routing routingLayout
	mu      sync.Mutex
	idle    spec.IdleRoutings[*gpuRouting]
	all     []*gpuRouting
}

// received is where the buffers of received rows are. The dispatcher says so when it lays out its
// memory.
type received struct {
	inWindow bool  // as peers write them
	inTurn   bool  // every rank receives in the same buffer
	at       int64 // in the window
	block    spec.BlockShape
	memory   *cuda.Memory // elsewhere
}

// NewGPU makes the engine of a handle on GPUs. between makes what brings gradients between hosts.
func NewGPU(ctx context.Context, of *spec.Base, between NewGradients) (spec.RowEngine, error) {
	h := newHandle(of, spec.ChoiceOf(of.Spec, of.Comm))
	h.between = between
	h.device = of.Comm.Device()
	if err := h.open(ctx); err != nil {
		_, again := h.Close()
		return nil, errors.Join(err, again)
	}
	return h, nil
}

// newHandle composes a handle, without anything of a GPU's.
func newHandle(of *spec.Base, c spec.Choice) *handle {
	h := &handle{Base: of, choice: c, window: new(enginegpu.Workspace)}
	h.received.block = spec.NewBlockShape(of.Spec, of.Geometry.Rows())
	h.compose()
	h.layOutRouting()
	return h
}

func (h *handle) open(ctx context.Context) error {
	if err := h.load(ctx); err != nil {
		return err
	}
	if err := h.fit(ctx); err != nil {
		return err
	}
	h.layout()
	h.ring = enginegpu.NewRing(h.Buffers, h.received.inTurn)
	// Launches are laid out first: the lane points them at its memory.
	err := h.prepare()
	if err == nil {
		err = h.allocate()
	}
	if err := h.Comm.Operations().VerifySame(ctx, opNew, "memory", err); err != nil {
		return err
	}
	lane := enginegpu.LaneSpec{
		Op: opNew, Owner: "handle", Words: laneWords, Window: h.window, Local: h.local, Ring: h.ring,
		RingInWindow: h.received.inWindow, Moved: h.moved, Parts: h.parts,
	}
	if h.ports != nil {
		lane.Far = h.ports.open
	}
	h.lane, err = enginegpu.NewLane(ctx, h.Comm, lane)
	return err
}

// prepare lays out the launches, with all that does not change from call to call.
func (h *handle) prepare() (err error) {
	if h.major, err = h.device.Context().Device().Attribute(cuda.ComputeCapabilityMajor); err != nil {
		return err
	}
	for _, m := range h.movers {
		if err := m.prepare(); err != nil {
			return err
		}
	}
	return nil
}

func (h *handle) allocate() (err error) {
	if !h.received.inWindow {
		if h.received.memory, err = h.device.Context().Alloc(int(h.received.block.Bytes) * h.Spec.Live); err != nil {
			return err
		}
	}
	return h.idle.Fill(h.Spec.Live+1, h.newRouting)
}

// shape is what kernels know of the Spec.
func (h *handle) shape() shape {
	g := &h.Geometry
	return shape{
		capacity: uint32(g.Tokens), topk: uint32(g.TopK), experts: uint32(g.Experts), local: uint32(g.Local),
		reciprocal: reciprocal(g.Local),
	}
}

// reciprocal is 2^32 / n, rounded up; 0 for 1, of which kernels know.
func reciprocal(n int) uint32 { return uint32((1<<32 + uint64(n) - 1) / uint64(n)) }

// quantizeFlags are what a dispatch does when it quantises.
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

// bulk says whether the GPU has bulk copies, and the shared memory for them.
func (h *handle) bulk() (bool, error) {
	if h.major < 9 {
		return false, nil
	}
	shared, err := h.device.Context().Device().Attribute(cuda.SharedMemoryPerBlockOptIn)
	return shared >= spec.BulkSharedBytes+spec.BulkOwnBytes, err
}

func (h *handle) Resources() spec.Resources {
	n := h.lane.Bytes() + len(h.all)*h.routing.total
	if m := h.received.memory; m != nil {
		n += m.Size()
	}
	of := func(o operation) int { return min(h.grids[o].blocks(), h.device.SMs()) }
	r := spec.Resources{
		Bytes: n, DispatchSMs: of(ofDispatch), CombineSMs: of(ofCombine), GradientSMs: of(ofGradients),
	}
	if h.ports != nil {
		h.ports.add(&r)
	}
	return r
}

func (h *handle) Close() (released bool, err error) {
	var errs []error
	if h.ports != nil && h.ports.back != nil {
		if released, err = h.ports.back.Close(); !released {
			return false, err
		}
		h.ports.back, errs = nil, append(errs, err)
	}
	if h.lane != nil {
		released, err = h.lane.Close()
		if errs = append(errs, err); !released {
			return false, errors.Join(errs...)
		}
	}
	if h.ports != nil {
		errs = append(errs, h.ports.close(), h.ports.free())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.all {
		errs = append(errs, r.close())
	}
	if h.received.memory != nil {
		errs = append(errs, h.received.memory.Close())
	}
	h.room.Release()
	return true, errors.Join(append(errs, h.program.Close())...)
}

// moved points the movers at the memory of the handle's lane.
func (h *handle) moved(l *enginegpu.Lane) {
	h.lane = l
	// Rows that came before ranks were masked stay their receiver's.
	var before []uintptr
	if h.received.inWindow {
		for w := range l.Former() {
			before = append(before, uintptr(w.Pointer().Add(int(h.received.at))))
		}
	}
	h.Buffers.Locate(uintptr(h.received.block.Bytes), uintptr(h.bufferOf(0)), before...)
	h.point()
}

// point is moved again, when anything else has changed.
func (h *handle) point() {
	for _, m := range h.movers {
		m.point()
	}
}

// localAt is where an offset in the GPU's own memory is.
func (h *handle) localAt(offset int64) uint64 { return uint64(h.lane.Local(offset)) }

func (h *handle) CountWaits(dispatch, combine weft.Tensor) {
	h.waits.dispatch, h.waits.combine = addressOf(dispatch), addressOf(combine)
	h.point()
}

// Put implements [RowEngine].
func (h *handle) Put(buffer int) { h.Buffers.Put(buffer) }

// arrived describes what arrives in a buffer.
func (h *handle) arrived(buffer int, b *spec.Batch, shape spec.BlockShape) spec.Arrived {
	return spec.Arrived{
		Batch: b, Buffer: buffer, Memory: pointer(h.bufferOf(buffer)), Shape: shape,
		Generation: h.Buffers.Fill(buffer, b.Epoch),
	}
}

// bufferOf is where the rows of a buffer stand.
func (h *handle) bufferOf(buffer int) cuda.Pointer {
	at := buffer * int(h.received.block.Bytes)
	if h.received.inWindow {
		return h.lane.Window().Pointer().Add(int(h.received.at) + at)
	}
	return h.received.memory.Pointer().Add(at)
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

// words refuses what does not begin on a word.
func words(op, what string, t weft.Tensor) error {
	if addressOf(t)%4 != 0 {
		return weft.Unsupportedf("%s: %s begin at %#x; on GPUs they begin on multiples of 4 bytes: copy "+
			"them there", op, what, addressOf(t))
	}
	return nil
}
