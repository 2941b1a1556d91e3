// Scalars: a number of each selection that goes home, the gradient of its weight. It came with the
// row of a dispatch, or is made of the row's gradient.
#pragma once
#include "direct.cuh"

namespace weft {

// Go: scalarArgs.
struct Scalars {
	u64 at; // offset in a window: 2 turns x [capacity][top-k] numbers
	Divisor topk;
	const Pair *recv_rows;
	const u32 *recv_tokens; // where a token has one row that is not at its slot
	const float *rows;		// what goes home: one a row, or top-k a row that is not a selection's; or none
	float *home;			// [tokens][top-k]: what has come home; or none

	// offset is where the number of this rank's selection i stands, in one of two
	// buffers in turn.
	__device__ __forceinline__ u64 offset(const Shape &s, const Operation &o, u32 i) const {
		return at + ((u32)(o.epoch & 1) * s.capacity * s.topk + i) * 4;
	}

	static constexpr u32 FLIGHT = 4; // numbers of a thread that are on their way at once

	// send sends those of a share of src's selections home. All threads of the block call it.
	__device__ __forceinline__ void send(const Group &g, const Shape &s, const Operation &o, u32 src, Share share,
										 bool by_expert) const {
		u32 end = share.to * s.topk, slots = src * s.capacity;
#pragma unroll 1
		for (u32 first = share.from * s.topk + threadIdx.x; first < end; first += FLIGHT * blockDim.x) {
			u32 recv_row[FLIGHT], recv_token[FLIGHT];
			float value[FLIGHT];
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				u32 i = first + j * blockDim.x, k, t = topk.quotient(i, k);
				recv_row[j] = i < end ? recv_rows[slots * s.topk + i].target : 0;
				recv_token[j] = i < end && recv_tokens != nullptr ? recv_tokens[slots + t] : slots + t + 1;
			}
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				u32 k, row;
				topk.quotient(first + j * blockDim.x, k);
				row = by_expert ? recv_row[j] - 1 : (recv_token[j] - 1) * s.topk + k;
				value[j] = recv_row[j] != 0 ? rows[row] : 0;
			}
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if (recv_row[j] != 0)
					store_relaxed_sys4(g.window[src] + offset(s, o, first + j * blockDim.x), bits(value[j]));
			}
		}
	}

	// take takes what has come home for this block's share of the tokens. Selections that went
	// nowhere have 0. All threads of the block call it.
	__device__ __forceinline__ void take(const Shape &s, const Operation &o, const Pair *routed, u32 tokens) const {
		Share share(tokens);
		u32 end = share.to * s.topk;
#pragma unroll 1
		for (u32 first = share.from * s.topk + threadIdx.x; first < end; first += FLIGHT * blockDim.x) {
			u32 expert[FLIGHT], value[FLIGHT];
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				u32 i = min(first + j * blockDim.x, end - 1);
				expert[j] = routed[i].target & 0xFFFF;
				value[j] = load_relaxed_sys4(o.own + offset(s, o, i));
			}
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				u32 e = expert[j], i = first + j * blockDim.x;
				bool went = e != 0 && !holds(o.mask, rank_of(s, e - 1));
				if (i < end) home[i] = went ? number(value[j]) : 0.0f;
			}
		}
	}
};

} // namespace weft
