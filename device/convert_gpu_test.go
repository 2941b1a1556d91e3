package device_test

import (
	"math"
	"testing"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/nvrtc"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/internal/simd"
)

const conversions = `#include "ptx.cuh"
using namespace weft;
extern "C" __global__ void convert(const u32 *in, u32 *out, u32 n) {
	for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
		float a = number(in[i]);
		out[4 * i] = to_bf16x2(a, 1.0f);
		out[4 * i + 1] = to_f16x2(2.0f, a);
		out[4 * i + 2] = to_e4m3x2(a, 1.0f) << 16 | to_e4m3x2(1.0f, a);
		out[4 * i + 3] = bits(from_f16((u16)in[i]));
	}
}`

// converted are the numbers that conversions are tried with: all of 16 bits as bf16 and as f16,
// what lies around each, and the ties between them; the same of e4m3, and where its range ends.
func converted() []uint32 {
	var in []uint32
	for h := range uint32(1 << 16) {
		for _, low := range []uint32{0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF} {
			in = append(in, h<<16|low)
		}
		half := math.Float32bits(simd.F16ToF32(uint16(h)))
		in = append(in, h, half, half-1, half+1, half+0xFFF, half+0x1000, half+0x1001)
	}
	for q := range 256 {
		at := math.Float32bits(simd.E4M3ToF32(uint8(q)))
		in = append(in, at, at-1, at+1, at+0x7FFFF, at+0x80000, at+0x80001)
	}
	// halves of the least e4m3 number, 2^-9, and of the least f16 number, 2^-24, where they are no
	// longer normal
	for k := range uint32(32) {
		for _, unit := range []float32{1.0 / 1024, 1.0 / (1 << 25)} {
			at := math.Float32bits(float32(k) * unit)
			in = append(in, at, at+1, at-1, at|1<<31)
		}
	}
	return append(in, 0x477FEFFF, 0x477FF000, 0x43E80000, 0x43E7FFFF, 0x43E00001, 0x7F7FFFFF, 0x7F7F7FFF,
		0x7F7F8000, 0x7F800000, 0xFF800000, 0x7F800001,
		0xFFFFFFFF, 0x7FC00000, 0x80000000, 1, 0x80000001)
}

// TestConversionsOnGPU compares what a GPU makes of all kinds of numbers with package simd: by the
// instructions that it has, and by what ptx.cuh does where GPUs of 2020 have none, which is what
// PTX for compute_80 is.
func TestConversionsOnGPU(t *testing.T) {
	d := openGPU(t)
	compiler := cudatest.NVRTC(t)
	c := primaries(t, d)[0]
	own, err := c.Device().Architecture()
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{own, "compute_80"} {
		t.Run(arch, func(t *testing.T) {
			b, err := compiler.Compile(t.Context(), nvrtc.Program{
				Name: "convert", Source: conversions, Headers: device.Headers(), Architecture: arch,
				Options: []string{"--std=c++17"},
			})
			if err != nil {
				t.Fatalf("%+v", err)
			}
			compareConversions(t, c, b.Image)
		})
	}
}

func compareConversions(t *testing.T, c *cuda.Context, image []byte) {
	t.Helper()
	in := converted()
	out := convert(t, c, image, in, 4)
	one := uint32(simd.E4M3FromF32(1))
	wrong := 0
	for i, b := range in {
		a := math.Float32frombits(b)
		e := uint32(simd.E4M3FromF32(a))
		want := [4]uint32{
			uint32(simd.BF16FromF32(a)) | uint32(simd.BF16FromF32(1))<<16,
			uint32(simd.F16FromF32(a))<<16 | uint32(simd.F16FromF32(2)),
			(one<<8|e)<<16 | e<<8 | one, math.Float32bits(simd.F16ToF32(uint16(b))),
		}
		got := [4]uint32(out[4*i:])
		if got != want {
			if t.Errorf("%#x: %#x, want %#x", b, got, want); wrong > 10 {
				return
			}
			wrong++
		}
	}
}
