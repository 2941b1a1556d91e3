package ep

import (
	"context"
	"fmt"
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

// DispatchArgs are the operands of [Handle.Dispatch].
type DispatchArgs struct {
	// Routing says where rows go. Without it TopK is given: the dispatch then prepares on the way.
	Routing *Routing
	// TopK holds the experts that each token selects, as for [Handle.Prepare]. Inference gives it
	// here, because only one dispatch and one combine use each routing. Every rank makes the same
	// one call: a peer may not call Prepare and Dispatch instead. If the call is refused nothing has
	// moved, and there is no Routing.
	//
	// On GPUs in slot mode (expert-major and rank-major rows that cannot overflow) the routing
	// travels with the rows, in one exchange. Direct mode needs two exchanges. So does the host,
	// where an exchange of counts costs little.
	TopK weft.Tensor
	// Weights are fp32 [tokens, top-k], given on every rank or on none. With TopK they are the
	// weights of the selections, as for Prepare. With a Routing they travel with the rows and
	// replace the Routing's weights, here and where the rows arrive, for this and all later
	// operations. Without Weights the Routing keeps those that it has.
	//
	// On GPUs in direct mode replacing weights costs no exchange of its own. In slot mode the
	// dispatch sends the routing metadata again: a small kernel before it reads the experts from
	// the Routing, and for a mismatch of calls it counts as a dispatch that prepares. It is refused
	// if ranks were masked since Prepare, because rows would then get other final rows.
	Weights weft.Tensor
	Rows
}

func (d *DispatchArgs) move() spec.MoveArgs {
	return spec.MoveArgs{Batch: d.Routing.shared(), TopK: d.TopK, Weights: d.Weights, Data: d.Data, Scales: d.Scales}
}

// Received is a received batch: rows in the handle's layout, in one of the handle's receive
// buffers, and the [Routing] that describes each row.
type Received struct {
	*Routing
	// Data is [local experts, rows per expert, hidden] for ExpertMajor, else [Rows(), hidden].
	// Dispatch writes rows that hold a token, and pads, and no others.
	Data weft.Tensor
	// Scales, for payloads that have them, is laid out as Data with hidden/128 scales a row. In
	// column-major order the last two dimensions are swapped, and UE8M0 scales are int32 words of
	// four.
	Scales weft.Tensor

	handle     *Handle
	buffer     int // the receive buffer's number
	released   bool
	dataShape  [3]int
	scaleShape [3]int
}

// String says the types and shapes of the rows and their scales.
func (r *Received) String() string {
	switch {
	case r == nil:
		return "nothing received"
	case r.released:
		return "received, released"
	case r.Scales.IsZero():
		return fmt.Sprintf("received %v", r.Data)
	}
	return fmt.Sprintf("received %v, scales %v", r.Data, r.Scales)
}

// Release gives the buffer back. Data must not be used after. A combine that reads rows from it
// must have returned; a later one is refused. If a capture releases the buffer, only work that the
// same graph runs before its next dispatch may read it in a replay. The Routing has a Release of
// its own, also if the dispatch prepared it.
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
	routing  *Routing // nil: the dispatch prepares one
	received *Received
	over     bool
	err      error
}

// String says whether the dispatch was received, and its error.
func (p *PendingDispatch) String() string {
	switch {
	case !p.over:
		return "dispatch, to be received"
	case p.err != nil:
		return "dispatch, failed: " + p.err.Error()
	}
	return "dispatch, received"
}

// Receive completes the dispatch. Further calls return the same result. A dispatch that was sent
// before ranks were masked cannot be received: Receive then returns an error and frees its buffer.
func (p *PendingDispatch) Receive(ctx context.Context) (*Received, error) {
	if !p.over {
		p.over = true
		gate := p.handle.base.Gate
		if p.err = gate.Enter(spec.OpDispatch); p.err != nil {
			return nil, p.err
		}
		defer gate.Leave()
		var a spec.Arrived
		if a, p.err = p.second.Receive(ctx); p.err == nil {
			p.received = p.handle.arrived(p.routing, &a)
		}
	}
	return p.received, p.err
}

// Dispatch sends the rows of this rank's tokens to their experts and returns the rows that arrive.
// On the host, receivers read rows in place if they lie in a window of the communicator, and
// Dispatch returns when all have read them. It copies other rows to a staging window first.
func (h *Handle) Dispatch(ctx context.Context, s *weft.Stream, d DispatchArgs) (*Received, error) {
	if err := h.base.Gate.Enter(spec.OpDispatch); err != nil {
		return nil, err
	}
	defer h.base.Gate.Leave()
	a, err := h.engine.Dispatch(ctx, s, d.move())
	if err != nil {
		return nil, err
	}
	return h.arrived(d.Routing, &a), nil
}

// SendDispatch is the first half of [Handle.Dispatch]. Rows that lie in a window are borrowed until
// Receive has returned. The handle runs no other operation before Receive. The caller may change
// TopK and Weights once SendDispatch has returned or, with a stream, by later work in that stream.
// On the host a dispatch that prepares waits for the routing of every rank.
//
// A dispatch that stages rows may wait first, until every rank has received the operation that last
// used the staging window.
func (h *Handle) SendDispatch(ctx context.Context, s *weft.Stream, d DispatchArgs) (*PendingDispatch, error) {
	if err := h.base.Gate.Enter(spec.OpDispatch); err != nil {
		return nil, err
	}
	defer h.base.Gate.Leave()
	second, err := h.engine.SendDispatch(ctx, s, d.move())
	if err != nil {
		return nil, err
	}
	p := h.pending.Take()
	*p = PendingDispatch{handle: h, second: second, routing: d.Routing}
	return p, nil
}

// arrived makes the caller's Received of a filled buffer. r is nil if the dispatch prepared.
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
