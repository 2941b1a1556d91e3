package ep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// Handle makes exchanges of one [Spec] among the ranks of a communicator. Several handles, of any
// Specs, may live at once; they share nothing.
//
// The methods of a handle are collective: every unmasked rank calls them in the same order, from
// one goroutine at a time.
type Handle struct {
	base     *spec.Base
	engine   spec.RowEngine
	released bool // its memory too

	routings spec.Slab[Routing]
	received spec.Slab[Received]
	pending  spec.Slab[PendingDispatch]
}

// NewHandle makes a handle on the communicator's engine. It is collective. It allocates all memory
// for exchanges, with one exception: if the caller holds more Routings at a time than NewHandle has
// made, or than captures have left, the next Prepare allocates one.
func NewHandle(ctx context.Context, comm *weft.Comm, s Spec) (*Handle, error) {
	const op = "new handle"
	e := spec.EngineOf(comm)
	validate := func(ranks int) error { return s.ValidateOn(e, ranks) }
	if e == spec.GPUEngine && comm.Operations().Spans() {
		validate = s.ValidateBetween
	}
	var library *TuningTable
	var own error
	if e == spec.GPUEngine { // on every rank, whatever its Spec and environment say
		var err error
		if library, own, err = libraryTable(ctx, comm, op); err != nil {
			return nil, err
		}
	}
	err := cmp.Or(validate(comm.Size()), own)
	s = s.Normalize()
	if err == nil && e == spec.GPUEngine {
		s, err = tuned(s, comm, library)
	}
	text := s.Text()
	if err == nil && e == spec.GPUEngine && comm.Operations().Spans() {
		var once bool
		once, err = spec.CopiesByHost()
		text += fmt.Sprintf(" once to each host: %v", once)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", op, err)
	}
	if err := comm.Operations().VerifySame(ctx, op, text, err); err != nil {
		return nil, err
	}
	h := &Handle{base: spec.NewBase(comm, s)}
	if h.engine, err = newEngine(ctx, h.base); err != nil {
		return nil, errors.Join(err, h.base.Gate.Close(op))
	}
	comm.Operations().Shelf().Add(h.base.Buffers)
	h.log()
	return h, nil
}

// log says at level Debug what the handle is made of and, on GPUs, which forms of kernels it has chosen.
func (h *Handle) log() {
	logger, r := h.base.Comm.Operations().Logger(), h.engine.Resources()
	if !logger.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	attrs := []any{"op", "new handle", "engine", h.Engine().String(), "spec", h.base.Spec.String(), "bytes", r.Bytes}
	switch {
	case proxied(h.base):
		attrs = append(attrs, "kernels", "hand-over", "dispatch_sms", r.DispatchSMs, "combine_sms", r.CombineSMs)
	case h.Engine() == spec.GPUEngine:
		attrs = append(attrs, "kernels", fmt.Sprintf("%+v", spec.ChoiceOf(h.base.Spec, h.base.Comm)),
			"dispatch_sms", r.DispatchSMs, "combine_sms", r.CombineSMs)
	}
	logger.Debug("handle", attrs...)
}

// String names the handle and what it exchanges.
func (h *Handle) String() string {
	closed := ""
	if h.base.Gate.Closed() {
		closed = ", closed"
	}
	return fmt.Sprintf("handle of %v (%v%s)", h.base.Comm, h.base.Spec, closed)
}

// Spec returns the handle's Spec, with defaults filled in.
func (h *Handle) Spec() spec.Spec { return h.base.Spec }

// Comm is the handle's communicator.
func (h *Handle) Comm() *weft.Comm { return h.base.Comm }

// Engine is the engine that moves the handle's rows.
func (h *Handle) Engine() spec.Engine { return spec.EngineOf(h.base.Comm) }

// Capacity is the number of rows of the largest received tensor.
func (h *Handle) Capacity() int { return h.base.Geometry.Rows() }

// MemoryBytes is the size of the handle's memory on this rank, its windows above all. On the host a page of a
// large window exists only once it is used. Where rows go through port channels it grows with the first call of a
// gradient that they do not carry.
func (h *Handle) MemoryBytes() int { return h.engine.Resources().Bytes }

// SMs returns the number of SMs on which the kernels of dispatches and combines run on an otherwise
// idle GPU: one for each block, up to all SMs of the GPU. The two numbers differ, because a kernel
// has no more blocks than have work. They may exceed [Spec].SMs, where several blocks would fill one
// SM. Prepare counts as a dispatch. Both are 0 on the host; combine is 0 for rows that cannot be
// summed.
func (h *Handle) SMs() (dispatch, combine int) {
	r := h.engine.Resources()
	return r.DispatchSMs, r.CombineSMs
}

// GradientSMs is SMs for the gradient kernel: it moves the rows of a CombineBackward, and the
// gradients of weights of a DispatchBackward. The combine kernel moves the rows of the latter. Where rows go
// through port channels it is 0 until the first of these calls, which makes what they need.
func (h *Handle) GradientSMs() int { return h.engine.Resources().GradientSMs }

// Close frees the handle's windows on this rank. Received tensors become invalid. Further calls do
// nothing. Call it before the communicator's Close: on a GPU that ends the context, unless another
// owner holds it, and with it the handle's memory. While another goroutine is inside a call of the handle, the
// error wraps [weft.ErrBusy], and the handle goes on: [weft.Comm.Abort] ends the call.
//
// On a GPU it first waits until all work in the rank's context has ended, also other libraries'
// work, at most for the communicator's deadline. If work still runs then, the error wraps
// [weft.ErrTimeout]: the handle cannot be used any more but keeps its memory, which kernels may
// still use, and Close is to be called again.
func (h *Handle) Close() error {
	if h.released {
		return nil
	}
	if err := h.base.Gate.Close("close handle"); err != nil {
		return err
	}
	h.base.Comm.Operations().Shelf().Remove(h.base.Buffers)
	var err error
	h.released, err = h.engine.Close()
	return err
}
