package emulate_test

import (
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/internal/simd"
)

// TestSignatures: the emulator's ptx.cuh has the functions of the real one, with the same
// parameters, and no others.
func TestSignatures(t *testing.T) {
	function := regexp.MustCompile(`__device__ __forceinline__ ([^{]*?) ?\{`)
	list := func(text string) []string {
		var all []string
		name := regexp.MustCompile(`\b(\w+)([,)])`) // a parameter's
		for _, m := range function.FindAllStringSubmatch(text, -1) {
			all = append(all, name.ReplaceAllString(strings.Join(strings.Fields(m[1]), " "), "$2"))
		}
		slices.Sort(all)
		return all
	}
	text, err := os.ReadFile("source/ptx.cuh")
	if err != nil {
		t.Fatal(err)
	}
	own, real := list(string(text)), list(device.Headers()["ptx.cuh"])
	if len(real) < 40 {
		t.Fatalf("only %d functions were found in ptx.cuh", len(real))
	}
	for _, f := range real {
		if !slices.Contains(own, f) {
			t.Errorf("the emulator does not have: %s", f)
		}
	}
	for _, f := range own {
		if !slices.Contains(real, f) {
			t.Errorf("only the emulator has: %s", f)
		}
	}
}

// TestConversions compares with package simd's: all 16-bit numbers, all roundings of all of them to
// fewer bits and back, and what lies around each.
func TestConversions(t *testing.T) {
	r := newRig(t, 1, emulate.Options{})
	f := r.function(0, `#include "ptx.cuh"
using namespace weft;
extern "C" __global__ void k(u32 *in, u32 *out, u32 n) {
	for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
		float a = number(in[i]);
		out[4 * i] = to_bf16x2(a, 1.0f);
		out[4 * i + 1] = to_f16x2(2.0f, a);
		out[4 * i + 2] = to_e4m3x2(a, 1.0f) << 16 | to_e4m3x2(1.0f, a);
		out[4 * i + 3] = bits(from_f16((u16)in[i]));
	}
}`)
	var in []uint32
	for h := range uint32(1 << 16) {
		// The number, what bf16 rounds up and down to it, and the ties; the same of f16 and e4m3,
		// whose last bits lie elsewhere.
		for _, low := range []uint32{0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF} {
			in = append(in, h<<16|low)
		}
		half := math.Float32bits(simd.F16ToF32(uint16(h)))
		in = append(in, h, half, half+0xFFF, half+0x1000, half+0x1001, half-1)
	}
	for q := range 256 {
		at := math.Float32bits(simd.E4M3ToF32(uint8(q)))
		in = append(in, at, at-1, at+1, at+0x7FFFF, at+0x80000, at+0x80001)
	}
	in = append(in, 0x477FEFFF, 0x477FF000, 0x43E80000, 0x43E7FFFF, 0x43E00001, 0x7F800000, 0xFF800000,
		0x7F800001, 0xFFFFFFFF, 0x80000000)
	p, words := r.alloc(0, len(in))
	copy(words, in)
	q, out := r.alloc(0, 4*len(in))
	r.ok(r.start(f, 0, 2, 64, p, q, uint32(len(in))))
	wrong := 0
	for i, b := range in {
		a := math.Float32frombits(b)
		e := uint32(simd.E4M3FromF32(a))
		one := uint32(simd.E4M3FromF32(1))
		want := []uint32{
			uint32(simd.BF16FromF32(a)) | uint32(simd.BF16FromF32(1))<<16,
			uint32(simd.F16FromF32(a))<<16 | uint32(simd.F16FromF32(2)),
			(one<<8|e)<<16 | e<<8 | one, math.Float32bits(simd.F16ToF32(uint16(b))),
		}
		if got := out[4*i : 4*i+4]; !slices.Equal(got, want) {
			t.Errorf("%#x: %#x, want %#x", b, got, want)
			if wrong++; wrong > 10 {
				return
			}
		}
	}
}

// TestArithmetic: each operation is rounded once, and a NaN is the one that devices make.
func TestArithmetic(t *testing.T) {
	r := newRig(t, 1, emulate.Options{})
	f := r.function(0, `#include "ptx.cuh"
using namespace weft;
extern "C" __global__ void k(u32 *in, u32 *out, u32 n) {
	for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
		float a = number(in[3 * i]), b = number(in[3 * i + 1]), c = number(in[3 * i + 2]);
		u32 *o = out + 8 * i;
		o[0] = bits(add(a, b));
		o[1] = bits(multiply(a, b));
		o[2] = bits(fused(a, b, c));
		o[3] = bits(divide(a, b));
		o[4] = bits(fmaxf(a, b));
		o[5] = bits(fminf(a, b));
		o[6] = bits(add(multiply(a, b), c));
		o[7] = bits(a * b + c);
	}
}`)
	special := []uint32{
		0, 0x80000000, 1, 0x80000001, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0x7F800001, 0x7F7FFFFF,
		0x3F800000, 0xBF800000, 0x3F800001, 0x00800000, 0x007FFFFF, 0x3F7FFFFF, 0x5F800000,
	}
	var in []uint32
	for _, a := range special {
		for _, b := range special {
			in = append(in, a, b, special[(len(in)/3)%len(special)])
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 3 * 4000 {
		in = append(in, random.Uint32())
	}
	for range 4000 { // of like size, so that sums cancel
		in = append(in, 0x3F800000|random.Uint32()>>9, 0x3F800000|random.Uint32()>>9, 0xBF800000|random.Uint32()>>9)
	}
	p, words := r.alloc(0, len(in))
	copy(words, in)
	q, out := r.alloc(0, 8*len(in)/3)
	r.ok(r.start(f, 0, 1, 96, p, q, uint32(len(in)/3)))
	number := math.Float32frombits
	fix := func(a float32) uint32 {
		if a != a {
			return 0x7FFFFFFF
		}
		return math.Float32bits(a)
	}
	extreme := func(a, b uint32, largest bool) uint32 {
		x, y := number(a), number(b)
		switch {
		case x != x:
			return fix(y)
		case y != y:
			return a
		case x == y: // of zeros too, by sign
			if largest == (a>>31 == 0) {
				return a
			}
			return b
		case (x > y) == largest:
			return a
		}
		return b
	}
	for i := range len(in) / 3 {
		a, b, c := number(in[3*i]), number(in[3*i+1]), number(in[3*i+2])
		product := a * b
		want := []uint32{
			fix(a + b), fix(product), fix(fma32(a, b, c)), fix(a / b),
			extreme(in[3*i], in[3*i+1], true), extreme(in[3*i], in[3*i+1], false),
			fix(float32(number(fix(product)) + c)),
		}
		got := out[8*i : 8*i+8]
		if !slices.Equal(got[:7], want) {
			t.Fatalf("of %#x: %#x, want %#x", in[3*i:3*i+3], got, want)
		}
		if fix(number(got[7])) != want[6] {
			t.Fatalf("of %#x: operators give %#x, want %#x, rounded twice", in[3*i:3*i+3], got[7], want[6])
		}
	}
}

// fma32 rounds a*b+c to fp32 once: the product is exact in fp64, and the sum is rounded to odd
// there, so that its bits decide the last rounding.
func fma32(a, b, c float32) float32 {
	x, y := float64(a)*float64(b), float64(c)
	sum := x + y
	if math.IsInf(sum, 0) || math.IsNaN(sum) {
		return float32(sum)
	}
	v := sum - x
	if rest := (x - (sum - v)) + (y - v); rest != 0 && math.Float64bits(sum)&1 == 0 {
		if (rest > 0) == (sum > 0) {
			sum = math.Float64frombits(math.Float64bits(sum) + 1)
		} else {
			sum = math.Float64frombits(math.Float64bits(sum) - 1)
		}
	}
	return float32(sum)
}
