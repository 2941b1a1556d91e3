// Phase "arrived" of a row map: what other ranks send here. A block counts the records that the blocks of
// its own number have stored on all ranks, so it waits for these blocks alone.
//
// Ordering: await_marks comes before any record is read. Each mark was stored behind its block's records.
#pragma once
#include "row_map_bitmap.cuh"
#include "row_map_selections.cuh"

namespace weft {

// Sources says which tokens of each rank the blocks of this number have. It stands in shared memory.
struct Sources {
	u32 *tokens;   // [ranks]: all that the rank has
	Share *shares; // [ranks]: those of the block

	__device__ __forceinline__ Sources() {
		__shared__ u32 tokens[MAX_RANKS], shares[MAX_RANKS * 2];
		this->tokens = tokens;
		this->shares = (Share *)shares;
	}

	// look reads the number of tokens of the rank of the thread's index, ahead of learn, which uses it.
	__device__ __forceinline__ u64 look(const RowMap &a, const Operation &o) const {
		return threadIdx.x < a.group.ranks ? load_relaxed_sys_u64(o.own + tokens_at(a, o, threadIdx.x)) : 0;
	}

	// learn waits for the numbers of tokens, of which `seen` was read by look. A barrier is needed after it.
	__device__ __forceinline__ void learn(const RowMap &a, const Operation &o, Wait &w, u64 seen) const {
		u32 src = threadIdx.x;
		if (src >= a.group.ranks) return;
		tokens[src] =
			holds(o.mask, src) ? 0 : count_of_word(a, o.epoch, w, src, o.own + tokens_at(a, o, src), seen);
		shares[src] = Share(tokens[src], a.blocks);
	}

	// most is the number of tokens of the largest share.
	__device__ __forceinline__ u32 most(const RowMap &a) const {
		u32 n = 0;
#pragma unroll 1
		for (u32 src = 0; src < a.group.ranks; src++) n = max(n, shares[src].to - shares[src].from);
		return n;
	}
};

// ArrivedQuad is a thread's quad of a source's token.
struct ArrivedQuad {
	u32 src, t; // t: of the source's share
	u32 i, n;	// i: index of the first among all sources' records; n: how many there are
	uint2 record[QUAD];
};

// each_arrived calls f with the thread's quads of the tokens [from, to) of every source's share, a quad at
// a time. The quads of a warp are of one source and of the same 32 tokens. All threads of the block, or of
// the half that q is of, call it.
template <class F>
__device__ __forceinline__ void each_arrived(const RowMap &a, const Operation &o, const Quads &q,
											 const Sources &sources, u32 from, u32 to, F f) {
	const uint2 *records = (const uint2 *)(o.own + records_at(a, o));
	// Blocks of 32 tokens: those of source 0, then those of source 1, ...
	u32 n = to - from, blocks = (n + 31) / 32, all = a.group.ranks * blocks,
		reciprocal = 0xFFFFFFFFu / max(blocks, 1u) + 1;
	auto fetch = [&](u32 at) {
		ArrivedQuad c;
		u32 block = at / 32, src = blocks <= 1 ? block : __umulhi(block, reciprocal);
		c.src = block < all ? src : 0;
		Share share = sources.shares[c.src];
		c.t = from + (block - src * blocks) * 32 + at % 32;
		c.n = block < all && c.t < to && share.from + c.t < share.to ? q.n : 0;
		c.i = (c.src * a.shape.capacity + share.from + c.t) * a.shape.topk + q.k;
		load_pairs(q.vectors(), records + c.i, c.n, 0, c.record);
		return c;
	};
	ArrivedQuad next = fetch(q.token);
#pragma unroll 1
	for (u32 at = q.token; at / 32 < all; at += q.step) {
		ArrivedQuad c = next;
		if ((at + q.step) / 32 < all) next = fetch(at + q.step); // while f works
		f(c);
	}
}

// bucket_of is the bucket in which the j-th selection of a quad is counted.
__device__ __forceinline__ u32 bucket_of(const RowMap &a, const ArrivedQuad &c, u32 j) {
	return c.src * a.shape.local + c.record[j].x - 1;
}

// add_arrived adds what arrives of the map's tile at t to the n buckets from `first` on. All threads of the
// block call it.
__device__ __forceinline__ void add_arrived(const RowMap &a, const Operation &o, const Quads &q, const Sources &sources,
											const BitMap &m, u32 t, u32 first, u32 n) {
	each_arrived(a, o, q, sources, t, min(t + m.tile(), m.tokens), [&](const ArrivedQuad &c) {
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			u32 bucket = bucket_of(a, c, j) - first;
			m.add(c.record[j].x != 0 && (EVEN || bucket < n), bucket, c.t - t);
		}
	});
}

// clear_absent writes that nothing arrives of the tokens that a rank does not have, up to its capacity. All
// threads of the block call it.
__device__ __forceinline__ void clear_absent(const RowMap &a, const Sources &sources) {
	u32 topk = a.shape.topk;
#pragma unroll 1
	for (u32 src = 0; src < a.group.ranks; src++) {
		u32 tokens = sources.tokens[src], slot = src * a.shape.capacity;
		if (tokens >= a.shape.capacity) continue;
		Share rest(a.shape.capacity, a.blocks);
		for (u32 i = max(tokens, rest.from) * topk + threadIdx.x; i < rest.to * topk; i += blockDim.x)
			a.recv_rows[slot * topk + i] = {0, 0};
		for (u32 t = max(tokens, rest.from) + threadIdx.x; TOKEN_MAJOR && t < rest.to; t += blockDim.x)
			a.recv_tokens[slot + t] = 0;
	}
}

} // namespace weft
