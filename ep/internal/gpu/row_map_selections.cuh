// How the threads of a row map share out selections, and how they read those of this rank's tokens.
//
// A thread has up to QUAD consecutive selections of a token, a quad, and reads the quad of its next token
// while it works on this one. Where top-k is a multiple of QUAD, a quad is read and written by 16-byte
// accesses.
#pragma once
#include "row_map.cuh"

namespace weft {

constexpr u32 QUAD = 4; // Go: mapQuad

// Quads gives each thread its quads. The threads of a token are a power of two, so they meet in one warp.
struct Quads {
	u32 width; // log2 of the threads of a token
	u32 k, n;  // the thread's first selection of a token, and how many it has
	u32 token, step; // its first token, and the distance to the next
	bool fours;		 // top-k is a multiple of QUAD

	// This is thread `thread` of `threads` that share the quads.
	__device__ __forceinline__ Quads(u32 topk, u32 thread, u32 threads) {
		width = topk > QUAD ? 32 - __clz((int)((topk - 1) / QUAD)) : 0;
		k = (thread & (lanes() - 1)) * QUAD;
		n = k < topk ? min(QUAD, topk - k) : 0;
		token = thread >> width;
		step = threads >> width;
		fours = topk % QUAD == 0;
	}

	// vectors says whether quads are read and written by 16-byte accesses.
	__device__ __forceinline__ bool vectors() const { return EVEN || fours; }

	__device__ __forceinline__ u32 lanes() const { return 1u << width; }
};

// ---- A quad in memory: n words or pairs at p, or none. `none` stands for those that are not there.

__device__ __forceinline__ void load_words(bool vectors, const u32 *p, u32 n, u32 none, u32 (&v)[QUAD]) {
	if (vectors) {
		uint4 q = n != 0 ? *(const uint4 *)p : make_uint4(none, none, none, none);
		v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
		return;
	}
#pragma unroll
	for (u32 j = 0; j < QUAD; j++) v[j] = j < n ? p[j] : none;
}

__device__ __forceinline__ void load_pairs(bool vectors, const uint2 *p, u32 n, u32 none, uint2 (&v)[QUAD]) {
	if (vectors) {
#pragma unroll
		for (u32 j = 0; j < QUAD; j += 2) {
			uint4 q = n != 0 ? ((const uint4 *)p)[j / 2] : make_uint4(none, none, none, none);
			v[j] = make_uint2(q.x, q.y), v[j + 1] = make_uint2(q.z, q.w);
		}
		return;
	}
#pragma unroll
	for (u32 j = 0; j < QUAD; j++) v[j] = j < n ? p[j] : make_uint2(none, none);
}

__device__ __forceinline__ void store_pairs(bool vectors, uint2 *p, u32 n, const uint2 (&v)[QUAD]) {
	if (vectors && n != 0) {
#pragma unroll
		for (u32 j = 0; j < QUAD; j += 2) ((uint4 *)p)[j / 2] = make_uint4(v[j].x, v[j].y, v[j + 1].x, v[j + 1].y);
		return;
	}
#pragma unroll
	for (u32 j = 0; j < QUAD; j++) {
		if (j < n) p[j] = v[j];
	}
}

__device__ __forceinline__ void store_words(bool vectors, u32 *p, u32 n, const u32 (&v)[QUAD]) {
	if (vectors && n != 0) {
		*(uint4 *)p = make_uint4(v[0], v[1], v[2], v[3]);
		return;
	}
#pragma unroll
	for (u32 j = 0; j < QUAD; j++) {
		if (j < n) p[j] = v[j];
	}
}

// ---- The selections of this rank's tokens.

// Selections is a thread's quad of a token.
struct Selections {
	u32 t, i, n; // i: index of the first among all selections of the rank; n: how many there are
	u32 e[QUAD]; // expert + 1, or 0
	u32 weight[QUAD];

	// rank is the rank that has the j-th selection's expert, or 0 for none.
	__device__ __forceinline__ u32 rank(const RowMap &a, u32 j) const {
		return e[j] != 0 ? rank_of(a.shape, e[j] - 1) : 0;
	}
};

// RawSelections is a quad as the caller gives it. Loads may be on their way: nothing looks at the values
// before `of`.
struct RawSelections {
	uint2 id[QUAD];
	u32 weight[QUAD];

	// fetch reads the quad of token t, or none if t is not below `to`.
	__device__ __forceinline__ void fetch(const RowMap &a, const Quads &q, u32 t, u32 to) {
		u32 i = t * a.shape.topk + q.k, n = t < to ? q.n : 0;
		bool vectors = q.vectors() && (((u64)a.ids | (u64)a.weights) & 15) == 0;
		if ((a.flags & WIDE_IDS) != 0) {
			load_pairs(vectors, (const uint2 *)a.ids + i, n, EMPTY, id);
		} else {
			u32 narrow[QUAD];
			load_words(vectors, (const u32 *)a.ids + i, n, EMPTY, narrow);
#pragma unroll
			for (u32 j = 0; j < QUAD; j++) id[j] = make_uint2(narrow[j], 0);
		}
		load_words(vectors, (const u32 *)a.weights + i, a.weights != nullptr ? n : 0, bits(1.0f), weight);
	}

	// of gives the quad that fetch read, without what is no expert.
	__device__ __forceinline__ Selections of(const RowMap &a, const Quads &q, u32 t, u32 to) const {
		Selections c;
		c.t = t, c.i = t * a.shape.topk + q.k, c.n = t < to ? q.n : 0;
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			c.e[j] = j < c.n && id[j].y == 0 && id[j].x < a.shape.experts ? id[j].x + 1 : 0;
			c.weight[j] = weight[j];
		}
		return c;
	}
};

// OwnTokens is the block's share of this rank's tokens. A thread reads its first quad before anything
// else, and keeps it for both passes over the share.
struct OwnTokens {
	Quads q;
	Share share;
	RawSelections first;

	__device__ __forceinline__ explicit OwnTokens(const RowMap &a)
		: q(a.shape.topk, threadIdx.x, blockDim.x), share(a.tokens, a.blocks) {
		if (blockIdx.x >= a.blocks) share.to = share.from;
		first.fetch(a, q, share.from + q.token, share.to);
	}

	// each calls f with the thread's quads of the tokens [from, to), a quad at a time. q says which threads
	// take part: all of the block, or the lower half. All threads of a warp call it.
	template <class F>
	__device__ __forceinline__ void each(const RowMap &a, const Quads &q, u32 from, u32 to, F f) const {
		RawSelections next = first;
		if (from != share.from) next.fetch(a, q, from + q.token, to);
#pragma unroll 1
		for (u32 t = from + q.token; __any_sync(0xFFFFFFFFu, t < to); t += q.step) {
			Selections c = next.of(a, q, t, to);
			if (__any_sync(0xFFFFFFFFu, t + q.step < to)) next.fetch(a, q, t + q.step, to);
			f(c);
		}
	}
};

// send_records stores a quad's records at every rank: local expert + 1 and weight, or zeros for an expert
// of another rank. All lanes of a warp call it. Where quads stand one behind another, the lanes of a pair have two
// selections of each other's quads, so that each of their stores fills 32 bytes.
__device__ __forceinline__ void send_records(const RowMap &a, const Operation &o, const Windows &windows,
											 const Quads &q, const Selections &c) {
	u64 at = records_at(a, o) + (a.group.rank * a.shape.capacity * a.shape.topk + c.i) * (u64)sizeof(Pair);
	u32 e[QUAD], weight[QUAD], n = c.n, other = c.n; // n: whether the first two are there, other: the rest
#pragma unroll
	for (u32 j = 0; j < QUAD; j++) e[j] = c.e[j], weight[j] = c.weight[j];
	if (EVEN) {
		bool odd = (threadIdx.x & 1) != 0;
		u32 theirs = __shfl_xor_sync(0xFFFFFFFFu, c.n, 1);
		n = odd ? theirs : c.n;
		other = odd ? c.n : theirs;
		at -= odd ? 2 * sizeof(Pair) : 0; // two behind the even quad's first, which is 4 before this one's
#pragma unroll
		for (u32 j = 0; j < 2; j++) {
			u32 expert = __shfl_xor_sync(0xFFFFFFFFu, odd ? e[j] : e[j + 2], 1);
			u32 scale = __shfl_xor_sync(0xFFFFFFFFu, odd ? weight[j] : weight[j + 2], 1);
			// An even lane keeps its first two, and gets the odd one's first two behind them.
			if (odd)
				e[j] = expert, weight[j] = scale;
			else
				e[j + 2] = expert, weight[j + 2] = scale;
		}
	}
#pragma unroll 1
	for (u32 i = 0; i < a.group.ranks; i++) {
		u32 r = next_rank(a.group, i), first = r * a.shape.local;
		char *to = windows.of(r) + at;
		if (holds(o.mask, r)) continue;
		uint2 record[QUAD];
#pragma unroll
		for (u32 j = 0; j < QUAD; j++)
			record[j] = e[j] - 1 - first < a.shape.local ? make_uint2(e[j] - first, weight[j]) : make_uint2(0, 0);
		if (EVEN) {
			if (n != 0) *(uint4 *)to = make_uint4(record[0].x, record[0].y, record[1].x, record[1].y);
			if (other != 0)
				*(uint4 *)(to + QUAD * sizeof(Pair)) = make_uint4(record[2].x, record[2].y, record[3].x, record[3].y);
			continue;
		}
		store_pairs(q.vectors(), (uint2 *)to, c.n, record);
	}
}

// each_rank_line calls f(r, tokens) for every 32 ranks from r on: which of 32 tokens, of which the one at `at` is this
// lane's, go to rank r + lane. A bit stands for a token. rank has the ranks of the lane's quad, MAX_RANKS for none. The
// tokens of a warp are of the same 32, and most of them go to the same ranks. All lanes of a warp call it.
template <class F>
__device__ __forceinline__ void each_rank_line(const RowMap &a, const u32 (&rank)[QUAD], u32 at, F f) {
	u32 lane = threadIdx.x & 31;
#pragma unroll 1
	for (u32 r = 0; r < a.group.ranks; r += 32) {
		u32 set = 0, tokens = 0;
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) set |= rank[j] - r < 32 ? 1u << (rank[j] - r) : 0;
#pragma unroll 1
		for (u32 i = 0; i < min(32u, a.group.ranks - r); i++) {
			u32 bits = __reduce_or_sync(0xFFFFFFFFu, (set >> i & 1) << at % 32);
			if (lane == i) tokens = bits;
		}
		f(r, tokens);
	}
}

// leaders finds the first valid selection of a token at each rank. It gives a bit for each selection of
// the lane's quad. All lanes of a warp call it.
__device__ __forceinline__ u32 leaders(const RowMap &a, const Quads &q, const bool (&valid)[QUAD],
									   const u32 (&rank)[QUAD]) {
	u32 leaders = 0;
#pragma unroll 1
	for (u32 from = 0; from < a.group.ranks; from += 32) {
		u32 bit[QUAD], set = 0;
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			bit[j] = valid[j] && rank[j] - from < 32 ? 1u << (rank[j] - from) : 0;
			set |= bit[j];
		}
		// the ranks of this lane's quad and of the token's lower lanes
#pragma unroll 1
		for (u32 i = 1; i < q.lanes(); i *= 2) {
			u32 left = __shfl_up_sync(0xFFFFFFFFu, set, i, (int)q.lanes());
			if (q.k >= i * QUAD) set |= left;
		}
		u32 seen = __shfl_up_sync(0xFFFFFFFFu, set, 1, (int)q.lanes());
		if (q.k == 0) seen = 0;
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			if ((bit[j] & ~seen) != 0) leaders |= 1u << j;
			seen |= bit[j];
		}
	}
	return leaders;
}

} // namespace weft
