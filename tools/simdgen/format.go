package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
)

// A format moves elements of one storage type between memory and fp32 vectors.
type format interface {
	name() string
	size() int
	// group is the number of elements that one load or store moves; it takes vectors() registers.
	group(a *asm) int
	vectors(a *asm) int
	// prepare hoists the constants of load out of the loops, and prepareStore those of store.
	prepare(a *asm)
	prepareStore(a *asm)
	load(a *asm, p place) []V
	// store rounds vs, which it may overwrite. Lanes that are NaN must first have been replaced by
	// nan(), the bits of a NaN that rounds to the canonical one, unless that is 0.
	store(a *asm, vs []V, p place)
	nan() uint32
}

// loadBytes loads the n bytes of a group into the register that holds them.
func loadBytes(a *asm, p place, size, n int) V {
	if a.lane {
		return a.scalarLoad(p.mem, size)
	}
	var v V
	switch n {
	case 16:
		v = a.XMM()
	case 32:
		v = a.YMM()
	default:
		v = a.ZMM()
	}
	if p.k == nil {
		a.move(p.mem, v)
		return v
	}
	switch size {
	case 1:
		a.VMOVDQU8_Z(p.mem, p.k, v)
	case 2:
		a.VMOVDQU16_Z(p.mem, p.k, v)
	case 4:
		a.VMOVDQU32_Z(p.mem, p.k, v)
	case 8:
		a.VMOVDQU64_Z(p.mem, p.k, v)
	}
	return v
}

// storeBytes stores a whole register, or its elements under the mask, or in lane mode one element.
func storeBytes(a *asm, v V, p place, size int) {
	switch {
	case a.lane:
		a.scalarStore(v, p.mem, size)
	case p.k == nil:
		a.move(v, p.mem)
	case size == 1:
		a.VMOVDQU8(v, p.k, p.mem)
	case size == 2:
		a.VMOVDQU16(v, p.k, p.mem)
	case size == 4:
		a.VMOVDQU32(v, p.k, p.mem)
	case size == 8:
		a.VMOVDQU64(v, p.k, p.mem)
	}
}

// f32 is fp32 itself.
type f32 struct{}

func (f32) name() string       { return "F32" }
func (f32) size() int          { return 4 }
func (f32) group(a *asm) int   { return a.lanes() }
func (f32) vectors(a *asm) int { return 1 }
func (f32) prepare(*asm)       {}
func (f32) prepareStore(*asm)  {}
func (f32) nan() uint32        { return 0x7FFFFFFF }

func (f32) load(a *asm, p place) []V { return []V{loadBytes(a, p, 4, 4*a.lanes())} }

func (f32) store(a *asm, vs []V, p place) {
	storeBytes(a, vs[0], p, 4)
}

// f16 is IEEE half precision; the conversions are instructions, which neither flush nor trap on
// subnormals.
type f16 struct{}

func (f16) name() string       { return "F16" }
func (f16) size() int          { return 2 }
func (f16) group(a *asm) int   { return a.lanes() }
func (f16) vectors(a *asm) int { return 1 }
func (f16) prepare(*asm)       {}
func (f16) prepareStore(*asm)  {}
func (f16) nan() uint32        { return 0x7FFFFFFF }

func (f16) load(a *asm, p place) []V {
	v := a.vec()
	if a.lane || p.k != nil {
		a.VCVTPH2PS(loadBytes(a, p, 2, 2*a.lanes()), v)
	} else {
		a.VCVTPH2PS(p.mem, v)
	}
	return []V{v}
}

func (f16) store(a *asm, vs []V, p place) {
	h := a.half()
	a.VCVTPS2PH(operand.U8(0), vs[0], h)
	storeBytes(a, h, p, 2)
}

// nanBF16 rounds to 0x7FFF like any number; other NaNs would turn into Inf or -0.
const nanBF16 = 0x7FFF0000

// roundBF16 adds to fp32 lanes what makes their upper halves the nearest-even bf16.
func roundBF16(a *asm, v V) V {
	odd := a.and(a.splat(1), a.shift(a.VPSRLD, v, 16))
	return a.op3(a.VPADDD, a.op3(a.VPADDD, v, a.splat(0x7FFF)), odd)
}

// bf16 is bfloat16 with the elements of a vector in order.
type bf16 struct{}

func (bf16) name() string        { return "BF16" }
func (bf16) size() int           { return 2 }
func (bf16) group(a *asm) int    { return a.lanes() }
func (bf16) vectors(a *asm) int  { return 1 }
func (bf16) prepare(*asm)        {}
func (bf16) prepareStore(a *asm) { a.hoist(1, 0x7FFF) }
func (bf16) nan() uint32         { return nanBF16 }

func (bf16) load(a *asm, p place) []V {
	if a.lane {
		return []V{a.shift(a.VPSLLD, a.scalarLoad(p.mem, 2), 16)}
	}
	v := a.vec()
	a.VPMOVZXWD(p.mem, v)
	return []V{a.shift(a.VPSLLD, v, 16)}
}

func (bf16) store(a *asm, vs []V, p place) {
	v := a.shift(a.VPSRLD, roundBF16(a, vs[0]), 16)
	switch {
	case a.lane:
		a.scalarStore(v, p.mem, 2)
	case a.wide():
		w := a.YMM()
		a.VPMOVDW(v, w)
		storeBytes(a, w, p, 2)
	default:
		a.VMOVDQU(packWords(a, v), p.mem)
	}
}

// packWords narrows eight 32-bit lanes that hold 16-bit values.
func packWords(a *asm, v V) V {
	hi, r := a.XMM(), a.XMM()
	a.VEXTRACTI128(operand.U8(1), v, hi)
	a.VPACKUSDW(hi, v.AsX(), r)
	return r
}

// bf16Pairs is bfloat16 without shuffles: the even elements of a group in one vector, the odd ones
// in another. Each 32-bit lane of memory holds an even element in its lower half and an odd one in
// its upper half.
type bf16Pairs struct{ upper V }

func (*bf16Pairs) name() string        { return "BF16" }
func (*bf16Pairs) size() int           { return 2 }
func (*bf16Pairs) prepareStore(a *asm) { a.hoist(1, 0x7FFF) }
func (*bf16Pairs) nan() uint32         { return nanBF16 }

func (*bf16Pairs) group(a *asm) int {
	if a.lane {
		return 1
	}
	return 2 * a.lanes()
}

func (f *bf16Pairs) vectors(a *asm) int {
	if a.lane {
		return 1
	}
	return 2
}

func (f *bf16Pairs) prepare(a *asm) { f.upper = a.splat(0xFFFF0000) }

func (f *bf16Pairs) load(a *asm, p place) []V {
	switch {
	case a.lane:
		return bf16{}.load(a, p)
	case p.k == nil && a.wide():
		return []V{a.shift(a.VPSLLD, p.mem, 16), a.and(p.mem, f.upper)}
	default:
		v := loadBytes(a, p, 2, 4*a.lanes())
		return []V{a.shift(a.VPSLLD, v, 16), a.and(f.upper, v)}
	}
}

func (f *bf16Pairs) store(a *asm, vs []V, p place) {
	if a.lane {
		bf16{}.store(a, vs, p)
		return
	}
	even := a.shift(a.VPSRLD, roundBF16(a, vs[0]), 16)
	odd := roundBF16(a, vs[1])
	if a.wide() {
		const table = operand.U8(0xF8) // (odd & upper) | even
		a.VPTERNLOGD(table, f.upper, odd, even)
		storeBytes(a, even, p, 2)
		return
	}
	r := a.vec()
	a.VPBLENDW(operand.U8(0xAA), odd, even, r)
	storeBytes(a, r, p, 2)
}

// fp8 is an OCP 8-bit float. Loads go through half precision: both formats are, shifted to its
// upper bits, half-precision numbers up to a power of two, so that subnormals need no care.
type fp8 struct {
	id       string
	mantissa int // bits
	bias     int
	max      float32

	magnitude, sign, ones, scale V // constants of an e4m3 load
}

func e4m3() *fp8 { return &fp8{id: "E4M3", mantissa: 3, bias: 7, max: 448} }
func e5m2() *fp8 { return &fp8{id: "E5M2", mantissa: 2, bias: 15, max: 57344} }

func (f *fp8) name() string     { return f.id }
func (*fp8) size() int          { return 1 }
func (*fp8) nan() uint32        { return 0 } // encode replaces them
func (*fp8) group(a *asm) int   { return a.lanes() }
func (*fp8) vectors(a *asm) int { return 1 }

func (f *fp8) prepare(a *asm) {
	if f.id == "E4M3" {
		f.magnitude, f.sign, f.scale = a.splat(0x3F803F80), a.splat(0x80008000), a.splatF(256)
		if a.wide() {
			f.ones = a.splat(0xFFFFFFFF)
		}
	}
}

func (f *fp8) load(a *asm, p place) []V {
	h := a.half()
	switch {
	case a.lane:
		h = a.scalarLoad(p.mem, 1)
	case p.k != nil:
		x := a.XMM()
		a.VMOVDQU8_Z(p.mem, p.k, x)
		a.VPMOVZXBW(x, h)
	default:
		a.VPMOVZXBW(p.mem, h)
	}
	v := a.vec()
	upper := a.shift(a.VPSLLW, h, 8)
	if f.id == "E5M2" {
		a.VCVTPH2PS(upper, v)
		return []V{v}
	}
	// One bit of exponent less, so one place lower, and the value 2^8 too small. The only NaN, all
	// ones, becomes all ones.
	magnitude := a.asHalf(f.magnitude)
	m := a.and(magnitude, a.shift(a.VPSLLW, h, 7))
	r := a.or(m, a.and(a.asHalf(f.sign), upper))
	if a.wide() {
		nan := a.K()
		a.VPCMPEQW(magnitude, m, nan)
		a.VMOVDQU16(a.asHalf(f.ones), nan, r)
	} else {
		nan := a.like(m)
		a.VPCMPEQW(magnitude, m, nan)
		a.VPOR(nan, r, r)
	}
	a.VCVTPH2PS(r, v)
	return []V{a.op3(a.VMULPS, v, a.fit(f.scale))}
}

func (f *fp8) store(a *asm, vs []V, p place) {
	v := f.encode(a, vs[0])
	switch {
	case a.lane:
		a.scalarStore(v, p.mem, 1)
	case a.wide():
		b := a.XMM()
		a.VPMOVDB(v, b)
		storeBytes(a, b, p, 1)
	default:
		w := packWords(a, v)
		b := a.XMM()
		a.VPACKUSWB(w, w, b)
		a.VMOVQ(b, p.mem)
	}
}

// drop is the number of mantissa bits that rounding takes from an fp32 number, unit the bits of the
// power of two whose last mantissa bit is the unit of the subnormals, smallest those of the
// smallest normal number.
func (f *fp8) drop() int { return 23 - f.mantissa }

func (f *fp8) unit() uint32     { return math.Float32bits(float32(math.Ldexp(1, 23+1-f.bias-f.mantissa))) }
func (f *fp8) smallest() uint32 { return math.Float32bits(float32(math.Ldexp(1, 1-f.bias))) }

// The constants of encode.
func (f *fp8) half() uint32   { return 1<<(f.drop()-1) - 1 }
func (f *fp8) rebias() uint32 { return uint32((127 - f.bias) << f.mantissa) }
func (f *fp8) limit() uint32  { return math.Float32bits(f.max) }

const magnitude32 = 0x7FFFFFFF

func (f *fp8) prepareStore(a *asm) {
	a.hoist(magnitude32, f.limit(), 1, f.half(), f.rebias(), f.unit(), f.smallest(), uint32(f.nanCode()))
}

func (*fp8) nanCode() uint8 { return 0x7F }

// encode rounds fp32 lanes to fp8 codes in 32-bit lanes.
func (f *fp8) encode(a *asm, v V) V {
	magnitude := a.and(a.splat(magnitude32), v)
	sign := a.shift(a.VPSRLD, a.xor(magnitude, v), 24)
	m := a.op3(a.VPMINUD, magnitude, a.splat(f.limit()))

	odd := a.and(a.splat(1), a.shift(a.VPSRLD, m, f.drop()))
	r := a.op3(a.VPADDD, a.op3(a.VPADDD, m, a.splat(f.half())), odd)
	r = a.op3(a.VPSUBD, a.shift(a.VPSRLD, r, f.drop()), a.splat(f.rebias()))

	// Below the smallest normal an addition rounds.
	unit := a.splat(f.unit())
	subnormal := a.op3(a.VPSUBD, a.op3(a.VADDPS, m, unit), unit)
	r = a.or(sign, a.choose(a.less(m, a.splat(f.smallest())), subnormal, r))
	return a.choose(a.isNaN(v, false), a.splat(uint32(f.nanCode())), r)
}
