// Phase "spread" of gradients that are not multiplied, by bulk copies: a warp fetches the gradient of a token, a chunk
// at a time, into shared memory, and stores it from there in each row that the token has here.
//
// Tokens gives a warp its tokens. gradients_products.cuh takes them, too.
//
// Ordering: fence_async puts the bulk copies behind the openings of the ranks whose gradients they read. Each fetch is
// awaited, so the block's mark, which goes behind all, says that it reads no gradient any more: gradients.cu.
#pragma once
#include "gradients.cuh"

namespace weft {

#if __CUDA_ARCH__ >= 900
// Tokens goes through those of shares of the ranks' tokens that are a warp's. It goes round the
// ranks with every step, so that all links are used at any time.
struct Tokens {
	u32 step, end;
	u32 src, t; // of the token, with the row that the lane has of it, + 1, and its weight
	u32 row, weight;
	u32 next_src, next_t; // of the one behind
	Arrived next;

	__device__ __forceinline__ Tokens(const Gradients &a, const Operation &o, const Share *shares, u32 warp, u32 lane)
		: step(warp), end(0), next(a, 0, 32) {
		for (u32 r = lane; r < a.group.ranks; r += 32) end = max(end, shares[r].to - shares[r].from);
		end = __reduce_max_sync(0xFFFFFFFFu, end) * a.group.ranks;
		look(a, o, shares, lane);
	}

	// look asks for what is known of the token of this step.
	__device__ __forceinline__ void look(const Gradients &a, const Operation &o, const Share *shares, u32 lane) {
		next_src = next_rank(a.group, step % a.group.ranks);
		Share share = shares[next_src];
		next_t = share.from + step / a.group.ranks;
		next = Arrived(a, slot(a, next_src, next_t),
					   step < end && next_t < share.to && !holds(o.mask, next_src) ? lane : 32);
	}

	__device__ __forceinline__ static u64 slot(const Gradients &a, u32 src, u32 t) {
		return (u64)src * a.shape.capacity + t;
	}

	// go goes on by so many steps to a token, and gives the lanes that have rows of it: maybe none.
	// False: there is none left.
	__device__ __forceinline__ bool go(const Gradients &a, const Operation &o, const Share *shares, u32 steps, u32 lane,
									   u32 &rows) {
		if (step >= end) return false;
		src = next_src, t = next_t;
		row = next.row(a, slot(a, src, t), lane), weight = next.p.weight;
		rows = __ballot_sync(0xFFFFFFFFu, row != 0);
		step += steps;
		look(a, o, shares, lane);
		return true;
	}
};

// spread_bulk makes the gradients of the rows that shares of the ranks' tokens have here. The warps
// that carry call it.
__device__ __forceinline__ void spread_bulk(const Gradients &a, const Operation &o, Carrier &carrier,
											char *const *grads, const Share *shares, u32 warp, u32 lane) {
	Tokens token(a, o, shares, warp, lane);
	for (u32 rows; token.go(a, o, shares, a.carriers, lane, rows);) {
		const char *from = grads[token.src] + (u64)token.t * a.row_bytes;
		for (u32 at = 0; rows != 0 && at < a.row_bytes; at += a.chunk) {
			u32 bytes = min(a.chunk, a.row_bytes - at);
			carrier.fetch(from + at, bytes);
			carrier.await();
			for (u32 todo = rows; todo != 0; todo &= todo - 1) {
				u32 to = __shfl_sync(0xFFFFFFFFu, token.row, __ffs((int)todo) - 1) - 1;
				carrier.store(a.rows + (u64)to * a.row_bytes + at, bytes);
			}
			carrier.commit();
		}
	}
}
#endif

} // namespace weft
