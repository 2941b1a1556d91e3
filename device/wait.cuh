// Waits for peers. Every wait ends: with the value, at the deadline, or by the abort word.
#pragma once
#include "comm.cuh"

namespace weft {

// gave_up reports whether a thread that has polled for `waited` nanoseconds ends its wait: the State is stopped, the
// deadline is over, or, if `look`, the abort word is set. It is not inlined, and takes values, so that a polling thread
// keeps nothing in memory.
__device__ __noinline__ bool gave_up(const Group &g, State *s, u32 op, u64 epoch, u64 waited, bool look, u32 peer,
									 u64 expected, u64 seen) {
	if (load_relaxed_gpu4(&s->stopped) != 0) return true;
	u32 cause = 0;
	if (waited > s->timeout) {
		cause = CAUSE_TIMEOUT;
	} else if (look && load_relaxed_sys_u64(g.abort) != 0) {
		cause = CAUSE_ABORT;
	}
	if (cause == 0) return false;
	report(g, op, epoch, peer, cause, expected, seen);
	store_relaxed_gpu4(&s->stopped, 1);
	return true;
}

// Wait bounds the waits of one thread in one operation. The awaited value may be used only if
// !over.
struct Wait {
	const Group &group;
	State *state;
	u64 epoch, start;
	u32 op, polls;
	u32 look;  // the thread reads the abort word next after so many periods of 2^20 ns
	bool over; // it has given up
	WEFT_TRACED(Trace trace;) // of the operation, if its counts are the lane's first

	__device__ Wait(const Group &g, State *s, u32 op, u64 epoch)
		: group(g), state(s), epoch(epoch), start(0), op(op), polls(0), look(threadIdx.x / 32), over(false) {
		WEFT_TRACED(trace = Trace(g, s, epoch);)
	}

	// give_up ends the operation for a reason of the caller's.
	__device__ __forceinline__ void give_up(u32 peer, u32 cause, u64 expected, u64 seen) {
		report(group, op, epoch, peer, cause, expected, seen);
		store_relaxed_gpu4(&state->stopped, 1);
		over = true;
	}

	// more is called after each poll that found nothing. False: end the wait.
	//
	// The abort word is in host memory, where a read may take 150 us. A rank that reads it is late,
	// and its peers wait: if they read it next, every operation takes that long until the stream is
	// empty. So no warp reads it in the first millisecond, and then the warps of a block take turns.
	__device__ __forceinline__ bool more(u32 peer, u64 expected, u64 seen) {
		if ((++polls & 63) != 0) return true;
		u64 now = nanoseconds();
		if (start == 0) start = now;
		u32 periods = (u32)((now - start) >> 20);
		bool looks = periods > look;
		if (looks) look = periods + (blockDim.x + 31) / 32;
		over = gave_up(group, state, op, epoch, now - start, looks, peer, expected, seen);
		return !over;
	}
};

// await_epoch waits until the word at p, which peer sets to each operation's number, is epoch or later. The caller
// then sees what peer stored before it set the word.
__device__ __forceinline__ void await_epoch(Wait &w, u32 peer, const void *p, u32 epoch) {
	u32 v = load_acquire_sys4(p);
	while ((int)(v - epoch) < 0 && !w.over && w.more(peer, epoch, v)) v = load_acquire_sys4(p);
}

// count_waits measures for each other rank how long there(rank) is false from now on, and adds the nanoseconds to
// Group.waits, if that is there. It returns when there is true for all, or with w.over.
// All lanes of a warp call it, and stay together to the end: a lane that left the loop would wait
// for the others before it looked at the clock.
template <class F> __device__ __forceinline__ void count_waits(Wait &w, const RankSet &mask, F there) {
	const Group &g = w.group;
	if (g.waits == nullptr) return;
	u32 lane = threadIdx.x & 31, missing = 0;
	u64 begun = nanoseconds(), waited[RANK_LINES];
	RankSet others = all_ranks(g) & ~mask & ~RankSet::one(g.rank);
#pragma unroll
	for (u32 j = 0; j < RANK_LINES; j++) {
		waited[j] = 0;
		// The last line of a domain may be shorter than a warp.
		bool is = 32 * j + 32 <= MAX_RANKS || 32 * j + lane < MAX_RANKS;
		if (is && holds(others, 32 * j + lane) && !there(32 * j + lane)) missing |= 1u << j;
	}
	while (__any_sync(0xFFFFFFFFu, missing != 0)) {
#pragma unroll
		for (u32 j = 0; j < RANK_LINES; j++) {
			if ((missing >> j & 1) == 0) continue;
			bool here = there(32 * j + lane);
			waited[j] = nanoseconds() - begun;
			if (here) missing &= ~(1u << j);
		}
		if (missing != 0 && !w.more(32 * ((u32)__ffs((int)missing) - 1) + lane, 1, 0)) missing = 0;
	}
#pragma unroll
	for (u32 j = 0; j < RANK_LINES; j++) {
		if (waited[j] != 0) atomicAdd(&g.waits[32 * j + lane], waited[j]);
	}
}

} // namespace weft
