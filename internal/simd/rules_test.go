package simd

import (
	"bytes"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// bytesOf returns the memory of x.
func bytesOf[T any](x []T) []byte {
	var z T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(z)))
}

func reduce[T any](op Op, t Type, avg bool, srcs ...[]T) []T {
	dst := make([]T, len(srcs[0]))
	var raw [][]byte
	for _, s := range srcs {
		raw = append(raw, bytesOf(s))
	}
	Reduce(op, t, avg, bytesOf(dst), raw...)
	return dst
}

func bitsOf(x []float32) []uint32 { return unsafe.Slice((*uint32)(unsafe.Pointer(&x[0])), len(x)) }

func TestFloatRules(t *testing.T) {
	negZero, inf, nan := float32(math.Copysign(0, -1)), float32(math.Inf(1)), math.Float32frombits(0xFF800001)
	const canon = 0x7FFFFFFF
	f := math.Float32bits
	a := []float32{0, negZero, negZero, nan, 1, inf, 0x1p-149, -inf, 3}
	b := []float32{negZero, 0, negZero, 1, nan, 1, 0, inf, -2}
	for _, c := range []struct {
		op   Op
		want []uint32
	}{
		{Sum, []uint32{0, 0, signF32, canon, canon, f(inf), 1, canon, f(1)}},
		{Prod, []uint32{signF32, signF32, 0, canon, canon, f(inf), 0, f(-inf), f(-6)}},
		{Min, []uint32{signF32, signF32, signF32, canon, canon, f(1), 0, f(-inf), f(-2)}},
		{Max, []uint32{0, 0, signF32, canon, canon, f(inf), 1, f(inf), f(3)}},
	} {
		t.Run(c.op.String(), func(t *testing.T) {
			eachPath(t, func(t *testing.T) {
				if diff := cmp.Diff(c.want, bitsOf(reduce(c.op, F32, false, a, b))); diff != "" {
					t.Errorf("fp32 (-want +got)\n%s", diff)
				}
				// fp64 has the same rules, and one source is taken as it is but for its NaNs.
				wide := func(x []float32) []float64 {
					out := make([]float64, len(x))
					for i := range x {
						out[i] = float64(x[i])
					}
					return out
				}
				got := reduce(c.op, F64, false, wide(a), wide(b))
				for i, w := range c.want {
					want := math.Float64bits(float64(math.Float32frombits(w)))
					if w == canon {
						want = NaNF64
					}
					if math.Float64bits(got[i]) != want {
						t.Errorf("fp64 %g and %g: %#x, want %#x", a[i], b[i], math.Float64bits(got[i]), want)
					}
				}
				want := bytes.Clone(bytesOf(a))
				*(*uint32)(unsafe.Pointer(&want[3*4])) = canon
				if got := bytesOf(reduce(c.op, F32, false, a)); !bytes.Equal(got, want) {
					t.Errorf("one source: % x, want % x", got, want)
				}
			})
		})
	}
}

// TestOneRounding adds numbers of which every partial sum would round to the first in the storage
// type.
func TestOneRounding(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		one, small := BF16FromF32(1), BF16FromF32(0x1p-8)
		got := reduce(Sum, BF16, false, []uint16{one}, []uint16{small}, []uint16{small}, []uint16{small})[0]
		if want := BF16FromF32(1 + 3*0x1p-8); got != want {
			t.Errorf("1 + 3*2^-8 in bf16: %#x, want %#x", got, want)
		}
		e := []uint8{E4M3FromF32(400)}
		if got := E4M3ToF32(reduce(Sum, E4M3, false, e, e)[0]); got != 448 {
			t.Errorf("400 + 400 in e4m3: %g, want 448", got)
		}
		if got := E4M3ToF32(reduce(Sum, E4M3, true, e, e)[0]); got != E4M3ToF32(e[0]) {
			t.Errorf("average of 400 and 400 in e4m3: %g", got)
		}
		x := []float32{1}
		if got := reduce(Sum, F32, true, x, x, x)[0]; got != 1 {
			t.Errorf("average of ones: %g", got)
		}
		third := reduce(Sum, F32, true, []float32{1}, []float32{0}, []float32{0})[0]
		if third != float32(1)/3 {
			t.Errorf("average of 1, 0, 0: %g", third)
		}
	})
}

func testAverage[T signed | unsigned](t *testing.T, typ Type) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, uint64(typ)))
	for range 200 {
		k := 1 + r.IntN(9)
		srcs := make([][]T, k)
		for i := range srcs {
			srcs[i] = make([]T, 7)
			for j := range srcs[i] {
				srcs[i][j] = T(r.Uint64() >> (r.IntN(3) * 20))
				if r.IntN(3) == 0 { // an extreme
					srcs[i][j] = T(1) << (8*typ.Size() - 1)
					srcs[i][j] -= T(r.IntN(2))
				}
			}
		}
		got := reduce(Sum, typ, true, srcs...)
		for j := range got {
			sum := new(big.Int)
			for _, s := range srcs {
				x := new(big.Int)
				if s[j] < 0 {
					x.SetInt64(int64(s[j]))
				} else {
					x.SetUint64(uint64(s[j]))
				}
				sum.Add(sum, x)
			}
			sum.Quo(sum, big.NewInt(int64(k)))
			g := new(big.Int).SetUint64(uint64(got[j]))
			if got[j] < 0 {
				g.SetInt64(int64(got[j]))
			}
			if g.Cmp(sum) != 0 {
				t.Fatalf("average of %d %v: %v, want %v", k, typ, g, sum)
			}
		}
	}
}

func TestIntegerAverage(t *testing.T) {
	testAverage[int8](t, I8)
	testAverage[int16](t, I16)
	testAverage[int32](t, I32)
	testAverage[int64](t, I64)
	testAverage[uint8](t, U8)
	testAverage[uint16](t, U16)
	testAverage[uint32](t, U32)
	testAverage[uint64](t, U64)
}

// TestPreMulSum: one multiply-add a source, which rounds once, from +0; integers wrap.
func TestPreMulSum(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		scaled := func(typ Type, scalar, dst []byte, srcs ...[]byte) { PreMulSum(typ, pointer(scalar), dst, srcs...) }
		s, zero := float32(1+0x1p-12), float32(math.Copysign(0, -1))
		got := []float32{7, 7}
		scaled(F32, bytesOf([]float32{s}), bytesOf(got), bytesOf([]float32{-1, zero}), bytesOf([]float32{s, zero}))
		product := s * s
		if want := FMA32(s, s, -s); got[0] != want || want == product-s || math.Float32bits(got[1]) != 0 {
			t.Errorf("fp32: %v, want %v and +0", got, want)
		}
		wide, third := []float64{0}, 1/3.0
		scaled(F64, bytesOf([]float64{third}), bytesOf(wide), bytesOf([]float64{-3}), bytesOf([]float64{3 + 0x1p-50}))
		if want := math.FMA(third, 3+0x1p-50, math.FMA(third, -3, 0)); wide[0] != want {
			t.Errorf("fp64: %v, want %v", wide[0], want)
		}
		halves := []uint16{0}
		scaled(BF16, bytesOf([]float32{0.3}), bytesOf(halves), bytesOf([]uint16{0x3F80}), bytesOf([]uint16{0x3F81}))
		if want := BF16FromF32(FMA32(0.3, BF16ToF32(0x3F81), 0.3)); halves[0] != want {
			t.Errorf("bf16: %#x, want %#x", halves[0], want)
		}
		small := []int8{100, -100}
		scaled(I8, bytesOf([]int8{-3}), bytesOf(small), bytesOf(small), bytesOf([]int8{27, 2}))
		if want := []int8{-125, 38}; !bytes.Equal(bytesOf(small), bytesOf(want)) {
			t.Errorf("int8: %v, want %v", small, want)
		}
		large := []uint64{1<<63 + 5}
		scaled(U64, bytesOf([]uint64{3}), bytesOf(large), bytesOf(large), bytesOf([]uint64{1 << 63}))
		if large[0] != 15 {
			t.Errorf("uint64: %d", large[0])
		}
	})
}

// TestBools: every byte but 0 is true, and results are 0 or 1.
func TestBools(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		a, b := []byte{0, 0, 2, 0x80, 255}, []byte{0, 3, 0, 1, 255}
		for op, want := range map[Op][]byte{
			Sum: {0, 1, 1, 1, 1}, Max: {0, 1, 1, 1, 1}, Prod: {0, 0, 0, 1, 1}, Min: {0, 0, 0, 1, 1},
		} {
			if got := reduce(op, Bool, false, a, b); !bytes.Equal(got, want) {
				t.Errorf("%v: %v, want %v", op, got, want)
			}
		}
		if got := reduce(Min, Bool, false, a); !bytes.Equal(got, []byte{0, 0, 1, 1, 1}) {
			t.Errorf("of one: %v", got)
		}
	})
}

func TestIntegersWrap(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		if got := reduce(Sum, I8, false, []int8{127, -128}, []int8{1, -1}); !cmp.Equal(got, []int8{-128, 127}) {
			t.Errorf("int8 sum %v", got)
		}
		if got := reduce(Prod, U64, false, []uint64{1 << 63, 3}, []uint64{2, 1<<63 + 1}); !cmp.Equal(got,
			[]uint64{0, 1<<63 + 3}) {
			t.Errorf("uint64 product %v", got)
		}
		if got := reduce(Max, U64, false, []uint64{1 << 63, 3}, []uint64{2, 7}); !cmp.Equal(got, []uint64{1 << 63, 7}) {
			t.Errorf("uint64 maximum %v", got)
		}
		if got := reduce(Min, I64, false, []int64{math.MinInt64, 3}, []int64{2, -7}); !cmp.Equal(got,
			[]int64{math.MinInt64, -7}) {
			t.Errorf("int64 minimum %v", got)
		}
	})
}

// TestQuantizeArithmetic follows the written order of operations with scalars.
func TestQuantizeArithmetic(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(2, 9))
		const groups = 40
		x := make([]float32, groups*QuantGroup)
		for g := range groups {
			size := math.Ldexp(1, r.IntN(60)-40)
			for i := range QuantGroup {
				x[g*QuantGroup+i] = float32(r.NormFloat64() * size)
			}
		}
		for i := range QuantGroup { // a group of zeros, one with Inf, one with a NaN, one of a power of two
			x[i] = 0
		}
		x[QuantGroup+3] = float32(math.Inf(-1))
		x[2*QuantGroup+5] = float32(math.NaN())
		for i := range QuantGroup {
			x[3*QuantGroup+i] = 448 * 0x1p-3 / float32(i+1)
		}
		q := make([]byte, len(x))
		scales, pows, bytes := make([]float32, groups), make([]float32, groups), make([]byte, groups)
		run := func(kind ScaleKind, at unsafe.Pointer) {
			QuantizeE4M3(F32, pointer(q), at, unsafe.Pointer(&x[0]), len(x), kind)
		}
		check := func(kind ScaleKind) {
			t.Helper()
			for g := range groups {
				amax := float32(1e-4)
				for _, v := range x[g*QuantGroup : (g+1)*QuantGroup] {
					if a := float32(math.Abs(float64(v))); a > amax {
						amax = min(a, math.MaxFloat32)
					}
				}
				scale, mul := amax/448, 448/amax
				if kind != ScaleF32 {
					e := math.Ceil(math.Log2(float64(scale)))
					scale, mul = float32(math.Exp2(e)), float32(math.Exp2(-e))
				}
				got := scales[g]
				switch kind {
				case ScaleF32Pow2:
					got = pows[g]
				case ScaleUE8M0:
					got = float32(math.Ldexp(1, int(bytes[g])-127))
				}
				if got != scale {
					t.Fatalf("kind %d group %d: scale %g, want %g", kind, g, got, scale)
				}
				for i := g * QuantGroup; i < (g+1)*QuantGroup; i++ {
					if want := E4M3FromF32(x[i] * mul); q[i] != want {
						t.Fatalf("kind %d element %d: %#x, want %#x", kind, i, q[i], want)
					}
				}
			}
		}
		run(ScaleF32, unsafe.Pointer(&scales[0]))
		check(ScaleF32)
		if q[QuantGroup+3] != 0xFE || q[2*QuantGroup+5] != NaNE4M3 {
			t.Errorf("-Inf is %#x, NaN %#x", q[QuantGroup+3], q[2*QuantGroup+5])
		}
		run(ScaleF32Pow2, unsafe.Pointer(&pows[0]))
		check(ScaleF32Pow2)
		if pows[3] != 0x1p-3 {
			t.Errorf("scale of a power of two: %g, want 1/8", pows[3])
		}
		run(ScaleUE8M0, pointer(bytes))
		check(ScaleUE8M0)
	})
}

func TestNoAllocations(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		const n = 130
		a, b, out := make([]byte, 8*n), make([]byte, 8*n), make([]byte, 8*n+64)
		rows := []unsafe.Pointer{pointer(a), nil, pointer(b)}
		w := []float32{1, 2, 3}
		bias := []unsafe.Pointer{pointer(a), pointer(b)}
		dsts := []unsafe.Pointer{pointer(out)}
		unaligned := []unsafe.Pointer{unsafe.Add(pointer(out), 1)}
		srcs := [][]byte{a, b}
		for name, f := range map[string]func(){
			"WeightedSum": func() { WeightedSum(BF16, pointer(out), n, rows, w, bias) },
			"PlainSum":    func() { PlainSum(BF16, pointer(out), n, rows[:1], nil) },
			"Scale":       func() { Scale(BF16, pointer(out), pointer(a), n, 2) },
			"Reduce":      func() { Reduce(Max, BF16, false, out[:8*n], srcs...) },
			"Average":     func() { Reduce(Sum, I64, true, out[:8*n], srcs...) },
			"Bools":       func() { Reduce(Sum, Bool, false, out[:8*n], srcs...) },
			"PreMulSum":   func() { PreMulSum(E4M3, pointer(a), out[:8*n], srcs...) },
			"Products":    func() { PreMulSum(I16, pointer(a), out[:8*n], srcs...) },
			"Dot":         func() { Dot(F32, pointer(a), pointer(b), n) },
			"Quantize":    func() { QuantizeE4M3(BF16, pointer(out), pointer(b), pointer(a), 128, ScaleUE8M0) },
			"FanOut":      func() { FanOut(dsts, pointer(a), 8*n, true) },
			"Unaligned":   func() { FanOut(unaligned, pointer(a), 8*n, true) },
			"Copy":        func() { Copy(pointer(out), pointer(a), 8*n, true) },
			"Zero":        func() { Zero(pointer(out), 8*n, true) },
		} {
			if got := testing.AllocsPerRun(10, f); got != 0 {
				t.Errorf("%s allocates %v times", name, got)
			}
		}
	})
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		best isa
		env  string
		want isa
	}{
		{avx512, "", avx512},
		{avx512, "avx2", avx2},
		{avx512, "portable", portable},
		{avx2, "avx512", avx2},
		{portable, "avx2", portable},
		{avx2, "neon", avx2},
	} {
		if got := choose(c.best, c.env); got != c.want {
			t.Errorf("best %v, WEFT_SIMD=%q: %v, want %v", c.best, c.env, got, c.want)
		}
	}
	if Path() != active.String() {
		t.Errorf("path %q, want %q", Path(), active)
	}
}

func TestMisuse(t *testing.T) {
	b := make([]byte, 16)
	p := pointer(b)
	for name, f := range map[string]func(){
		"weights":            func() { WeightedSum(F32, p, 1, []unsafe.Pointer{p}, nil, nil) },
		"sum of fp64":        func() { WeightedSum(F64, p, 1, nil, nil, nil) },
		"too many rows":      func() { PlainSum(F32, p, 1, make([]unsafe.Pointer, MaxRows+1), nil) },
		"no sources":         func() { Reduce(Sum, F32, false, b) },
		"lengths":            func() { Reduce(Sum, F32, false, b, b[:4]) },
		"fraction":           func() { Reduce(Sum, F32, false, b[:3], b[:3]) },
		"average of product": func() { Reduce(Prod, F32, true, b, b) },
		"average of bool":    func() { Reduce(Sum, Bool, true, b, b) },
		"scaled bool":        func() { PreMulSum(Bool, p, b, b) },
		"part of a group":    func() { QuantizeE4M3(F32, p, p, p, 64, ScaleF32) },
		"dot of fp8":         func() { Dot(E4M3, p, p, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		})
	}
	Pause()
}
