// Dispatch: rows go to the ranks of their experts, once to each, and are spread over the experts' zones on arrival. Routing travels beside them, so that one
// exchange does the work of prepare and dispatch; or alone, which is prepare; or rows travel by a routing that is known.
//
//	send     a warp takes a piece of a token's row and stores it at every rank that has an expert for it, at a slot that only the token's number decides.
//	         The warp of the first piece also stores the token's record at every rank.
//	clerk    the last block counts this rank's selections and tells every rank how many of its experts', then adds up what it is told and describes the zones.
//	receive  a warp takes a piece of a slot. The row of a selection is its expert's zone + the selections of the sources before + its number at its source.
//
// In the direct form senders store rows where the caller reads them, and receiving is waiting.
#include "exchange.cuh"

#ifndef WEFT_QUANTIZE
#define WEFT_QUANTIZE 0 // rows are quantised to e4m3 on the way, from: 1 bf16, 2 fp16, 3 fp32
#endif

namespace weft {

// What the launch does.
enum {
	SEND = 1,
	RECEIVE = 2,
	ROUTE = 4,		   // routing travels
	MOVE = 8,		   // rows travel
	BY_EXPERT = 16,	   // the layout is expert-major, else rank-major
	DIRECT = 32,	   // rows are stored in their final place
	COLUMNS = 64,	   // scales stand column-major
	WIDE = 128,		   // expert indices have 64 bits
	POWER_OF_TWO = 256, // quantisation: scales are powers of two
	EXPONENTS = 512,   // quantisation: scales are stored as exponents
};

// Go: dispatchArgs.
struct Dispatch {
	Group group;
	Shape shape;
	State *state;
	u64 heads, counts, records, rows, arrived, ready; // offsets in a window
	u64 turn_bytes;							   // of one turn of rows
	u64 direct, direct_scales;				   // offsets in a window, of the direct form
	u32 slot_bytes, row_bytes, pieces;
	u32 scale_words, piece_words; // of a row, and at most of a piece
	u32 zone;					  // rows of an expert, or of all; they share a block of column-major scales
	u32 what, tokens, hidden;
	u32 block; // direct: where the rows go, at every rank
	u32 free;  // the blocks that no one reads here any more, once this operation has begun
	const void *ids; // [tokens][top-k]
	const float *weights;
	const char *x;
	const u32 *scales;
	Pair *home;		// [capacity][top-k]
	Pair *landings; // [ranks][capacity][top-k]
	int *described; // [local] counts, [local] offsets, [ranks] tokens that came, [ranks] tokens, sum
	long long *ranges;
	u32 *filled;  // 3 turns x [ranks][capacity]
	u32 *credits; // [ranks]: the blocks that the rank had free in the last operation
	char *out;
	u32 *out_scales;
};

static_assert(sizeof(Dispatch) == WEFT_DISPATCH_BYTES, "the host has another idea of the arguments");

// Batch is what a thread knows of the operation.
struct Batch {
	u64 mask, epoch;
	u32 turn, blocks;
	u32 place; // of rows: the turn, or, where rows are not their own flags, one of two
	char *own;
};

__device__ __forceinline__ u64 scale_at(const Dispatch &a, u32 row, u32 word) {
	if ((a.what & COLUMNS) == 0) return (u64)row * a.scale_words + word;
	return (u64)(row / a.zone) * a.zone * a.scale_words + (u64)word * a.zone + row % a.zone;
}

// selection is the expert that the i-th selection of this rank's tokens names, + 1; 0 for none, and for what is no expert.
__device__ __forceinline__ u32 selection(const Dispatch &a, u32 i) {
	if ((a.what & ROUTE) == 0) return a.home[i].what;
	u64 e = (a.what & WIDE) != 0 ? ((const u64 *)a.ids)[i] : (u64)(long long)((const int *)a.ids)[i];
	return e < a.shape.experts ? (u32)e + 1 : 0;
}

// ---- Quantisation of a piece: 16 numbers a lane, 8 lanes a scale.
#if WEFT_QUANTIZE

constexpr u32 NUMBER_BYTES = WEFT_QUANTIZE == 3 ? 4 : 2;

__device__ __forceinline__ void widen(float *f, uint4 v) {
	u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
	for (int i = 0; i < 4; i++) {
#if WEFT_QUANTIZE == 1
		f[2 * i] = number(w[i] << 16);
		f[2 * i + 1] = number(w[i] & 0xFFFF0000u);
#elif WEFT_QUANTIZE == 2
		f[2 * i] = from_f16((u16)w[i]);
		f[2 * i + 1] = from_f16((u16)(w[i] >> 16));
#else
		f[i] = number(w[i]);
#endif
	}
}

constexpr u32 LOADS = NUMBER_BYTES; // of 16 bytes, for 16 numbers

// quantize gives 16 e4m3 numbers, and on some lanes a word of scales: scale says which of the row's, or none.
__device__ __forceinline__ uint4 quantize(const Dispatch &a, const uint4 *raw, u32 pc, u32 lane, u32 &word, int &scale) {
	bool here = pc * PIECE + lane * 16 < a.hidden;
	float f[16];
#pragma unroll
	for (int i = 0; i < LOADS; i++) widen(f + i * (16 / LOADS), raw[i]);
	float most = 0;
#pragma unroll
	for (int i = 0; i < 16; i++) most = fmaxf(most, fabsf(f[i]));
#pragma unroll
	for (int i = 1; i < 8; i *= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, i));
	most = fminf(fmaxf(most, 1e-4f), 3.4028234663852886e38f);
	float size = divide(most, 448.0f), factor = divide(448.0f, most);
	if ((a.what & POWER_OF_TWO) != 0) {
		u32 up = (bits(size) + 0x7FFFFF) & ~0x7FFFFFu;
		size = number(up);
		factor = number((254u << 23) - up);
	}
	u32 q[4];
#pragma unroll
	for (int i = 0; i < 4; i++) {
		u32 low = to_e4m3x2(multiply(f[4 * i], factor), multiply(f[4 * i + 1], factor));
		u32 high = to_e4m3x2(multiply(f[4 * i + 2], factor), multiply(f[4 * i + 3], factor));
		q[i] = low | high << 16;
	}
	scale = -1;
	if ((a.what & EXPONENTS) != 0) {
		u32 e = bits(size) >> 23;
		word = 0;
#pragma unroll
		for (int i = 0; i < 4; i++) word |= __shfl_sync(0xFFFFFFFFu, e, 8 * i) << 8 * i;
		if (lane == 0) scale = (int)pc;
	} else {
		word = bits(size);
		if ((lane & 7) == 0 && here) scale = (int)(pc * 4 + lane / 8);
	}
	return make_uint4(q[0], q[1], q[2], q[3]);
}
#endif

// ---- Sending.

// number_of counts the selections of this lane's expert before it among this rank's.
__device__ __forceinline__ u32 number_of(const Dispatch &a, u32 t, u32 e, u32 lane) {
	u32 n = 0, k = a.shape.topk, before = t * k;
	for (u32 j = 0; j < k; j++) {
		u32 other = __shfl_sync(0xFFFFFFFFu, e, j);
		if (j < lane && other == e) n++;
	}
	// Eight selections at a time are looked for in 32 earlier ones at a time.
	for (u32 first = 0; first < k; first += 8) {
		u32 want[8], found[8];
#pragma unroll
		for (u32 j = 0; j < 8; j++) {
			want[j] = __shfl_sync(0xFFFFFFFFu, e, first + j);
			found[j] = 0;
		}
#pragma unroll 4
		for (u32 from = 0; from < before; from += 32) {
			u32 i = from + lane, other = 0;
			if (i < before) other = selection(a, i);
#pragma unroll
			for (u32 j = 0; j < 8; j++) found[j] += __popc(__ballot_sync(0xFFFFFFFFu, other == want[j]));
		}
#pragma unroll
		for (u32 j = 0; j < 8; j++) {
			if (first + j == lane) n += found[j];
		}
	}
	return n;
}

// send_record tells every rank what the token selects.
__device__ __forceinline__ void send_record(const Dispatch &a, const Batch &b, u32 t, u32 e, u32 lane) {
	u32 weight = 0x3F800000u;
	u64 i = (u64)t * a.shape.topk + lane;
	if (lane < a.shape.topk && a.weights != nullptr) weight = bits(a.weights[i]);
	u32 n = (a.what & BY_EXPERT) != 0 ? number_of(a, t, e, lane) : 0;
	if (lane >= a.shape.topk) return;
	a.home[i] = {e, weight};
	uint2 record = make_uint2(e | n << 16, clean(weight));
	u64 at = a.records + (((u64)b.turn * a.group.ranks + a.group.rank) * a.shape.capacity * a.shape.topk + i) * sizeof(Pair);
	for (u32 j = 0; j < a.group.ranks; j++) {
		u32 r = next_rank(a.group, j);
		if (!holds(b.mask, r)) store_relaxed_sys8(a.group.window[r] + at, record);
	}
}

template <bool VALUE> __device__ __forceinline__ void put16(void *p, uint4 v) {
	if (VALUE) {
		store_relaxed_sys16(p, v);
	} else {
		store16(p, v);
	}
}

// Fetched is what a lane has read of a piece that is to be sent.
struct Fetched {
#if WEFT_QUANTIZE
	uint4 raw[LOADS];
#else
	uint4 v;
	u32 word;
#endif
	u32 e;
};

// fetch reads a piece. Nothing here waits, nor depends on the state.
__device__ __forceinline__ void fetch(const Dispatch &a, u32 t, u32 pc, u32 lane, Fetched &f) {
	bool move = (a.what & MOVE) != 0;
	u32 at = pc * PIECE + lane * 16;
#if WEFT_QUANTIZE
	const char *p = a.x + ((u64)t * a.hidden + at) * NUMBER_BYTES;
#pragma unroll
	for (int i = 0; i < LOADS; i++) f.raw[i] = move && at < a.hidden ? load_once(p + 16 * i) : make_uint4(0, 0, 0, 0);
#else
	u32 w = pc * a.piece_words + lane;
	f.v = move && at < a.row_bytes ? load_once(a.x + (u64)t * a.row_bytes + at) : make_uint4(0, 0, 0, 0);
	f.word = move && lane < a.piece_words && w < a.scale_words ? a.scales[(u64)t * a.scale_words + w] : 0;
#endif
	f.e = lane < a.shape.topk ? selection(a, t * a.shape.topk + lane) : 0;
}

template <bool VALUE> __device__ __forceinline__ void send_piece(const Dispatch &a, const Batch &b, u32 t, u32 pc, u32 lane, const Fetched &f) {
	u32 at = pc * PIECE + lane * 16, word = 0;
	bool move = (a.what & MOVE) != 0, here = at < a.row_bytes && move;
	int scale = -1;
#if WEFT_QUANTIZE
	uint4 v = make_uint4(0, 0, 0, 0);
	if (move) v = quantize(a, f.raw, pc, lane, word, scale);
#else
	uint4 v = f.v;
	u32 first = pc * a.piece_words + lane;
	word = f.word;
	if (move && lane < a.piece_words && first < a.scale_words) scale = (int)first;
#endif
	u64 to = union_of(f.e != 0 ? 1ull << rank_of(a.shape, f.e - 1) : 0) & ~b.mask;
	if (VALUE) {
		v = clean(v);
		word = clean(word);
	}
	u32 row = a.group.rank * a.shape.capacity + t;
	bool direct = (a.what & DIRECT) != 0;
	u64 slot = direct ? a.direct + (u64)row * a.row_bytes : a.rows + b.place * a.turn_bytes + (u64)row * a.slot_bytes;
	u64 beside = direct ? a.direct_scales : slot + a.row_bytes;
	for (u32 i = 0; i < a.group.ranks; i++) {
		u32 r = next_rank(a.group, i);
		if (!holds(to, r)) continue;
		char *window = a.group.window[r];
		if (here) put16<VALUE>(window + slot + at, v);
		if (scale < 0) continue;
		u64 w = direct ? scale_at(a, row, scale) : scale;
		store_relaxed_sys4(window + beside + w * 4, word);
	}
#if !WEFT_QUANTIZE
	// Opaque rows may have more scales to a piece than a warp has lanes.
	for (u32 j = 32 + lane; move && j < a.piece_words; j += 32) {
		u32 w = pc * a.piece_words + j;
		if (w >= a.scale_words) break;
		word = a.scales[(u64)t * a.scale_words + w];
		for (u32 i = 0; i < a.group.ranks; i++) {
			u32 r = next_rank(a.group, i);
			if (holds(to, r)) store_relaxed_sys4(a.group.window[r] + beside + (direct ? scale_at(a, row, w) : w) * 4, word);
		}
	}
#endif
	if (pc == 0 && (a.what & ROUTE) != 0) send_record(a, b, t, f.e, lane);
}

// ---- The clerk.

constexpr u32 CLERK_EXPERTS = 2048; // experts that the clerk counts at a time

__device__ __forceinline__ u64 head_at(const Dispatch &a, u32 turn, u32 src) { return a.heads + ((u64)turn * a.group.ranks + src) * 16; }

__device__ __forceinline__ u64 count_at(const Dispatch &a, u32 turn, u32 src, u32 le) {
	return a.counts + (((u64)turn * a.group.ranks + src) * (a.shape.local + 1) + le) * 4;
}

__device__ __forceinline__ void clerk_send(const Dispatch &a, const Batch &b) {
	__shared__ u32 count[CLERK_EXPERTS];
	__shared__ u32 tokens[MAX_RANKS];
	// Every operation sends this much to every rank: it is what shows that this one has begun.
	for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		tokens[r] = 0;
		if (holds(b.mask, r)) continue;
		store_relaxed_sys16(a.group.window[r] + head_at(a, b.turn, a.group.rank), make_uint4(a.tokens, a.free, 0, 0));
	}
	if ((a.what & ROUTE) == 0) return;
	u32 n = a.tokens * a.shape.topk;
	for (u32 from = 0; from < a.shape.experts; from += CLERK_EXPERTS) {
		u32 end = min(CLERK_EXPERTS, a.shape.experts - from);
		for (u32 i = threadIdx.x; i < end; i += blockDim.x) count[i] = 0;
		__syncthreads();
		for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
			u32 e = selection(a, i) - 1;
			if (e - from < end) atomicAdd(&count[e - from], 1);
		}
		if (from == 0) {
			for (u32 t = threadIdx.x; t < a.tokens; t += blockDim.x) {
				u64 to = 0;
				for (u32 k = 0; k < a.shape.topk; k++) {
					u32 e = selection(a, t * a.shape.topk + k);
					if (e != 0) to |= 1ull << rank_of(a.shape, e - 1);
				}
				for (; to != 0; to &= to - 1) atomicAdd(&tokens[__ffsll((long long)to) - 1], 1);
			}
		}
		__syncthreads();
		for (u32 i = threadIdx.x; i < end; i += blockDim.x) {
			u32 r = rank_of(a.shape, from + i);
			if (!holds(b.mask, r)) store_relaxed_sys4(a.group.window[r] + count_at(a, b.turn, a.group.rank, from + i - r * a.shape.local), count[i]);
		}
		__syncthreads();
	}
	for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		if (!holds(b.mask, r)) store_relaxed_sys4(a.group.window[r] + count_at(a, b.turn, a.group.rank, a.shape.local), tokens[r]);
	}
}

// clerk_receive adds up what every source sends here, and describes the zones.
__device__ __forceinline__ void clerk_receive(const Dispatch &a, const Batch &b, Wait &w) {
	constexpr u32 SOURCES = 8; // in flight
	u32 ranks = a.group.ranks, local = a.shape.local;
	u32 before = b.turn == 0 ? 2 : b.turn - 1;
	int *came = a.described + 2 * local, *sent = came + ranks, *sum = sent + ranks;
	bool route = (a.what & ROUTE) != 0, by_expert = (a.what & BY_EXPERT) != 0;
	if (route && threadIdx.x == 0) *sum = 0;
	__syncthreads();
	for (u32 src = threadIdx.x; src < ranks; src += blockDim.x) {
		store16(b.own + head_at(a, before, src), empty16());
		uint4 head = make_uint4(0, 0, 0, 0);
		if (!holds(b.mask, src)) head = await16(w, src, b.own + head_at(a, b.turn, src));
		a.credits[src] = head.y;
		if (route) sent[src] = (int)head.x;
	}
	// The last column is the tokens of a source.
	for (u32 le = threadIdx.x; le <= local; le += blockDim.x) {
		u32 n = 0;
		for (u32 from = 0; from < ranks; from += SOURCES) {
			u32 c[SOURCES], need = 0;
#pragma unroll
			for (u32 j = 0; j < SOURCES; j++) {
				c[j] = 0;
				if (from + j >= ranks) continue;
				if (route && !holds(b.mask, from + j)) need |= 1u << j;
			}
			while (need != 0) {
				u32 missing = 0;
#pragma unroll
				for (u32 j = 0; j < SOURCES; j++) {
					if ((need >> j & 1) != 0) c[j] = load_relaxed_sys4(b.own + count_at(a, b.turn, from + j, le));
				}
#pragma unroll
				for (u32 j = 0; j < SOURCES; j++) {
					if ((need >> j & 1) == 0) continue;
					if (c[j] != EMPTY) need &= ~(1u << j);
					else missing = from + j;
				}
				if (need != 0 && !w.more(missing, 1, 0)) return;
			}
#pragma unroll
			for (u32 j = 0; j < SOURCES; j++) {
				u32 src = from + j;
				if (src >= ranks) continue;
				*(u32 *)(b.own + count_at(a, before, src, le)) = EMPTY;
				if (!route) continue;
				if (le == local) {
					came[src] = (int)c[j];
				} else if (a.ranges != nullptr) {
					a.ranges[(u64)le * ranks + src] = (long long)((u64)n << 32 | c[j]);
				}
				n += c[j];
			}
		}
		if (!route) continue;
		if ((le == local) != by_expert) atomicAdd(sum, (int)n);
		if (le == local) continue;
		a.described[le] = (int)n;
		a.described[local + le] = by_expert ? (int)(le * a.zone) : 0;
	}
}

// ---- Receiving.

// row_of is where the selection in this lane's record stands here, + 1; 0 if it is another rank's.
__device__ __forceinline__ u32 row_of(const Dispatch &a, const Batch &b, Wait &w, u32 src, u32 t, uint2 record, u32 lane) {
	u32 e = record.x & 0xFFFF, le = e - 1 - a.group.rank * a.shape.local;
	if (lane >= a.shape.topk || e == 0 || le >= a.shape.local) return 0;
	if ((a.what & BY_EXPERT) == 0) return le + 1;
	u32 row = le * a.zone + (record.x >> 16);
	for (u32 s = 0; s < src; s++) {
		if (!holds(b.mask, s)) row += await4(w, s, b.own + count_at(a, b.turn, s, le));
	}
	return row + 1;
}

// store_rows puts a piece of a row where it belongs.
__device__ __forceinline__ void store_rows(const Dispatch &a, u32 slot, u32 landing, u32 pc, u32 lane, uint4 v) {
	u32 at = pc * PIECE + lane * 16;
	bool here = at < a.row_bytes;
	if ((a.what & BY_EXPERT) == 0) {
		if (here) store16(a.out + (u64)slot * a.row_bytes + at, v);
		return;
	}
	for (u32 todo = __ballot_sync(0xFFFFFFFFu, landing != 0); todo != 0; todo &= todo - 1) {
		u32 row = __shfl_sync(0xFFFFFFFFu, landing, __ffs((int)todo) - 1) - 1;
		if (here) store16(a.out + (u64)row * a.row_bytes + at, v);
	}
}

// store_scale puts a word of scales, of which every lane may have one, where it belongs.
__device__ __forceinline__ void store_scale(const Dispatch &a, u32 slot, u32 landing, bool here, u32 w, u32 word) {
	if ((a.what & BY_EXPERT) == 0) {
		if (here) a.out_scales[scale_at(a, slot, w)] = word;
		return;
	}
	for (u32 todo = __ballot_sync(0xFFFFFFFFu, landing != 0); todo != 0; todo &= todo - 1) {
		u32 row = __shfl_sync(0xFFFFFFFFu, landing, __ffs((int)todo) - 1) - 1;
		if (here) a.out_scales[scale_at(a, row, w)] = word;
	}
}

// refill makes a slot of the turn before ready for the next but one: its record, and its row if it was filled.
__device__ __forceinline__ void refill(const Dispatch &a, const Batch &b, u32 slot, u32 pc, u32 lane, bool filled) {
	u32 before = b.turn == 0 ? 2 : b.turn - 1;
	if (pc == 0 && lane < a.shape.topk) {
		u64 at = a.records + (((u64)before * a.group.ranks * a.shape.capacity + slot) * a.shape.topk + lane) * sizeof(Pair);
		*(uint2 *)(b.own + at) = make_uint2(EMPTY, EMPTY);
	}
	if (!filled) return;
	char *p = b.own + a.rows + before * a.turn_bytes + (u64)slot * a.slot_bytes;
	u32 at = pc * PIECE + lane * 16;
	if (at < a.row_bytes) store16(p + at, empty16());
	u32 w = pc * a.piece_words + lane;
	if (lane < a.piece_words && w < a.scale_words) ((u32 *)(p + a.row_bytes))[w] = EMPTY;
}

// Piece is a piece of a slot that is being received.
struct Piece {
	u32 src, t, pc, slot;
	u32 at, lanes; // of the row, for this lane; lanes that have some
	const char *row;
	uint4 v;	 // this lane's 16 bytes
	bool absent; // nothing comes: the rank is left out, or has fewer tokens
};

// await_piece polls for a slot's record and, where rows are their own flags, the end of the piece, together. It gives the lane's landing.
template <bool VALUE> __device__ __forceinline__ u32 await_piece(const Dispatch &a, const Batch &b, Wait &w, Piece &p, u32 lane) {
	u32 n = a.group.ranks * a.shape.capacity, first = a.group.rank * a.shape.local;
	const char *rp = b.own + a.records + (((u64)b.turn * n + p.slot) * a.shape.topk + lane) * sizeof(Pair);
	uint2 record = make_uint2(0, 0);
	bool move = (a.what & MOVE) != 0;
	// One lane polls for the piece, so that the others do not slow what is on its way; where little is, all do.
	bool polls = VALUE && move && (lane == p.lanes - 1 || (a.shape.capacity <= 8 && lane < p.lanes));
	while (!p.absent) {
		u32 count = EMPTY;
		if (lane < a.shape.topk) record = load_relaxed_sys8(rp);
		if (lane == 0) count = load_relaxed_sys4(b.own + head_at(a, b.turn, p.src));
		if (polls) p.v = load_relaxed_sys16(p.row + p.at);
		// The number of tokens lies elsewhere, and may be here first.
		count = __shfl_sync(0xFFFFFFFFu, count, 0);
		if (count != EMPTY && p.t >= count) p.absent = true;
		bool known = __all_sync(0xFFFFFFFFu, full(record));
		bool mine = (record.x & 0xFFFF) - 1 - first < a.shape.local;
		bool any = __any_sync(0xFFFFFFFFu, mine), there = __all_sync(0xFFFFFFFFu, !polls || full(p.v));
		if (p.absent || (known && (there || !any))) break;
		if (!__all_sync(0xFFFFFFFFu, w.more(p.src, 1, 0))) {
			w.over = true;
			return 0;
		}
	}
	u32 landing = 0;
	if (p.absent) record = make_uint2(0, 0);
	landing = row_of(a, b, w, p.src, p.t, record, lane);
	if (p.pc == 0 && lane < a.shape.topk) a.landings[(u64)p.slot * a.shape.topk + lane] = {landing, landing != 0 ? record.y : 0};
	return landing;
}

// await_rows returns when a block of src has sent its share: seen has the sources of which this warp knows.
__device__ __forceinline__ void await_rows(const Dispatch &a, const Batch &b, Wait &w, u32 src, u32 lane, u64 &seen) {
	if (holds(seen, src)) return;
	if (lane == 0) await_epoch(w, src, b.own + a.arrived + ((u64)src * b.blocks + blockIdx.x) * 4, (u32)b.epoch + 1);
	w.over = __any_sync(0xFFFFFFFFu, w.over);
	seen |= 1ull << src;
}

// receive_piece leaves early, with w.over on every lane, if a wait gave up.
template <bool VALUE>
__device__ __forceinline__ void receive_piece(const Dispatch &a, const Batch &b, Wait &w, u32 src, u32 t, u32 pc, u32 lane, u64 &seen) {
	Piece p;
	p.src = src, p.t = t, p.pc = pc, p.slot = src * a.shape.capacity + t;
	p.at = pc * PIECE + lane * 16, p.lanes = min(32u, (a.row_bytes - pc * PIECE) / 16);
	p.row = b.own + a.rows + b.place * a.turn_bytes + (u64)p.slot * a.slot_bytes;
	p.v = make_uint4(EMPTY, EMPTY, EMPTY, EMPTY);
	p.absent = holds(b.mask, src);
	bool move = (a.what & MOVE) != 0;
	u32 n = a.group.ranks * a.shape.capacity, before = b.turn == 0 ? 2 : b.turn - 1;
	bool filled = VALUE && a.filled[before * n + p.slot] != 0;

	u32 landing = 0;
	if ((pc == 0 || move) && (a.what & ROUTE) != 0) {
		landing = await_piece<VALUE>(a, b, w, p, lane);
		if (__any_sync(0xFFFFFFFFu, w.over)) {
			w.over = true;
			return;
		}
	} else if (pc == 0 || move) {
		if (lane < a.shape.topk) landing = a.landings[(u64)p.slot * a.shape.topk + lane].what;
	}
	refill(a, b, p.slot, pc, lane, filled);
	bool any = __any_sync(0xFFFFFFFFu, landing != 0);
	if (VALUE && pc == 0 && lane == 0) a.filled[b.turn * n + p.slot] = any && move && !p.absent;
	if (!any || !move || ((a.what & DIRECT) != 0 && !p.absent)) return;

	if (p.absent) {
		p.v = make_uint4(0, 0, 0, 0);
	} else if (VALUE) {
		if (lane == p.lanes - 1) p.v = full(p.v) ? p.v : await16(w, src, p.row + p.at);
		__syncwarp();
		if (lane < p.lanes && !full(p.v)) p.v = await16(w, src, p.row + p.at);
	} else {
		await_rows(a, b, w, src, lane, seen);
		if (lane < p.lanes) p.v = load_relaxed_sys16(p.row + p.at);
	}
	store_rows(a, p.slot, landing, pc, lane, p.v);
	for (u32 from = 0; from < a.piece_words; from += 32) {
		u32 j = pc * a.piece_words + from + lane, word = 0;
		bool here = from + lane < a.piece_words && j < a.scale_words;
		const char *q = p.row + a.row_bytes + (u64)j * 4;
		if (here && !p.absent) word = VALUE ? await4(w, src, q) : load_relaxed_sys4(q);
		store_scale(a, p.slot, landing, here, j, word);
	}
	w.over = __any_sync(0xFFFFFFFFu, w.over);
}

// await_credit makes sure that no rank still reads the block where rows are about to go. A rank says so in the head of the operation before, if it knew
// by then, and in any case when it begins this one.
__device__ __forceinline__ void await_credit(const Dispatch &a, const Batch &b, Wait &w, bool clerk) {
	u32 epoch = (u32)b.epoch + 1;
	for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		if (holds(b.mask, r)) continue;
		if (clerk) {
			store_release_sys4(a.group.window[r] + a.ready + a.group.rank * 4, epoch);
		} else if ((a.credits[r] >> a.block & 1) == 0) {
			await_epoch(w, r, b.own + a.ready + r * 4, epoch);
		}
	}
	__syncthreads();
}

template <bool VALUE> __device__ __forceinline__ void dispatch(const Dispatch &a) {
	wait_for_previous();
	u32 lane = threadIdx.x & 31, ranks = a.group.ranks;
	bool move = (a.what & MOVE) != 0, direct = (a.what & DIRECT) != 0;
	u32 pieces = move ? a.pieces : 1;
	Batch b;
	b.blocks = gridDim.x - 1;
	b.own = a.group.window[a.group.rank];
	bool clerk = blockIdx.x == b.blocks, sends = (a.what & SEND) != 0 && !clerk;

	// What is to be sent is on its way before the state is known.
	Walk k = VALUE ? Walk::spread(a.tokens * pieces, b.blocks) : Walk::share(a.shape.capacity * pieces, b.blocks);
	k.end = min(k.end, a.tokens * pieces);
	Fetched next;
	if (sends && k.at < k.end) fetch(a, k.at / pieces, k.at % pieces, lane, next);
	u32 stopped = a.state->stopped;
	b.mask = a.state->mask;
	b.epoch = a.state->epoch;
	b.turn = a.state->turn;
	if (stopped != 0) return;
	b.place = VALUE ? b.turn : (u32)(b.epoch & 1);
	Wait w(a.group, a.state, move ? OP_DISPATCH : OP_PREPARE, b.epoch + 1);

	if ((a.what & SEND) != 0) {
		if (!VALUE && direct && move) await_credit(a, b, w, clerk);
		if (clerk) clerk_send(a, b);
		for (u32 i = k.at; sends && i < k.end; i += k.step) {
			Fetched f = next;
			if (i + k.step < k.end) fetch(a, (i + k.step) / pieces, (i + k.step) % pieces, lane, next);
			send_piece<VALUE>(a, b, i / pieces, i % pieces, lane, f);
		}
		if (!VALUE && move && !clerk) {
			__syncthreads();
			for (u32 r = threadIdx.x; r < ranks; r += blockDim.x) {
				if (holds(b.mask, r)) continue;
				fence_sys();
				store_relaxed_sys4(a.group.window[r] + a.arrived + ((u64)a.group.rank * b.blocks + blockIdx.x) * 4, (u32)b.epoch + 1);
			}
		}
	}
	let_next_start();
	if ((a.what & RECEIVE) != 0) {
		u64 seen = 0;
		if (clerk) {
			clerk_receive(a, b, w);
		} else if (VALUE) {
			// Also the pieces that do not come this time were filled the time before.
			k = Walk::spread(a.shape.capacity * a.pieces * ranks, b.blocks);
			for (u32 i = k.at; i < k.end && !w.over; i += k.step) {
				u32 pc = i % a.pieces, s = i / a.pieces % ranks, t = i / a.pieces / ranks;
				receive_piece<true>(a, b, w, next_rank(a.group, s), t, pc, lane, seen);
			}
		} else {
			// Where rows are in place already, only their first pieces have something to do. Rows of this rank are here first.
			bool first = direct && b.mask == 0;
			k = Walk::share(a.shape.capacity * pieces, b.blocks);
			for (u32 i = k.at; i < k.end && !w.over; i += k.step) {
				u32 t = i / pieces, pc = i % pieces;
				if (first && pc != 0) continue;
				for (u32 s = 0; s < ranks && !w.over; s++) receive_piece<false>(a, b, w, next_rank(a.group, (s + ranks - 1) % ranks), t, pc, lane, seen);
			}
			for (u32 r = threadIdx.x; move && r < ranks; r += blockDim.x) {
				if (!holds(b.mask, r)) await_epoch(w, r, b.own + a.arrived + ((u64)r * b.blocks + blockIdx.x) * 4, (u32)b.epoch + 1);
			}
		}
	}
	leave(a.state, b.epoch, b.turn, (a.what & RECEIVE) != 0);
}

} // namespace weft

extern "C" __global__ void __launch_bounds__(512, 2) weft_dispatch_value(const __grid_constant__ weft::Dispatch a) { weft::dispatch<true>(a); }
extern "C" __global__ void __launch_bounds__(512, 2) weft_dispatch_flag(const __grid_constant__ weft::Dispatch a) { weft::dispatch<false>(a); }
