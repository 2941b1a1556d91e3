package main

import "github.com/mmcloughlin/avo/operand"

// emitDots emits the dot products.
func emitDots(a *asm) {
	for _, f := range []format{&bf16Pairs{}, f16{}, f32{}} {
		a.dot(f)
	}
}

// dot keeps 64 accumulators in registers. The families of a vector (even and odd elements, or just
// one) are reduced side by side: while a family has several registers the second half of them is
// added to the first, then the upper half of the register to the lower. Both are the step s[j] +=
// s[j+h] of the contract, because a family of two holds every second element.
func (a *asm) dot(f format) {
	a.begin("dot"+f.name(), "func(x, y *byte, blocks int, tailX, tailY *byte, tail int) float32",
		"Returns the dot product of 64*blocks elements of "+f.name()+", and if tail is not 0 of 64 more at tailX and tailY.")
	x, y, n := a.arg("x"), a.arg("y"), a.arg("blocks")
	f.prepare(a)
	families := f.vectors(a)
	accs := make([][]V, families)
	count := 64 / f.group(a)
	for i := range accs {
		for range count {
			accs[i] = append(accs[i], a.zeroed())
		}
	}

	a.Label("loop")
	a.TESTQ(n, n)
	a.JZ(ref("tail"))
	bytes := f.group(a) * f.size()
	for g := range count {
		vx := f.load(a, place{mem: operand.Mem{Base: x, Disp: g * bytes}})
		vy := f.load(a, place{mem: operand.Mem{Base: y, Disp: g * bytes}})
		for i := range families {
			a.VFMADD231PS(vx[i], vy[i], accs[i][g])
		}
	}
	a.ADDQ(operand.U32(count*bytes), x)
	a.ADDQ(operand.U32(count*bytes), y)
	a.DECQ(n)
	a.JMP(ref("loop"))

	a.Label("tail")
	a.Load(a.Param("tail"), n)
	a.TESTQ(n, n)
	a.JZ(ref("reduce"))
	a.MOVQ(operand.U32(0), a.argMem("tail"))
	a.Load(a.Param("tailX"), x)
	a.Load(a.Param("tailY"), y)
	a.MOVQ(operand.U32(1), n)
	a.JMP(ref("loop"))

	a.Label("reduce")
	sums := make([]V, families)
	for i, family := range accs {
		for len(family) > 1 {
			h := len(family) / 2
			for j := range h {
				a.VADDPS(family[j+h], family[j], family[j])
			}
			family = family[:h]
		}
		sums[i] = a.across(family[0], a.VADDPS)
	}
	if families == 2 {
		a.VADDPS(sums[1], sums[0], sums[0])
	}
	a.VMOVSS(sums[0], a.retMem())
	a.end()
}
