// Runs a communication plan: every block runs its own program, operation by operation. doc.go has the layout of
// programs and memory, and says why it is right.
//
//	entries     entries.cuh    while the launch before still runs: the program's entries become addresses
//	opening     quick.cuh      the first operation's sources are read, beside which launch this is
//	quick       quick.cuh      operations that take few instructions
//	meet        meet_ranks     if chunks have another size than in the launch before
//	block       block.cuh      all others, to the end
//
//	entries -> opening -> quick ---------------> end
//	              |         | what it cannot run
//	              v         v
//	             meet --> block ---------------> end
//
// Data of which a thread has one vector at most moves by one_vector.cuh. Else quick adds and copies by folds.cuh, and
// block does all by move.cuh. Signals, barriers and semaphores are in sync.cuh. Block also runs operations of switches
// (switch.cuh) and what crosses to other hosts (far.cuh).
//
// Nothing but a nop, a barrier and what goes through a port, or has come through one, lets the threads of a block meet.
#include "block.cuh"
#include "entries.cuh"
#include "quick.cuh"

namespace weft {

namespace plan {

__device__ __noinline__ void refuse_launch(const Group &g, u64 epoch) { refuse(g, 0, epoch); }

// meet_ranks lets all ranks of this host have ended what was before. Where chunks have another size than in the launch
// before, they lie elsewhere, and what orders accesses of two launches to the same chunk says nothing. Ranks of other
// hosts, in whose place this rank's own window stands, touch none of its memory.
__device__ __noinline__ bool meet_ranks(const Plan &a, u64 epoch) {
	const Group &g = a.group;
	bool over = false;
	for (u32 r = threadIdx.x; r < g.ranks && blockIdx.x == 0; r += blockDim.x) {
		if (g.window[r] != g.window[g.rank]) store_release_sys_u64(g.window[r] + a.begun + g.rank * 8, epoch);
	}
	for (u32 r = threadIdx.x; r < g.ranks && !over; r += blockDim.x) {
		if (g.window[r] == g.window[g.rank]) continue;
		const char *word = g.window[g.rank] + a.begun + r * 8;
		Wait w(g, a.state, 0, epoch);
		u64 seen = load_acquire_sys_u64(word);
		while (seen < epoch && w.more(r, epoch, seen)) seen = load_acquire_sys_u64(word);
		over = w.over;
	}
	return __syncthreads_or(over) == 0;
}

// execute is the kernel: of plans that have packets or none, and that reach beyond what ranks map or do not.
template <bool PACKETS, bool BEYOND>
__global__ void __launch_bounds__(THREADS, 1) execute(const __grid_constant__ Plan a) {
	extern __shared__ uint4 room[];
	const char *program = a.program + (u64)blockIdx.x * a.stride;
	const u64 *entries = (const u64 *)program;
	const uint4 *code = (const uint4 *)(program + (u64)a.operands * 8);
	Own *own = (Own *)(a.blocks + (u64)blockIdx.x * a.own_stride);
	u64 *kept = (u64 *)(own + 1);
	u64 *near = (u64 *)room + 2 * a.uses; // operands in shared memory, and behind them the program
	uint4 *copy = (uint4 *)(near + a.operands);
	// The thread, as what calls no function knows it: the compiler would keep threadIdx.x in memory, for functions.
	u32 me = __shfl_sync(WARP, threadIdx.x, threadIdx.x & 31), first = (a.uses + 1) / 2;

	// The launch before may still run, so of this GPU's memory only the program is read.
	u64 entry = me < a.operands ? entries[me] : (u64)NOWHERE << 32;
	uint4 vector = code[min(me, a.vectors - 1)];
	touch(&a, sizeof(Plan) - sizeof(Group) - sizeof a.in - sizeof a.out);
	if (a.shared != 0) {
		if (me < a.vectors) copy[me] = vector;
		for (u32 i = me + blockDim.x; i < a.vectors; i += blockDim.x) copy[i] = code[i];
	}
	if (a.shared != 0) {
		for (u32 i = me; i < a.operands; i += blockDim.x) near[i] = address(a, i == me ? entry : entries[i]);
	}
	u64 further = half(a, entry);
	__syncthreads();
	Opening<PACKETS> opening(a, (a.shared != 0 ? copy : code) + first, near + 2 * a.uses, me);

	// What follows waits for memory only once: all that is read is asked for before any of it is looked at.
	wait_for_previous();
	if (a.early != 0) let_next_start();
	u64 before = own->chunk, epoch = count_of(a.state, blockIdx.x)->epoch + 1;
	u32 stopped = a.state->stopped;
	ulonglong2 count = make_ulonglong2(0, 0);
	if (a.shared != 0 && me < a.uses) count = ((const ulonglong2 *)kept)[me];
	opening.read();
	if (__builtin_expect(stopped != 0, 0)) return refuse_launch(a.group, epoch);
	WEFT_TRACED(if (me == 0) Trace(a.group, a.state, epoch).begin(0);)
	u32 flag = flag_of(epoch);
	bool second = (epoch & 1) == 0, same = before == a.chunk || before == 0; // chunks of one size
	if (a.shared != 0) {
		if (second && further != 0) near[me] += further;
		for (u32 i = me + blockDim.x; second && i < a.operands; i += blockDim.x) near[i] += half(a, entries[i]);
		if (me < a.uses) ((ulonglong2 *)room)[me] = count;
		for (u32 i = me + blockDim.x; i < a.uses; i += blockDim.x) {
			((ulonglong2 *)room)[i] = ((const ulonglong2 *)kept)[i];
		}
	}
	__syncthreads();
	Mover<PACKETS> m = {a, near + 2 * a.uses, epoch, flag, me};
	u32 at = first;
	if (same) at += opening.send(m);
	if (me == 0) { // all have read the block's count
		own->chunk = a.chunk;
		*count_of(a.state, blockIdx.x) = {epoch, 0, 0}; // plans have no turns
	}
	bool over = false;
	if (same && a.whole != 0 && a.shared != 0 && a.uses <= 32) {
		Quick<PACKETS> quick = {a, copy, near, (u64 *)room, m, false};
		at = quick.run(at);
		over = quick.over;
	}
	if (at != ENDED && (same || meet_ranks(a, epoch))) {
		Block<PACKETS, BEYOND> b = {code, kept + 2 * a.uses, kept, epoch, flag, at, over, 0, NO_LOOP, 0, 0, 0};
		if (a.shared != 0) {
			b.code = copy, b.operands = near, b.counts = (u64 *)room;
		} else {
			place(a, entries, kept + 2 * a.uses, second);
			__syncthreads();
		}
		while (b.step(a)) {
			if (!b.may_be_short(a)) continue;
			b.at = move_short<PACKETS>(a, Sizes(a), b.code, b.operands + 2 * a.uses, b.flag, b.at);
		}
	}
	WEFT_TRACED(__syncthreads(); if (me == 0) Trace(a.group, a.state, epoch).at(SITE_END);)
	if (BEYOND && a.streams != nullptr && blockIdx.x < a.own && threadIdx.x == 0) atomic_add_gpu4(a.ended, 1);
	if (a.early == 0) {
		__syncthreads(); // no thread waits any more
		let_next_start();
	}
	for (u32 i = threadIdx.x; a.shared != 0 && i < a.uses; i += blockDim.x) { // those that are this thread's
		((ulonglong2 *)kept)[i] = ((const ulonglong2 *)room)[i];
	}
}

} // namespace plan
} // namespace weft
