// Operations of switches by multicast addresses, which reach the memory of all ranks at once: compiled for Hopper and
// Blackwell, and tested on emulated GPUs. They were never run on a GPU.
#pragma once
#include "program.cuh"

namespace weft {

namespace plan {

#if __CUDA_ARCH__ >= 900

// switch_sum is what the switch adds up, in an order of its own: numbers of 16 bits in fp32, rounded once.
__device__ __forceinline__ uint4 switch_sum(const char *p) {
#if WEFT_TYPE == TYPE_BF16
	return multimem_sum_bf16(p);
#elif WEFT_TYPE == TYPE_F16
	return multimem_sum_f16(p);
#elif WEFT_TYPE == TYPE_F32
	return multimem_sum_f32(p);
#else
	return make_uint4(0, 0, 0, 0);
#endif
}

constexpr bool SWITCH_SUMS = WEFT_TYPE == TYPE_BF16 || WEFT_TYPE == TYPE_F16 || WEFT_TYPE == TYPE_F32;

#endif

// by_switch runs an operation, whose head is at code, on the bytes [from, to) of its operands by multicast addresses.
// False: it has none, and nothing was done. Accesses by other addresses of the same memory are before it or behind it.
__device__ __noinline__ bool by_switch(const Plan &a, const uint4 *code, const u64 *operands, u64 from, u64 to) {
#if __CUDA_ARCH__ >= 900
	Head h = *(const Head *)code;
	Data d = *(const Data *)(code + 1);
	u32 flags = h.what >> 8 & 0xFF, first = 2 * a.uses + d.first;
	bool sums = (flags & FROM_ALL) != 0, stores = (flags & TO_ALL) != 0;
	const u64 *all = operands + first + d.sources + d.sinks;
	const char *in = (const char *)(sums ? all[0] : operands[first]);
	char *out = (char *)(stores ? all[1] : operands[first + d.sources]);
	if (in == nullptr || out == nullptr || sums && (!SWITCH_SUMS || a.switches < 2 || h.what >> 16 != SUM)) return false;
	u64 step = (u64)blockDim.x * 16;
	fence_alias();
#pragma unroll 1
	for (u64 i = from + threadIdx.x * 16; i < to; i += FLIGHT * step) {
		uint4 v[FLIGHT];
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (i + j * step < to) v[j] = sums ? switch_sum(in + i + j * step) : load_once(in + i + j * step);
		}
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (i + j * step >= to) continue;
			if (stores) {
				multimem_store16(out + i + j * step, v[j]);
			} else {
				store16(out + i + j * step, v[j]);
			}
		}
	}
	fence_alias();
	return true;
#else
	return false;
#endif
}

} // namespace plan
} // namespace weft
