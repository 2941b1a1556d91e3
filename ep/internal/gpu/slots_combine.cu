// Combine through slots: each rank stores what it has for the others in slots at the home of the token.
// The home reads its own rows where they are, waits for the rest, and adds in a fixed order in fp32,
// rounded once.
//
//	exact     every selection's row goes home, to the slot of (token, k); fused multiply-adds, k
//	          ascending, from +0 or the bias
//	partial   each rank first sums the rows that it has of a token, fused multiply-adds, k ascending,
//	          rounded once; home adds the ranks' sums in rank order, or by selection: in the order of
//	          the token's last selections there. Rank-major rows are the caller's sums.
//
// The phases:
//
//	return    slots_return.cuh  a warp stores a piece of a row, or of a sum, in a slot at the token's home
//	notify    notify            the last block opens the operation and waits for the openings of all ranks
//	sum       slots_sum.cuh     a warp waits for what ranks have for a token, and adds it up
//
// slots_combine.cuh has the arguments; exchange.cuh says what stands in a window.
//
//	rank that has rows of a token    its home
//	opening  -------------------->   notify
//	rows, or their sum  --------->   sum
//
// Blocks divide the roles: work returns and sums, the last one notifies.
//
// Why no memory is written too early: docs/design/gpu-engine.md, "Why two or three buffers are enough".
#include "slots_return.cuh"
#include "slots_sum.cuh"

namespace weft {

#if WEFT_TRACE
// A launch that receives alone goes on with the operation that another began.
__device__ __forceinline__ void begin_trace(const Combine &a, Batch &b, u32 stopped) {
	b.trace = Trace(a.group, a.state, b.epoch + 1, a.first);
	if (threadIdx.x == 0 && stopped == 0 && (b.flags & SEND) != 0) b.trace.begin(OP_COMBINE);
}
#endif

// open_batch reads what every block has to know. False: the operation is refused.
__device__ __forceinline__ bool open_batch(const Combine &a, Batch &b, const Count &count, u32 stopped) {
	b.epoch = count.epoch;
	b.turn = count.turn;
	WEFT_TRACED(begin_trace(a, b, stopped);)
	if (stopped == 0) return true;
	refuse(a.group, OP_COMBINE, b.epoch + 1);
	return false;
}

__device__ __forceinline__ void notify(const Combine &a, Batch &b) {
	bool send = (b.flags & SEND) != 0, receive = (b.flags & RECEIVE) != 0;
	wait_for_previous();
	Count count = *count_of(a.state, a.first + blockIdx.x);
	u32 stopped = a.state->stopped, call = call_tag(a.call, (u32)a.sent[a.group.ranks + 1]);
	b.mask = a.state->mask();
	if (!open_batch(a, b, count, stopped)) return;
	Wait w(a.group, a.state, OP_COMBINE, b.epoch + 1);
	WEFT_TRACED(w.trace = b.trace;)
	WEFT_TRACED(if (send) b.trace.signalled_by_all();)
	for (u32 r = threadIdx.x; send && r < a.group.ranks; r += blockDim.x)
		announce(a.group, b.mask, a.heads, b.turn, r, call, a.tokens, a.free);
	if (receive && threadIdx.x < 32) {
		await_peers(w, b.own, b.mask, a.heads, b.turn, call,
					[&](u32 src, uint4 opening) { a.credits[src] = opening.y; });
		// Every rank's blocks run, for notify blocks are the last, so this kernel ends whatever room
		// the next one's take.
		let_next_start();
	}
	if (receive) {
		for (u32 t = a.tokens + threadIdx.x; t < a.shape.capacity; t += blockDim.x)
			store_slots(filled_slots(a, b.turn, t), Slots{});
		if (threadIdx.x == 0) *had(a, b.turn) = a.tokens;
	}
	leave(a.state, b.epoch, b.turn, receive, a.first);
	WEFT_TRACED(if (receive) b.trace.first_at(SITE_END);)
}

// Part is what a warp sends at once: a piece of a token, for one group of ranks if each step of the walk
// is for one group; else for all groups in turn.
struct Part {
	u32 t, pc, group;

	__device__ __forceinline__ Part(const Combine &a, u32 i, bool grouped) : group(0) {
		if (grouped) i = a.groups.quotient(i, group);
		t = a.pieces.quotient(i, pc);
	}
};

// Summed is what a warp sums at once: a share of a token's row.
struct Summed {
	u32 t, share;

	__device__ __forceinline__ Summed(const Combine &a, u32 i) { t = shares(a).quotient(i, share); }
};

template <bool VALUE, u32 GROUP> __device__ __forceinline__ void work(const Combine &a, Batch &b) {
	// For so many a warp sends at once. By expert it has to read rows one after another for each.
	constexpr u32 SOURCES = BY_EXPERT || GROUP <= 2 ? 1 : GROUP <= 4 ? 3 : 4; // Go: combineGroups
	u32 lane = threadIdx.x & 31, groups = a.groups.by, end = a.tokens * shares(a).by;
	bool sends = (b.flags & SEND) != 0, sums = (b.flags & RECEIVE) != 0;

	// What follows from the arguments alone is computed while the kernel before this one still runs.
	Windows windows(a.group);
	// Stores to peers fill the SM's queue, and its next loads wait behind them. So where much is sent,
	// other blocks sum.
	bool apart = VALUE && sends && sums && a.senders != 0;
	u32 senders = apart ? a.senders : b.blocks, summers = apart ? b.blocks - senders : b.blocks;
	Walk k = VALUE ? Walk::spread(a.shape.capacity * a.pieces.by * groups, 0, senders)
				   : Walk::share(a.shape.capacity * a.pieces.by, b.blocks);
	Walk at = VALUE ? Walk::spread(a.shape.capacity * shares(a).by, b.blocks - summers, summers) : k;
	if (!sends) k.end = 0;
	Part part(a, k.at, VALUE);
	Summed summed(a, at.at);
	settle(windows);
	settle(k.at), settle(k.end), settle(at.at), settle(part.t), settle(part.pc), settle(part.group);
	settle(summed.t), settle(summed.share);
	wait_for_previous();

	// The state is read, and what is to be sent and the first that is to be summed are on their
	// way, before anything is known.
	Count count = *count_of(a.state, a.first + blockIdx.x);
	u32 stopped = a.state->stopped;
	b.mask = a.state->mask();
	Outgoing<SOURCES> next;
	Homing home;
	if (k.at < k.end) fetch<SOURCES>(a, part.t, part.pc, part.group, lane, next);
	if (sums && at.at < end) fetch_home(a, summed.t, summed.share, lane, home);
	if (!open_batch(a, b, count, stopped)) return;
	let_next_start(); // once the notify block does
	b.buffer = VALUE ? b.turn : (u32)(b.epoch & 1);
	Wait w(a.group, a.state, OP_COMBINE, b.epoch + 1);
	WEFT_TRACED(w.trace = b.trace;)

	// The handle may be made for far more tokens than any rank has. What is beyond this rank's own
	// is looked at once it is known that there is something.
	u32 per = a.pieces.by * (VALUE ? groups : 1), bound = a.tokens * per;
	Slots filled = {};
	if (VALUE && sums && at.at < at.end) filled = filled_before(a, b, Summed(a, at.at).t);
	for (u32 i = k.at; i < k.end; i += k.step) {
		if (i >= bound) {
			bound = k.end = min(k.end, most_sent(a, lane) * per);
			if (i >= k.end) break;
		}
		Part p(a, i, VALUE);
		for (u32 g = p.group; g < groups; g++) {
			Outgoing<SOURCES> o = next;
			bool last = VALUE || g == groups - 1;
			u32 n = last ? i + k.step : i;
			if (n < k.end) {
				Part q(a, n, VALUE);
				fetch<SOURCES>(a, q.t, q.pc, VALUE ? q.group : last ? 0 : g + 1, lane, next);
			}
			send_piece<VALUE, SOURCES>(a, b, windows, p.t, p.pc, g, lane, o);
			if (VALUE) break;
		}
	}
	WEFT_TRACED(if (sends) b.trace.first_at(SITE_PUSHED);)
	if (!VALUE && sends) {
		WEFT_TRACED(b.trace.signalled_first();)
		__syncthreads();
		for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
			if (holds(b.mask, r)) continue;
			fence_sys();
			store_relaxed_sys4(a.group.window[r] + a.returned + ((u64)a.group.rank * b.blocks + blockIdx.x) * 4,
							   (u32)b.epoch + 1);
		}
	}
	if (!VALUE && sums) {
		for (u32 src = threadIdx.x; src < a.group.ranks; src += blockDim.x) {
			if (!holds(b.mask, src))
				await_epoch(w, src, b.own + a.returned + ((u64)src * b.blocks + blockIdx.x) * 4, (u32)b.epoch + 1);
			WEFT_TRACED(if (!holds(b.mask, src) && src != a.group.rank && !w.over) w.trace.arrived(src);)
		}
		__syncthreads();
		w.over = __any_sync(0xFFFFFFFFu, w.over);
	}
	bound = end;
	for (u32 i = at.at; sums && i < (VALUE ? at.end : min(at.end, end)) && !w.over; i += at.step) {
		if (VALUE && i >= bound) { // nothing to be summed, and perhaps something that was filled in the turn before
			bound = at.end = min(at.end, (u32)*had(a, b.turn == 0 ? 2 : b.turn - 1) * shares(a).by);
			if (i >= at.end) break;
		}
		Summed p(a, i), q(a, i + at.step);
		Slots old = filled;
		Homing h = home;
		if (VALUE && i + at.step < at.end) filled = filled_before(a, b, q.t);
		if (i + at.step < end) fetch_home(a, q.t, q.share, lane, home);
		if (VALUE) refill(a, b, p.t, p.share, lane, old); // while rows are on their way
		if (p.t < a.tokens) sum_share<VALUE, GROUP>(a, b, w, p.t, p.share, lane, h);
	}
	WEFT_TRACED(if (sums) b.trace.first_at(SITE_REDUCED);)
	leave(a.state, b.epoch, b.turn, sums, a.first);
	WEFT_TRACED(if (sums) b.trace.first_at(SITE_END);)
}

// FUSED: the kernel is for launches that send and receive, and does not ask.
template <bool VALUE, u32 GROUP, bool FUSED> __device__ __forceinline__ void combine(const Combine &a) {
	touch(&a, sizeof(a));
	Batch b;
	b.blocks = gridDim.x - 1;
	b.flags = FUSED ? a.flags | SEND | RECEIVE : a.flags;
	b.own = a.group.window[a.group.rank];
	if (blockIdx.x == b.blocks) {
		notify(a, b);
	} else {
		work<VALUE, GROUP>(a, b);
	}
}

} // namespace weft

#if WEFT_PORTS
#include "ports_combine.cuh"
#endif

namespace weft::slots {

// WEFT_GROUP is the number of the rows that a thread awaits at once: ranks, or selections.
__global__ void __launch_bounds__(512, 1) combine(const __grid_constant__ Combine a) {
	weft::combine<WEFT_VALUE, WEFT_GROUP, WEFT_FUSED>(a);
}

} // namespace weft::slots
