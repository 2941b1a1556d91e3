// What the kernels of expert parallelism share: flags and calls, what a routing says of a selection,
// and where things stand in the window of a handle whose rows go through slots.
//
// Peers write these regions of a rank's window. Each slot has one writer.
//
//	heads     openings (opening.cuh) of dispatches, and others of combines: tokens of the source, blocks
//	          that it has free, call_tag
//	counts    3 turns x [ranks][1 + local experts] words, for rows by expert: tokens of the source that
//	          come here, its selections of each expert
//	records   3 turns x [ranks][capacity][top-k] pairs of words: expert + 1 and its index among the
//	          source's selections of that expert (16 bits each), weight
//	rows      turns x [ranks][capacity] slots: what is dispatched, scales behind the row
//	home      turns x [ranks][capacity] or [capacity][top-k] slots: what is combined
//	arrived   [ranks][blocks] words: the epoch whose rows the block of the source has sent
//	returned  the same for combine
//
// Heads, counts and records are values that are their own flags. So are rows (VALUE), or a word in
// arrived says for all rows of a block that they are there (FLAG).
#pragma once
#include "opening.cuh"
#include "walk.cuh"

namespace weft {

// Operations, as records name them. Go: opPrepare and its like.
enum {
	OP_PREPARE = 1,
	OP_DISPATCH = 2,
	OP_COMBINE = 3,
	OP_DISPATCH_BACKWARD = 5,
	OP_COMBINE_BACKWARD = 6,
};

// What a launch does: one list for all kernels, which the host gives. Go: launchFlags.
enum { WEFT_FLAGS };

constexpr u32 CALL_BITS = 4; // Go: callBits

// The words before a source's counts.
enum { TOKENS_HERE, COUNTS };

// Shape is what all ranks agree on. Go: shape.
struct Shape {
	u32 capacity; // tokens that a rank sends at most
	u32 topk, experts, local;
	u32 reciprocal, zero; // of local: 2^32 / local, rounded up
};

// call_tag packs the call and the low 12 bits of the operation's number at which its routing was
// prepared. Peers compare it.
__device__ __forceinline__ u32 call_tag(u32 call, u32 prepared) { return call | (prepared & 0xFFF) << CALL_BITS; }

// Batch is what a thread of an exchange through slots knows of the operation.
struct Batch {
	RankSet mask;
	u64 epoch;		 // operations before this one
	u32 turn, buffer; // buffer has the rows: the turn, or one of two where a word a block is their flag
	u32 blocks;		 // that move rows
	u32 flags;
	bool few; // of dispatch: tokens
	char *own;
	WEFT_TRACED(Trace trace;)
};

// Pair is what is known of a selection. Go: pair.
struct alignas(8) Pair {
	// Of a record, and of this rank's own: expert + 1 | index << 16. Of one that came: row + 1, or if a
	// row is a token's local expert + 1. 0: none.
	u32 target;
	u32 weight; // fp32
};

#ifndef WEFT_PORTS
#define WEFT_PORTS 0 // there are ranks whose memory is not mapped, and rows go 1: to each of them, 2: once to each host
#endif

// place_of is whose place in rank r's window has what only r is sent: this rank's. In this rank's own window, which
// stands for that of a far rank, it is r's: see ports.cuh.
__device__ __forceinline__ u32 place_of(const Group &g, const char *window, u32 r) {
	return WEFT_PORTS != 0 && window == g.window[g.rank] ? r : g.rank;
}

// settle has a value computed by here, rather than where it is used.
__device__ __forceinline__ void settle(u32 v) { asm volatile("" ::"r"(v) : "memory"); }
__device__ __forceinline__ void settle(const Windows &w) {
#pragma unroll
	for (u32 i = 0; i < RANK_LINES; i++) asm volatile("" ::"l"(w.line[i]) : "memory");
}

// rank_of is the rank of expert e.
__device__ __forceinline__ u32 rank_of(const Shape &s, u32 e) { return s.local == 1 ? e : __umulhi(e, s.reciprocal); }

} // namespace weft
