package host

import (
	"github.com/weftgo/weft"
	"github.com/weftgo/weft/internal/simd"
)

// arithmetic is how the elements of a type are reduced; of others it is the zero Type.
var arithmetic = [256]simd.Type{
	weft.BFloat16: simd.BF16, weft.Float16: simd.F16, weft.Float32: simd.F32, weft.Float64: simd.F64,
	weft.Float8E4M3: simd.E4M3, weft.Float8E5M2: simd.E5M2,
	weft.Int8: simd.I8, weft.Int16: simd.I16, weft.Int32: simd.I32, weft.Int64: simd.I64,
	weft.Uint8: simd.U8, weft.Uint16: simd.U16, weft.Uint32: simd.U32, weft.Uint64: simd.U64,
	weft.Bool: simd.Bool,
}

var operators = [...]simd.Op{
	weft.Sum: simd.Sum, weft.Prod: simd.Prod, weft.Min: simd.Min, weft.Max: simd.Max,
	weft.Avg: simd.Sum,
}

// Arithmetic is the arithmetic of a type that can be reduced.
func Arithmetic(t weft.DType) simd.Type { return arithmetic[t] }

// Fold reduces rows of elements in their order, with the one rounding of [simd.Reduce]. It takes all reductions but
// [weft.PreMulSum].
func Fold(op weft.Op, t weft.DType, dst []byte, rows ...[]byte) {
	simd.Reduce(operators[op], arithmetic[t], op == weft.Avg, dst, rows...)
}
