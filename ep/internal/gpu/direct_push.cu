// Push: the dispatch of rows that go straight to their final rows. A warp reads a piece of a token's row
// once and stores it at every rank that has an expert for it, in the first of the token's rows there. If
// the token has more rows at that rank, the blocks there copy it to them when it has arrived; they also
// fill the pads between zones with zeros.
//
// From Hopper on rows that are not quantised go through shared memory by bulk copies. A warp then has a
// whole row in flight and needs no registers for it, so few SMs fill the links.
#include "direct.cuh"
#include "quantize.cuh"

namespace weft {

// Go: pushArgs.
struct Push {
	Shape shape;
	State *state;
	u64 openings, marks, blocks; // offsets in a window
	u64 block_bytes, scales_at;	 // of a block of received rows
	u32 flags, tokens, call;
	u32 block; // where this rank receives
	Divisor pieces;
	u32 row_bytes, scale_words, piece_words; // of a row, and of a piece at most
	u32 zone; // rows that share a block of column-major scales; 0: those that a rank receives
	u32 rows; // room of a rank
	u32 hidden;
	u32 align; // of packed zones
	// BULK: bytes of a row that a warp sends at a time, of which shared memory has some for each of
	// so many warps
	u32 chunk;
	Divisor chunks;
	u32 carriers, zero;
	const char *x;
	const u32 *scales;
	Pair *home;
	const u32 *dest_rows;
	Pair *recv_rows;
	const u32 *recv_tokens;
	int *described;
	// Of a launch whose weights travel with the rows:
	u64 weight_records; // offset in a window: of pairs whose second words are the weights that ranks tell
	const float *weights;
	Group group;
};

static_assert(sizeof(Push) == WEFT_PUSH_BYTES + WIDER, "not the size of the host's struct");

constexpr u32 UNITS = WEFT_QUANTIZE == 0 ? 4 : WEFT_QUANTIZE == 3 ? 1 : 2; // of a piece

// Target is where the rows of a rank stand, and how many share a block of column-major scales.
struct Target {
	char *rows;
	u32 *scales;
	u32 zone;

	__device__ __forceinline__ u64 scale_at(const Push &a, u32 row, u32 word) const {
		if ((a.flags & COLUMN_SCALES) == 0) return (u64)row * a.scale_words + word;
		return (u64)(row / zone) * zone * a.scale_words + (u64)word * zone + row % zone;
	}
};

__device__ __forceinline__ Target target_of(const Push &a, const int *wanted, u32 rank, u32 block) {
	char *rows = a.group.window[rank] + a.blocks + block * a.block_bytes;
	return {rows, (u32 *)(rows + a.scales_at), a.zone != 0 ? a.zone : min((u32)wanted[rank], a.rows)};
}

// RowPiece is what a lane has of a piece of a row: 16 bytes of each unit, and words of scales.
struct RowPiece {
	uint4 v[UNITS];
#if WEFT_QUANTIZE
	u32 word[UNITS];
	int scale[UNITS]; // which of the row's the word is, or none
#endif
};

__device__ __forceinline__ u32 piece_at(u32 pc, u32 u, u32 lane) { return (pc * UNITS + u) * UNIT + lane * 16; }

__device__ __forceinline__ void fetch(const Push &a, u32 t, u32 pc, u32 lane, RowPiece &p) {
#if WEFT_QUANTIZE
	uint4 raw[UNITS][LOADS];
#pragma unroll
	for (u32 u = 0; u < UNITS; u++) {
		u32 at = piece_at(pc, u, lane);
		const char *from = a.x + ((u64)t * a.hidden + at) * NUMBER_BYTES;
#pragma unroll
		for (int i = 0; i < LOADS; i++)
			raw[u][i] = at < a.row_bytes ? load_once(from + 16 * i) : make_uint4(0, 0, 0, 0);
	}
#pragma unroll
	for (u32 u = 0; u < UNITS; u++)
		p.v[u] =
			quantize(a.flags, raw[u], pc * UNITS + u, lane, piece_at(pc, u, lane) < a.row_bytes, p.word[u], p.scale[u]);
#else
#pragma unroll
	for (u32 u = 0; u < UNITS; u++) {
		u32 at = piece_at(pc, u, lane);
		p.v[u] = at < a.row_bytes ? load_once(a.x + (u64)t * a.row_bytes + at) : make_uint4(0, 0, 0, 0);
	}
#endif
}

__device__ __forceinline__ void store(const Push &a, const Target &to, u32 row, u32 pc, u32 lane, const uint4 *v) {
#pragma unroll
	for (u32 u = 0; u < UNITS; u++) {
		u32 at = piece_at(pc, u, lane);
		if (at < a.row_bytes) store16(to.rows + (u64)row * a.row_bytes + at, v[u]);
	}
}

// Destinations are where a token goes: a selection a lane.
struct Destinations {
	u32 dest, rank;

	__device__ __forceinline__ Destinations(const Push &a, u32 t, u32 lane) : dest(0), rank(0) {
		if (lane >= a.shape.topk) return;
		u64 i = (u64)t * a.shape.topk + lane;
		dest = a.dest_rows[i];
		if (dest != 0) rank = rank_of(a.shape, (a.home[i].target & 0xFFFF) - 1);
	}

	// leads says whether the lane's selection is the first of the token at its rank.
	__device__ __forceinline__ bool leads() const { return (dest & LEADER) != 0; }

	// next gives the rank, and the row there, of the first lane in todo. All lanes call it.
	__device__ __forceinline__ u32 next(u32 todo, u32 &row) const {
		u32 leader = __ffs((int)todo) - 1;
		row = (__shfl_sync(0xFFFFFFFFu, dest, leader) & ~LEADER) - 1;
		return __shfl_sync(0xFFFFFFFFu, rank, leader);
	}
};

// by_columns says whether scales go apart from their rows, by send_columns.
__device__ __forceinline__ bool by_columns(const Push &a) {
	return WEFT_QUANTIZE == 0 && (a.flags & COLUMN_SCALES) != 0 && (a.flags & ROW_PER_TOKEN) != 0;
}

// Column-major scales go in parts: COLUMNS scales of 32 neighbouring tokens to one rank. The tokens' rows stand one
// behind another there, so what a warp stores of a column stands side by side. Sent token by token the scales would be
// words of four bytes, each in a line of its own, and links carry few of those.
constexpr u32 COLUMNS = 8; // so many scales are the 32 bytes that a load brings

// token_parts is the number of parts that 32 tokens have for one rank.
__device__ __forceinline__ u32 token_parts(const Push &a) { return (a.scale_words + COLUMNS - 1) / COLUMNS; }

// column_parts is the number of parts of a share; 0 if its scales do not go by columns.
__device__ __forceinline__ u32 column_parts(const Push &a, Share share) {
	if (!by_columns(a)) return 0;
	return (share.to - share.from + 31) / 32 * a.group.ranks * token_parts(a);
}

// send_columns stores part i of the share's scales, one token a lane. Parts of the same scales for several ranks follow
// each other, so that all but the first find them in a cache.
__device__ __forceinline__ void send_columns(const Push &a, const Operation &o, const Target *targets, Share share,
											 u32 i, u32 lane) {
	u32 r = next_rank(a.group, i % a.group.ranks), parts = token_parts(a);
	i /= a.group.ranks;
	u32 t = share.from + i / parts * 32 + lane, first = i % parts * COLUMNS;
	u32 row = 0; // + 1
	if (holds(o.mask, r)) return;
#pragma unroll 1
	for (u32 k = 0; t < share.to && k < a.shape.topk; k++) {
		u64 at = (u64)t * a.shape.topk + k;
		u32 dest = a.dest_rows[at];
		if ((dest & LEADER) != 0 && rank_of(a.shape, (a.home[at].target & 0xFFFF) - 1) == r) row = dest & ~LEADER;
	}
	if (row == 0) return;
	const u32 *from = a.scales + (u64)t * a.scale_words;
	u32 *to = targets[r].scales + targets[r].scale_at(a, row - 1, first), v[COLUMNS];
#pragma unroll
	for (u32 j = 0; j < COLUMNS; j++) v[j] = first + j < a.scale_words ? from[first + j] : 0;
#pragma unroll
	for (u32 j = 0; j < COLUMNS; j++) {
		if (first + j < a.scale_words) to[(u64)j * targets[r].zone] = v[j];
	}
}

// send_piece stores a piece of a token's row, and its part of the scales, at every rank that has an
// expert for it.
__device__ __forceinline__ void send_piece(const Push &a, const Operation &o, const Target *targets, u32 t, u32 pc,
										   u32 lane) {
	Destinations to(a, t, lane);
	RowPiece p;
	fetch(a, t, pc, lane, p);
	for (u32 todo = __ballot_sync(0xFFFFFFFFu, to.leads()); todo != 0; todo &= todo - 1) {
		u32 row, r = to.next(todo, row);
		if (holds(o.mask, r)) continue;
		const Target &to = targets[r];
		store(a, to, row, pc, lane, p.v);
#if WEFT_QUANTIZE
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) {
			if (p.scale[u] >= 0) to.scales[to.scale_at(a, row, (u32)p.scale[u])] = p.word[u];
		}
#else
		for (u32 j = lane; !by_columns(a) && j < a.piece_words; j += 32) {
			u32 word = pc * a.piece_words + j;
			if (word < a.scale_words) to.scales[to.scale_at(a, row, word)] = a.scales[(u64)t * a.scale_words + word];
		}
#endif
	}
}

#if __CUDA_ARCH__ >= 900 && !WEFT_QUANTIZE
// send_bulk sends the share's rows by bulk copies. The warps that carry call it.
__device__ __forceinline__ void send_bulk(const Push &a, const Operation &o, const Target *targets, Carrier &carrier,
										  Share share, u32 warp, u32 lane) {
	u32 n = (share.to - share.from) * a.chunks.by, columns = column_parts(a, share);
	for (u32 i = warp; i < n || i < columns; i += a.carriers) {
		if (i >= n) {
			send_columns(a, o, targets, share, i, lane);
			continue;
		}
		u32 c, t = share.from + a.chunks.quotient(i, c), from = c * a.chunk, bytes = min(a.chunk, a.row_bytes - from);
		carrier.fetch(a.x + (u64)t * a.row_bytes + from, bytes);
		Destinations p(a, t, lane);
		u32 first = __ballot_sync(0xFFFFFFFFu, p.leads());
		for (u32 todo = c == 0 && !by_columns(a) ? first : 0; todo != 0; todo &= todo - 1) {
			u32 row, r = p.next(todo, row);
			if (holds(o.mask, r)) continue;
			for (u32 word = lane; word < a.scale_words; word += 32) {
				targets[r].scales[targets[r].scale_at(a, row, word)] = a.scales[(u64)t * a.scale_words + word];
			}
		}
		carrier.await();
		for (u32 todo = first; todo != 0; todo &= todo - 1) {
			u32 row, r = p.next(todo, row);
			if (!holds(o.mask, r)) carrier.store(targets[r].rows + (u64)row * a.row_bytes + from, bytes);
		}
		carrier.commit();
		if (i < columns) send_columns(a, o, targets, share, i, lane); // while the row leaves
	}
	carrier.finish();
}
#endif

// clear_row makes a row and its scales zeros. A warp does.
__device__ __forceinline__ void clear_row(const Push &a, const Target &own, u32 row, u32 lane) {
	for (u32 at = lane * 16; at < a.row_bytes; at += UNIT)
		store16(own.rows + (u64)row * a.row_bytes + at, make_uint4(0, 0, 0, 0));
	for (u32 word = lane; word < a.scale_words; word += 32) own.scales[own.scale_at(a, row, word)] = 0;
}

// RecvRow is a row, + 1, that a token of src has here: one a lane.
__device__ __forceinline__ u32 recv_row(const Push &a, u32 src, u32 t, u32 lane) {
	u64 slot = (u64)src * a.shape.capacity + t;
	if ((a.flags & ROW_PER_TOKEN) != 0) return lane == 0 ? a.recv_tokens[slot] : 0;
	return lane < a.shape.topk ? a.recv_rows[slot * a.shape.topk + lane].target : 0;
}

// Rows are those of a token that are here, if there are any: `first` has come, `rest` are the lanes
// of others.
struct Rows {
	u32 first, recv_row, rest;

	__device__ __forceinline__ Rows(u32 recv_row) : recv_row(recv_row) {
		rest = __ballot_sync(0xFFFFFFFFu, recv_row != 0);
		first = __shfl_sync(0xFFFFFFFFu, recv_row, rest != 0 ? __ffs((int)rest) - 1 : 0) - 1;
		rest &= rest - 1;
	}

	// next gives the row of the first lane in todo. All lanes call it.
	__device__ __forceinline__ u32 next(u32 todo) const {
		return __shfl_sync(0xFFFFFFFFu, recv_row, __ffs((int)todo) - 1) - 1;
	}
};

// clear_rows makes zeros of the rows of a token whose rank is left out.
__device__ __forceinline__ void clear_rows(const Push &a, const Target &own, u32 recv_row, u32 lane) {
	for (u32 todo = __ballot_sync(0xFFFFFFFFu, recv_row != 0); todo != 0; todo &= todo - 1) {
		clear_row(a, own, __shfl_sync(0xFFFFFFFFu, recv_row, __ffs((int)todo) - 1) - 1, lane);
	}
}

// spread_scales copies the scales of the row that has come to the others.
__device__ __forceinline__ void spread_scales(const Push &a, const Target &own, const Rows &rows, u32 lane) {
	for (u32 from = 0; rows.rest != 0 && from < a.scale_words; from += 32) {
		u32 word = from + lane, scale = 0;
		bool here = word < a.scale_words;
		if (here) scale = load_relaxed_sys4(own.scales + own.scale_at(a, rows.first, word));
		for (u32 todo = rows.rest; todo != 0; todo &= todo - 1) {
			u32 row = rows.next(todo);
			if (here) own.scales[own.scale_at(a, row, word)] = scale;
		}
	}
}

// spread copies the row that has come to the others.
__device__ __forceinline__ void spread(const Push &a, const Target &own, const Rows &rows, u32 lane) {
	for (u32 pc = 0; rows.rest != 0 && pc < a.pieces.by; pc++) {
		uint4 v[UNITS];
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) {
			u32 at = piece_at(pc, u, lane);
			if (at < a.row_bytes) v[u] = load_relaxed_sys16(own.rows + (u64)rows.first * a.row_bytes + at);
		}
		for (u32 todo = rows.rest; todo != 0; todo &= todo - 1) store(a, own, rows.next(todo), pc, lane, v);
	}
}

#if __CUDA_ARCH__ >= 900 && !WEFT_QUANTIZE
__device__ __forceinline__ void spread_bulk(const Push &a, const Target &own, const Rows &rows, Carrier &carrier) {
	for (u32 from = 0; rows.rest != 0 && from < a.row_bytes; from += a.chunk) {
		u32 bytes = min(a.chunk, a.row_bytes - from);
		carrier.fetch(own.rows + (u64)rows.first * a.row_bytes + from, bytes);
		carrier.await();
		for (u32 todo = rows.rest; todo != 0; todo &= todo - 1)
			carrier.store(own.rows + (u64)rows.next(todo) * a.row_bytes + from, bytes);
		carrier.commit();
	}
}
#endif

// spread_all calls f with the rows of every token of src's share, a warp of so many a token, and
// looks up the next meanwhile; those of a rank that is left out become zeros.
template <class F> __device__ __forceinline__ void spread_all(const Push &a, const Target &own, u32 src, bool absent,
															  Share share, u32 warp, u32 warps, u32 lane, F f) {
	u32 t = share.from + warp, next = t < share.to ? recv_row(a, src, t, lane) : 0;
	for (; t < share.to; t += warps) {
		u32 here = next;
		if (t + warps < share.to) next = recv_row(a, src, t + warps, lane);
		if (absent) {
			clear_rows(a, own, here, lane);
		} else {
			f(Rows(here));
		}
	}
}

// Weights travel as a prepare's records do: by expert they are the second words of those, token-major they have places
// of their own. What this operation tells may come while a rank still keeps what the one before told.
__device__ __forceinline__ u64 weight_at(const Push &a, const Operation &o, u32 src, u32 i) {
	u64 place = ((o.epoch & 1) * a.group.ranks + src) * a.shape.capacity * a.shape.topk + i;
	return a.weight_records + place * sizeof(Pair) + sizeof(u32);
}

// send_weights gives the share's selections other weights, and tells the ranks where their rows
// are. All threads of the block call it.
__device__ __forceinline__ void send_weights(const Push &a, const Operation &o, Share share) {
	for (u32 i = share.from * a.shape.topk + threadIdx.x; i < share.to * a.shape.topk; i += blockDim.x) {
		u32 e = a.home[i].target & 0xFFFF, weight = bits(a.weights[i]);
		a.home[i].weight = weight;
		if (e == 0) continue;
		u32 r = rank_of(a.shape, e - 1);
		if (!holds(o.mask, r)) store_relaxed_sys4(a.group.window[r] + weight_at(a, o, a.group.rank, i), weight);
	}
}

// take_weights gives the rows of src's share the weights that it told of. All threads of the block
// call it, when the block of this number there has marked.
__device__ __forceinline__ void take_weights(const Push &a, const Operation &o, u32 src, Share share) {
	Pair *recv_rows = a.recv_rows + (u64)src * a.shape.capacity * a.shape.topk;
	for (u32 i = share.from * a.shape.topk + threadIdx.x; i < share.to * a.shape.topk; i += blockDim.x) {
		if (recv_rows[i].target != 0) recv_rows[i].weight = load_relaxed_sys4(o.own + weight_at(a, o, src, i));
	}
}

template <bool WEIGHTS> __device__ __forceinline__ void push(const Push &a) {
	__shared__ Target targets[MAX_RANKS];
	Operation o;
	u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
	bool bulk = (a.flags & BULK) != 0;
	Described d(a.described, a.shape.local, a.group.ranks);
	u32 call = call_tag(a.call, *d.routing); // is on its way meanwhile
	WEFT_TRACED(o.received = (a.flags & SEND) == 0;)
	if (!o.begin(a.group, a.state, 0, OP_DISPATCH)) return;
	Wait w(a.group, a.state, OP_DISPATCH, o.epoch);
#if __CUDA_ARCH__ >= 900 && !WEFT_QUANTIZE
	extern __shared__ __align__(128) char buffers[];
	__shared__ u64 barriers[MOST_CARRIERS];
	Carrier carrier(buffers, barriers, a.chunk, warp, lane);
#endif
	if ((a.flags & SEND) != 0) {
		if (blockIdx.x == 0) announce_all(a.group, o, a.openings, call, a.block);
		count_and_empty(a.group, o, w, a.openings);
		for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
			if (!holds(o.mask, r))
				targets[r] = target_of(a, d.wanted, r, await_peer(w, o.own, a.openings, o.turn, r, call).x);
		}
		if (__syncthreads_or(w.over) != 0) return;
		Share share(a.tokens);
		if (WEIGHTS) send_weights(a, o, share);
		u32 n = bulk ? 0 : (share.to - share.from) * a.pieces.by, columns = bulk ? 0 : column_parts(a, share);
		for (u32 i = warp; i < columns; i += warps) send_columns(a, o, targets, share, i, lane);
		for (u32 i = warp; i < n; i += warps) {
			u32 pc, t = share.from + a.pieces.quotient(i, pc);
			send_piece(a, o, targets, t, pc, lane);
		}
#if __CUDA_ARCH__ >= 900 && !WEFT_QUANTIZE
		if (bulk && warp < a.carriers) send_bulk(a, o, targets, carrier, share, warp, lane);
#endif
		WEFT_TRACED(o.trace.first_at(SITE_PUSHED);)
		mark(a.group, o, a.marks);
	}
	if ((a.flags & RECEIVE) != 0) {
		Target own = target_of(a, d.wanted, a.group.rank, a.block);
		if ((a.flags & ROW_PER_TOKEN) == 0)
			each_pad(d, a.shape.local, a.align, [&](u32 row) { clear_row(a, own, row, lane); });
		if (!await_marks(a.group, o, w, a.marks)) return;
#if __CUDA_ARCH__ >= 900
		fence_async(); // the rows were stored by other ranks
#endif
		for (u32 src = 0; src < a.group.ranks; src++) {
			bool absent = holds(o.mask, src);
			if (WEIGHTS && !absent) take_weights(a, o, src, Share((u32)d.tokens[src]));
			if ((a.flags & ROW_PER_TOKEN) != 0 && !absent) continue;
			Share share((u32)d.tokens[src]);
#if __CUDA_ARCH__ >= 900 && !WEFT_QUANTIZE
			if (bulk) {
				if (warp >= a.carriers) continue;
				spread_all(a, own, src, absent, share, warp, a.carriers, lane, [&](const Rows &rows) {
					spread_scales(a, own, rows, lane);
					spread_bulk(a, own, rows, carrier);
				});
				continue;
			}
#endif
			spread_all(a, own, src, absent, share, warp, warps, lane, [&](const Rows &rows) {
				spread(a, own, rows, lane);
				spread_scales(a, own, rows, lane);
			});
		}
#if __CUDA_ARCH__ >= 900 && !WEFT_QUANTIZE
		carrier.finish();
#endif
	}
	leave(a.state, o.epoch - 1, o.turn, (a.flags & RECEIVE) != 0);
	WEFT_TRACED(if ((a.flags & RECEIVE) != 0) o.trace.first_at(SITE_PLACED);)
	WEFT_TRACED(if ((a.flags & RECEIVE) != 0) o.trace.first_at(SITE_END);)
}

} // namespace weft

namespace weft::direct {

__global__ void __launch_bounds__(512, 1) dispatch(const __grid_constant__ Push a) { push<WEFT_WEIGHTS>(a); }

} // namespace weft::direct
