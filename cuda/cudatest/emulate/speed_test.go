package emulate_test

import (
	"testing"

	"github.com/weftgo/weft/cuda/cudatest/emulate"
)

const barriers = `extern "C" __global__ void k(unsigned *out, unsigned times) {
	unsigned v = 0;
	for (unsigned i = 0; i < times; i++) {
		__syncthreads();
		v += i;
	}
	out[blockIdx.x * blockDim.x + threadIdx.x] = v;
}`

// BenchmarkBarriers: 64 blocks of 128 threads meet 20 times.
func BenchmarkBarriers(b *testing.B) {
	r := newRig(b, 1, emulate.Options{})
	f := r.function(0, barriers)
	p, _ := r.alloc(0, 64*128)
	r.ok(r.start(f, 0, 64, 128, p, uint32(20)))
	for b.Loop() {
		r.ok(r.start(f, 0, 64, 128, p, uint32(20)))
	}
	b.ReportMetric(float64(b.N)*64*128*21/b.Elapsed().Seconds(), "switches/s")
}

// BenchmarkLaunch: threads that do nothing, of as many blocks as a GPU holds.
func BenchmarkLaunch(b *testing.B) {
	r := newRig(b, 1, emulate.Options{})
	f := r.function(0, barriers)
	p, _ := r.alloc(0, 132*512)
	r.ok(r.start(f, 0, 132, 512, p, uint32(0)))
	for b.Loop() {
		r.ok(r.start(f, 0, 132, 512, p, uint32(0)))
	}
	b.ReportMetric(float64(b.N)*132*512/b.Elapsed().Seconds(), "threads/s")
}
