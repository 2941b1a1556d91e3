package simd

import (
	"fmt"
	"math"
	"unsafe"
)

// QuantGroup is the number of consecutive elements that share one scale.
const QuantGroup = 128

// ScaleKind says how the scale of a group of QuantGroup fp8 elements is chosen and stored.
type ScaleKind uint8

const (
	// ScaleF32 stores amax/448 as float32.
	ScaleF32 ScaleKind = iota
	// ScaleF32Pow2 stores amax/448 rounded up to a power of two, as float32.
	ScaleF32Pow2
	// ScaleUE8M0 stores the same power of two as one byte, its exponent plus 127.
	ScaleUE8M0
)

const (
	maxE4M3 = 448
	minAmax = 1e-4
)

// scaleBlock is the number of scales that are converted to exponent bytes at a time.
const scaleBlock = 64

// QuantizeE4M3 quantises a row of n elements (a multiple of QuantGroup) of type t (BF16, F16 or
// F32) to fp8 e4m3, writing n bytes at q and n/QuantGroup scales of the given kind at scales. For
// every group, all in fp32:
//
//	amax  = the largest |x| that is not NaN, at least 1e-4 and at most the largest finite float32
//	scale = amax/448                     multiplier = 448/amax        (ScaleF32)
//	scale = 2^ceil(log2(amax/448))       multiplier = 1/scale, exact (ScaleF32Pow2, ScaleUE8M0; amax/448
//	                                     rounded first)
//	q     = e4m3(x*multiplier)           the product rounded to fp32, then to e4m3, saturating at ±448; NaN stays NaN
//
// The three areas must not overlap.
func QuantizeE4M3(t Type, q, scales, src unsafe.Pointer, n int, kind ScaleKind) {
	groups := quantGroups(t, n)
	if kind != ScaleUE8M0 {
		if groups > 0 {
			quantize(t, q, (*float32)(scales), src, groups, kind != ScaleF32)
		}
		return
	}
	var wide [scaleBlock]float32
	for g := 0; g < groups; g += scaleBlock {
		m := min(scaleBlock, groups-g)
		quantize(t, unsafe.Add(q, g*QuantGroup), &wide[0], unsafe.Add(src, g*QuantGroup*t.Size()), m, true)
		for i, out := 0, view[uint8](scales, g, m); i < m; i++ {
			out[i] = uint8(math.Float32bits(wide[i]) >> 23)
		}
	}
}

func quantGroups(t Type, n int) int {
	if t > F32 || n%QuantGroup != 0 {
		panic(fmt.Sprintf("simd: quantisation of %d elements of %v", n, t))
	}
	return n / QuantGroup
}

// groupScale returns the scale of a group and the multiplier that goes with it.
func groupScale(amax float32, pow2 bool) (scale, mul float32) {
	amax = min(max(amax, minAmax), math.MaxFloat32)
	scale = amax / maxE4M3
	if !pow2 {
		return scale, maxE4M3 / amax
	}
	// Carrying any mantissa bit into the exponent rounds up to a power of two; 2^-e has the
	// exponent field 254-e.
	b := (math.Float32bits(scale) + 0x7FFFFF) &^ 0x7FFFFF
	return math.Float32frombits(b), math.Float32frombits(254<<23 - b)
}

func quantizePortable(t Type, q unsafe.Pointer, scales *float32, src unsafe.Pointer, groups int, pow2 bool) {
	var x [QuantGroup]float32
	out := view[float32](unsafe.Pointer(scales), 0, groups)
	for g := range groups {
		widen(t, x[:], src, g*QuantGroup)
		var amax float32
		for _, v := range x {
			if a := math.Float32frombits(math.Float32bits(v) &^ signF32); a > amax {
				amax = a
			}
		}
		scale, mul := groupScale(amax, pow2)
		out[g] = scale
		for i, o := 0, view[uint8](q, g*QuantGroup, QuantGroup); i < len(o); i++ {
			o[i] = E4M3FromF32(x[i] * mul)
		}
	}
}
