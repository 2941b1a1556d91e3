package device_test

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/device"
	"github.com/weftgo/weft/internal/simd"
)

// TestE4M3WithoutInstruction compares what ptx.cuh does on GPUs without the instruction with
// package simd.
func TestE4M3WithoutInstruction(t *testing.T) {
	emulate.Need(t)
	_, text, found := strings.Cut(device.Headers()["ptx.cuh"], "#else\n// to_e4m3 ")
	text, _, ended := strings.Cut(text, "#endif")
	if !found || !ended {
		t.Fatal("ptx.cuh has no function of that name any more")
	}
	machine := emulate.New(cudatest.Config{Devices: 2}, emulate.Options{})
	d, err := machine.Open()
	if err != nil {
		t.Fatal(err)
	}
	cache := kernel.New(kernel.Options{Compiler: emulate.Compiler, Dir: t.TempDir(), ReadOnly: []string{}})
	cubin, err := cache.Load(t.Context(), kernel.Spec{
		Name: "old", Arch: "sm_80", Headers: device.Headers(), Source: `#include "ptx.cuh"
namespace old {
using namespace weft;
// to_e4m3 ` + text + `}
extern "C" __global__ void convert(const weft::u32 *in, weft::u32 *out, weft::u32 n) {
	for (weft::u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		out[i] = old::to_e4m3x2(weft::number(in[i]), 1.0f) << 16 | old::to_e4m3x2(1.0f, weft::number(in[i]));
}`,
	})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	in := converted()
	out := convert(t, primaries(t, d)[0], cubin.Image(), in, 1)
	one, wrong := uint32(simd.E4M3FromF32(1)), 0
	for i, b := range in {
		e := uint32(simd.E4M3FromF32(math.Float32frombits(b)))
		if want := (one<<8|e)<<16 | e<<8 | one; out[i] != want {
			if t.Errorf("%#x: %#x, want %#x", b, out[i], want); wrong > 10 {
				return
			}
			wrong++
		}
	}
}

// convert runs kernel "convert" of an image, which makes so many words of each.
func convert(t *testing.T, c *cuda.Context, image []byte, in []uint32, each int) []uint32 {
	t.Helper()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	memory, err := c.Alloc(4 * (1 + each) * len(in))
	ok(err)
	defer func() { ok(memory.Close()) }()
	module, err := c.LoadModule(image)
	ok(err)
	defer func() { ok(module.Close()) }()
	f, err := module.Function("convert")
	ok(err)
	stream, err := c.NewStream(cuda.StreamOptions{})
	ok(err)
	defer func() { ok(stream.Close()) }()
	to := memory.Pointer().Add(4 * len(in))
	l, err := f.Prepare(cuda.LaunchConfig{Grid: cuda.Dim{X: 4}, Block: cuda.Dim{X: 128}}, memory.Pointer(), to,
		uint32(len(in)))
	ok(err)
	bytes := make([]byte, 0, 4*len(in))
	for _, a := range in {
		bytes = binary.LittleEndian.AppendUint32(bytes, a)
	}
	ok(c.Upload(memory.Pointer(), bytes))
	ok(l.Start(stream))
	ok(stream.Wait(t.Context()))
	bytes = make([]byte, 4*each*len(in))
	ok(c.Download(bytes, to))
	out := make([]uint32, each*len(in))
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(bytes[4*i:])
	}
	return out
}
