package eptest

import (
	"encoding/binary"
	"math"
	"math/big"

	"github.com/weftgo/weft"
)

// format describes a binary floating-point type narrower than fp32.
type format struct {
	mantissa int // bits stored
	bias     int
	top      float64 // the largest finite number
	saturate bool    // no infinities: what is too large becomes top
	inf, nan uint32
	sign     uint32
}

var (
	bf16Format = format{mantissa: 7, bias: 127, top: 0x1.fep127, inf: 0x7F80, nan: 0x7FFF, sign: 0x8000}
	fp16Format = format{mantissa: 10, bias: 15, top: 65504, inf: 0x7C00, nan: 0x7FFF, sign: 0x8000}
	e4m3Format = format{mantissa: 3, bias: 7, top: 448, saturate: true, inf: 0x7E, nan: 0x7F, sign: 0x80}
)

// encode rounds x to the format, ties to even: to a multiple of the spacing that the format has at
// x.
func (f *format) encode(x float32) uint32 {
	if x != x {
		return f.nan
	}
	a := math.Abs(float64(x))
	sign := uint32(0)
	if math.Signbit(float64(x)) {
		sign = f.sign
	}
	if a == 0 {
		return sign
	}
	smallest := 1 - f.bias - f.mantissa // exponent of the smallest subnormal
	if !math.IsInf(a, 0) {
		spacing := max(exponent(a)-f.mantissa, smallest)
		a = math.RoundToEven(a*power(-spacing)) * power(spacing)
	}
	if a > f.top {
		return sign | f.inf
	}
	if a < power(1-f.bias) {
		return sign | uint32(a*power(-smallest))
	}
	exp := exponent(a)
	return sign | uint32(exp+f.bias)<<f.mantissa | uint32((a*power(-exp)-1)*power(f.mantissa))
}

// decode is exact.
func (f *format) decode(bits uint32) float32 {
	a := bits &^ f.sign
	var v float64
	switch exp := int(a >> f.mantissa); {
	case f.saturate && a == f.nan, !f.saturate && a > f.inf:
		return float32(math.NaN())
	case !f.saturate && a == f.inf:
		v = math.Inf(1)
	case exp == 0:
		v = float64(a) * power(1-f.bias-f.mantissa)
	default:
		v = (1 + float64(a&(1<<f.mantissa-1))*power(-f.mantissa)) * power(exp-f.bias)
	}
	if bits&f.sign != 0 {
		v = -v
	}
	return float32(v)
}

// power is 2 to the n, and exponent its n at most a, of normal float64 numbers: all of fp32 are.
func power(n int) float64 { return math.Float64frombits(uint64(1023+n) << 52) }

func exponent(a float64) int { return int(math.Float64bits(a)>>52) - 1023 }

// number reads element i of a row.
func number(d weft.DType, row []byte, i int) float32 {
	switch d {
	case weft.BFloat16:
		return math.Float32frombits(uint32(binary.LittleEndian.Uint16(row[2*i:])) << 16)
	case weft.Float16:
		return fp16Format.decode(uint32(binary.LittleEndian.Uint16(row[2*i:])))
	default:
		return math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:]))
	}
}

// putNumber rounds x to the type and stores it. NaN has one form: all ones, positive.
func putNumber(d weft.DType, row []byte, i int, x float32) {
	switch d {
	case weft.BFloat16:
		binary.LittleEndian.PutUint16(row[2*i:], uint16(bf16Format.encode(x)))
	case weft.Float16:
		binary.LittleEndian.PutUint16(row[2*i:], uint16(fp16Format.encode(x)))
	default:
		bits := math.Float32bits(x)
		if x != x {
			bits = 0x7FFFFFFF
		}
		binary.LittleEndian.PutUint32(row[4*i:], bits)
	}
}

// fma returns a*b+c rounded once. The product is exact in float64. Rounding the sum to float64
// first can mislead only where it lands in the middle between two float32 numbers, or among the
// subnormal ones; those cases are computed exactly.
func fma(a, b, c float32) float32 {
	product := float64(a) * float64(b)
	sum := product + float64(c)
	if sum == 0 || math.IsNaN(sum) || math.IsInf(sum, 0) {
		return float32(sum)
	}
	const tail = 1<<29 - 1
	if math.Float64bits(sum)&tail != 1<<28 && math.Abs(sum) >= 0x1p-125 {
		return float32(sum)
	}
	exact := new(big.Float).SetPrec(1000).SetFloat64(product)
	exact.Add(exact, new(big.Float).SetFloat64(float64(c)))
	out, _ := exact.Float32()
	return out
}

// quantise makes 128 e4m3 numbers of 128 numbers, and their scale: the largest magnitude, NaN aside
// and at least 1e-4, becomes 448.
func quantise(x []float32, powerOfTwo bool) (scale float32, out []byte) {
	var largest float32
	for _, v := range x {
		if a := float32(math.Abs(float64(v))); a > largest {
			largest = a
		}
	}
	if largest < 1e-4 {
		largest = 1e-4
	}
	if largest > math.MaxFloat32 {
		largest = math.MaxFloat32
	}
	scale = largest / 448
	multiplier := 448 / largest
	if powerOfTwo {
		frac, exp := math.Frexp(float64(scale))
		if frac == 0.5 {
			exp--
		}
		scale, multiplier = float32(math.Ldexp(1, exp)), float32(math.Ldexp(1, -exp))
	}
	out = make([]byte, len(x))
	for i, v := range x {
		out[i] = byte(e4m3Format.encode(v * multiplier))
	}
	return scale, out
}
