package ep

import (
	"context"
	"fmt"

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

// NewHandle makes a handle, whose rows the engine of the communicator moves. It is collective, and
// where memory for exchanges is allocated. Who holds more Routings at a time than it has made, or
// than captures have left, has the next Prepare allocate one.
func NewHandle(ctx context.Context, comm *weft.Comm, s Spec) (*Handle, error) {
	const op = "new handle"
	e := spec.EngineOf(comm)
	err := s.ValidateOn(e, comm.Size())
	s = s.Normalize()
	if err == nil && e == spec.GPUEngine {
		s, err = tuned(s, comm)
	}
	if err := comm.Operations().VerifySame(ctx, op, fmt.Sprintf("%+v", s), err); err != nil {
		return nil, err
	}
	h := &Handle{base: spec.NewBase(comm, s)}
	if h.engine, err = newEngine(ctx, h.base); err != nil {
		return nil, err
	}
	comm.Operations().Shelf().Add(h.base.Buffers)
	return h, nil
}

// Spec is what the handle was made from, with defaults filled in.
func (h *Handle) Spec() spec.Spec { return h.base.Spec }

// Comm is the handle's communicator.
func (h *Handle) Comm() *weft.Comm { return h.base.Comm }

// Engine is what moves the handle's rows.
func (h *Handle) Engine() spec.Engine { return spec.EngineOf(h.base.Comm) }

// Capacity is the number of rows of a received tensor at its largest.
func (h *Handle) Capacity() int { return h.base.Geometry.Rows() }

// MemoryBytes is the size of the windows that the handle holds on this rank. On the host, pages of
// the large ones exist only once they are used.
func (h *Handle) MemoryBytes() int { return h.engine.Resources().Bytes }

// SMs is on how many multiprocessors of its GPU the kernels of this handle's dispatches and
// combines run, if it is idle otherwise: as many as they have blocks, while there are any. They
// differ, for a kernel has no more blocks than have something to do; and may be more than
// [Spec].SMs, where several blocks would fill one. Prepare is a dispatch in this. It is 0 for a
// combine of rows that cannot be summed, and on the host.
func (h *Handle) SMs() (dispatch, combine int) {
	r := h.engine.Resources()
	return r.DispatchSMs, r.CombineSMs
}

// GradientSMs is SMs of the kernel with which a CombineBackward moves rows, and a DispatchBackward
// the gradients of weights; its rows go by the kernel of combines.
func (h *Handle) GradientSMs() int { return h.engine.Resources().GradientSMs }

// Close gives the handle's windows up on this rank. Received tensors become invalid. Further calls
// do nothing. It comes before the communicator's Close: on a GPU that ends the context, unless
// somebody else has it, and the handle's memory with it.
//
// On a GPU it first lets all work in the rank's context end, that of others too, for the
// communicator's deadline at most. If the work goes on the error wraps [weft.ErrTimeout], the
// handle can be used no more but keeps its memory, which kernels may still use, and Close is to be
// called again.
func (h *Handle) Close() error {
	if h.released {
		return nil
	}
	h.base.Closed = true
	h.base.Comm.Operations().Shelf().Remove(h.base.Buffers)
	var err error
	h.released, err = h.engine.Close()
	return err
}
