package simd

import (
	"fmt"
	"math"
	"unsafe"
)

// MaxRows is the largest number of rows of a WeightedSum.
const MaxRows = 64

// A foldOp is the step that takes an accumulator and one more row to the next accumulator.
type foldOp uint8

const (
	foldFMA foldOp = iota // floats: acc = fma(w, x, acc)
	foldMul               // floats: acc = acc * x
	foldMin               // floats: acc = min(acc, x), after both were XORed with flip

	foldIntSum  // integers, wrapping
	foldIntProd // integers, wrapping
	foldMinS    // signed and unsigned extrema
	foldMaxS
	foldMinU
	foldMaxU

	foldScaled64 // F64: acc = fma(flip, x, acc)
)

// A fold is the one shape behind WeightedSum, PlainSum, Scale and Reduce: every column of the
// output starts at init, takes op with each row in turn, and is finished (flip, divide, canonical
// NaN) and rounded once. The accumulators of a block of columns stay in registers over all rows.
//
// init, flip and div are bit patterns of the accumulator's type, repeated to 64 bits. flip is 0
// unless the operator uses it; div of 0 means no division.
type fold struct {
	t    Type
	op   foldOp
	out  unsafe.Pointer
	rows []unsafe.Pointer
	w    []float32 // foldFMA on a type other than F64: one weight a row
	init uint64
	flip uint64
	div  uint64
}

// Patterns of 64 bits that hold a value once or twice.
func splat32(x float32) uint64 { return uint64(math.Float32bits(x)) * 0x1_0000_0001 }

const negZero32 = 0x80000000_80000000

// ones are the weights of a plain sum.
var ones = func() (w [MaxRows + 2]float32) {
	for i := range w {
		w[i] = 1
	}
	return w
}()

// WeightedSum computes out[i] = round(sum over k of w[k]*rows[k][i]) for n elements of type t
// (BF16, F16 or F32): fp32 fused multiply-adds, k ascending, starting from +0, and one rounding to
// t at the end. With biases the sum starts instead from bias[0][i], or bias[0][i]+bias[1][i], and
// so on, added in fp32.
//
// len(rows) equals len(w) and is at most MaxRows; a nil entry of rows or bias is skipped with its
// weight. With nothing to add the result is +0. Rows and biases are borrowed for the call, need no
// alignment, and may be equal to out but must not otherwise overlap it.
func WeightedSum(t Type, out unsafe.Pointer, n int, rows []unsafe.Pointer, w []float32, bias []unsafe.Pointer) {
	if len(rows) != len(w) {
		panic(fmt.Sprintf("simd: %d rows and %d weights", len(rows), len(w)))
	}
	sum(t, out, n, rows, w, bias)
}

// PlainSum is WeightedSum with every weight 1, that is with fp32 additions.
func PlainSum(t Type, out unsafe.Pointer, n int, rows []unsafe.Pointer, bias []unsafe.Pointer) {
	if len(rows) > MaxRows {
		panic(fmt.Sprintf("simd: %d rows, at most %d", len(rows), MaxRows))
	}
	sum(t, out, n, rows, ones[:len(rows)], bias)
}

func sum(t Type, out unsafe.Pointer, n int, rows []unsafe.Pointer, w []float32, bias []unsafe.Pointer) {
	if t > F32 {
		panic("simd: sum of " + t.String() + " rows")
	}
	if len(rows) > MaxRows || len(bias) > MaxRows {
		panic(fmt.Sprintf("simd: %d rows and %d biases, at most %d", len(rows), len(bias), MaxRows))
	}
	if n == 0 {
		return
	}
	f := fold{t: t, op: foldFMA, out: out, rows: rows, w: w}
	if len(bias) == 0 && !hasNil(rows) {
		f.run(n)
		return
	}
	// The biases become the first rows, with weight 1. Starting from -0, the identity of addition,
	// the first of them is taken as it is, signed zeros included.
	var allRows [2 * MaxRows]unsafe.Pointer
	var allW [2 * MaxRows]float32
	k := 0
	for _, b := range bias {
		if b != nil {
			allRows[k], allW[k] = b, 1
			k++
		}
	}
	if k > 0 {
		f.init = negZero32
	}
	for i, r := range rows {
		if r != nil {
			allRows[k], allW[k] = r, w[i]
			k++
		}
	}
	f.rows, f.w = allRows[:k], allW[:k]
	f.run(n)
}

func hasNil(p []unsafe.Pointer) bool {
	for _, x := range p {
		if x == nil {
			return true
		}
	}
	return false
}

// Scale computes out[i] = round(w*in[i]) for n elements of type t (BF16, F16 or F32): an fp32
// product, then one rounding to t. out may equal in.
func Scale(t Type, out, in unsafe.Pointer, n int, w float32) {
	if t > F32 {
		panic("simd: scale of " + t.String())
	}
	if n == 0 {
		return
	}
	// A product fused with the addition of -0 is the product, signed zeros included.
	rows, ws := [1]unsafe.Pointer{in}, [1]float32{w}
	f := fold{t: t, op: foldFMA, out: out, rows: rows[:], w: ws[:], init: negZero32}
	f.run(n)
}

// Reduce computes dst[i] = srcs[0][i] op srcs[1][i] op ... in that order. All slices hold
// len(dst)/t.Size() elements of t, in memory order and of any alignment; dst may be one of srcs but
// must not otherwise overlap one.
//
// BF16, F16, E4M3 and E5M2 accumulate in fp32 and round once at the end; F32 and F64 accumulate in
// their own type; integers wrap. Min and Max of floats order -0 below +0 and return NaN if any
// source is NaN.
//
// With avg, which requires Sum, the sum is divided by len(srcs) before the one rounding: floats by
// an fp32 (F64: fp64) division; integers as the exact sum, which does not wrap, divided with
// truncation toward zero.
//
// The sum and the maximum of Bool are OR, the product and the minimum are AND; results are 0 or 1.
//
// It panics if srcs is empty or a length differs.
func Reduce(op Op, t Type, avg bool, dst []byte, srcs ...[]byte) {
	n := 0
	if avg {
		n = len(srcs)
	}
	reduceBy(op, t, n, dst, srcs)
}

// Mean computes the sum of srcs as [Reduce] does, divided by n before the one rounding. t is a type of floats.
func Mean(t Type, n int, dst []byte, srcs ...[]byte) {
	if !t.Float() || n < 1 {
		panic(fmt.Sprintf("simd: mean of %d of %v", n, t))
	}
	reduceBy(Sum, t, n, dst, srcs)
}

// reduceBy divides the sum by so many, if that is not 0.
func reduceBy(op Op, t Type, by int, dst []byte, srcs [][]byte) {
	if by > 0 && (op != Sum || t == Bool) {
		panic("simd: average of " + op.String() + " of " + t.String())
	}
	var few [MaxRows]unsafe.Pointer
	f, n := foldOf(t, dst, srcs, few[:0])
	switch {
	case n == 0:
	case t.Float():
		f.setFloatOp(op)
		if by > 0 {
			f.setDiv(by)
		}
		f.run(n)
	case by > 0:
		f.averageInts(n)
	case t == Bool:
		f.reduceBools(op, n)
	default:
		f.setIntOp(op)
		f.run(n)
	}
}

// PreMulSum computes dst[i] = scalar*srcs[0][i] + scalar*srcs[1][i] + ... in that order: one fused
// multiply-add a source, from +0, and otherwise as [Reduce] with Sum. scalar points to a number of the
// accumulator's type: fp32 for BF16, F16, E4M3 and E5M2, else t. It panics for Bool.
func PreMulSum(t Type, scalar unsafe.Pointer, dst []byte, srcs ...[]byte) {
	if t == Bool {
		panic("simd: a pre-multiplied sum of bool")
	}
	var few [MaxRows]unsafe.Pointer
	f, n := foldOf(t, dst, srcs, few[:0])
	switch {
	case n == 0:
	case t == F64:
		f.op, f.flip = foldScaled64, view[uint64](scalar, 0, 1)[0]
		f.run(n)
	case t.Float():
		var some [MaxRows]float32
		w := some[:]
		if len(srcs) > len(some) {
			w = make([]float32, len(srcs))
		}
		for k := range srcs {
			w[k] = view[float32](scalar, 0, 1)[0]
		}
		f.op, f.w = foldFMA, w
		f.run(n)
	default:
		// Wrapping products distribute over wrapping sums.
		f.setIntOp(Sum)
		f.run(n)
		f.apply(foldIntProd, loadInt(t, scalar), n)
	}
}

// foldOf is a fold of n elements without an operator; its row table is few, unless that is too short.
func foldOf(t Type, dst []byte, srcs [][]byte, few []unsafe.Pointer) (f fold, n int) {
	if len(srcs) == 0 || len(dst)%t.Size() != 0 {
		panic(fmt.Sprintf("simd: reduce %d sources into %d bytes of %v", len(srcs), len(dst), t))
	}
	rows := few
	if len(srcs) > cap(few) {
		rows = make([]unsafe.Pointer, 0, len(srcs))
	}
	for _, s := range srcs {
		if len(s) != len(dst) {
			panic(fmt.Sprintf("simd: reduce a source of %d bytes into %d", len(s), len(dst)))
		}
		rows = append(rows, unsafe.Pointer(unsafe.SliceData(s)))
	}
	return fold{t: t, out: unsafe.Pointer(unsafe.SliceData(dst)), rows: rows}, len(dst) / t.Size()
}

// apply takes every element of an integer output to x op that element.
func (f *fold) apply(op foldOp, x uint64, n int) {
	rows := [1]unsafe.Pointer{f.out}
	g := fold{t: f.t, op: op, out: f.out, rows: rows[:], init: f.lanes(x)}
	g.run(n)
}

// reduceBools takes the greatest or the least of the bytes, and of that and 1 the lesser.
func (f *fold) reduceBools(op Op, n int) {
	f.t = U8
	switch op {
	case Sum, Max:
		f.setIntOp(Max)
	default:
		f.setIntOp(Min)
	}
	f.run(n)
	f.apply(foldMinU, 1, n)
}

// setFloatOp chooses the step, and as init its identity, so that the first row is taken as it is.
func (f *fold) setFloatOp(op Op) {
	wide := f.t == F64
	pattern := func(x float64) uint64 {
		if wide {
			return math.Float64bits(x)
		}
		return splat32(float32(x))
	}
	switch op {
	case Sum:
		f.op, f.init = foldFMA, pattern(math.Copysign(0, -1))
		if f.w = ones[:]; len(f.rows) > len(ones) && !wide {
			f.w = make([]float32, len(f.rows))
			for i := range f.w {
				f.w[i] = 1
			}
		}
	case Prod:
		f.op, f.init = foldMul, pattern(1)
	case Min:
		f.op, f.init = foldMin, pattern(math.Inf(1))
	case Max: // the minimum of the negated values, negated
		f.op, f.init = foldMin, pattern(math.Inf(1))
		f.flip = pattern(math.Copysign(0, -1))
	default:
		panic("simd: " + op.String())
	}
}

func (f *fold) setDiv(n int) {
	if f.t == F64 {
		f.div = math.Float64bits(float64(n))
	} else {
		f.div = splat32(float32(n))
	}
}

// lanes repeats one element's pattern to 64 bits.
func (f *fold) lanes(x uint64) uint64 {
	for s := 8 * f.t.Size(); s < 64; s *= 2 {
		x |= x << s
	}
	return x
}

func loadInt(t Type, p unsafe.Pointer) uint64 {
	switch t.Size() {
	case 1:
		return uint64(view[uint8](p, 0, 1)[0])
	case 2:
		return uint64(view[uint16](p, 0, 1)[0])
	case 4:
		return uint64(view[uint32](p, 0, 1)[0])
	default:
		return view[uint64](p, 0, 1)[0]
	}
}

// setIntOp chooses the step and its identity.
func (f *fold) setIntOp(op Op) {
	all := ^uint64(0) >> (64 - 8*f.t.Size())
	signed := f.t <= I64
	switch {
	case op == Sum:
		f.op = foldIntSum
	case op == Prod:
		f.op, f.init = foldIntProd, f.lanes(1)
	case op == Min && signed:
		f.op, f.init = foldMinS, f.lanes(all>>1)
	case op == Max && signed:
		f.op, f.init = foldMaxS, f.lanes(all>>1+1)
	case op == Min:
		f.op, f.init = foldMinU, f.lanes(all)
	case op == Max:
		f.op = foldMaxU
	default:
		panic("simd: " + op.String())
	}
}
