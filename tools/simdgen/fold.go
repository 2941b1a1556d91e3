package main

import (
	"math/bits"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A fold keeps the accumulators of a block of columns in registers over all rows. The block is as
// many groups as fit, then what is left goes group by group under a mask (AVX-512), or group by
// group and then element by element (AVX2).
type fold struct {
	log   int        // of the bytes of an element
	group func() int // bytes of a group
	count func() int // accumulators of a group

	load   func(place) []V
	finish func(accs []V)
	store  func(vs []V, p place)
	steps  []step
}

// A step is one operator: how it takes acc and x to the next acc.
type step struct {
	label string
	code  int // of foldOp in internal/simd
	// before and after run once a block, row once for every row; the others get what before or row
	// returns.
	before func() V
	row    func(j reg.Register) V
	apply  func(c V, x, acc V)
	after  func(c V, accs []V)
}

const foldSignature = "func(out *byte, rows **byte, w *float32, k, lo, hi, op int, init, flip, div uint64)"

func (a *asm) emitFold(name string, unroll int, f *fold) {
	rows, k, idx, hi, out := a.arg("rows"), a.arg("k"), a.arg("lo"), a.arg("hi"), a.arg("out")
	init := a.splatArg("init")

	// columns emits the work of one block of n groups.
	columns := func(label string, n int, mask reg.Register) {
		var accs []V
		for range n * f.count() {
			acc := a.vec()
			a.VMOVAPS(a.fit(init), acc)
			accs = append(accs, acc)
		}
		j := a.GP64()
		a.XORQ(j, j)
		a.TESTQ(k, k)
		a.JZ(ref(label + "Finish"))
		op := a.GP64()
		a.Load(a.Param("op"), op)
		for _, s := range f.steps[1:] {
			a.CMPQ(op, operand.U8(s.code))
			a.JE(ref(label + s.label))
		}
		for _, s := range f.steps {
			if s.code != f.steps[0].code {
				a.Label(label + s.label)
			}
			var c V
			if s.before != nil {
				c = s.before()
			}
			a.Label(label + s.label + "Row")
			p := a.GP64()
			a.MOVQ(word(rows, j), p)
			if s.row != nil {
				c = s.row(j)
			}
			for g := range n {
				for i, x := range f.load(place{at(p, idx, g*f.group()), mask}) {
					s.apply(c, x, accs[g*f.count()+i])
				}
			}
			a.INCQ(j)
			a.CMPQ(j, k)
			a.JB(ref(label + s.label + "Row"))
			if s.after != nil {
				s.after(c, accs)
			}
			a.JMP(ref(label + "Finish"))
		}
		a.Label(label + "Finish")
		f.finish(accs)
		for g := range n {
			f.store(accs[g*f.count():(g+1)*f.count()], place{at(out, idx, g*f.group()), mask})
		}
		a.ADDQ(operand.U32(n*f.group()), idx)
	}

	// whole emits a loop over blocks of n groups.
	whole := func(label, next string, n int) {
		a.Label(label)
		end := a.GP64()
		a.LEAQ(operand.Mem{Base: idx, Disp: n * f.group()}, end)
		a.CMPQ(end, hi)
		a.JG(ref(next))
		columns(label, n, nil)
		a.JMP(ref(label))
	}

	if a.wide() {
		whole("block", "tail", unroll)
		a.Label("tail")
		left, ones, mask := a.GP64(), a.GP64(), a.K()
		a.MOVQ(hi, left)
		a.SUBQ(idx, left)
		a.JLE(ref("done"))
		if f.log > 0 {
			a.SHRQ(operand.U8(f.log), left)
		}
		a.MOVQ(operand.I32(-1), ones)
		a.BZHIQ(left, ones, ones)
		a.KMOVQ(ones, mask)
		columns("tail", 1, mask)
		a.JMP(ref("tail"))
	} else {
		whole("block", "group", unroll)
		whole("group", "element", 1)
		a.Label("element")
		a.CMPQ(idx, hi)
		a.JGE(ref("done"))
		a.lane = true
		columns("element", 1, nil)
		a.lane = false
		a.JMP(ref("element"))
	}
	a.Label("done")
	a.end()
}

// emitFolds emits the folds of floating-point types.
func emitFolds(a *asm) {
	for _, f := range []format{&bf16Pairs{}, f16{}, f32{}, e4m3(), e5m2()} {
		a.foldF32(f)
	}
	a.foldF64()
}

// foldF32 folds a type that accumulates in fp32.
func (a *asm) foldF32(f format) {
	a.begin("fold"+f.name(), foldSignature,
		"Folds bytes lo to hi of k rows of "+f.name()+" into out, accumulating in fp32.")
	w := a.arg("w")
	f.prepare(a)
	f.prepareStore(a)
	unroll := 8 / f.vectors(a)
	if f.size() == 1 {
		unroll = 4
	}
	a.emitFold(f.name(), unroll, &fold{
		log:   bits.Len(uint(f.size())) - 1,
		group: func() int { return f.group(a) * f.size() },
		count: func() int { return f.vectors(a) },
		load:  func(p place) []V { return f.load(a, p) },
		store: func(vs []V, p place) { f.store(a, vs, p) },
		finish: func(accs []V) {
			a.average(accs, a.VDIVPS)
			if nan := f.nan(); nan != 0 {
				a.ifAnyNaN(accs, false, func() {
					for _, acc := range accs {
						a.canonical(acc, nan)
					}
				})
			}
		},
		steps: []step{
			{
				label: "FMA", code: 0,
				row: func(j reg.Register) V {
					c := a.vec()
					a.VBROADCASTSS(operand.Mem{Base: w, Index: j, Scale: 4}, c)
					return c
				},
				apply: func(c V, x, acc V) { a.VFMADD231PS(c, x, acc) },
			},
			{label: "Mul", code: 1, apply: func(_ V, x, acc V) { a.VMULPS(x, acc, acc) }},
			a.minStep(a.VMINPS),
		},
	})
}

// foldF64 folds fp64 without weights.
func (a *asm) foldF64() {
	a.begin("foldF64", foldSignature, "Folds bytes lo to hi of k rows of F64 into out. w is not used.")
	size := func() int {
		if a.lane {
			return 8
		}
		return 4 * a.lanes()
	}
	a.emitFold("F64", 4, &fold{
		log:   3,
		group: size,
		count: func() int { return 1 },
		load:  func(p place) []V { return []V{loadBytes(a, p, 8, size())} },
		store: func(vs []V, p place) { storeBytes(a, vs[0], p, 8) },
		finish: func(accs []V) {
			a.average(accs, a.VDIVPD)
			a.ifAnyNaN(accs, true, func() {
				for _, acc := range accs {
					a.canonical64(acc)
				}
			})
		},
		steps: []step{
			{label: "Add", code: 0, apply: func(_ V, x, acc V) { a.VADDPD(x, acc, acc) }},
			{label: "Mul", code: 1, apply: func(_ V, x, acc V) { a.VMULPD(x, acc, acc) }},
			a.minStep(a.VMINPD),
			{
				label: "Scaled", code: 9,
				before: func() V { return a.splatArg("flip") },
				apply:  func(c V, x, acc V) { a.VFMADD231PD(c, x, acc) },
			},
		},
	})
}

// minStep is the minimum that orders -0 below +0 and keeps NaNs. The instruction returns its second
// source if either is a NaN or both are zeros; the disjunction of both orders is -0 unless both are
// +0, and a NaN if either is.
func (a *asm) minStep(inst func(...operand.Op)) step {
	return step{
		label:  "Min",
		code:   2,
		before: func() V { return a.splatArg("flip") },
		apply: func(flip V, x, acc V) {
			x = a.xor(flip, x)
			m, n := a.like(acc), a.like(acc)
			inst(x, acc, m)
			inst(acc, x, n)
			if a.wide() {
				a.VPORD(m, n, acc)
			} else {
				a.VPOR(m, n, acc)
			}
		},
		after: func(flip V, accs []V) {
			for _, acc := range accs {
				if a.wide() {
					a.VPXORD(flip, acc, acc)
				} else {
					a.VPXOR(flip, acc, acc)
				}
			}
		},
	}
}

// average divides by div unless that is 0.
func (a *asm) average(accs []V, divide func(...operand.Op)) {
	label := a.unique("noDivision")
	a.CMPQ(a.argMem("div"), operand.U8(0))
	a.JE(ref(label))
	div := a.splatArg("div")
	for _, acc := range accs {
		divide(div, acc, acc)
	}
	a.Label(label)
}

// canonical64 replaces NaNs of the fp64 lanes of x, which it overwrites.
func (a *asm) canonical64(x V) {
	c := a.isNaN(x, true)
	nan := a.quad("nan64", 0x7FFFFFFFFFFFFFFF)
	if a.wide() {
		a.VPBROADCASTQ(nan, c.k, x)
		return
	}
	r := a.vec()
	a.VPBROADCASTQ(nan, r)
	a.VBLENDVPD(c.v, r, x, x)
}

// emitIntFolds emits the folds of integers, one for each size: signedness is in the operator.
func emitIntFolds(a *asm) {
	for log, name := range []string{"I8", "I16", "I32", "I64"} {
		a.foldInt(name, log)
	}
}

func (a *asm) foldInt(name string, log int) {
	a.begin("fold"+name, foldSignature,
		"Folds bytes lo to hi of k rows of "+name+" into out. w, flip and div are not used.")
	size := 1 << log
	group := func() int {
		if a.lane {
			return size
		}
		return 4 * a.lanes()
	}
	pick := func(b, w, d, q func(...operand.Op)) func(...operand.Op) {
		return []func(...operand.Op){b, w, d, q}[log]
	}
	plain := func(label string, code int, inst func(...operand.Op)) step {
		return step{label: label, code: code, apply: func(_ V, x, acc V) { inst(x, acc, acc) }}
	}
	product := plain("Prod", 4, pick(nil, a.VPMULLW, a.VPMULLD, nil))
	switch {
	case size == 1:
		product.apply = a.mulBytes
	case size == 8 && a.wide():
		product.apply = func(_ V, x, acc V) { a.VPMULLQ(x, acc, acc) }
	case size == 8:
		product.apply = a.mulQuads
	}
	steps := []step{plain("Sum", 3, pick(a.VPADDB, a.VPADDW, a.VPADDD, a.VPADDQ)), product}
	if size == 8 && !a.wide() {
		steps = append(steps,
			a.extremum64("MinS", 5, true, false), a.extremum64("MaxS", 6, false, false),
			a.extremum64("MinU", 7, true, true), a.extremum64("MaxU", 8, false, true))
	} else {
		steps = append(steps,
			plain("MinS", 5, pick(a.VPMINSB, a.VPMINSW, a.VPMINSD, a.VPMINSQ)),
			plain("MaxS", 6, pick(a.VPMAXSB, a.VPMAXSW, a.VPMAXSD, a.VPMAXSQ)),
			plain("MinU", 7, pick(a.VPMINUB, a.VPMINUW, a.VPMINUD, a.VPMINUQ)),
			plain("MaxU", 8, pick(a.VPMAXUB, a.VPMAXUW, a.VPMAXUD, a.VPMAXUQ)))
	}
	a.emitFold(name, 4, &fold{
		log:    log,
		group:  group,
		count:  func() int { return 1 },
		load:   func(p place) []V { return []V{loadBytes(a, p, size, group())} },
		store:  func(vs []V, p place) { storeBytes(a, vs[0], p, size) },
		finish: func([]V) {},
		steps:  steps,
	})
}

// mulBytes multiplies bytes in 16-bit lanes, the even and the odd ones apart.
func (a *asm) mulBytes(_ V, x, acc V) {
	even := a.and(a.splat(0x00FF00FF), a.op3(a.VPMULLW, acc, x))
	odd := a.op3(a.VPMULLW, a.shift(a.VPSRLW, acc, 8), a.shift(a.VPSRLW, x, 8))
	odd = a.shift(a.VPSLLW, odd, 8)
	if a.wide() {
		a.VPORD(odd, even, acc)
	} else {
		a.VPOR(odd, even, acc)
	}
}

// mulQuads multiplies 64-bit lanes from 32-bit products.
func (a *asm) mulQuads(_ V, x, acc V) {
	cross := a.op3(a.VPADDQ,
		a.op3(a.VPMULUDQ, a.shift(a.VPSRLQ, acc, 32), x),
		a.op3(a.VPMULUDQ, a.shift(a.VPSRLQ, x, 32), acc))
	low := a.op3(a.VPMULUDQ, acc, x)
	a.VPADDQ(a.shift(a.VPSLLQ, cross, 32), low, acc)
}

// extremum64 is a minimum or maximum of 64-bit lanes on AVX2, which only has the signed comparison.
func (a *asm) extremum64(label string, code int, minimum, unsigned bool) step {
	return step{
		label: label,
		code:  code,
		before: func() V {
			sign := a.vec()
			a.VPBROADCASTQ(a.quad("sign64", 1<<63), sign)
			return sign
		},
		apply: func(sign V, x, acc V) {
			l, r := x, acc
			if unsigned {
				l, r = a.xor(sign, x), a.xor(sign, acc)
			}
			greater := a.like(acc)
			if minimum {
				a.VPCMPGTQ(l, r, greater) // acc > x
			} else {
				a.VPCMPGTQ(r, l, greater) // x > acc
			}
			a.VBLENDVPD(greater, x, acc, acc)
		},
	}
}
