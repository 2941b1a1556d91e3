package ep

import (
	"context"
	"unsafe"

	"github.com/weftgo/weft"
)

// Rows is a tensor of rows and, for payloads that have them, the tensor of their scales.
type Rows struct {
	Data weft.Tensor // [tokens, hidden]; opaque: uint8 [tokens, RowBytes]
	// fp8: fp32 [tokens, hidden/128]; UE8M0: ue8m0 [tokens, hidden/128]; opaque: uint8 [tokens,
	// ScaleBytes]
	Scales weft.Tensor
	// Weights, of a dispatch by a Routing that is there, travel with the rows and take the place of
	// those that the Routing had, here and where the rows arrive, for this and all later
	// operations: fp32 [tokens, top-k]. They are given on every rank or on none; the zero Tensor
	// leaves weights as they are.
	Weights weft.Tensor
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

	owner      owner // of the memory; nil if there is nothing to give back
	place      int   // where it lies, in the owner's terms
	released   bool
	dataShape  [3]int
	scaleShape [3]int
}

// Release gives the memory back. Data must not be used after; a combine that takes rows from it
// must have returned, and one that comes later is refused. What is released in a capture must not
// be read after a replay either, but by what the same graph has before its next dispatch. The
// Routing has a Release of its own: what came by [Handle.PrepareDispatch] has a Routing that nobody
// else knows.
func (r *Received) Release() {
	if !r.released {
		r.released = true
		if r.owner != nil {
			r.owner.put(r.place)
		}
	}
}

// PendingDispatch is a dispatch that was sent and not yet received.
type PendingDispatch struct {
	second   secondHalf
	received *Received
	over     bool
	err      error
}

// Receive completes the dispatch. Further calls return the same result. What was sent before ranks
// were masked cannot be received: Receive says so, and gives back the memory that was kept for it.
func (p *PendingDispatch) Receive(ctx context.Context) (*Received, error) {
	if !p.over {
		p.over = true
		p.received, p.err = p.second.receive(ctx)
	}
	return p.received, p.err
}

// Dispatch sends the rows of this rank's tokens to their experts and returns those that arrive. On
// the host, rows that lie in a window of the communicator are read by their receivers where they
// are, and Dispatch returns when all have; others are copied to a staging window first.
//
// With [Rows].Weights the Routing gets other weights. On GPUs that costs no exchange of its own
// where rows have their final places before they leave; elsewhere the dispatch is one that tells
// the routing anew, as PrepareDispatch does and as which it counts if ranks make different calls,
// after a small kernel that reads the experts from the Routing. There it is refused if ranks were
// masked since Prepare, for rows would then have other places.
func (h *Handle) Dispatch(ctx context.Context, s *weft.Stream, r *Routing, x Rows) (*Received, error) {
	return h.engine.dispatch(ctx, s, r, x)
}

// SendDispatch is the first half of [Handle.Dispatch]. Rows that lie in a window are borrowed until
// Receive has returned. The handle does nothing else before Receive.
//
// Rows that are copied to the staging window may have to wait for it: until every rank has received
// the operation that last used it.
func (h *Handle) SendDispatch(ctx context.Context, s *weft.Stream, r *Routing, x Rows) (*PendingDispatch, error) {
	return h.engine.sendDispatch(ctx, s, r, x)
}

// PrepareDispatch is Prepare, then Dispatch by the Routing that it makes: what inference uses,
// where every batch has routing of its own that one dispatch and one combine go by. The Routing is
// that of what it returns; Release of both, when the batch is done, lets the next one use their
// memory again. It is one call on every rank: others may not call Prepare and Dispatch instead. If
// it is refused nothing has moved, and there is no Routing.
//
// On GPUs the routing of expert-major and rank-major rows that cannot overflow travels with them,
// in one exchange instead of two. Everything else needs two, and so does the host, where an
// exchange of counts costs little.
func (h *Handle) PrepareDispatch(ctx context.Context, s *weft.Stream, topk, weights weft.Tensor,
	x Rows,
) (*Received, error) {
	return h.engine.prepareDispatch(ctx, s, topk, weights, x)
}

// SendPrepareDispatch is the first half of [Handle.PrepareDispatch], as SendDispatch is that of
// Dispatch; topk and weights may be changed once it has returned, or, with a stream, by what comes
// after it there. On the host it waits for the routing of every rank.
func (h *Handle) SendPrepareDispatch(ctx context.Context, s *weft.Stream, topk, weights weft.Tensor,
	x Rows,
) (*PendingDispatch, error) {
	return h.engine.sendPrepareDispatch(ctx, s, topk, weights, x)
}

// checkRows says what is wrong with the rows of a dispatch.
func (h *Handle) checkRows(tokens int, x Rows, op string) error {
	s := &h.spec
	if !x.Weights.IsZero() {
		if err := checkTensor(op, "weights", x.Weights, weft.Float32, tokens, s.TopK); err != nil {
			return err
		}
	}
	d, width := s.Payload.dtype(), s.Hidden
	scale := weft.InvalidDType
	scaleWidth := s.Hidden / ScaleBlock
	switch s.Payload {
	case FP8:
		scale = weft.Float32
	case FP8UE8M0:
		scale = weft.UE8M0
	case Opaque:
		width = s.RowBytes
		if scaleWidth = s.ScaleBytes; scaleWidth > 0 {
			scale = weft.Uint8
		}
	}
	if s.Quantize != weft.InvalidDType {
		d, scale = s.Quantize, weft.InvalidDType
	}
	if err := checkTensor(op, "rows", x.Data, d, tokens, width); err != nil {
		return err
	}
	if scale == weft.InvalidDType {
		if !x.Scales.IsZero() {
			return weft.Invalidf("%s: scales are given, %v rows have none here", op, s.Payload)
		}
		return nil
	}
	return checkTensor(op, "scales", x.Scales, scale, tokens, scaleWidth)
}

// checkFused refuses weights beside those that a dispatch which prepares is given.
func (x Rows) checkFused(op string) error {
	if x.Weights.IsZero() {
		return nil
	}
	return weft.Invalidf("%s: a dispatch that prepares takes the weights as an argument of its own; leave "+
		"those of Rows out", op)
}

func checkTensor(op, what string, t weft.Tensor, d weft.DType, rows, width int) error {
	if t.DType != d || len(t.Shape) != 2 || t.Shape[0] != rows || t.Shape[1] != width {
		return weft.Invalidf("%s: %s are %v, want %v[%d %d]", op, what, t, d, rows, width)
	}
	if t.Data == nil && rows*width > 0 {
		return weft.Invalidf("%s: %s have no memory", op, what)
	}
	return nil
}

// setTensors describes the received memory, which has a generation.
func (r *Received) setTensors(h *Handle, base unsafe.Pointer, shape blockShape, generation uint32) {
	s, g := &h.spec, &h.geometry
	rows := shape.rows
	if s.Layout == ExpertMajor {
		rows = g.capacity
	}
	dims := func(at *[3]int, a, b int) []int {
		*at = [3]int{g.local, a, b}
		if s.Layout == ExpertMajor {
			return at[:]
		}
		return at[1:]
	}
	width := s.Hidden
	if s.Payload == Opaque {
		width = s.RowBytes
	}
	r.Data = weft.Tensor{
		Data: base, DType: s.Payload.dtype(), Generation: generation,
		Shape: dims(&r.dataShape, rows, width),
	}
	if s.scaleBytes() == 0 {
		return
	}
	d, a, b := s.scaleShape(rows, s.ScaleOrder)
	r.Scales = weft.Tensor{
		Data: unsafe.Add(base, shape.scalesAt), DType: d, Generation: generation,
		Shape: dims(&r.scaleShape, a, b),
	}
}

// scaleShape is the type of the scales of so many received rows, which have some, and their last
// two dimensions.
func (s *Spec) scaleShape(rows int, order ScaleOrder) (d weft.DType, above, across int) {
	d, across = weft.Float32, s.Hidden/ScaleBlock
	switch {
	case s.Payload == Opaque:
		d, across = weft.Uint8, s.ScaleBytes
	case s.Payload == FP8UE8M0 && order == ColumnMajorScales:
		d, across = weft.Int32, across/4
	case s.Payload == FP8UE8M0:
		d = weft.UE8M0
	}
	if order == ColumnMajorScales {
		return d, across, rows
	}
	return d, rows, across
}
