package host

import "github.com/weftgo/weft"

// OperandRef is where an operand's rows stand for the peers of the rank whose operand it is. The
// zero OperandRef is none.
type OperandRef struct {
	Window, Offset uint64 // the window's number, from 1
	Stride         uint32 // bytes from one row to the next
}

// In refers to rows in a window.
func In(w *weft.Window, offset uint64, stride uint32) OperandRef {
	return OperandRef{Window: w.ID(), Offset: offset, Stride: stride}
}
