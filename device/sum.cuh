// Sums of rows in fp32: fused multiply-adds in the order of the calls, rounded once at the end. A
// lane has 16 bytes of a row, or 8. WEFT_TYPE is the type of the rows' elements.
#pragma once
#include "ptx.cuh"

#ifndef WEFT_TYPE
#define WEFT_TYPE 1 // 1 bf16, 2 fp16, 3 fp32
#endif

namespace weft {

constexpr int NUMBERS = WEFT_TYPE == 3 ? 4 : 8; // of a lane

// SumOf is the lane's part of a sum, +0 in the beginning. V is uint4 or uint2.
template <class V> struct SumOf {
	static constexpr int WORDS = sizeof(V) / 4, NUMBERS = WEFT_TYPE == 3 ? WORDS : 2 * WORDS;

	float f[NUMBERS];

	__device__ __forceinline__ SumOf() {
#pragma unroll
		for (int i = 0; i < NUMBERS; i++) f[i] = 0;
	}

	__device__ __forceinline__ static void widen(float *x, V v) {
		u32 w[WORDS];
		split(w, v);
#pragma unroll
		for (int i = 0; i < WORDS; i++) {
#if WEFT_TYPE == 1
			x[2 * i] = number(w[i] << 16);
			x[2 * i + 1] = number(w[i] & 0xFFFF0000u);
#elif WEFT_TYPE == 2
			x[2 * i] = from_f16((u16)w[i]);
			x[2 * i + 1] = from_f16((u16)(w[i] >> 16));
#else
			x[i] = number(w[i]);
#endif
		}
	}

	// start begins the sum with a row instead.
	__device__ __forceinline__ void start(V v) { widen(f, v); }

	// take adds weight times a row.
	__device__ __forceinline__ void take(V v, float weight) {
		float x[NUMBERS];
		widen(x, v);
#pragma unroll
		for (int i = 0; i < NUMBERS; i++) f[i] = fused(weight, x[i], f[i]);
	}

	// round gives the sum in the rows' type, rounded to nearest even. A NaN is the positive one with
	// all mantissa bits set.
	__device__ __forceinline__ V round() const {
		u32 w[WORDS];
#pragma unroll
		for (int i = 0; i < WORDS; i++) {
#if WEFT_TYPE == 1
			w[i] = to_bf16x2(f[2 * i], f[2 * i + 1]);
#elif WEFT_TYPE == 2
			w[i] = to_f16x2(f[2 * i], f[2 * i + 1]);
#else
			w[i] = f[i] != f[i] ? 0x7FFFFFFFu : bits(f[i]);
#endif
		}
		V v;
		join(v, w);
		return v;
	}

private:
	__device__ __forceinline__ static void split(u32 *w, uint4 v) { w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w; }
	__device__ __forceinline__ static void split(u32 *w, uint2 v) { w[0] = v.x, w[1] = v.y; }
	__device__ __forceinline__ static void join(uint4 &v, const u32 *w) { v = make_uint4(w[0], w[1], w[2], w[3]); }
	__device__ __forceinline__ static void join(uint2 &v, const u32 *w) { v = make_uint2(w[0], w[1]); }
};

typedef SumOf<uint4> Sum;

} // namespace weft
