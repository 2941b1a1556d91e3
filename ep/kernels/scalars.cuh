// Scalars: a number of each selection that goes home, the gradient of its weight. It came with the row of a dispatch, or is made of the row's gradient.
#pragma once
#include "placed.cuh"

namespace weft {

// Go: scalarArgs.
struct Scalars {
	u64 at; // offset in a window: 2 turns x [capacity][top-k] numbers
	Divisor topk;
	const Pair *landings;
	const u32 *arrivals; // where a token has one row that is not at its slot
	const float *rows;	 // what goes home: one a row, or top-k a row that is not a selection's; or none
	float *home;		 // [tokens][top-k]: what has come home; or none

	// offset is where the number of this rank's selection i stands, by every other operation in the same place.
	__device__ __forceinline__ u64 offset(const Shape &s, const Turn &o, u32 i) const { return at + ((u32)(o.epoch & 1) * s.capacity * s.topk + i) * 4; }

	// send sends those of a share of src's selections home. All threads of the block call it.
	__device__ __forceinline__ void send(const Group &g, const Shape &s, const Turn &o, u32 src, Share share, bool by_expert) const {
		for (u32 i = share.from * s.topk + threadIdx.x; i < share.to * s.topk; i += blockDim.x) {
			u32 k, t = topk.quotient(i, k), slot = src * s.capacity + t, landing = landings[slot * s.topk + k].what;
			if (landing == 0) continue;
			u32 row = by_expert ? landing - 1 : (arrivals != nullptr ? arrivals[slot] - 1 : slot) * s.topk + k;
			store_relaxed_sys4(g.window[src] + offset(s, o, i), bits(rows[row]));
		}
	}

	// take takes what has come home for this block's share of the tokens. Selections that went nowhere have 0. All threads of the block call it.
	__device__ __forceinline__ void take(const Shape &s, const Turn &o, const Pair *routed, u32 tokens) const {
		Share share(tokens);
		for (u32 i = share.from * s.topk + threadIdx.x; i < share.to * s.topk; i += blockDim.x) {
			u32 e = routed[i].what & 0xFFFF;
			bool went = e != 0 && !holds(o.mask, rank_of(s, e - 1));
			home[i] = went ? number(load_relaxed_sys4(o.own + offset(s, o, i))) : 0.0f;
		}
	}
};

} // namespace weft
