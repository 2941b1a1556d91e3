package host

import (
	"unsafe"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/simd"
)

// arithmetic is how the elements of a type are reduced.
var arithmetic = map[weft.DType]simd.Type{
	weft.BFloat16: simd.BF16, weft.Float16: simd.F16, weft.Float32: simd.F32, weft.Float64: simd.F64,
	weft.Float8E4M3: simd.E4M3, weft.Float8E5M2: simd.E5M2,
	weft.Int8: simd.I8, weft.Int16: simd.I16, weft.Int32: simd.I32, weft.Int64: simd.I64,
	weft.Uint8: simd.U8, weft.Uint16: simd.U16, weft.Uint32: simd.U32, weft.Uint64: simd.U64,
}

// arithmeticOf is the same as a table, for the path that counts nanoseconds: 1 + the type, 0 =
// none.
var arithmeticOf = func() (t [256]uint8) {
	for d, s := range arithmetic {
		t[d] = 1 + uint8(s)
	}
	return t
}()

var operators = [...]simd.Op{
	weft.Sum: simd.Sum, weft.Prod: simd.Prod, weft.Min: simd.Min, weft.Max: simd.Max,
	weft.Avg: simd.Sum,
}

// reduce folds rows, which are in rank order, into dst. It is the only arithmetic of the package:
// every algorithm hands it the inputs of all ranks for some range of elements, so all of them give
// the same bits. With stream the result bypasses the caches.
func (c *call) reduce(dst []byte, rows [][]byte, stream bool) {
	op, t, avg := operators[c.Op], simd.Type(arithmeticOf[c.DType]-1), c.Op == weft.Avg
	if !stream {
		simd.Reduce(op, t, avg, dst, rows...)
		return
	}
	pieces := c.pieces[:len(rows)]
	for at := 0; at < len(dst); at += len(c.bounce) {
		n := min(len(c.bounce), len(dst)-at)
		for i, r := range rows {
			pieces[i] = r[at : at+n]
		}
		simd.Reduce(op, t, avg, c.bounce[:n], pieces...)
		simd.Copy(pointer(dst[at:]), pointer(c.bounce), n, true)
	}
	simd.StoreFence()
}

// stage puts a payload where others read it.
func (c *call) stage(dst, src []byte) {
	start, past := c.staging.begin(len(src))
	simd.Copy(pointer(dst), pointer(src), len(src), past)
	if past {
		simd.StoreFence()
	}
	c.staging.end(start, len(src))
}

// share reduces rows to where others read the result.
func (c *call) share(dst []byte, rows [][]byte) {
	start, past := c.sharing.begin(len(dst))
	c.reduce(dst, rows, past)
	c.sharing.end(start, len(dst))
}

// copy fetches what others have published.
func (c *call) copy(dst, src []byte) {
	simd.Copy(pointer(dst), pointer(src), min(len(dst), len(src)), c.stream)
	if c.stream {
		simd.StoreFence()
	}
}

// move is copy for operands that may be the same memory.
func (c *call) move(dst, src []byte) {
	if pointer(dst) != pointer(src) {
		c.copy(dst, src)
	}
}

func pointer(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }
