// Sums of rows in fp32: fused multiply-adds in the order of the calls, rounded once at the end. A
// lane has 16 bytes of a row. WEFT_TYPE is the type of the rows' elements.
#pragma once
#include "ptx.cuh"

#ifndef WEFT_TYPE
#define WEFT_TYPE 1 // 1 bf16, 2 fp16, 3 fp32
#endif

namespace weft {

constexpr int NUMBERS = WEFT_TYPE == 3 ? 4 : 8; // of a lane

// Sum is the lane's part of a sum, +0 in the beginning.
struct Sum {
	float f[NUMBERS];

	__device__ __forceinline__ Sum() {
#pragma unroll
		for (int i = 0; i < NUMBERS; i++) f[i] = 0;
	}

	__device__ __forceinline__ static void widen(float *x, uint4 v) {
		u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
		for (int i = 0; i < 4; i++) {
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
	__device__ __forceinline__ void start(uint4 v) { widen(f, v); }

	// take adds weight times a row.
	__device__ __forceinline__ void take(uint4 v, float weight) {
		float x[NUMBERS];
		widen(x, v);
#pragma unroll
		for (int i = 0; i < NUMBERS; i++) f[i] = fused(weight, x[i], f[i]);
	}

	// round gives the sum in the rows' type, rounded to nearest even. A NaN is the positive one with
	// all mantissa bits set.
	__device__ __forceinline__ uint4 round() const {
		u32 w[4];
#pragma unroll
		for (int i = 0; i < 4; i++) {
#if WEFT_TYPE == 1
			w[i] = to_bf16x2(f[2 * i], f[2 * i + 1]);
#elif WEFT_TYPE == 2
			w[i] = to_f16x2(f[2 * i], f[2 * i + 1]);
#else
			w[i] = f[i] != f[i] ? 0x7FFFFFFFu : bits(f[i]);
#endif
		}
		return make_uint4(w[0], w[1], w[2], w[3]);
	}
};

} // namespace weft
