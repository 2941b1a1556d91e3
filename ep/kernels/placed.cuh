// What the operations of handles share whose rows have their final places before they leave. Blocks
// share the tokens among each other, the same on every rank, so a block has to do with the blocks
// of its own number elsewhere alone.
//
// A rank's part of the window has, beside what exchange.cuh lists, regions that peers write:
//
//	totals   2 turns x [ranks][experts + ranks + 1] numbers with the operation's beside them: a source's
//	         selections of each expert, its tokens for each rank, its tokens
//	records  2 turns x [ranks][capacity][top-k] pairs: the local expert + 1 of a selection, 0: it goes
//	         elsewhere; weight
//	befores  2 turns x [ranks][blocks][local, or by rank 1] numbers as in totals: what the blocks before
//	         this one have of the source's that comes here
//	words    for each lane 2 turns x [ranks] words with which a rank begins: the operation's number, the
//	         call, and where its rows are
//	marks    for each lane [ranks][blocks] numbers of operations: the block of the source is done with its share
//	blocks   received rows, scales behind them
//
// Place and push are one lane of operations, pull is another. Nobody ends an operation before all
// have marked it, and nobody marks it before it has read what the others began it with. So one
// place of each is enough; words, totals, records and befores, which a block may read after its
// mark, have two.
#pragma once
#include "bulk.cuh"
#include "exchange.cuh"
#include "marks.cuh"

namespace weft {

// announce_all tells every rank that this one has begun, with a word. One block does, at once, after a
// fence: what the stream stored before is there for whoever hears it.
__device__ __forceinline__ void announce_all(const Group &g, const Operation &o, u64 openings, u32 call, u32 word) {
	for (u32 r = threadIdx.x; r < g.ranks; r += blockDim.x) {
		fence_sys();
		announce(g, o.mask, openings, o.turn, r, call, word, 0);
	}
}

// count_and_empty counts how long openings are awaited, and empties those of the operation before.
// One warp of the launch does; all threads call it.
__device__ __forceinline__ void count_and_empty(const Group &g, const Operation &o, Wait &w, u64 openings) {
	if (blockIdx.x != 0 || threadIdx.x >= 32) return;
	count_openings(w, o.mask, openings, o.turn);
	for (u32 r = threadIdx.x; r < g.ranks; r += 32) empty_opening(g, openings, o.turn, r);
}

// Described is what a routing says of what comes here, and of how much is wanted everywhere. Go:
// described.
struct Described {
	int *counts, *offsets; // [local]: rows of an expert, and its first
	int *came, *tokens;	   // [ranks]: tokens of the source that come here, and all that it has
	int *rows;			   // that are received, pads included
	u32 *routing;		   // the number of the Prepare that the routing is of
	int *demand, *padded;  // [local]: selections of an expert, and rows with pads
	int *wanted;		   // [ranks]: rows that the rank would need
	int *over, *excess; // [ranks]: the first of its experts that has too many selections, or -1, and how many those are

	__device__ __forceinline__ Described(int *at, u32 local, u32 ranks) {
		counts = at;
		offsets = counts + local;
		came = offsets + local;
		tokens = came + ranks;
		rows = tokens + ranks;
		routing = (u32 *)rows + 1;
		demand = rows + 2;
		padded = demand + local;
		wanted = padded + local;
		over = wanted + ranks;
		excess = over + ranks;
	}
};

// each_pad calls f with every row that fills up a zone, all warps of all blocks together. align is
// the multiple to which zones are padded.
template <class F> __device__ __forceinline__ void each_pad(const Described &d, u32 local, u32 align, F f) {
	u32 most = align - 1, warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;
	for (u64 i = warp; i < (u64)local * most; i += blockDim.x / 32 * gridDim.x) {
		u32 le = (u32)(i / most), row = (u32)(d.counts[le] + i % most);
		if (row < (u32)d.padded[le]) f((u32)d.offsets[le] + row);
	}
}

// LEADER marks, of a token's selections that go to one rank, the first. The rest of the word is the
// row + 1.
constexpr u32 LEADER = 1u << 31;

} // namespace weft
