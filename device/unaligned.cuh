// Vectors of 16 bytes at any address, which threads move by units that divide address and length.
#pragma once
#include "ptx.cuh"

namespace weft {

// greatest_unit is the greatest power of two that divides a number.
__device__ __forceinline__ u32 greatest_unit(u32 n) { return n & (0u - n); }

template <class T> __device__ __forceinline__ void load_units(const char *p, u32 bytes, u32 *w) {
#pragma unroll
	for (u32 i = 0; i < 16 / sizeof(T); i++) {
		u32 at = i * (u32)sizeof(T);
		if (at >= bytes) continue;
		u64 v = *(const T *)(p + at);
		w[at / 4] |= (u32)v << at % 4 * 8;
		if (sizeof(T) == 8) w[at / 4 + 1] = (u32)(v >> 32);
	}
}

template <class T> __device__ __forceinline__ void store_units(char *p, u32 bytes, const u32 *w) {
#pragma unroll
	for (u32 i = 0; i < 16 / sizeof(T); i++) {
		u32 at = i * (u32)sizeof(T);
		if (at >= bytes) continue;
		u64 v = w[at / 4] >> at % 4 * 8;
		if (sizeof(T) == 8) v |= (u64)w[at / 4 + 1] << 32;
		*(T *)(p + at) = (T)v;
	}
}

// load_slowly and store_slowly move up to 16 bytes, by units that divide address and length.
__device__ __noinline__ uint4 load_slowly(const char *p, u32 bytes, u32 unit) {
	u32 w[4] = {0, 0, 0, 0};
	if (unit >= 8) {
		load_units<u64>(p, bytes, w);
	} else if (unit == 4) {
		load_units<u32>(p, bytes, w);
	} else if (unit == 2) {
		load_units<u16>(p, bytes, w);
	} else {
		load_units<u8>(p, bytes, w);
	}
	return make_uint4(w[0], w[1], w[2], w[3]);
}

__device__ __noinline__ void store_slowly(char *p, u32 bytes, u32 unit, uint4 v) {
	u32 w[4] = {v.x, v.y, v.z, v.w};
	if (unit >= 8) {
		store_units<u64>(p, bytes, w);
	} else if (unit == 4) {
		store_units<u32>(p, bytes, w);
	} else if (unit == 2) {
		store_units<u16>(p, bytes, w);
	} else {
		store_units<u8>(p, bytes, w);
	}
}

} // namespace weft
