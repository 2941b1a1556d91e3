package host

import (
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/simd"
)

// Moves is how an owner copies and folds: through the caches, or past them, whichever is faster. What is written is
// the same.
type Moves struct {
	Staging, Sharing Pace // of copies and of folds that others read

	bounce []byte // a result on its way to memory past the caches
	pieces [][]byte
}

// StreamBytes is the size of an output from which on it is written past the caches: it would only displace what
// is still to be read.
const StreamBytes = 8 << 20

// Writes to memory that others read go past the caches where they are slower than this, in bytes per microsecond.
const (
	stagingEnough = 8_000
	sharingEnough = 5_000
)

// bounceBytes is a piece of a result that is made in the first-level cache.
const bounceBytes = 16 << 10

// NewMoves makes the Moves of an owner.
func NewMoves() Moves {
	return Moves{
		Staging: Pace{Enough: stagingEnough}, Sharing: Pace{Enough: sharingEnough}, bounce: make([]byte, bounceBytes),
	}
}

// A Folding is a reduction of elements.
type Folding struct {
	Op     weft.Op
	DType  weft.DType
	Scalar unsafe.Pointer // of a pre-multiplied sum
	By     int            // of an average of floats: what the sum is divided by; 0: the number of rows
}

// fold is the only arithmetic of engines on the host.
func (f Folding) fold(dst []byte, rows [][]byte) {
	switch {
	case f.Op == weft.PreMulSum:
		simd.PreMulSum(Arithmetic(f.DType), f.Scalar, dst, rows...)
	case f.By > 0:
		simd.Mean(Arithmetic(f.DType), f.By, dst, rows...)
	default:
		Fold(f.Op, f.DType, dst, rows...)
	}
}

// Copy copies as much as both have. With stream it goes past the caches.
func (*Moves) Copy(dst, src []byte, stream bool) {
	simd.Copy(pointer(dst), pointer(src), min(len(dst), len(src)), stream)
	if stream {
		simd.StoreFence()
	}
}

// Stage copies to where others read it.
func (m *Moves) Stage(dst, src []byte) {
	start, past := m.Staging.Begin(len(src))
	m.Copy(dst, src, past)
	m.Staging.End(start, len(src))
}

// Reduce folds rows, in their order, into dst. With stream the result goes past the caches.
func (m *Moves) Reduce(f Folding, dst []byte, rows [][]byte, stream bool) {
	if !stream {
		f.fold(dst, rows)
		return
	}
	for len(m.pieces) < len(rows) {
		m.pieces = append(m.pieces, nil)
	}
	pieces := m.pieces[:len(rows)]
	for at := 0; at < len(dst); at += len(m.bounce) {
		n := min(len(m.bounce), len(dst)-at)
		for i, r := range rows {
			pieces[i] = r[at : at+n]
		}
		f.fold(m.bounce[:n], pieces)
		simd.Copy(pointer(dst[at:]), pointer(m.bounce), n, true)
	}
	simd.StoreFence()
}

// Share folds rows to where others read the result.
func (m *Moves) Share(f Folding, dst []byte, rows [][]byte) {
	start, past := m.Sharing.Begin(len(dst))
	m.Reduce(f, dst, rows, past)
	m.Sharing.End(start, len(dst))
}

func pointer(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }
