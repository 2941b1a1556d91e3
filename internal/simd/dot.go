package simd

import "unsafe"

// Dot returns the sum of a[i]*b[i] over n elements of type t (BF16, F16 or F32) in fp32. The order
// is fixed: 64 accumulators start at +0, element i goes to accumulator i mod 64 with a fused
// multiply-add, i ascending; then s[j] += s[j+h] for j < h, with h = 32, 16, 8, 4, 2, 1. A NaN
// result is canonical.
func Dot(t Type, a, b unsafe.Pointer, n int) float32 {
	if t > F32 {
		panic("simd: dot product of " + t.String())
	}
	return canonF32(dot(t, a, b, n))
}

const dotLanes = 64

func dotPortable(t Type, a, b unsafe.Pointer, n int) float32 {
	var s, x, y [dotLanes]float32
	for lo := 0; lo < n; lo += dotLanes {
		m := min(dotLanes, n-lo)
		widen(t, x[:m], a, lo)
		widen(t, y[:m], b, lo)
		for i := range m {
			s[i] = FMA32(x[i], y[i], s[i])
		}
	}
	for h := dotLanes / 2; h > 0; h /= 2 {
		for j := range h {
			s[j] += s[j+h]
		}
	}
	return s[0]
}
