// The operation under way. A kernel
//
//	1. makes a Collective, which waits for the kernel before it and reads the lane's state
//	2. loads its first operands, and calls begin
//	3. sends, after await_begun: see there
//	4. clears the turn of the operation before, and notes what the next has to know, while its data travels
//	5. waits for its peers' vectors
//
// Each block counts the operations for itself: comm.cuh.
#pragma once
#include "lane.cuh"

namespace weft {

__device__ __noinline__ void refuse_operation(const Group &g, u32 op, u64 epoch) { refuse(g, op, epoch); }

__device__ __forceinline__ u32 thread_of_launch() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Collective is the operation under way, as a thread knows it. A kernel makes it before it reads operands: the loads of
// the state are then in flight with those of the first operand. begin comes next.
struct Collective {
	Operation o;
	u32 at, step; // the thread's number in the launch, and how many there are
	u64 turn;	  // this operation's turn of slots, in a window
	Count count;
	u32 stopped;
	WEFT_TRACED(u64 called; bool begun = false;)

	__device__ __forceinline__ Collective(const Lane &l) {
		State *state = l.state;
		const Count *counts = count_of(state, blockIdx.x);
		at = thread_of_launch();
		step = gridDim.x * blockDim.x;
		computed((u64)counts | at | step);
		wait_for_previous();
		WEFT_TRACED(called = nanoseconds();)
		count = *counts;
		stopped = state->stopped;
		o.mask = state->mask();
	}

	// begin is false if the lane is stopped.
	__device__ __forceinline__ bool begin(const Group &g, const Lane &l) {
		o.epoch = count.epoch + 1;
		o.turn = count.turn;
		o.own = l.own;
		turn = l.slots + o.turn * l.turn_bytes;
		WEFT_TRACED(o.trace = Trace(g, l.state, o.epoch);)
		WEFT_TRACED(begun = stopped == 0;)
		WEFT_TRACED(if (begun && threadIdx.x == 0) o.trace.put(SITE_BEGIN, SITE_BEGIN, NO_PEER, l.op, called);)
		if (__builtin_expect(stopped != 0, 0)) refuse_operation(g, l.op, o.epoch);
		return stopped == 0;
	}

	// Kernels end in many ways, and a block when its last thread does.
	WEFT_TRACED(__device__ __forceinline__ ~Collective() {
		if (!begun) return;
		__syncthreads();
		o.trace.first_at(SITE_END);
	})

	// What the operation before left in the count: full_before says whether every rank had a word of every other,
	// vectors_before how many vectors of its turn, from the first on, are not ones.
	__device__ __forceinline__ bool full_before() const { return count.left >> 31 != 0; }
	__device__ __forceinline__ u32 vectors_before() const { return count.left & 0x7FFFFFFF; }

	// quiet says that the operation sends and awaits nothing but data: no rank is masked, and the operation before
	// was full. See plain.cuh.
	__device__ __forceinline__ bool quiet() const { return stopped == 0 && full_before() && !nonempty(o.mask); }

	// clear makes ones of what the operation before left in its turn. A kernel calls it between sending and waiting,
	// while its data travels.
	__device__ __forceinline__ void clear(const Lane &l) const {
		char *p = o.own + l.cleared + turn_before(o.turn) * l.turn_bytes;
		for (u32 i = at; i < vectors_before(); i += step) store16(p + (u64)i * 16, empty16());
	}

	// note counts the operation, and leaves full_before and vectors_before to the next. All threads call it once, while
	// their data travels. bytes: what the operation uses of its turn.
	__device__ __forceinline__ void note(const Lane &l, u64 bytes, bool full) const {
		__syncthreads(); // all have read the count
		u32 left = (l.clear != 0 ? 0 : (u32)(bytes / 16)) | (full ? 1u << 31 : 0);
		Count next = {o.epoch, o.turn == 2 ? 0 : o.turn + 1, left};
		for (u32 b = blockIdx.x + threadIdx.x * gridDim.x; b < l.counts; b += step) *count_of(l.state, b) = next;
	}
};

// ---- Who has begun. A rank that has a word of every peer in each operation knows that they have begun it. Rooted and
// sparse operations are not full in this sense: there, ranks tell each other by words of 8 bytes, which do not wrap. (A
// word of 4 bytes that 2^31 operations have not written would seem to be of a later operation.)

// say_begun tells every rank that this one has begun the operation. Operations that are not full call it, on all
// threads.
__device__ __forceinline__ void say_begun(const Group &g, const Lane &l, const Operation &o) {
	u32 r = threadIdx.x;
	if (blockIdx.x == 0 && r < g.ranks && !holds(o.mask, r))
		store_relaxed_sys_u64(g.window[r] + l.heard + g.rank * 8, o.epoch);
}

// poll_begun looks at a word until peer has begun an operation, and is false if the wait is over.
__device__ __noinline__ bool poll_begun(const Group &g, State *state, u32 op, u64 epoch, u32 peer, const char *word,
										u64 begun) {
	Wait w(g, state, op, epoch);
	u64 v = load_relaxed_sys_u64(word);
	while (v < begun && w.more(peer, begun, v)) v = load_relaxed_sys_u64(word);
	return v >= begun;
}

// await_begun waits until the ranks of a set have begun the operation before this one, unless that was
// full. All lanes of the warp call it, before they send.
__device__ __forceinline__ void await_begun(const Group &g, const Lane &l, const Collective &c, Wait &w,
											const RankSet &to) {
	WEFT_TRACED(c.o.trace.signalled_first();) // what is sent comes behind it
	if (c.full_before()) return;
#pragma unroll 1
	for (u32 r = threadIdx.x & 31; r < g.ranks; r += 32) {
		if (holds(to, r) && r != g.rank && !w.over)
			w.over = !poll_begun(g, w.state, w.op, w.epoch, r, c.o.own + l.heard + r * 8, c.o.epoch - 1);
	}
	__syncwarp();
}

} // namespace weft
