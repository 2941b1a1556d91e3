package simd

import (
	"math"
	"math/bits"
	"unsafe"
)

// block is the number of columns that the portable kernels keep in flight; a block of fp32 is 1 KiB
// of stack.
const block = 256

// view returns n elements of memory starting at element lo of p.
func view[T any](p unsafe.Pointer, lo, n int) []T {
	var z T
	return unsafe.Slice((*T)(unsafe.Add(p, lo*int(unsafe.Sizeof(z)))), n)
}

// runPortable computes columns lo to hi.
func (f *fold) runPortable(lo, hi int) {
	switch f.t {
	case F64:
		f.foldF64(lo, hi)
	case I8:
		foldInt[int8, uint8](f, lo, hi)
	case I16:
		foldInt[int16, uint16](f, lo, hi)
	case I32:
		foldInt[int32, uint32](f, lo, hi)
	case I64:
		foldInt[int64, uint64](f, lo, hi)
	case U8:
		foldInt[int8, uint8](f, lo, hi)
	case U16:
		foldInt[int16, uint16](f, lo, hi)
	case U32:
		foldInt[int32, uint32](f, lo, hi)
	case U64:
		foldInt[int64, uint64](f, lo, hi)
	default:
		f.foldF32(lo, hi)
	}
}

// foldF32 serves every type whose accumulator is fp32.
func (f *fold) foldF32(lo, hi int) {
	var accs, xs [block]float32
	init := math.Float32frombits(uint32(f.init))
	flip := uint32(f.flip)
	for ; lo < hi; lo += block {
		n := min(block, hi-lo)
		acc, x := accs[:n], xs[:n]
		for i := range acc {
			acc[i] = init
		}
		for k, row := range f.rows {
			widen(f.t, x, row, lo)
			switch f.op {
			case foldFMA:
				w := f.w[k]
				for i := range acc {
					acc[i] = FMA32(w, x[i], acc[i])
				}
			case foldMul:
				for i := range acc {
					acc[i] *= x[i]
				}
			case foldMin:
				for i := range acc {
					acc[i] = minF32(acc[i], math.Float32frombits(math.Float32bits(x[i])^flip))
				}
			}
		}
		if flip != 0 {
			for i := range acc {
				acc[i] = math.Float32frombits(math.Float32bits(acc[i]) ^ flip)
			}
		}
		if f.div != 0 {
			div := math.Float32frombits(uint32(f.div))
			for i := range acc {
				acc[i] /= div
			}
		}
		narrow(f.t, f.out, lo, acc)
	}
}

func (f *fold) foldF64(lo, hi int) {
	var accs [block]float64
	init := math.Float64frombits(f.init)
	for ; lo < hi; lo += block {
		n := min(block, hi-lo)
		acc := accs[:n]
		for i := range acc {
			acc[i] = init
		}
		for _, row := range f.rows {
			x := view[float64](row, lo, n)
			switch f.op {
			case foldFMA:
				for i := range acc {
					acc[i] += x[i]
				}
			case foldMul:
				for i := range acc {
					acc[i] *= x[i]
				}
			case foldMin:
				for i := range acc {
					acc[i] = minF64(acc[i], math.Float64frombits(math.Float64bits(x[i])^f.flip))
				}
			case foldScaled64:
				for i := range acc {
					acc[i] = math.FMA(math.Float64frombits(f.flip), x[i], acc[i])
				}
			}
		}
		out := view[float64](f.out, lo, n)
		div := math.Float64frombits(f.div)
		for i, a := range acc {
			if f.op == foldMin {
				a = math.Float64frombits(math.Float64bits(a) ^ f.flip)
			}
			if f.div != 0 {
				a /= div
			}
			out[i] = canonF64(a)
		}
	}
}

// minF32 orders -0 below +0 and keeps a NaN.
func minF32(a, b float32) float32 {
	switch {
	case a != a || b != b:
		return math.Float32frombits(NaNF32)
	case a == b:
		return math.Float32frombits(math.Float32bits(a) | math.Float32bits(b))
	case a < b:
		return a
	default:
		return b
	}
}

func minF64(a, b float64) float64 {
	switch {
	case a != a || b != b:
		return math.Float64frombits(NaNF64)
	case a == b:
		return math.Float64frombits(math.Float64bits(a) | math.Float64bits(b))
	case a < b:
		return a
	default:
		return b
	}
}

type signed interface{ int8 | int16 | int32 | int64 }

type unsigned interface {
	uint8 | uint16 | uint32 | uint64
}

// foldInt serves the signed and the unsigned type of one size.
func foldInt[S signed, U unsigned](f *fold, lo, hi int) {
	var accs [block]U
	for ; lo < hi; lo += block {
		n := min(block, hi-lo)
		acc := accs[:n]
		for i := range acc {
			acc[i] = U(f.init)
		}
		for _, row := range f.rows {
			x := view[U](row, lo, n)
			for i, a := range acc {
				switch f.op {
				case foldIntSum:
					a += x[i]
				case foldIntProd:
					a *= x[i]
				case foldMinS:
					a = U(min(S(a), S(x[i])))
				case foldMaxS:
					a = U(max(S(a), S(x[i])))
				case foldMinU:
					a = min(a, x[i])
				case foldMaxU:
					a = max(a, x[i])
				}
				acc[i] = a
			}
		}
		copy(view[U](f.out, lo, n), acc)
	}
}

// averageInts is the same on every path.
func (f *fold) averageInts(n int) {
	switch f.t {
	case I8:
		average[int8](f, n)
	case I16:
		average[int16](f, n)
	case I32:
		average[int32](f, n)
	case I64:
		averageI64(f, n)
	case U8:
		average[uint8](f, n)
	case U16:
		average[uint16](f, n)
	case U32:
		average[uint32](f, n)
	case U64:
		averageU64(f, n)
	}
}

// average divides sums that 64 bits hold exactly.
func average[T int8 | int16 | int32 | uint8 | uint16 | uint32](f *fold, n int) {
	var accs [block]int64
	k := int64(len(f.rows))
	for lo := 0; lo < n; lo += block {
		m := min(block, n-lo)
		acc := accs[:m]
		clear(acc)
		for _, row := range f.rows {
			for i, x := range view[T](row, lo, m) {
				acc[i] += int64(x)
			}
		}
		for i, out := 0, view[T](f.out, lo, m); i < m; i++ {
			out[i] = T(acc[i] / k)
		}
	}
}

// averageU64 sums in 128 bits.
func averageU64(f *fold, n int) {
	out := view[uint64](f.out, 0, n)
	for i := range out {
		var hi, lo, carry uint64
		for _, row := range f.rows {
			lo, carry = bits.Add64(lo, view[uint64](row, i, 1)[0], 0)
			hi += carry
		}
		out[i], _ = bits.Div64(hi, lo, uint64(len(f.rows)))
	}
}

// averageI64 sums in 128 bits and divides the magnitude.
func averageI64(f *fold, n int) {
	out := view[int64](f.out, 0, n)
	for i := range out {
		var hi, lo, carry uint64
		for _, row := range f.rows {
			x := view[int64](row, i, 1)[0]
			lo, carry = bits.Add64(lo, uint64(x), 0)
			hi += uint64(x>>63) + carry
		}
		negative := int64(hi) < 0
		if negative {
			lo, carry = bits.Add64(^lo, 1, 0)
			hi = ^hi + carry
		}
		q, _ := bits.Div64(hi, lo, uint64(len(f.rows)))
		if negative {
			q = -q
		}
		out[i] = int64(q)
	}
}
