// The PTX instructions that Weft's kernels use, as typed functions. Each function is one
// instruction, or a few, and does what its name says. Sections are those of the PTX ISA, version
// 9.0. Addresses of "global" functions lie in global memory: this GPU's, a peer's, or the host's
// where it is mapped.
#pragma once

namespace weft {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// ---- Loads and stores (9.7.9.8 ld, 9.7.9.11 st). In the memory model (8.2.2) a vector of words is
// as many single accesses: each word is whole, and no more is promised.

// load_once reads data that this SM reads once, without caching them. It is no ld.global.nc: under
// a dependent launch the kernel before may still write when this one has begun.
__device__ __forceinline__ uint4 load_once(const void *p) {
	uint4 v;
	asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
				 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
				 : "l"(p)
				 : "memory");
	return v;
}

__device__ __forceinline__ uint2 load_once8(const void *p) {
	uint2 v;
	asm volatile("ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
	return v;
}

__device__ __forceinline__ uint4 load_relaxed_sys16(const void *p) {
	uint4 v;
	asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
				 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
				 : "l"(p)
				 : "memory");
	return v;
}

__device__ __forceinline__ uint2 load_relaxed_sys8(const void *p) {
	uint2 v;
	asm volatile("ld.relaxed.sys.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
	return v;
}

__device__ __forceinline__ u32 load_relaxed_sys4(const void *p) {
	u32 v;
	asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

__device__ __forceinline__ ulonglong2 load_relaxed_sys_u64x2(const void *p) {
	ulonglong2 v;
	asm volatile("ld.relaxed.sys.global.v2.u64 {%0,%1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(p) : "memory");
	return v;
}

__device__ __forceinline__ u64 load_relaxed_sys_u64(const void *p) {
	u64 v;
	asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

__device__ __forceinline__ u32 load_relaxed_gpu4(const void *p) {
	u32 v;
	asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

__device__ __forceinline__ u32 load_acquire_sys4(const void *p) {
	u32 v;
	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

__device__ __forceinline__ uint4 load_acquire_sys16(const void *p) {
	uint4 v;
	asm volatile("ld.acquire.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
				 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
				 : "l"(p)
				 : "memory");
	return v;
}

__device__ __forceinline__ u64 load_acquire_sys_u64(const void *p) {
	u64 v;
	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

__device__ __forceinline__ void store16(void *p, uint4 v) {
	asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ __forceinline__ void store8(void *p, uint2 v) {
	asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
}

__device__ __forceinline__ void store_relaxed_sys16(void *p, uint4 v) {
	asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
				 : "memory");
}

// store_line is the store of store_relaxed_sys16, called by all lanes of a warp, of which each eight store a line of
// 128 bytes. It has a name of its own because its caller relies on more than PTX says: the line arrives whole. So
// emulated GPUs, whose other stores arrive torn, store such a line at once.
__device__ __forceinline__ void store_line(void *p, uint4 v) {
	asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
				 : "memory");
}

__device__ __forceinline__ void store_relaxed_sys8(void *p, uint2 v) {
	asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
}

__device__ __forceinline__ void store_relaxed_sys4(void *p, u32 v) {
	asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ void store_relaxed_sys_u64x2(void *p, ulonglong2 v) {
	asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1,%2};" ::"l"(p), "l"(v.x), "l"(v.y) : "memory");
}

__device__ __forceinline__ void store_relaxed_sys_u64(void *p, u64 v) {
	asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ void store_relaxed_gpu4(void *p, u32 v) {
	asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ void store_release_sys4(void *p, u32 v) {
	asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ __forceinline__ void store_release_sys_u64(void *p, u64 v) {
	asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// ---- Fences (9.7.13.4 membar, fence) and atomics (9.7.13.5 atom, 9.7.13.7 red).

__device__ __forceinline__ void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

__device__ __forceinline__ u32 atomic_add_gpu4(void *p, u32 v) {
	u32 old;
	asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
	return old;
}

__device__ __forceinline__ u32 atomic_cas_gpu4(void *p, u32 expected, u32 v) {
	u32 old;
	asm volatile("atom.acq_rel.gpu.global.cas.b32 %0, [%1], %2, %3;"
				 : "=r"(old)
				 : "l"(p), "r"(expected), "r"(v)
				 : "memory");
	return old;
}

__device__ __forceinline__ u64 atomic_cas_relaxed_gpu_u64(void *p, u64 expected, u64 v) {
	u64 old;
	asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
				 : "=l"(old)
				 : "l"(p), "l"(expected), "l"(v)
				 : "memory");
	return old;
}

__device__ __forceinline__ void add_relaxed_sys_u64(void *p, u64 v) {
	asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// ---- Memory of several GPUs, at addresses of a multicast group, Hopper and later (9.7.9.14
// multimem). Only these instructions may access it. A store goes to the memory of every GPU. A sum is that of
// what all of them hold, in an order that the switch has; numbers of 16 bits are added in fp32 and rounded
// once.
#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void multimem_store16(void *p, uint4 v) {
	asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z),
				 "r"(v.w)
				 : "memory");
}

__device__ __forceinline__ uint4 multimem_sum_f32(const void *p) {
	uint4 v;
	asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0,%1,%2,%3}, [%4];"
				 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
				 : "l"(p)
				 : "memory");
	return v;
}

__device__ __forceinline__ uint4 multimem_sum_bf16(const void *p) {
	uint4 v;
	asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {%0,%1,%2,%3}, [%4];"
				 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
				 : "l"(p)
				 : "memory");
	return v;
}

__device__ __forceinline__ uint4 multimem_sum_f16(const void *p) {
	uint4 v;
	asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2 {%0,%1,%2,%3}, [%4];"
				 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
				 : "l"(p)
				 : "memory");
	return v;
}

// fence_alias orders accesses of this thread by a multicast group's addresses with those by other addresses
// of the same memory (8.7 proxies, 9.7.13.4 fence.proxy): it is needed beside a fence, not instead of one.
__device__ __forceinline__ void fence_alias() { asm volatile("fence.proxy.alias;" ::: "memory"); }

#endif

// ---- Time (10.27 %globaltimer) and patience (9.7.21.1 nanosleep, here with 0 to 1000 ns).

__device__ __forceinline__ u64 nanoseconds() {
	u64 t;
	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
	return t;
}

__device__ __forceinline__ void pause(u32 ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }

// ---- A thread's way through a kernel (9.7.6.2 setp, 9.7.12.7 exit).

// computed makes the compiler compute addresses here rather than where they are used. A kernel calls it before
// wait_for_previous, with the bitwise or of the addresses that follow from its arguments alone. Then loads and stores
// follow the wait at once. The thread would exit if the or were 0. It never is, but the compiler does not know that: it
// computes the addresses before the branch, and leaves behind it what the thread does later.
__device__ __forceinline__ void computed(u64 addresses) {
	asm volatile("{ .reg .pred p; setp.eq.u64 p, %0, 0; @p exit; }" ::"l"(addresses) : "memory");
}

// kept is an address that the compiler keeps in a register. It may not compute it anew where it is used.
template <class P> __device__ __forceinline__ P *kept(P *address) {
	asm volatile("" : "+l"(address));
	return address;
}

// ---- Dependent launches (9.7.13.13 griddepcontrol). Without the launch attribute, and before
// Hopper, both do nothing.

// wait_for_previous returns when the kernel before this one in the stream has ended and its writes
// are seen.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// let_next_start allows the next kernel's blocks to be scheduled once every block of this one has
// called it.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- Barriers in shared memory (9.7.13.15 mbarrier). What a thread has done before it arrives,
// those see who find the phase done.

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(u64 *barrier, u32 arrivals) {
	asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u64 *barrier) {
	asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(shared_address(barrier)) : "memory");
}

// barrier_done says whether a phase is over, and does not wait.
__device__ __forceinline__ bool barrier_done(u64 *barrier, u32 parity) {
	u32 done;
	asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
				 : "=r"(done)
				 : "r"(shared_address(barrier)), "r"(parity)
				 : "memory");
	return done != 0;
}

// ---- Barriers of some of a block's threads (9.7.13.1 barrier): whole warps, so many threads, which call with the same
// number from 1 to 15. What a thread has done before, those see who leave the barrier.

__device__ __forceinline__ void sync_some(u32 barrier, u32 threads) {
	asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// sync_some_and is a barrier.red behind a setp: all of them learn whether p is true in each.
__device__ __forceinline__ bool sync_some_and(u32 barrier, u32 threads, bool p) {
	u32 all;
	asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %3, 0; barrier.red.and.pred q, %1, %2, p; selp.u32 %0, 1, 0, q; }"
				 : "=r"(all)
				 : "r"(barrier), "r"(threads), "r"((u32)p)
				 : "memory");
	return all != 0;
}

// ---- Shared memory (9.7.9.8 ld, 9.7.9.11 st, 9.7.13.7 red).

// shared_at gives where something stands, for what follows. All lanes of a warp call it, with the
// same p. The compiler keeps the result of a shuffle in a register. The address of a variable it
// computes anew at each use, from the block's number in its cluster, which takes longer than the
// load.
__device__ __forceinline__ u64 shared_at(const void *p) { return __shfl_sync(0xFFFFFFFFu, shared_address(p), 0); }

__device__ __forceinline__ u32 load_shared4(u64 at) {
	u32 v;
	asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"((u32)at) : "memory");
	return v;
}

__device__ __forceinline__ uint2 load_shared8(u64 at) {
	uint2 v;
	asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"((u32)at) : "memory");
	return v;
}

__device__ __forceinline__ uint4 load_shared16(u64 at) {
	uint4 v;
	asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
				 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
				 : "r"((u32)at)
				 : "memory");
	return v;
}

__device__ __forceinline__ void store_shared4(u64 at, u32 v) {
	asm volatile("st.shared.u32 [%0], %1;" ::"r"((u32)at), "r"(v) : "memory");
}

__device__ __forceinline__ void store_shared16(u64 at, uint4 v) {
	asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"((u32)at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
				 : "memory");
}

// or_shared4 is a red behind a setp: no branch is around it.
__device__ __forceinline__ void or_shared4(u64 at, u32 v, bool here) {
	asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p red.relaxed.cta.shared.or.b32 [%0], %1; }" ::"r"((u32)at),
				 "r"(v), "r"((u32)here)
				 : "memory");
}

// ---- Bulk copies through shared memory, Hopper and later (9.7.9.25.4 cp.async.bulk, 9.7.13.15
// mbarrier, 9.7.9.25.3 async groups).
#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void fence_barrier_init() {
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_expect(u64 *barrier, u32 bytes) {
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
				 : "memory");
}

// barrier_awaited is barrier_done that may wait a while.
__device__ __forceinline__ bool barrier_awaited(u64 *barrier, u32 parity) {
	u32 done;
	asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
				 : "=r"(done)
				 : "r"(shared_address(barrier)), "r"(parity)
				 : "memory");
	return done != 0;
}

__device__ __forceinline__ void bulk_load(void *shared, const void *global, u32 bytes, u64 *barrier) {
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
					 shared_address(shared)),
				 "l"(global), "r"(bytes), "r"(shared_address(barrier))
				 : "memory");
}

__device__ __forceinline__ void bulk_store(void *global, const void *shared, u32 bytes) {
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
				 "r"(shared_address(shared)), "r"(bytes)
				 : "memory");
}

__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// bulk_wait_read returns when the sources of all groups have been read, bulk_wait_read_before when those
// of all but the last group have; bulk_wait when all groups are done.
__device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

__device__ __forceinline__ void bulk_wait_read_before() {
	asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
}

__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// fence_async orders accesses through the async proxy, which bulk copies use, with others (8.7
// proxies). fence_async_shared does so for shared memory alone, and does not wait for stores
// elsewhere.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif

// ---- Arithmetic in fp32, rounded once to nearest even, never contracted (9.7.3 floating point
// instructions).

__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ float divide(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float root(float a) { return __fsqrt_rn(a); }
__device__ __forceinline__ u32 bits(float a) { return __float_as_uint(a); }
__device__ __forceinline__ float number(u32 a) { return __uint_as_float(a); }

// ---- The same in fp64.

__device__ __forceinline__ double add64(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ double multiply64(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double fused64(double a, double b, double c) { return __fma_rn(a, b, c); }
__device__ __forceinline__ double divide64(double a, double b) { return __ddiv_rn(a, b); }
__device__ __forceinline__ u64 bits64(double a) { return (u64)__double_as_longlong(a); }
__device__ __forceinline__ double number64(u64 a) { return __longlong_as_double((long long)a); }

// ---- Matrix products of a warp (9.7.14.5.14 mma), of bf16 numbers, two to a word, the first in
// the lower half.

// mma_bf16 gives c + a·b: a is 16 x 16, b 16 x 8, c 16 x 8. The warp's lanes hold them as
// 9.7.14.5.8 says: with g = lane / 4 and t = 2 * (lane % 4), a has the columns from t on of the
// rows g and g + 8, then those from t + 8 on; b the rows from t on, then from t + 8 on, of the
// column g; c the columns from t on of the rows g and g + 8. All lanes call it. Sums are in fp32,
// in an order that is the GPU's.
__device__ __forceinline__ float4 mma_bf16(float4 c, uint4 a, uint2 b) {
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c.x), "+f"(c.y), "+f"(c.z), "+f"(c.w)
		: "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
	return c;
}

// ---- Conversions (9.7.9.22 cvt). A NaN becomes the positive one with all mantissa bits set. Of
// two numbers the first is the lower half.

__device__ __forceinline__ u32 to_bf16x2(float low, float high) {
	u32 v;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
	return v;
}

__device__ __forceinline__ u32 to_f16x2(float low, float high) {
	u32 v;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
	return v;
}

__device__ __forceinline__ float from_f16(u16 h) {
	float f;
	asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
	return f;
}

#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ u16 to_e4m3x2(float low, float high) {
	u16 v;
	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(high), "f"(low));
	return v;
}
#else
// to_e4m3 rounds to nearest even and saturates, for GPUs that have no such instruction: the number
// is scaled so that fp32's own rounding is at the last bit that stays.
__device__ __forceinline__ u32 to_e4m3(float a) {
	u32 sign = bits(a) >> 24 & 0x80, magnitude = bits(a) & 0x7FFFFFFF;
	if (magnitude > 0x7F800000) return 0x7F;
	if (magnitude >= 0x43E80000) return sign | 0x7E; // 464 and more, where rounding would leave the range
	if (magnitude < 0x3C800000) {					 // below 2^-6: multiples of 2^-9
		return sign | (bits(add(number(magnitude), 16384.0f)) & 0xF);
	}
	magnitude += 0x7FFFF + (magnitude >> 20 & 1);
	return sign | (((magnitude >> 20) - (120 << 3)) & 0x7F);
}

__device__ __forceinline__ u16 to_e4m3x2(float low, float high) { return (u16)(to_e4m3(high) << 8 | to_e4m3(low)); }
#endif

#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ u16 to_e5m2x2(float low, float high) {
	u16 v;
	asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(v) : "f"(high), "f"(low));
	return v;
}
#else
// to_e5m2 is as to_e4m3.
__device__ __forceinline__ u32 to_e5m2(float a) {
	u32 sign = bits(a) >> 24 & 0x80, magnitude = bits(a) & 0x7FFFFFFF;
	if (magnitude > 0x7F800000) return 0x7F;
	if (magnitude >= 0x47700000) return sign | 0x7B; // 61440 and more, where rounding would leave the range
	if (magnitude < 0x38800000) {					 // below 2^-14: multiples of 2^-16
		return sign | (bits(add(number(magnitude), 128.0f)) & 0x7);
	}
	magnitude += 0xFFFFF + (magnitude >> 21 & 1);
	return sign | (((magnitude >> 21) - (112 << 2)) & 0x7F);
}

__device__ __forceinline__ u16 to_e5m2x2(float low, float high) { return (u16)(to_e5m2(high) << 8 | to_e5m2(low)); }
#endif

} // namespace weft
