// Pull: the combine of layouts where a token has one row at a rank. The home of a token reads its rows where they are, in the memory of the ranks that have it, and
// adds them in rank order, in fp32, rounded once. Nothing is stored on the way, and nobody goes on before all have read.
#include "placed.cuh"
#include "sum.cuh"

namespace weft {

// Go: pullArgs.
struct Pull {
	Group group;
	Shape shape;
	State *state;
	u64 words, marks; // offsets in a window
	u32 first;		  // the lane's first count
	u32 what, tokens;
	u32 at; // where this rank's rows begin in its window, in 16 bytes
	Divisor pieces;
	u32 row_bytes, biases;
	const Pair *home;
	const u32 *places;
	char *out;
	const char *bias[2];
};

static_assert(sizeof(Pull) == WEFT_PULL_BYTES, "the host has another idea of the arguments");

constexpr u32 RANKS = 4, UNITS = 2; // rows that a lane has in flight, and units of each

// sum_piece adds up a piece of a token's rows.
__device__ __forceinline__ void sum_piece(const Pull &a, const Turn &o, char *const *rows, u32 t, u32 pc, u32 lane) {
	u32 place = 0, rank = 0;
	if (lane < a.shape.topk) {
		u64 i = (u64)t * a.shape.topk + lane;
		place = a.places[i];
		if (place != 0) rank = rank_of(a.shape, (a.home[i].what & 0xFFFF) - 1);
	}
	u64 todo = union_of(place != 0 ? 1ull << rank : 0) & ~o.mask;
	u32 at[UNITS];
	Sum sum[UNITS];
#pragma unroll
	for (u32 u = 0; u < UNITS; u++) {
		at[u] = (pc * UNITS + u) * UNIT + lane * 16;
		bool here = at[u] < a.row_bytes;
		u64 from = (u64)t * a.row_bytes + at[u];
		if (here && a.biases > 0) sum[u].start(load_once(a.bias[0] + from));
		if (here && a.biases > 1) sum[u].take(load_once(a.bias[1] + from), 1.0f);
	}
	while (todo != 0) {
		uint4 v[RANKS][UNITS];
		u64 rest = todo;
#pragma unroll
		for (u32 j = 0; j < RANKS; j++) {
			u32 r = rest != 0 ? __ffsll((long long)rest) - 1 : 0;
			u32 has = __ballot_sync(0xFFFFFFFFu, (place & LEADER) != 0 && rank == r);
			u32 row = (__shfl_sync(0xFFFFFFFFu, place, has != 0 ? __ffs((int)has) - 1 : 0) & ~LEADER) - 1;
#pragma unroll
			for (u32 u = 0; u < UNITS; u++) {
				if (rest != 0 && at[u] < a.row_bytes) v[j][u] = load_once(rows[r] + (u64)row * a.row_bytes + at[u]);
			}
			rest &= rest - 1;
		}
#pragma unroll
		for (u32 j = 0; j < RANKS; j++) {
#pragma unroll
			for (u32 u = 0; u < UNITS; u++) {
				if (todo != 0 && at[u] < a.row_bytes) sum[u].take(v[j][u], 1.0f);
			}
			todo &= todo - 1;
		}
	}
#pragma unroll
	for (u32 u = 0; u < UNITS; u++) {
		if (at[u] < a.row_bytes) store16(a.out + (u64)t * a.row_bytes + at[u], sum[u].round());
	}
}

__device__ __forceinline__ void pull(const Pull &a) {
	__shared__ char *rows[MAX_RANKS];
	Turn o;
	u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
	if (!o.begin(a.group, a.state, a.first, OP_COMBINE)) return;
	Wait w(a.group, a.state, OP_COMBINE, o.epoch);
	if ((a.what & SEND) != 0 && blockIdx.x == 0) tell(a.group, o, a.words, a.at);
	if ((a.what & RECEIVE) != 0) {
		for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
			if (!holds(o.mask, r)) rows[r] = a.group.window[r] + (u64)hear(o, w, a.words, r) * 16;
		}
		if (__syncthreads_or(w.over) != 0) return;
		Share share(a.tokens);
		u32 n = (share.to - share.from) * a.pieces.by;
		for (u32 i = warp; i < n; i += warps) {
			u32 pc, t = share.from + a.pieces.quotient(i, pc);
			sum_piece(a, o, rows, t, pc, lane);
		}
		mark(a.group, o, a.marks);
		if (!await_marks(a.group, o, w, a.marks)) return;
	}
	leave(a.state, o.epoch - 1, o.turn, (a.what & RECEIVE) != 0, a.first);
}

} // namespace weft

extern "C" __global__ void __launch_bounds__(512, 1) weft_pull(const __grid_constant__ weft::Pull a) { weft::pull(a); }
