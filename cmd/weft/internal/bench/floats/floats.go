// Package floats rounds as the contracts of operations say, without the library that is measured.
package floats

import (
	"fmt"
	"math"

	"github.com/x448/float16"

	"github.com/weftgo/weft"
)

// Append appends v, rounded to nearest even.
func Append(b []byte, d weft.DType, v float32) ([]byte, error) {
	bits := math.Float32bits(v)
	switch d {
	case weft.BFloat16:
		r := uint16((bits + 0x7fff + bits>>16&1) >> 16)
		return append(b, byte(r), byte(r>>8)), nil
	case weft.Float16:
		r := float16.Fromfloat32(v).Bits()
		return append(b, byte(r), byte(r>>8)), nil
	case weft.Float32:
		return append(b, byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24)), nil
	}
	return b, fmt.Errorf("no rounding to %v", d)
}

// Round rounds v to a type and back.
func Round(d weft.DType, v float32) float32 {
	bits := math.Float32bits(v)
	switch d {
	case weft.BFloat16:
		return math.Float32frombits((bits + 0x7fff + bits>>16&1) &^ 0xffff)
	case weft.Float16:
		return float16.Fromfloat32(v).Float32()
	}
	return v
}

// FMA returns a*b+c with one rounding. The product of two fp32 numbers is exact in
// fp64. Its sum with c may not be: then the result is rounded to odd, which keeps the
// second rounding, to fp32, from being a double one (Boldo and Melquiond, 2008).
func FMA(a, b, c float32) float32 {
	p, q := float64(a)*float64(b), float64(c)
	s := p + q
	t := s - p
	if err := (p - (s - t)) + (q - t); err != 0 {
		if bits := math.Float64bits(s); bits&1 == 0 {
			if (err > 0) == (s > 0) {
				s = math.Float64frombits(bits + 1)
			} else {
				s = math.Float64frombits(bits - 1)
			}
		}
	}
	return float32(s)
}
