// Phases "count" and "prefix" of a row map of rows by expert: what this rank's tokens select.
//
// count: a block walks its share of the tokens once. It stores each token's records at every rank, and
// counts in a BitMap the selections of each expert and the tokens for each rank. Its counts go to a.counts
// in this GPU's memory, where the other blocks of this launch await them.
//
// prefix: a block adds up the counts of the lower blocks: its prefix, an exclusive prefix sum over blocks.
// It sends the prefix of each expert to the rank concerned, whose block of the same number needs it. The
// last block's prefix and its own counts are the rank's totals, which it sends to every rank. All
// blocks of a launch run at once, so a block may wait for the lower ones.
//
// Ordering: records are plain stores. The block's mark, behind a system fence, publishes them: marks.cuh.
// Counts, prefixes and totals are their own flags, and may overtake the records.
#pragma once
#include "row_map_bitmap.cuh"
#include "row_map_selections.cuh"

namespace weft {

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
		each_rank_line(a, rank, at, [&](u32 r, u32 tokens) {
			u32 bucket = a.shape.experts + r + lane - first;
			m.add_tokens(tokens != 0 && (EVEN || bucket < n), bucket, at, tokens);
		});
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
			sum += count_of_word(a, o.epoch, w, a.group.rank, (const char *)p, load_relaxed_sys_u64(p));
		}
	}
	return sum;
}

// send_prefixes computes the block's prefixes, some threads a column, keeps them in `own`, and sends each
// to the rank concerned; the last block sends every rank the totals. If a wait gave up, it sends nothing
// further: who waits for the rest gives up as well. All threads of the block call it.
__device__ __forceinline__ void send_prefixes(const RowMap &a, const Operation &o, Wait &w, u32 *own) {
	bool last = blockIdx.x == a.blocks - 1;
	u32 to = last ? columns(a) : a.shape.experts;
	u32 lanes = min(32u, 1u << (31 - __clz((int)max(1u, blockDim.x / to)))), lane = threadIdx.x & (lanes - 1);
#pragma unroll 1
	for (u32 first = 0; first < to; first += blockDim.x / lanes) {
		u32 column = first + threadIdx.x / lanes, prefix = 0;
		bool here = column < to;
		u64 mine = here && last ? load_relaxed_sys_u64(a.counts + blockIdx.x * columns(a) + column) : 0;
		if (here) prefix = sum_lower_blocks(a, o, w, column, lane, lanes);
		if (__any_sync(0xFFFFFFFFu, w.over)) {
			w.over = true;
			return;
		}
#pragma unroll 1
		for (u32 i = 1; i < lanes; i *= 2) prefix += __shfl_xor_sync(0xFFFFFFFFu, prefix, i);
		if (here && column < a.shape.experts && lane == 0) {
			u32 r = rank_of(a.shape, column);
			own[column] = prefix;
			send_count(a, o, r, share_at(a, o, a.group.rank, blockIdx.x, column - r * a.shape.local), prefix);
		}
#pragma unroll 1
		for (u32 i = lane; here && last && i < a.group.ranks; i += lanes)
			send_count(a, o, next_rank(a.group, i), total_at(a, o, a.group.rank, column), prefix + (u32)mine);
	}
}

} // namespace weft
