// What the parts of combine share: the arguments, which slots of a token are filled, and what a rank has for a token.
#pragma once
#include "exchange.cuh"
#include "sum.cuh"

#ifndef WEFT_FORM
#define WEFT_FORM 1 // 1 rank-major rows; rows by expert: 2 partial, 3 exact
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

} // namespace weft
