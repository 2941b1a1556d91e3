// What kernels share whose rows go straight to their final rows. Blocks divide the tokens in the same
// way on every rank, so a block exchanges data only with the blocks of its own number.
//
// Peers write these regions of a rank's window:
//
//	openings  for each lane, opening.cuh: the first word is where the rank's rows are
//	totals    2 turns x [ranks][experts + ranks + 1, or token-major 1] counts, each with the operation's
//	          number: a source's selections of each expert, its tokens for each rank, its tokens
//	records   2 turns x [ranks][capacity][top-k] pairs: the local expert + 1 of a selection, or 0 if it
//	          goes elsewhere; weight. Token-major 2 turns x [ranks][blocks][largest share x top-k] of two
//	          words, only the selections that come here: what it is, weight, each with the operation's number
//	shares    2 turns x [ranks][blocks][local] counts as in totals: what the lower blocks of the source send
//	          here; or token-major 2 turns x [ranks][ranks][blocks], the tokens of the source's block for each
//	          rank, and behind them 2 turns x [ranks][blocks][local + words + 1]: its selections of each
//	          local expert, a bit for each token that comes here, how many selections come here
//	weights   2 turns x [ranks][capacity][top-k] pairs as in records: the weights that a dispatch brings, of
//	          token-major rows. By expert they come to the records
//	marks     for each lane, marks.cuh
//	blocks    received rows, scales behind them
//
// Row map and push are one lane, pull is another.
//
// Invariant: a rank ends an operation only when the blocks of all others have begun it. Blocks that mark end after all
// marks; token-major a prepare's end after a count of every block. So a rank is one operation ahead at most, and
// totals, records and shares need two turns. Marks need one: they grow, and a later one stands for those before.
#pragma once
#include "bulk.cuh"
#include "exchange.cuh"
#include "marks.cuh"

namespace weft {

// announce_all opens the operation at every rank, with a word. One block calls it, before anything else.
// The fence makes what the stream stored before visible to a rank that has seen the opening.
__device__ __forceinline__ void announce_all(const Group &g, const Operation &o, u64 openings, u32 call, u32 word) {
	WEFT_TRACED(o.trace.signalled_by_all();)
	for (u32 r = threadIdx.x; r < g.ranks; r += blockDim.x) {
		fence_sys();
		announce(g, o.mask, openings, o.turn, r, call, word, 0);
	}
}

// count_and_empty counts how long openings are awaited, and empties those of the operation before.
// One warp of the launch does; all threads call it.
__device__ __forceinline__ void count_and_empty(const Group &g, const Operation &o, Wait &w, u64 openings) {
	if (blockIdx.x != 0 || threadIdx.x >= 32) return;
	count_openings(w, o.own, o.mask, openings, o.turn);
	for (u32 r = threadIdx.x; r < g.ranks; r += 32) empty_opening(g, o.own, openings, o.turn, r);
}

// Described is what a routing knows of what comes here, and of how many rows every rank needs. Go:
// described.
struct Described {
	int *counts, *offsets; // [local]: rows of an expert, and its first
	int *from_source, *tokens; // [ranks]: tokens of the source that come here, and all that it has
	int *rows;			   // that are received, pads included
	u32 *routing;		   // the number of the Prepare that the routing is of
	int *demand, *padded;  // [local]: selections of an expert, and rows with pads
	int *wanted;		   // [ranks]: rows that the rank would need
	int *over, *excess; // [ranks]: the first of its experts that has too many selections, or -1, and how many those are

	__device__ __forceinline__ Described(int *at, u32 local, u32 ranks) {
		counts = at;
		offsets = counts + local;
		from_source = offsets + local;
		tokens = from_source + ranks;
		rows = tokens + ranks;
		routing = (u32 *)rows + 1;
		demand = rows + 2;
		padded = demand + local;
		wanted = padded + local;
		over = wanted + ranks;
		excess = over + ranks;
	}
};

// each_pad calls f with every pad row of the zones, which are padded to multiples of align. All warps of
// all blocks share the rows.
template <class F> __device__ __forceinline__ void each_pad(const Described &d, u32 local, u32 align, F f) {
	u32 most = align - 1, warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;
	for (u64 i = warp; i < (u64)local * most; i += blockDim.x / 32 * gridDim.x) {
		u32 le = (u32)(i / most), row = (u32)(d.counts[le] + i % most);
		if (row < (u32)d.padded[le]) f((u32)d.offsets[le] + row);
	}
}

// LEADER marks the first of a token's selections that go to one rank. The rest of the word is row + 1.
constexpr u32 LEADER = 1u << 31;

} // namespace weft
