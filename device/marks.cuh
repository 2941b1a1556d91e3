// Block marks: a barrier between the blocks of one number on all ranks. Blocks of different numbers
// do not wait for each other, so a rank's shares arrive as they are done.
//
// The window has [ranks][blocks] words of marks, zeros in the beginning. A mark is the number of the
// operation and grows, so marks need one turn: a later mark stands for those before.
#pragma once
#include "wait.cuh"

namespace weft {

__device__ __forceinline__ u64 mark_at(u64 marks, u32 rank) { return marks + ((u64)rank * gridDim.x + blockIdx.x) * 4; }

// mark reports to every rank that this block has stored its share. The last threads do, which wait
// for the fence; others may go on. All threads of the block call it.
__device__ __forceinline__ void mark(const Group &g, const Operation &o, u64 marks) {
	WEFT_TRACED(if (threadIdx.x == 0) o.trace.signalled(1);)
	__syncthreads();
	for (u32 r = blockDim.x - 1 - threadIdx.x; r < g.ranks; r += blockDim.x) {
		if (holds(o.mask, r)) continue;
		fence_sys();
		store_relaxed_sys4(g.window[r] + mark_at(marks, g.rank), (u32)o.epoch);
	}
}

// await_marks returns when the blocks of this number have marked the operation on every rank. The
// caller then sees their earlier stores. False: the wait ended without them, on every thread of the
// block.
__device__ __forceinline__ bool await_marks(const Group &g, const Operation &o, Wait &w, u64 marks) {
	for (u32 r = threadIdx.x; r < g.ranks; r += blockDim.x) {
		if (!holds(o.mask, r)) await_epoch(w, r, o.own + mark_at(marks, r), (u32)o.epoch);
		WEFT_TRACED(if (!holds(o.mask, r) && r != g.rank && !w.over) o.trace.arrived(r, 1);)
	}
	return __syncthreads_or(w.over) == 0;
}

} // namespace weft
