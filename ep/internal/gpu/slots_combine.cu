// Combine through slots: each rank stores what it has for the others in slots at the home of the token.
// The home reads its own rows where they are, waits for the rest, and adds in a fixed order in fp32,
// rounded once.
//
//	exact     every selection's row goes home, to the slot of (token, k); fused multiply-adds, k
//	          ascending, from +0 or the bias
//	partial   each rank first sums the rows that it has of a token, fused multiply-adds, k ascending,
//	          rounded once; home adds the ranks' sums in rank order, or by selection: in the order of
//	          the token's last selections there. Rank-major rows are the caller's sums.
//	notify    the last block opens the operation and waits for the openings of all ranks
#include "exchange.cuh"
#include "sum.cuh"

#ifndef WEFT_FORM
#define WEFT_FORM 1 // 1 rank-major rows; rows by expert: 2 partial, 3 exact
#endif
#ifndef WEFT_BY_SELECTION
#define WEFT_BY_SELECTION 0
#endif
#ifndef WEFT_HALVES
#define WEFT_HALVES 0 // 1: two warps sum a piece at home, 8 bytes a lane
#endif

namespace weft {

// Go: combineArgs.
struct Combine {
	Shape shape;
	State *state;
	u64 heads, home, returned; // offsets in a window
	u64 turn_bytes;			   // of one turn of home
	Divisor pieces, groups;	   // of a row, and of the ranks that a warp sends for at once
	u32 row_bytes, flags, tokens, biases;
	u32 senders; // so many blocks send and the rest sum, where rows are their own flags; 0: all do both
	u32 free;	 // blocks of received rows that this rank reads no more, once this operation has begun
	u32 first;	 // the lane's first count
	u32 call;
	Pair *routed;		   // [capacity][top-k]: this rank's selections
	const Pair *recv_rows; // [ranks][capacity][top-k]: the selections that came here, of the tokens that a source has
	// [ranks]: how many those are; and behind them the rows that come, and of which Prepare the
	// routing is
	const int *sent;
	const char *y;
	char *out;
	const char *bias[2];
	// 3 turns x [capacity]: the slots of the token that were filled; and behind them, for each
	// turn, how many tokens there were
	u64 *filled;		  // filled_slots
	u32 *credits;		  // [ranks]: the blocks that the rank had free in the last operation
	const float *weights; // exact: [tokens][top-k]: new weights of this rank's selections, or none
	Group group;
};

static_assert(sizeof(Combine) == WEFT_COMBINE_BYTES + WIDER, "not the size of the host's struct");

constexpr bool BY_EXPERT = WEFT_FORM > 1, EXACT = WEFT_FORM == 3;

// Slots are those of a token that rows of other ranks fill: one a selection, or one a rank.
#if WEFT_FORM == 3
typedef u32 Slots;
#else
typedef RankSet Slots;
#endif

// filled_slots is where it stands which slots of token t were filled in a turn.
__device__ __forceinline__ u64 *filled_slots(const Combine &a, u32 turn, u32 t) {
	return a.filled + (turn * a.shape.capacity + t) * RANK_WORDS;
}

__device__ __forceinline__ void load_slots(const u64 *p, RankSet &slots) {
#pragma unroll
	for (u32 i = 0; i < RANK_WORDS; i++) slots.word[i] = p[i];
}
__device__ __forceinline__ void load_slots(const u64 *p, u32 &slots) { slots = (u32)*p; }

__device__ __forceinline__ void store_slots(u64 *p, const RankSet &slots) {
#pragma unroll
	for (u32 i = 0; i < RANK_WORDS; i++) p[i] = slots.word[i];
}
__device__ __forceinline__ void store_slots(u64 *p, u32 slots) { *p = slots; }

// read is what a lane has of a piece of a row that is read once.
template <class V> __device__ __forceinline__ V read(const char *p);
template <> __device__ __forceinline__ uint4 read<uint4>(const char *p) { return load_once(p); }
template <> __device__ __forceinline__ uint2 read<uint2>(const char *p) { return load_once8(p); }

// contribution is what this rank has for a token: the sum of its rows, k ascending. recv_row and
// weight are those of the lane's selection.
template <class V>
__device__ __forceinline__ V contribution(const Combine &a, u32 recv_row, float weight, u32 at, bool here) {
	constexpr u32 ROWS = 4; // in flight
	SumOf<V> sum;
	u32 todo = __ballot_sync(0xFFFFFFFFu, recv_row != 0);
	while (todo != 0) {
		V v[ROWS];
		u32 rest = todo;
#pragma unroll
		for (u32 j = 0; j < ROWS; j++) {
			u32 row = __shfl_sync(0xFFFFFFFFu, recv_row, rest != 0 ? __ffs((int)rest) - 1 : 0) - 1;
			if (rest != 0 && here) v[j] = read<V>(a.y + (u64)row * a.row_bytes + at);
			rest &= rest - 1;
		}
#pragma unroll
		for (u32 j = 0; j < ROWS; j++) {
			float by = __shfl_sync(0xFFFFFFFFu, weight, todo != 0 ? __ffs((int)todo) - 1 : 0);
			if (todo != 0 && here) sum.take(v[j], by);
			todo &= todo - 1;
		}
	}
	return sum.round();
}

// weight_of is what the lane's selection counts for.
__device__ __forceinline__ float weight_of(const Batch &b, Pair p) {
	return (b.flags & WEIGHTED) != 0 ? number(p.weight) : 1.0f;
}

// row_at is a piece of a row of the caller's.
template <class V> __device__ __forceinline__ V row_at(const Combine &a, u32 row, u32 at, bool here) {
	return here ? read<V>(a.y + (u64)row * a.row_bytes + at) : V{};
}

// ---- Sending.

template <bool VALUE> __device__ __forceinline__ void put16_clean(void *p, uint4 v) {
	if (VALUE) {
		store_relaxed_sys16(p, clean(v));
	} else {
		store16(p, v);
	}
}

// Outgoing is what a lane has read of a piece of a token of each of some ranks.
template <u32 SOURCES> struct Outgoing {
	Pair recv_row[SOURCES];
	uint4 v[SOURCES]; // rank-major
};

// fetch reads a piece for the ranks of a group. Nothing here waits, nor depends on the state.
template <u32 SOURCES>
__device__ __forceinline__ void fetch(const Combine &a, u32 t, u32 pc, u32 group, u32 lane, Outgoing<SOURCES> &o) {
	u32 at = pc * UNIT + lane * 16;
#pragma unroll
	for (u32 j = 0; j < SOURCES; j++) {
		u32 i = group * SOURCES + j;
		bool there = i < a.group.ranks - 1;
		u32 slot = (there ? next_rank(a.group, i) : 0) * a.shape.capacity + t;
		o.recv_row[j] = {0, 0};
		if (there && lane < a.shape.topk) o.recv_row[j] = a.recv_rows[(u64)slot * a.shape.topk + lane];
		if (!BY_EXPERT) o.v[j] = row_at<uint4>(a, slot, at, there && at < a.row_bytes);
	}
}

template <bool VALUE, u32 SOURCES>
__device__ __forceinline__ void send_piece(const Combine &a, const Batch &b, const Windows &windows, u32 t, u32 pc,
										   u32 group, u32 lane, const Outgoing<SOURCES> &o) {
	u32 at = pc * UNIT + lane * 16;
	bool here = at < a.row_bytes;
#pragma unroll
	for (u32 j = 0; j < SOURCES; j++) {
		u32 i = group * SOURCES + j, todo = __ballot_sync(0xFFFFFFFFu, o.recv_row[j].target != 0);
		if (i >= a.group.ranks - 1 || todo == 0) continue;
		u32 src = next_rank(a.group, i);
		if (holds(b.mask, src)) continue;
		char *window = windows.of(src), *home = window + a.home + b.buffer * a.turn_bytes + at;
		if constexpr (EXACT) {
			if (WEFT_PORTS != 0 && window == b.own) continue; // the rows go from where they are
			constexpr u32 ROWS = 4; // in flight
			while (todo != 0) {
				uint4 v[ROWS];
				u32 rest = todo;
#pragma unroll
				for (u32 q = 0; q < ROWS; q++) {
					u32 row = __shfl_sync(0xFFFFFFFFu, o.recv_row[j].target, rest != 0 ? __ffs((int)rest) - 1 : 0) - 1;
					if (rest != 0 && here) v[q] = load_once(a.y + (u64)row * a.row_bytes + at);
					rest &= rest - 1;
				}
#pragma unroll
				for (u32 q = 0; q < ROWS; q++) {
					u32 k = todo != 0 ? __ffs((int)todo) - 1 : 0;
					if (todo != 0 && here) put16_clean<VALUE>(home + ((u64)t * a.shape.topk + k) * a.row_bytes, v[q]);
					todo &= todo - 1;
				}
			}
		} else {
			uint4 v = BY_EXPERT ? contribution<uint4>(a, o.recv_row[j].target, weight_of(b, o.recv_row[j]), at, here)
								: o.v[j];
			u64 slot = (u64)place_of(a.group, window, src) * a.shape.capacity + t;
			if (here) put16_clean<VALUE>(home + slot * a.row_bytes, v);
		}
	}
}

// ---- Summing at home. Few rows come at once, and what a warp does then is what is waited for. So two
// warps may share a piece.

#if WEFT_HALVES
typedef uint2 Words;
__device__ __forceinline__ Words poll(const char *p) { return load_relaxed_sys8(p); }
__device__ __forceinline__ void write(char *p, Words v) { store8(p, v); }
__device__ __forceinline__ Words empty() { return make_uint2(EMPTY, EMPTY); }
#else
typedef uint4 Words;
__device__ __forceinline__ Words poll(const char *p) { return load_relaxed_sys16(p); }
__device__ __forceinline__ void write(char *p, Words v) { store16(p, v); }
__device__ __forceinline__ Words empty() { return empty16(); }
#endif

// Of a unit a lane has Words, and so many warps share it.
constexpr u32 SHARERS = 16 / sizeof(Words);

// words_at is where a lane's words of a row's i-th share is.
__device__ __forceinline__ u32 words_at(u32 i, u32 lane) { return (i * 32 + lane) * (u32)sizeof(Words); }

// shares are those of a row.
__device__ __forceinline__ Divisor shares(const Combine &a) {
	return {a.pieces.by * SHARERS, a.pieces.inverse / SHARERS};
}

// gather takes up to GROUP rows of this lane's at once, from 16-byte units at[j] of base: those in
// need are awaited. peers has the rank of each in a byte.
template <bool VALUE, u32 GROUP>
__device__ __forceinline__ void gather(Wait &w, const char *base, const u32 *at, u32 need, u64 peers, Words *v) {
	do {
#pragma unroll
		for (u32 j = 0; j < GROUP; j++) {
			if ((need >> j & 1) != 0) v[j] = poll(base + (u64)at[j] * 16);
		}
#pragma unroll
		for (u32 j = 0; VALUE && j < GROUP; j++) {
			if ((need >> j & 1) != 0 && full(v[j])) need &= ~(1u << j);
		}
	} while (VALUE && need != 0 && w.more((u32)(peers >> 8 * (__ffs((int)need) - 1)) & 0xFF, 1, 0));
}

// Homing is what a lane has read of a token that is summed here.
struct Homing {
	Pair routed, own; // of the lane's selection: where it went, and where it is if that is here
	Words v;		  // rank-major: this rank's row
};

// had is where it stands how many tokens there were in a turn.
__device__ __forceinline__ u64 *had(const Combine &a, u32 turn) {
	return a.filled + 3 * a.shape.capacity * RANK_WORDS + turn;
}

// most_sent is how many tokens the source has that has the most. All lanes of a warp call it.
__device__ __forceinline__ u32 most_sent(const Combine &a, u32 lane) {
	u32 most = 0;
	for (u32 src = lane; src < a.group.ranks; src += 32) most = max(most, (u32)a.sent[src]);
	return __reduce_max_sync(0xFFFFFFFFu, most);
}

// filled_before says which slots of a token were filled in the turn before.
__device__ __forceinline__ Slots filled_before(const Combine &a, const Batch &b, u32 t) {
	Slots slots;
	load_slots(filled_slots(a, turn_before(b.turn), t), slots);
	return slots;
}

__device__ __forceinline__ void fetch_home(const Combine &a, u32 t, u32 share, u32 lane, Homing &h) {
	u32 at = words_at(share, lane), slot = a.group.rank * a.shape.capacity + t;
	h.routed = h.own = {0, 0};
	if (lane < a.shape.topk) {
		h.routed = a.routed[(u64)t * a.shape.topk + lane];
		if (EXACT && a.weights != nullptr) h.routed.weight = bits(a.weights[(u64)t * a.shape.topk + lane]);
		h.own = a.recv_rows[(u64)slot * a.shape.topk + lane];
	}
	if (!BY_EXPERT) h.v = row_at<Words>(a, slot, at, at < a.row_bytes);
}

// in_order gives the ranks whose sums are added, in a set that first_of takes them from:
// themselves, or the lanes of the last selections there. All lanes of a warp call both.
#if WEFT_BY_SELECTION
__device__ __forceinline__ u32 in_order(const RankSet &, bool takes, u32 rank, u32 lane) {
	u32 same = __match_any_sync(0xFFFFFFFFu, takes ? rank : MAX_RANKS);
	return __ballot_sync(0xFFFFFFFFu, takes && same >> lane == 1);
}
__device__ __forceinline__ u32 first_of(u32 lanes, u32 rank) {
	return __shfl_sync(0xFFFFFFFFu, rank, __ffs((int)lanes) - 1);
}
#else
__device__ __forceinline__ RankSet in_order(const RankSet &ranks, bool, u32, u32) { return ranks; }
__device__ __forceinline__ u32 first_of(const RankSet &ranks, u32) { return lowest(ranks); }
#endif

template <bool VALUE, u32 GROUP> __device__ __forceinline__ void
sum_share(const Combine &a, const Batch &b, Wait &w, u32 t, u32 share, u32 lane, const Homing &h) {
	u32 at = words_at(share, lane), me = a.group.rank, units = a.row_bytes / 16;
	bool here = at < a.row_bytes;
	u32 expert = h.routed.target & 0xFFFF, rank = expert != 0 ? rank_of(a.shape, expert - 1) : 0;
	// a row of this rank's may have found no room, in a routing that is none
	bool takes = expert != 0 && !holds(b.mask, rank) && (rank != me || h.own.target != 0);
	const char *home = b.own + a.home + b.buffer * a.turn_bytes + at;
	u32 lanes = 0;					 // exact: of selections that are awaited
	RankSet ranks = RankSet::none(); // else: that are awaited
	Words v[GROUP];
	u32 unit[GROUP];
	SumOf<Words> sum;
	if (a.biases > 0 && here) sum.start(read<Words>(a.bias[0] + (u64)t * a.row_bytes + at));
	if (a.biases > 1 && here) sum.take(read<Words>(a.bias[1] + (u64)t * a.row_bytes + at), 1.0f);
	if constexpr (EXACT) {
		float weight = weight_of(b, h.routed);
		u32 todo = __ballot_sync(0xFFFFFFFFu, takes);
		lanes = __ballot_sync(0xFFFFFFFFu, takes && rank != me);
		while (todo != 0) {
			u32 n = __popc(todo), need = 0;
			u64 peers = 0;
			float by[GROUP];
#pragma unroll
			for (u32 j = 0; j < GROUP; j++) {
				u32 k = j < n ? __ffs((int)todo) - 1 : 0;
				by[j] = __shfl_sync(0xFFFFFFFFu, weight, k);
				u32 row = __shfl_sync(0xFFFFFFFFu, h.own.target, k) - 1;
				bool far = (lanes >> k & 1) != 0;
				peers |= (u64)__shfl_sync(0xFFFFFFFFu, rank, k) << 8 * j;
				unit[j] = (t * a.shape.topk + k) * units;
				if (j < n && here && far) need |= 1u << j;
				if (j < n && here && !far) v[j] = read<Words>(a.y + (u64)row * a.row_bytes + at);
				todo &= todo - 1;
			}
			gather<VALUE, GROUP>(w, home, unit, need, peers, v);
#pragma unroll
			for (u32 j = 0; j < GROUP; j++) {
				if (j < n && here) sum.take(v[j], by[j]);
			}
		}
	} else {
		ranks = union_of(RankSet::one(rank, takes));
		auto todo = in_order(ranks, takes, rank, lane);
		ranks = ranks & ~RankSet::one(me);
		Words mine = h.v;
		if (BY_EXPERT) mine = contribution<Words>(a, h.own.target, weight_of(b, h.own), at, here);
		while (nonempty(todo)) {
			auto rest = todo;
			u64 peers = 0;
			u32 need = 0;
#pragma unroll
			for (u32 j = 0; j < GROUP; j++) {
				u32 r = nonempty(rest) ? first_of(rest, rank) : me;
				unit[j] = (r * a.shape.capacity + t) * units;
				peers |= (u64)r << 8 * j;
				if (r != me && here) need |= 1u << j;
				if (r == me) v[j] = mine;
				drop_lowest(rest);
			}
			gather<VALUE, GROUP>(w, home, unit, need, peers, v);
#pragma unroll
			for (u32 j = 0; j < GROUP; j++) {
				if (nonempty(todo) && here) sum.take(v[j], 1.0f);
				drop_lowest(todo);
			}
		}
	}
	w.over = __any_sync(0xFFFFFFFFu, w.over);
	if (w.over) return;
	if (here) write(a.out + (u64)t * a.row_bytes + at, sum.round());
	if (VALUE && share == 0 && lane == 0) {
		u64 *filled = filled_slots(a, b.turn, t);
		if (EXACT) {
			store_slots(filled, lanes);
		} else {
			store_slots(filled, ranks);
		}
	}
	if (EXACT && a.weights != nullptr && share == 0 && lane < a.shape.topk)
		a.routed[(u64)t * a.shape.topk + lane].weight = h.routed.weight;
}

// refill makes the slots of a token, of the turn before, ready for the next but one.
__device__ __forceinline__ void refill(const Combine &a, const Batch &b, u32 t, u32 share, u32 lane, Slots slots) {
	u32 before = b.turn == 0 ? 2 : b.turn - 1, at = words_at(share, lane);
	if (at >= a.row_bytes) return;
	char *home = b.own + a.home + before * a.turn_bytes + at;
	for (; nonempty(slots); drop_lowest(slots)) {
		u32 j = lowest(slots);
		u64 slot = EXACT ? (u64)t * a.shape.topk + j : (u64)j * a.shape.capacity + t;
		write(home + slot * a.row_bytes, empty());
	}
}

// ---- The notify block.

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

// ---- The others.

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
