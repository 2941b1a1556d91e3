// Direct operations: ranks read and write each other's operands where they lie, in windows. Nothing is
// staged.
//
//	ready   "my operands are there, and may be written": block b of every rank tells block b of every
//	        other, and waits for its word before it touches that rank's operands
//	done    "I have written yours, and read mine of you": told when a block has nothing more to do; a
//	        block ends when it has heard so from its likes
//
// Both are words a block and rank in the window, with the number of the operation. They only grow.
#pragma once
#include "slots.cuh"

namespace weft {

// Direct is what direct kernels have beside the lane. Go: directArgs.
struct Direct {
	u64 ready, done; // in the window: [blocks][ranks] words of 64 bits
};

// Meeting is how a block meets its likes on the other ranks.
struct Meeting {
	const Group &g;
	const Lane &lane;
	const Live &live;
	u64 ready, done, epoch; // ready, done: this block's words

	__device__ __forceinline__ Meeting(const Group &g, const Lane &l, const Live &live, const Direct &d, u64 epoch)
		: g(g), lane(l), live(live), ready(d.ready + (u64)blockIdx.x * g.ranks * 8),
		  done(d.done + (u64)blockIdx.x * g.ranks * 8), epoch(epoch) {
		WEFT_TRACED(trace = Trace(g, l.state, epoch);)
	}

	__device__ __forceinline__ bool meets() const { return threadIdx.x < g.ranks && holds(live.others, threadIdx.x); }

	__device__ __forceinline__ char *theirs(u64 words) const { return g.window[threadIdx.x] + words + g.rank * 8; }

#if WEFT_TRACE
	Trace trace;
	// note_word notes that a rank's word has come.
	__device__ __forceinline__ void note_word(u64 words, bool there) const {
		if (there && meets()) trace.arrived(threadIdx.x, words == ready ? 0 : 1);
	}
#endif

	// await is false in any thread of the block if one rank's word has not come.
	__device__ __forceinline__ bool await(u64 words) const {
		bool there = !meets() || poll_begun(g, lane.state, lane.op, epoch, threadIdx.x,
											g.window[g.rank] + words + threadIdx.x * 8, epoch);
		WEFT_TRACED(note_word(words, there);)
		return __syncthreads_and(there);
	}

	// begin says that this rank's operands are there, and waits for the others. What a rank's kernels stored before
	// is there: they have ended. Meanwhile the operation, which uses no slots, does what it owes the lane. It is false
	// in all threads of the block if the wait is over.
	__device__ __forceinline__ bool begin(const Collective &c) const {
		WEFT_TRACED(trace.signalled_by_all();)
		if (meets()) store_relaxed_sys_u64(theirs(ready), epoch);
		c.clear(lane);
		c.note(lane, 0, true);
		return await(ready);
	}

	// end says that this block has stored and read what it had to, and waits for the others. A block that has
	// stored nothing at its peers needs no fence: what a thread has read it has before it says so.
	__device__ __forceinline__ void end(bool stored = true) const {
		WEFT_TRACED(trace.signalled_first(1);)
		__syncthreads();
		if (meets()) {
			if (stored) fence_sys();
			store_relaxed_sys_u64(theirs(done), epoch);
		}
		await(done);
	}
};

constexpr u32 BULK_THREADS = 256; // of a block that reduces what bulk copies bring. Go: bulkThreads
constexpr u32 CARRIERS = 128;	  // of a block that moves data by bulk copies. Go: carriers

// Body is what bulk copies can move of some bytes: multiples of 16 between addresses that are such, from `head`
// bytes on. Nothing, if the addresses differ modulo 16.
struct Body {
	u64 bytes;
	u32 head;

	__device__ __forceinline__ Body(const char *from, const char *to, u64 all) : bytes(0), head(0) {
		if ((((u64)from ^ (u64)to) & 15) != 0) return;
		head = (u32)(0 - (u64)from) & 15;
		if (all < head + 16) {
			head = 0;
			return;
		}
		bytes = (all - head) & ~(u64)15;
	}
};

} // namespace weft
