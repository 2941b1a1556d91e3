package emulate_test

import (
	"math"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest/emulate"
)

func slice(b []byte) []uint32 { return unsafe.Slice((*uint32)(unsafe.Pointer(&b[0])), len(b)/4) }

type arguments struct {
	Out cuda.Pointer
	N   uint32
	_   uint32
}

// TestKernel: shuffles, barriers, static and dynamic shared memory, divergence and early return, in
// one.
func TestKernel(t *testing.T) {
	const source = `#include "flags.cuh"
using namespace weft;
struct Arguments { u32 *out; u32 n; };
extern "C" __global__ void __launch_bounds__(128, 1) k(const __grid_constant__ Arguments a) {
	__shared__ u32 sums[4];
	u32 i = blockIdx.x * blockDim.x + threadIdx.x, v = i;
	if (threadIdx.x >= 100) return; // half of the last warp
	if (threadIdx.x % 32 < 16) v += 1000;
	for (u32 by = 16; by > 0; by /= 2) v += __shfl_xor_sync(threadIdx.x < 96 ? 0xFFFFFFFFu : 0xFu, v, by);
	if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
	__syncthreads();
	a.out[i] = sums[0] + sums[1] + sums[2] + a.n;
}`
	r := newRig(t, 1, emulate.Options{})
	f := r.function(0, source)
	p, out := r.alloc(0, 3*128)
	r.ok(r.start(f, 0, 3, 128, arguments{Out: p, N: 7}))
	for i, got := range out {
		b, want := i/128, uint32(0)
		if i%128 < 100 {
			want = 7 + 3*16*1000
			for k := range 96 {
				want += uint32(b*128 + k)
			}
		}
		if got != want {
			t.Fatalf("word %d is %d, want %d", i, got, want)
		}
	}
}

// TestKernelsInNamespaces: those that the spec names are found by their C++ names, whatever others
// are called like them, and their launch bounds mean what they do where they stand.
func TestKernelsInNamespaces(t *testing.T) {
	const source = `
constexpr char closing = '}', quote = '"';
const char *const braces = "{{\"{";
namespace layer {
enum { WIDE = 64'0 / 10 };
struct Arguments { unsigned *out, n; };
namespace send {
__device__ void store(unsigned *p, unsigned v) { if (threadIdx.x == 0) { *p = v; } }
__global__ void __launch_bounds__(WIDE / 2, 1) move(const __grid_constant__ Arguments a) { store(a.out, a.n + 1); }
__global__ void unnamed(unsigned *p) {}
}
namespace { inline namespace detail { int none; } }
}
namespace layer::receive {
template <unsigned ADD> __global__ void move(unsigned *out, unsigned n) { send::store(out, n + ADD); }
}
extern "C" __global__ void move(unsigned *out, unsigned n) { layer::send::store(out, n + 5); }
`
	r := newRig(t, 1, emulate.Options{})
	names := []string{"layer::send::move", "layer::receive::move<3>", "layer::receive::move<4>"}
	p, out := r.alloc(0, 1)
	for i, name := range append(names, "move") {
		f := r.named(0, source, name, names...)
		arguments := []any{p, uint32(10)}
		if i == 0 {
			arguments = []any{struct {
				out cuda.Pointer
				n   uint32
			}{p, 10}}
		}
		r.ok(r.start(f, 0, 1, 32, arguments...))
		if want := []uint32{11, 13, 14, 15}[i]; out[0] != want {
			t.Errorf("%s gives %d, want %d", name, out[0], want)
		}
	}
	attributes, err := r.named(0, source, names[0], names...).Attributes()
	r.ok(err)
	if attributes.MaxThreads != 32 {
		t.Errorf("a block has at most %d threads, want 32", attributes.MaxThreads)
	}
	missing := spec(source)
	missing.Kernels = []string{"layer::send::move", "layer::move"}
	if _, err := r.cache.Load(t.Context(), missing); err == nil ||
		!strings.Contains(err.Error(), "no kernel layer::move") {
		t.Errorf("a kernel that is not there: %v", err)
	}
}

// run starts a program's kernel k(u32 *out) and gives what it wrote.
func run(t *testing.T, o emulate.Options, blocks, threads, words int, source string) []uint32 {
	t.Helper()
	r := newRig(t, 1, o)
	f := r.function(0, "#include \"flags.cuh\"\nusing namespace weft;\n"+source)
	p, out := r.alloc(0, words)
	r.ok(r.start(f, 0, blocks, threads, p))
	return out
}

// TestWarp compares the collectives of a warp with what the manual says of each.
func TestWarp(t *testing.T) {
	const per = 22
	out := run(t, emulate.Options{Seed: 3}, 1, 64, 64*per, `
extern "C" __global__ void k(u32 *out) {
	u32 lane = threadIdx.x % 32, v = threadIdx.x * 3 + 1, *o = out + threadIdx.x * 22;
	const u32 all = 0xFFFFFFFF;
	o[0] = __shfl_sync(all, v, 5);
	o[1] = __shfl_sync(all, v, lane + 33, 8);
	o[2] = __shfl_up_sync(all, v, 3);
	o[3] = __shfl_up_sync(all, v, 3, 8);
	o[4] = __shfl_down_sync(all, v, 30);
	o[5] = __shfl_down_sync(all, v, 3, 8);
	o[6] = __shfl_xor_sync(all, v, 9);
	o[7] = __shfl_xor_sync(all, v, 9, 8);
	o[8] = __ballot_sync(all, lane % 3 == 0);
	o[9] = __any_sync(all, lane == 7);
	o[10] = __all_sync(all, lane != 7);
	o[11] = __reduce_add_sync(all, v);
	o[12] = __reduce_max_sync(all, (int)lane - 20);
	o[13] = __reduce_min_sync(all, (int)lane - 20);
	o[14] = __reduce_or_sync(all, 1u << lane % 7);
	o[15] = __reduce_and_sync(all, ~(1u << lane % 7));
	o[16] = __reduce_xor_sync(all, v);
	o[17] = __match_any_sync(all, lane % 5);
	// Two halves, each on its own.
	o[18] = lane < 16 ? __reduce_add_sync(0x0000FFFF, lane) : __reduce_max_sync(0xFFFF0000, lane);
	o[19] = __popc(__ballot_sync(all, 1)) + (u32)__shfl_sync(all, (u64)v << 32, 1) +
		(u32)(__shfl_sync(all, (u64)v << 32, 1) >> 32);
	o[20] = __float_as_uint(__shfl_sync(all, (float)lane, 9));
	if (lane >= 10) return;
	__syncwarp(); // those who have gone do not count
	o[21] = __ballot_sync(0x3FF, lane != 2);
}`)
	for i := range 64 {
		lane, warp := uint32(i%32), uint32(i/32*32)
		v := func(lane uint32) uint32 { return (warp+lane)*3 + 1 }
		want := [per]uint32{
			0: v(5), 1: v(lane&^7 | (lane+33)&7), 2: v(lane), 3: v(lane), 4: v(lane),
			5: v(lane), 6: v(lane ^ 9), 7: v(lane),
		}
		if lane >= 3 {
			want[2] = v(lane - 3)
		}
		if lane%8 >= 3 {
			want[3] = v(lane - 3)
		}
		if lane < 2 {
			want[4] = v(lane + 30)
		}
		if lane%8 < 5 {
			want[5] = v(lane + 3)
		}
		if (lane^9)/8 <= lane/8 {
			want[7] = v(lane ^ 9)
		}
		for k := range uint32(32) {
			if k%3 == 0 {
				want[8] |= 1 << k
			}
			want[11] += v(k)
			want[16] ^= v(k)
			if k%5 == lane%5 {
				want[17] |= 1 << k
			}
		}
		want[9], want[10], want[12], want[13], want[14], want[15] = 1, 0, 11, ^uint32(19), 0x7F, ^uint32(0x7F)
		want[18] = 120
		if lane >= 16 {
			want[18] = 31
		}
		want[19], want[20] = 32+v(1), math.Float32bits(9)
		if lane < 10 {
			want[21] = 0x3FB
		}
		for k, w := range want {
			if got := out[i*per+k]; got != w {
				t.Errorf("thread %d, result %d: %#x, want %#x", i, k, got, w)
			}
		}
	}
}

// TestBits compares CUDA's functions of integers with Go's.
func TestBits(t *testing.T) {
	const per = 14
	out := run(t, emulate.Options{}, 1, 256, 256*per, `
extern "C" __global__ void k(u32 *out) {
	u32 v = threadIdx.x == 0 ? 0 : 0x9E3779B9u * threadIdx.x >> threadIdx.x % 32;
	u32 w = v * 0x85EBCA6Bu, *o = out + threadIdx.x * 14;
	u64 d = (u64)w << 32 | v;
	o[0] = v, o[1] = w;
	o[2] = __popc(v), o[3] = __popcll(d), o[4] = __ffs(v), o[5] = __ffsll(d), o[6] = __clz(v);
	o[7] = __brev(v), o[8] = __umulhi(v, w);
	o[9] = __byte_perm(v, w, 0x7240), o[10] = __funnelshift_l(v, w, 5), o[11] = __funnelshift_r(v, w, 37);
	o[12] = min(v, w), o[13] = max((int)v, (int)w);
}`)
	for i := range 256 {
		o := out[i*per : (i+1)*per]
		v, w := o[0], o[1]
		d := uint64(w)<<32 | uint64(v)
		high, _ := bits.Mul32(v, w)
		want := []uint32{
			v, w, uint32(bits.OnesCount32(v)), uint32(bits.OnesCount64(d)),
			uint32(bits.TrailingZeros32(v)+1) % 33, uint32(bits.TrailingZeros64(d)+1) % 65,
			uint32(bits.LeadingZeros32(v)), bits.Reverse32(v), high, v&0xFF | w&0xFF<<8 | v>>16&0xFF<<16 | w>>24<<24,
			uint32(d << 5 >> 32), uint32(d >> 5), min(v, w), uint32(max(int32(v), int32(w))),
		}
		if !slices.Equal(o, want) {
			t.Errorf("of %#x and %#x: %#x, want %#x", v, w, o, want)
		}
	}
}

// TestBlocks: indices in three dimensions, shared memory of each block, also the dynamic one,
// barriers that count, and atomics of all kinds.
func TestBlocks(t *testing.T) {
	for _, o := range []emulate.Options{{}, {Seed: 7, Tear: true}} {
		r := newRig(t, 1, o)
		f := r.function(0, `#include "ptx.cuh"
typedef unsigned u32;
struct __align__(8) Two { u32 *out; u32 n; };
__shared__ u32 outside;
extern "C" __global__ void k(const __grid_constant__ Two a, short b, double c) {
	extern __shared__ __align__(16) u32 all[];
	__shared__ u32 sum, most; __shared__ float total;
	__shared__ u32 first;
	u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
	u32 i = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x, n = blockDim.x * blockDim.y * blockDim.z;
	first = sum + all[i]; // what is there before anything was written is nonsense
	u32 nonsense = __syncthreads_or(first == 0);
	if (i == 0) sum = most = 0, total = 0, outside = block;
	__syncthreads();
	for (u32 k = 0; k < 20; k++) weft::load_relaxed_gpu4(a.out); // others run
	all[i] = block * 1000 + i;
	atomicAdd(&sum, i), atomicMax(&most, i), atomicAdd(&total, 0.5f);
	u32 odd = __syncthreads_count(i % 2), every = __syncthreads_and(i < n), each = __syncthreads_and(i != 3);
	a.out[block * n + i] = all[(i + 1) % n] + sum + most + (u32)total + odd + every + each +
		nonsense + a.n + b + (u32)c + outside;
}`)
		const blocks, threads = 2 * 3 * 2, 8 * 3 * 2
		p, out := r.alloc(0, blocks*threads)
		type two struct {
			Out cuda.Pointer
			N   uint32
			_   uint32
		}
		config := cuda.LaunchConfig{Grid: cuda.Dim{X: 2, Y: 3, Z: 2}, Block: cuda.Dim{X: 8, Y: 3, Z: 2}, Shared: threads * 4}
		l, err := f.Prepare(config, two{p, 5, 0}, int16(-2), 9.0)
		r.ok(err)
		r.ok(l.Start(r.streams[0]))
		for at, got := range out {
			block, i := at/threads, at%threads
			want := uint32(block*1000 + (i+1)%threads + threads*(threads-1)/2 + threads - 1 + threads/2 +
				threads/2 + 1 + 0 + 0 + 5 - 2 + 9 + block)
			if got != want {
				t.Fatalf("%+v: block %d, thread %d: %d, want %d", o, block, i, got, want)
			}
		}
		if at, err := f.Attributes(); err != nil || at.StaticShared == 0 || at.MaxThreads != 1024 {
			t.Errorf("attributes: %+v, %v", at, err)
		}
	}
}

// TestBarriersOfSome: warps in pairs meet often, and the last pair never. Behind a meeting, a fence of one thread is
// one of what all of its pair have stored.
func TestBarriersOfSome(t *testing.T) {
	const threads = 256
	r := newRig(t, 2, emulate.Options{Seed: 1, Tear: true})
	f := r.function(0, `#include "ptx.cuh"
using namespace weft;
extern "C" __global__ void k(u32 *peer, u32 *out) {
	u32 team = threadIdx.x / 64, me = threadIdx.x % 64, wrong = 0;
	if (team == 3) return;
	for (u32 i = 1; i <= 20 * (team + 1); i++) {
		store_relaxed_sys4(peer + threadIdx.x, i);
		bool all = sync_some_and(1 + team, 64, me != i);
		if (all != (i >= 64)) wrong++;
		if (me == 63) fence_sys();
		sync_some(1 + team, 64);
		if (load_relaxed_sys4(peer + (threadIdx.x ^ 63)) != i) wrong++;
		sync_some(1 + team, 64);
	}
	out[threadIdx.x] = wrong + 1;
}`)
	p, _ := r.alloc(1, threads)
	q, out := r.alloc(0, threads)
	r.ok(r.contexts[0].EnablePeer(r.contexts[1]))
	r.ok(r.start(f, 0, 1, threads, p, q))
	for i, v := range out[:threads-64] {
		if v != 1 {
			t.Errorf("thread %d: %d were wrong", i, int32(v)-1)
		}
	}
}

// TestBulk: a pipeline of bulk copies through shared memory, two stages of which are under way at
// once.
func TestBulk(t *testing.T) {
	const blocks, tiles, words = 3, 10, 64
	const source = `#include "ptx.cuh"
using namespace weft;
extern "C" __global__ void k(u32 *in, u32 *out, u32 *early) {
	__shared__ __align__(128) u32 tile[2][64];
	__shared__ u64 ready[2];
	u32 *from = in + blockIdx.x * 10 * 64, *to = out + blockIdx.x * 10 * 64;
	if (threadIdx.x == 0) {
		barrier_init(&ready[0], 1), barrier_init(&ready[1], 1);
		fence_barrier_init();
		for (u32 i = 0; i < 2; i++) {
			barrier_expect(&ready[i], 256);
			bulk_load(tile[i], from + i * 64, 128, &ready[i]), bulk_load(tile[i] + 32, from + i * 64 + 32, 128, &ready[i]);
			if (tile[i][63] == from[i * 64 + 63]) atomicAdd(early, 1);
		}
	}
	__syncthreads();
	for (u32 i = 0; i < 10; i++) {
		u32 s = i % 2;
		while (!barrier_done(&ready[s], i / 2 % 2)) {}
		if (threadIdx.x < 32) tile[s][threadIdx.x] += 1, tile[s][32 + threadIdx.x] += 1;
		fence_async();
		__syncthreads();
		if (threadIdx.x == 0) {
			bulk_store(to + i * 64, tile[s], 256);
			bulk_commit();
			if (to[i * 64] == tile[s][0]) atomicAdd(early, 1);
			bulk_wait_read();
			if (i + 2 < 10) {
				barrier_expect(&ready[s], 256);
				bulk_load(tile[s], from + (i + 2) * 64, 256, &ready[s]);
			}
		}
		__syncthreads();
	}
	if (threadIdx.x == 0) bulk_wait();
}`
	r := newRig(t, 1, emulate.Options{})
	f := r.function(0, source)
	p, in := r.alloc(0, blocks*tiles*words)
	q, out := r.alloc(0, blocks*tiles*words)
	e, early := r.alloc(0, 1)
	for i := range in {
		in[i] = uint32(i)*7 + 1
	}
	r.ok(r.start(f, 0, blocks, 64, p, q, e))
	for i, got := range out {
		if want := in[i] + 1; got != want {
			t.Fatalf("word %d is %d, want %d", i, got, want)
		}
	}
	if early[0] != 0 {
		t.Errorf("%d copies were there when they were begun", early[0])
	}
}

// TestSeed: a seed decides the order in which threads run, and another seed another.
func TestSeed(t *testing.T) {
	for _, shape := range [][2]int{{1, 64}, {64, 1}} {
		order := func(seed uint64) []uint32 {
			return run(t, emulate.Options{Seed: seed}, shape[0], shape[1], 65, `
extern "C" __global__ void k(u32 *out) { out[1 + atomicAdd(out, 1)] = blockIdx.x * blockDim.x + threadIdx.x; }`)[1:]
		}
		plain, one, two := order(0), order(1), order(2)
		if !slices.IsSorted(plain) {
			t.Errorf("%v without a seed: %v", shape, plain)
		}
		if slices.Equal(one, two) || slices.IsSorted(one) || !slices.Equal(one, order(1)) {
			t.Errorf("%v: %v\n%v", shape, one, two)
		}
	}
}

// TestPollTogether: warps that poll with a collective in the loop, for what a later block brings,
// let it run.
func TestPollTogether(t *testing.T) {
	for _, o := range []emulate.Options{{}, {Seed: 9, Tear: true}} {
		out := run(t, o, 8, 64, 9, `
extern "C" __global__ void k(u32 *out) {
	if (blockIdx.x < 7) {
		while (!__all_sync(0xFFFFFFFF, load_acquire_sys4(out + 1 + blockIdx.x) != 0)) {}
		__syncthreads();
	}
	if (threadIdx.x == 0) store_release_sys4(out + blockIdx.x, blockIdx.x + 1);
}`)
		for i := range 8 {
			if out[i] != uint32(i+1) {
				t.Errorf("block %d: %d", i, out[i])
			}
		}
	}
}

// TestLeave: who waits at a barrier goes on when the last of the others has ended instead.
func TestLeave(t *testing.T) {
	out := run(t, emulate.Options{}, 2, 96, 2*96, `
extern "C" __global__ void k(u32 *out) {
	if (threadIdx.x >= 40) {
		for (u32 i = 0; i < 50; i++) load_relaxed_gpu4(out);
		return;
	}
	__syncthreads();
	out[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}`)
	for i, got := range out {
		if want := i%96 < 40; (got == 1) != want {
			t.Errorf("word %d is %d", i, got)
		}
	}
}

// TestSeedOfEnvironment: it is for machines that nobody gave a seed or tears.
func TestSeedOfEnvironment(t *testing.T) {
	emulate.Need(t)
	const source = `extern "C" __global__ void k(unsigned *out) { out[1 + atomicAdd(out, 1)] = threadIdx.x; }`
	for _, tt := range []struct {
		environment string
		sorted      bool
	}{{"1", false}, {"", true}, {"many", true}} {
		r := newRig(t, 1, emulate.Options{})
		t.Setenv("WEFT_EMULATE_SEED", tt.environment)
		emulate.Attach(r.machine, emulate.Options{})
		f := r.function(0, source)
		p, out := r.alloc(0, 65)
		r.ok(r.start(f, 0, 1, 64, p))
		if slices.IsSorted(out[1:]) != tt.sorted {
			t.Errorf("%q: %v", tt.environment, out[1:])
		}
	}
}
