// Which bytes of an operation's operands a block moves, where no pipeline cuts them.
#pragma once
#include "program.cuh"

namespace weft {

namespace plan {

// Sizes are those of a launch's chunks.
struct Sizes {
	u64 chunk, units;
	u32 align;

	__device__ __forceinline__ Sizes(const Plan &a) : chunk(a.chunk), units(a.units), align(a.align) {}
};

// Part is the bytes [from, to) of each of an operation's operands that a block moves, where no pipeline cuts them.
struct Part {
	u64 from, to;
	u32 me;		// the thread
	bool sums;	// it adds up, or compares nothing: what a switch may do is not, nor parts of 4 GiB and more
	bool is_short; // and a thread has one vector of it at most

	__device__ __forceinline__ Part(const Sizes &a, const Head &h, const Data &d, u32 me)
		: from(0), to(d.chunks * a.chunk), me(me) {
		sums = h.kind() >= PAIRS && h.kind() <= FOLD && !h.has(FROM_ALL | TO_ALL) &&
			   (h.kind() != FOLD || h.reduction() == SUM || d.sources == 1);
		if (sums && d.group != 0) {
			u64 units = d.chunks * a.units;
			u32 id = d.group & 0xFFFF, size = d.group >> 16, q = (u32)units / size, r = (u32)units % size;
			from = (u64)(id * q + min(id, r)) * a.align;
			to = (u64)((id + 1) * q + min(id + 1, r)) * a.align;
			sums = units >> 32 == 0;
		}
		is_short = sums && to - from <= (u64)blockDim.x * 16;
	}

	// at is the thread's first vector, and has says whether there is one.
	__device__ __forceinline__ u64 at() const { return from + me * 16; }
	__device__ __forceinline__ bool has() const { return at() < to; }
};

} // namespace plan
} // namespace weft
