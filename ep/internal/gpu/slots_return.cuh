// Phase "return" of a combine through slots: a warp reads a piece of what this rank has for a token of another rank,
// and stores it in a slot at the token's home.
//
//	exact       every row that it has of the token, in the slot of (token, k)
//	partial     the sum of these, in the slot of (this rank, token): contribution
//	rank-major  the row of the token's slot, which is the caller's sum, likewise
//
// fetch reads for the next ranks, or the next piece, while send_piece stores for these. A rank's own rows go through
// no slot: home reads them where they are.
//
// Ordering: rows are their own flags (VALUE), word by word, and need no fence. Else (FLAG) they are plain
// stores, and a word behind a system fence says that all rows of the block are there: slots_combine.cu.
#pragma once
#include "slots_combine.cuh"

namespace weft {

template <bool VALUE> __device__ __forceinline__ void put16_clean(void *p, uint4 v) {
	if (VALUE) {
		store_relaxed_sys16(p, clean(v));
	} else {
		store16(p, v);
	}
}

// Outgoing is what a lane has read of a piece of a token of each of some ranks.
template <u32 SOURCES> struct Outgoing {
	Pair recv_row[SOURCES];
	uint4 v[SOURCES]; // rank-major
};

// fetch reads a piece for the ranks of a group. Nothing here waits, nor depends on the state.
template <u32 SOURCES>
__device__ __forceinline__ void fetch(const Combine &a, u32 t, u32 pc, u32 group, u32 lane, Outgoing<SOURCES> &o) {
	u32 at = pc * UNIT + lane * 16;
#pragma unroll
	for (u32 j = 0; j < SOURCES; j++) {
		u32 i = group * SOURCES + j;
		bool there = i < a.group.ranks - 1;
		u32 slot = (there ? next_rank(a.group, i) : 0) * a.shape.capacity + t;
		o.recv_row[j] = {0, 0};
		if (there && lane < a.shape.topk) o.recv_row[j] = a.recv_rows[(u64)slot * a.shape.topk + lane];
		if (!BY_EXPERT) o.v[j] = row_at<uint4>(a, slot, at, there && at < a.row_bytes);
	}
}

template <bool VALUE, u32 SOURCES>
__device__ __forceinline__ void send_piece(const Combine &a, const Batch &b, const Windows &windows, u32 t, u32 pc,
										   u32 group, u32 lane, const Outgoing<SOURCES> &o) {
	u32 at = pc * UNIT + lane * 16;
	bool here = at < a.row_bytes;
#pragma unroll
	for (u32 j = 0; j < SOURCES; j++) {
		u32 i = group * SOURCES + j, todo = __ballot_sync(0xFFFFFFFFu, o.recv_row[j].target != 0);
		if (i >= a.group.ranks - 1 || todo == 0) continue;
		u32 src = next_rank(a.group, i);
		if (holds(b.mask, src)) continue;
		char *window = windows.of(src), *home = window + a.home + b.buffer * a.turn_bytes + at;
		if constexpr (EXACT) {
			if (WEFT_PORTS != 0 && window == b.own) continue; // the rows go from where they are
			constexpr u32 ROWS = 4; // in flight
			while (todo != 0) {
				uint4 v[ROWS];
				u32 rest = todo;
#pragma unroll
				for (u32 q = 0; q < ROWS; q++) {
					u32 row = __shfl_sync(0xFFFFFFFFu, o.recv_row[j].target, rest != 0 ? __ffs((int)rest) - 1 : 0) - 1;
					if (rest != 0 && here) v[q] = load_once(a.y + (u64)row * a.row_bytes + at);
					rest &= rest - 1;
				}
#pragma unroll
				for (u32 q = 0; q < ROWS; q++) {
					u32 k = todo != 0 ? __ffs((int)todo) - 1 : 0;
					if (todo != 0 && here) put16_clean<VALUE>(home + ((u64)t * a.shape.topk + k) * a.row_bytes, v[q]);
					todo &= todo - 1;
				}
			}
		} else {
			uint4 v = BY_EXPERT ? contribution<uint4>(a, o.recv_row[j].target, weight_of(b, o.recv_row[j]), at, here)
								: o.v[j];
			u64 slot = (u64)place_of(a.group, window, src) * a.shape.capacity + t;
			if (here) put16_clean<VALUE>(home + slot * a.row_bytes, v);
		}
	}
}

} // namespace weft
