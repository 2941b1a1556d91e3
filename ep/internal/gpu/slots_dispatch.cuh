// What the parts of dispatch share: the arguments, and where things are.
#pragma once
#include "quantize.cuh"

#ifndef WEFT_BY_EXPERT
#define WEFT_BY_EXPERT 0 // the layout: 1 expert-major, 0 rank-major
#endif
#ifndef WEFT_WHOLE
#define WEFT_WHOLE 0 // 1: rows are of whole pieces, and have scales only if they are quantised here
#endif

namespace weft {

constexpr bool BY_EXPERT = WEFT_BY_EXPERT != 0;
constexpr bool WHOLE = WEFT_WHOLE != 0, SCALED = !WHOLE || WEFT_QUANTIZE != 0;

// Go: dispatchArgs.
struct Dispatch {
	Shape shape;
	State *state;
	u64 heads, counts, records, rows, arrived, ready; // offsets in a window
	u64 turn_bytes;									  // of one turn of rows
	u64 direct, direct_scales;						  // offsets in a window, of the direct form
	Divisor pieces, ranks, selections;				  // of a row, of the group, and of a source: capacity x top-k
	Divisor zone;									  // rows of an expert, or of all
	u32 slot_bytes, row_bytes;
	u32 scale_words, piece_words;		   // of a row, and at most of a piece
	u32 scale_row, scale_zone, scale_word; // strides of received scales: scale_at
	u32 flags, tokens, hidden;
	u32 senders;	   // so many blocks send and the rest receive, where rows are their own flags; 0: all do both
	u32 block;		   // direct: where the rows go, at every rank
	u32 free;		   // blocks that this rank reads no more, once this operation has begun
	u32 notify_blocks; // so many blocks, the last, move no rows
	const void *ids;   // [tokens][top-k]
	const float *weights;
	const char *x;
	const u32 *scales;
	Pair *home;		 // [capacity][top-k]: as the records
	Pair *recv_rows; // [ranks][capacity][top-k]
	// [local] counts, [local] offsets, [ranks] tokens that came, [ranks] tokens, sum, of which
	// Prepare the routing is
	int *described;
	long long *ranges;
	// 3 turns x [ranks][capacity]: which operation filled the slot; and behind them 3 turns x
	// [ranks]: tokens of the source
	u32 *filled;
	u32 *credits; // [ranks]: the blocks that the rank had free in the last operation
	char *out;
	u32 *out_scales;
	Group group;
};

static_assert(sizeof(Dispatch) == WEFT_DISPATCH_BYTES + WIDER, "not the size of the host's struct");

// in_row says that a lane's 16 bytes are of the row.
__device__ __forceinline__ bool in_row(const Dispatch &a, u32 at) { return WHOLE || at < a.row_bytes; }

// scale_at is where a word of a row's scales stands among the received ones. The strides that the
// host gives serve both orders, so that no kernel asks which it is: column-major, the scales of a
// zone stand together.
__device__ __forceinline__ u64 scale_at(const Dispatch &a, u32 row, u32 word) {
	u32 rest = row;
	if (BY_EXPERT) a.zone.quotient(row, rest);
	return (u64)row * a.scale_row + (u64)(row - rest) * a.scale_zone + (u64)word * a.scale_word;
}

// tokens_of is how many tokens src has, or EMPTY.
__device__ __forceinline__ u32 tokens_of(const Dispatch &a, const Batch &b, u32 src) {
	return load_relaxed_sys4(b.own + opening_at(a.group, a.heads, b.turn, src));
}

// turn_tokens is where the numbers of tokens stand that each source had in a turn.
__device__ __forceinline__ u32 *turn_tokens(const Dispatch &a, u32 turn) {
	return a.filled + 3 * a.group.ranks * a.shape.capacity + turn * a.group.ranks;
}

// routed_tokens is where a routing has the number of tokens of each source.
__device__ __forceinline__ int *routed_tokens(const Dispatch &a) {
	return a.described + 2 * a.shape.local + a.group.ranks;
}

// prepare_number is where a routing has the number of its Prepare.
__device__ __forceinline__ u32 *prepare_number(const Dispatch &a) {
	return (u32 *)routed_tokens(a) + a.group.ranks + 1;
}

// call_of is the call that a launch belongs to. Go: callPrepare and its like.
__device__ __forceinline__ u32 call_of(const Batch &b) { return (b.flags & (ROUTE | MOVE)) / ROUTE; }

// count_at is where the i-th word of src's counts stands.
__device__ __forceinline__ u64 count_at(const Dispatch &a, u32 turn, u32 src, u32 i) {
	return a.counts + (((u64)turn * a.group.ranks + src) * (COUNTS + a.shape.local) + i) * 4;
}

// sent_count_at is where rank r's window has the i-th word of the counts that this rank sends it. Where rows go once
// to each host, those for a far rank stand in a turn of their own: the far rank's counts may come to its place before
// this rank's are packed.
__device__ __forceinline__ u64 sent_count_at(const Dispatch &a, const Batch &b, const char *window, u32 r, u32 i) {
	if (WEFT_PORTS == 2 && r != a.group.rank && window == a.group.window[a.group.rank]) return count_at(a, 3, r, i);
	return count_at(a, b.turn, place_of(a.group, window, r), i);
}

// Choice is what is read of a selection: an expert's index, whose width the launch knows.
struct Choice {
	u32 low, high;
};

__device__ __forceinline__ Choice choose(const Dispatch &a, const Batch &b, u64 i) {
	bool route = (b.flags & ROUTE) != 0, wide = route && (b.flags & WIDE_IDS) != 0;
	const u32 *p = (const u32 *)(route ? a.ids : (const void *)a.home) + (i << (wide || !route ? 1 : 0));
	return {p[0], wide ? p[1] : 0};
}

// expert_of is the expert that a selection names, + 1; 0 for none, and for what is no expert.
__device__ __forceinline__ u32 expert_of(const Dispatch &a, const Batch &b, Choice c) {
	u32 e = (b.flags & ROUTE) != 0 ? c.low : (c.low & 0xFFFF) - 1;
	return c.high == 0 && e < a.shape.experts ? e + 1 : 0;
}

// selection is the expert that the i-th selection of this rank's tokens names, + 1, or 0.
__device__ __forceinline__ u32 selection(const Dispatch &a, const Batch &b, u64 i) {
	return expert_of(a, b, choose(a, b, i));
}

// few says that there are so few tokens that the notify block sends their records, and every lane that
// awaits a row may poll. By expert, a lane then has to do with one selection of the sources before.
__device__ __forceinline__ bool few(const Dispatch &a) {
	return a.shape.capacity <= 8 && (!BY_EXPERT || (a.group.ranks - 1) * a.selections.by <= 32);
}

// Up to so many tokens every lane that awaits a row polls.
constexpr u32 EAGER = 32;

// Extent is the largest number of tokens of a source: in this operation, and in this one or the one
// before, whose slots have to be emptied. A handle's capacity may be far larger.
struct Extent {
	u32 now, ever;

	// learn awaits every source's number. All lanes of a warp call it. False: it gave up.
	__device__ __forceinline__ bool learn(const Dispatch &a, const Batch &b, Wait &w) {
		const u32 *former = turn_tokens(a, b.turn == 0 ? 2 : b.turn - 1);
		u32 most = 0, before = 0;
		for (u32 src = threadIdx.x & 31; src < a.group.ranks; src += 32) {
			before = max(before, former[src]);
			if ((b.flags & ROUTE) == 0) {
				// beyond, recv_rows is not written; the rows of a rank that was left out since
				// are made zeros
				most = max(most, (u32)routed_tokens(a)[src]);
			} else if (!holds(b.mask, src)) {
				most = max(most, await4(w, src, b.own + opening_at(a.group, a.heads, b.turn, src)));
			}
		}
		__syncwarp();
		w.over = __any_sync(0xFFFFFFFFu, w.over);
		now = __reduce_max_sync(0xFFFFFFFFu, most);
		ever = max(now, __reduce_max_sync(0xFFFFFFFFu, before));
		return !w.over;
	}
};

// from_records says that what comes is counted by the records alone.
__device__ __forceinline__ bool from_records(const Batch &b) { return !BY_EXPERT || b.few; }

} // namespace weft
