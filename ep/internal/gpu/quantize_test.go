package gpu

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
	"time"
	"unsafe"

	"github.com/weftgo/weft/ep/spec"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
	"github.com/weftgo/weft/internal/ranktest"
	"github.com/weftgo/weft/internal/simd"
)

// TestQuantize compares how kernels quantise with package simd where scales are nearest to powers
// of two: the largest of a group is 448 times one, or its neighbour.
func TestQuantize(t *testing.T) {
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%+v", err)
		}
	}
	on := ranktest.Emulated(t, cudatest.Config{}, emulate.Options{Limit: time.Minute})
	c := on.Contexts[0]
	s := dispatchKernel(dispatchForm{byExpert: true, quantize: weft.Float32, kind: byValue, units: 1}, "sm_90a")
	s.Kernels = nil
	s.Source = `#include "quantize.cuh"
using namespace weft;
extern "C" __global__ void quantise(const uint4 *in, uint4 *out, u32 *scales, u32 what) {
	u32 i = blockIdx.x * 32 + threadIdx.x, word;
	uint4 raw[LOADS];
	for (u32 j = 0; j < LOADS; j++) raw[j] = in[i * LOADS + j];
	int scale;
	out[i] = quantize(what, raw, blockIdx.x, threadIdx.x, true, word, scale);
	if (scale >= 0) scales[scale] = word;
}`
	cubin, err := on.Kernels.Load(t.Context(), s)
	ok(err)
	module, err := c.LoadModule(cubin.Image())
	ok(err)
	defer func() { ok(module.Close()) }()
	f, err := module.Function("quantise")
	ok(err)
	stream, err := c.NewStream(cuda.StreamOptions{})
	ok(err)
	defer func() { ok(stream.Close()) }()

	groups := boundaryGroups()
	n := len(groups) / 4
	memory, err := c.Alloc(4*n + n + n/spec.ScaleBlock*4)
	ok(err)
	defer func() { ok(memory.Close()) }()
	ok(c.Upload(memory.Pointer(), groups))
	out := memory.Pointer().Add(4 * n)
	for what, kind := range map[uint32]simd.ScaleKind{0: simd.ScaleF32, flagPowerOfTwo: simd.ScaleF32Pow2} {
		want := make([]byte, n+n/spec.ScaleBlock*4)
		simd.QuantizeE4M3(simd.F32, unsafe.Pointer(&want[0]), unsafe.Pointer(&want[n]), unsafe.Pointer(&groups[0]), n, kind)
		l, err := f.Prepare(cuda.LaunchConfig{Grid: cuda.Dim{X: uint32(n / spec.UnitBytes)}, Block: cuda.Dim{X: 32}},
			memory.Pointer(), out, out.Add(n), what)
		ok(err)
		ok(l.Start(stream))
		ok(stream.Wait(t.Context()))
		got := make([]byte, len(want))
		ok(c.Download(got, out))
		for g := range n / spec.ScaleBlock {
			a, b := got[n+4*g:][:4], want[n+4*g:][:4]
			if !bytes.Equal(a, b) || !bytes.Equal(got[g*spec.ScaleBlock:][:spec.ScaleBlock],
				want[g*spec.ScaleBlock:][:spec.ScaleBlock]) {
				t.Errorf("scales of kind %d: %x and scale %x, on the host %x and %x", kind,
					got[g*spec.ScaleBlock:][:spec.ScaleBlock], a, want[g*spec.ScaleBlock:][:spec.ScaleBlock], b)
			}
		}
	}
}

// boundaryGroups gives fp32 numbers, in groups of 128 that have the same largest.
func boundaryGroups() []byte {
	var all []byte
	for exponent := -24; exponent <= 119; exponent++ {
		most := math.Float32bits(float32(math.Ldexp(448, exponent)))
		for _, most := range []uint32{most - 1, most, most + 1, most&^(1<<23-1) + 1} {
			for i := range spec.ScaleBlock {
				x := math.Float32frombits(most) * float32(spec.ScaleBlock-i) / spec.ScaleBlock
				all = binary.LittleEndian.AppendUint32(all, math.Float32bits(x)|uint32(i%2)<<31)
			}
		}
	}
	return all
}
