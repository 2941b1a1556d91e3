package simd

import "unsafe"

// Convert converts n elements between any two floating-point types, rounding once, to nearest even.
// bf16 and f16 overflow to Inf; e4m3 and e5m2 saturate, so values beyond ±448 and ±57344, the
// infinities included, become those. A NaN becomes the canonical NaN of dstT, also where the types
// are equal. dst may equal src if the sizes are equal, and must not otherwise overlap it.
func Convert(dstT Type, dst unsafe.Pointer, srcT Type, src unsafe.Pointer, n int) {
	if !dstT.Float() || !srcT.Float() {
		panic("simd: convert " + srcT.String() + " to " + dstT.String())
	}
	switch {
	case n == 0:
	case srcT == F64 && dstT == F64: // the sum of one row
		rows := [1]unsafe.Pointer{src}
		f := fold{t: F64, out: dst, rows: rows[:], init: negZero64}
		f.run(n)
	case srcT == F64 && dstT == F32:
		narrowDoubles((*float32)(dst), src, 0, n, false)
	case srcT == F32 && dstT == F64:
		widenDoubles(dst, 0, (*float32)(src), n)
	case srcT == F32:
		narrowRow(dstT, dst, 0, (*float32)(src), n)
	case dstT == F32:
		widenRow(srcT, (*float32)(dst), src, 0, n)
	default:
		convertVia(dstT, dst, srcT, src, n)
	}
}

// convertVia converts through blocks of fp32: exactly where the source is narrower, rounded to odd
// where it is F64, so that the rounding to dstT is the only one.
func convertVia(dstT Type, dst unsafe.Pointer, srcT Type, src unsafe.Pointer, n int) {
	var mid [block]float32
	for lo := 0; lo < n; lo += block {
		m := min(block, n-lo)
		if srcT == F64 {
			narrowDoubles(&mid[0], src, lo, m, true)
		} else {
			widenRow(srcT, &mid[0], src, lo, m)
		}
		if dstT == F64 {
			widenDoubles(dst, lo, &mid[0], m)
		} else {
			narrowRow(dstT, dst, lo, &mid[0], m)
		}
	}
}
