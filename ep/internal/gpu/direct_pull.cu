// Pull: the combine of rows that went straight to their final rows, unless ranks sum a token's rows
// first. The home of a token reads its rows where they are, in the memory of the ranks that have them,
// and adds them in fp32, rounded once. Where a token has one row at a rank it adds in rank order, or in
// the order of the token's last selections there; where it has one for each selection (exact sums) with
// fused multiply-adds, k ascending, from +0 or the bias. No copy is made, and no rank ends the operation
// before all have read.
//
// As a dispatch's gradient it also brings the gradients of weights home.
//
// From Hopper on rows come through shared memory by bulk copies: while a warp adds up a part of a
// token's rows, the next parts are in flight.
#include "scalars.cuh"
#include "sum.cuh"

namespace weft {

// Go: pullArgs.
struct Pull {
	Shape shape;
	State *state;
	u64 openings, marks; // offsets in a window
	u32 first;			 // the lane's first count
	u32 flags, tokens;
	u32 at; // where this rank's rows begin in its window, in 16 bytes
	Divisor pieces;
	u32 row_bytes, biases;
	u32 chunk; // BULK: bytes of a row that are added up at a time
	Divisor chunks;
	// BULK: warps that add up, parts that shared memory has room for for each, and rows of a part
	u32 carriers, depth, most;
	u32 call;
	const Pair *home;
	const u32 *dest_rows;
	int *described;
	char *out;
	const char *bias[2];
	Scalars scalars;
	Group group;
};

static_assert(sizeof(Pull) == WEFT_PULL_BYTES + WIDER, "not the size of the host's struct");

constexpr u32 ROWS = 4, UNITS = 2; // rows that a lane has in flight, and units of each

// Selected is a selection of a token for each lane.
struct Selected {
	u32 dest;
	Pair pair;

	__device__ __forceinline__ Selected(const Pull &a, u32 t, u32 lane) : dest(0), pair{0, 0} {
		if (lane >= a.shape.topk) return;
		u64 i = (u64)t * a.shape.topk + lane;
		dest = a.dest_rows[i];
		pair = a.home[i];
	}
};

// Order is that of a token's rows: of ranks, of the last selections there, or each selection has
// one.
enum Order { RANKS, SELECTIONS, EXACT };

// TokenRow is a row of a token: a lane has one if `here`, and it is added up after `before` others.
template <Order ORDER> struct TokenRow {
	u32 rank, row, before;
	bool here;
	float weight;
	u32 count; // of all lanes

	__device__ __forceinline__ TokenRow() {}

	__device__ __forceinline__ TokenRow(const Pull &a, const Operation &o, const Selected &s, u32 lane)
		: rank(0), row((s.dest & ~LEADER) - 1), weight(1) {
		here = ORDER == RANKS ? (s.dest & LEADER) != 0 : s.dest != 0;
		if (here) rank = rank_of(a.shape, (s.pair.target & 0xFFFF) - 1);
		// the last one of its rank
		if constexpr (ORDER == SELECTIONS)
			here = __match_any_sync(0xFFFFFFFFu, here ? rank : MAX_RANKS) >> lane == 1 && here;
		here = here && !holds(o.mask, rank);
		if constexpr (ORDER == RANKS) {
			RankSet ranks = union_of(RankSet::one(rank, here));
			before = ranks.before(rank);
			count = ranks.count();
		} else {
			u32 lanes = __ballot_sync(0xFFFFFFFFu, here);
			before = __popc(lanes & ((1u << lane) - 1));
			count = __popc(lanes);
			if (ORDER == EXACT && (a.flags & WEIGHTED) != 0) weight = number(s.pair.weight);
		}
	}

	// lane gives the lane of the row that is added up after j others. All lanes call it.
	__device__ __forceinline__ u32 lane(u32 j) const {
		return __ffs((int)__ballot_sync(0xFFFFFFFFu, here && before == j)) - 1;
	}
};

// add_biases begins the sum of 16 bytes of a token.
__device__ __forceinline__ void add_biases(const Pull &a, u64 from, Sum &sum) {
	if (a.biases > 0) sum.start(load_once(a.bias[0] + from));
	if (a.biases > 1) sum.take(load_once(a.bias[1] + from), 1.0f);
}

// Units is what a lane has of units of a token: 16 bytes of each, at `from` and on.
struct Units {
	u32 from, end;
	Sum sum[UNITS];

	__device__ __forceinline__ Units(const Pull &a, u64 token, u32 from, u32 end) : from(from), end(end) {
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) {
			if (from + u * UNIT < end) add_biases(a, token + from + u * UNIT, sum[u]);
		}
	}

	// add adds up `count` rows: read(j, v) gets what row j has, and gives its weight. All lanes
	// call it.
	template <class Read> __device__ __forceinline__ void add(u32 count, Read read) {
		for (u32 first = 0; first < count; first += ROWS) {
			uint4 v[ROWS][UNITS];
			float weight[ROWS];
#pragma unroll
			for (u32 j = 0; j < ROWS; j++) {
				if (first + j < count) weight[j] = read(first + j, v[j]);
			}
#pragma unroll
			for (u32 j = 0; j < ROWS; j++) {
#pragma unroll
				for (u32 u = 0; u < UNITS; u++) {
					if (first + j < count && from + u * UNIT < end) sum[u].take(v[j][u], weight[j]);
				}
			}
		}
	}

	__device__ __forceinline__ void store(char *token) const {
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) {
			if (from + u * UNIT < end) store16(token + from + u * UNIT, sum[u].round());
		}
	}
};

// sum_piece adds up a piece of a token's rows.
template <Order ORDER> __device__ __forceinline__ void sum_piece(const Pull &a, const Operation &o, char *const *rows,
																 u32 t, u32 pc, u32 lane) {
	TokenRow<ORDER> token_row(a, o, Selected(a, t, lane), lane);
	u64 token = (u64)t * a.row_bytes;
	Units units(a, token, pc * UNITS * UNIT + lane * 16, a.row_bytes);
	units.add(token_row.count, [&](u32 j, uint4 *v) {
		u32 from = token_row.lane(j);
		const char *row = rows[__shfl_sync(0xFFFFFFFFu, token_row.rank, from)] +
						  (u64)__shfl_sync(0xFFFFFFFFu, token_row.row, from) * a.row_bytes;
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) {
			if (units.from + u * UNIT < units.end) v[u] = load_once(row + units.from + u * UNIT);
		}
		return ORDER == EXACT ? __shfl_sync(0xFFFFFFFFu, token_row.weight, from) : 1.0f;
	});
	units.store(a.out + token);
}

#if __CUDA_ARCH__ >= 900
constexpr u32 MOST_DEPTH = 4;

// Cursor goes through the parts of tokens that a warp adds up.
struct Cursor {
	u32 left; // parts
	u32 t, from;

	__device__ __forceinline__ Cursor(const Pull &a, Share share, u32 warp) {
		u32 all = (share.to - share.from) * a.chunks.by, first = (u32)((u64)all * warp / a.carriers), c;
		left = (u32)((u64)all * (warp + 1) / a.carriers) - first;
		t = share.from + a.chunks.quotient(first, c);
		from = c * a.chunk;
	}

	__device__ __forceinline__ u32 bytes(const Pull &a) const { return min(a.chunk, a.row_bytes - from); }

	// next says whether a token begins.
	__device__ __forceinline__ bool next(const Pull &a) {
		left--;
		from += a.chunk;
		if (from < a.row_bytes) return false;
		from = 0;
		t++;
		return true;
	}
};

// Fetcher sets parts on their way to the stages of a warp, one after another.
template <Order ORDER> struct Fetcher {
	Cursor at;
	Selected next; // of the token behind
	TokenRow<ORDER> token_row;
	const char *row; // a lane's, if its token_row is here

	__device__ __forceinline__ Fetcher(const Pull &a, const Operation &o, char *const *rows, Share share, u32 warp,
									   u32 lane)
		: at(a, share, warp), next(a, at.t, at.left != 0 ? lane : 32) {
		begin(a, o, rows, share, lane);
	}

	// begin learns where the rows of a token are, and asks for the one behind.
	__device__ __forceinline__ void begin(const Pull &a, const Operation &o, char *const *rows, Share share, u32 lane) {
		token_row = TokenRow<ORDER>(a, o, next, lane);
		row = rows[token_row.rank] + (u64)token_row.row * a.row_bytes;
		next = Selected(a, at.t + 1, at.t + 1 < share.to ? lane : 32);
	}

	// fetch gives how many rows come. Their weights come with them.
	__device__ __forceinline__ u32 fetch(const Pull &a, char *stage, u64 *arrived, float *weights, u32 lane) const {
		u32 bytes = at.bytes(a);
		if (lane == 0) barrier_expect(arrived, token_row.count * bytes);
		if (ORDER == EXACT && token_row.here) weights[token_row.before] = token_row.weight;
		__syncwarp();
		if (token_row.here) bulk_load(stage + token_row.before * a.chunk, row + at.from, bytes, arrived);
		return token_row.count;
	}
};

// take_rows adds to the sums of some units those of N rows. A lane's 16 bytes of the first unit of
// the first row are at `at`, the weights of the rows, if they have some, at `weights`.
template <u32 N, u32 U, Order ORDER>
__device__ __forceinline__ void take_rows(Sum *sum, u64 at, u32 chunk, u64 weights) {
	float by[ROWS] = {1, 1, 1, 1};
	if constexpr (ORDER == EXACT) {
		uint4 w = load_shared16(weights);
		by[0] = number(w.x), by[1] = number(w.y), by[2] = number(w.z), by[3] = number(w.w);
	}
	uint4 v[N][U];
#pragma unroll
	for (u32 j = 0; j < N; j++) {
#pragma unroll
		for (u32 u = 0; u < U; u++) v[j][u] = load_shared16(at + j * chunk + u * UNIT);
	}
#pragma unroll
	for (u32 j = 0; j < N; j++) {
#pragma unroll
		for (u32 u = 0; u < U; u++) sum[u].take(v[j][u], by[j]);
	}
}

// add_units adds up a lane's 16 bytes of each of some units of a token, `at` which it begins in the
// stage and `to` which in the tokens.
template <u32 U, Order ORDER>
__device__ __forceinline__ void add_units(const Pull &a, u64 to, u64 at, u32 count, u64 weights) {
	Sum sum[U];
	if (a.biases != 0) {
#pragma unroll
		for (u32 u = 0; u < U; u++) add_biases(a, to + u * UNIT, sum[u]);
	}
	for (; count >= ROWS; count -= ROWS, at += ROWS * a.chunk, weights += ROWS * 4)
		take_rows<ROWS, U, ORDER>(sum, at, a.chunk, weights);
	if (count == 3) take_rows<3, U, ORDER>(sum, at, a.chunk, weights);
	if (count == 2) take_rows<2, U, ORDER>(sum, at, a.chunk, weights);
	if (count == 1) take_rows<1, U, ORDER>(sum, at, a.chunk, weights);
#pragma unroll
	for (u32 u = 0; u < U; u++) store16(a.out + to + u * UNIT, sum[u].round());
}

// add_part adds up a part that has come.
template <Order ORDER> __device__ __forceinline__ void add_part(const Pull &a, const Cursor &cursor, u64 stage,
																u32 count, u64 weights, u32 lane) {
	u64 to = (u64)cursor.t * a.row_bytes + cursor.from;
	u32 bytes = cursor.bytes(a), from = 0;
	for (; from + UNITS * UNIT <= bytes; from += UNITS * UNIT)
		add_units<UNITS, ORDER>(a, to + from + lane * 16, stage + from + lane * 16, count, weights);
	for (from += lane * 16; from < bytes; from += UNIT) add_units<1, ORDER>(a, to + from, stage + from, count, weights);
}

// sum_bulk adds up the share's rows. The warps that have shared memory call it. Its waits need no
// deadline: a bulk copy ends as a load does, and a block must not end before its copies.
template <Order ORDER> __device__ __forceinline__ void sum_bulk(const Pull &a, const Operation &o, char *const *rows,
																Share share, u32 warp, u32 lane) {
	extern __shared__ __align__(128) char buffers[];
	__shared__ u64 arrived[MOST_CARRIERS][MOST_DEPTH];
	__shared__ __align__(16) float weights[ORDER == EXACT ? MOST_CARRIERS : 1][MOST_DEPTH][32];
	float (*own)[32] = weights[ORDER == EXACT ? warp : 0];
	if (lane < a.depth) {
		barrier_init(&arrived[warp][lane], 1);
		fence_barrier_init();
	}
	fence_async(); // the rows were stored by other ranks
	__syncwarp();
	// counts: of the rows of each stage, eight bits for each
	u32 part = a.most * a.chunk, counts = 0, stage = 0, parity = 0;
	char *stages = buffers + warp * a.depth * part;
	u64 stages_at = shared_at(stages), weights_at = ORDER == EXACT ? shared_at(own) : 0;
	Cursor at(a, share, warp);
	Fetcher<ORDER> fetcher(a, o, rows, share, warp, lane);
	auto fetch = [&](u32 s) {
		if (fetcher.at.left == 0) return;
		counts = counts & ~(255u << 8 * s) | fetcher.fetch(a, stages + s * part, &arrived[warp][s], own[s], lane)
												 << 8 * s;
		if (fetcher.at.next(a)) fetcher.begin(a, o, rows, share, lane);
	};
	for (u32 s = 0; s < a.depth; s++) fetch(s);
	while (at.left != 0) {
		while (!barrier_awaited(&arrived[warp][stage], parity)) {
		}
		__syncwarp();
		add_part<ORDER>(a, at, stages_at + stage * part, counts >> 8 * stage & 255, weights_at + stage * sizeof(own[0]),
						lane);
		at.next(a);
		fence_async_shared(); // all have read before anything comes there again
		__syncwarp();
		fetch(stage);
		if (++stage == a.depth) stage = 0, parity ^= 1;
	}
}
#endif

// send_scalars sends home what came with the rows. All threads of the block call it.
template <Order ORDER> __device__ __forceinline__ void send_scalars(const Pull &a, const Operation &o) {
	Described d(a.described, a.shape.local, a.group.ranks);
#pragma unroll 1
	for (u32 src = 0; src < a.group.ranks; src++) {
		if (!holds(o.mask, src)) a.scalars.send(a.group, a.shape, o, src, Share((u32)d.tokens[src]), ORDER == EXACT);
	}
}

template <Order ORDER> __device__ __forceinline__ void pull(const Pull &a) {
	__shared__ char *rows[MAX_RANKS];
	Operation o;
	u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
	// is on its way meanwhile
	u32 call = call_tag(a.call, *Described(a.described, a.shape.local, a.group.ranks).routing);
	WEFT_TRACED(o.received = (a.flags & SEND) == 0;)
	if (!o.begin(a.group, a.state, a.first, OP_COMBINE)) return;
	Wait w(a.group, a.state, OP_COMBINE, o.epoch);
	WEFT_TRACED(w.trace = o.trace;)
	if ((a.flags & SEND) != 0 && blockIdx.x == 0) announce_all(a.group, o, a.openings, call, a.at);
	if ((a.flags & RECEIVE) != 0) {
		count_and_empty(a.group, o, w, a.openings);
		for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
			if (!holds(o.mask, r))
				rows[r] = a.group.window[r] + (u64)await_peer(w, o.own, a.openings, o.turn, r, call).x * 16;
		}
		if (__syncthreads_or(w.over) != 0) return;
		if (a.scalars.rows != nullptr) send_scalars<ORDER>(a, o);
		Share share(a.tokens);
		u32 n = (a.flags & BULK) != 0 ? 0 : (share.to - share.from) * a.pieces.by;
		for (u32 i = warp; i < n; i += warps) {
			u32 pc, t = share.from + a.pieces.quotient(i, pc);
			sum_piece<ORDER>(a, o, rows, t, pc, lane);
		}
#if __CUDA_ARCH__ >= 900
		if ((a.flags & BULK) != 0 && warp < a.carriers) sum_bulk<ORDER>(a, o, rows, share, warp, lane);
#endif
		WEFT_TRACED(o.trace.first_at(SITE_REDUCED);)
		mark(a.group, o, a.marks);
		if (!await_marks(a.group, o, w, a.marks)) return;
		if (a.scalars.home != nullptr) a.scalars.take(a.shape, o, a.home, a.tokens);
	}
	leave(a.state, o.epoch - 1, o.turn, (a.flags & RECEIVE) != 0, a.first);
	WEFT_TRACED(if ((a.flags & RECEIVE) != 0) o.trace.first_at(SITE_END);)
}

} // namespace weft

namespace weft::direct {

__global__ void __launch_bounds__(512, 1) combine(const __grid_constant__ Pull a) { pull<WEFT_ORDER>(a); }

} // namespace weft::direct
