// Dispatch through slots: each row goes once to each rank that has an expert for it, into a slot. The
// receiving rank copies it to the rows of its experts. Routing travels beside the rows, so one exchange
// does the work of prepare and dispatch. A launch may also move routing alone, which is a prepare, or
// rows alone, by a routing that is known.
//
//	send      a warp takes a piece of a token's row and stores it at every rank that has an expert for
//	          it, in the slot of the token's index. The token's record says where all its selections go,
//	          and is stored at every rank: for few tokens by the notify block, for rows by expert by the
//	          metadata blocks, else by the warp of the first piece.
//	notify    the last block opens the operation and waits for the openings of all ranks; it counts and
//	          describes what comes, or where counts travel the block before it does: notify.cuh
//	receive   a warp takes a piece of a slot. A selection's row is the first of its expert's zone + the
//	          selections of the lower ranks + its index at its source.
//
// With IN_PLACE senders store rows where the caller reads them, and to receive is to wait.
#include "notify.cuh"

namespace weft {

// ---- Sending.

template <bool VALUE> __device__ __forceinline__ void put16(void *p, uint4 v) {
	if (VALUE) {
		store_relaxed_sys16(p, v);
	} else {
		store16(p, v);
	}
}

// Item is a piece of a token's row.
struct Item {
	u32 t, pc;

	// of is the i-th piece.
	__device__ __forceinline__ static Item of(Divisor pieces, u32 i) {
		u32 pc, t = pieces.quotient(i, pc);
		return {t, pc};
	}
};

// Fetched is what a lane has read of a piece that is to be sent. Nothing of it is looked at before
// the piece is sent, so that all is on its way at once.
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

// fetch reads a piece. Nothing here waits, nor depends on the state.
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

// stays says that this rank's own rows do not go through slots. Rank-major rows are stored in their
// final rows when they are sent. Rows by expert are read from the caller's tensor once their rows are
// known, unless they would be quantised twice or the caller may have changed them since.
template <bool VALUE> __device__ __forceinline__ bool stays(const Batch &b) {
	return VALUE && (!BY_EXPERT || (WEFT_QUANTIZE == 0 && (b.flags & (SEND | RECEIVE)) == (SEND | RECEIVE)));
}

// is_direct says whether senders store rows straight into the receive buffer.
template <bool VALUE> __device__ __forceinline__ bool is_direct(const Batch &b) {
	return !VALUE && !BY_EXPERT && (b.flags & IN_PLACE) != 0;
}

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
		if (!BY_EXPERT && stays<VALUE>(b) && holds(to, a.group.rank)) {
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
		if (stays<VALUE>(b)) to = to & ~RankSet::one(a.group.rank);
		u32 from; // not every token's round begins with the same rank, so that all ways out are used at any time
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

// ---- Receiving.

// SlotPiece is a piece of a slot that is being received.
template <u32 UNITS> struct SlotPiece {
	u32 src, t, pc, slot;
	const char *row;
	u32 tail;		// the last 16 bytes of the piece, in the row
	uint4 v[UNITS]; // this lane's
	u32 word;		// of scales, this lane's first
	bool absent;	// nothing comes: the rank is left out, or has fewer tokens

	__device__ __forceinline__ u32 at(u32 u, u32 lane) const { return (pc * UNITS + u) * UNIT + lane * 16; }

	// tail_lane is the lane that has them.
	__device__ __forceinline__ u32 tail_lane() const { return WHOLE ? 31 : tail % UNIT / 16; }

	// scale_of is which of the row's scales the lane's first is.
	__device__ __forceinline__ u32 scale_of(const Dispatch &a, u32 lane) const { return pc * a.piece_words + lane; }
	__device__ __forceinline__ bool has_scale(const Dispatch &a, u32 lane) const {
		return SCALED && lane < a.piece_words && scale_of(a, lane) < a.scale_words;
	}
	__device__ __forceinline__ const char *scale_in(const Dispatch &a, u32 lane) const {
		return row + a.row_bytes + (u64)scale_of(a, lane) * 4;
	}
};

// store_row puts a piece of a row where it belongs.
template <u32 UNITS>
__device__ __forceinline__ void store_row(const Dispatch &a, const SlotPiece<UNITS> &p, char *row, u32 lane) {
#pragma unroll
	for (u32 u = 0; u < UNITS; u++) {
		if (in_row(a, p.at(u, lane))) store16(row + p.at(u, lane), p.v[u]);
	}
}

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

// store_scale puts a word of scales, of which every lane may have one, where it belongs.
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

// refill makes a slot of the turn before ready for the next but one: its record, and its row if it
// was filled.
template <u32 UNITS> __device__ __forceinline__ void refill(const Dispatch &a, const Batch &b,
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

// tabled says that a table in shared memory has how often each source selects each local expert. The
// last warp of a block fills it while the others send and wait for rows.
__device__ __forceinline__ bool tabled(const Dispatch &a, const Batch &b) {
	return BY_EXPERT && !from_records(b) && (a.group.ranks - 1) * a.shape.local <= WORDS;
}

// at_once says that a slot's row is known as soon as its record is there. Else counts come later.
__device__ __forceinline__ bool at_once(const Dispatch &a, const Batch &b) { return from_records(b) || tabled(a, b); }

// eager says that so little comes that every lane polls its own part of a piece.
template <bool VALUE, u32 UNITS> __device__ __forceinline__ bool eager(const Dispatch &a, const Batch &b) {
	return VALUE && UNITS == 1 && (b.few || a.shape.capacity <= EAGER) && (b.flags & MOVE) != 0 && at_once(a, b);
}

// RecvRow is where a lane's selection stands here. By expert it is known only with the selections
// of the sources before: with their records where there are few, a record a lane, which all lanes
// compare with their own; or with their counts.
struct RecvRow {
	u32 row; // + 1, or for rank-major the local expert + 1; 0 if it is another rank's
	u32 e;	 // expert + 1

	__device__ __forceinline__ RecvRow(const Dispatch &a, uint2 record) {
		u32 le = (record.x & 0xFFFF) - 1 - a.group.rank * a.shape.local;
		e = record.x & 0xFFFF;
		row = le < a.shape.local ? (BY_EXPERT ? le * a.zone.by + (record.x >> 16) : le) + 1 : 0;
	}

	// missing is a source whose earlier selections are not known yet: a waiting lane waits for that
	// source, not for the slot's own.
	__device__ __forceinline__ static u32 missing(const Dispatch &a, u32 src, u32 earlier) {
		u32 lacks = __ballot_sync(0xFFFFFFFFu, earlier == EMPTY), rest;
		return lacks != 0 ? a.selections.quotient(__ffs((int)lacks) - 1, rest) : src;
	}

	// earlier is the expert + 1 of the i-th selection of the sources before src, or EMPTY if that
	// is not known yet.
	__device__ __forceinline__ static u32 earlier(const Dispatch &a, const Batch &b, u32 src, u32 i) {
		u32 rest, from = a.selections.quotient(i, rest);
		if (from >= src || holds(b.mask, from)) return 0;
		u32 tokens = tokens_of(a, b, from);
		u32 target =
			load_relaxed_sys4(b.own + a.records + ((u64)b.turn * a.group.ranks * a.selections.by + i) * sizeof(Pair));
		return tokens != EMPTY && rest >= tokens * a.shape.topk ? 0 : target == EMPTY ? EMPTY : target & 0xFFFF;
	}

	// pass adds those of 32 earlier selections, one of each lane, that are of this lane's expert.
	__device__ __forceinline__ void pass(u32 earlier, u32 lane) {
		for (u32 todo = __ballot_sync(0xFFFFFFFFu, row != 0); todo != 0; todo &= todo - 1) {
			u32 k = __ffs((int)todo) - 1;
			u32 same = __ballot_sync(0xFFFFFFFFu, earlier == __shfl_sync(0xFFFFFFFFu, e, k));
			if (lane == k) row += __popc(same);
		}
	}

	// keep leaves out what has no room.
	__device__ __forceinline__ void keep(const Dispatch &a) {
		if (BY_EXPERT && row > (e - a.group.rank * a.shape.local) * a.zone.by) row = 0;
	}
};

__device__ __forceinline__ u64 *table_ready() {
	__shared__ u64 ready; // a barrier
	return &ready;
}

// fill_table awaits the counts of every source but the last; all lanes of the warp call it. If it
// gives up, the table is never ready.
__device__ __forceinline__ void fill_table(const Dispatch &a, const Batch &b, Wait &w, u32 lane) {
	constexpr u32 FLIGHT = 8; // counts that a lane awaits at once
	u32 n = (a.group.ranks - 1) * a.shape.local, *words = shared_words();
	const u32 *counts = (const u32 *)(b.own + count_at(a, b.turn, 0, 0));
	for (u32 base = lane; base < n && !w.over; base += 32 * FLIGHT) {
		u32 at[FLIGHT], need = 0;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			u32 i = base + 32 * j, src = rank_of(a.shape, i);
			at[j] = i + (src + 1) * COUNTS;
			if (i >= n) continue;
			if (holds(b.mask, src))
				words[i] = 0;
			else
				need |= 1u << j;
		}
		while (need != 0) {
			u32 c[FLIGHT], missing = 0;
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) c[j] = (need >> j & 1) != 0 ? load_relaxed_sys4(counts + at[j]) : EMPTY;
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if (c[j] != EMPTY) {
					words[base + 32 * j] = c[j];
					need &= ~(1u << j);
				} else if ((need >> j & 1) != 0) {
					missing = j;
				}
			}
			if (need != 0 && !w.more(rank_of(a.shape, base + 32 * missing), 1, 0)) break;
		}
	}
	w.over = __any_sync(0xFFFFFFFFu, w.over);
	if (!w.over) barrier_arrive(table_ready());
}

// pass_table adds, for this lane's expert, the selections of lower ranks from the shared table. The
// filling warp enforces the deadline and names the late peer.
__device__ __forceinline__ void pass_table(const Dispatch &a, Wait &w, u32 src, RecvRow &l) {
	while (!__all_sync(0xFFFFFFFFu, barrier_done(table_ready(), 0))) {
		if ((++w.polls & 63) == 0 && load_relaxed_gpu4(&a.state->stopped) != 0) w.over = true;
		if (__any_sync(0xFFFFFFFFu, w.over)) {
			w.over = true;
			return;
		}
	}
	if (l.row == 0) return;
	const u32 *of = shared_words() + l.e - 1 - a.group.rank * a.shape.local;
#pragma unroll 1
	for (u32 i = 0; i < src; i++) l.row += of[i * a.shape.local];
}

// pass_counts adds what the sources before select of a lane's expert, by their counts, and awaits
// the end of the piece.
__device__ __forceinline__ void pass_counts(const Dispatch &a, const Batch &b, Wait &w, u32 src, RecvRow &l, bool polls,
											const char *end_at) {
	constexpr u32 FLIGHT = 4; // counts that a lane awaits at once
	u32 le = l.e - 1 - a.group.rank * a.shape.local, from = 0, to = l.row != 0 ? src : 0;
	while (__any_sync(0xFFFFFFFFu, l.row != 0)) {
		u32 c[FLIGHT];
		uint4 end = make_uint4(0, 0, 0, 0);
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			c[j] = from + j < to && !holds(b.mask, from + j)
					   ? load_relaxed_sys4(b.own + count_at(a, b.turn, from + j, COUNTS + le))
					   : 0;
		}
		if (polls) end = load_relaxed_sys16(end_at);
		u32 known = 0, peer = src;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) known += known == j && c[j] != EMPTY;
		u32 lacks = __ballot_sync(0xFFFFFFFFu, known < FLIGHT);
		if (lacks != 0) peer = __shfl_sync(0xFFFFFFFFu, from + known, __ffs((int)lacks) - 1);
		if (from < to && known == FLIGHT) {
			l.row += c[0] + c[1] + c[2] + c[3];
			from += FLIGHT;
		}
		if (__all_sync(0xFFFFFFFFu, from >= to && full(end))) break;
		if (!__all_sync(0xFFFFFFFFu, w.more(peer, 1, 0))) {
			w.over = true;
			return;
		}
	}
}

// await_piece polls for a slot's record and for what else its recv_row follows from and, where rows
// are their own flags, for the end of the piece. It gives the lane's recv_row.
template <bool VALUE, u32 UNITS> __device__ __forceinline__ u32 await_piece(const Dispatch &a, const Batch &b, Wait &w,
																			SlotPiece<UNITS> &p, u32 lane, bool own) {
	u32 first = a.group.rank * a.shape.local, before = BY_EXPERT && b.few ? p.src * a.selections.by : 0;
	const char *rp = b.own + a.records +
					 (((u64)b.turn * a.group.ranks * a.shape.capacity + p.slot) * a.shape.topk + lane) * sizeof(Pair);
	uint2 record = make_uint2(0, 0);
	// One lane polls for the piece, so that the others do not slow what is on its way. Where little
	// is, all do, for their words of scales too, and need not look again.
	bool all = eager<VALUE, UNITS>(a, b), polls = VALUE && !own && (b.flags & MOVE) != 0 &&
												  (all ? in_row(a, p.at(0, lane)) : lane == p.tail_lane());
	bool together = at_once(a, b);
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
		// The number of tokens is in the opening, which may arrive first.
		count = __shfl_sync(0xFFFFFFFFu, count, 0);
		p.absent = count != EMPTY && p.t >= count;
		u32 peer = before != 0 ? RecvRow::missing(a, p.src, earlier) : p.src;
		if (!p.absent && !__all_sync(0xFFFFFFFFu, w.more(peer, 1, 0))) {
			w.over = true;
			return 0;
		}
	}
	if (p.absent) record = make_uint2(0, 0);
	RecvRow recv_row(a, record);
	if (before != 0) recv_row.pass(earlier, lane);
	if (tabled(a, b) && __any_sync(0xFFFFFFFFu, recv_row.row != 0)) pass_table(a, w, p.src, recv_row);
	if (!together) pass_counts(a, b, w, p.src, recv_row, polls, pp);
	recv_row.keep(a);
	if (p.pc == 0 && lane < a.shape.topk)
		a.recv_rows[(u64)p.slot * a.shape.topk + lane] = {recv_row.row, recv_row.row != 0 ? record.y : 0};
	return recv_row.row;
}

// await_units gives this lane's 16 bytes of every unit, all in flight together.
template <u32 UNITS>
__device__ __forceinline__ void await_units(const Dispatch &a, Wait &w, SlotPiece<UNITS> &p, u32 lane) {
	if (WHOLE) { // no lane asks which of the units it has
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

// await_rows returns when a block of src has sent its share: seen has the sources of which this
// warp knows.
__device__ __forceinline__ void await_rows(const Dispatch &a, const Batch &b, Wait &w, u32 src, u32 lane,
										   RankSet &seen) {
	if (holds(seen, src)) return;
	if (lane == 0) await_epoch(w, src, b.own + a.arrived + ((u64)src * b.blocks + blockIdx.x) * 4, (u32)b.epoch + 1);
	w.over = __any_sync(0xFFFFFFFFu, w.over);
	__syncwarp(); // what lane 0 has acquired, all have
	seen = seen | RankSet::one(src);
}

// receive_piece leaves early, with w.over on every lane, if a wait gave up. filled says that the
// slot of the turn before was, and former that nothing is to come.
template <bool VALUE, u32 UNITS>
__device__ __forceinline__ void receive_piece(const Dispatch &a, const Batch &b, Wait &w, u32 src, Item item, u32 lane,
											  bool filled, bool former, RankSet &seen) {
	bool move = (b.flags & MOVE) != 0, route = (b.flags & ROUTE) != 0;
	SlotPiece<UNITS> p;
	p.src = src, p.t = item.t, p.pc = item.pc, p.slot = src * a.shape.capacity + item.t;
	p.row = b.own + a.rows + b.buffer * a.turn_bytes + (u64)p.slot * a.slot_bytes;
	u32 end = (p.pc + 1) * UNITS * UNIT;
	p.tail = (WHOLE ? end : min(a.row_bytes, end)) - 16;
	p.absent = holds(b.mask, src);
	bool own = stays<VALUE>(b) && src == a.group.rank;
	if (former || (p.pc != 0 && (!move || (own && !BY_EXPERT)))) {
		refill<UNITS>(a, b, p, lane, filled);
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
	refill<UNITS>(a, b, p, lane, filled); // while the rows are on their way
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

	// The scales are on their way while the row is looked at, unless they were polled for with it.
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
		await_rows(a, b, w, src, lane, seen);
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

	enum Found { HERE, FORMER, NONE };

	// find says of the slots of token t on all ranks: some may be filled now (HERE), some were in the
	// turn before (FORMER), or neither holds from t on (NONE). It does not wait if this rank itself
	// has a token t.
	__device__ __forceinline__ Found find(const Dispatch &a, const Batch &b, Wait &w, u32 t) {
		if (b.few || t < a.tokens) return HERE;
		if (!known && !extent.learn(a, b, w)) return NONE;
		known = true;
		return t < extent.now ? HERE : t < extent.ever ? FORMER : NONE;
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
		// what is older was not looked at
		filled = a.filled[(before * a.group.ranks + src) * a.shape.capacity + t] == (u32)b.epoch + 1;
	}
};

// await_credit waits until every rank has released the block of received rows that this operation
// writes. A rank announces free blocks in the opening of the operation before, and releases the block
// in any case when it begins this operation. credit is what the rank with this thread's index announced
// before. False: it gave up, on every thread of the block.
__device__ __forceinline__ bool await_credit(const Dispatch &a, const Batch &b, Wait &w, bool notifies, u32 credit) {
	u32 epoch = (u32)b.epoch + 1;
	for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		if (holds(b.mask, r)) continue;
		if (notifies) store_release_sys4(a.group.window[r] + a.ready + a.group.rank * 4, epoch);
		if (notifies || (credit >> a.block & 1) != 0) continue;
		await_epoch(w, r, b.own + a.ready + r * 4, epoch);
	}
	return __syncthreads_or(w.over) == 0;
}

#if WEFT_TRACE
// A launch that receives alone goes on with the operation that another began.
__device__ __forceinline__ void begin_trace(const Dispatch &a, Batch &b, u32 stopped) {
	b.trace = Trace(a.group, a.state, b.epoch + 1);
	if (threadIdx.x == 0 && stopped == 0 && (b.flags & SEND) != 0)
		b.trace.begin((b.flags & MOVE) != 0 ? OP_DISPATCH : OP_PREPARE);
}
#endif

// open_batch reads what every block has to know. False: the operation is refused.
__device__ __forceinline__ bool open_batch(const Dispatch &a, Batch &b, const Count &count, u32 stopped) {
	b.epoch = count.epoch;
	b.turn = count.turn;
	WEFT_TRACED(begin_trace(a, b, stopped);)
	if (stopped == 0) return true;
	refuse(a.group, (b.flags & MOVE) != 0 ? OP_DISPATCH : OP_PREPARE, b.epoch + 1);
	return false;
}

// notify is what the notify blocks do: the last opens the operation and waits for the other ranks; the
// one before, or the same, counts and describes.
template <bool VALUE> __device__ __forceinline__ void notify(const Dispatch &a, Batch &b) {
	bool route = (b.flags & ROUTE) != 0, send = (b.flags & SEND) != 0, receive = (b.flags & RECEIVE) != 0;
	bool last = blockIdx.x == gridDim.x - 1, tells = a.notify_blocks == 1 || !last; // one may have to do all
	bool records = last && send && route && b.few, counts = send && route && !from_records(b);
	Windows windows(a.group);
	Counters m = counters();
	Spread s(a.shape.topk, blockDim.x);
	if (route) {
		if (tells) clear(m.words, min(WORDS, a.shape.experts));
		clear(m.tokens_here, MAX_RANKS);
		clear(m.sum, 1);
	}
	settle(windows);
	wait_for_previous();
	Count count = *count_of(a.state, blockIdx.x);
	u32 stopped = a.state->stopped, credit = 0, call = call_tag(call_of(b), route ? 0 : *prepared(a));
	b.mask = a.state->mask();
	SelectionBatch first;
	TokenRouting token;
	if (records && threadIdx.x / 32 < a.tokens) token.read(a, b, threadIdx.x / 32, threadIdx.x & 31);
	if (counts) first.read(a, b, s, 0);
	if (last && is_direct<VALUE>(b) && threadIdx.x < a.group.ranks) credit = a.credits[threadIdx.x];
	if (route) __syncthreads(); // the memory is clear
	if (!open_batch(a, b, count, stopped)) return;
	Wait w(a.group, a.state, (b.flags & MOVE) != 0 ? OP_DISPATCH : OP_PREPARE, b.epoch + 1);
	if (!last) let_next_start(); // once the last one does
	if (send && last) {
		WEFT_TRACED(b.trace.signalled_by_all();)
		announce_all(a, b, call);
		if (is_direct<VALUE>(b) && (b.flags & MOVE) != 0 && !await_credit(a, b, w, true, credit)) return;
	}
	if (records) send_records(a, b, windows, token);
	if (counts && tells) send_counts(a, b, windows, m, s, first);
	if (counts && last) send_token_counts(a, b, m, s, first);
	if (receive && last) await_all(a, b, w, call);
	if (receive && tells) {
		if (counts) __syncthreads(); // the memory is read no more
		if (route) {
			describe_all(a, b, w, m, s);
		} else if (!from_records(b)) {
			reset_counts(a, b);
		}
		WEFT_TRACED(if (route) b.trace.first_at(SITE_COUNTED);)
	}
	leave(a.state, b.epoch, b.turn, receive);
	WEFT_TRACED(if (receive) b.trace.first_at(SITE_END);)
}

template <bool VALUE, u32 UNITS> __device__ __forceinline__ void work(const Dispatch &a, Batch &b) {
	u32 lane = threadIdx.x & 31, ranks = a.group.ranks;
	bool move = (b.flags & MOVE) != 0, send = (b.flags & SEND) != 0, receive = (b.flags & RECEIVE) != 0,
		 direct = is_direct<VALUE>(b);
	Divisor pieces = move ? a.pieces : Divisor{1, 0xFFFFFFFFu};

	// What follows from the arguments alone is computed while the kernel before this one still runs.
	Windows windows(a.group);
	// Stores to peers fill the SM's queue, and its next loads wait behind them. So where much is sent,
	// other blocks receive.
	bool apart = VALUE && send && receive && move && a.senders != 0;
	u32 senders = apart ? a.senders : b.blocks, receivers = apart ? b.blocks - senders : b.blocks;
	u32 metadata = send && (b.flags & ROUTE) != 0 && maps(a, b) ? metadata_blocks(a, senders) : 0;
	bool sends_metadata = metadata != 0 && blockIdx.x >= senders - metadata && blockIdx.x < senders;
	Walk k = VALUE ? Walk::spread(a.tokens * pieces.by, 0, senders - metadata)
				   : Walk::share(a.shape.capacity * pieces.by, b.blocks);
	// a sends_metadata has enough to do where it need not have a share
	k.end = send && !(VALUE && sends_metadata) ? min(k.end, a.tokens * pieces.by) : 0;
	Item item = Item::of(pieces, k.at);
	bool table = receive && (b.flags & ROUTE) != 0 && tabled(a, b) && blockIdx.x >= b.blocks - receivers;
	if (table) {
		if (threadIdx.x == 0) barrier_init(table_ready(), 32); // each lane that fills it
		__syncthreads();
	}
	settle(windows);
	settle(k.at), settle(k.end), settle(item.t), settle(item.pc);
	wait_for_previous();

	// The state is read, and what is to be sent is on its way, before anything is known.
	Count count = *count_of(a.state, blockIdx.x);
	u32 stopped = a.state->stopped, credit = 0;
	b.mask = a.state->mask();
	Fetched<UNITS> next;
	if (k.at < k.end) fetch<UNITS>(a, b, item, lane, next);
	if (direct && threadIdx.x < ranks) credit = a.credits[threadIdx.x];
	if (!open_batch(a, b, count, stopped)) return;
	let_next_start(); // once the notify block does
	b.buffer = VALUE ? b.turn : (u32)(b.epoch & 1);
	Wait w(a.group, a.state, move ? OP_DISPATCH : OP_PREPARE, b.epoch + 1);

	bool records = send && (b.flags & ROUTE) != 0 && !b.few;
	if (direct && send && move && !await_credit(a, b, w, false, credit)) return;
	if constexpr (BY_EXPERT) {
		if (sends_metadata) write_records(a, b, windows, senders - 1 - blockIdx.x, metadata);
	}
	for (u32 i = k.at; i < k.end; i += k.step) {
		Fetched<UNITS> f = next;
		if (i + k.step < k.end) fetch<UNITS>(a, b, Item::of(pieces, i + k.step), lane, next);
		send_piece<VALUE, UNITS>(a, b, windows, lane, f, records && metadata == 0);
	}
	WEFT_TRACED(if (send && move) b.trace.first_at(SITE_PUSHED);)
	if (!VALUE && send && move) {
		WEFT_TRACED(b.trace.signalled_first();)
		__syncthreads();
		for (u32 r = threadIdx.x; r < ranks; r += blockDim.x) {
			if (holds(b.mask, r)) continue;
			fence_sys();
			store_relaxed_sys4(a.group.window[r] + a.arrived + ((u64)a.group.rank * b.blocks + blockIdx.x) * 4,
							   (u32)b.epoch + 1);
		}
	}
	RankSet seen = RankSet::none();
	Reach reach;
	if (table) {
		if (sends_metadata) __syncthreads(); // its map is read no more
		if (threadIdx.x / 32 == blockDim.x / 32 - 1) fill_table(a, b, w, lane);
	}
	if (VALUE && receive) {
		// Also the pieces that do not come this time were filled the time before.
		k = Walk::spread(a.shape.capacity * a.pieces.by * ranks, b.blocks - receivers, receivers);
		Incoming slot;
		if (k.at < k.end) slot.read(a, b, k.at);
		for (u32 i = k.at; i < k.end && !w.over; i += k.step) {
			Incoming now = slot;
			if (i + k.step < k.end) slot.read(a, b, i + k.step);
			Reach::Found found = reach.find(a, b, w, now.item.t);
			if (found == Reach::NONE) break;
			receive_piece<true, UNITS>(a, b, w, now.src, now.item, lane, now.filled, found == Reach::FORMER, seen);
		}
	}
	if (!VALUE && receive) {
		// Where rows are in place already, only their first pieces have something to do.
		bool in_place = direct && !nonempty(b.mask);
		k = Walk::share(a.shape.capacity * (in_place ? 1 : pieces.by), b.blocks);
		for (u32 i = k.from * ranks + threadIdx.x / 32; i < k.end * ranks && !w.over; i += k.step) {
			u32 s, pc = 0, t = a.ranks.quotient(i, s);
			if (!in_place) t = pieces.quotient(t, pc);
			Reach::Found found = reach.find(a, b, w, t);
			if (found == Reach::NONE) break;
			receive_piece<false, UNITS>(a, b, w, next_rank(a.group, s), {t, pc}, lane, false, found == Reach::FORMER,
										seen);
		}
		for (u32 r = threadIdx.x; move && r < ranks; r += blockDim.x) {
			if (!holds(b.mask, r))
				await_epoch(w, r, b.own + a.arrived + ((u64)r * b.blocks + blockIdx.x) * 4, (u32)b.epoch + 1);
			WEFT_TRACED(if (!holds(b.mask, r) && r != a.group.rank && !w.over) w.trace.arrived(r);)
		}
	}
	leave(a.state, b.epoch, b.turn, receive);
	WEFT_TRACED(if (receive && move) b.trace.first_at(SITE_PLACED);)
	WEFT_TRACED(if (receive) b.trace.first_at(SITE_END);)
}

// What a kernel is for. Most calls do everything at once: kernels for these alone, one of them for
// few tokens, do not ask what the launch does. A warp that is alone takes five cycles an
// instruction, so that is a tenth of the time of a small dispatch. They serve both orders of
// scales, and powers of two: strides that the host gives replace a question for the order, and a
// power of two takes five instructions, so kernels for each would gain nothing that the time to
// compile them is worth.
enum Purpose { ANY, MANY, FEW };

template <bool VALUE, u32 UNITS, Purpose FOR> __device__ __forceinline__ void dispatch(const Dispatch &a) {
	touch(&a, sizeof(a));
	Batch b;
	b.blocks = gridDim.x - a.notify_blocks;
	b.flags = FOR == ANY ? a.flags : a.flags | SEND | RECEIVE | ROUTE | MOVE;
	if (VALUE) b.flags &= ~EXPONENTS; // which may be any bits
	b.few = FOR == ANY ? few(a) : FOR == FEW;
	b.own = a.group.window[a.group.rank];
	if (blockIdx.x >= b.blocks) {
		notify<VALUE>(a, b);
	} else {
		work<VALUE, UNITS>(a, b);
	}
}

} // namespace weft

#if WEFT_PORTS == 1
#include "ports_dispatch.cuh"
#elif WEFT_PORTS == 2
#include "ports_hosts.cuh"
#endif

namespace weft::slots {

// WEFT_KERNEL is the kernel's name: what an exchange is for, as profilers show it. Kernels of all
// forms have the same one.
__global__ void __launch_bounds__(WEFT_VALUE &&WEFT_UNITS == 1 ? 256 : 512, 1)
	WEFT_KERNEL(const __grid_constant__ Dispatch a) {
	weft::dispatch<WEFT_VALUE, WEFT_UNITS, WEFT_PURPOSE>(a);
}

} // namespace weft::slots
