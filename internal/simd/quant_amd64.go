package simd

import "unsafe"

func quantize(t Type, q unsafe.Pointer, scales *float32, src unsafe.Pointer, groups int, pow2 bool) {
	p := 0
	if pow2 {
		p = 1
	}
	out, in, wide := (*byte)(q), (*byte)(src), active == avx512
	switch {
	case active == portable:
		quantizePortable(t, q, scales, src, groups, pow2)
	case t == BF16 && wide:
		quantizeBF16AVX512(out, scales, in, groups, p)
	case t == BF16:
		quantizeBF16AVX2(out, scales, in, groups, p)
	case t == F16 && wide:
		quantizeF16AVX512(out, scales, in, groups, p)
	case t == F16:
		quantizeF16AVX2(out, scales, in, groups, p)
	case wide:
		quantizeF32AVX512(out, scales, in, groups, p)
	default:
		quantizeF32AVX2(out, scales, in, groups, p)
	}
}
