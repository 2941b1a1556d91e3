// The parameter of reductions of inputs that lie in windows, and how threads reduce where they lie.
#pragma once
#include "direct.cuh"
#include "rows.cuh"

namespace weft {

// Go: directReduceArgs.
struct DirectReduce {
	Lane lane;
	Direct direct;
	How how;
	u64 bytes;		 // of a reduce-scatter, those of a part; else of the whole
	u64 part_step;	 // of a reduce-scatter: from a rank's part of an input to the next one's; else 0
	u32 unit, chunk; // unit: what all addresses are multiples of; chunk: of a row, that bulk copies move at a time
	int root;		 // of a reduce; else -1
	u32 zero;
	char *out; // the only output, if there is one: of a reduce-scatter, of a reduce
	char *ins[MOST_RANKS];
	char *outs[MOST_RANKS]; // of an all-reduce
	Group group;
};

// Owned is what a rank reduces: bytes of every input, from a row's beginning on.
struct Owned {
	u64 from, bytes;

	__device__ __forceinline__ Owned(const DirectReduce &a, const Live &live) : from(0), bytes(a.bytes) {
		if (a.root >= 0) {
			if ((u32)a.root != a.group.rank) bytes = 0;
		} else if (a.part_step == 0) { // a share
			Shares shares((u32)((a.bytes + 15) / 16), live);
			u64 first = shares.first(live.own), size = shares.size(live.own);
			from = first * 16;
			bytes = min(size * 16, max(a.bytes, from) - from);
		}
	}
};

// reduce_by_threads reduces bytes of all rows, as vectors from the first on, and stores them where they belong.
// A thread reads a vector of all inputs before it writes it anywhere, and no other thread of any rank does
// either. So an all-reduce may be in place.
__device__ __forceinline__ void reduce_by_threads(const DirectReduce &a, const Collective &c, const Live &live,
												  const Owned &of, u32 unit) {
	u32 ranks = RANKS != 0 ? RANKS : a.group.ranks, vectors = (u32)((of.bytes + 15) / 16);
	u64 row = a.group.rank * a.part_step + of.from;
	auto at = [&](char *p) { return Part(Operand{p, of.bytes, unit, 0}); };
	for (u32 i = c.at; i < vectors; i += c.step) {
		uint4 sum = fold_rows(a.how, live, ranks, [&](u32 r) { return at(a.ins[r] + row).load(i); });
		if (a.out != nullptr) {
			at(a.out + of.from).store(i, sum);
			continue;
		}
#pragma unroll
		for (u32 k = 0; k < (RANKS != 0 ? RANKS : ranks); k++) {
			u32 r = (a.group.rank + k) % ranks;
			if (holds(live.set, r)) at(a.outs[r] + of.from).store(i, sum);
		}
	}
}

} // namespace weft
