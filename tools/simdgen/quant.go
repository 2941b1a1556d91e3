package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
)

// quantGroup is the number of elements that share a scale.
const quantGroup = 128

// emitQuantisation emits the conversions of rows to fp8 e4m3 with scales.
func emitQuantisation(a *asm) {
	for _, f := range []format{bf16{}, f16{}, f32{}} {
		a.quantize(f)
	}
}

func (a *asm) quantize(f format) {
	a.begin("quantize"+f.name(), "func(q *byte, scales *float32, src *byte, groups, pow2 int)",
		"Quantises groups of 128 elements of "+f.name()+" to e4m3; with pow2 every scale is a power of two.")
	q, scales, src, n, pow2 := a.arg("q"), a.arg("scales"), a.arg("src"), a.arg("groups"), a.arg("pow2")
	out := e4m3()
	f.prepare(a)
	out.prepareStore(a)
	absolute := a.splat(magnitude32)

	a.Label("loop")
	count := quantGroup / a.lanes()
	values := make([]V, count)
	load := func(i int) V {
		return f.load(a, place{mem: operand.Mem{Base: src, Disp: i * a.lanes() * f.size()}})[0]
	}
	// The maximum instruction returns its second source, here the maximum so far, if the first is a
	// NaN.
	amaxes := []V{a.zeroed(), a.zeroed()}
	for i := range count {
		v := load(i)
		if a.wide() { // the group fits the registers
			values[i] = v
		}
		m := amaxes[i%2]
		a.VMAXPS(m, a.and(absolute, v), m)
	}
	a.VMAXPS(amaxes[1], amaxes[0], amaxes[0])
	amax := a.across(amaxes[0], a.VMAXPS)
	a.VMAXSS(a.bits(math.Float32bits(1e-4)), amax, amax)
	a.VMINSS(a.bits(math.Float32bits(math.MaxFloat32)), amax, amax)

	limit, scale, factor := a.XMM(), a.XMM(), a.XMM()
	a.VMOVSS(a.bits(math.Float32bits(448)), limit)
	a.VDIVSS(limit, amax, scale)
	a.TESTQ(pow2, pow2)
	a.JNZ(ref("pow2"))
	a.VDIVSS(amax, limit, factor)
	a.JMP(ref("scaled"))
	a.Label("pow2")
	up, inverse := a.GP32(), a.GP32()
	a.VMOVD(scale, up)
	a.ADDL(operand.U32(0x7FFFFF), up)
	a.ANDL(operand.U32(0xFF800000), up)
	a.VMOVD(up, scale)
	a.MOVL(operand.U32(254<<23), inverse)
	a.SUBL(up, inverse)
	a.VMOVD(inverse, factor)
	a.Label("scaled")
	a.VMOVSS(scale, operand.Mem{Base: scales})
	mul := a.vec()
	a.VBROADCASTSS(factor, mul)

	for i := range count {
		v := values[i]
		if v == nil {
			v = load(i)
		}
		out.store(a, []V{a.op3(a.VMULPS, v, mul)}, place{mem: operand.Mem{Base: q, Disp: i * a.lanes()}})
	}
	a.ADDQ(operand.U32(quantGroup*f.size()), src)
	a.ADDQ(operand.U32(quantGroup), q)
	a.ADDQ(operand.U8(4), scales)
	a.DECQ(n)
	a.JNZ(ref("loop"))
	a.end()
}
