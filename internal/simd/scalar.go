package simd

import "math"

// The canonical NaNs: positive, every mantissa bit set. The NaNs that every kernel writes.
const (
	NaNBF16 uint16 = 0x7FFF
	NaNF16  uint16 = 0x7FFF
	NaNF32  uint32 = 0x7FFFFFFF
	NaNF64  uint64 = 0x7FFFFFFFFFFFFFFF
	NaNE4M3 uint8  = 0x7F
	NaNE5M2 uint8  = 0x7F
)

const (
	signF32 = 0x80000000
	infF32  = 0x7F800000
)

func canonF32(x float32) float32 {
	if x != x {
		return math.Float32frombits(NaNF32)
	}
	return x
}

func canonF64(x float64) float64 {
	if x != x {
		return math.Float64frombits(NaNF64)
	}
	return x
}

// BF16FromF32 rounds x to bfloat16, to nearest even.
func BF16FromF32(x float32) uint16 {
	b := math.Float32bits(x)
	if b&^signF32 > infF32 {
		return NaNBF16
	}
	return uint16((b + 0x7FFF + b>>16&1) >> 16)
}

// BF16ToF32 widens a bfloat16; exact.
func BF16ToF32(x uint16) float32 {
	return canonF32(math.Float32frombits(uint32(x) << 16))
}

// F16FromF32 rounds x to IEEE half precision, to nearest even; values of 65520 and above become
// Inf.
func F16FromF32(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	a := b &^ signF32
	switch {
	case a > infF32:
		return NaNF16
	case a >= 0x47800000: // 65536
		return sign | 0x7C00
	case a < 0x38800000: // 2^-14: subnormal
		// Adding 1/2 leaves the value in units of 2^-24 in the low mantissa bits, rounded by the
		// addition.
		return sign | uint16(math.Float32bits(math.Float32frombits(a)+0.5)-0x3F000000)
	default:
		return sign | uint16((a+0xFFF+a>>13&1)>>13-112<<10)
	}
}

// F16ToF32 widens an IEEE half; exact.
func F16ToF32(x uint16) float32 {
	sign := uint32(x&0x8000) << 16
	a := uint32(x & 0x7FFF)
	switch {
	case a > 0x7C00:
		return math.Float32frombits(NaNF32)
	case a == 0x7C00:
		return math.Float32frombits(sign | infF32)
	case a < 0x400: // subnormal or zero: a units of 2^-24
		return math.Float32frombits(sign | math.Float32bits(float32(a)*0x1p-24))
	default:
		return math.Float32frombits(sign | (a<<13 + 112<<23))
	}
}

// E4M3FromF32 rounds x to OCP fp8 e4m3, to nearest even. Values beyond ±448, the infinities
// included, become ±448.
func E4M3FromF32(x float32) uint8 { return fp8FromF32(x, 3, 7, 448, 0x7E) }

// E5M2FromF32 rounds x to OCP fp8 e5m2, to nearest even. Values beyond ±57344, the infinities
// included, become ±57344.
func E5M2FromF32(x float32) uint8 { return fp8FromF32(x, 2, 15, 57344, 0x7B) }

// fp8FromF32 rounds x to a format of so many mantissa bits, whose largest number is most, of this code.
func fp8FromF32(x float32, mantissa, bias uint32, most float32, code uint8) uint8 {
	b := math.Float32bits(x)
	sign := uint8(b >> 24 & 0x80)
	a := b &^ signF32
	drop, unit := 23-mantissa, (151-bias-mantissa)<<23
	switch {
	case a > infF32:
		return NaNE4M3 // and NaNE5M2
	case a >= math.Float32bits(most):
		return sign | code
	case a < (128-bias)<<23:
		// Subnormal: the addition rounds at the last bit that stays.
		return sign | uint8(math.Float32bits(math.Float32frombits(a)+math.Float32frombits(unit))-unit)
	default:
		return sign | uint8((a+1<<(drop-1)-1+a>>drop&1)>>drop-(127-bias)<<mantissa)
	}
}

var e4m3Table, e5m2Table = fp8Tables()

func fp8Tables() (e4m3, e5m2 [256]float32) {
	for i := range 256 {
		// e5m2 is the upper byte of a half. e4m3 shifted into a half has 2^-8 of its value, but one
		// NaN and no Inf.
		e5m2[i] = F16ToF32(uint16(i) << 8)
		e4m3[i] = F16ToF32(uint16(i&0x80)<<8|uint16(i&0x7F)<<7) * 256
		if i&0x7F == 0x7F {
			e4m3[i] = math.Float32frombits(NaNF32)
		}
	}
	return e4m3, e5m2
}

// E4M3ToF32 widens an fp8 e4m3; exact.
func E4M3ToF32(x uint8) float32 { return e4m3Table[x] }

// E5M2ToF32 widens an fp8 e5m2; exact.
func E5M2ToF32(x uint8) float32 { return e5m2Table[x] }
