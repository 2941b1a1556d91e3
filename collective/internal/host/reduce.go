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
	weft.Bool: simd.Bool,
}

// arithmeticOf is the same as a table, for the path that counts nanoseconds.
var arithmeticOf = func() (t [256]simd.Type) {
	for d, s := range arithmetic {
		t[d] = s
	}
	return t
}()

var operators = [...]simd.Op{
	weft.Sum: simd.Sum, weft.Prod: simd.Prod, weft.Min: simd.Min, weft.Max: simd.Max,
	weft.Avg: simd.Sum,
}

// reduce folds rows, which are in rank order, into dst. Every algorithm hands it the inputs of all ranks
// for some range of elements, so all of them give the same bits. With stream the result bypasses the
// caches.
func (c *call) reduce(dst []byte, rows [][]byte, stream bool) {
	if !stream {
		c.fold(dst, rows)
		return
	}
	pieces := c.pieces[:len(rows)]
	for at := 0; at < len(dst); at += len(c.bounce) {
		n := min(len(c.bounce), len(dst)-at)
		for i, r := range rows {
			pieces[i] = r[at : at+n]
		}
		c.fold(c.bounce[:n], pieces)
		simd.Copy(pointer(dst[at:]), pointer(c.bounce), n, true)
	}
	simd.StoreFence()
}

// fold is the only arithmetic of the package.
func (c *call) fold(dst []byte, rows [][]byte) {
	t := arithmeticOf[c.DType]
	if c.Op == weft.PreMulSum {
		simd.PreMulSum(t, c.given.Scalar.Data, dst, rows...)
	} else {
		simd.Reduce(operators[c.Op], t, c.Op == weft.Avg, dst, rows...)
	}
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
