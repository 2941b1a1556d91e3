// What the measurements send, so that what arrives can be checked, and to whom.
#pragma once
#include "wait.cuh"

using namespace weft;

// Targets are addresses that a kernel writes, or reads, all of the same size, in the order in which
// they are taken. Go: targets.
struct Targets {
	char *at[MAX_RANKS];
	u32 count;
};

// word_at is word i of what the sender of a seed sends.
__device__ __forceinline__ u32 word_at(u32 seed, u64 i) { return seed + (u32)i * 2654435761u; }

__device__ __forceinline__ uint4 words_at(u32 seed, u64 i) {
	u32 first = word_at(seed, 4 * i);
	return make_uint4(first, first + 2654435761u, first + 2 * 2654435761u, first + 3 * 2654435761u);
}

__device__ __forceinline__ u32 sum_of(uint4 v) { return v.x + v.y + v.z + v.w; }

// add_up adds every lane's sum to a counter, of which the lower 32 bits count. Every lane of the
// warp calls it.
__device__ __forceinline__ void add_up(u64 *counter, u32 sum) {
	sum = __reduce_add_sync(0xFFFFFFFFu, sum);
	if (threadIdx.x % 32 == 0) add_relaxed_sys_u64(counter, sum);
}
