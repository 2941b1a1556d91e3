package host

import (
	"fmt"
	"unsafe"

	"github.com/weftgo/weft"
)

// OperandRef says where the rows of an operand lie for peers of the rank whose operand it is. The
// zero OperandRef is none.
type OperandRef struct {
	Window, Offset uint64 // the window's number, from 1
	Stride         uint32 // bytes from one row to the next
}

// In refers to rows in a window.
func In(w *weft.Window, offset uint64, stride uint32) OperandRef {
	return OperandRef{Window: w.ID(), Offset: offset, Stride: stride}
}

// Find refers to n bytes of this rank's memory, if they lie in a window that every live rank has mapped.
func (r *Rounds) Find(p unsafe.Pointer, n int, stride uint32) (ref OperandRef, ok bool) {
	return r.find(p, n, stride, false)
}

// FindHere is Find for operands that only ranks of this host read: to others they are shipped.
func (r *Rounds) FindHere(p unsafe.Pointer, n int, stride uint32) (ref OperandRef, ok bool) {
	return r.find(p, n, stride, true)
}

func (r *Rounds) find(p unsafe.Pointer, n int, stride uint32, here bool) (ref OperandRef, ok bool) {
	w, offset, ok := r.Comm.Operations().Find(p, n)
	if !ok {
		return OperandRef{}, false
	}
	for _, rank := range r.Live {
		if rank != r.Comm.Rank() && !(here && r.Far(rank)) && w.Peer(rank) == nil {
			return OperandRef{}, false // the rank was masked when the window was made
		}
	}
	return In(w, uint64(offset), stride), true
}

// operands is how two OperandRefs travel: without gaps, they just fit a header.
type operands struct {
	window, offset [2]uint64
	stride         [2]uint32
}

const operandBytes = int(unsafe.Sizeof(operands{}))

var _ [inLineBytes - operandBytes]byte

func operandsIn(payload []byte) *operands {
	return (*operands)(unsafe.Pointer(unsafe.SliceData(payload)))
}

// PutOperands makes two references, of which any may be none, the payload of the next round.
func (r *Rounds) PutOperands(first, second OperandRef) {
	*operandsIn(r.Fill(operandBytes)) = operands{
		window: [2]uint64{first.Window, second.Window},
		offset: [2]uint64{first.Offset, second.Offset},
		stride: [2]uint32{first.Stride, second.Stride},
	}
}

// Operand is the i-th of the references that a rank put into a round, 0 or 1. A rank that the others
// have left behind may read what they write meanwhile: two calls may differ.
func (r *Rounds) Operand(rank int, round uint64, i int) OperandRef {
	o := operandsIn(r.Payload(rank, round, operandBytes))
	return OperandRef{Window: o.window[i], Offset: o.offset[i], Stride: o.stride[i]}
}

// Resolve is the memory of a rank from an operand to the end of its window; nil for no operand. A
// window that is closed here is this rank's failure, and not a refusal: to agree takes a round, and
// peers with all that they need may be half-way through the operation already.
func (r *Rounds) Resolve(rank int, ref OperandRef, op string) ([]byte, error) {
	if ref.Window == 0 {
		return nil, nil
	}
	if w, open := r.Comm.Operations().Window(ref.Window); open {
		mem := w.Peer(rank)
		return mem[min(ref.Offset, uint64(len(mem))):], nil
	}
	return nil, r.Broken(&weft.PeerError{
		Rank: rank, Op: op, Err: fmt.Errorf("its operand lies in window %d, which this rank has %w", ref.Window,
			weft.ErrClosed),
	})
}

// Broken fails the operation for what a peer says and cannot be. It returns the communicator's
// failure if there is one: this rank was left out, and what it read was not meant for it.
func (r *Rounds) Broken(err *weft.PeerError) error {
	if fault := r.Comm.Operations().Begin(err.Op); fault != nil {
		return fault
	}
	return r.Comm.Operations().Fail(err)
}
