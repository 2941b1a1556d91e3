// Pull: the combine of layouts where a token has one row at a rank. The home of a token reads its rows where they are, in the memory of the ranks that have it, and
// adds them in rank order, in fp32, rounded once. Nothing is stored on the way, and nobody goes on before all have read.
//
// From Hopper on rows come through shared memory by bulk copies: while a warp adds up a part of a token's rows, that of its next token is on its way.
#include "placed.cuh"
#include "sum.cuh"

namespace weft {

// What the launch does, beside what exchange.cuh names.
enum { BULK = 512 };

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
	u32 chunk; // BULK: bytes of a row that are added up at a time, of which shared memory has two for each of `most` rows of so many warps
	Divisor chunks;
	u32 carriers, most, call;
	const Pair *home;
	const u32 *places;
	char *out;
	const char *bias[2];
};

static_assert(sizeof(Pull) == WEFT_PULL_BYTES, "the host has another idea of the arguments");

constexpr u32 RANKS = 4, UNITS = 2; // rows that a lane has in flight, and units of each

// Visits are the ranks that have a row of a token: a selection a lane.
struct Visits {
	u32 place, rank;
	u64 ranks;

	__device__ __forceinline__ Visits(const Pull &a, const Turn &o, u32 t, u32 lane) : place(0), rank(0) {
		if (lane < a.shape.topk) {
			u64 i = (u64)t * a.shape.topk + lane;
			place = a.places[i];
			if (place != 0) rank = rank_of(a.shape, (a.home[i].what & 0xFFFF) - 1);
		}
		ranks = union_of(place != 0 ? 1ull << rank : 0) & ~o.mask;
	}

	// row gives the token's row at rank r. All lanes call it.
	__device__ __forceinline__ u32 row(u32 r) const {
		u32 has = __ballot_sync(0xFFFFFFFFu, (place & LEADER) != 0 && rank == r);
		return (__shfl_sync(0xFFFFFFFFu, place, has != 0 ? __ffs((int)has) - 1 : 0) & ~LEADER) - 1;
	}
};

// add_biases begins the sum of 16 bytes of a token.
__device__ __forceinline__ void add_biases(const Pull &a, u64 from, Sum &sum) {
	if (a.biases > 0) sum.start(load_once(a.bias[0] + from));
	if (a.biases > 1) sum.take(load_once(a.bias[1] + from), 1.0f);
}

// sum_piece adds up a piece of a token's rows.
__device__ __forceinline__ void sum_piece(const Pull &a, const Turn &o, char *const *rows, u32 t, u32 pc, u32 lane) {
	Visits visits(a, o, t, lane);
	u64 todo = visits.ranks;
	u32 at[UNITS];
	Sum sum[UNITS];
#pragma unroll
	for (u32 u = 0; u < UNITS; u++) {
		at[u] = (pc * UNITS + u) * UNIT + lane * 16;
		if (at[u] < a.row_bytes) add_biases(a, (u64)t * a.row_bytes + at[u], sum[u]);
	}
	while (todo != 0) {
		uint4 v[RANKS][UNITS];
		u64 rest = todo;
#pragma unroll
		for (u32 j = 0; j < RANKS; j++) {
			u32 r = rest != 0 ? __ffsll((long long)rest) - 1 : 0, row = visits.row(r);
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

#if __CUDA_ARCH__ >= 900
// Stage is where a part of a token's rows comes to, and how many of them do.
struct Stage {
	char *rows;
	u64 *arrived;
	u32 t, from, bytes, count, parity;
};

// fetch sets a part of a token's rows on its way. A warp does.
__device__ __forceinline__ void fetch(const Pull &a, const Turn &o, char *const *rows, u32 first, u32 i, u32 lane, Stage &s) {
	u32 c;
	s.t = first + a.chunks.quotient(i, c);
	s.from = c * a.chunk;
	s.bytes = min(a.chunk, a.row_bytes - s.from);
	Visits visits(a, o, s.t, lane);
	s.count = __popcll((long long)visits.ranks);
	if (lane == 0 && s.count != 0) barrier_expect(s.arrived, s.count * s.bytes);
	u32 j = 0;
	for (u64 todo = visits.ranks; todo != 0; todo &= todo - 1, j++) {
		u32 r = __ffsll((long long)todo) - 1, row = visits.row(r);
		if (lane == 0) bulk_load(s.rows + j * a.chunk, rows[r] + (u64)row * a.row_bytes + s.from, s.bytes, s.arrived);
	}
}

// sum_bulk adds up the share's rows. All threads of the block call it; the warps that have shared memory carry. What is waited for is no rank: a bulk copy ends as a
// load does, and no block may end before.
__device__ __forceinline__ void sum_bulk(const Pull &a, const Turn &o, char *const *rows, Share share, u32 warp, u32 lane) {
	extern __shared__ __align__(128) char buffers[];
	__shared__ u64 arrived[16][2];
	if (warp >= a.carriers) return;
	Stage now, next;
	char *mine = buffers + warp * 2 * a.most * a.chunk;
	now = {mine, &arrived[warp][0], 0, 0, 0, 0, 0};
	next = {mine + a.most * a.chunk, &arrived[warp][1], 0, 0, 0, 0, 0};
	if (lane == 0) {
		barrier_init(now.arrived, 1);
		barrier_init(next.arrived, 1);
		fence_barrier_init();
	}
	fence_async(); // what was heard of was stored by others
	__syncwarp();
	u32 n = (share.to - share.from) * a.chunks.by;
	if (warp < n) fetch(a, o, rows, share.from, warp, lane, now);
	for (u32 i = warp; i < n; i += a.carriers) {
		if (i + a.carriers < n) fetch(a, o, rows, share.from, i + a.carriers, lane, next);
		if (now.count != 0) {
			while (!barrier_awaited(now.arrived, now.parity)) {}
			__syncwarp();
			now.parity ^= 1;
		}
		for (u32 at = lane * 16; at < now.bytes; at += UNIT) {
			Sum sum;
			u64 out = (u64)now.t * a.row_bytes + now.from + at;
			add_biases(a, out, sum);
#pragma unroll 4
			for (u32 j = 0; j < now.count; j++) sum.take(*(const uint4 *)(now.rows + j * a.chunk + at), 1.0f);
			store16(a.out + out, sum.round());
		}
		fence_async(); // all have read before anything comes there again
		__syncwarp();
		Stage done = now;
		now = next;
		next = done;
	}
}
#endif

__device__ __forceinline__ void pull(const Pull &a) {
	__shared__ char *rows[MAX_RANKS];
	Turn o;
	u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
	if (!o.begin(a.group, a.state, a.first, OP_COMBINE)) return;
	Wait w(a.group, a.state, OP_COMBINE, o.epoch);
	if ((a.what & SEND) != 0 && blockIdx.x == 0) tell(a.group, o, a.words, a.call, a.at);
	if ((a.what & RECEIVE) != 0) {
		count_words(o, w, a.words);
		for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
			if (!holds(o.mask, r)) rows[r] = a.group.window[r] + (u64)hear(o, w, a.words, r, a.call) * 16;
		}
		if (__syncthreads_or(w.over) != 0) return;
		Share share(a.tokens);
		u32 n = (a.what & BULK) != 0 ? 0 : (share.to - share.from) * a.pieces.by;
		for (u32 i = warp; i < n; i += warps) {
			u32 pc, t = share.from + a.pieces.quotient(i, pc);
			sum_piece(a, o, rows, t, pc, lane);
		}
#if __CUDA_ARCH__ >= 900
		if ((a.what & BULK) != 0) sum_bulk(a, o, rows, share, warp, lane);
#endif
		mark(a.group, o, a.marks);
		if (!await_marks(a.group, o, w, a.marks)) return;
	}
	leave(a.state, o.epoch - 1, o.turn, (a.what & RECEIVE) != 0, a.first);
}

} // namespace weft

extern "C" __global__ void __launch_bounds__(512, 1) weft_pull(const __grid_constant__ weft::Pull a) { weft::pull(a); }
