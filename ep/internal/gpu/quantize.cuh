// Quantisation to e4m3 on the way, a unit at a time: 16 numbers a lane, 8 lanes a scale.
#pragma once
#include "exchange.cuh"
#include "scale.cuh"

#ifndef WEFT_QUANTIZE
#define WEFT_QUANTIZE 0 // rows are quantised to e4m3 on the way, from: 1 bf16, 2 fp16, 3 fp32
#endif

#if WEFT_QUANTIZE

namespace weft {

constexpr u32 NUMBER_BYTES = WEFT_QUANTIZE == 3 ? 4 : 2;
constexpr u32 LOADS = NUMBER_BYTES; // of 16 bytes, for 16 numbers

__device__ __forceinline__ void widen(float *f, uint4 v) {
	u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
	for (int i = 0; i < 4; i++) {
#if WEFT_QUANTIZE == 1
		f[2 * i] = number(w[i] << 16);
		f[2 * i + 1] = number(w[i] & 0xFFFF0000u);
#elif WEFT_QUANTIZE == 2
		f[2 * i] = from_f16((u16)w[i]);
		f[2 * i + 1] = from_f16((u16)(w[i] >> 16));
#else
		f[i] = number(w[i]);
#endif
	}
}

// quantize gives 16 e4m3 numbers, and on some lanes a word of scales: scale says which of the
// row's, or none. here says whether the lane has numbers.
__device__ __forceinline__ uint4 quantize(u32 flags, const uint4 *raw, u32 unit, u32 lane, bool here, u32 &word,
										  int &scale) {
	float f[16];
#pragma unroll
	for (int i = 0; i < LOADS; i++) widen(f + i * (16 / LOADS), raw[i]);
	float most = 0;
#pragma unroll
	for (int i = 0; i < 16; i++) most = fmaxf(most, fabsf(f[i]));
#pragma unroll
	for (int i = 1; i < 8; i *= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, i));
	Scale size(most, (flags & POWER_OF_TWO) != 0);
	u32 q[4];
#pragma unroll
	for (int i = 0; i < 4; i++) {
		u32 low = to_e4m3x2(multiply(f[4 * i], size.factor), multiply(f[4 * i + 1], size.factor));
		u32 high = to_e4m3x2(multiply(f[4 * i + 2], size.factor), multiply(f[4 * i + 3], size.factor));
		q[i] = low | high << 16;
	}
	scale = -1;
	if ((flags & EXPONENTS) != 0) {
		u32 e = size.exponent();
		word = 0;
#pragma unroll
		for (int i = 0; i < 4; i++) word |= __shfl_sync(0xFFFFFFFFu, e, 8 * i) << 8 * i;
		if (lane == 0 && here) scale = (int)unit;
	} else {
		word = size.size();
		if ((lane & 7) == 0 && here) scale = (int)(unit * 4 + lane / 8);
	}
	return make_uint4(q[0], q[1], q[2], q[3]);
}

} // namespace weft
#endif
