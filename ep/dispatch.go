package ep

import (
	"context"
	"unsafe"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
)

// Rows is a tensor of rows and, for payloads that have them, the tensor of their scales.
type Rows struct {
	Data weft.Tensor // [tokens, hidden]; opaque: uint8 [tokens, RowBytes]
	// fp8: fp32 [tokens, hidden/128]; UE8M0: ue8m0 [tokens, hidden/128]; opaque: uint8 [tokens,
	// ScaleBytes]
	Scales weft.Tensor
}

// DispatchArgs are what a dispatch sends, and by which Routing.
type DispatchArgs struct {
	// Routing says where rows go. Without it TopK does: the dispatch then prepares on the way.
	Routing *Routing
	// TopK holds the experts that each token selects, as for [Handle.Prepare]. Inference, where
	// every batch has routing of its own that one dispatch and one combine go by, gives it here. It
	// is one call on every rank: others may not call Prepare and Dispatch instead. If it is refused
	// nothing has moved, and there is no Routing.
	//
	// On GPUs the routing of expert-major and rank-major rows that cannot overflow travels with
	// them, in one exchange instead of two. Everything else needs two, and so does the host, where
	// an exchange of counts costs little.
	TopK weft.Tensor
	// Weights are fp32 [tokens, top-k], given on every rank or on none. With TopK they are those of
	// the selections, as for Prepare. With a Routing they travel with the rows and take the place
	// of those that the Routing had, here and where the rows arrive, for this and all later
	// operations; absent ones leave weights as they are.
	//
	// On GPUs other weights cost no exchange of their own where rows have their final places before
	// they leave. Elsewhere the dispatch is one that tells the routing anew: it counts as one that
	// prepares if ranks make different calls, comes after a small kernel that reads the experts from
	// the Routing, and is refused if ranks were masked since Prepare, for rows would then have other
	// places.
	Weights weft.Tensor
	Rows
}

func (d *DispatchArgs) move() spec.MoveArgs {
	return spec.MoveArgs{Batch: d.Routing.shared(), TopK: d.TopK, Weights: d.Weights, Data: d.Data, Scales: d.Scales}
}

// Received is what arrived: rows in the handle's layout, in memory of the handle's pool, and the
// [Routing] that says what each row is.
type Received struct {
	*Routing
	// Data is [local experts, rows per expert, hidden] for ExpertMajor, else [Rows(), hidden]. Rows
	// that hold no token, other than pads, are not written.
	Data weft.Tensor
	// Scales, for payloads that have them, is laid out as Data with hidden/128 scales a row. In
	// column-major order the last two dimensions change places, and UE8M0 scales are int32 words of
	// four.
	Scales weft.Tensor

	handle     *Handle
	buffer     int // that it lies in
	released   bool
	dataShape  [3]int
	scaleShape [3]int
}

// Release gives the memory back. Data must not be used after; a combine that takes rows from it
// must have returned, and one that comes later is refused. What is released in a capture must not
// be read after a replay either, but by what the same graph has before its next dispatch. The
// Routing has a Release of its own: what came by a dispatch that prepared has a Routing that
// nobody else knows.
func (r *Received) Release() {
	if !r.released {
		r.released = true
		r.handle.engine.Put(r.buffer)
	}
}

// PendingDispatch is a dispatch that was sent and not yet received.
type PendingDispatch struct {
	handle   *Handle
	second   spec.SecondHalf
	routing  *Routing // by which it goes; nil: that which it prepared
	received *Received
	over     bool
	err      error
}

// Receive completes the dispatch. Further calls return the same result. What was sent before ranks
// were masked cannot be received: Receive says so, and gives back the memory that was kept for it.
func (p *PendingDispatch) Receive(ctx context.Context) (*Received, error) {
	if !p.over {
		p.over = true
		var a spec.Arrived
		if a, p.err = p.second.Receive(ctx); p.err == nil {
			p.received = p.handle.arrived(p.routing, &a)
		}
	}
	return p.received, p.err
}

// Dispatch sends the rows of this rank's tokens to their experts and returns those that arrive. On
// the host, rows that lie in a window of the communicator are read by their receivers where they
// are, and Dispatch returns when all have; others are copied to a staging window first.
func (h *Handle) Dispatch(ctx context.Context, s *weft.Stream, d DispatchArgs) (*Received, error) {
	a, err := h.engine.Dispatch(ctx, s, d.move())
	if err != nil {
		return nil, err
	}
	return h.arrived(d.Routing, &a), nil
}

// SendDispatch is the first half of [Handle.Dispatch]. Rows that lie in a window are borrowed until
// Receive has returned. The handle does nothing else before Receive. TopK and Weights may be changed
// once it has returned, or, with a stream, by what comes after it there. On the host a dispatch that
// prepares waits for the routing of every rank.
//
// Rows that are copied to the staging window may have to wait for it: until every rank has received
// the operation that last used it.
func (h *Handle) SendDispatch(ctx context.Context, s *weft.Stream, d DispatchArgs) (*PendingDispatch, error) {
	second, err := h.engine.SendDispatch(ctx, s, d.move())
	if err != nil {
		return nil, err
	}
	p := h.pending.Take()
	*p = PendingDispatch{handle: h, second: second, routing: d.Routing}
	return p, nil
}

// arrived is what a caller gets of received memory. The Routing is nil if the dispatch prepared.
func (h *Handle) arrived(r *Routing, a *spec.Arrived) *Received {
	if r == nil {
		r = h.routing(a.Batch)
	}
	out := h.received.Take()
	*out = Received{Routing: r, handle: h, buffer: a.Buffer}
	out.setTensors(a)
	return out
}

// setTensors describes the received memory.
func (r *Received) setTensors(a *spec.Arrived) {
	s, g := &r.handle.base.Spec, &r.handle.base.Geometry
	rows := a.Shape.Rows
	if s.Layout == spec.ExpertMajor {
		rows = g.Capacity
	}
	dims := func(at *[3]int, above, across int) []int {
		*at = [3]int{g.Local, above, across}
		if s.Layout == spec.ExpertMajor {
			return at[:]
		}
		return at[1:]
	}
	width := s.Hidden
	if s.Payload == spec.Opaque {
		width = s.RowBytes
	}
	r.Data = weft.Tensor{
		Data: a.Memory, DType: s.Payload.DType(), Generation: a.Generation,
		Shape: dims(&r.dataShape, rows, width),
	}
	if s.ScaleSize() == 0 {
		return
	}
	d, above, across := s.ScaleShape(rows, s.ScaleOrder)
	r.Scales = weft.Tensor{
		Data: unsafe.Add(a.Memory, a.Shape.ScalesAt), DType: d, Generation: a.Generation,
		Shape: dims(&r.scaleShape, above, across),
	}
}
