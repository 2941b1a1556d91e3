// Chunks: how an operation with words goes through the parts of an operand (spec.Words).
#pragma once
#include "progress.cuh"
#include "slots.cuh"

namespace weft {

// Chunks cuts parts. A launch has bytes [at, at + bytes) of every part. Go: chunks.
struct Chunks {
	u64 *words;	 // [ranks][count]
	u32 *landed; // [ranks][count], in this GPU's memory: blocks that are done with a chunk
	u64 size;	 // bytes of a chunk
	u64 part;	 // bytes of a part
	u64 at, bytes;
	u32 count; // chunks of a part
	u32 zero;

	__device__ __forceinline__ bool last() const { return at + bytes == part; }

	// each calls f(chunk, first vector, end, ends) for the chunks of a part that the launch meets: the vectors are
	// the launch's, and ends says that the chunk ends in it. f is false to stop.
	template <class F> __device__ __forceinline__ void each(F f) const {
		u32 from = size == 0 ? 0 : (u32)(at / size);
		for (u32 c = from; c < count; c++) {
			u64 begin = max(at, min(at + bytes, c * size)), end = max(at, min(at + bytes, (c + 1) * size));
			bool ends = (c + 1) * size <= at + bytes || last();
			if (begin == end && !ends) return;
			if (!f(c, (u32)((begin - at + 15) / 16), (u32)((end - at + 15) / 16), ends)) return;
		}
	}

	__device__ __forceinline__ u64 *word(u32 rank, u32 chunk) const { return words + (u64)rank * count + chunk; }
	__device__ __forceinline__ u32 *blocks(u32 rank, u32 chunk) const { return landed + (u64)rank * count + chunk; }
};

// BATCH is how many vectors a thread has on their way at once.
constexpr u32 BATCH = SLOT_BYTES == 32 ? 2 : 4;

// batches calls f(i) for the first of every BATCH vectors of [from, end) that are a thread's: i, i + step and so on.
// The thread is number `at` of `step`.
template <class F> __device__ __forceinline__ void batches(u32 from, u32 end, u32 at, u32 step, F f) {
	for (u64 i = (u64)from + at; i < end; i += (u64)BATCH * step) f((u32)i);
}

// poll_word looks at a word of this GPU's until it is not 0, and is false if the wait is over.
__device__ __noinline__ bool poll_word(const Group &g, State *state, u32 op, u64 epoch, const u64 *word) {
	Wait w(g, state, op, epoch);
	u64 v = load_acquire_sys_u64(word);
	while (v == 0 && w.more(g.rank, 1, v)) v = load_acquire_sys_u64(word);
	return v != 0;
}

} // namespace weft
