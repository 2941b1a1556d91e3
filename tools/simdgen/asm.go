package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// An isa is an instruction set that kernels are emitted for.
type isa string

const (
	avx2   isa = "AVX2"
	avx512 isa = "AVX512"
)

// features are the extensions that the package asks the processor for before it takes a path.
var features = map[isa][]string{
	avx2:   {"AVX", "AVX2", "FMA3", "F16C"},
	avx512: {"AVX", "AVX2", "FMA3", "F16C", "BMI2", "AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL"},
}

// checkRequirements fails if a kernel needs more than its path promises, be it an instruction or
// one of the sixteen vector registers that only AVX-512 can name.
func checkRequirements(fn *ir.Function) error {
	set := avx2
	if strings.HasSuffix(fn.Name, string(avx512)) {
		set = avx512
	}
	for _, ext := range fn.ISA {
		if !slices.Contains(features[set], ext) && !strings.HasPrefix(ext, "SSE") {
			return fmt.Errorf("%s needs %s", fn.Name, ext)
		}
	}
	if set == avx512 {
		return nil
	}
	for _, inst := range fn.Instructions() {
		for _, r := range inst.Registers() {
			if r.Kind() == reg.KindVector && r.(reg.Physical).PhysicalIndex() >= 16 {
				return fmt.Errorf("%s runs out of vector registers", fn.Name)
			}
		}
	}
	return nil
}

// V is a vector of one register.
type V = reg.VecVirtual

// asm emits code for one instruction set. Its methods hide where the two differ: the width of a
// vector, and the names and masks of some instructions. Those that compute return a fresh register.
type asm struct {
	*build.Context
	set  isa
	lane bool // one element a vector, in an xmm register: the tails of AVX2
	data map[uint32]operand.Mem

	hoisted map[uint32]V
}

// constants are shared by the two instruction sets of a file.
var constants = map[*build.Context]map[uint32]operand.Mem{}

func newAsm(ctx *build.Context, set isa) *asm {
	if constants[ctx] == nil {
		constants[ctx] = map[uint32]operand.Mem{}
	}
	return &asm{Context: ctx, set: set, data: constants[ctx]}
}

func (a *asm) wide() bool { return a.set == avx512 }

// lanes is the number of 32-bit elements of a vector.
func (a *asm) lanes() int {
	switch {
	case a.lane:
		return 1
	case a.wide():
		return 16
	default:
		return 8
	}
}

// begin starts the function name+ISA.
func (a *asm) begin(name, signature string, doc ...string) {
	a.hoisted = map[uint32]V{}
	a.Function(name + string(a.set))
	a.Doc(doc...)
	a.Pragma("noescape")
	a.Attributes(attr.NOSPLIT)
	a.SignatureExpr(signature)
}

// end returns from the function.
func (a *asm) end() {
	a.VZEROUPPER()
	a.RET()
}

// arg loads an integer or pointer argument.
func (a *asm) arg(name string) reg.GPVirtual {
	r := a.GP64()
	a.Load(a.Param(name), r)
	return r
}

// argMem is the memory of an argument.
func (a *asm) argMem(name string) operand.Mem {
	b, err := a.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

func ref(label string) operand.LabelRef { return operand.LabelRef(label) }

func at(base, index reg.Register, disp int) operand.Mem {
	return operand.Mem{Base: base, Index: index, Scale: 1, Disp: disp}
}

// word is the memory of 8-byte entry i of a table.
func word(base, i reg.Register) operand.Mem {
	return operand.Mem{Base: base, Index: i, Scale: 8}
}

// vec allocates a vector.
func (a *asm) vec() V {
	switch {
	case a.lane:
		return a.XMM()
	case a.wide():
		return a.ZMM()
	default:
		return a.YMM()
	}
}

// fit names the part of a full vector that the present width uses.
func (a *asm) fit(v V) V {
	if a.lane {
		return v.AsX().(V)
	}
	return v
}

// half allocates a register of half a vector.
func (a *asm) half() V {
	if a.wide() && !a.lane {
		return a.YMM()
	}
	return a.XMM()
}

// asHalf names the lower half of a vector.
func (a *asm) asHalf(v V) V {
	if a.wide() && !a.lane {
		return v.AsY().(V)
	}
	return v.AsX().(V)
}

// bits is the memory of a 32-bit constant.
func (a *asm) bits(v uint32) operand.Mem {
	m, ok := a.data[v]
	if !ok {
		m = a.ConstData(fmt.Sprintf("c%08x", v), operand.U32(v))
		a.data[v] = m
	}
	return m
}

// hoist loads the constants that splat will ask for, where there are registers to keep them: with
// AVX-512. A function calls it before its loops.
func (a *asm) hoist(vs ...uint32) {
	if a.wide() {
		for _, v := range vs {
			a.hoisted[v] = a.splat(v)
		}
	}
}

// splat repeats a 32-bit constant. The register is not to be written.
func (a *asm) splat(v uint32) V {
	if r, ok := a.hoisted[v]; ok {
		return r
	}
	r := a.vec()
	a.VPBROADCASTD(a.bits(v), r)
	return r
}

func (a *asm) splatF(v float32) V { return a.splat(math.Float32bits(v)) }

// splatArg repeats a 64-bit argument.
func (a *asm) splatArg(name string) V {
	r := a.vec()
	a.VPBROADCASTQ(a.argMem(name), r)
	return r
}

// move loads or stores a whole register of any size.
func (a *asm) move(src, dst operand.Op) {
	if a.wide() {
		a.VMOVDQU32(src, dst)
	} else {
		a.VMOVDQU(src, dst)
	}
}

// zeroed returns a vector of zeros.
func (a *asm) zeroed() V {
	v := a.vec()
	if a.wide() {
		a.VPXORD(v, v, v)
	} else {
		a.VPXOR(v, v, v)
	}
	return v
}

// like allocates a register as wide as v.
func (a *asm) like(v V) V {
	switch v.Size() {
	case 16:
		return a.XMM()
	case 32:
		return a.YMM()
	default:
		return a.ZMM()
	}
}

// logic picks between the VEX and the EVEX name of a bitwise instruction.
func (a *asm) logic(vex func(x, y, z operand.Op), evex func(...operand.Op), x operand.Op, y V) V {
	r := a.like(y)
	if a.wide() {
		evex(x, y, r)
	} else {
		vex(x, y, r)
	}
	return r
}

func (a *asm) and(x operand.Op, y V) V { return a.logic(a.VPAND, a.VPANDD, x, y) }
func (a *asm) or(x operand.Op, y V) V  { return a.logic(a.VPOR, a.VPORD, x, y) }
func (a *asm) xor(x operand.Op, y V) V { return a.logic(a.VPXOR, a.VPXORD, x, y) }

// op3 emits inst(y, x, r): r = x inst y.
func (a *asm) op3(inst func(...operand.Op), x V, y operand.Op) V {
	r := a.like(x)
	inst(y, x, r)
	return r
}

// shift emits inst(n, x, r).
func (a *asm) shift(inst func(...operand.Op), x operand.Op, n int) V {
	r := a.vec()
	if v, ok := x.(V); ok {
		r = a.like(v)
	}
	inst(operand.U8(n), x, r)
	return r
}

// A condition is a mask over the lanes of a vector.
type condition struct {
	k reg.Register // AVX-512
	v V            // AVX2: all ones or all zeros
}

// isNaN finds the lanes (fp32, fp64 with double) that are NaN.
func (a *asm) isNaN(x V, double bool) condition { return a.eitherNaN(x, x, double) }

// eitherNaN finds the lanes that are NaN in x or y.
func (a *asm) eitherNaN(x, y V, double bool) condition {
	const unordered = operand.U8(3)
	cmp := a.VCMPPS
	if double {
		cmp = a.VCMPPD
	}
	if a.wide() {
		k := a.K()
		cmp(unordered, x, y, k)
		return condition{k: k}
	}
	v := a.like(x)
	cmp(unordered, x, y, v)
	return condition{v: v}
}

// ifAnyNaN runs fix if a lane of vs is NaN.
func (a *asm) ifAnyNaN(vs []V, double bool, fix func()) {
	label := a.unique("noNaN")
	var any condition
	for i := 0; i < len(vs); i += 2 {
		c := a.eitherNaN(vs[i], vs[min(i+1, len(vs)-1)], double)
		switch {
		case i == 0:
			any = c
		case a.wide():
			a.KORW(c.k, any.k, any.k)
		default:
			a.VPOR(c.v, any.v, any.v)
		}
	}
	if a.wide() {
		a.KORTESTW(any.k, any.k)
	} else {
		a.VPTEST(any.v, any.v)
	}
	a.JZ(ref(label))
	fix()
	a.Label(label)
}

// less compares signed 32-bit lanes: x < y.
func (a *asm) less(x, y V) condition {
	if a.wide() {
		k := a.K()
		a.VPCMPGTD(x, y, k)
		return condition{k: k}
	}
	v := a.like(x)
	a.VPCMPGTD(x, y, v)
	return condition{v: v}
}

// choose returns yes where c holds, else no, in 32-bit lanes. It overwrites no.
func (a *asm) choose(c condition, yes, no V) V {
	if a.wide() {
		a.VMOVDQA32(yes, c.k, no)
	} else {
		a.VBLENDVPS(c.v, yes, no, no)
	}
	return no
}

// canonical replaces NaNs of the fp32 lanes of x, which it overwrites, by a constant.
func (a *asm) canonical(x V, nan uint32) V {
	c := a.isNaN(x, false)
	if a.wide() {
		a.VPBROADCASTD(a.bits(nan), c.k, x)
		return x
	}
	r := a.like(x)
	a.VPBROADCASTD(a.bits(nan), r)
	a.VBLENDVPS(c.v, r, x, x)
	return x
}

// across combines the lanes of v, which it overwrites, by halves: upper with lower until lane 0
// holds the result.
func (a *asm) across(v V, inst func(...operand.Op)) V {
	x, y, hi := v.AsX().(V), v.AsY().(V), a.XMM()
	if a.wide() {
		half := a.YMM()
		a.VEXTRACTF64X4(operand.U8(1), v, half)
		inst(half, y, y)
		a.VEXTRACTF32X4(operand.U8(1), y, hi)
	} else {
		a.VEXTRACTF128(operand.U8(1), y, hi)
	}
	inst(hi, x, x)
	for _, bytes := range []uint8{8, 4} {
		a.VPSRLDQ(operand.U8(bytes), x, hi)
		inst(hi, x, x)
	}
	return x
}

// scalarLoad zero-extends size bytes of memory into lane 0 of an xmm register.
func (a *asm) scalarLoad(m operand.Mem, size int) V {
	v := a.XMM()
	switch size {
	case 1, 2:
		r := a.GP32()
		if size == 1 {
			a.MOVBLZX(m, r)
		} else {
			a.MOVWLZX(m, r)
		}
		a.VMOVD(r, v)
	case 4:
		a.VMOVD(m, v)
	case 8:
		a.VMOVQ(m, v)
	}
	return v
}

// scalarStore writes the lowest size bytes of an xmm register.
func (a *asm) scalarStore(v V, m operand.Mem, size int) {
	switch size {
	case 1, 2:
		r := a.GP32()
		a.VMOVD(v, r)
		if size == 1 {
			a.MOVB(r.As8(), m)
		} else {
			a.MOVW(r.As16(), m)
		}
	case 4:
		a.VMOVD(v, m)
	case 8:
		a.VMOVQ(v, m)
	}
}

// A place is where a group of elements lies: a whole group, or with k (AVX-512) the elements that
// the mask names.
type place struct {
	mem operand.Mem
	k   reg.Register
}

// quads are the 64-bit constants of a file, labels the count of unique labels.
var (
	quads  = map[*build.Context]map[string]operand.Mem{}
	labels int
)

// quad is the memory of a named 64-bit constant.
func (a *asm) quad(name string, v uint64) operand.Mem {
	if quads[a.Context] == nil {
		quads[a.Context] = map[string]operand.Mem{}
	}
	m, ok := quads[a.Context][name]
	if !ok {
		m = a.ConstData(name, operand.U64(v))
		quads[a.Context][name] = m
	}
	return m
}

// unique returns a label that no other call returns.
func (a *asm) unique(name string) string {
	labels++
	return fmt.Sprintf("%s%d", name, labels)
}

// retMem is the memory of the only result.
func (a *asm) retMem() operand.Mem {
	b, err := a.ReturnIndex(0).Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}
