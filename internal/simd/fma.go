package simd

import "math"

// FMA32 returns a*b+c rounded once to float32: the fused multiply-add that the vector units
// execute, in plain Go.
//
// The product of two float32 is exact in float64, so only the sum must not be rounded twice. Its
// error is recovered with Knuth's TwoSum, and the float64 sum is rounded to odd: when it is inexact
// its last bit is made 1, on the side of the exact value. The final conversion then sees on which
// side of every float32 midpoint the exact value lies.
func FMA32(a, b, c float32) float32 {
	p := float64(float64(a) * float64(b))
	d := float64(c)
	s := p + d
	t := s - p
	e := (p - (s - t)) + (d - t)
	if e != 0 && e == e { // inexact, and neither Inf nor NaN
		if bits := math.Float64bits(s); bits&1 == 0 {
			if (e > 0) == (s > 0) {
				bits++
			} else {
				bits--
			}
			s = math.Float64frombits(bits)
		}
	}
	return float32(s)
}
