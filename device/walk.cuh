// How blocks, warps and threads divide work.
#pragma once
#include "ptx.cuh"

namespace weft {

// A unit is 512 bytes of a row, or its remainder: 16 bytes a lane.
constexpr u32 UNIT = 512;

// Divisor divides by a number that the host knows. Go: device.Divisor.
struct Divisor {
	u32 by, inverse; // (2^32 - 1) / by

	// quotient gives n / by, for every n, and the rest.
	__device__ __forceinline__ u32 quotient(u32 n, u32 &rest) const {
		u32 q = __umulhi(n, inverse); // at most one too few
		rest = n - q * by;
		if (rest < by) return q;
		rest -= by;
		return q + 1;
	}
};

// Share is a block's share of n items: [from, to). It depends on n and the number of blocks alone, so
// all ranks know each other's shares.
struct Share {
	u32 from, to;

	__device__ __forceinline__ Share(u32 n) : Share(n, gridDim.x) {}
	__device__ __forceinline__ Share(u32 n, u32 blocks)
		: from(n * blockIdx.x / blocks), to(n * (blockIdx.x + 1) / blocks) {}
};

// Walk gives every warp its pieces of [0, n): a share for each block, or all pieces interleaved.
struct Walk {
	u32 at, end, step;
	u32 from; // of a share: its first piece

	// spread interleaves the pieces over all warps of `blocks` blocks from block `first` on:
	// consecutive pieces are on different SMs. Other blocks have none.
	__device__ static Walk spread(u32 n, u32 first, u32 blocks) {
		u32 warps = blockDim.x / 32, b = blockIdx.x - first;
		return {threadIdx.x / 32 * blocks + b, b < blocks ? n : 0, warps * blocks, 0};
	}

	// share is this block's share. It depends on n and the number of blocks alone, so the block that
	// sends and the block that waits have the same.
	__device__ static Walk share(u32 n, u32 blocks) {
		u32 from = (u32)((u64)n * blockIdx.x / blocks), to = (u32)((u64)n * (blockIdx.x + 1) / blocks);
		return {from + threadIdx.x / 32, to, blockDim.x / 32, from};
	}
};

// Spread gives every thread one of the k elements of every so many-th item: those of an item are a
// power of two of threads apart, so they meet in one warp. Of an exchange of tokens, the items are
// tokens and the elements their selections.
struct Spread {
	// log2 of that power; the thread's element; its first item, how far the next is; its warp's first
	// item
	u32 width, k, token, step, base;

	__device__ __forceinline__ Spread(u32 elements, u32 threads) {
		width = elements > 1 ? 32 - __clz((int)elements - 1) : 0;
		k = threadIdx.x & ((1u << width) - 1);
		token = threadIdx.x >> width;
		step = threads >> width;
		base = (threadIdx.x & ~31u) >> width;
	}

	// of_token says whether any lane of this item votes for it. All lanes of the warp call it.
	__device__ __forceinline__ bool of_token(bool vote) const {
		u32 votes = __ballot_sync(0xFFFFFFFFu, vote) >> ((threadIdx.x & 31) - k);
		return (width < 5 ? votes & ((1u << (1u << width)) - 1) : votes) != 0;
	}
};

} // namespace weft
