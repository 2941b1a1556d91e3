// Push: the dispatch of handles whose rows have their final places before they leave. A warp reads a piece of a token's row once and stores it at every rank that
// has an expert for it, where the first of its rows there will stand. If it has more rows at that rank, the blocks there copy it to them when it has come; they also
// fill the pads between zones with zeros.
//
// From Hopper on rows that need no work go through shared memory by bulk copies: few SMs fill the links so, for a warp has a whole row on its way and no registers.
#include "placed.cuh"
#include "quantize.cuh"

namespace weft {

// What the launch does, beside what placed.cuh names.
enum {
	COLUMNS = 32, // scales stand column-major
	BULK = 512,
};

// Go: pushArgs.
struct Push {
	Group group;
	Shape shape;
	State *state;
	u64 words, marks, blocks;				// offsets in a window
	u64 block_bytes, scales_at; // of a block of received rows
	u32 what, tokens, call;
	u32 block; // where this rank receives
	Divisor pieces;
	u32 row_bytes, scale_words, piece_words; // of a row, and of a piece at most
	u32 zone;  // rows that share a block of column-major scales; 0: those that a rank receives
	u32 rows;  // room of a rank
	u32 hidden;
	u32 align; // of packed zones
	u32 chunk; // BULK: bytes of a row that a warp sends at a time, of which shared memory has some for each of so many warps
	Divisor chunks;
	u32 carriers, zero;
	const char *x;
	const u32 *scales;
	const Pair *home;
	const u32 *places;
	const Pair *landings;
	const u32 *arrivals;
	int *described;
};

static_assert(sizeof(Push) == WEFT_PUSH_BYTES, "the host has another idea of the arguments");

constexpr u32 UNITS = WEFT_QUANTIZE == 0 ? 4 : WEFT_QUANTIZE == 3 ? 1 : 2; // of a piece

// Target is where the rows of a rank stand, and how many share a block of column-major scales.
struct Target {
	char *rows;
	u32 *scales;
	u32 zone;

	__device__ __forceinline__ u64 scale_at(const Push &a, u32 row, u32 word) const {
		if ((a.what & COLUMNS) == 0) return (u64)row * a.scale_words + word;
		return (u64)(row / zone) * zone * a.scale_words + (u64)word * zone + row % zone;
	}
};

__device__ __forceinline__ Target target_of(const Push &a, const int *wanted, u32 rank, u32 block) {
	char *rows = a.group.window[rank] + a.blocks + block * a.block_bytes;
	return {rows, (u32 *)(rows + a.scales_at), a.zone != 0 ? a.zone : min((u32)wanted[rank], a.rows)};
}

// Piece is what a lane has of a piece of a row: 16 bytes of each unit, and words of scales.
struct Piece {
	uint4 v[UNITS];
#if WEFT_QUANTIZE
	u32 word[UNITS];
	int scale[UNITS]; // which of the row's the word is, or none
#endif
};

__device__ __forceinline__ u32 piece_at(u32 pc, u32 u, u32 lane) { return (pc * UNITS + u) * UNIT + lane * 16; }

__device__ __forceinline__ void fetch(const Push &a, u32 t, u32 pc, u32 lane, Piece &p) {
#if WEFT_QUANTIZE
	uint4 raw[UNITS][LOADS];
#pragma unroll
	for (u32 u = 0; u < UNITS; u++) {
		u32 at = piece_at(pc, u, lane);
		const char *from = a.x + ((u64)t * a.hidden + at) * NUMBER_BYTES;
#pragma unroll
		for (int i = 0; i < LOADS; i++) raw[u][i] = at < a.row_bytes ? load_once(from + 16 * i) : make_uint4(0, 0, 0, 0);
	}
#pragma unroll
	for (u32 u = 0; u < UNITS; u++) p.v[u] = quantize(a.what, raw[u], pc * UNITS + u, lane, piece_at(pc, u, lane) < a.row_bytes, p.word[u], p.scale[u]);
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

// Places is where a token goes: a selection a lane.
struct Places {
	u32 place, rank;

	__device__ __forceinline__ Places(const Push &a, u32 t, u32 lane) : place(0), rank(0) {
		if (lane >= a.shape.topk) return;
		u64 i = (u64)t * a.shape.topk + lane;
		place = a.places[i];
		if (place != 0) rank = rank_of(a.shape, (a.home[i].what & 0xFFFF) - 1);
	}

	// leads says whether the lane's selection is the first of the token at its rank.
	__device__ __forceinline__ bool leads() const { return (place & LEADER) != 0; }

	// next gives the rank, and the row there, of the first lane in todo. All lanes call it.
	__device__ __forceinline__ u32 next(u32 todo, u32 &row) const {
		u32 leader = __ffs((int)todo) - 1;
		row = (__shfl_sync(0xFFFFFFFFu, place, leader) & ~LEADER) - 1;
		return __shfl_sync(0xFFFFFFFFu, rank, leader);
	}
};

// send_piece stores a piece of a token's row, and its part of the scales, at every rank that has an expert for it.
__device__ __forceinline__ void send_piece(const Push &a, const Turn &o, const Target *targets, u32 t, u32 pc, u32 lane) {
	Places places(a, t, lane);
	Piece p;
	fetch(a, t, pc, lane, p);
	for (u32 todo = __ballot_sync(0xFFFFFFFFu, places.leads()); todo != 0; todo &= todo - 1) {
		u32 row, r = places.next(todo, row);
		if (holds(o.mask, r)) continue;
		const Target &to = targets[r];
		store(a, to, row, pc, lane, p.v);
#if WEFT_QUANTIZE
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) {
			if (p.scale[u] >= 0) to.scales[to.scale_at(a, row, (u32)p.scale[u])] = p.word[u];
		}
#else
		for (u32 j = lane; j < a.piece_words; j += 32) {
			u32 word = pc * a.piece_words + j;
			if (word < a.scale_words) to.scales[to.scale_at(a, row, word)] = a.scales[(u64)t * a.scale_words + word];
		}
#endif
	}
}

#if __CUDA_ARCH__ >= 900 && !WEFT_QUANTIZE
// send_bulk sends the share's rows by bulk copies. All threads of the block call it; the warps that have shared memory carry. What is waited for is no rank: a bulk
// copy ends as a load does, and no block may end before.
__device__ __forceinline__ void send_bulk(const Push &a, const Turn &o, const Target *targets, Share share, u32 warp, u32 lane) {
	extern __shared__ __align__(128) char buffers[];
	__shared__ u64 arrived[16];
	if (warp >= a.carriers) return;
	char *buffer = buffers + warp * a.chunk;
	u64 *barrier = &arrived[warp];
	if (lane == 0) {
		barrier_init(barrier, 1);
		fence_barrier_init();
	}
	__syncwarp();
	u32 n = (share.to - share.from) * a.chunks.by, parity = 0;
	for (u32 i = warp; i < n; i += a.carriers) {
		u32 c, t = share.from + a.chunks.quotient(i, c), from = c * a.chunk, bytes = min(a.chunk, a.row_bytes - from);
		if (lane == 0) {
			bulk_wait_read(); // what was sent before has left the buffer
			barrier_expect(barrier, bytes);
			bulk_load(buffer, a.x + (u64)t * a.row_bytes + from, bytes, barrier);
		}
		Places p(a, t, lane);
		u32 first = __ballot_sync(0xFFFFFFFFu, p.leads());
		for (u32 todo = c == 0 ? first : 0; todo != 0; todo &= todo - 1) {
			u32 row, r = p.next(todo, row);
			if (holds(o.mask, r)) continue;
			for (u32 word = lane; word < a.scale_words; word += 32) {
				targets[r].scales[targets[r].scale_at(a, row, word)] = a.scales[(u64)t * a.scale_words + word];
			}
		}
		while (!barrier_awaited(barrier, parity)) {}
		__syncwarp();
		parity ^= 1;
		for (u32 todo = first; todo != 0; todo &= todo - 1) {
			u32 row, r = p.next(todo, row);
			if (lane == 0 && !holds(o.mask, r)) bulk_store(targets[r].rows + (u64)row * a.row_bytes + from, buffer, bytes);
		}
		if (lane == 0) bulk_commit();
	}
	if (lane == 0) bulk_wait();
}
#endif

// clear_row makes a row and its scales zeros. A warp does.
__device__ __forceinline__ void clear_row(const Push &a, const Target &own, u32 row, u32 lane) {
	for (u32 at = lane * 16; at < a.row_bytes; at += UNIT) store16(own.rows + (u64)row * a.row_bytes + at, make_uint4(0, 0, 0, 0));
	for (u32 word = lane; word < a.scale_words; word += 32) own.scales[own.scale_at(a, row, word)] = 0;
}

// spread copies the row of src's token that has come to its other rows here. Of a rank that is left out nothing has come, and the rows are zeros. A warp does.
__device__ __forceinline__ void spread(const Push &a, const Turn &o, const Target &own, u32 src, u32 t, u32 lane) {
	u64 slot = (u64)src * a.shape.capacity + t;
	bool absent = holds(o.mask, src), by_rank = (a.what & BY_RANK) != 0;
	u32 landing = 0;
	if (by_rank) {
		if (lane == 0) landing = a.arrivals[slot];
	} else if (lane < a.shape.topk) {
		landing = a.landings[slot * a.shape.topk + lane].what;
	}
	u32 todo = __ballot_sync(0xFFFFFFFFu, landing != 0);
	if (todo == 0) return;
	u32 first = __shfl_sync(0xFFFFFFFFu, landing, __ffs((int)todo) - 1) - 1;
	for (u32 rest = absent ? todo : 0; rest != 0; rest &= rest - 1) clear_row(a, own, __shfl_sync(0xFFFFFFFFu, landing, __ffs((int)rest) - 1) - 1, lane);
	todo &= todo - 1;
	if (absent || todo == 0) return;
	for (u32 pc = 0; pc < a.pieces.by; pc++) {
		uint4 v[UNITS];
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) {
			u32 at = piece_at(pc, u, lane);
			if (at < a.row_bytes) v[u] = load_relaxed_sys16(own.rows + (u64)first * a.row_bytes + at);
		}
		for (u32 rest = todo; rest != 0; rest &= rest - 1) store(a, own, __shfl_sync(0xFFFFFFFFu, landing, __ffs((int)rest) - 1) - 1, pc, lane, v);
	}
	for (u32 from = 0; from < a.scale_words; from += 32) {
		u32 word = from + lane, scale = 0;
		bool here = word < a.scale_words;
		if (here) scale = load_relaxed_sys4(own.scales + own.scale_at(a, first, word));
		for (u32 rest = todo; rest != 0; rest &= rest - 1) {
			u32 row = __shfl_sync(0xFFFFFFFFu, landing, __ffs((int)rest) - 1) - 1;
			if (here) own.scales[own.scale_at(a, row, word)] = scale;
		}
	}
}

__device__ __forceinline__ void push(const Push &a) {
	__shared__ Target targets[MAX_RANKS];
	Turn o;
	u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
	if (!o.begin(a.group, a.state, 0, OP_DISPATCH)) return;
	Wait w(a.group, a.state, OP_DISPATCH, o.epoch);
	Described d(a.described, a.shape.local, a.group.ranks);
	if ((a.what & SEND) != 0) {
		if (blockIdx.x == 0) tell(a.group, o, a.words, a.call, a.block);
		count_words(o, w, a.words);
		for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
			if (!holds(o.mask, r)) targets[r] = target_of(a, d.wanted, r, hear(o, w, a.words, r, a.call));
		}
		if (__syncthreads_or(w.over) != 0) return;
		Share share(a.tokens);
		u32 n = (a.what & BULK) != 0 ? 0 : (share.to - share.from) * a.pieces.by;
		for (u32 i = warp; i < n; i += warps) {
			u32 pc, t = share.from + a.pieces.quotient(i, pc);
			send_piece(a, o, targets, t, pc, lane);
		}
#if __CUDA_ARCH__ >= 900 && !WEFT_QUANTIZE
		if ((a.what & BULK) != 0) send_bulk(a, o, targets, share, warp, lane);
#endif
		mark(a.group, o, a.marks);
	}
	if ((a.what & RECEIVE) != 0) {
		Target own = target_of(a, d.wanted, a.group.rank, a.block);
		if ((a.what & BY_RANK) == 0) each_pad(d, a.shape.local, a.align, [&](u32 row) { clear_row(a, own, row, lane); });
		if (!await_marks(a.group, o, w, a.marks)) return;
		for (u32 src = 0; src < a.group.ranks; src++) {
			if ((a.what & BY_RANK) != 0 && !holds(o.mask, src)) continue;
			Share share((u32)d.tokens[src]);
			for (u32 t = share.from + warp; t < share.to; t += warps) spread(a, o, own, src, t, lane);
		}
	}
	leave(a.state, o.epoch - 1, o.turn, (a.what & RECEIVE) != 0);
}

} // namespace weft

extern "C" __global__ void __launch_bounds__(512, 1) weft_push(const __grid_constant__ weft::Push a) { weft::push(a); }
