package proxied

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/device"
	enginegpu "github.com/weftgo/weft/engine/gpu"
	"github.com/weftgo/weft/engine/gpu/proxy"
	"github.com/weftgo/weft/ep/spec"
)

const opNew = "new handle"

// handle is the engine of a handle.
type handle struct {
	*exchange
	*spec.Base
	block  spec.BlockShape // of a receive buffer
	memory *cuda.Memory    // of the receive buffers
	ring   *enginegpu.Ring

	half struct { // the operation that was sent and not yet received
		op         string // "" once it was received
		generation uint64
	}
	underway underway // of the goroutine

	batches spec.Slab[spec.Batch]
	epoch   uint64 // of the last batch

	mu   sync.Mutex
	idle spec.IdleRoutings[*routing]
	all  []*routing
}

// A Host makes the engine of a handle on the host. It is collective.
type Host func(ctx context.Context, of *spec.Base) (spec.HostRowEngine, error)

// New makes the engine of a handle. It is collective.
func New(ctx context.Context, of *spec.Base, host Host) (spec.RowEngine, error) {
	h := &handle{Base: of, block: spec.NewBlockShape(of.Spec, of.Geometry.Rows())}
	h.ring = enginegpu.NewRing(of.Buffers, false)
	var err error
	if h.exchange, err = newExchange(ctx, of, host, nil); err != nil {
		return nil, err
	}
	if err := of.Comm.Operations().VerifySame(ctx, opNew, "memory", h.allocate()); err != nil {
		_, again := h.Close()
		return nil, errors.Join(err, again)
	}
	return h, nil
}

func (h *handle) allocate() (err error) {
	if h.memory, err = h.device.Context().Alloc(int(h.block.Bytes) * h.Spec.Live); err != nil {
		return err
	}
	h.Buffers.Locate(uintptr(h.block.Bytes), uintptr(h.memory.Pointer()))
	return h.idle.Fill(h.Spec.Live+1, h.newRouting)
}

// bufferOf is where the rows of a buffer stand.
func (h *handle) bufferOf(buffer int) cuda.Pointer {
	return h.memory.Pointer().Add(buffer * int(h.block.Bytes))
}

// Put implements [spec.RowEngine].
func (h *handle) Put(buffer int) { h.Buffers.Put(buffer) }

// OperandBuffers implements [spec.RowEngine]: no operand is read where it lies.
func (*handle) OperandBuffers() (combine, gradient weft.Tensor) { return weft.Tensor{}, weft.Tensor{} }

// CountWaits implements [spec.RowEngine].
func (h *handle) CountWaits(dispatch, combine weft.Tensor) {
	h.waits.dispatch, h.waits.combine = dispatch.Pointer(), combine.Pointer()
}

// Resources implements [spec.RowEngine].
func (h *handle) Resources() spec.Resources {
	r := h.exchange.resources()
	r.Bytes += h.memory.Size()
	for _, g := range h.all {
		r.Bytes += g.memory.Size()
	}
	r.DispatchSMs = r.GradientSMs
	if h.Spec.Combines() {
		r.CombineSMs = r.GradientSMs
	}
	return r
}

// Shipped is how many bytes of rows and numbers this rank has sent to other hosts.
func (h *handle) Shipped() uint64 { return h.host.Shipped() }

// Close implements [spec.RowEngine].
func (h *handle) Close() (released bool, err error) {
	if released, err = h.exchange.close(); !released {
		return false, err
	}
	errs := []error{err}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.all {
		errs = append(errs, r.close())
	}
	if h.memory != nil {
		errs = append(errs, h.memory.Close())
	}
	return true, errors.Join(errs...)
}

// enter begins a call of all ranks, and returns the stream to enqueue on.
func (h *handle) enter(ctx context.Context, op string, s *weft.Stream) (*cuda.Stream, error) {
	stream, err := h.proxy.Enter(ctx, op, s)
	if err != nil {
		return nil, err
	}
	return stream, h.whole(op)
}

// enterLocal begins a call that no other rank makes.
func (h *handle) enterLocal(op string, s *weft.Stream) (*cuda.Stream, error) {
	stream, err := h.proxy.EnterLocal(op, s)
	if err != nil {
		return nil, err
	}
	return stream, h.whole(op)
}

// whole refuses a call between the halves of another.
func (h *handle) whole(op string) error {
	if h.half.op != "" && h.half.generation == h.Comm.Operations().Generation() {
		return weft.Invalidf("%s: the handle's %s has been sent and not received; receive it first", op, h.half.op)
	}
	return nil
}

// sent says that an operation has only been sent.
func (h *handle) sent(op string) { h.half.op, h.half.generation = op, h.Comm.Operations().Generation() }

// resume begins the second half of an operation that was sent in a generation, and returns the stream to enqueue on.
func (h *handle) resume(ctx context.Context, op string, s *weft.Stream, generation uint64) (*cuda.Stream, error) {
	if h.half.op != op || generation != h.Comm.Operations().Generation() {
		return nil, fmt.Errorf("%s: %w: ranks were masked after it was sent; prepare and send again", op, weft.ErrAborted)
	}
	h.half.op = ""
	return h.proxy.Enter(ctx, op, s)
}

// exchange is what makes operations on the host: of a handle, or of gradients alone.
type exchange struct {
	comm   *weft.Comm
	device *weft.Device
	base   *spec.Base // of the host engine
	host   spec.HostRowEngine
	proxy  *proxy.Proxy
	bridge

	tokens, rows *weft.Window // memory of the host that other ranks read: for rows of tokens, and for experts' rows
	home         scratch      // what comes home, and biases
	numbers      scratch      // selections, weights, and gradients of weights
	copies       scratch      // what is copied to the caller's memory

	waits struct{ dispatch, combine cuda.Pointer } // where they are counted, or 0
	count []int64                                  // of the present operation
}

// scratch is host memory that grows to what is asked of it.
type scratch []byte

func (s *scratch) of(bytes int) []byte {
	n := max(bytes, 64) // a tensor of no bytes has an address, too
	if cap(*s) < n {
		*s = make([]byte, n)
	}
	return (*s)[:bytes]
}

// newExchange makes one for handles of a Spec. beside is room of kernels of the same handle.
func newExchange(ctx context.Context, of *spec.Base, host Host, beside *enginegpu.Room) (*exchange, error) {
	s := of.Spec
	s.Live, s.Tuning = 1, spec.Tuning{}
	x := &exchange{
		comm: of.Comm, device: of.Comm.Device(), base: spec.NewBase(of.Comm, s),
		count: make([]int64, of.Comm.Size()),
	}
	if err := x.open(ctx, of, host, beside); err != nil {
		_, again := x.close()
		return nil, errors.Join(err, again)
	}
	return x, nil
}

func (x *exchange) open(ctx context.Context, of *spec.Base, host Host, beside *enginegpu.Room) (err error) {
	if x.host, err = host(ctx, x.base); err != nil {
		return fmt.Errorf("%s: %w", opNew, err)
	}
	g, s, ops := &x.base.Geometry, &x.base.Spec, x.comm.Operations()
	if x.tokens, err = ops.AllocHost(ctx, max(x.scalesAt()+g.Tokens*s.ScaleSize(), g.Tokens*s.OutputSize())); err != nil {
		return err
	}
	if s.Combines() {
		if x.rows, err = ops.AllocHost(ctx, g.Rows()*s.OutputSize()); err != nil {
			return err
		}
	}
	x.pinned, err = x.device.Context().AllocHost(2*areaBytes, cuda.HostOptions{})
	if err := ops.VerifySame(ctx, opNew, "pinned memory", err); err != nil {
		return err
	}
	x.proxy, err = proxy.New(ctx, x.comm, proxy.Spec{
		Op: opNew, Owner: "handle", Words: words, SMs: of.Spec.SMs, SerialGroup: of.Spec.SerialGroup, Beside: beside,
	})
	return err
}

// resources are what an exchange has for gradients, or for all operations.
func (x *exchange) resources() spec.Resources {
	r := x.host.Resources()
	r.Bytes += x.pinned.Size()
	for _, w := range []*weft.Window{x.tokens, x.rows} {
		if w != nil {
			r.Bytes += w.Size()
		}
	}
	r.GradientSMs = min(x.proxy.Blocks(), x.device.SMs())
	return r
}

// close gives up what there is.
func (x *exchange) close() (released bool, err error) {
	if x.proxy != nil {
		if released, err = x.proxy.Close(); !released {
			return false, err
		}
	}
	errs := []error{err}
	if x.host != nil {
		_, err := x.host.Close()
		errs = append(errs, err)
	}
	for _, w := range []*weft.Window{x.tokens, x.rows} {
		if w != nil {
			errs = append(errs, w.Close())
		}
	}
	if x.pinned != nil {
		errs = append(errs, x.pinned.Close())
	}
	return true, errors.Join(append(errs, x.base.Gate.Close(opNew))...)
}

// rowIn is the size of a row as a dispatch is given it.
func (x *exchange) rowIn() int {
	if s := &x.base.Spec; s.Quantize != weft.InvalidDType {
		return s.Hidden * s.Quantize.Size()
	}
	return x.base.Spec.RowSize()
}

// scalesAt is where the scales of tokens stand behind their rows.
func (x *exchange) scalesAt() int { return spec.AlignUp(x.base.Geometry.Tokens * x.rowIn()) }

// start enqueues an operation, which the proxy makes when the stream comes to it.
func (x *exchange) start(stream *cuda.Stream, op string, do func() error) error {
	waits := x.waits.dispatch
	if op == spec.OpCombine || op == spec.OpDispatchBackward {
		waits = x.waits.combine
	}
	return x.proxy.Start(stream, numberOf(op), op, func(h *proxy.Hand) error {
		x.begin(h)
		x.host.OnStep(h.Beat)
		defer x.host.OnStep(nil)
		if waits == 0 {
			x.host.CountWaits(weft.Tensor{}, weft.Tensor{})
			return do()
		}
		clear(x.count)
		t := weft.TensorOf(x.count)
		x.host.CountWaits(t, t)
		if err := do(); err != nil {
			return err
		}
		return x.addWaits(waits)
	})
}

// addWaits adds those of the operation to the caller's.
func (x *exchange) addWaits(to cuda.Pointer) error {
	sums := make([]int64, len(x.count))
	raw := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(sums))), 8*len(sums))
	if err := x.fetch(move{to, raw}); err != nil {
		return err
	}
	for i := range sums {
		sums[i] += x.count[i]
	}
	return x.store(move{to, raw})
}

// Operations have the numbers of their names in this list, from 1.
var names = []string{
	spec.OpPrepare, spec.OpPrepareDispatch, spec.OpDispatch, spec.OpCombine, spec.OpDispatchBackward,
	spec.OpCombineBackward, spec.OpSetWeights, spec.OpCopy, opDescribe,
}

func numberOf(op string) uint32 {
	for i, name := range names {
		if name == op {
			return uint32(i + 1)
		}
	}
	return 0
}

var words = &device.Words{Operation: func(op uint32) string {
	if op == 0 || int(op) > len(names) {
		return ""
	}
	return names[op-1]
}}
