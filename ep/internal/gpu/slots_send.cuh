// Phase "send" of a dispatch through slots: a warp reads a piece of a token's row, and stores it in the
// token's slot at every rank that has an expert for it.
//
// fetch reads the next piece while send_piece stores this one. In a fused launch a rank's own rows go
// through no slot, where that is possible: skips_slots.
//
// Ordering: rows are their own flags (VALUE), word by word, and need no fence. Else (FLAG) they are plain
// stores, and a word behind a system fence says that all rows of the block are there: slots_dispatch.cu.
#pragma once
#include "notify.cuh"

namespace weft {

template <bool VALUE> __device__ __forceinline__ void put16(void *p, uint4 v) {
	if (VALUE) {
		store_relaxed_sys16(p, v);
	} else {
		store16(p, v);
	}
}

// Item is a piece of a token's row: token t, piece pc.
struct Item {
	u32 t, pc;

	// of is the i-th piece of all rows, in the order of tokens.
	__device__ __forceinline__ static Item of(Divisor pieces, u32 i) {
		u32 pc, t = pieces.quotient(i, pc);
		return {t, pc};
	}
};

// Fetched is what a lane has read of a piece that is to be sent. Nothing looks at the values before
// send_piece, so that all loads are in flight at once.
template <u32 UNITS> struct Fetched {
	Item item;
#if WEFT_QUANTIZE
	uint4 raw[UNITS][LOADS];
#else
	uint4 v[UNITS];
	u32 word;
#endif
	Choice choice;
	u32 weight;
};

// fetch reads a piece. It waits for nothing, and does not depend on the state.
template <u32 UNITS>
__device__ __forceinline__ void fetch(const Dispatch &a, const Batch &b, Item item, u32 lane, Fetched<UNITS> &f) {
	bool move = (b.flags & MOVE) != 0;
	u32 t = item.t, pc = item.pc;
	f.item = item;
	f.choice = {EMPTY, EMPTY};
	f.weight = 0x3F800000u;
	if (lane < a.shape.topk) {
		u64 at = (u64)t * a.shape.topk + lane;
		f.choice = choose(a, b, at);
		if (pc == 0 && (b.flags & ROUTE) != 0 && a.weights != nullptr) f.weight = bits(a.weights[at]);
	}
#pragma unroll
	for (u32 u = 0; u < UNITS; u++) {
		u32 at = (pc * UNITS + u) * UNIT + lane * 16;
		bool here = move && in_row(a, at);
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
	bool scaled = SCALED && move && lane < a.piece_words && w < a.scale_words;
	f.word = scaled ? a.scales[(u64)t * a.scale_words + w] : 0;
#endif
}

// skips_slots says that this rank's own rows go through no slot. Rank-major rows are stored in their final
// rows when they are sent. Rows by expert are read again from the caller's tensor when their final rows are
// known: not if they would be quantised twice, nor in a launch apart, before which the caller may have
// changed them.
template <bool VALUE> __device__ __forceinline__ bool skips_slots(const Batch &b) {
	return VALUE && (!BY_EXPERT || (WEFT_QUANTIZE == 0 && (b.flags & (SEND | RECEIVE)) == (SEND | RECEIVE)));
}

// is_direct says whether senders store rows in the receive buffer rather than in slots.
template <bool VALUE> __device__ __forceinline__ bool is_direct(const Batch &b) {
	return !VALUE && !BY_EXPERT && (b.flags & IN_PLACE) != 0;
}

// send_piece stores a piece and its scales and, if `records`, the token's record. The offsets of slot, scales and
// row are the same in every window. All lanes of a warp call it.
template <bool VALUE, u32 UNITS> __device__ __forceinline__ void
send_piece(const Dispatch &a, const Batch &b, const Windows &windows, u32 lane, const Fetched<UNITS> &f, bool records) {
	bool move = (b.flags & MOVE) != 0, direct = is_direct<VALUE>(b);
	u32 t = f.item.t, pc = f.item.pc, e = expert_of(a, b, f.choice);
	RankSet to = union_of(RankSet::one(rank_of(a.shape, e - 1), e != 0)) & ~b.mask;
	// The record is small, and is awaited first.
	if (pc == 0 && records)
		send_record(a, b, windows, t, e, f.weight, BY_EXPERT ? index_of(a, b, t, e, lane) : 0, lane);
	u32 row = a.group.rank * a.shape.capacity + t;
	u64 slot = direct ? a.direct + (u64)row * a.row_bytes : a.rows + b.buffer * a.turn_bytes + (u64)row * a.slot_bytes;
	u64 beside = direct ? a.direct_scales : slot + a.row_bytes;
	if (move) {
#if WEFT_QUANTIZE
		uint4 v[UNITS];
		u32 word[UNITS];
		int scale[UNITS];
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) {
			v[u] = quantize(b.flags, f.raw[u], pc * UNITS + u, lane, in_row(a, (pc * UNITS + u) * UNIT + lane * 16),
							word[u], scale[u]);
		}
#else
		uint4 v[UNITS];
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) v[u] = f.v[u];
		u32 w = pc * a.piece_words + lane, word = VALUE ? clean(f.word) : f.word;
		bool scales = SCALED && lane < a.piece_words && w < a.scale_words;
		u64 word_at = beside + (direct && scales ? scale_at(a, row, w) : w) * 4;
#endif
#pragma unroll
		for (u32 u = 0; VALUE && u < UNITS; u++) v[u] = clean(v[u]);
		u64 first = slot + pc * (UNITS * UNIT) + lane * 16;
		u32 end = pc * (UNITS * UNIT) + lane * 16;
		if (!BY_EXPERT && skips_slots<VALUE>(b) && holds(to, a.group.rank)) {
#pragma unroll
			for (u32 u = 0; u < UNITS; u++) {
				if (in_row(a, end + u * UNIT)) store16(a.out + (u64)row * a.row_bytes + end + u * UNIT, v[u]);
#if WEFT_QUANTIZE
				if (scale[u] >= 0) a.out_scales[scale_at(a, row, scale[u])] = VALUE ? clean(word[u]) : word[u];
#endif
			}
#if !WEFT_QUANTIZE
			if (scales) a.out_scales[scale_at(a, row, w)] = word;
#endif
		}
		if (skips_slots<VALUE>(b)) to = to & ~RankSet::one(a.group.rank);
		u32 from; // the round over the ranks begins with another rank for each token, so that all links are busy
		a.ranks.quotient(a.group.rank + t, from);
#pragma unroll 1
		for (Round ranks(to, from, a.group.ranks); ranks.more();) {
			char *window = windows.of(ranks.next());
#pragma unroll
			for (u32 u = 0; u < UNITS; u++) {
				if (in_row(a, end + u * UNIT)) put16<VALUE>(window + first + u * UNIT, v[u]);
#if WEFT_QUANTIZE
				if (scale[u] < 0) continue;
				u64 w = direct ? scale_at(a, row, scale[u]) : scale[u];
				store_relaxed_sys4(window + beside + w * 4, word[u]);
#endif
			}
#if !WEFT_QUANTIZE
			if (scales) store_relaxed_sys4(window + word_at, word);
#endif
		}
#if !WEFT_QUANTIZE
		// Opaque rows may have more scales to a piece than a warp has lanes. Their bits may be any,
		// so they are never their own flags.
		for (u32 j = 32 + lane; !VALUE && j < a.piece_words; j += 32) {
			u32 w = pc * a.piece_words + j;
			if (w >= a.scale_words) break;
			u32 word = a.scales[(u64)t * a.scale_words + w];
			for (u32 i = 0; i < a.group.ranks; i++) {
				u32 r = next_rank(a.group, i);
				if (holds(to, r))
					store_relaxed_sys4(a.group.window[r] + beside + (direct ? scale_at(a, row, w) : w) * 4, word);
			}
		}
#endif
	}
}

} // namespace weft
