// The built-in names of CUDA C++, for a host's compiler. __global__, __shared__ and
// __launch_bounds__ remain for the translator of the preprocessed text.
#pragma once
#include "machine.h"

#define __CUDACC__ 1
#define __host__
#define __device__
#define __constant__ static
#define __grid_constant__
#define __forceinline__ inline // where it is always, each copy is compiled
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict

typedef emulate::Index uint3;

#define threadIdx (::emulate::self()->index)
#define blockIdx (::emulate::self()->block->index)
#define blockDim (::emulate::self()->block->grid->threads)
#define gridDim (::emulate::self()->block->grid->blocks)
constexpr int warpSize = 32;

// clang-format off
#define EMULATE_VECTORS(T, name, a2, a4) \
	struct a2 name##2 { T x, y; }; \
	struct name##3_ { T x, y, z; }; \
	struct a4 name##4 { T x, y, z, w; }; \
	inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
	inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATE_VECTORS(unsigned char, uchar, alignas(2), alignas(4))
EMULATE_VECTORS(signed char, char, alignas(2), alignas(4))
EMULATE_VECTORS(unsigned short, ushort, alignas(4), alignas(8))
EMULATE_VECTORS(short, short, alignas(4), alignas(8))
EMULATE_VECTORS(unsigned int, uint, alignas(8), alignas(16))
EMULATE_VECTORS(int, int, alignas(8), alignas(16))
EMULATE_VECTORS(float, float, alignas(8), alignas(16))
EMULATE_VECTORS(unsigned long long, ulonglong, alignas(16), alignas(16))
EMULATE_VECTORS(long long, longlong, alignas(16), alignas(16))
EMULATE_VECTORS(double, double, alignas(16), alignas(16))
#undef EMULATE_VECTORS
// clang-format on
typedef float3_ float3;
typedef int3_ int3;
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline int3 make_int3(int x, int y, int z) { return {x, y, z}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
struct dim3 {
	unsigned x, y, z;
	constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
typedef unsigned long size_t;

// ---- Threads that meet.

#define EMULATE_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(EMULATE_HERE) { emulate::barrier(emulate::BARRIER, 0, file, line); }
// clang-format off
#define EMULATE_BARRIER(name, kind) \
	inline int __syncthreads_##name(int p, EMULATE_HERE) { \
		return (int)emulate::barrier(emulate::BARRIER_##kind, p != 0, file, line); \
	}
EMULATE_BARRIER(count, COUNT)
EMULATE_BARRIER(and, AND)
EMULATE_BARRIER(or, OR)
#undef EMULATE_BARRIER
// clang-format on
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, EMULATE_HERE) {
	emulate::meet(emulate::SYNC, mask, 0, 0, file, line);
}
// clang-format off
#define EMULATE_VOTE(name, T, op) \
	inline T __##name##_sync(unsigned m, int p, EMULATE_HERE) { \
		return (T)emulate::meet(emulate::op, m, p != 0, 0, file, line); \
	}
EMULATE_VOTE(ballot, unsigned, BALLOT)
EMULATE_VOTE(any, int, ANY)
EMULATE_VOTE(all, int, ALL)
#undef EMULATE_VOTE
// clang-format on
inline unsigned __activemask() { return 1u << emulate::self()->lane; }

namespace emulate {

template <class T> inline u64 raw(T v) {
	static_assert(sizeof(T) <= 8, "a shuffle takes 8 bytes at most");
	u64 w = 0;
	__builtin_memcpy(&w, &v, sizeof v);
	return w;
}

template <class T> inline T cooked(u64 w) {
	T v;
	__builtin_memcpy(&v, &w, sizeof v);
	return v;
}

template <class T> inline T shuffle(u32 mask, T v, u32 source, const char *file, int line) {
	return cooked<T>(meet(SHUFFLE, mask, raw(v), source, file, line));
}

} // namespace emulate

template <class T> inline T __shfl_sync(unsigned mask, T v, int source, int width = 32, EMULATE_HERE) {
	unsigned lane = emulate::self()->lane;
	return emulate::shuffle(mask, v, (lane & ~(unsigned)(width - 1)) | ((unsigned)source & (unsigned)(width - 1)), file,
							line);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, EMULATE_HERE) {
	unsigned lane = emulate::self()->lane, at = lane & (unsigned)(width - 1);
	return emulate::shuffle(mask, v, at < by ? lane : lane - by, file, line);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, EMULATE_HERE) {
	unsigned lane = emulate::self()->lane, at = lane & (unsigned)(width - 1);
	return emulate::shuffle(mask, v, at + by >= (unsigned)width ? lane : lane + by, file, line);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int by, int width = 32, EMULATE_HERE) {
	unsigned lane = emulate::self()->lane, to = lane ^ (unsigned)by;
	// A later segment gives nothing, an earlier one does.
	return emulate::shuffle(mask, v, to / (unsigned)width > lane / (unsigned)width ? lane : to, file, line);
}
template <class T> inline unsigned __match_any_sync(unsigned m, T v, EMULATE_HERE) {
	return (unsigned)emulate::meet(emulate::MATCH, m, emulate::raw(v), 0, file, line);
}

// clang-format off
#define EMULATE_REDUCE(name, T, op) \
	inline T __reduce_##name##_sync(unsigned m, T v, EMULATE_HERE) { \
		return (T)emulate::meet(emulate::op, m, (unsigned)v, 0, file, line); \
	}
EMULATE_REDUCE(add, unsigned, ADD)
EMULATE_REDUCE(add, int, ADD)
EMULATE_REDUCE(min, unsigned, MINIMUM)
EMULATE_REDUCE(min, int, SIGNED_MINIMUM)
EMULATE_REDUCE(max, unsigned, MAXIMUM)
EMULATE_REDUCE(max, int, SIGNED_MAXIMUM)
EMULATE_REDUCE(and, unsigned, AND)
EMULATE_REDUCE(or, unsigned, OR)
EMULATE_REDUCE(xor, unsigned, XOR)
#undef EMULATE_REDUCE
// clang-format on

// ---- Fences and atomics on global and shared memory.

inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence() { emulate::fence(); }
inline void __threadfence_system() { emulate::fence(); }
inline void __nanosleep(unsigned) { emulate::yield(); }
inline long long clock64() { return (long long)emulate::now(); }

namespace emulate {

template <class T, class F> inline T change(T *p, F f) {
	static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomics are on 4 and 8 bytes");
	atomic(p, sizeof(T));
	T old, next;
	__atomic_load(p, &old, __ATOMIC_RELAXED);
	do next = f(old);
	while (!__atomic_compare_exchange(p, &old, &next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	return old;
}

// same is a parameter's type that decides nothing.
template <class T> struct Same {
	typedef T type;
};
template <class T> using same = typename Same<T>::type;

} // namespace emulate

// clang-format off
#define EMULATE_ATOMIC(name, value) \
	template <class T> inline T atomic##name(T *p, emulate::same<T> v) { \
		return emulate::change(p, [=](T a) { return (T)(value); }); \
	}
EMULATE_ATOMIC(Add, a + v)
EMULATE_ATOMIC(Sub, a - v)
EMULATE_ATOMIC(Max, a > v ? a : v)
EMULATE_ATOMIC(Min, a < v ? a : v)
EMULATE_ATOMIC(And, a & v)
EMULATE_ATOMIC(Or, a | v)
EMULATE_ATOMIC(Xor, a ^ v)
EMULATE_ATOMIC(Exch, ((void)a, v))
#undef EMULATE_ATOMIC
// clang-format on
template <class T> inline T atomicCAS(T *p, emulate::same<T> expected, emulate::same<T> v) {
	return emulate::change(p, [=](T a) { return a == expected ? v : a; });
}
inline unsigned atomicInc(unsigned *p, unsigned v) {
	return emulate::change(p, [=](unsigned a) { return a >= v ? 0 : a + 1; });
}

// ---- Bits.

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz((unsigned)v); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll((unsigned long long)v); }
inline unsigned __brev(unsigned v) {
	v = __builtin_bswap32(v);
	v = (v >> 4 & 0x0F0F0F0Fu) | (v & 0x0F0F0F0Fu) << 4;
	v = (v >> 2 & 0x33333333u) | (v & 0x33333333u) << 2;
	return (v >> 1 & 0x55555555u) | (v & 0x55555555u) << 1;
}
inline unsigned long long __brevll(unsigned long long v) {
	return (unsigned long long)__brev((unsigned)v) << 32 | __brev((unsigned)(v >> 32));
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
	return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
	return (unsigned)((((unsigned long long)high << 32 | low) << (by & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
	return (unsigned)(((unsigned long long)high << 32 | low) >> (by & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
	unsigned long long all = (unsigned long long)b << 32 | a;
	unsigned v = 0;
	for (int i = 0; i < 4; i++) {
		unsigned s = selector >> 4 * i, byte = (unsigned)(all >> 8 * (s & 7)) & 0xFF;
		v |= ((s & 8) ? (byte & 0x80 ? 0xFFu : 0u) : byte) << 8 * i;
	}
	return v;
}

// ---- fp32. The device's NaN of a computation is 0x7FFFFFFF.

inline unsigned __float_as_uint(float a) { return emulate::cooked<unsigned>(emulate::raw(a)); }
inline int __float_as_int(float a) { return emulate::cooked<int>(emulate::raw(a)); }
inline float __uint_as_float(unsigned a) { return emulate::cooked<float>(a); }
inline float __int_as_float(int a) { return emulate::cooked<float>((unsigned)a); }
inline double __longlong_as_double(long long a) { return emulate::cooked<double>((unsigned long long)a); }
inline long long __double_as_longlong(double a) { return emulate::cooked<long long>(emulate::raw(a)); }

namespace emulate {

inline float canonical(float a) { return a == a ? a : __uint_as_float(0x7FFFFFFFu); }

} // namespace emulate

inline float __fadd_rn(float a, float b) { return emulate::canonical(a + b); }
inline float __fsub_rn(float a, float b) { return emulate::canonical(a - b); }
inline float __fmul_rn(float a, float b) { return emulate::canonical(a * b); }
inline float __fdiv_rn(float a, float b) { return emulate::canonical(a / b); }
inline float __fmaf_rn(float a, float b, float c) { return emulate::canonical(__builtin_fmaf(a, b, c)); }
inline float __fsqrt_rn(float a) { return emulate::canonical(__builtin_sqrtf(a)); }
inline float __frcp_rn(float a) { return emulate::canonical(1.0f / a); }
inline float fmaf(float a, float b, float c) { return __fmaf_rn(a, b, c); }
inline float fabsf(float a) { return __builtin_fabsf(a); }
inline float fmaxf(float a, float b) {
	if (a != a) return emulate::canonical(b);
	if (b != b) return a;
	return a > b || (a == b && !__builtin_signbit(a)) ? a : b;
}
inline float fminf(float a, float b) {
	if (a != a) return emulate::canonical(b);
	if (b != b) return a;
	return a < b || (a == b && __builtin_signbit(a)) ? a : b;
}
inline bool isnan(float a) { return a != a; }
inline bool isinf(float a) { return __builtin_isinf(a) != 0; }
inline float __uint2float_rn(unsigned a) { return (float)a; }
inline float __int2float_rn(int a) { return (float)a; }

// ---- fp64.

inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline double __ddiv_rn(double a, double b) { return a / b; }

// clang-format off
#define EMULATE_EXTREMES(T) \
	constexpr T min(T a, T b) { return b < a ? b : a; } \
	constexpr T max(T a, T b) { return a < b ? b : a; }
EMULATE_EXTREMES(int)
EMULATE_EXTREMES(unsigned)
EMULATE_EXTREMES(long)
EMULATE_EXTREMES(unsigned long)
EMULATE_EXTREMES(long long)
EMULATE_EXTREMES(unsigned long long)
#undef EMULATE_EXTREMES
// clang-format on
constexpr unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
constexpr unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
constexpr unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
constexpr unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

template <class T> inline T __ldg(const T *p) { return *p; }
template <class T> inline T __ldcg(const T *p) { return *p; }
inline size_t __cvta_generic_to_shared(const void *p) { return (size_t)p; }

// ---- Kernels, as the scheduler calls them.

namespace emulate {

template <class... A> struct Layout {
	static constexpr u32 count = sizeof...(A);
	u32 offsets[sizeof...(A) + 1] = {}, sizes[sizeof...(A) + 1] = {};
	constexpr Layout() {
		const u32 size[] = {(u32)sizeof(A)..., 0}, align[] = {(u32)alignof(A)..., 1};
		u32 end = 0;
		for (u32 i = 0; i < count; i++) {
			end = (end + align[i] - 1) / align[i] * align[i];
			offsets[i] = end;
			sizes[i] = size[i];
			end += size[i];
		}
	}
};

template <auto F> struct Entry;

template <class... A, void (*F)(A...)> struct Entry<F> {
	static constexpr Layout<A...> layout{};
	template <class T> static T argument(const u8 *all, u32 i) {
		T v;
		__builtin_memcpy((void *)&v, all + layout.offsets[i], sizeof v);
		return v;
	}
	template <u32...> struct Numbers {};
	template <u32 n, u32... i> struct Count : Count<n - 1, n - 1, i...> {};
	template <u32... i> struct Count<0, i...> {
		typedef Numbers<i...> type;
	};
	template <u32... i> static void call(const u8 *all, Numbers<i...>) { F(argument<A>(all, i)...); }
	static void run(const u8 *all) { call(all, typename Count<sizeof...(A)>::type{}); }
};

} // namespace emulate
