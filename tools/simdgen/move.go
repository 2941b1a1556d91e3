package main

import "github.com/mmcloughlin/avo/operand"

// emitMoves emits the kernels that move bytes without looking at them, in whole cache lines.
func emitMoves(a *asm) {
	a.fanOut(false)
	a.fanOut(true)
	a.zero()
}

const line = 64

// moveStore returns the store of a vector.
func (a *asm) moveStore(stream bool) func(v V, m operand.Mem) {
	return func(v V, m operand.Mem) {
		if stream {
			a.VMOVNTDQ(v, m)
		} else {
			a.move(v, m)
		}
	}
}

// fanOut loads a block once and stores it to every destination.
func (a *asm) fanOut(stream bool) {
	name, doc := "fanOut", []string{"Copies bytes lo to hi (whole cache lines) of src to k destinations."}
	if stream {
		name = "fanOutStream"
		doc = []string{
			"Copies bytes lo to hi (whole cache lines) of src to k destinations with non-temporal stores;",
			"the destinations are aligned to cache lines.",
		}
	}
	a.begin(name, "func(dst **byte, k int, src *byte, lo, hi int)", doc...)
	dst, k, src, idx, hi := a.arg("dst"), a.arg("k"), a.arg("src"), a.arg("lo"), a.arg("hi")
	store := a.moveStore(stream)
	width := 4 * a.lanes()

	block := func(label, next string, bytes int) {
		a.Label(label)
		end := a.GP64()
		a.LEAQ(operand.Mem{Base: idx, Disp: bytes}, end)
		a.CMPQ(end, hi)
		a.JG(ref(next))
		var vs []V
		for off := 0; off < bytes; off += width {
			v := a.vec()
			a.move(at(src, idx, off), v)
			vs = append(vs, v)
		}
		j, p := a.GP64(), a.GP64()
		a.XORQ(j, j)
		a.Label(label + "Dst")
		a.MOVQ(word(dst, j), p)
		for i, v := range vs {
			store(v, at(p, idx, i*width))
		}
		a.INCQ(j)
		a.CMPQ(j, k)
		a.JB(ref(label + "Dst"))
		a.ADDQ(operand.U32(bytes), idx)
		a.JMP(ref(label))
	}
	block("block", "line", 4*line)
	block("line", "done", line)
	a.Label("done")
	a.end()
}

// zero writes zeros with non-temporal stores.
func (a *asm) zero() {
	a.begin("zeroStream", "func(dst *byte, n int)",
		"Zeroes n bytes (whole cache lines, aligned) with non-temporal stores.")
	dst, n := a.arg("dst"), a.arg("n")
	v := a.zeroed()
	store := a.moveStore(true)
	a.Label("loop")
	a.TESTQ(n, n)
	a.JLE(ref("done"))
	for off := 0; off < line; off += 4 * a.lanes() {
		store(v, operand.Mem{Base: dst, Disp: off})
	}
	a.ADDQ(operand.U8(line), dst)
	a.SUBQ(operand.U8(line), n)
	a.JMP(ref("loop"))
	a.Label("done")
	a.end()
}
