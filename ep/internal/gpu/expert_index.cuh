// The index of a selection among its rank's selections of the same expert, which says where the row
// stands behind the first that the rank has for the expert. And records, by which every rank knows what
// a token selects.
#pragma once
#include "slots_dispatch.cuh"

namespace weft {

constexpr u32 WORDS = 4096; // of shared memory

__device__ __forceinline__ u32 *shared_words() {
	__shared__ u32 words[WORDS];
	return words;
}

// clear is for all threads of the block, and so is a barrier after it.
__device__ __forceinline__ void clear(u32 *words, u32 n) {
	for (u32 i = threadIdx.x; i < n; i += blockDim.x) words[i] = 0;
}

// index_of counts the earlier selections of this lane's expert by reading all of them. All lanes of the
// warp call it.
__device__ __forceinline__ u32 index_of(const Dispatch &a, const Batch &b, u32 t, u32 e, u32 lane) {
	// earlier selections of a lane that are looked at, and selections that are looked for, at a
	// time
	constexpr u32 LOADS = 2, WANTED = 8;
	u32 k = a.shape.topk, before = t * k;
	u32 n = __popc(__match_any_sync(0xFFFFFFFFu, e) & ((1u << lane) - 1));
#pragma unroll 1
	for (u32 first = 0; first < k && before > 0; first += WANTED) {
		u32 want[WANTED], found[WANTED];
#pragma unroll
		for (u32 j = 0; j < WANTED; j++) {
			want[j] = __shfl_sync(0xFFFFFFFFu, e, first + j);
			found[j] = 0;
		}
#pragma unroll 1
		for (u32 from = 0; from < before; from += 32 * LOADS) {
			u32 other[LOADS];
#pragma unroll
			for (u32 q = 0; q < LOADS; q++) {
				u32 i = from + 32 * q + lane;
				other[q] = i < before ? selection(a, b, i) : 0;
			}
#pragma unroll
			for (u32 q = 0; q < LOADS; q++) {
#pragma unroll
				for (u32 j = 0; j < WANTED; j++) found[j] += __popc(__ballot_sync(0xFFFFFFFFu, other[q] == want[j]));
			}
		}
#pragma unroll
		for (u32 j = 0; j < WANTED; j++) {
			if (first + j == lane) n += found[j];
		}
	}
	return n;
}

// Numbers of many tokens come from a map in shared memory: for every expert the tokens that select
// it, a bit each.

// maps says whether there is room for the map, and enough tokens to be worth it. Then some blocks,
// the metadata_blocks, send all records, before the rows.
__device__ __forceinline__ bool maps(const Dispatch &a, const Batch &b) {
	return BY_EXPERT && !b.few && a.shape.experts * ((a.tokens + 31) / 32) <= WORDS;
}

// map_tokens fills the map; all threads of the block call it.
__device__ __forceinline__ void map_tokens(const Dispatch &a, const Batch &b, u32 *words) {
	u32 n = a.tokens * a.shape.topk, width = (a.tokens + 31) / 32;
	clear(words, a.shape.experts * width);
	__syncthreads();
#pragma unroll 4
	for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
		u32 e = selection(a, b, i), t = i / a.shape.topk;
		if (e != 0) atomicOr(&words[(e - 1) * width + t / 32], 1u << t % 32);
	}
	__syncthreads();
}

// mapped_index is index_of by the map.
__device__ __forceinline__ u32 mapped_index(const Dispatch &a, const u32 *words, u32 t, u32 e) {
	u32 width = (a.tokens + 31) / 32, n = 0;
	if (e == 0) return 0;
	const u32 *row = words + (e - 1) * width;
#pragma unroll 1
	for (u32 i = 0; i < t / 32; i++) n += __popc(row[i]);
	return n + __popc(row[t / 32] & ((1u << t % 32) - 1));
}

// metadata_blocks is how many blocks send records: so many that a warp has two tokens, and none of few
// blocks.
__device__ __forceinline__ u32 metadata_blocks(const Dispatch &a, u32 blocks) {
	u32 warps = blockDim.x / 32;
	return min((a.shape.capacity + 2 * warps - 1) / (2 * warps), blocks / 4);
}

// TokenRouting is what a warp has read of a token's routing: a selection a lane.
struct TokenRouting {
	Choice choice;
	u32 weight;

	__device__ __forceinline__ void read(const Dispatch &a, const Batch &b, u32 t, u32 lane) {
		choice = {EMPTY, EMPTY};
		weight = 0x3F800000u;
		if (lane >= a.shape.topk) return;
		u64 i = (u64)t * a.shape.topk + lane;
		choice = choose(a, b, i);
		if ((b.flags & ROUTE) != 0 && a.weights != nullptr) weight = bits(a.weights[i]);
	}
};

// send_record tells every rank what the token selects. n is the index of the lane's selection.
// Every lane of the warp calls it.
__device__ __forceinline__ void send_record(const Dispatch &a, const Batch &b, const Windows &windows, u32 t, u32 e,
											u32 weight, u32 n, u32 lane) {
	u64 i = (u64)t * a.shape.topk + lane;
	uint2 record = make_uint2(e | n << 16, clean(weight));
	u64 at = a.records + (((u64)b.turn * a.group.ranks + a.group.rank) * a.selections.by + i) * sizeof(Pair);
#pragma unroll 1
	for (Round to(all_ranks(a.group) & ~b.mask, a.group.rank, a.group.ranks); to.more();) {
		char *window = windows.of(to.next());
		if (lane < a.shape.topk) store_relaxed_sys8(window + at, record);
	}
	if (lane < a.shape.topk) a.home[i] = {e | n << 16, weight};
}

// write_records sends the records of a metadata block's tokens. It is block `number` of so many.
// All threads of the block call it.
__device__ __forceinline__ void write_records(const Dispatch &a, const Batch &b, const Windows &windows, u32 number,
											  u32 metadata_blocks) {
	u32 lane = threadIdx.x & 31, t = threadIdx.x / 32 * metadata_blocks + number,
		step = blockDim.x / 32 * metadata_blocks;
	TokenRouting token;
	if (t < a.tokens) token.read(a, b, t, lane);
	map_tokens(a, b, shared_words());
	for (; t < a.tokens; t += step) {
		TokenRouting now = token;
		if (t + step < a.tokens) token.read(a, b, t + step, lane);
		u32 e = expert_of(a, b, now.choice);
		send_record(a, b, windows, t, e, now.weight, mapped_index(a, shared_words(), t, e), lane);
	}
}

} // namespace weft
