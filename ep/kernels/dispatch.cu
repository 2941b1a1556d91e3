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
	u64 counts, records, rows, arrived, ready; // offsets in a window
	u64 turn_bytes;							   // of one turn of rows
	u64 direct, direct_scales;				   // offsets in a window, of the direct form
	u32 slot_bytes, row_bytes, pieces;
	u32 scale_words, piece_words; // of a row, and at most of a piece
	u32 zone;					  // rows of an expert, or of all; they share a block of column-major scales
	u32 what, tokens, hidden;
	u32 block; // direct: where the rows go, at every rank
	u32 free;  // the blocks that no one reads here any more, once this operation has begun
	u32 zero;
	const void *ids; // [tokens][top-k]
	const float *weights;
	const char *x;
	const u32 *scales;
	Pair *home;		// [capacity][top-k]: as the records
	Pair *landings; // [ranks][capacity][top-k]
	int *described; // [local] counts, [local] offsets, [ranks] tokens that came, [ranks] tokens, sum
	long long *ranges;
	u32 *filled;  // 3 turns x [ranks][capacity]
	u32 *credits; // [ranks]: the blocks that the rank had free in the last operation
	char *out;
	u32 *out_scales;
};

static_assert(sizeof(Dispatch) == WEFT_DISPATCH_BYTES, "the host has another idea of the arguments");

__device__ __forceinline__ u64 scale_at(const Dispatch &a, u32 row, u32 word) {
	if ((a.what & COLUMNS) == 0) return (u64)row * a.scale_words + word;
	return (u64)(row / a.zone) * a.zone * a.scale_words + (u64)word * a.zone + row % a.zone;
}

// count_at is where src's i-th word stands.
__device__ __forceinline__ u64 count_at(const Dispatch &a, u32 turn, u32 src, u32 i) {
	return a.counts + (((u64)turn * a.group.ranks + src) * (COUNTS + a.shape.local) + i) * 4;
}

// selection is the expert that the i-th selection of this rank's tokens names, + 1; 0 for none, and for what is no expert.
__device__ __forceinline__ u32 selection(const Dispatch &a, u32 i) {
	if ((a.what & ROUTE) == 0) return a.home[i].what & 0xFFFF;
	u64 e = (a.what & WIDE) != 0 ? ((const u64 *)a.ids)[i] : (u64)(long long)((const int *)a.ids)[i];
	return e < a.shape.experts ? (u32)e + 1 : 0;
}

// ---- Quantisation of a unit: 16 numbers a lane, 8 lanes a scale.
#if WEFT_QUANTIZE

constexpr u32 NUMBER_BYTES = WEFT_QUANTIZE == 3 ? 4 : 2;
constexpr u32 LOADS = NUMBER_BYTES; // of 16 bytes, for 16 numbers

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

// quantize gives 16 e4m3 numbers, and on some lanes a word of scales: scale says which of the row's, or none. here says whether the lane has numbers.
__device__ __forceinline__ uint4 quantize(const Dispatch &a, const uint4 *raw, u32 unit, u32 lane, bool here, u32 &word, int &scale) {
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
		if (lane == 0) scale = (int)unit;
	} else {
		word = bits(size);
		if ((lane & 7) == 0 && here) scale = (int)(unit * 4 + lane / 8);
	}
	return make_uint4(q[0], q[1], q[2], q[3]);
}
#endif

// ---- Sending.

constexpr u32 CLERK_WORDS = 4096; // that the clerk holds at a time

// clerk_words is the clerk's memory.
__device__ __forceinline__ u32 *clerk_words() {
	__shared__ u32 words[CLERK_WORDS];
	return words;
}

// number_of counts the selections of this lane's expert before it among this rank's.
__device__ __forceinline__ u32 number_of(const Dispatch &a, u32 t, u32 e, u32 lane) {
	constexpr u32 LOADS = 4, WANTED = 8; // earlier selections of a lane that are looked at, and selections that are looked for, at a time
	u32 n = 0, k = a.shape.topk, before = t * k;
	for (u32 j = 0; j < k; j++) {
		u32 other = __shfl_sync(0xFFFFFFFFu, e, j);
		if (j < lane && other == e) n++;
	}
	for (u32 first = 0; first < k && before > 0; first += WANTED) {
		u32 want[WANTED], found[WANTED];
#pragma unroll
		for (u32 j = 0; j < WANTED; j++) {
			want[j] = __shfl_sync(0xFFFFFFFFu, e, first + j);
			found[j] = 0;
		}
		for (u32 from = 0; from < before; from += 32 * LOADS) {
			u32 other[LOADS];
#pragma unroll
			for (u32 q = 0; q < LOADS; q++) {
				u32 i = from + 32 * q + lane;
				other[q] = i < before ? selection(a, i) : 0;
			}
#pragma unroll
			for (u32 q = 0; q < LOADS; q++) {
#pragma unroll
				for (u32 j = 0; j < WANTED; j++) found[j] += __popc(__ballot_sync(0xFFFFFFFFu, other[q] == want[j]));
			}
		}
#pragma unroll
		for (u32 j = 0; j < WANTED; j++) {
			if (first + j == lane) n += found[j];
		}
	}
	return n;
}

// Numbers of many tokens come from a map in shared memory: for every expert the tokens that select it, a bit each.

// maps says whether there is room for the map, and enough tokens to be worth it.
__device__ __forceinline__ bool maps(const Dispatch &a) {
	return (a.what & BY_EXPERT) != 0 && a.tokens > 16 && a.shape.experts * ((a.tokens + 31) / 32) <= CLERK_WORDS;
}

// map_tokens fills the map; all threads of the block call it.
__device__ __forceinline__ void map_tokens(const Dispatch &a, u32 *words) {
	u32 n = a.tokens * a.shape.topk, width = (a.tokens + 31) / 32, size = a.shape.experts * width;
	for (u32 i = threadIdx.x; i < size; i += blockDim.x) words[i] = 0;
	__syncthreads();
#pragma unroll 4
	for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
		u32 e = selection(a, i), t = i / a.shape.topk;
		if (e != 0) atomicOr(&words[(e - 1) * width + t / 32], 1u << t % 32);
	}
	__syncthreads();
}

// mapped_number is number_of by the map.
__device__ __forceinline__ u32 mapped_number(const Dispatch &a, const u32 *words, u32 t, u32 e) {
	u32 width = (a.tokens + 31) / 32, n = 0;
	if (e == 0) return 0;
	const u32 *row = words + (e - 1) * width;
	for (u32 i = 0; i < t / 32; i++) n += __popc(row[i]);
	return n + __popc(row[t / 32] & ((1u << t % 32) - 1));
}

// send_record tells every rank what the token selects.
__device__ __forceinline__ void send_record(const Dispatch &a, const Batch &b, u32 t, u32 e, u32 weight, u32 n, u32 lane) {
	u64 i = (u64)t * a.shape.topk + lane;
	if (lane >= a.shape.topk) return;
	a.home[i] = {e | n << 16, weight};
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
template <u32 UNITS> struct Fetched {
#if WEFT_QUANTIZE
	uint4 raw[UNITS][LOADS];
#else
	uint4 v[UNITS];
	u32 word;
#endif
	u32 e, weight;
};

// fetch reads a piece. Nothing here waits, nor depends on the state.
template <u32 UNITS> __device__ __forceinline__ void fetch(const Dispatch &a, u32 t, u32 pc, u32 lane, Fetched<UNITS> &f) {
	bool move = (a.what & MOVE) != 0;
#pragma unroll
	for (u32 u = 0; u < UNITS; u++) {
		u32 at = (pc * UNITS + u) * UNIT + lane * 16;
		bool here = move && at < a.row_bytes;
#if WEFT_QUANTIZE
		const char *p = a.x + ((u64)t * a.hidden + at) * NUMBER_BYTES;
#pragma unroll
		for (int i = 0; i < LOADS; i++) f.raw[u][i] = here ? load_once(p + 16 * i) : make_uint4(0, 0, 0, 0);
#else
		f.v[u] = here ? load_once(a.x + (u64)t * a.row_bytes + at) : make_uint4(0, 0, 0, 0);
#endif
	}
#if !WEFT_QUANTIZE
	u32 w = pc * a.piece_words + lane;
	f.word = move && lane < a.piece_words && w < a.scale_words ? a.scales[(u64)t * a.scale_words + w] : 0;
#endif
	f.e = lane < a.shape.topk ? selection(a, t * a.shape.topk + lane) : 0;
	f.weight = 0x3F800000u;
	if (pc == 0 && (a.what & ROUTE) != 0 && lane < a.shape.topk && a.weights != nullptr) f.weight = bits(a.weights[(u64)t * a.shape.topk + lane]);
}

template <bool VALUE, u32 UNITS>
__device__ __forceinline__ void send_piece(const Dispatch &a, const Batch &b, u32 t, u32 pc, u32 lane, const Fetched<UNITS> &f, bool later) {
	bool move = (a.what & MOVE) != 0, direct = (a.what & DIRECT) != 0;
	u64 to = union_of(f.e != 0 ? 1ull << rank_of(a.shape, f.e - 1) : 0) & ~b.mask;
	// The record is small, and is awaited first.
	if (pc == 0 && (a.what & ROUTE) != 0 && !later) {
		send_record(a, b, t, f.e, f.weight, (a.what & BY_EXPERT) != 0 ? number_of(a, t, f.e, lane) : 0, lane);
	}
	u32 row = a.group.rank * a.shape.capacity + t;
	u64 slot = direct ? a.direct + (u64)row * a.row_bytes : a.rows + b.place * a.turn_bytes + (u64)row * a.slot_bytes;
	u64 beside = direct ? a.direct_scales : slot + a.row_bytes;
	if (move) {
#if WEFT_QUANTIZE
		uint4 v[UNITS];
		u32 word[UNITS];
		int scale[UNITS];
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) {
			v[u] = quantize(a, f.raw[u], pc * UNITS + u, lane, (pc * UNITS + u) * UNIT + lane * 16 < a.row_bytes, word[u], scale[u]);
		}
#endif
		for (u32 i = 0; i < a.group.ranks; i++) {
			u32 r = next_rank(a.group, i);
			if (!holds(to, r)) continue;
			char *window = a.group.window[r];
#pragma unroll
			for (u32 u = 0; u < UNITS; u++) {
				u32 at = (pc * UNITS + u) * UNIT + lane * 16;
#if WEFT_QUANTIZE
				if (at < a.row_bytes) put16<VALUE>(window + slot + at, VALUE ? clean(v[u]) : v[u]);
				if (scale[u] < 0) continue;
				u64 w = direct ? scale_at(a, row, scale[u]) : scale[u];
				store_relaxed_sys4(window + beside + w * 4, word[u]);
#else
				if (at < a.row_bytes) put16<VALUE>(window + slot + at, VALUE ? clean(f.v[u]) : f.v[u]);
#endif
			}
#if !WEFT_QUANTIZE
			u32 w = pc * a.piece_words + lane;
			if (lane < a.piece_words && w < a.scale_words) {
				store_relaxed_sys4(window + beside + (direct ? scale_at(a, row, w) : w) * 4, VALUE ? clean(f.word) : f.word);
			}
#endif
		}
#if !WEFT_QUANTIZE
		// Opaque rows may have more scales to a piece than a warp has lanes. Their bits may be any, so they are never their own flags.
		for (u32 j = 32 + lane; !VALUE && j < a.piece_words; j += 32) {
			u32 w = pc * a.piece_words + j;
			if (w >= a.scale_words) break;
			u32 word = a.scales[(u64)t * a.scale_words + w];
			for (u32 i = 0; i < a.group.ranks; i++) {
				u32 r = next_rank(a.group, i);
				if (holds(to, r)) store_relaxed_sys4(a.group.window[r] + beside + (direct ? scale_at(a, row, w) : w) * 4, word);
			}
		}
#endif
	}
}

// ---- The clerk.

// greet sends what every operation sends to every rank: it is what shows that this one has begun.
__device__ __forceinline__ void greet(const Dispatch &a, const Batch &b) {
	for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		if (holds(b.mask, r)) continue;
		char *p = a.group.window[r] + count_at(a, b.turn, a.group.rank, 0);
		store_relaxed_sys4(p + 4 * TOKENS, a.tokens);
		store_relaxed_sys4(p + 4 * FREE, a.free);
	}
}

// clerk_clear empties the clerk's memory.
__device__ __forceinline__ void clerk_clear(const Dispatch &a, u32 *words) {
	for (u32 i = threadIdx.x; i < min(CLERK_WORDS - MAX_RANKS, a.shape.experts); i += blockDim.x) words[i] = 0;
	for (u32 i = threadIdx.x; i < MAX_RANKS; i += blockDim.x) words[CLERK_WORDS - MAX_RANKS + i] = 0;
	__syncthreads();
}

// clerk_send counts: first is the thread's first selection, which was read before the state was known.
__device__ __forceinline__ void clerk_send(const Dispatch &a, const Batch &b, u32 *words, u32 first) {
	u32 ranks = a.group.ranks, local = a.shape.local, topk = a.shape.topk, n = a.tokens * topk;
	u32 *came = words + CLERK_WORDS - MAX_RANKS;
	for (u32 from = 0; from < a.shape.experts; from += CLERK_WORDS - MAX_RANKS) {
		u32 end = min(CLERK_WORDS - MAX_RANKS, a.shape.experts - from);
		if (from != 0) clerk_clear(a, words);
		for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
			u32 e = (i == threadIdx.x ? first : selection(a, i)) - 1;
			if (e - from < end) atomicAdd(&words[e - from], 1);
		}
		for (u32 t = threadIdx.x; t < a.tokens && from == 0; t += blockDim.x) {
			u64 to = 0;
#pragma unroll 8
			for (u32 k = 0; k < topk; k++) {
				u32 e = selection(a, t * topk + k);
				to |= e != 0 ? 1ull << rank_of(a.shape, e - 1) : 0;
			}
			for (; to != 0; to &= to - 1) atomicAdd(&came[__ffsll((long long)to) - 1], 1);
		}
		__syncthreads();
		for (u32 r = threadIdx.x; r < ranks && from == 0; r += blockDim.x) {
			if (!holds(b.mask, r)) store_relaxed_sys4(a.group.window[r] + count_at(a, b.turn, a.group.rank, CAME), came[r]);
		}
		for (u32 i = threadIdx.x; i < end; i += blockDim.x) {
			u32 r = rank_of(a.shape, from + i);
			if (!holds(b.mask, r)) store_relaxed_sys4(a.group.window[r] + count_at(a, b.turn, a.group.rank, COUNTS + from + i - r * local), words[i]);
		}
		if (end < a.shape.experts) __syncthreads();
	}
	__syncthreads();
}

// clerk_receive adds up what every source sends here, and describes the zones.
__device__ __forceinline__ void clerk_receive(const Dispatch &a, const Batch &b, Wait &w, u32 *words) {
	constexpr u32 FLIGHT = 4; // words that a thread awaits at once
	__shared__ u32 sum;
	bool route = (a.what & ROUTE) != 0, by_expert = (a.what & BY_EXPERT) != 0;
	u32 ranks = a.group.ranks, local = a.shape.local, all = COUNTS + local, before = b.turn == 0 ? 2 : b.turn - 1;
	int *came = a.described + 2 * local, *sent = came + ranks;
	if (threadIdx.x == 0) sum = 0;
	u32 chunk = CLERK_WORDS / ranks;
	for (u32 from = 0; from < all; from += chunk) {
		u32 columns = min(chunk, all - from), n = columns * ranks;
		for (u32 base = threadIdx.x; base < n; base += FLIGHT * blockDim.x) {
			u32 c[FLIGHT], at[FLIGHT], need = 0;
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				u32 i = base + j * blockDim.x, src = i / columns, column = from + i % columns;
				c[j] = 0;
				at[j] = src * all + column;
				if (i < n && !holds(b.mask, src) && (route || column < CAME)) need |= 1u << j;
			}
			const char *p = b.own + count_at(a, b.turn, 0, 0);
			while (need != 0) {
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if ((need >> j & 1) != 0) c[j] = load_relaxed_sys4(p + (u64)at[j] * 4);
				}
				u32 missing = 0;
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if ((need >> j & 1) == 0) continue;
					if (c[j] != EMPTY) need &= ~(1u << j);
					else missing = at[j];
				}
				if (need != 0 && !w.more(missing / all, 1, 0)) break;
			}
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				u32 i = base + j * blockDim.x;
				if (i >= n) continue;
				words[i] = c[j];
				*(u32 *)(b.own + count_at(a, before, 0, at[j])) = EMPTY;
			}
		}
		__syncthreads();
		for (u32 i = threadIdx.x; i < columns; i += blockDim.x) {
			u32 column = from + i, le = column - COUNTS, total = 0;
			for (u32 src = 0; src < ranks; src++) {
				u32 c = words[src * columns + i];
				if (column == FREE) a.credits[src] = c;
				if (!route) continue;
				if (column == TOKENS) sent[src] = (int)c;
				if (column == CAME) came[src] = (int)c;
				if (column >= COUNTS && a.ranges != nullptr) a.ranges[(u64)le * ranks + src] = (long long)((u64)total << 32 | c);
				total += c;
			}
			if (route && (by_expert ? column >= COUNTS : column == CAME)) atomicAdd(&sum, total);
			if (!route || column < COUNTS) continue;
			a.described[le] = (int)total;
			a.described[local + le] = by_expert ? (int)(le * a.zone) : 0;
		}
		__syncthreads();
	}
	if (route && threadIdx.x == 0) sent[ranks] = (int)sum;
}

// ---- Receiving.

// row_of is where the selection in this lane's record stands here, + 1; 0 if it is another rank's.
__device__ __forceinline__ u32 row_of(const Dispatch &a, const Batch &b, Wait &w, u32 src, uint2 record, u32 lane) {
	u32 e = record.x & 0xFFFF, le = e - 1 - a.group.rank * a.shape.local;
	if (lane >= a.shape.topk || e == 0 || le >= a.shape.local) return 0;
	if ((a.what & BY_EXPERT) == 0) return le + 1;
	u32 row = le * a.zone + (record.x >> 16);
	constexpr u32 FLIGHT = 4;
	for (u32 from = 0; from < src; from += FLIGHT) {
		u32 c[FLIGHT];
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			bool counts = from + j < src && !holds(b.mask, from + j);
			c[j] = counts ? load_relaxed_sys4(b.own + count_at(a, b.turn, from + j, COUNTS + le)) : 0;
		}
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) row += c[j] == EMPTY ? await4(w, from + j, b.own + count_at(a, b.turn, from + j, COUNTS + le)) : c[j];
	}
	return row < (le + 1) * a.zone ? row + 1 : 0;
}

// Piece is a piece of a slot that is being received.
template <u32 UNITS> struct Piece {
	u32 src, t, pc, slot;
	const char *row;
	u32 tail;	 // the last 16 bytes of the piece, in the row
	uint4 v[UNITS]; // this lane's
	bool absent; // nothing comes: the rank is left out, or has fewer tokens

	__device__ __forceinline__ u32 at(u32 u, u32 lane) const { return (pc * UNITS + u) * UNIT + lane * 16; }
};

// store_row puts a piece of a row where it belongs.
template <u32 UNITS> __device__ __forceinline__ void store_row(const Dispatch &a, const Piece<UNITS> &p, char *row, u32 lane) {
#pragma unroll
	for (u32 u = 0; u < UNITS; u++) {
		if (p.at(u, lane) < a.row_bytes) store16(row + p.at(u, lane), p.v[u]);
	}
}

template <u32 UNITS> __device__ __forceinline__ void store_rows(const Dispatch &a, const Piece<UNITS> &p, u32 landing, u32 lane) {
	if ((a.what & BY_EXPERT) == 0) {
		store_row(a, p, a.out + (u64)p.slot * a.row_bytes, lane);
		return;
	}
	for (u32 todo = __ballot_sync(0xFFFFFFFFu, landing != 0); todo != 0; todo &= todo - 1) {
		u32 row = __shfl_sync(0xFFFFFFFFu, landing, __ffs((int)todo) - 1) - 1;
		store_row(a, p, a.out + (u64)row * a.row_bytes, lane);
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
template <u32 UNITS> __device__ __forceinline__ void refill(const Dispatch &a, const Batch &b, const Piece<UNITS> &p, u32 lane, bool filled) {
	u32 before = b.turn == 0 ? 2 : b.turn - 1;
	if (p.pc == 0 && lane < a.shape.topk) {
		u64 at = a.records + (((u64)before * a.group.ranks * a.shape.capacity + p.slot) * a.shape.topk + lane) * sizeof(Pair);
		*(uint2 *)(b.own + at) = make_uint2(EMPTY, EMPTY);
	}
	if (!filled) return;
	char *row = b.own + a.rows + before * a.turn_bytes + (u64)p.slot * a.slot_bytes;
#pragma unroll
	for (u32 u = 0; u < UNITS; u++) {
		if (p.at(u, lane) < a.row_bytes) store16(row + p.at(u, lane), empty16());
	}
	u32 w = p.pc * a.piece_words + lane;
	if (lane < a.piece_words && w < a.scale_words) ((u32 *)(row + a.row_bytes))[w] = EMPTY;
}

// eager says that so little comes that every lane may poll.
template <u32 UNITS> __device__ __forceinline__ bool eager(const Dispatch &a) { return UNITS == 1 && a.shape.capacity <= 8; }

// await_piece polls for a slot's record and, where rows are their own flags, the end of the piece, together. It gives the lane's landing.
template <bool VALUE, u32 UNITS> __device__ __forceinline__ u32 await_piece(const Dispatch &a, const Batch &b, Wait &w, Piece<UNITS> &p, u32 lane) {
	u32 n = a.group.ranks * a.shape.capacity, first = a.group.rank * a.shape.local;
	const char *rp = b.own + a.records + (((u64)b.turn * n + p.slot) * a.shape.topk + lane) * sizeof(Pair);
	uint2 record = make_uint2(0, 0);
	// One lane polls for the piece, so that the others do not slow what is on its way. Where little is, all do, and need not look again.
	bool polls = VALUE && (a.what & MOVE) != 0 && (eager<UNITS>(a) ? p.at(0, lane) < a.row_bytes : lane == p.tail % UNIT / 16);
	while (!p.absent) {
		u32 count = EMPTY, end = 0;
		if (lane < a.shape.topk) record = load_relaxed_sys8(rp);
		if (lane == 0) count = load_relaxed_sys4(b.own + count_at(a, b.turn, p.src, TOKENS));
		if (polls && eager<UNITS>(a)) {
			p.v[0] = load_relaxed_sys16(p.row + p.at(0, lane));
			end = full(p.v[0]) ? 0 : EMPTY;
		} else if (polls) {
			end = load_relaxed_sys4(p.row + p.tail + 12);
		}
		// The number of tokens lies elsewhere, and may be here first.
		count = __shfl_sync(0xFFFFFFFFu, count, 0);
		if (count != EMPTY && p.t >= count) p.absent = true;
		bool mine = (record.x & 0xFFFF) - 1 - first < a.shape.local;
		bool known = __all_sync(0xFFFFFFFFu, full(record)), any = __any_sync(0xFFFFFFFFu, mine), there = __all_sync(0xFFFFFFFFu, end != EMPTY);
		if (p.absent || (known && (there || !any))) break;
		if (!__all_sync(0xFFFFFFFFu, w.more(p.src, 1, 0))) {
			w.over = true;
			return 0;
		}
	}
	if (p.absent) record = make_uint2(0, 0);
	u32 landing = row_of(a, b, w, p.src, record, lane);
	if (p.pc == 0 && lane < a.shape.topk) a.landings[(u64)p.slot * a.shape.topk + lane] = {landing, landing != 0 ? record.y : 0};
	return landing;
}

// await_units gives this lane's 16 bytes of every unit, all in flight together.
template <u32 UNITS> __device__ __forceinline__ void await_units(const Dispatch &a, Wait &w, Piece<UNITS> &p, u32 lane) {
	u32 need = 0;
#pragma unroll
	for (u32 u = 0; u < UNITS; u++) need |= p.at(u, lane) < a.row_bytes ? 1u << u : 0;
	while (need != 0) {
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) {
			if ((need >> u & 1) != 0) p.v[u] = load_relaxed_sys16(p.row + p.at(u, lane));
		}
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) {
			if ((need >> u & 1) != 0 && full(p.v[u])) need &= ~(1u << u);
		}
		if (need != 0 && !w.more(p.src, 1, 0)) return;
	}
}

// await_rows returns when a block of src has sent its share: seen has the sources of which this warp knows.
__device__ __forceinline__ void await_rows(const Dispatch &a, const Batch &b, Wait &w, u32 src, u32 lane, u64 &seen) {
	if (holds(seen, src)) return;
	if (lane == 0) await_epoch(w, src, b.own + a.arrived + ((u64)src * b.blocks + blockIdx.x) * 4, (u32)b.epoch + 1);
	w.over = __any_sync(0xFFFFFFFFu, w.over);
	__syncwarp(); // what lane 0 has acquired, all have
	seen |= 1ull << src;
}

// receive_piece leaves early, with w.over on every lane, if a wait gave up.
template <bool VALUE, u32 UNITS>
__device__ __forceinline__ void receive_piece(const Dispatch &a, const Batch &b, Wait &w, u32 src, u32 t, u32 pc, u32 lane, u64 &seen) {
	Piece<UNITS> p;
	p.src = src, p.t = t, p.pc = pc, p.slot = src * a.shape.capacity + t;
	p.row = b.own + a.rows + b.place * a.turn_bytes + (u64)p.slot * a.slot_bytes;
	p.tail = min(a.row_bytes, (pc + 1) * UNITS * UNIT) - 16;
	p.absent = holds(b.mask, src);
	bool move = (a.what & MOVE) != 0;
	u32 n = a.group.ranks * a.shape.capacity, before = b.turn == 0 ? 2 : b.turn - 1;
	bool filled = VALUE && a.filled[before * n + p.slot] != 0;

	u32 landing = 0;
	if ((pc == 0 || move) && (a.what & ROUTE) != 0) {
		landing = await_piece<VALUE, UNITS>(a, b, w, p, lane);
		if (__any_sync(0xFFFFFFFFu, w.over)) {
			w.over = true;
			return;
		}
	} else if (pc == 0 || move) {
		if (lane < a.shape.topk) landing = a.landings[(u64)p.slot * a.shape.topk + lane].what;
	}
	refill<UNITS>(a, b, p, lane, filled);
	bool any = __any_sync(0xFFFFFFFFu, landing != 0);
	if (VALUE && pc == 0 && lane == 0) a.filled[b.turn * n + p.slot] = any && move && !p.absent;
	if (!any || !move || ((a.what & DIRECT) != 0 && !p.absent)) return;

	if (p.absent) {
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) p.v[u] = make_uint4(0, 0, 0, 0);
	} else if (VALUE) {
		bool route = (a.what & ROUTE) != 0;
		if (!route && !eager<UNITS>(a) && lane == p.tail % UNIT / 16) await4(w, src, p.row + p.tail + 12);
		__syncwarp();
		if (!route || !eager<UNITS>(a)) await_units<UNITS>(a, w, p, lane);
	} else {
		await_rows(a, b, w, src, lane, seen);
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) {
			if (p.at(u, lane) < a.row_bytes) p.v[u] = load_relaxed_sys16(p.row + p.at(u, lane));
		}
	}
	store_rows<UNITS>(a, p, landing, lane);
	for (u32 from = 0; from < a.piece_words; from += 32) {
		u32 j = pc * a.piece_words + from + lane, word = 0;
		bool here = from + lane < a.piece_words && j < a.scale_words;
		const char *q = p.row + a.row_bytes + (u64)j * 4;
		if (here && !p.absent) word = VALUE ? await4(w, src, q) : load_relaxed_sys4(q);
		store_scale(a, p.slot, landing, here, j, word);
	}
	w.over = __any_sync(0xFFFFFFFFu, w.over);
}

// await_credit makes sure that no rank still reads the block where rows are about to go. A rank says so in the words of the operation before, if it knew by
// then, and in any case when it begins this one. credit is what the rank of this thread's number said. False: it gave up, on every thread of the block.
__device__ __forceinline__ bool await_credit(const Dispatch &a, const Batch &b, Wait &w, bool clerk, u32 credit) {
	u32 epoch = (u32)b.epoch + 1;
	for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		if (holds(b.mask, r)) continue;
		if (clerk) store_release_sys4(a.group.window[r] + a.ready + a.group.rank * 4, epoch);
		if (clerk || (credit >> a.block & 1) != 0) continue;
		await_epoch(w, r, b.own + a.ready + r * 4, epoch);
	}
	return __syncthreads_or(w.over) == 0;
}

template <bool VALUE, u32 UNITS> __device__ __forceinline__ void dispatch(const Dispatch &a) {
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
	Fetched<UNITS> next;
	u32 credit = 0;
	if (sends && k.at < k.end) fetch<UNITS>(a, k.at / pieces, k.at % pieces, lane, next);
	u32 first = 0;
	if (clerk && (a.what & (ROUTE | SEND)) == (ROUTE | SEND)) {
		if (threadIdx.x < a.tokens * a.shape.topk) first = selection(a, threadIdx.x);
		clerk_clear(a, clerk_words());
	}
	if (!VALUE && direct && move && threadIdx.x < ranks) credit = a.credits[threadIdx.x];
	Count count = *count_of(a.state, blockIdx.x);
	u32 stopped = a.state->stopped;
	b.mask = a.state->mask;
	b.epoch = count.epoch;
	b.turn = count.turn;
	u32 op = move ? OP_DISPATCH : OP_PREPARE;
	if (stopped != 0) {
		refuse(a.group, op, b.epoch + 1);
		return;
	}
	b.place = VALUE ? b.turn : (u32)(b.epoch & 1);
	Wait w(a.group, a.state, op, b.epoch + 1);

	bool later = (a.what & ROUTE) != 0 && maps(a);
	if ((a.what & SEND) != 0) {
		if (clerk) greet(a, b);
		if (!VALUE && direct && move && !await_credit(a, b, w, clerk, credit)) return;
		if (clerk && (a.what & ROUTE) != 0) clerk_send(a, b, clerk_words(), first);
		for (u32 i = k.at; sends && i < k.end; i += k.step) {
			Fetched<UNITS> f = next;
			if (i + k.step < k.end) fetch<UNITS>(a, (i + k.step) / pieces, (i + k.step) % pieces, lane, next);
			send_piece<VALUE, UNITS>(a, b, i / pieces, i % pieces, lane, f, later);
		}
		if (sends && later) {
			map_tokens(a, clerk_words());
			for (u32 i = k.at; i < k.end; i += k.step) {
				u32 t = i / pieces, e = 0, weight = 0x3F800000u;
				if (i % pieces != 0) continue;
				if (lane < a.shape.topk) {
					e = selection(a, t * a.shape.topk + lane);
					if (a.weights != nullptr) weight = bits(a.weights[(u64)t * a.shape.topk + lane]);
				}
				send_record(a, b, t, e, weight, mapped_number(a, clerk_words(), t, e), lane);
			}
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
	if ((a.what & RECEIVE) != 0) {
		u64 seen = 0;
		if (clerk) {
			clerk_receive(a, b, w, clerk_words());
		} else if (VALUE) {
			// Also the pieces that do not come this time were filled the time before.
			k = Walk::spread(a.shape.capacity * a.pieces * ranks, b.blocks);
			for (u32 i = k.at; i < k.end && !w.over; i += k.step) {
				u32 pc = i % a.pieces, s = i / a.pieces % ranks, t = i / a.pieces / ranks;
				receive_piece<true, UNITS>(a, b, w, next_rank(a.group, s), t, pc, lane, seen);
			}
		} else {
			// Where rows are in place already, only their first pieces have something to do. Rows of this rank are here first.
			bool in_place = direct && b.mask == 0;
			k = Walk::share(a.shape.capacity * pieces, b.blocks);
			for (u32 i = k.at; i < k.end && !w.over; i += k.step) {
				u32 t = i / pieces, pc = i % pieces;
				if (in_place && pc != 0) continue;
				for (u32 s = 0; s < ranks && !w.over; s++) {
					receive_piece<false, UNITS>(a, b, w, next_rank(a.group, (s + ranks - 1) % ranks), t, pc, lane, seen);
				}
			}
			for (u32 r = threadIdx.x; move && r < ranks; r += blockDim.x) {
				if (!holds(b.mask, r)) await_epoch(w, r, b.own + a.arrived + ((u64)r * b.blocks + blockIdx.x) * 4, (u32)b.epoch + 1);
			}
		}
	}
	// Not before: the next kernel's blocks would take room while this one's may still wait, and two handles could starve each other.
	let_next_start();
	leave(a.state, b.epoch, b.turn, (a.what & RECEIVE) != 0);
}

} // namespace weft

#define WEFT_KERNEL(name, VALUE, UNITS, THREADS) \
	extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ weft::Dispatch a) { weft::dispatch<VALUE, UNITS>(a); }

// The last number is that of the units of a piece.
WEFT_KERNEL(weft_dispatch_value_1, true, 1, 256)
WEFT_KERNEL(weft_dispatch_flag_1, false, 1, 1024)
#if WEFT_QUANTIZE < 3
WEFT_KERNEL(weft_dispatch_value_2, true, 2, 256)
WEFT_KERNEL(weft_dispatch_flag_2, false, 2, 1024)
#endif
#if WEFT_QUANTIZE == 0
WEFT_KERNEL(weft_dispatch_value_4, true, 4, 256)
WEFT_KERNEL(weft_dispatch_flag_4, false, 4, 512)
#endif
