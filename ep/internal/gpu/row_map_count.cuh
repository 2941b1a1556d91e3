// Phases "count" and "prefix" of a row map: what this rank's tokens select.
//
// count: a block walks its share of the tokens once. It stores each token's records at every rank, and
// counts in a BitMap the selections of each expert and the tokens for each rank. Its counts go to a.counts
// in this GPU's memory, where the other blocks of this launch await them.
//
// prefix: a block adds up the counts of the lower blocks: its prefix, an exclusive prefix sum over blocks.
// It sends the prefix of each expert, or token-major of each rank, to the rank concerned, whose block of
// the same number needs it. The last block's prefix and its own counts are the rank's totals, which it
// sends to every rank. All blocks of a launch run at once, so a block may wait for the lower ones.
//
// Ordering: records are plain stores. The block's mark, behind a system fence, publishes them: marks.cuh.
// Counts, prefixes and totals are their own flags, and may overtake the records.
#pragma once
#include "row_map_bitmap.cuh"
#include "row_map_selections.cuh"

namespace weft {

// send_records stores a quad's records at every rank: local expert + 1 and weight, or zeros for an expert
// of another rank.
__device__ __forceinline__ void send_records(const RowMap &a, const Operation &o, const Windows &windows,
											 const Quads &q, const Selections &c) {
	u64 at = records_at(a, o) + (a.group.rank * a.shape.capacity * a.shape.topk + c.i) * (u64)sizeof(Pair);
#pragma unroll 1
	for (u32 i = 0; i < a.group.ranks; i++) {
		u32 r = next_rank(a.group, i), first = r * a.shape.local;
		char *to = windows.of(r) + at;
		if (holds(o.mask, r)) continue;
		uint2 record[QUAD];
#pragma unroll
		for (u32 j = 0; j < QUAD; j++)
			record[j] = c.e[j] - 1 - first < a.shape.local ? make_uint2(c.e[j] - first, c.weight[j]) : make_uint2(0, 0);
		store_pairs(q.vectors(), (uint2 *)to, c.n, record);
	}
}

// add_own adds the tokens of the map's tile at t to the n columns from `first` on, and sends their records
// if `sends`. All threads of the block call it.
__device__ __forceinline__ void add_own(const RowMap &a, const Operation &o, const OwnTokens &own, const BitMap &m,
										bool sends, u32 t, u32 first, u32 n) {
	Windows windows(a.group);
	u32 from = own.share.from + t, lane = threadIdx.x & 31;
	own.each(a, own.q, from, min(from + m.tile(), own.share.to), [&](const Selections &c) {
		if (sends && first == 0) send_records(a, o, windows, own.q, c);
		u32 rank[QUAD], at = c.t - from;
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			u32 expert = c.e[j] - 1 - first;
			rank[j] = c.e[j] != 0 ? c.rank(a, j) : MAX_RANKS;
			m.add(c.e[j] != 0 && (EVEN || expert < n), expert, at);
		}
		// The tokens of a warp are of the same 32, and most of them go to the same ranks. So the warp
		// collects a rank's tokens in a word, and one lane adds it.
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
			u32 bucket = a.shape.experts + r + lane - first;
			m.add_tokens(tokens != 0 && (EVEN || bucket < n), bucket, at, tokens);
		}
	});
}

// count_own sends the records of the block's tokens, counts them, and publishes the counts to the other
// blocks. All threads of the block call it.
__device__ __forceinline__ void count_own(const RowMap &a, const Operation &o, const OwnTokens &own, const BitMap &m) {
	u64 *mine = a.counts + blockIdx.x * columns(a);
	m.count([&](u32 t, u32 first, u32 n) { add_own(a, o, own, m, true, t, first, n); },
			[&](u32 column, u32 n) { store_relaxed_sys_u64(mine + column, o.epoch << 32 | n); });
}

// sum_lower_blocks adds up a column's counts of the blocks first, first + step, ... below this one.
__device__ __forceinline__ u32 sum_lower_blocks(const RowMap &a, const Operation &o, Wait &w, u32 column, u32 first,
												u32 step) {
	constexpr u32 FLIGHT = 12; // counts that are read at once
	const u64 *counts = a.counts + column;
	u32 sum = 0;
#pragma unroll 1
	for (; first < blockIdx.x; first += FLIGHT * step) {
		u64 v[FLIGHT];
		u32 late = 0; // a bit for each that is not there yet
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++)
			v[j] = first + j * step < blockIdx.x ? load_relaxed_sys_u64(counts + (first + j * step) * columns(a))
												 : o.epoch << 32;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			bool there = (u32)(v[j] >> 32) == (u32)o.epoch;
			sum += there ? (u32)v[j] : 0;
			late |= there ? 0 : 1u << j;
		}
#pragma unroll 1
		for (; late != 0; late &= late - 1) {
			const u64 *p = counts + (first + ((u32)__ffs((int)late) - 1) * step) * columns(a);
			sum += count_of_word(a, o, w, a.group.rank, (const char *)p, load_relaxed_sys_u64(p));
		}
	}
	return sum;
}

// send_prefixes computes the block's prefixes, some threads a column, keeps them in `own`, and sends each
// to the rank concerned; the last block sends every rank the totals. If a wait gave up, it sends nothing
// further: who waits for the rest gives up as well. All threads of the block call it.
__device__ __forceinline__ void send_prefixes(const RowMap &a, const Operation &o, Wait &w, u32 *own) {
	bool last = blockIdx.x == a.blocks - 1;
	u32 from = TOKEN_MAJOR && !last ? a.shape.experts : 0, to = TOKEN_MAJOR || last ? columns(a) : a.shape.experts;
	u32 lanes = min(32u, 1u << (31 - __clz((int)max(1u, blockDim.x / (to - from))))), lane = threadIdx.x & (lanes - 1);
#pragma unroll 1
	for (u32 first = from; first < to; first += blockDim.x / lanes) {
		u32 column = first + threadIdx.x / lanes, prefix = 0;
		bool here = column < to, rank = column >= a.shape.experts; // rank: tokens for a rank
		u64 mine = here && last ? load_relaxed_sys_u64(a.counts + blockIdx.x * columns(a) + column) : 0;
		if (here) prefix = sum_lower_blocks(a, o, w, column, lane, lanes);
		if (__any_sync(0xFFFFFFFFu, w.over)) {
			w.over = true;
			return;
		}
#pragma unroll 1
		for (u32 i = 1; i < lanes; i *= 2) prefix += __shfl_xor_sync(0xFFFFFFFFu, prefix, i);
		if (here && rank == TOKEN_MAJOR && lane == 0) {
			u32 i = rank ? column - a.shape.experts : column, r = rank ? i : rank_of(a.shape, i);
			own[i] = prefix;
			send_count(a, o, r, prefix_at(a, o, a.group.rank, rank ? 0 : i - r * a.shape.local), prefix);
		}
#pragma unroll 1
		for (u32 i = lane; here && last && i < a.group.ranks; i += lanes)
			send_count(a, o, next_rank(a.group, i), total_at(a, o, a.group.rank, column), prefix + (u32)mine);
	}
}

} // namespace weft
