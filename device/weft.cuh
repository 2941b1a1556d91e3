// What kernels that talk to each other share: who the ranks are, how a wait ends, how operations
// are counted on the device, and values that are their own flags.
//
// Order. An operation of a lane (a State) is one kernel, or two when it is sent and received apart,
// always of the same number of blocks. Each block counts the operations for itself: it reads its
// count when it starts and raises it when it ends. So a kernel may be captured once and replayed
// any number of times, and no block waits for another.
#pragma once
#include "ptx.cuh"

namespace weft {

// Record is what a wait leaves in host memory when it gives up. Go: device.Record.
struct Record {
	u32 state, op;
	u64 epoch;
	int rank, peer;
	u32 cause, zero;
	u64 expected, seen;
	u64 reserved[2];
};

enum { RECORD_EMPTY = 0, RECORD_WRITTEN = 1 };
enum { CAUSE_TIMEOUT = 1, CAUSE_ABORT = 2, CAUSE_STOPPED = 3, CAUSE_MISMATCH = 4 };
enum {
	OP_PREPARE = 1,
	OP_DISPATCH = 2,
	OP_COMBINE = 3,
	OP_BARRIER = 4,
	OP_DISPATCH_BACKWARD = 5,
	OP_COMBINE_BACKWARD = 6
};

constexpr u32 MAX_RANKS = 64;

// Group is a communicator as a kernel sees it. Go: device.Group.
struct Group {
	char *window[MAX_RANKS]; // every rank's part of one window, as this GPU reaches it
	const u64 *abort;		 // waits end when it is not 0
	Record *record;
	// in this GPU's memory: 0 until somebody writes the record, for atomic operations on the host's
	// memory are none everywhere
	u32 *claim;
	u64 *waits; // [ranks]: where it is counted for how long each is waited for, or none
	u32 ranks, rank;
};

// State is what the operations of one owner have in common, in this GPU's memory, with Counts
// behind it: for each lane of operations, one a block. The host writes it when nothing runs. Go:
// device.State.
struct State {
	u64 mask;	 // ranks that are left out
	u64 timeout; // of a wait, in nanoseconds
	u32 stopped; // a wait gave up: nothing runs until the host has begun anew
	u32 zero;
	u64 reserved;
};

// Count is what a block has counted. Go: device.Count.
struct Count {
	u64 epoch; // operations that have ended
	u32 turn;  // epoch modulo 3
	u32 zero;
};

// touch reads a kernel's arguments, so that they are near when they are needed.
__device__ __forceinline__ void touch(const void *arguments, u32 bytes) {
	u32 sum = 0;
#pragma unroll
	for (u32 i = 0; i < bytes; i += 64) sum += *(const u32 *)((const char *)arguments + i);
	asm volatile("" ::"r"(sum));
}

__device__ __forceinline__ Count *count_of(State *s, u32 block) { return (Count *)(s + 1) + block; }

// report leaves a record, if there is none yet.
__device__ __forceinline__ void report(const Group &g, u32 op, u64 epoch, u32 peer, u32 cause, u64 expected, u64 seen) {
	Record *r = g.record;
	if (atomic_cas_gpu4(g.claim, 0, 1) != 0) return;
	r->op = op;
	r->epoch = epoch;
	r->rank = (int)g.rank;
	r->peer = (int)peer;
	r->cause = cause;
	r->expected = expected;
	r->seen = seen;
	store_release_sys4(&r->state, RECORD_WRITTEN);
}

// refuse is what an operation does instead of anything else when the State is stopped: who replays
// it is told, also after the failure itself is over.
__device__ __forceinline__ void refuse(const Group &g, u32 op, u64 epoch) {
	if (blockIdx.x == 0 && threadIdx.x == 0) report(g, op, epoch, g.rank, CAUSE_STOPPED, 0, 0);
}

// gave_up says whether a thread that has polled for so many nanoseconds is to wait no longer. It is
// a function of its own, and takes values, so that polling needs no memory.
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

// Wait bounds the waits of one thread, together.
struct Wait {
	const Group &group;
	State *state;
	u64 epoch, start;
	u32 op, polls;
	u32 look;  // after how many periods of 2^20 ns the abort word is looked at
	bool over; // gave up

	__device__ Wait(const Group &g, State *s, u32 op, u64 epoch)
		: group(g), state(s), epoch(epoch), start(0), op(op), polls(0), look(threadIdx.x / 32), over(false) {}

	// give_up ends the operation for a reason of the caller's.
	__device__ __forceinline__ void give_up(u32 peer, u32 cause, u64 expected, u64 seen) {
		report(group, op, epoch, peer, cause, expected, seen);
		store_relaxed_gpu4(&state->stopped, 1);
		over = true;
	}

	// more is called after a poll that found nothing. False: give up.
	//
	// The abort word lies in the host's memory, where one look may take 150 us. So a rank that
	// looks is late, and its peers wait for it: if they looked in turn after as long as that, every
	// operation would take so long until the stream is empty. Nobody looks in the first
	// millisecond, and then the warps of a block take turns.
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

// leave is the last thing that all threads of a block do. It ends the operation, if it ends here.
// first is the lane's first Count.
__device__ __forceinline__ void leave(State *s, u64 epoch, u32 turn, bool ends, u32 first = 0) {
	__syncthreads(); // all have read the count
	if (threadIdx.x == 0 && ends) *count_of(s, first + blockIdx.x) = {epoch + 1, turn == 2 ? 0 : turn + 1, 0};
}

// ---- Values that are their own flags. A word of ones, NaNs in every float type, stands for "not
// there yet", and is never sent: clean makes it 0x7FFFFFFF, which is NaNs too.

constexpr u32 EMPTY = 0xFFFFFFFFu;

__device__ __forceinline__ u32 clean(u32 w) { return w == EMPTY ? 0x7FFFFFFFu : w; }
__device__ __forceinline__ uint4 clean(uint4 v) { return make_uint4(clean(v.x), clean(v.y), clean(v.z), clean(v.w)); }
__device__ __forceinline__ bool full(uint2 v) { return v.x != EMPTY && v.y != EMPTY; }
__device__ __forceinline__ bool full(uint4 v) { return v.x != EMPTY && v.y != EMPTY && v.z != EMPTY && v.w != EMPTY; }
__device__ __forceinline__ uint4 empty16() { return make_uint4(EMPTY, EMPTY, EMPTY, EMPTY); }

// await waits for a value of peer's.
__device__ __forceinline__ u32 await4(Wait &w, u32 peer, const void *p) {
	u32 v = load_relaxed_sys4(p);
	while (v == EMPTY && !w.over && w.more(peer, 0, v)) v = load_relaxed_sys4(p);
	return v;
}

__device__ __forceinline__ uint2 await8(Wait &w, u32 peer, const void *p) {
	uint2 v = load_relaxed_sys8(p);
	while (!full(v) && !w.over && w.more(peer, 0, v.x)) v = load_relaxed_sys8(p);
	return v;
}

__device__ __forceinline__ uint4 await16(Wait &w, u32 peer, const void *p) {
	uint4 v = load_relaxed_sys16(p);
	while (!full(v) && !w.over && w.more(peer, 0, v.w)) v = load_relaxed_sys16(p);
	return v;
}

// await_epoch waits until a word that peer raises once an operation has reached the low bits of
// epoch.
__device__ __forceinline__ void await_epoch(Wait &w, u32 peer, const void *p, u32 epoch) {
	u32 v = load_acquire_sys4(p);
	while ((int)(v - epoch) < 0 && !w.over && w.more(peer, epoch, v)) v = load_acquire_sys4(p);
}

// Windows are all ranks' windows, two to a lane: a look at the launch's arguments at a place that
// is not known beforehand takes a few hundred cycles.
struct Windows {
	u64 low, high; // of the ranks lane and 32 + lane

	__device__ __forceinline__ Windows(const Group &g) {
		u32 lane = threadIdx.x & 31;
		low = lane < g.ranks ? (u64)g.window[lane] : 0;
		high = 32 + lane < g.ranks ? (u64)g.window[32 + lane] : 0;
	}

	// of gives a rank's window; every lane of the warp asks for the same.
	__device__ __forceinline__ char *of(u32 rank) const {
		return (char *)__shfl_sync(0xFFFFFFFFu, rank < 32 ? low : high, rank & 31);
	}

	// each gives every lane of the warp the window that it asks for.
	__device__ __forceinline__ char *each(u32 rank) const {
		u64 below = __shfl_sync(0xFFFFFFFFu, low, rank & 31), above = __shfl_sync(0xFFFFFFFFu, high, rank & 31);
		return (char *)(rank < 32 ? below : above);
	}
};

// ---- Numbers.

// Divisor divides by a number that the host knows. Go: device.Divisor.
struct Divisor {
	u32 by, inverse; // (2^32 - 1) / by

	// quotient gives n / by, for every n, and the rest.
	__device__ __forceinline__ u32 quotient(u32 n, u32 &rest) const {
		u32 q = __umulhi(n, inverse); // at most one too few
		rest = n - q * by;
		if (rest < by) return q;
		rest -= by;
		return q + 1;
	}
};

// ---- Sets of ranks.

__device__ __forceinline__ bool holds(u64 set, u32 rank) { return (set >> rank & 1) != 0; }

__device__ __forceinline__ u64 all_ranks(const Group &g) { return ~0ull >> (MAX_RANKS - g.ranks); }

// count_waits adds to the group's waits, if anybody wants to know, for how many nanoseconds from
// now on what is awaited of each other rank is not there(rank). It returns when all is there, or
// with w.over. All lanes of a warp call it, and stay together till the end: one that left its loop
// would wait for the others before it looked at the clock.
template <class F> __device__ __forceinline__ void count_waits(Wait &w, u64 mask, F there) {
	const Group &g = w.group;
	if (g.waits == nullptr) return;
	u32 lane = threadIdx.x & 31, missing = 0;
	u64 begun = nanoseconds(), waited[2] = {0, 0}, others = all_ranks(g) & ~mask & ~(1ull << g.rank);
#pragma unroll
	for (u32 j = 0; j < 2; j++) {
		if (holds(others, 32 * j + lane) && !there(32 * j + lane)) missing |= 1u << j;
	}
	while (__any_sync(0xFFFFFFFFu, missing != 0)) {
#pragma unroll
		for (u32 j = 0; j < 2; j++) {
			if ((missing >> j & 1) == 0) continue;
			bool here = there(32 * j + lane);
			waited[j] = nanoseconds() - begun;
			if (here) missing &= ~(1u << j);
		}
		if (missing != 0 && !w.more(missing == 2 ? 32 + lane : lane, 1, 0)) missing = 0;
	}
#pragma unroll
	for (u32 j = 0; j < 2; j++) {
		if (waited[j] != 0) atomicAdd(&g.waits[32 * j + lane], waited[j]);
	}
}

// Round goes through a set of ranks, from the one after `from`.
struct Round {
	u64 left; // bit i: the rank that is i + 1 further
	u32 from, ranks;

	__device__ __forceinline__ Round(u64 set, u32 from, u32 ranks) : from(from), ranks(ranks) {
		u32 up = from + 1; // at most 64, where a shift by up would be none
		left = (set >> from >> 1) | (set & ((1ull << from << 1) - 1)) << (ranks - up);
	}

	__device__ __forceinline__ bool more() const { return left != 0; }

	__device__ __forceinline__ u32 next() {
		u32 r = from + (u32)__ffsll((long long)left);
		left &= left - 1;
		return r >= ranks ? r - ranks : r;
	}
};

// union_of is the union of all lanes' sets; every lane of the warp calls it.
__device__ __forceinline__ u64 union_of(u64 set) {
	u32 low = __reduce_or_sync(0xFFFFFFFFu, (u32)set), high = __reduce_or_sync(0xFFFFFFFFu, (u32)(set >> 32));
	return (u64)high << 32 | low;
}

} // namespace weft
