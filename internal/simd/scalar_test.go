package simd

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/x448/float16"
)

// bigFMA computes a*b+c exactly and rounds once. It serves finite operands.
func bigFMA(a, b, c float32) float32 {
	exact := func(x float32) *big.Float { return new(big.Float).SetPrec(1200).SetFloat64(float64(x)) }
	p := exact(a)
	p.Mul(p, exact(b)).Add(p, exact(c))
	if p.Sign() == 0 { // big.Float knows no sign of an exact cancellation
		return a*b + c
	}
	f, _ := p.Float32()
	return f
}

func TestFMA32(t *testing.T) {
	check := func(a, b, c float32) {
		t.Helper()
		got, want := FMA32(a, b, c), bigFMA(a, b, c)
		if math.Float32bits(got) != math.Float32bits(want) {
			t.Fatalf("FMA32(%g, %g, %g) = %g (%#x), want %g (%#x)",
				a, b, c, got, math.Float32bits(got), want, math.Float32bits(want))
		}
	}
	// The product is a midpoint of two float32, and c decides: a float64 sum rounds c away.
	check(172961, 97, 0x1p-40)
	check(172961, 97, -0x1p-40)
	check(-172961, 97, 0x1p-40)
	check(0x1.000002p0, 0x1.000002p0, 0x1p-120)
	check(math.MaxFloat32, 1, 0x1p103)
	check(math.MaxFloat32, 1, 0x1.fffffep102)
	check(0x1p-100, 0x1p-49, 0)
	check(0x1p-100, 0x1p-50, 0x1p-149)
	check(0x1p-75, -0x1p-75, 0x1p-149)
	check(0x1.8p-75, -0x1p-75, 0x1p-149)
	check(0x1.8p-75, 0x1p-75, 0x1p-126)

	r := rand.New(rand.NewPCG(3, 5))
	finite := func() float32 {
		for {
			var b uint32
			if r.IntN(4) == 0 {
				b = uint32(special32[r.IntN(len(special32))])
			} else {
				b = r.Uint32()
			}
			if b&infF32 != infF32 {
				return math.Float32frombits(b)
			}
		}
	}
	for range 150_000 {
		a, b, c := finite(), finite(), finite()
		check(a, b, c)
		// Of a size at which the product matters, with few bits so that ties happen.
		a = float32(r.IntN(1<<13)) * float32(math.Ldexp(1, r.IntN(20)-10))
		b = float32(r.IntN(1<<13) - 1<<12)
		c = float32(r.IntN(3)-1) * float32(math.Ldexp(1, r.IntN(60)-50))
		check(a, b, c)
		check(a, b, -a*b)
	}
}

func TestFMA32NonFinite(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct{ a, b, c, want float32 }{
		{inf, 1, 1, inf},
		{inf, -1, 1, -inf},
		{1, 1, -inf, -inf},
		{math.MaxFloat32, 2, 0, inf},
		{inf, 0, 1, nan},
		{inf, 1, -inf, nan},
		{nan, 1, 1, nan},
		{1, 1, nan, nan},
	} {
		got := FMA32(c.a, c.b, c.c)
		if got != c.want && (got == got || c.want == c.want) {
			t.Errorf("FMA32(%g, %g, %g) = %g, want %g", c.a, c.b, c.c, got, c.want)
		}
	}
	if got := FMA32(0, 1, float32(math.Copysign(0, -1))); math.Float32bits(got) != 0 {
		t.Errorf("+0*1 + -0 = %#x, want +0", math.Float32bits(got))
	}
	if got := FMA32(float32(math.Copysign(0, -1)), 1, float32(math.Copysign(0, -1))); math.Float32bits(got) != signF32 {
		t.Errorf("-0*1 + -0 = %#x, want -0", math.Float32bits(got))
	}
}

func TestF16AgainstOracle(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		want := float16.Frombits(h).Float32()
		got := F16ToF32(h)
		if got != want && (got == got || want == want) ||
			math.Signbit(float64(got)) != math.Signbit(float64(want)) && got == got {
			t.Fatalf("F16ToF32(%#04x) = %g, want %g", h, got, want)
		}
	}
	check := func(x float32) {
		t.Helper()
		got, want := F16FromF32(x), float16.Fromfloat32(x).Bits()
		if x != x {
			want = NaNF16
		}
		if got != want {
			t.Fatalf("F16FromF32(%g) = %#04x, want %#04x", x, got, want)
		}
	}
	for _, x := range boundaries(F16) {
		check(x)
	}
	r := rand.New(rand.NewPCG(3, 3))
	for range 1_000_000 {
		check(math.Float32frombits(r.Uint32()))
	}
}

// TestRounding checks every value, every midpoint of two neighbours and the fp32 values next to it:
// a midpoint goes to the even code, its neighbours to the nearer one.
func TestRounding(t *testing.T) {
	for _, f := range []struct {
		name string
		last uint32 // the greatest finite code
		to   func(float32) uint32
		from func(uint32) float32
		sign uint32
		over uint32 // of Inf and what rounds to it
		nan  uint32
	}{
		{
			"bf16", 0x7F7F,
			func(x float32) uint32 { return uint32(BF16FromF32(x)) },
			func(c uint32) float32 { return BF16ToF32(uint16(c)) },
			0x8000, 0x7F80, uint32(NaNBF16),
		},
		{
			"f16", 0x7BFF,
			func(x float32) uint32 { return uint32(F16FromF32(x)) },
			func(c uint32) float32 { return F16ToF32(uint16(c)) },
			0x8000, 0x7C00, uint32(NaNF16),
		},
		{
			"e4m3", 0x7E,
			func(x float32) uint32 { return uint32(E4M3FromF32(x)) },
			func(c uint32) float32 { return E4M3ToF32(uint8(c)) },
			0x80, 0x7E, uint32(NaNE4M3),
		},
		{
			"e5m2", 0x7B,
			func(x float32) uint32 { return uint32(E5M2FromF32(x)) },
			func(c uint32) float32 { return E5M2ToF32(uint8(c)) },
			0x80, 0x7B, uint32(NaNE5M2),
		},
	} {
		t.Run(f.name, func(t *testing.T) {
			check := func(x float32, want uint32) {
				t.Helper()
				if got := f.to(x); got != want {
					t.Fatalf("%g becomes %#x, want %#x", x, got, want)
				}
				if got := f.to(-x); got != want|f.sign {
					t.Fatalf("%g becomes %#x, want %#x", -x, got, want|f.sign)
				}
			}
			for c := uint32(0); c < f.last; c++ {
				lo, hi := f.from(c), f.from(c+1)
				check(lo, c)
				m := float32((float64(lo) + float64(hi)) / 2)
				even := c + c&1
				check(m, even)
				check(math.Nextafter32(m, lo), c)
				check(math.Nextafter32(m, hi), c+1)
			}
			last := f.from(f.last)
			check(last, f.last)
			check(math.MaxFloat32, f.over)
			check(float32(math.Inf(1)), f.over)
			check(math.Nextafter32(last, math.MaxFloat32), f.last)
			for _, b := range []uint32{0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001} {
				if got := f.to(math.Float32frombits(b)); got != f.nan {
					t.Errorf("NaN %#x becomes %#x, want %#x", b, got, f.nan)
				}
				if got := f.from(f.nan); got == got {
					t.Errorf("%#x is not a NaN", f.nan)
				}
			}
		})
	}
}
