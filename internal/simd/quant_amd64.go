package simd

import "unsafe"

func quantize(t Type, q unsafe.Pointer, scales *float32, src unsafe.Pointer, groups int, pow2 bool) {
	if active == portable {
		quantizePortable(t, q, scales, src, groups, pow2)
		return
	}
	p := 0
	if pow2 {
		p = 1
	}
	callQuantize(t, (*byte)(q), scales, (*byte)(src), groups, p)
}
