// Phase "final row" of a dispatch through slots: at which row of this rank a selection stands.
//
// For rank-major rows it is the slot's own. By expert it is the sum of
//
//	the first row of the expert's zone   known
//	the selections of lower ranks        from their records, for few tokens; else from their counts
//	its index at its source              in its record
//
// Counts come in one of two ways. If (ranks - 1) x local experts fit in shared memory, the last warp of the
// block awaits them all, while the other warps send and poll, and fills a table. An mbarrier publishes the
// table: each lane of the filling warp arrives when its stores are done, and readers try the barrier. Else
// each warp reads the counts that it needs.
//
// Ordering: records and counts are values that are their own flags. They may come in any order, after or
// before the row.
#pragma once
#include "notify.cuh"

namespace weft {

// has_table says that the block has a table in shared memory, [ranks - 1][local]: how often each source but
// the last selects each local expert.
__device__ __forceinline__ bool has_table(const Dispatch &a, const Batch &b) {
	return BY_EXPERT && !from_records(b) && (a.group.ranks - 1) * a.shape.local <= WORDS;
}

// known_at_once says that the final row is known when the records and the table are there. Else each warp
// reads counts afterwards.
__device__ __forceinline__ bool known_at_once(const Dispatch &a, const Batch &b) {
	return from_records(b) || has_table(a, b);
}

// RecvRow is the final row of a lane's selection.
struct RecvRow {
	u32 row; // + 1, without lower ranks until they are added; or rank-major local expert + 1; 0: of another rank
	u32 e;	 // expert + 1

	__device__ __forceinline__ RecvRow(const Dispatch &a, uint2 record) {
		u32 le = (record.x & 0xFFFF) - 1 - a.group.rank * a.shape.local;
		e = record.x & 0xFFFF;
		row = le < a.shape.local ? (BY_EXPERT ? le * a.zone.by + (record.x >> 16) : le) + 1 : 0;
	}

	// late_source is a source whose earlier selections are not known yet, so that a wait names that one; or
	// src, if all are known.
	__device__ __forceinline__ static u32 late_source(const Dispatch &a, u32 src, u32 earlier) {
		u32 lacks = __ballot_sync(0xFFFFFFFFu, earlier == EMPTY), rest;
		return lacks != 0 ? a.selections.quotient(__ffs((int)lacks) - 1, rest) : src;
	}

	// earlier is the expert + 1 of the i-th selection of the ranks below src, or EMPTY if it is not there yet. 0:
	// there is none.
	__device__ __forceinline__ static u32 earlier(const Dispatch &a, const Batch &b, u32 src, u32 i) {
		u32 rest, from = a.selections.quotient(i, rest);
		if (from >= src || holds(b.mask, from)) return 0;
		u32 tokens = tokens_of(a, b, from);
		u32 target =
			load_relaxed_sys4(b.own + a.records + ((u64)b.turn * a.group.ranks * a.selections.by + i) * sizeof(Pair));
		return tokens != EMPTY && rest >= tokens * a.shape.topk ? 0 : target == EMPTY ? EMPTY : target & 0xFFFF;
	}

	// add_earlier adds the earlier selections, one a lane, that are of this lane's expert. All lanes of the warp
	// call it.
	__device__ __forceinline__ void add_earlier(u32 earlier, u32 lane) {
		for (u32 todo = __ballot_sync(0xFFFFFFFFu, row != 0); todo != 0; todo &= todo - 1) {
			u32 k = __ffs((int)todo) - 1;
			u32 same = __ballot_sync(0xFFFFFFFFu, earlier == __shfl_sync(0xFFFFFFFFu, e, k));
			if (lane == k) row += __popc(same);
		}
	}

	// drop_excess drops a row beyond its expert's zone.
	__device__ __forceinline__ void drop_excess(const Dispatch &a) {
		if (BY_EXPERT && row > (e - a.group.rank * a.shape.local) * a.zone.by) row = 0;
	}
};

// table_ready is the barrier that publishes the table.
__device__ __forceinline__ u64 *table_ready() {
	__shared__ u64 ready; // a barrier
	return &ready;
}

// fill_table awaits the counts of every source but the last, and fills the table. All lanes of the warp call
// it. It enforces the deadline and names the late peer; if it gives up, the table is never ready.
__device__ __forceinline__ void fill_table(const Dispatch &a, const Batch &b, Wait &w, u32 lane) {
	constexpr u32 FLIGHT = 8; // counts that a lane awaits at once
	u32 n = (a.group.ranks - 1) * a.shape.local, *words = shared_words();
	const u32 *counts = (const u32 *)(b.own + count_at(a, b.turn, 0, 0));
	for (u32 base = lane; base < n && !w.over; base += 32 * FLIGHT) {
		u32 at[FLIGHT], need = 0;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			u32 i = base + 32 * j, src = rank_of(a.shape, i);
			at[j] = i + (src + 1) * COUNTS;
			if (i >= n) continue;
			if (holds(b.mask, src))
				words[i] = 0;
			else
				need |= 1u << j;
		}
		while (need != 0) {
			u32 c[FLIGHT], missing = 0;
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) c[j] = (need >> j & 1) != 0 ? load_relaxed_sys4(counts + at[j]) : EMPTY;
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if (c[j] != EMPTY) {
					words[base + 32 * j] = c[j];
					need &= ~(1u << j);
				} else if ((need >> j & 1) != 0) {
					missing = j;
				}
			}
			if (need != 0 && !w.more(rank_of(a.shape, base + 32 * missing), 1, 0)) break;
		}
	}
	w.over = __any_sync(0xFFFFFFFFu, w.over);
	if (!w.over) barrier_arrive(table_ready());
}

// add_from_table waits for the table, and adds the selections of the ranks below src. It ends also when the
// State is stopped, as it is after the filling warp has given up.
__device__ __forceinline__ void add_from_table(const Dispatch &a, Wait &w, u32 src, RecvRow &l) {
	while (!__all_sync(0xFFFFFFFFu, barrier_done(table_ready(), 0))) {
		if ((++w.polls & 63) == 0 && load_relaxed_gpu4(&a.state->stopped) != 0) w.over = true;
		if (__any_sync(0xFFFFFFFFu, w.over)) {
			w.over = true;
			return;
		}
	}
	if (l.row == 0) return;
	const u32 *of = shared_words() + l.e - 1 - a.group.rank * a.shape.local;
#pragma unroll 1
	for (u32 i = 0; i < src; i++) l.row += of[i * a.shape.local];
}

// add_from_counts adds the selections of the ranks below src from their counts. At the same time it awaits the
// end of the piece, which stands at end_at, on the lane that polls. All lanes of the warp call it.
__device__ __forceinline__ void add_from_counts(const Dispatch &a, const Batch &b, Wait &w, u32 src, RecvRow &l,
												bool polls, const char *end_at) {
	constexpr u32 FLIGHT = 4; // counts that a lane awaits at once
	u32 le = l.e - 1 - a.group.rank * a.shape.local, from = 0, to = l.row != 0 ? src : 0;
	while (__any_sync(0xFFFFFFFFu, l.row != 0)) {
		u32 c[FLIGHT];
		uint4 end = make_uint4(0, 0, 0, 0);
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			c[j] = from + j < to && !holds(b.mask, from + j)
					   ? load_relaxed_sys4(b.own + count_at(a, b.turn, from + j, COUNTS + le))
					   : 0;
		}
		if (polls) end = load_relaxed_sys16(end_at);
		u32 known = 0, peer = src;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) known += known == j && c[j] != EMPTY;
		u32 lacks = __ballot_sync(0xFFFFFFFFu, known < FLIGHT);
		if (lacks != 0) peer = __shfl_sync(0xFFFFFFFFu, from + known, __ffs((int)lacks) - 1);
		if (from < to && known == FLIGHT) {
			l.row += c[0] + c[1] + c[2] + c[3];
			from += FLIGHT;
		}
		if (__all_sync(0xFFFFFFFFu, from >= to && full(end))) break;
		if (!__all_sync(0xFFFFFFFFu, w.more(peer, 1, 0))) {
			w.over = true;
			return;
		}
	}
}

} // namespace weft
