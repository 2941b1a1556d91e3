package simd

import "unsafe"

// convertStep is the unit, in elements, of the conversion kernels.
const convertStep = 32

// A conversion is one of the conversion kernels of a path.
type conversion struct {
	kind             uint8
	t                Type // of the end that is not fp32
	dstSize, srcSize int
}

const (
	widening uint8 = iota
	narrowing
	wideningDouble
	narrowingDouble
	narrowingDoubleOdd
)

// widenRow converts n elements of src, from element lo, to fp32.
func widenRow(t Type, dst *float32, src unsafe.Pointer, lo, n int) {
	if active == portable {
		widen(t, unsafe.Slice(dst, n), src, lo)
		return
	}
	c := conversion{widening, t, 4, t.Size()}
	c.run(unsafe.Pointer(dst), unsafe.Add(src, lo*c.srcSize), n)
}

// narrowRow rounds n fp32 to elements of dst, from element lo.
func narrowRow(t Type, dst unsafe.Pointer, lo int, src *float32, n int) {
	if active == portable {
		narrow(t, dst, lo, unsafe.Slice(src, n))
		return
	}
	c := conversion{narrowing, t, t.Size(), 4}
	c.run(unsafe.Add(dst, lo*c.dstSize), unsafe.Pointer(src), n)
}

// widenDoubles converts n fp32 to fp64, from element lo of dst.
func widenDoubles(dst unsafe.Pointer, lo int, src *float32, n int) {
	if active == portable {
		widenDoublesPortable(dst, lo, unsafe.Slice(src, n))
		return
	}
	c := conversion{wideningDouble, F64, 8, 4}
	c.run(unsafe.Add(dst, lo*c.dstSize), unsafe.Pointer(src), n)
}

// narrowDoubles rounds n fp64 of src, from element lo, to fp32: to nearest even, or to odd.
func narrowDoubles(dst *float32, src unsafe.Pointer, lo, n int, odd bool) {
	if active == portable {
		narrowDoublesPortable(unsafe.Slice(dst, n), src, lo, odd)
		return
	}
	c := conversion{narrowingDouble, F64, 4, 8}
	if odd {
		c.kind = narrowingDoubleOdd
	}
	c.run(unsafe.Pointer(dst), unsafe.Add(src, lo*c.srcSize), n)
}

// run converts whole steps in place and the rest through buffers of one step.
func (c conversion) run(dst, src unsafe.Pointer, n int) {
	whole := n &^ (convertStep - 1)
	step := callBytes / 16
	for lo := 0; lo < whole; lo += step {
		c.call((*byte)(unsafe.Add(dst, lo*c.dstSize)), (*byte)(unsafe.Add(src, lo*c.srcSize)), min(step, whole-lo))
	}
	if rest := n - whole; rest > 0 {
		var in, out [8 * convertStep]byte
		copy(in[:], view[byte](src, whole*c.srcSize, rest*c.srcSize))
		c.call(&out[0], &in[0], convertStep)
		copy(view[byte](dst, whole*c.dstSize, rest*c.dstSize), out[:])
	}
}

func (c conversion) call(dst, src *byte, n int) {
	if active == avx512 {
		c.callAVX512(dst, src, n)
	} else {
		c.callAVX2(dst, src, n)
	}
}

func (c conversion) callAVX512(dst, src *byte, n int) {
	switch c.kind {
	case wideningDouble:
		widenF64AVX512(dst, src, n)
	case narrowingDouble:
		narrowF64AVX512(dst, src, n, 0)
	case narrowingDoubleOdd:
		narrowF64AVX512(dst, src, n, 1)
	case widening:
		switch c.t {
		case BF16:
			widenBF16AVX512(dst, src, n)
		case F16:
			widenF16AVX512(dst, src, n)
		case E4M3:
			widenE4M3AVX512(dst, src, n)
		case E5M2:
			widenE5M2AVX512(dst, src, n)
		}
	default:
		switch c.t {
		case BF16:
			narrowBF16AVX512(dst, src, n)
		case F16:
			narrowF16AVX512(dst, src, n)
		case F32:
			narrowF32AVX512(dst, src, n)
		case E4M3:
			narrowE4M3AVX512(dst, src, n)
		case E5M2:
			narrowE5M2AVX512(dst, src, n)
		}
	}
}

func (c conversion) callAVX2(dst, src *byte, n int) {
	switch c.kind {
	case wideningDouble:
		widenF64AVX2(dst, src, n)
	case narrowingDouble:
		narrowF64AVX2(dst, src, n, 0)
	case narrowingDoubleOdd:
		narrowF64AVX2(dst, src, n, 1)
	case widening:
		switch c.t {
		case BF16:
			widenBF16AVX2(dst, src, n)
		case F16:
			widenF16AVX2(dst, src, n)
		case E4M3:
			widenE4M3AVX2(dst, src, n)
		case E5M2:
			widenE5M2AVX2(dst, src, n)
		}
	default:
		switch c.t {
		case BF16:
			narrowBF16AVX2(dst, src, n)
		case F16:
			narrowF16AVX2(dst, src, n)
		case F32:
			narrowF32AVX2(dst, src, n)
		case E4M3:
			narrowE4M3AVX2(dst, src, n)
		case E5M2:
			narrowE5M2AVX2(dst, src, n)
		}
	}
}
