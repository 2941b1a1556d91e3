// The functions of Weft's ptx.cuh for the emulator: the same names, parameters and meaning. Words
// are C++ atomics of the host. A load that a kernel may poll with lets other threads run after a
// while. With tearing the words of a vector are loaded one by one, with other threads in between,
// and stores to other memory are delayed: they land in any order, the last when the block ends or a
// fence says so.
#pragma once

namespace weft {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

namespace host {

inline bool tears() { return emulate::self()->block->grid->tear; }

// late says whether stores to what reach was asked about last are put off.
inline bool late() {
	emulate::Grid *g = emulate::self()->block->grid;
	return g->tear && g->peer;
}

// Before each load and addition: what this block has stored to the same address must be there.
inline void before_load(const void *p, u32 bytes) {
	if (late()) emulate::land(p, bytes);
}

// Before a load that a kernel may poll with.
inline void before_poll(const void *p, u32 bytes, const char *name) {
	emulate::poll();
	emulate::reach(p, bytes, name);
	before_load(p, bytes);
}

template <int order> inline u32 word(const void *p, int i = 0) {
	return __atomic_load_n((const u32 *)p + i, order);
}

inline void put(void *p, int i, u32 v) {
	if (late()) {
		emulate::defer((u32 *)p + i, v, 4);
	} else {
		__atomic_store_n((u32 *)p + i, v, __ATOMIC_RELAXED);
	}
}

inline void put64(void *p, int i, u64 v) {
	if (late()) {
		emulate::defer((u64 *)p + i, v, 8);
	} else {
		__atomic_store_n((u64 *)p + i, v, __ATOMIC_RELAXED);
	}
}

inline void gap() {
	if (tears()) emulate::tear();
}

inline uint4 load16(const void *p) {
	before_load(p, 16);
	uint4 v;
	if (!tears()) {
		v.x = word<__ATOMIC_RELAXED>(p, 0), v.y = word<__ATOMIC_RELAXED>(p, 1);
		v.z = word<__ATOMIC_RELAXED>(p, 2), v.w = word<__ATOMIC_RELAXED>(p, 3);
		return v;
	}
	v.w = word<__ATOMIC_RELAXED>(p, 3);
	emulate::tear();
	v.y = word<__ATOMIC_RELAXED>(p, 1);
	emulate::tear();
	v.x = word<__ATOMIC_RELAXED>(p, 0);
	emulate::tear();
	v.z = word<__ATOMIC_RELAXED>(p, 2);
	return v;
}

// Between two words others may have changed what late looks at: it is asked once.
inline void store16(void *p, uint4 v) {
	if (late()) {
		emulate::defer((u32 *)p + 0, v.x, 4), emulate::defer((u32 *)p + 1, v.y, 4);
		emulate::defer((u32 *)p + 2, v.z, 4), emulate::defer((u32 *)p + 3, v.w, 4);
		return;
	}
	const u32 words[4] = {v.x, v.y, v.z, v.w};
	for (int i = 3; i >= 0; i--) {
		__atomic_store_n((u32 *)p + i, words[i], __ATOMIC_RELAXED);
		gap();
	}
}

} // namespace host

__device__ __forceinline__ uint4 load_once(const void *p) {
	emulate::reach(p, 16, __func__);
	return host::load16(p);
}

__device__ __forceinline__ uint2 load_once8(const void *p) {
	host::before_load(p, 8);
	emulate::reach(p, 8, __func__);
	return make_uint2(host::word<__ATOMIC_RELAXED>(p, 0), host::word<__ATOMIC_RELAXED>(p, 1));
}

__device__ __forceinline__ uint4 load_relaxed_sys16(const void *p) {
	emulate::poll();
	emulate::reach(p, 16, __func__);
	return host::load16(p);
}

__device__ __forceinline__ uint2 load_relaxed_sys8(const void *p) {
	host::before_poll(p, 8, __func__);
	uint2 v;
	v.y = host::word<__ATOMIC_RELAXED>(p, 1);
	host::gap();
	v.x = host::word<__ATOMIC_RELAXED>(p, 0);
	return v;
}

__device__ __forceinline__ u32 load_relaxed_sys4(const void *p) {
	host::before_poll(p, 4, __func__);
	return host::word<__ATOMIC_RELAXED>(p);
}

__device__ __forceinline__ ulonglong2 load_relaxed_sys_u64x2(const void *p) {
	host::before_poll(p, 16, __func__);
	ulonglong2 v;
	v.y = __atomic_load_n((const u64 *)p + 1, __ATOMIC_RELAXED);
	host::gap();
	v.x = __atomic_load_n((const u64 *)p, __ATOMIC_RELAXED);
	return v;
}

__device__ __forceinline__ u64 load_relaxed_sys_u64(const void *p) {
	host::before_poll(p, 8, __func__);
	return __atomic_load_n((const u64 *)p, __ATOMIC_RELAXED);
}

__device__ __forceinline__ u32 load_relaxed_gpu4(const void *p) {
	host::before_poll(p, 4, __func__);
	return host::word<__ATOMIC_RELAXED>(p);
}

__device__ __forceinline__ u32 load_acquire_sys4(const void *p) {
	host::before_poll(p, 4, __func__);
	return host::word<__ATOMIC_ACQUIRE>(p);
}

__device__ __forceinline__ uint4 load_acquire_sys16(const void *p) {
	emulate::poll();
	emulate::reach(p, 16, __func__);
	uint4 v = host::load16(p);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return v;
}

__device__ __forceinline__ u64 load_acquire_sys_u64(const void *p) {
	host::before_poll(p, 8, __func__);
	return __atomic_load_n((const u64 *)p, __ATOMIC_ACQUIRE);
}

__device__ __forceinline__ void store16(void *p, uint4 v) {
	emulate::reach(p, 16, __func__);
	host::store16(p, v);
}

__device__ __forceinline__ void store8(void *p, uint2 v) {
	emulate::reach(p, 8, __func__);
	host::put(p, 1, v.y);
	host::put(p, 0, v.x);
}

__device__ __forceinline__ void store_relaxed_sys16(void *p, uint4 v) {
	emulate::reach(p, 16, __func__);
	host::store16(p, v);
}

// The last lane of a line stores all of it, the flag last, and never late: a GPU's line arrives whole.
__device__ __forceinline__ void store_line(void *p, uint4 v) {
	emulate::reach(p, 16, __func__);
	u32 lane = emulate::self()->lane, first = lane & ~7u;
	u32 line[32];
	for (u32 i = 0; i < 8; i++) {
		line[4 * i] = __shfl_sync(0xFFFFFFFFu, v.x, first + i);
		line[4 * i + 1] = __shfl_sync(0xFFFFFFFFu, v.y, first + i);
		line[4 * i + 2] = __shfl_sync(0xFFFFFFFFu, v.z, first + i);
		line[4 * i + 3] = __shfl_sync(0xFFFFFFFFu, v.w, first + i);
	}
	if (lane != first + 7) return;
	for (u32 i = 0; i < 32; i++) __atomic_store_n((u32 *)((u8 *)p - 112) + i, line[i], __ATOMIC_RELEASE);
}

__device__ __forceinline__ void store_relaxed_sys8(void *p, uint2 v) {
	emulate::reach(p, 8, __func__);
	host::put(p, 1, v.y);
	host::put(p, 0, v.x);
}

__device__ __forceinline__ void store_relaxed_sys4(void *p, u32 v) {
	emulate::reach(p, 4, __func__);
	host::put(p, 0, v);
}

__device__ __forceinline__ void store_relaxed_sys_u64x2(void *p, ulonglong2 v) {
	emulate::reach(p, 16, __func__);
	host::put64(p, 1, v.y);
	host::gap();
	host::put64(p, 0, v.x);
}

__device__ __forceinline__ void store_relaxed_sys_u64(void *p, u64 v) {
	emulate::reach(p, 8, __func__);
	host::put64(p, 0, v);
}

__device__ __forceinline__ void store_relaxed_gpu4(void *p, u32 v) {
	emulate::reach(p, 4, __func__);
	host::put(p, 0, v);
}

__device__ __forceinline__ void store_release_sys4(void *p, u32 v) {
	emulate::reach(p, 4, __func__);
	emulate::fence();
	__atomic_store_n((u32 *)p, v, __ATOMIC_RELEASE);
}

__device__ __forceinline__ void store_release_sys_u64(void *p, u64 v) {
	emulate::reach(p, 8, __func__);
	emulate::fence();
	__atomic_store_n((u64 *)p, v, __ATOMIC_RELEASE);
}

__device__ __forceinline__ void fence_sys() { emulate::fence(); }

__device__ __forceinline__ void fence_gpu() { emulate::fence(); }

__device__ __forceinline__ u32 atomic_add_gpu4(void *p, u32 v) {
	emulate::poll();
	emulate::reach(p, 4, __func__);
	emulate::fence();
	return __atomic_fetch_add((u32 *)p, v, __ATOMIC_ACQ_REL);
}

__device__ __forceinline__ u32 atomic_cas_gpu4(void *p, u32 expected, u32 v) {
	emulate::poll();
	emulate::reach(p, 4, __func__);
	emulate::fence();
	__atomic_compare_exchange_n((u32 *)p, &expected, v, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	return expected;
}

__device__ __forceinline__ u64 atomic_cas_relaxed_gpu_u64(void *p, u64 expected, u64 v) {
	emulate::poll();
	emulate::reach(p, 8, __func__);
	host::before_load(p, 8);
	__atomic_compare_exchange_n((u64 *)p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	return expected;
}

__device__ __forceinline__ void add_relaxed_sys_u64(void *p, u64 v) {
	emulate::reach(p, 8, __func__);
	host::before_load(p, 8);
	__atomic_fetch_add((u64 *)p, v, __ATOMIC_RELAXED);
}

#if __CUDA_ARCH__ >= 900

namespace host {

// sum16 adds up a vector of all devices, a word at a time, in an order that is not that of the devices.
template <class Add> inline uint4 sum16(const void *p, const char *name, Add add) {
	u8 *at[128];
	u32 n = 0;
	for (bool peer; n < 128 && (at[n] = emulate::replica(p, 16, n, &peer, name)) != nullptr;) n++;
	u32 first = (u32)((u64)p / 16 % n), words[4];
	for (u32 w = 0; w < 4; w++) {
		u32 rows[128];
		for (u32 i = 0; i < n; i++) rows[i] = word<__ATOMIC_RELAXED>(at[(first + n - i) % n], (int)w);
		gap();
		words[w] = add(rows, n);
	}
	return make_uint4(words[0], words[1], words[2], words[3]);
}

} // namespace host

__device__ __forceinline__ void multimem_store16(void *p, uint4 v) {
	const u32 words[4] = {v.x, v.y, v.z, v.w};
	u8 *at;
	bool peer;
	for (u32 i = 0; (at = emulate::replica(p, 16, i, &peer, __func__)) != nullptr; i++) {
		for (u32 w = 0; w < 4; w++) {
			if (host::tears()) {
				emulate::defer_aliased((u32 *)at + w, words[w], 4);
			} else {
				__atomic_store_n((u32 *)at + w, words[w], __ATOMIC_RELAXED);
			}
		}
	}
}

__device__ __forceinline__ void fence_alias() { emulate::fence_alias(); }

#endif

__device__ __forceinline__ u64 nanoseconds() { return emulate::now(); }

__device__ __forceinline__ void pause(u32 ns) {
	(void)ns;
	emulate::yield();
}

// A launch begins here when the one before it has ended.
__device__ __forceinline__ void wait_for_previous() {}
__device__ __forceinline__ void let_next_start() {}
__device__ __forceinline__ void computed(u64 addresses) { (void)addresses; }
template <class P> __device__ __forceinline__ P *kept(P *address) { return address; }

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ u64 shared_at(const void *p) { return (u64)p; }
__device__ __forceinline__ u32 load_shared4(u64 at) { return *(const u32 *)at; }
__device__ __forceinline__ uint2 load_shared8(u64 at) { return *(const uint2 *)at; }
__device__ __forceinline__ uint4 load_shared16(u64 at) { return *(const uint4 *)at; }
__device__ __forceinline__ void store_shared4(u64 at, u32 v) { *(u32 *)at = v; }
__device__ __forceinline__ void store_shared16(u64 at, uint4 v) { *(uint4 *)at = v; }
__device__ __forceinline__ void or_shared4(u64 at, u32 v, bool here) {
	if (here) *(u32 *)at |= v;
}
__device__ __forceinline__ void sync_some(u32 barrier, u32 threads) { emulate::barrier_of(barrier, threads, 0); }
__device__ __forceinline__ bool sync_some_and(u32 barrier, u32 threads, bool p) {
	return emulate::barrier_of(barrier, threads, p) == threads;
}
__device__ __forceinline__ void barrier_init(u64 *barrier, u32 arrivals) { emulate::barrier_init(barrier, arrivals); }
__device__ __forceinline__ void barrier_arrive(u64 *barrier) { emulate::barrier_expect(barrier, 0); }
__device__ __forceinline__ bool barrier_done(u64 *barrier, u32 parity) {
	return emulate::barrier_done(barrier, parity);
}

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void fence_barrier_init() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
__device__ __forceinline__ void barrier_expect(u64 *barrier, u32 bytes) { emulate::barrier_expect(barrier, bytes); }
__device__ __forceinline__ bool barrier_awaited(u64 *barrier, u32 parity) {
	return emulate::barrier_done(barrier, parity);
}
__device__ __forceinline__ void bulk_load(void *shared, const void *global, u32 bytes, u64 *barrier) {
	emulate::bulk_load(shared, global, bytes, barrier);
}
__device__ __forceinline__ void bulk_store(void *global, const void *shared, u32 bytes) {
	emulate::bulk_store(global, shared, bytes);
}
__device__ __forceinline__ void bulk_commit() { emulate::bulk_commit(); }
__device__ __forceinline__ void bulk_wait_read() { emulate::bulk_wait(); }
__device__ __forceinline__ void bulk_wait_read_before() { emulate::bulk_wait_before(); }
__device__ __forceinline__ void bulk_wait() { emulate::bulk_wait(); }
__device__ __forceinline__ void fence_async() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
__device__ __forceinline__ void fence_async_shared() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

#endif

__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ float divide(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float root(float a) { return __fsqrt_rn(a); }
__device__ __forceinline__ u32 bits(float a) { return __float_as_uint(a); }
__device__ __forceinline__ float number(u32 a) { return __uint_as_float(a); }

__device__ __forceinline__ double add64(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ double multiply64(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double fused64(double a, double b, double c) { return __fma_rn(a, b, c); }
__device__ __forceinline__ double divide64(double a, double b) { return __ddiv_rn(a, b); }
__device__ __forceinline__ u64 bits64(double a) { return (u64)__double_as_longlong(a); }
__device__ __forceinline__ double number64(u64 a) { return __longlong_as_double((long long)a); }

// A lane gathers from those that hold them the rows of a and the columns of b that meet in its part
// of c, and adds in ascending order.
__device__ __forceinline__ float4 mma_bf16(float4 c, uint4 a, uint2 b) {
	float sums[4] = {c.x, c.y, c.z, c.w};
	u32 lane = emulate::self()->lane, group = lane & ~3u, column = 2 * (lane & 3);
	for (u32 half = 0; half < 2; half++) {
		u32 upper = half == 0 ? a.x : a.z, lower = half == 0 ? a.y : a.w, right = half == 0 ? b.x : b.y;
		for (u32 k = 0; k < 4; k++) {
			u32 rows[2] = {__shfl_sync(0xFFFFFFFFu, upper, group + k), __shfl_sync(0xFFFFFFFFu, lower, group + k)};
			u32 columns[2] = {__shfl_sync(0xFFFFFFFFu, right, 4 * column + k),
							  __shfl_sync(0xFFFFFFFFu, right, 4 * (column + 1) + k)};
			for (u32 i = 0; i < 4; i++) {
				u32 x = rows[i / 2], y = columns[i % 2];
				sums[i] = fused(number(x << 16), number(y << 16), sums[i]);
				sums[i] = fused(number(x & 0xFFFF0000), number(y & 0xFFFF0000), sums[i]);
			}
		}
	}
	return {sums[0], sums[1], sums[2], sums[3]};
}

namespace host {

inline u32 bf16(float a) {
	u32 b = bits(a);
	if ((b & 0x7FFFFFFF) > 0x7F800000) return 0x7FFF;
	return (b + 0x7FFF + (b >> 16 & 1)) >> 16;
}

// f16 and fp8 scale the small numbers so that fp32's own rounding is at the last bit that stays.
inline u32 f16(float a) {
	u32 sign = bits(a) >> 16 & 0x8000, m = bits(a) & 0x7FFFFFFF;
	if (m > 0x7F800000) return 0x7FFF;
	if (m >= 0x477FF000) return sign | 0x7C00; // 65520 and more
	if (m < 0x38800000) return sign | (bits(number(m) + 0.5f) & 0x7FF);
	m += 0xFFF + (m >> 13 & 1);
	return sign | ((m >> 13) - (112 << 10));
}

// fp8 rounds to a format of so many mantissa bits. From limit on numbers become the largest one, whose code is most.
inline u32 fp8(float a, u32 mantissa, u32 bias, float limit, u32 most) {
	u32 sign = bits(a) >> 24 & 0x80, m = bits(a) & 0x7FFFFFFF, drop = 23 - mantissa;
	if (m > 0x7F800000) return 0x7F;
	if (m >= bits(limit)) return sign | most;
	u32 unit = (151 - bias - mantissa) << 23;
	if (m < (128 - bias) << 23) return sign | (bits(number(m) + number(unit)) - unit);
	m += (1u << (drop - 1)) - 1 + (m >> drop & 1);
	return sign | ((m >> drop) - ((127 - bias) << mantissa));
}

inline u32 e4m3(float a) { return fp8(a, 3, 7, 464, 0x7E); }
inline u32 e5m2(float a) { return fp8(a, 2, 15, 61440, 0x7B); }

} // namespace host

__device__ __forceinline__ u32 to_bf16x2(float low, float high) { return host::bf16(high) << 16 | host::bf16(low); }

__device__ __forceinline__ u32 to_f16x2(float low, float high) { return host::f16(high) << 16 | host::f16(low); }

__device__ __forceinline__ float from_f16(u16 h) {
	u32 sign = (u32)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023;
	if (e == 31) return m == 0 ? number(sign | 0x7F800000) : number(0x7FFFFFFF);
	float small = (float)m * 0x1p-24f;
	return e == 0 ? number(sign | bits(small)) : number(sign | (e + 112) << 23 | m << 13);
}

__device__ __forceinline__ u16 to_e4m3x2(float low, float high) {
	return (u16)(host::e4m3(high) << 8 | host::e4m3(low));
}

__device__ __forceinline__ u16 to_e5m2x2(float low, float high) {
	return (u16)(host::e5m2(high) << 8 | host::e5m2(low));
}

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ uint4 multimem_sum_f32(const void *p) {
	return host::sum16(p, __func__, [](const u32 *rows, u32 n) {
		float sum = number(rows[0]);
		for (u32 i = 1; i < n; i++) sum = add(sum, number(rows[i]));
		return bits(sum);
	});
}

__device__ __forceinline__ uint4 multimem_sum_bf16(const void *p) {
	return host::sum16(p, __func__, [](const u32 *rows, u32 n) {
		float low = number(rows[0] << 16), high = number(rows[0] & 0xFFFF0000);
		for (u32 i = 1; i < n; i++) {
			low = add(low, number(rows[i] << 16));
			high = add(high, number(rows[i] & 0xFFFF0000));
		}
		return to_bf16x2(low, high);
	});
}

__device__ __forceinline__ uint4 multimem_sum_f16(const void *p) {
	return host::sum16(p, __func__, [](const u32 *rows, u32 n) {
		float low = from_f16((u16)rows[0]), high = from_f16((u16)(rows[0] >> 16));
		for (u32 i = 1; i < n; i++) {
			low = add(low, from_f16((u16)rows[i]));
			high = add(high, from_f16((u16)(rows[i] >> 16)));
		}
		return to_f16x2(low, high);
	});
}

#endif

#if __CUDA_ARCH__ < 890
__device__ __forceinline__ u32 to_e4m3(float a) { return host::e4m3(a); }
__device__ __forceinline__ u32 to_e5m2(float a) { return host::e5m2(a); }
#endif

} // namespace weft
