// Phase "receive" of a dispatch through slots: a warp waits for a piece of a slot, and copies it to the rows
// of its experts, or rank-major to the row of its source and token.
//
//	1. poll for the token's record, for what its final row follows from, and (VALUE) for the end of the piece
//	2. write recv_rows, the routing of the slot
//	3. read the piece: the words that are not there yet again (VALUE), or once, after the block's flag (FLAG)
//	4. store it in each row
//
// Every slot has three turns. The piece of the turn before, which nobody writes until the operation after
// the next, is filled with words of ones again meanwhile: empty_former.
//
// Ordering: a word of VALUE rows, records or counts shows by itself that it has come. FLAG rows are read
// after an acquire of the flag.
#pragma once
#include "slots_final_row.cuh"
#include "slots_send.cuh"

namespace weft {

// SlotPiece is a piece of a slot that is being received.
template <u32 UNITS> struct SlotPiece {
	u32 src, t, pc, slot;
	const char *row;
	u32 tail;		// offset in the row of the piece's last 16 bytes
	uint4 v[UNITS]; // this lane's
	u32 word;		// of scales, this lane's first
	bool absent;	// nothing comes: the rank is left out, or has fewer tokens

	__device__ __forceinline__ u32 at(u32 u, u32 lane) const { return (pc * UNITS + u) * UNIT + lane * 16; }

	// tail_lane is the lane that has these.
	__device__ __forceinline__ u32 tail_lane() const { return WHOLE ? 31 : tail % UNIT / 16; }

	// scale_of is the index of the lane's first word of scales, has_scale whether there is one, and scale_in where
	// it stands in the slot.
	__device__ __forceinline__ u32 scale_of(const Dispatch &a, u32 lane) const { return pc * a.piece_words + lane; }
	__device__ __forceinline__ bool has_scale(const Dispatch &a, u32 lane) const {
		return SCALED && lane < a.piece_words && scale_of(a, lane) < a.scale_words;
	}
	__device__ __forceinline__ const char *scale_in(const Dispatch &a, u32 lane) const {
		return row + a.row_bytes + (u64)scale_of(a, lane) * 4;
	}
};

// store_row stores the piece in one row.
template <u32 UNITS>
__device__ __forceinline__ void store_row(const Dispatch &a, const SlotPiece<UNITS> &p, char *row, u32 lane) {
#pragma unroll
	for (u32 u = 0; u < UNITS; u++) {
		if (in_row(a, p.at(u, lane))) store16(row + p.at(u, lane), p.v[u]);
	}
}

// store_rows stores the piece in the rows of all its experts here, one of each lane that has one; rank-major in
// the row of its slot.
template <u32 UNITS>
__device__ __forceinline__ void store_rows(const Dispatch &a, const SlotPiece<UNITS> &p, u32 recv_row, u32 lane) {
	if constexpr (!BY_EXPERT) {
		store_row(a, p, a.out + (u64)p.slot * a.row_bytes, lane);
	} else {
		for (u32 todo = __ballot_sync(0xFFFFFFFFu, recv_row != 0); todo != 0; todo &= todo - 1) {
			u32 row = __shfl_sync(0xFFFFFFFFu, recv_row, __ffs((int)todo) - 1) - 1;
			store_row(a, p, a.out + (u64)row * a.row_bytes, lane);
		}
	}
}

// store_scale stores the lane's word of scales, if `here`, in the same rows.
__device__ __forceinline__ void store_scale(const Dispatch &a, u32 slot, u32 recv_row, bool here, u32 w, u32 word) {
	if constexpr (!BY_EXPERT) {
		if (here) a.out_scales[scale_at(a, slot, w)] = word;
	} else {
		u64 first = scale_at(a, recv_row - 1, 0); // each lane's, so that no row takes more than another's
		u32 *to = a.out_scales + (u64)w * a.scale_word;
		for (u32 todo = __ballot_sync(0xFFFFFFFFu, recv_row != 0); todo != 0; todo &= todo - 1) {
			u64 row = __shfl_sync(0xFFFFFFFFu, first, __ffs((int)todo) - 1);
			if (here) to[row] = word;
		}
	}
}

// empty_former makes a slot of the turn before ready for the operation after the next: its record, and its row
// if it was filled.
template <u32 UNITS> __device__ __forceinline__ void empty_former(const Dispatch &a, const Batch &b,
															const SlotPiece<UNITS> &p, u32 lane, bool filled) {
	u32 before = b.turn == 0 ? 2 : b.turn - 1;
	if (p.pc == 0 && lane < a.shape.topk) {
		u64 at = a.records +
				 (((u64)before * a.group.ranks * a.shape.capacity + p.slot) * a.shape.topk + lane) * sizeof(Pair);
		*(uint2 *)(b.own + at) = make_uint2(EMPTY, EMPTY);
	}
	if (!filled) return;
	char *row = b.own + a.rows + before * a.turn_bytes + (u64)p.slot * a.slot_bytes;
#pragma unroll
	for (u32 u = 0; u < UNITS; u++) {
		if (in_row(a, p.at(u, lane))) store16(row + p.at(u, lane), empty16());
	}
	if (p.has_scale(a, lane)) ((u32 *)(row + a.row_bytes))[p.scale_of(a, lane)] = EMPTY;
}

// eager says that every lane polls its own part of a piece, because little comes. Else one lane polls.
template <bool VALUE, u32 UNITS> __device__ __forceinline__ bool eager(const Dispatch &a, const Batch &b) {
	return VALUE && UNITS == 1 && (b.few || a.shape.capacity <= EAGER) && (b.flags & MOVE) != 0 && known_at_once(a, b);
}

// await_piece polls for a slot's record, for what its final row follows from and (VALUE) for the end of the
// piece. It writes recv_rows for the first piece, and gives the lane's final row + 1, or 0.
template <bool VALUE, u32 UNITS> __device__ __forceinline__ u32 await_piece(const Dispatch &a, const Batch &b, Wait &w,
																			SlotPiece<UNITS> &p, u32 lane, bool own) {
	u32 first = a.group.rank * a.shape.local, before = BY_EXPERT && b.few ? p.src * a.selections.by : 0;
	const char *rp = b.own + a.records +
					 (((u64)b.turn * a.group.ranks * a.shape.capacity + p.slot) * a.shape.topk + lane) * sizeof(Pair);
	uint2 record = make_uint2(0, 0);
	// One lane polls for the piece: more polls would slow the rows that are on their way. Where little comes, all
	// do, for their words of scales too, and need not read again.
	bool all = eager<VALUE, UNITS>(a, b), polls = VALUE && !own && (b.flags & MOVE) != 0 &&
												  (all ? in_row(a, p.at(0, lane)) : lane == p.tail_lane());
	bool together = known_at_once(a, b);
	const char *pp = all ? p.row + p.at(0, lane) : p.row + p.tail, *sp = p.scale_in(a, lane);
	bool scales = all && !own && p.has_scale(a, lane);
	u32 earlier = 0;
	while (!p.absent) {
		uint4 end = make_uint4(0, 0, 0, 0);
		if (lane < a.shape.topk) record = load_relaxed_sys8(rp);
		if (polls && together) end = load_relaxed_sys16(pp);
		if (scales) p.word = load_relaxed_sys4(sp);
		u32 count = tokens_of(a, b, p.src);
		if (lane < before) earlier = RecvRow::earlier(a, b, p.src, lane);
		if (all && !own) p.v[0] = end;
		bool mine = (record.x & 0xFFFF) - 1 - first < a.shape.local;
		bool known = __all_sync(0xFFFFFFFFu, full(record) && earlier != EMPTY), any = __any_sync(0xFFFFFFFFu, mine),
			 there = __all_sync(0xFFFFFFFFu, full(end));
		if (known && (there || !any)) break;
		// The source has no token t if its opening, which may arrive first, has a number of tokens up to t.
		count = __shfl_sync(0xFFFFFFFFu, count, 0);
		p.absent = count != EMPTY && p.t >= count;
		u32 peer = before != 0 ? RecvRow::late_source(a, p.src, earlier) : p.src;
		if (!p.absent && !__all_sync(0xFFFFFFFFu, w.more(peer, 1, 0))) {
			w.over = true;
			return 0;
		}
	}
	if (p.absent) record = make_uint2(0, 0);
	RecvRow recv_row(a, record);
	if (before != 0) recv_row.add_earlier(earlier, lane);
	if (has_table(a, b) && __any_sync(0xFFFFFFFFu, recv_row.row != 0)) add_from_table(a, w, p.src, recv_row);
	if (!together) add_from_counts(a, b, w, p.src, recv_row, polls, pp);
	recv_row.drop_excess(a);
	if (p.pc == 0 && lane < a.shape.topk)
		a.recv_rows[(u64)p.slot * a.shape.topk + lane] = {recv_row.row, recv_row.row != 0 ? record.y : 0};
	return recv_row.row;
}

// await_units waits for this lane's 16 bytes of every unit. All loads are in flight together.
template <u32 UNITS>
__device__ __forceinline__ void await_units(const Dispatch &a, Wait &w, SlotPiece<UNITS> &p, u32 lane) {
	if (WHOLE) { // every lane has a part of every unit
		bool all = false;
		while (!all) {
#pragma unroll
			for (u32 u = 0; u < UNITS; u++) p.v[u] = load_relaxed_sys16(p.row + p.at(u, lane));
			all = true;
#pragma unroll
			for (u32 u = 0; u < UNITS; u++) all = all && full(p.v[u]);
			if (!all && !w.more(p.src, 1, 0)) return;
		}
		return;
	}
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

// await_share waits (FLAG) until src's block of this number has sent its share. seen has the sources of which
// the warp knows it.
__device__ __forceinline__ void await_share(const Dispatch &a, const Batch &b, Wait &w, u32 src, u32 lane,
										   RankSet &seen) {
	if (holds(seen, src)) return;
	if (lane == 0) await_epoch(w, src, b.own + a.arrived + ((u64)src * b.blocks + blockIdx.x) * 4, (u32)b.epoch + 1);
	w.over = __any_sync(0xFFFFFFFFu, w.over);
	__syncwarp(); // what lane 0 has acquired, all have
	seen = seen | RankSet::one(src);
}

// receive_piece receives a piece. filled says that the slot of the turn before was filled; only_empties that
// nothing comes in this one. If a wait gives up it returns early, with w.over on every lane.
template <bool VALUE, u32 UNITS>
__device__ __forceinline__ void receive_piece(const Dispatch &a, const Batch &b, Wait &w, u32 src, Item item, u32 lane,
											  bool filled, bool only_empties, RankSet &seen) {
	bool move = (b.flags & MOVE) != 0, route = (b.flags & ROUTE) != 0;
	SlotPiece<UNITS> p;
	p.src = src, p.t = item.t, p.pc = item.pc, p.slot = src * a.shape.capacity + item.t;
	p.row = b.own + a.rows + b.buffer * a.turn_bytes + (u64)p.slot * a.slot_bytes;
	u32 end = (p.pc + 1) * UNITS * UNIT;
	p.tail = (WHOLE ? end : min(a.row_bytes, end)) - 16;
	p.absent = holds(b.mask, src);
	bool own = skips_slots<VALUE>(b) && src == a.group.rank;
	if (only_empties || (p.pc != 0 && (!move || (own && !BY_EXPERT)))) {
		empty_former<UNITS>(a, b, p, lane, filled);
		return;
	}
#if !WEFT_QUANTIZE
#pragma unroll
	for (u32 u = 0; own && u < UNITS; u++) {
		bool here = move && p.t < a.tokens && in_row(a, p.at(u, lane));
		p.v[u] = here ? clean(load_once(a.x + (u64)p.t * a.row_bytes + p.at(u, lane))) : make_uint4(0, 0, 0, 0);
	}
	if (own && move && p.t < a.tokens && p.has_scale(a, lane))
		p.word = clean(a.scales[(u64)p.t * a.scale_words + p.scale_of(a, lane)]);
#endif
	u32 recv_row = 0;
	if (!route && lane < a.shape.topk) recv_row = a.recv_rows[(u64)p.slot * a.shape.topk + lane].target;
	empty_former<UNITS>(a, b, p, lane, filled); // while rows are on their way
	if (route) {
		recv_row = await_piece<VALUE, UNITS>(a, b, w, p, lane, own);
		if (__any_sync(0xFFFFFFFFu, w.over)) {
			w.over = true;
			return;
		}
	}
	bool any = __any_sync(0xFFFFFFFFu, recv_row != 0);
	if (VALUE && p.pc == 0 && lane == 0)
		a.filled[b.turn * a.group.ranks * a.shape.capacity + p.slot] =
			any && move && !p.absent && !own ? (u32)b.epoch + 2 : 0;
	if (!any || !move || ((is_direct<VALUE>(b) || (own && !BY_EXPERT)) && !p.absent)) return;

	// Scales are read while the row is awaited, unless await_piece has polled for them.
	bool all = eager<VALUE, UNITS>(a, b), here = p.has_scale(a, lane), sent = here && !p.absent;
	if (VALUE && sent && !own && !(route && all)) p.word = load_relaxed_sys4(p.scale_in(a, lane));
	if (p.absent) {
		p.word = 0;
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) p.v[u] = make_uint4(0, 0, 0, 0);
	} else if (VALUE && !own) {
		if (!route && !all && lane == p.tail_lane()) await4(w, src, p.row + p.tail + 12);
		__syncwarp();
		if (!route || !all) await_units<UNITS>(a, w, p, lane);
	} else if (!VALUE) {
		await_share(a, b, w, src, lane, seen);
		if (sent) p.word = load_relaxed_sys4(p.scale_in(a, lane));
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) {
			if (in_row(a, p.at(u, lane))) p.v[u] = load_relaxed_sys16(p.row + p.at(u, lane));
		}
	}
	store_rows<UNITS>(a, p, recv_row, lane);
	if (SCALED && a.piece_words != 0) {
		if (VALUE && sent && !own && p.word == EMPTY) p.word = await4(w, src, p.scale_in(a, lane));
		store_scale(a, p.slot, recv_row, here, p.scale_of(a, lane), p.word);
		for (u32 from = 32; !VALUE && from < a.piece_words; from += 32) { // opaque rows may have more
			u32 j = p.scale_of(a, lane) + from;
			here = from + lane < a.piece_words && j < a.scale_words;
			p.word = here && !p.absent ? load_relaxed_sys4(p.row + a.row_bytes + (u64)j * 4) : 0;
			store_scale(a, p.slot, recv_row, here, j, p.word);
		}
	}
	w.over = __any_sync(0xFFFFFFFFu, w.over);
}

// Reach bounds the slots that a warp looks at. Up to its own rank's number of tokens a receiver polls
// slots at once. For higher slots it first waits for every source's number of tokens, and stops at the
// largest of this operation and the one before.
struct Reach {
	Extent extent;
	bool known;

	__device__ __forceinline__ Reach() : extent{0, 0}, known(false) {}

	enum Found { MAY_COME, ONLY_FORMER, END };

	// find says of the slots of token t: rows may come (MAY_COME), some were filled in the turn before
	// (ONLY_FORMER), or neither holds from t on (END). It does not wait if this rank itself has a token t.
	__device__ __forceinline__ Found find(const Dispatch &a, const Batch &b, Wait &w, u32 t) {
		if (b.few || t < a.tokens) return MAY_COME;
		if (!known && !extent.learn(a, b, w)) return END;
		known = true;
		return t < extent.now ? MAY_COME : t < extent.ever ? ONLY_FORMER : END;
	}
};

// Incoming is a piece of a slot that a warp receives next, and whether the slot was filled in the turn
// before.
struct Incoming {
	Item item;
	u32 src;
	bool filled;

	__device__ __forceinline__ void read(const Dispatch &a, const Batch &b, u32 i) {
		u32 pc, s, before = b.turn == 0 ? 2 : b.turn - 1, t = a.ranks.quotient(a.pieces.quotient(i, pc), s);
		item = {t, pc};
		src = next_rank(a.group, s);
		// An older number: the operation before did not look at the slot, which is empty.
		filled = a.filled[(before * a.group.ranks + src) * a.shape.capacity + t] == (u32)b.epoch + 1;
	}
};

} // namespace weft
