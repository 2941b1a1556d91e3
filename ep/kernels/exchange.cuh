// What the kernels of expert parallelism share: where things stand in a handle's window, and what
// they know of a batch.
//
// A rank's part of the window has regions that peers write, each slot by one peer only:
//
//	heads     3 turns x [ranks] of four words: tokens of the source, blocks it has free, the call that
//	          it makes and by which routing (by_routing), 0
//	counts    3 turns x [ranks][1 + local experts] words, for rows by expert: tokens of the source that
//	          come here, its selections of each expert
//	records   3 turns x [ranks][capacity][top-k] pairs of words: expert + 1 and its number among the
//	          source's selections of that expert (16 bits each), weight
//	rows      turns x [ranks][capacity] slots: what is dispatched, scales behind the row
//	home      turns x [ranks][capacity] or [capacity][top-k] slots: what comes home
//	arrived   [ranks][blocks] words: the epoch whose rows the block of the source has sent
//	returned  the same for combine
//
// Heads, counts and records are always values that are their own flags. Rows are too (VALUE), or a
// word in arrived says for all rows of a block that they are there (FLAG).
#pragma once
#include "weft.cuh"

namespace weft {

constexpr u32 CALL_BITS = 4; // Go: device.CallBits

// What a launch does.
enum {
	SEND = 1,
	RECEIVE = 2,
	WIDE = 64,			// expert indices have 64 bits
	POWER_OF_TWO = 128, // quantisation: scales are powers of two
	EXPONENTS = 256,	// quantisation: scales are stored as exponents
};

// A unit is 512 bytes of a row, or what is left of it: 16 bytes a lane. A piece, of which a warp
// takes one at a time, has one unit or more.
constexpr u32 UNIT = 512;

// What stands in a source's words.
enum { CAME, COUNTS };

// Shape is what all ranks agree on. Go: shape.
struct Shape {
	u32 capacity; // tokens that a rank sends at most
	u32 topk, experts, local;
	u32 reciprocal, zero; // of local: 2^32 / local, rounded up
};

// by_routing is a call with which Prepare the routing is of that it goes by, as ranks tell each
// other: twelve bits of the number that the operation had, the same on every rank.
__device__ __forceinline__ u32 by_routing(u32 call, u32 prepared) { return call | (prepared & 0xFFF) << CALL_BITS; }

// Batch is what a thread knows of the operation.
struct Batch {
	u64 mask, epoch;
	u32 turn, place; // place is where rows are: the turn, or, where they are not their own flags, one of two
	u32 blocks;		 // without the clerks
	u32 what;		 // the launch does
	bool few;		 // of dispatch: tokens
	char *own;
};

// Pair is what is known of a selection. Go: pair.
struct alignas(8) Pair {
	// records, and this rank's own: expert + 1 | number << 16; landings: row + 1, or for rank-major
	// local expert + 1; 0: none
	u32 what;
	u32 weight; // fp32
};

// rank_of is the rank of expert e.
__device__ __forceinline__ u32 rank_of(const Shape &s, u32 e) { return s.local == 1 ? e : __umulhi(e, s.reciprocal); }

// Walk gives every warp its pieces, of items that have so many each: a share of all items for each
// block, or all items interleaved.
struct Walk {
	u32 at, end, step;
	u32 from; // of a share: its first piece

	// Pieces [0, n) over all warps of `blocks` blocks from `first`, consecutive pieces side by side
	// on different SMs. Other blocks have none.
	__device__ static Walk spread(u32 n, u32 first, u32 blocks) {
		u32 warps = blockDim.x / 32, b = blockIdx.x - first;
		return {threadIdx.x / 32 * blocks + b, b < blocks ? n : 0, warps * blocks, 0};
	}

	// The share of this block: it depends on n and the number of blocks alone, so that the block
	// that sends and the one that awaits have the same.
	__device__ static Walk share(u32 n, u32 blocks) {
		u32 from = (u32)((u64)n * blockIdx.x / blocks), to = (u32)((u64)n * (blockIdx.x + 1) / blocks);
		return {from + threadIdx.x / 32, to, blockDim.x / 32, from};
	}
};

// Spread gives every thread selections of its own: those of a token are a power of two apart, so
// that they meet in one warp.
struct Spread {
	// log2 of that power; the thread's selection; its first token, how far the next is; its warp's
	// first token
	u32 width, k, token, step, base;

	__device__ __forceinline__ Spread(u32 topk, u32 threads) {
		width = topk > 1 ? 32 - __clz((int)topk - 1) : 0;
		k = threadIdx.x & ((1u << width) - 1);
		token = threadIdx.x >> width;
		step = threads >> width;
		base = (threadIdx.x & ~31u) >> width;
	}

	// of_token is what the lanes of this token vote.
	__device__ __forceinline__ bool of_token(bool vote) const {
		u32 votes = __ballot_sync(0xFFFFFFFFu, vote) >> ((threadIdx.x & 31) - k);
		return (width < 5 ? votes & ((1u << (1u << width)) - 1) : votes) != 0;
	}
};

// next_rank goes round from the rank after this one.
__device__ __forceinline__ u32 next_rank(const Group &g, u32 i) {
	u32 r = g.rank + 1 + i;
	return r >= g.ranks ? r - g.ranks : r;
}

} // namespace weft
