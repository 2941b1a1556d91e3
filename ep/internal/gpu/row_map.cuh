// What the phases of a row map share: its arguments, the programs' forms, where regions stand in a
// window, and how ranks exchange counts. direct_row_map.cu says what the phases are.
//
// A count travels as one 64-bit word: the operation's number above, the count below. It is its own
// flag: a reader polls until the upper half is this operation's number, and needs no fence, for the word
// refers to no other memory.
#pragma once
#include "direct.cuh"

namespace weft {

// Go: rowMapArgs.
struct RowMap {
	Shape shape;
	State *state;
	u64 openings, totals, records, shares, marks; // offsets in a window
	u32 flags, tokens, call;
	u32 rows;			   // capacity: of an expert in zones of fixed size, else of a rank
	u32 align;			   // of packed zones
	u32 blocks;			   // that have a share; the launch may have more
	u32 map_entries;	   // of a BitMap; token-major 0 if shared memory has no room for a TokenMap
	u32 share;			   // tokens of a block's largest share
	const void *ids;	   // [tokens][top-k]
	const float *weights;
	Pair *home;		  // [capacity][top-k]: expert + 1 if it has a row, expert + 1 << 16 in any case; weight
	u32 *dest_rows;	  // [capacity][top-k]: row + 1, LEADER
	Pair *recv_rows;  // [ranks][capacity][top-k]: row + 1, or token-major local expert + 1; 0: none
	u32 *recv_tokens; // [ranks][capacity], token-major: row + 1
	int *described;
	long long *ranges;
	u64 *counts; // [blocks][experts + ranks], rows by expert: a block's counts, with the operation's number
	// For what shared memory has no room for. Rows by expert: [blocks][4][experts or, if there are more, ranks].
	// Token-major: [blocks] TokenMaps.
	u32 *bases;
	Group group;
};

static_assert(sizeof(RowMap) == WEFT_ROW_MAP_BYTES + WIDER, "not the size of the host's struct");

// Each form is a program of its own. A prepare lasts as long as one warp's instructions in sequence, and
// each branch on the form would add to them.
constexpr bool TOKEN_MAJOR = WEFT_TOKEN_MAJOR != 0; // a token has one row at a rank; else each selection has its own
// EVEN: top-k is a multiple of QUAD, and a BitMap has a bucket for every column or, token-major, shared memory has room
// for a TokenMap.
constexpr bool EVEN = WEFT_EVEN != 0;

// columns is how many counts a rank of rows by expert has: its selections of each expert, and behind them its
// tokens for each rank.
__device__ __forceinline__ u32 columns(const RowMap &a) { return a.shape.experts + a.group.ranks; }

// words is how many words have a bit for each token of the largest share.
__device__ __forceinline__ u32 words(const RowMap &a) { return (a.share + 31) / 32; }

// NO_ROWS is the base of a masked rank's rows: no capacity reaches it.
constexpr u32 NO_ROWS = 1u << 31;

// ---- Regions of a window. Each has two buffers, which operations take in turn: a peer may write for
// this operation while a rank still reads what came for the one before.

// records_at is where the records of all sources begin, for rows by expert.
__device__ __forceinline__ u64 records_at(const RowMap &a, const Operation &o) {
	return a.records + (o.epoch & 1) * a.group.ranks * a.shape.capacity * a.shape.topk * sizeof(Pair);
}

// selection_at is where the i-th selection stands that a block of src tells a rank, token-major: two words that are
// their own flags, what it is and its weight. A block has room for a largest share, so the place does not depend on how
// many tokens src has.
constexpr u32 SELECTION_BYTES = 2 * sizeof(u64); // Go: selectionBytes
__device__ __forceinline__ u64 selection_at(const RowMap &a, const Operation &o, u32 src, u32 block, u32 i) {
	u32 turn = (u32)(o.epoch & 1) * a.group.ranks;
	return a.records + ((u64)((turn + src) * a.blocks + block) * a.share * a.shape.topk + i) * SELECTION_BYTES;
}

// total_at is where src's total of a column stands, for rows by expert. tokens_at is where the number of its tokens
// stands: behind the columns.
__device__ __forceinline__ u64 total_at(const RowMap &a, const Operation &o, u32 src, u32 column) {
	return a.totals + (((u32)(o.epoch & 1) * a.group.ranks + src) * (columns(a) + 1) + column) * 8;
}
__device__ __forceinline__ u64 tokens_at(const RowMap &a, const Operation &o, u32 src) {
	if (TOKEN_MAJOR) return a.totals + ((u32)(o.epoch & 1) * a.group.ranks + src) * 8;
	return total_at(a, o, src, columns(a));
}

// share_at is where the i-th count of a block of src stands. For rows by expert it is the prefix of local expert i.
// Token-major they are the block's selections of each local expert, the words that say which of its tokens come, and
// how many selections it tells. They stand behind all counts of tokens.
__device__ __forceinline__ u64 share_at(const RowMap &a, const Operation &o, u32 src, u32 block, u32 i) {
	u32 width = a.shape.local + (TOKEN_MAJOR ? words(a) + 1 : 0), turn = (u32)(o.epoch & 1) * a.group.ranks;
	u64 before = TOKEN_MAJOR ? 2 * a.group.ranks * a.group.ranks * a.blocks : 0;
	return a.shares + (before + (u64)((turn + src) * a.blocks + block) * width + i) * 8;
}

// block_tokens_at is where the number of a block's tokens for rank r stands, token-major. Those of src's blocks stand
// side by side, as warps read them.
__device__ __forceinline__ u64 block_tokens_at(const RowMap &a, const Operation &o, u32 src, u32 block, u32 r) {
	u32 turn = (u32)(o.epoch & 1) * a.group.ranks;
	return a.shares + (u64)(((turn + src) * a.group.ranks + r) * a.blocks + block) * 8;
}

// ---- Counts that travel.

// send_count sends a rank the count n, unless the rank is masked.
__device__ __forceinline__ void send_count(const RowMap &a, const Operation &o, u32 rank, u64 at, u32 n) {
	if (!holds(o.mask, rank)) store_relaxed_sys_u64(a.group.window[rank] + at, o.epoch << 32 | n);
}

// await_late_count waits for a count that was not there at the first look. It is not inlined: it has many
// callers, and almost none of them has to wait.
__device__ __noinline__ u64 await_late_count(const Group &g, State *s, u64 epoch, u32 peer, const char *p) {
	Wait w(g, s, OP_PREPARE, epoch);
	u64 v = load_relaxed_sys_u64(p);
	while ((u32)(v >> 32) != (u32)epoch && w.more(peer, (u32)epoch, v >> 32)) v = load_relaxed_sys_u64(p);
	return v;
}

// count_of_word is the count of the word v that was read at p. If v does not carry the number epoch, it polls.
__device__ __forceinline__ u32 count_of_word(const RowMap &a, u64 epoch, Wait &w, u32 peer, const char *p, u64 v) {
	if ((u32)(v >> 32) != (u32)epoch) {
		v = await_late_count(a.group, a.state, epoch, peer, p);
		if ((u32)(v >> 32) != (u32)epoch) w.over = true;
	}
	return (u32)v;
}

// await_count waits for a count of src. A masked rank's counts are 0.
__device__ __forceinline__ u32 await_count(const RowMap &a, const Operation &o, Wait &w, u32 src, u64 at) {
	return holds(o.mask, src) ? 0 : count_of_word(a, o.epoch, w, src, o.own + at, load_relaxed_sys_u64(o.own + at));
}

// each_total waits for the totals of a column, and calls f(rank, total) for each rank, in order.
template <class F>
__device__ __forceinline__ void each_total(const RowMap &a, const Operation &o, Wait &w, u32 column, F f) {
	constexpr u32 FLIGHT = 4; // totals that are read at once
	const char *p = o.own + total_at(a, o, 0, column);
	u64 stride = (columns(a) + 1) * 8;
#pragma unroll 1
	for (u32 first = 0; first < a.group.ranks;) {
		u64 v[FLIGHT];
		u32 late = FLIGHT; // the first of them that is not there yet
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++)
			v[j] = first + j < a.group.ranks && !holds(o.mask, first + j)
					   ? load_relaxed_sys_u64(p + (first + j) * stride)
					   : o.epoch << 32;
#pragma unroll
		for (u32 j = FLIGHT; j-- > 0;) {
			if ((u32)(v[j] >> 32) != (u32)o.epoch) late = j;
		}
		if (late < FLIGHT && !w.over) { // wait for this one, then read all of them again
			u64 now = await_late_count(a.group, a.state, o.epoch, first + late, p + (first + late) * stride);
			w.over = (u32)(now >> 32) != (u32)o.epoch;
			continue;
		}
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (first + j < a.group.ranks) f(first + j, (u32)v[j]);
		}
		first += FLIGHT;
	}
}

// mark_unread marks an operation whose marks no block awaits: those of later operations compare numbers, so a mark has
// to grow with every operation. It publishes nothing.
__device__ __forceinline__ void mark_unread(const RowMap &a, const Operation &o) {
	for (u32 r = blockDim.x - 1 - threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		if (!holds(o.mask, r)) store_relaxed_sys4(a.group.window[r] + mark_at(a.marks, a.group.rank), (u32)o.epoch);
	}
}

} // namespace weft
