// Phase "sum" of a combine through slots: at a token's home a warp adds up a share of what ranks have for it.
//
//	1. fetch_home   read the token's selections, and what this rank has for it
//	2. refill       fill what came for the token in the turn before with words of ones again, meanwhile
//	3. gather       await the words of other ranks (VALUE), or read them after the blocks' flags (FLAG)
//	4. sum_share    add in a fixed order in fp32, and store the sum, rounded once
//
// The order is that of k (exact), of ranks, or of the token's last selections at the ranks: in_order.
//
// Every slot has three turns (VALUE). Nobody writes a slot of the turn before until the operation after the next.
// filled says which of its slots have to be filled again.
//
// Ordering: a word of VALUE rows shows by itself that it has come. FLAG rows are read after an acquire of the flag.
#pragma once
#include "slots_combine.cuh"

#ifndef WEFT_BY_SELECTION
#define WEFT_BY_SELECTION 0
#endif
#ifndef WEFT_HALVES
#define WEFT_HALVES 0 // 1: two warps sum a piece at home, 8 bytes a lane
#endif

namespace weft {

// Few rows come at once, and what a warp does then is what is waited for. So two warps may share a piece.
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

} // namespace weft
