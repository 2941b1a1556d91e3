// Combine: rows go home and are summed there. Every rank stores what it has for the others at their slots; the home of a token takes its own rows where they
// are, awaits the rest, and adds in a fixed order, in fp32, rounded once.
//
//	exact     every selection's row goes home, to the slot of (token, k); fused multiply-adds, k ascending, from +0 or the bias
//	partial   a rank first sums the rows of a token, fused multiply-adds, k ascending, rounded once; home adds the ranks' sums in rank order. Rank-major rows are
//	          the caller's sums.
//	clerk     the last block tells every rank that this one has begun, and waits to be told
#include "exchange.cuh"

#ifndef WEFT_TYPE
#define WEFT_TYPE 1 // of the rows: 1 bf16, 2 fp16, 3 fp32
#endif

namespace weft {

enum {
	SEND = 1,
	RECEIVE = 2,
	BY_EXPERT = 16,
	WEIGHTED = 64,
};

// Go: combineArgs.
struct Combine {
	Group group;
	Shape shape;
	State *state;
	u64 heads, home, returned; // offsets in a window
	u64 turn_bytes;			   // of one turn of home
	u32 row_bytes, pieces, what, tokens, biases;
	u32 free; // the blocks of received rows that no one reads here any more, once this operation has begun
	const Pair *routed;	  // [capacity][top-k]: this rank's selections
	const Pair *landings; // [ranks][capacity][top-k]: the selections that came here
	const char *y;
	char *out;
	const char *bias[2];
	u64 *filled;  // 3 turns x [capacity]: the slots of the token that were filled
	u32 *credits; // [ranks]: the blocks that the rank had free in the last operation
};

static_assert(sizeof(Combine) == WEFT_COMBINE_BYTES, "the host has another idea of the arguments");

struct Batch {
	u64 mask, epoch;
	u32 turn, blocks;
	u32 place;
	char *own;
};

// ---- Sums. A lane has 16 bytes of a row: NUMBERS of its elements.

constexpr int NUMBERS = WEFT_TYPE == 3 ? 4 : 8;
constexpr u32 GROUP = 8; // rows in flight

struct Sum {
	float f[NUMBERS];

	__device__ __forceinline__ Sum() {
#pragma unroll
		for (int i = 0; i < NUMBERS; i++) f[i] = 0;
	}

	__device__ __forceinline__ static void widen(float *x, uint4 v) {
		u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
		for (int i = 0; i < 4; i++) {
#if WEFT_TYPE == 1
			x[2 * i] = number(w[i] << 16);
			x[2 * i + 1] = number(w[i] & 0xFFFF0000u);
#elif WEFT_TYPE == 2
			x[2 * i] = from_f16((u16)w[i]);
			x[2 * i + 1] = from_f16((u16)(w[i] >> 16));
#else
			x[i] = number(w[i]);
#endif
		}
	}

	__device__ __forceinline__ void start(uint4 v) { widen(f, v); }

	__device__ __forceinline__ void take(uint4 v, float weight) {
		float x[NUMBERS];
		widen(x, v);
#pragma unroll
		for (int i = 0; i < NUMBERS; i++) f[i] = fused(weight, x[i], f[i]);
	}

	__device__ __forceinline__ uint4 round() const {
		u32 w[4];
#pragma unroll
		for (int i = 0; i < 4; i++) {
#if WEFT_TYPE == 1
			w[i] = to_bf16x2(f[2 * i], f[2 * i + 1]);
#elif WEFT_TYPE == 2
			w[i] = to_f16x2(f[2 * i], f[2 * i + 1]);
#else
			w[i] = f[i] != f[i] ? 0x7FFFFFFFu : bits(f[i]);
#endif
		}
		return make_uint4(w[0], w[1], w[2], w[3]);
	}
};

// contribution is what this rank has for a token: the sum of its rows, k ascending. landing and weight are those of the lane's selection.
__device__ __forceinline__ uint4 contribution(const Combine &a, u32 slot, u32 landing, float weight, u32 at, bool here) {
	if ((a.what & BY_EXPERT) == 0) return here ? load_once(a.y + (u64)slot * a.row_bytes + at) : make_uint4(0, 0, 0, 0);
	Sum sum;
	u32 todo = __ballot_sync(0xFFFFFFFFu, landing != 0);
	while (todo != 0) {
		uint4 v[GROUP];
		u32 rest = todo;
#pragma unroll
		for (u32 j = 0; j < GROUP; j++) {
			u32 row = __shfl_sync(0xFFFFFFFFu, landing, rest != 0 ? __ffs((int)rest) - 1 : 0) - 1;
			if (rest != 0 && here) v[j] = load_once(a.y + (u64)row * a.row_bytes + at);
			rest &= rest - 1;
		}
#pragma unroll
		for (u32 j = 0; j < GROUP; j++) {
			float by = __shfl_sync(0xFFFFFFFFu, weight, todo != 0 ? __ffs((int)todo) - 1 : 0);
			if (todo != 0 && here) sum.take(v[j], by);
			todo &= todo - 1;
		}
	}
	return sum.round();
}

// lane_selection is what this lane knows of one of the token's selections here.
__device__ __forceinline__ void lane_selection(const Combine &a, u32 slot, u32 lane, u32 &landing, float &weight) {
	Pair p = {0, 0};
	if (lane < a.shape.topk) p = a.landings[(u64)slot * a.shape.topk + lane];
	landing = p.what;
	weight = (a.what & WEIGHTED) != 0 ? number(p.weight) : 1.0f;
}

// ---- Sending.

template <bool VALUE> __device__ __forceinline__ void put16(void *p, uint4 v) {
	if (VALUE) {
		store_relaxed_sys16(p, clean(v));
	} else {
		store16(p, v);
	}
}

template <bool VALUE, bool EXACT> __device__ __forceinline__ void send_piece(const Combine &a, const Batch &b, u32 src, u32 t, u32 pc, u32 lane) {
	u32 slot = src * a.shape.capacity + t, at = pc * PIECE + lane * 16;
	bool here = at < a.row_bytes;
	u32 landing;
	float weight;
	lane_selection(a, slot, lane, landing, weight);
	u32 todo = __ballot_sync(0xFFFFFFFFu, landing != 0);
	if (todo == 0) return;
	char *home = a.group.window[src] + a.home + b.place * a.turn_bytes + at;
	if constexpr (EXACT) {
		for (; todo != 0; todo &= todo - 1) {
			u32 k = __ffs((int)todo) - 1;
			u32 row = __shfl_sync(0xFFFFFFFFu, landing, k) - 1;
			if (here) put16<VALUE>(home + ((u64)t * a.shape.topk + k) * a.row_bytes, load_once(a.y + (u64)row * a.row_bytes + at));
		}
	} else {
		uint4 v = contribution(a, slot, landing, weight, at, here);
		if (here) put16<VALUE>(home + ((u64)a.group.rank * a.shape.capacity + t) * a.row_bytes, v);
	}
}

// ---- Summing at home.

// gather takes up to GROUP rows of this lane's at once, from 16-byte units at[j] of base: those in need are awaited.
template <bool VALUE>
__device__ __forceinline__ void gather(Wait &w, const char *base, const u32 *at, u32 need, u32 missing, uint4 *v) {
	do {
#pragma unroll
		for (u32 j = 0; j < GROUP; j++) {
			if ((need >> j & 1) != 0) v[j] = load_relaxed_sys16(base + (u64)at[j] * 16);
		}
#pragma unroll
		for (u32 j = 0; VALUE && j < GROUP; j++) {
			if ((need >> j & 1) != 0 && full(v[j])) need &= ~(1u << j);
		}
	} while (VALUE && need != 0 && w.more(missing, 1, 0));
}

template <bool VALUE, bool EXACT> __device__ __forceinline__ void sum_piece(const Combine &a, const Batch &b, Wait &w, u32 t, u32 pc, u32 lane) {
	u32 at = pc * PIECE + lane * 16, me = a.group.rank, units = a.row_bytes / 16;
	bool here = at < a.row_bytes;
	Pair routed = {0, 0};
	if (lane < a.shape.topk) routed = a.routed[(u64)t * a.shape.topk + lane];
	u32 own_slot = me * a.shape.capacity + t, landing;
	float weight;
	lane_selection(a, own_slot, lane, landing, weight);
	u32 rank = routed.what != 0 ? rank_of(a.shape, routed.what - 1) : 0;
	bool takes = routed.what != 0 && !holds(b.mask, rank);
	const char *home = b.own + a.home + b.place * a.turn_bytes + at;
	u64 slots; // that are awaited
	uint4 v[GROUP];
	u32 unit[GROUP];
	Sum sum;
	if (a.biases > 0 && here) sum.start(load_once(a.bias[0] + (u64)t * a.row_bytes + at));
	if (a.biases > 1 && here) sum.take(load_once(a.bias[1] + (u64)t * a.row_bytes + at), 1.0f);
	if constexpr (EXACT) {
		if ((a.what & WEIGHTED) != 0) weight = number(routed.weight);
		u32 todo = __ballot_sync(0xFFFFFFFFu, takes);
		slots = __ballot_sync(0xFFFFFFFFu, takes && rank != me);
		while (todo != 0) {
			u32 rest = todo, need = 0;
#pragma unroll
			for (u32 j = 0; j < GROUP; j++) {
				u32 k = rest != 0 ? __ffs((int)rest) - 1 : 0;
				u32 row = __shfl_sync(0xFFFFFFFFu, landing, k) - 1;
				bool far = (slots >> k & 1) != 0;
				unit[j] = (t * a.shape.topk + k) * units;
				if (rest != 0 && here && far) need |= 1u << j;
				if (rest != 0 && here && !far) v[j] = load_once(a.y + (u64)row * a.row_bytes + at);
				rest &= rest - 1;
			}
			gather<VALUE>(w, home, unit, need, __ffs((int)todo) - 1, v);
#pragma unroll
			for (u32 j = 0; j < GROUP; j++) {
				float by = __shfl_sync(0xFFFFFFFFu, weight, todo != 0 ? __ffs((int)todo) - 1 : 0);
				if (todo != 0 && here) sum.take(v[j], by);
				todo &= todo - 1;
			}
		}
	} else {
		u64 todo = union_of(takes ? 1ull << rank : 0);
		slots = todo & ~(1ull << me);
		uint4 mine = make_uint4(0, 0, 0, 0);
		if (holds(todo, me)) mine = contribution(a, own_slot, landing, weight, at, here);
		while (todo != 0) {
			u64 rest = todo;
			u32 need = 0;
#pragma unroll
			for (u32 j = 0; j < GROUP; j++) {
				u32 r = rest != 0 ? __ffsll((long long)rest) - 1 : me;
				unit[j] = (r * a.shape.capacity + t) * units;
				if (r != me && here) need |= 1u << j;
				if (r == me) v[j] = mine;
				rest &= rest - 1;
			}
			gather<VALUE>(w, home, unit, need, __ffsll((long long)todo) - 1, v);
#pragma unroll
			for (u32 j = 0; j < GROUP; j++) {
				if (todo != 0 && here) sum.take(v[j], 1.0f);
				todo &= todo - 1;
			}
		}
	}
	w.over = __any_sync(0xFFFFFFFFu, w.over);
	if (w.over) return;
	if (here) store16(a.out + (u64)t * a.row_bytes + at, sum.round());
	if (VALUE && pc == 0 && lane == 0) a.filled[b.turn * a.shape.capacity + t] = slots;
}

// refill makes the slots of a token, of the turn before, ready for the next but one.
template <bool EXACT> __device__ __forceinline__ void refill(const Combine &a, const Batch &b, u32 t, u32 pc, u32 lane) {
	u32 before = b.turn == 0 ? 2 : b.turn - 1, at = pc * PIECE + lane * 16;
	if (at >= a.row_bytes) return;
	char *home = b.own + a.home + before * a.turn_bytes + at;
	for (u64 slots = a.filled[before * a.shape.capacity + t]; slots != 0; slots &= slots - 1) {
		u32 j = __ffsll((long long)slots) - 1;
		u64 slot = EXACT ? (u64)t * a.shape.topk + j : (u64)j * a.shape.capacity + t;
		store16(home + slot * a.row_bytes, empty16());
	}
}

// ---- The clerk.

__device__ __forceinline__ u64 head_at(const Combine &a, u32 turn, u32 src) { return a.heads + ((u64)turn * a.group.ranks + src) * 16; }

__device__ __forceinline__ void clerk_send(const Combine &a, const Batch &b) {
	for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		if (holds(b.mask, r)) continue;
		store_relaxed_sys16(a.group.window[r] + head_at(a, b.turn, a.group.rank), make_uint4(a.tokens, 0, a.free, 0));
	}
}

__device__ __forceinline__ void clerk_receive(const Combine &a, const Batch &b, Wait &w) {
	u32 before = b.turn == 0 ? 2 : b.turn - 1;
	for (u32 src = threadIdx.x; src < a.group.ranks; src += blockDim.x) {
		store16(b.own + head_at(a, before, src), empty16());
		if (!holds(b.mask, src)) a.credits[src] = await16(w, src, b.own + head_at(a, b.turn, src)).z;
	}
	for (u32 t = a.tokens + threadIdx.x; t < a.shape.capacity; t += blockDim.x) a.filled[b.turn * a.shape.capacity + t] = 0;
}

template <bool VALUE, bool EXACT> __device__ __forceinline__ void combine(const Combine &a) {
	wait_for_previous();
	if (a.state->stopped != 0) return;
	Batch b;
	b.mask = a.state->mask;
	b.epoch = a.state->epoch;
	b.turn = a.state->turn;
	b.place = VALUE ? b.turn : (u32)(b.epoch & 1);
	b.blocks = gridDim.x - 1;
	b.own = a.group.window[a.group.rank];
	Wait w(a.group, a.state, OP_COMBINE, b.epoch + 1);
	u32 lane = threadIdx.x & 31, others = a.group.ranks - 1;
	bool clerk = blockIdx.x == b.blocks;

	if ((a.what & SEND) != 0) {
		if (clerk) {
			clerk_send(a, b);
		} else if (VALUE) {
			Walk k = Walk::spread(a.shape.capacity * a.pieces * others, b.blocks);
			for (u32 i = k.at; i < k.end; i += k.step) {
				u32 src = next_rank(a.group, i / a.pieces % others);
				if (!holds(b.mask, src)) send_piece<true, EXACT>(a, b, src, i / a.pieces / others, i % a.pieces, lane);
			}
		} else {
			Walk k = Walk::share(a.shape.capacity * a.pieces, b.blocks);
			for (u32 i = k.at; i < k.end; i += k.step) {
				for (u32 s = 0; s < others; s++) {
					u32 src = next_rank(a.group, s);
					if (!holds(b.mask, src)) send_piece<false, EXACT>(a, b, src, i / a.pieces, i % a.pieces, lane);
				}
			}
			__syncthreads();
			for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
				if (holds(b.mask, r)) continue;
				fence_sys();
				store_relaxed_sys4(a.group.window[r] + a.returned + ((u64)a.group.rank * b.blocks + blockIdx.x) * 4, (u32)b.epoch + 1);
			}
		}
	}
	let_next_start();
	if ((a.what & RECEIVE) != 0) {
		if (clerk) {
			clerk_receive(a, b, w);
		} else if (VALUE) {
			Walk k = Walk::spread(a.shape.capacity * a.pieces, b.blocks);
			for (u32 i = k.at; i < k.end && !w.over; i += k.step) {
				u32 t = i / a.pieces, pc = i % a.pieces;
				refill<EXACT>(a, b, t, pc, lane);
				if (t < a.tokens) sum_piece<true, EXACT>(a, b, w, t, pc, lane);
			}
		} else {
			for (u32 src = threadIdx.x; src < a.group.ranks; src += blockDim.x) {
				if (!holds(b.mask, src)) await_epoch(w, src, b.own + a.returned + ((u64)src * b.blocks + blockIdx.x) * 4, (u32)b.epoch + 1);
			}
			__syncthreads();
			w.over = __any_sync(0xFFFFFFFFu, w.over);
			Walk k = Walk::share(a.shape.capacity * a.pieces, b.blocks);
			u32 end = min(k.end, a.tokens * a.pieces);
			for (u32 i = k.at; i < end && !w.over; i += k.step) sum_piece<false, EXACT>(a, b, w, i / a.pieces, i % a.pieces, lane);
		}
	}
	leave(a.state, b.epoch, b.turn, (a.what & RECEIVE) != 0);
}

} // namespace weft

extern "C" __global__ void __launch_bounds__(512, 1) weft_combine_exact_value(const __grid_constant__ weft::Combine a) { weft::combine<true, true>(a); }
extern "C" __global__ void __launch_bounds__(512, 1) weft_combine_partial_value(const __grid_constant__ weft::Combine a) { weft::combine<true, false>(a); }
extern "C" __global__ void __launch_bounds__(512, 1) weft_combine_exact_flag(const __grid_constant__ weft::Combine a) { weft::combine<false, true>(a); }
extern "C" __global__ void __launch_bounds__(512, 1) weft_combine_partial_flag(const __grid_constant__ weft::Combine a) { weft::combine<false, false>(a); }
