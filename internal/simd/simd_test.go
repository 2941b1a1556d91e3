package simd

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// with runs f on one path.
func with(p isa, f func()) {
	defer func(old isa) { active = old }(active)
	active = p
	f()
}

// eachPath runs a subtest on every path; those that the machine lacks are skipped by name.
func eachPath(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	for p := range isa(len(isaNames)) {
		t.Run(p.String(), func(t *testing.T) {
			if p > best {
				t.Skipf("this machine has no %v", p)
			}
			with(p, func() { f(t) })
		})
	}
}

// failer is what *testing.T and *rapid.T share.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// agree runs f, which fills out, on every path and requires the bytes of the portable one.
func agree(t failer, out []byte, describe string, f func()) {
	t.Helper()
	before := bytes.Clone(out)
	var want []byte
	for p := portable; p <= best; p++ {
		copy(out, before)
		with(p, f)
		if p == portable {
			want = bytes.Clone(out)
			continue
		}
		if !bytes.Equal(out, want) {
			i := 0
			for out[i] == want[i] {
				i++
			}
			t.Fatalf("%s: %v differs from portable from byte %d of %d: % x, want % x",
				describe, p, i, len(out), out[i:min(i+8, len(out))], want[i:min(i+8, len(out))])
		}
	}
}

func pointer(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// Interesting patterns of each float type: zeros, subnormals, the extremes, values about rounding
// ties, infinities, NaNs.
var (
	special8  = []uint64{0, 0x80, 1, 0x81, 7, 8, 0x38, 0x77, 0x78, 0x7B, 0x7C, 0x7D, 0x7E, 0x7F, 0xFB, 0xFC, 0xFE, 0xFF}
	special16 = []uint64{
		0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x3FF, 0x400, 0x3C00, 0x3F80, 0xBF80, 0x7BFF, 0x7C00, 0xFC00, 0x7C01, 0x7E00,
		0x7F7F, 0x7F80, 0xFF80, 0x7F81, 0x7FC0, 0x7FFF, 0xFFFF, 0xFF81,
	}
	special32 = []uint64{
		0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x00FFFFFF, 0x33000000, 0x33000001, 0x33800000, 0x387FC000,
		0x387FE000, 0x387FF000, 0x38800000, 0x3C7FFFFF, 0x3C800000, 0x3F800000, 0xBF800000, 0x3F808000, 0x3F818000,
		0x3F807FFF, 0x3F801000, 0x3F803000, 0x3F880000, 0x3F900000, 0x43E00000, 0x43E80000, 0x43E7FFFF, 0x477FE000,
		0x477FEFFF, 0x477FF000, 0x47600000, 0x47700000, 0x4B800000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000,
		0xFF800000, 0x7F800001, 0x7FBFFFFF, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFC00001,
	}
	special64 = []uint64{
		0, 1 << 63, 1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x3FF0000000000000, 0xBFF0000000000000, 0x7FEFFFFFFFFFFFFF,
		0x7FF0000000000000, 0xFFF0000000000000, 0x7FF0000000000001, 0x7FF8000000000000, 0xFFFFFFFFFFFFFFFF,
		0x3FF0000010000000, 0x3FF0000030000000, 0x3FF0000010000001, 0x380FFFFFF0000000, 0x36A0000000000000,
		0x3690000000000000, 0x3690000000000001, 0x47EFFFFFE0000000, 0x47EFFFFFF0000000, 0x47EFFFFFEFFFFFFF,
		0x3FF0100000000001, 0x3FF0080000000001, 0x407C000000000000, 0x40EC000000000001, 0x40EFFC0000000000,
	}
)

// fill writes patterns of type t: special ones, random bits, and numbers of ordinary size.
func fill(r *rand.Rand, t Type, b []byte) {
	size := t.Size()
	for off := 0; off+size <= len(b); off += size {
		var x uint64
		special := [...][]uint64{1: special8, 2: special16, 4: special32, 8: special64}[size]
		switch mode := r.IntN(8); {
		case mode == 0 || mode == 1 && r.IntN(4) == 0:
			x = special[r.IntN(len(special))]
		case mode <= 2:
			x = r.Uint64()
		default:
			v := float32(r.NormFloat64()) * float32(math.Ldexp(1, r.IntN(9)-4))
			switch t {
			case BF16:
				x = uint64(BF16FromF32(v))
			case F16:
				x = uint64(F16FromF32(v))
			case F32:
				x = uint64(math.Float32bits(v))
			case F64:
				x = math.Float64bits(float64(v) * (1 + r.Float64()))
			case E4M3:
				x = uint64(E4M3FromF32(v))
			case E5M2:
				x = uint64(E5M2FromF32(v))
			default:
				x = r.Uint64() >> r.IntN(64)
			}
		}
		for i := range size {
			b[off+i] = byte(x >> (8 * i))
		}
	}
}

// lengths draws counts around the widths of vectors and blocks.
func lengths() *rapid.Generator[int] {
	return rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(41, 600),
		rapid.Custom(func(t *rapid.T) int {
			return max(0, 64*rapid.IntRange(1, 20).Draw(t, "blocks")+rapid.IntRange(-2, 2).Draw(t, "off"))
		}))
}

// A yard hands out areas whose surroundings must not change, and must not be read where the system
// can forbid that.
type yard struct {
	areas []area
}

type area struct {
	whole       []byte
	first, last int
}

const margin = 96

// area returns n bytes at an odd place if aligned is false.
func (y *yard) area(r *rand.Rand, n int) []byte {
	a := area{whole: make([]byte, n+2*margin)}
	for i := range a.whole {
		a.whole[i] = 0xA5
	}
	a.first = margin - r.IntN(margin)
	a.last = a.first + n
	y.areas = append(y.areas, a)
	return a.whole[a.first:a.last:a.last]
}

func (y *yard) check(t failer) {
	t.Helper()
	for _, a := range y.areas {
		for i, b := range a.whole {
			if (i < a.first || i >= a.last) && b != 0xA5 {
				t.Fatalf("byte %d of an area of %d was written", i-a.first, a.last-a.first)
			}
		}
	}
}

func seeded(t *rapid.T) *rand.Rand {
	return rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
}

var (
	sumTypes = []Type{BF16, F16, F32}
	allTypes = []Type{BF16, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, E4M3, E5M2}
)

func TestWeightedSumPaths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := seeded(t)
		typ := rapid.SampledFrom(sumTypes).Draw(t, "type")
		n := lengths().Draw(t, "n")
		k := rapid.OneOf(rapid.IntRange(0, 10), rapid.IntRange(0, MaxRows)).Draw(t, "k")
		biases := rapid.IntRange(0, 3).Draw(t, "biases")
		plain := rapid.Bool().Draw(t, "plain")
		holes := rapid.Bool().Draw(t, "holes")
		var y yard
		row := func() unsafe.Pointer {
			if holes && r.IntN(3) == 0 {
				return nil
			}
			b := y.area(r, n*typ.Size())
			fill(r, typ, b)
			return pointer(b)
		}
		rows, w, bias := make([]unsafe.Pointer, k), make([]float32, k), make([]unsafe.Pointer, biases)
		for i := range rows {
			rows[i], w[i] = row(), r.Float32()
			if r.IntN(8) == 0 {
				w[i] = math.Float32frombits(uint32(special32[r.IntN(len(special32))]))
			}
		}
		for i := range bias {
			bias[i] = row()
		}
		out := y.area(r, n*typ.Size())
		if k > 0 && rows[k-1] != nil && r.IntN(3) == 0 { // in place
			out = unsafe.Slice((*byte)(rows[k-1]), n*typ.Size())
		}
		agree(t, out, fmt.Sprintf("%v n=%d k=%d", typ, n, k), func() {
			if plain {
				PlainSum(typ, pointer(out), n, rows, bias)
			} else {
				WeightedSum(typ, pointer(out), n, rows, w, bias)
			}
		})
		y.check(t)
	})
}

// TestWeightedSumOrder computes the contract element by element.
func TestWeightedSumOrder(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(7, 7))
		for _, typ := range sumTypes {
			const n, k = 203, 9
			rows, w := make([]unsafe.Pointer, k), make([]float32, k)
			wide := make([][]float32, k+2)
			for i := range wide {
				b := make([]byte, n*typ.Size())
				fill(r, typ, b)
				wide[i] = make([]float32, n)
				widen(typ, wide[i], pointer(b), 0)
				if i < k {
					rows[i], w[i] = pointer(b), r.Float32()-0.5
				} else {
					rows = append(rows, pointer(b))
				}
			}
			bias := rows[k:]
			rows = rows[:k]
			got, want := make([]byte, n*typ.Size()), make([]byte, n*typ.Size())
			for biases := range 3 {
				WeightedSum(typ, pointer(got), n, rows, w, bias[:biases])
				sums := make([]float32, n)
				for i := range sums {
					switch biases {
					case 1:
						sums[i] = wide[k][i]
					case 2:
						sums[i] = wide[k][i] + wide[k+1][i]
					}
					for j := range k {
						sums[i] = FMA32(w[j], wide[j][i], sums[i])
					}
				}
				narrow(typ, pointer(want), 0, sums)
				if !bytes.Equal(got, want) {
					t.Errorf("%v with %d biases differs", typ, biases)
				}
			}
		}
	})
}

func TestSumsOfNothing(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		negZero := []float32{float32(math.Copysign(0, -1))}
		p := unsafe.Pointer(&negZero[0])
		out := []float32{7}
		at := unsafe.Pointer(&out[0])
		check := func(what string, want uint32) {
			t.Helper()
			if got := math.Float32bits(out[0]); got != want {
				t.Errorf("%s: %#x, want %#x", what, got, want)
			}
			out[0] = 7
		}
		WeightedSum(F32, at, 1, nil, nil, nil)
		check("no rows", 0)
		WeightedSum(F32, at, 1, []unsafe.Pointer{nil, nil}, []float32{1, 2}, nil)
		check("skipped rows", 0)
		WeightedSum(F32, at, 1, nil, nil, []unsafe.Pointer{p})
		check("bias -0", signF32)
		WeightedSum(F32, at, 1, nil, nil, []unsafe.Pointer{nil})
		check("skipped bias", 0)
		PlainSum(F32, at, 1, []unsafe.Pointer{p}, nil)
		check("+0 + -0", 0)
		Scale(F32, at, p, 1, 3)
		check("3 * -0", signF32)
		Scale(F32, at, p, 1, -3)
		check("-3 * -0", 0)
	})
}

func TestScalePaths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := seeded(t)
		typ := rapid.SampledFrom(sumTypes).Draw(t, "type")
		n := lengths().Draw(t, "n")
		var y yard
		in, out := y.area(r, n*typ.Size()), y.area(r, n*typ.Size())
		fill(r, typ, in)
		w := r.Float32() * 3
		if r.IntN(4) == 0 {
			w = math.Float32frombits(uint32(special32[r.IntN(len(special32))]))
		}
		agree(t, out, typ.String(), func() { Scale(typ, pointer(out), pointer(in), n, w) })
		y.check(t)
		x, want := make([]float32, n), make([]byte, len(out))
		widen(typ, x, pointer(in), 0)
		for i := range x {
			x[i] *= w
		}
		narrow(typ, pointer(want), 0, x)
		if !bytes.Equal(out, want) {
			t.Fatalf("%v: not the rounded product", typ)
		}
	})
}

func TestReducePaths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := seeded(t)
		typ := rapid.SampledFrom(append(allTypes, Bool)).Draw(t, "type")
		op := rapid.SampledFrom([]Op{Sum, Prod, Min, Max}).Draw(t, "op")
		avg := op == Sum && typ != Bool && rapid.Bool().Draw(t, "avg")
		scaled := op == Sum && !avg && typ != Bool && rapid.Bool().Draw(t, "scaled")
		scalar := make([]byte, 8)
		if typ == F64 || !typ.Float() {
			fill(r, typ, scalar)
		} else {
			fill(r, F32, scalar)
		}
		n := lengths().Draw(t, "n")
		k := rapid.OneOf(rapid.IntRange(1, 9), rapid.IntRange(1, 80)).Draw(t, "k")
		var y yard
		srcs := make([][]byte, k)
		for i := range srcs {
			srcs[i] = y.area(r, n*typ.Size())
			fill(r, typ, srcs[i])
		}
		dst := y.area(r, n*typ.Size())
		if r.IntN(3) == 0 {
			dst = srcs[r.IntN(k)]
		}
		describe := fmt.Sprintf("%v of %d x %d %v, avg %t, scaled %t", op, k, n, typ, avg, scaled)
		agree(t, dst, describe, func() {
			if scaled {
				PreMulSum(typ, pointer(scalar), dst, srcs...)
			} else {
				Reduce(op, typ, avg, dst, srcs...)
			}
		})
		y.check(t)
	})
}

// TestLongRows crosses the bound on one call into assembly.
func TestLongRows(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const n = 400_003
	for _, typ := range []Type{BF16, F64, I8} {
		a, b, out := make([]byte, n*typ.Size()), make([]byte, n*typ.Size()), make([]byte, n*typ.Size())
		fill(r, typ, a)
		fill(r, typ, b)
		agree(t, out, typ.String(), func() { Reduce(Sum, typ, false, out, a, b) })
		for _, stream := range []bool{false, true} {
			clear(out)
			Copy(pointer(out), pointer(a), len(a), stream)
			StoreFence()
			if !bytes.Equal(out, a) {
				t.Fatalf("copy of %d bytes, stream %t", len(a), stream)
			}
			Zero(pointer(out), len(a), stream)
			StoreFence()
			if !bytes.Equal(out, make([]byte, len(out))) {
				t.Fatalf("zero of %d bytes, stream %t", len(a), stream)
			}
		}
	}
}

func TestDotPaths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := seeded(t)
		typ := rapid.SampledFrom(sumTypes).Draw(t, "type")
		n := lengths().Draw(t, "n")
		var y yard
		a, b := y.area(r, n*typ.Size()), y.area(r, n*typ.Size())
		fill(r, typ, a)
		fill(r, typ, b)
		if rapid.Bool().Draw(t, "finite") {
			for _, s := range [][]byte{a, b} {
				x := make([]float32, n)
				for i := range x {
					x[i] = float32(r.NormFloat64())
				}
				narrow(typ, pointer(s), 0, x)
			}
		}
		out := make([]byte, 4)
		agree(t, out, fmt.Sprintf("%v n=%d", typ, n), func() {
			*(*float32)(pointer(out)) = Dot(typ, pointer(a), pointer(b), n)
		})
		y.check(t)
	})
}

// TestDotTinyProducts keeps an accumulator at -0 through the completed last block.
func TestDotTinyProducts(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		a, b := make([]float32, 65), make([]float32, 65)
		for i := range a {
			a[i], b[i] = -0x1p-100, 0x1p-100
		}
		got := Dot(F32, unsafe.Pointer(&a[0]), unsafe.Pointer(&b[0]), len(a))
		if math.Float32bits(got) != signF32 {
			t.Errorf("sum of -2^-200 is %#x, want -0", math.Float32bits(got))
		}
	})
}

// TestEveryPattern sums every pattern of the narrow types with values that make the sum round, or
// overflow, or a NaN.
func TestEveryPattern(t *testing.T) {
	for _, typ := range []Type{BF16, F16, E4M3, E5M2} {
		size := typ.Size()
		n := 1 << (8 * size)
		every, same, out := make([]byte, n*size), make([]byte, n*size), make([]byte, n*size)
		put := func(b []byte, i int, x uint64) {
			for j := range size {
				b[i*size+j] = byte(x >> (8 * j))
			}
		}
		special := special8
		if size == 2 {
			special = special16
		}
		for i := range n {
			put(every, i, uint64(i))
		}
		for _, x := range special {
			for i := range n {
				put(same, i, x)
			}
			for _, op := range []Op{Sum, Prod} {
				agree(t, out, fmt.Sprintf("%v of %v and %#x", op, typ, x), func() {
					Reduce(op, typ, false, out, every, same)
				})
			}
		}
	}
}

// boundaries returns for each two neighbouring values of t the middle and its fp32 neighbours, in
// both signs.
func boundaries(t Type) []float32 {
	var out []float32
	for c := range uint32(1) << (8*min(t.Size(), 2) - 1) {
		var x, y float32
		switch t {
		case BF16:
			x, y = BF16ToF32(uint16(c)), BF16ToF32(uint16(c+1))
		case F16:
			x, y = F16ToF32(uint16(c)), F16ToF32(uint16(c+1))
		case E4M3:
			x, y = E4M3ToF32(uint8(c)), E4M3ToF32(uint8(c+1))
		case E5M2:
			x, y = E5M2ToF32(uint8(c)), E5M2ToF32(uint8(c+1))
		case F32:
			x, y = math.Float32frombits(c<<17), math.Float32frombits(c<<17+0x1FFFF)
		}
		m := float32((float64(x) + float64(y)) / 2)
		up, down := math.Nextafter32(m, math.MaxFloat32), math.Nextafter32(m, 0)
		out = append(out, x, m, up, down, -x, -m, -up, -down)
	}
	return out
}

// scaleSize returns the bytes that one scale takes.
func scaleSize(k ScaleKind) int {
	if k == ScaleUE8M0 {
		return 1
	}
	return 4
}

func TestQuantizePaths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := seeded(t)
		typ := rapid.SampledFrom(sumTypes).Draw(t, "type")
		kind := rapid.SampledFrom([]ScaleKind{ScaleF32, ScaleF32Pow2, ScaleUE8M0}).Draw(t, "kind")
		groups := rapid.OneOf(rapid.IntRange(0, 5), rapid.IntRange(60, 70)).Draw(t, "groups")
		n := groups * QuantGroup
		var y yard
		src, q := y.area(r, n*typ.Size()), y.area(r, n)
		scales := y.area(r, groups*scaleSize(kind))
		if rapid.Bool().Draw(t, "ordinary") {
			x := make([]float32, n)
			for i := range x {
				x[i] = float32(r.NormFloat64() * math.Ldexp(1, r.IntN(40)-30))
			}
			narrow(typ, pointer(src), 0, x)
		} else {
			fill(r, typ, src)
		}
		describe := fmt.Sprintf("%v kind %d groups %d", typ, kind, groups)
		quantise := func() { QuantizeE4M3(typ, pointer(q), pointer(scales), pointer(src), n, kind) }
		agree(t, q, describe+" payload", quantise)
		agree(t, scales, describe+" scales", quantise)
		y.check(t)
	})
}

func TestMovePaths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := seeded(t)
		n := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(300, 5000)).Draw(t, "n")
		k := rapid.IntRange(0, 9).Draw(t, "k")
		stream := rapid.Bool().Draw(t, "stream")
		aligned := rapid.Bool().Draw(t, "aligned")
		for p := portable; p <= best; p++ {
			var y yard
			src := y.area(r, n)
			fill(r, U8, src)
			want := bytes.Clone(src)
			dst, ptrs := make([][]byte, k), make([]unsafe.Pointer, k)
			for i := range dst {
				dst[i] = y.area(r, n)
				if aligned {
					a := &y.areas[len(y.areas)-1]
					a.first = -misalignmentOf(pointer(a.whole)) & 63
					a.last = a.first + n
					dst[i] = a.whole[a.first:a.last]
				}
				ptrs[i] = pointer(dst[i])
			}
			with(p, func() { FanOut(ptrs, pointer(src), n, stream) })
			StoreFence()
			for i := range dst {
				if !bytes.Equal(dst[i], want) {
					t.Fatalf("%v: destination %d of %d differs", p, i, k)
				}
			}
			y.check(t)
			if k == 0 {
				continue
			}
			with(p, func() { Zero(ptrs[0], n, stream) })
			StoreFence()
			if !bytes.Equal(dst[0], make([]byte, n)) {
				t.Fatalf("%v: not zero", p)
			}
			with(p, func() { Copy(ptrs[0], pointer(src), n, stream) })
			StoreFence()
			if !bytes.Equal(dst[0], want) {
				t.Fatalf("%v: copy differs", p)
			}
			y.check(t)
		}
	})
}

func misalignmentOf(p unsafe.Pointer) int { return int(uintptr(p) & 63) }
