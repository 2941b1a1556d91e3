// Token counts: how many tokens each rank, node and expert would get, by one rank's selections alone.
//
// Blocks divide the experts, the ranks and the nodes, and each reads all selections. So a block has the
// whole of what it counts. Launches share no memory: nothing has to be zeroed before, and they may run in
// any streams and graphs at once. The cost is that selections are read once a block, all but the first
// time from the L2 cache. Rows of the table are divided by tokens, and written once.
#include "exchange.cuh"

namespace weft {

// Go: tokenCountsArgs. Outputs that are not wanted are null.
struct TokenCounts {
	Shape shape; // without a capacity
	u32 tokens, ranks, nodes, per_node;
	u32 flags, zero;
	const void *ids;		// [tokens][top-k]
	int *rank_tokens;		// [ranks]
	int *node_tokens;		// [nodes]
	int *expert_selections; // [experts]
	u8 *token_in_rank;		// [tokens][ranks]
};

static_assert(sizeof(TokenCounts) == WEFT_TOKEN_COUNTS_BYTES, "not the size of the host's struct");

// SHARE is how many experts a block counts at most: the host launches as many blocks as that takes.
// FLIGHT is how many selections a thread has on their way at once.
constexpr u32 THREADS = 512, SHARE = 2048, FLIGHT = 8;

// Slice is what a block has of something that all blocks share.
struct Slice {
	u32 first, n;

	__device__ __forceinline__ explicit Slice(u32 all) {
		u32 each = (all + gridDim.x - 1) / gridDim.x;
		first = min(blockIdx.x * each, all);
		n = min(each, all - first);
	}

	__device__ __forceinline__ bool has(u32 i) const { return i - first < n; }
};

// Counts are a block's, in shared memory.
struct Counts {
	u32 experts[SHARE], ranks[MAX_RANKS], nodes[MAX_RANKS];
};

// TokenLane is what a lane knows of its token: tokens stand a power of two of lanes apart, so that the
// selections of one meet in one warp.
struct TokenLane {
	u32 t, k, width; // k: the selection of the lane; width: lanes that the token has
};

constexpr u32 NONE = 0xFFFFFFFFu;

// read is a selection as memory has it, of either type; what is not there is no expert.
template <bool WIDE> __device__ __forceinline__ uint2 read(const TokenCounts &a, const TokenLane &o) {
	if (o.t >= a.tokens || o.k >= a.shape.topk) return make_uint2(NONE, NONE);
	u32 i = o.t * a.shape.topk + o.k;
	return WIDE ? ((const uint2 *)a.ids)[i] : make_uint2(((const u32 *)a.ids)[i], 0);
}

// expert_of is the expert that a selection names; NONE for none, and for what is no expert.
__device__ __forceinline__ u32 expert_of(const TokenCounts &a, uint2 selection) {
	return selection.y == 0 && selection.x < a.shape.experts ? selection.x : NONE;
}

// ranks_of is the set of ranks that the token goes to, by the expert that each of its lanes has.
// All lanes of the warp call it.
__device__ __forceinline__ RankSet ranks_of(const TokenCounts &a, const TokenLane &o, u32 e) {
	RankSet set = RankSet::one(rank_of(a.shape, e), e != NONE);
	u32 half[2 * RANK_WORDS];
#pragma unroll
	for (u32 i = 0; i < 2 * RANK_WORDS; i++) half[i] = (u32)(set.word[i / 2] >> 32 * (i % 2));
	for (u32 by = o.width / 2; by > 0; by /= 2) {
#pragma unroll
		for (u32 i = 0; i < 2 * RANK_WORDS; i++) {
			if (i == 0 || a.ranks > 32 * i) half[i] |= __shfl_xor_sync(0xFFFFFFFFu, half[i], by);
		}
	}
#pragma unroll
	for (u32 i = 0; i < RANK_WORDS; i++) set.word[i] = (u64)half[2 * i + 1] << 32 | half[2 * i];
	return set;
}

// Part is what a block counts, and the tokens whose rows of the table it writes.
struct Part {
	Slice experts, ranks, nodes, tokens;

	__device__ __forceinline__ explicit Part(const TokenCounts &a)
		: experts(a.shape.experts), ranks(a.ranks), nodes(a.nodes), tokens(a.tokens) {}

	// take counts a selection of each lane, and the tokens that a warp has. The lanes of a token
	// share its ranks and nodes.
	__device__ __forceinline__ void take(const TokenCounts &a, Counts &c, const TokenLane &o, u32 e) const {
		if (experts.has(e)) atomicAdd(&c.experts[e - experts.first], 1);
		RankSet to = ranks_of(a, o, e), node = RankSet::first_ranks(a.per_node);
		for (u32 i = o.k; i < ranks.n; i += o.width) {
			if (holds(to, ranks.first + i)) atomicAdd(&c.ranks[i], 1);
		}
		for (u32 i = o.k; i < nodes.n; i += o.width) {
			if (nonempty(to.down((nodes.first + i) * a.per_node) & node)) atomicAdd(&c.nodes[i], 1);
		}
		if (a.token_in_rank == nullptr || !tokens.has(o.t)) return;
		for (u32 r = o.k; r < a.ranks; r += o.width) a.token_in_rank[o.t * a.ranks + r] = holds(to, r);
	}
};

// count goes through all selections. All threads of the block call it.
template <bool WIDE> __device__ __forceinline__ void count(const TokenCounts &a, Counts &c, const Part &mine) {
	u32 topk = a.shape.topk, width = topk > 1 ? 1u << (32 - __clz((int)topk - 1)) : 1, step = blockDim.x / width;
	TokenLane o = {0, threadIdx.x & (width - 1), width};
	for (u32 from = 0; from < a.tokens; from += FLIGHT * step) {
		u32 first = from + threadIdx.x / width;
		uint2 selections[FLIGHT];
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			o.t = first + j * step;
			selections[j] = read<WIDE>(a, o);
		}
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (from + j * step >= a.tokens) break; // no thread of the block has any
			o.t = first + j * step;
			mine.take(a, c, o, expert_of(a, selections[j]));
		}
	}
}

// clear and tell begin and end the counts of a slice. All threads of the block call them.
__device__ __forceinline__ void clear(u32 *counts, Slice s) {
	for (u32 i = threadIdx.x; i < s.n; i += blockDim.x) counts[i] = 0;
}

__device__ __forceinline__ void store_counts(int *out, const u32 *counts, Slice s) {
	if (out == nullptr) return;
	for (u32 i = threadIdx.x; i < s.n; i += blockDim.x) out[s.first + i] = (int)counts[i];
}

} // namespace weft

namespace weft::ep {

__global__ void __launch_bounds__(THREADS) token_counts(const __grid_constant__ TokenCounts a) {
	__shared__ Counts c;
	Part mine(a);
	clear(c.experts, mine.experts);
	clear(c.ranks, mine.ranks);
	clear(c.nodes, mine.nodes);
	__syncthreads();
	if ((a.flags & WIDE_IDS) != 0) {
		count<true>(a, c, mine);
	} else {
		count<false>(a, c, mine);
	}
	__syncthreads();
	store_counts(a.expert_selections, c.experts, mine.experts);
	store_counts(a.rank_tokens, c.ranks, mine.ranks);
	store_counts(a.node_tokens, c.nodes, mine.nodes);
}

} // namespace weft::ep
