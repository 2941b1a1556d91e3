package main

import "github.com/mmcloughlin/avo/operand"

// conversionStep is the number of elements of which a conversion takes a multiple.
const conversionStep = 32

// emitConversions emits the conversions to and from fp32.
func emitConversions(a *asm) {
	for _, f := range []format{bf16{}, f16{}, e4m3(), e5m2()} {
		a.convert("widen"+f.name(), f, f32{},
			"Converts n elements (a multiple of 32) of "+f.name()+" to fp32.")
	}
	for _, f := range []format{bf16{}, f16{}, f32{}, e4m3(), e5m2()} {
		a.convert("narrow"+f.name(), f32{}, f,
			"Rounds n elements (a multiple of 32) of fp32 to "+f.name()+".")
	}
	a.widenDouble()
	a.narrowDouble()
}

// conversionLoop calls body for every group of n elements in memory; the sizes are bytes.
func (a *asm) conversionLoop(n, srcSize, dstSize int, body func(src, dst operand.Mem)) {
	dst, src, left := a.arg("dst"), a.arg("src"), a.arg("n")
	a.Label("loop")
	a.TESTQ(left, left)
	a.JLE(ref("done"))
	for i := 0; i < conversionStep; i += n {
		body(operand.Mem{Base: src, Disp: i * srcSize}, operand.Mem{Base: dst, Disp: i * dstSize})
	}
	a.ADDQ(operand.U32(conversionStep*srcSize), src)
	a.ADDQ(operand.U32(conversionStep*dstSize), dst)
	a.SUBQ(operand.U8(conversionStep), left)
	a.JMP(ref("loop"))
	a.Label("done")
	a.end()
}

func (a *asm) convert(name string, from, to format, doc string) {
	a.begin(name, "func(dst, src *byte, n int)", doc)
	from.prepare(a)
	to.prepareStore(a)
	a.conversionLoop(a.lanes(), from.size(), to.size(), func(src, dst operand.Mem) {
		save(a, to, from.load(a, place{mem: src}), place{mem: dst})
	})
}

func (a *asm) widenDouble() {
	a.begin("widenF64", "func(dst, src *byte, n int)", "Converts n elements (a multiple of 32) of fp32 to fp64.")
	a.conversionLoop(a.lanes()/2, 4, 8, func(src, dst operand.Mem) {
		v := a.vec()
		a.VCVTPS2PD(src, v)
		a.canonical64(v)
		a.move(v, dst)
	})
}

// narrowDouble rounds to nearest even, or to odd: truncated, with the last bit set if that was
// inexact. A second rounding after round-to-odd gives what one rounding would have given.
func (a *asm) narrowDouble() {
	a.begin("narrowF64", "func(dst, src *byte, n, odd int)",
		"Rounds n elements (a multiple of 32) of fp64 to fp32, if odd is not 0 to odd. Only with odd 0 a NaN is canonical.")
	odd := a.arg("odd")
	a.conversionLoop(a.lanes()/2, 8, 4, func(src, dst operand.Mem) {
		toOdd, store := a.unique("odd"), a.unique("store")
		v, h := a.vec(), a.half()
		a.move(src, v)
		if a.wide() {
			a.VCVTPD2PS(v, h)
		} else {
			a.VCVTPD2PSY(v, h)
		}
		a.TESTQ(odd, odd)
		a.JNZ(ref(toOdd))
		a.canonical(h, 0x7FFFFFFF)
		a.JMP(ref(store))
		a.Label(toOdd)
		a.roundToOdd(v, h)
		a.Label(store)
		a.move(h, dst)
	})
}

// roundToOdd turns h, which is v rounded to fp32 in the nearest mode, into v rounded to odd.
func (a *asm) roundToOdd(v, h V) {
	const notEqual, greater = operand.U8(4), operand.U8(0x1E)
	back := a.vec()
	if a.wide() {
		a.VCVTPD2PS_RZ_SAE(v, h)
		a.VCVTPS2PD(h, back)
		inexact := a.K()
		a.VCMPPD(notEqual, v, back, inexact)
		a.VPORD_BCST(a.bits(1), h, inexact, h)
		return
	}
	// Where rounding went away from zero the magnitude, an integer in the lower bits, is one too
	// large.
	a.VCVTPS2PD(h, back)
	magnitude, inexact, away := a.vec(), a.vec(), a.vec()
	a.VPBROADCASTQ(a.quad("magnitude64", 1<<63-1), magnitude)
	a.VCMPPD(notEqual, v, back, inexact)
	a.VCMPPD(greater, a.and(magnitude, v), a.and(magnitude, back), away)
	lower := func(mask V) V { // the mask of 64-bit lanes as one of 32-bit lanes
		hi, r := a.XMM(), a.XMM()
		a.VEXTRACTF128(operand.U8(1), mask, hi)
		a.VSHUFPS(operand.U8(0x88), hi, mask.AsX(), r)
		return r
	}
	a.VPADDD(lower(away), h, h)
	one := a.XMM()
	a.VPBROADCASTD(a.bits(1), one)
	a.VPOR(a.and(one, lower(inexact)), h, h)
}
