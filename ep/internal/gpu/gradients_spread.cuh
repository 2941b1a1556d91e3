// Phase "spread" of gradients, by loads and stores: a warp reads the gradient of a token at home, and stores it, times
// the weight, in each row that the token has here. With WEIGHT_GRADIENTS it multiplies gradient and row as well, and
// sends the product home.
//
// Units of up to four rows are multiplied in turn in shared memory, where each lane finds its elements of both.
//
// Ordering: the gradients at home are read behind their rank's opening, and the block's mark goes behind the products:
// gradients.cu.
#pragma once
#include "gradients.cuh"

namespace weft {

// Chunk is a lane's 16 bytes of each of some units that follow each other, all on their way at
// once.
struct Chunk {
	uint4 v[UNITS];

	__device__ __forceinline__ void read(const Gradients &a, const char *row, u32 first, u32 lane, bool there) {
#pragma unroll
		for (u32 u = 0; u < UNITS; u++) {
			u32 at = first + u * UNIT + lane * 16;
			v[u] = there && at < a.row_bytes ? load_once(row + at) : make_uint4(0, 0, 0, 0);
		}
	}
};

// spread makes the gradients of the rows that src's token has here, and with WEIGHT_GRADIENTS those of its
// weights. A warp does.
__device__ __forceinline__ void spread(const Gradients &a, const Operation &o, const char *from, Staged &staged,
									   u32 src, u32 t, u32 lane, const Arrived &here) {
	u64 slot = (u64)src * a.shape.capacity + t;
	u32 row = here.row(a, slot, lane);
	bool absent = holds(o.mask, src), dots = (a.flags & WEIGHT_GRADIENTS) != 0 && !absent;
	const char *home = from + (u64)t * a.row_bytes;
	for (u32 todo = __ballot_sync(0xFFFFFFFFu, row != 0); todo != 0;) {
		u32 rows[ROWS_AT_ONCE], ks[ROWS_AT_ONCE], n = 0;
		float weights[ROWS_AT_ONCE];
		Dot dot[ROWS_AT_ONCE];
#pragma unroll
		for (u32 j = 0; j < ROWS_AT_ONCE; j++) {
			u32 k = todo != 0 ? __ffs((int)todo) - 1 : 0;
			if (todo != 0) n++;
			ks[j] = k;
			rows[j] = __shfl_sync(0xFFFFFFFFu, row, k) - 1;
			weights[j] = number(__shfl_sync(0xFFFFFFFFu, here.p.weight, k));
			dot[j] = {0, 0};
			todo &= todo - 1;
		}
		Chunk next;
		next.read(a, home, 0, lane, !absent);
#pragma unroll 1
		for (u32 first = 0; first < a.row_bytes; first += UNITS * UNIT) {
			Chunk grad = next;
			next.read(a, home, first + UNITS * UNIT, lane, !absent);
#pragma unroll
			for (u32 j = 0; j < ROWS_AT_ONCE; j++) {
				if (j >= n) continue;
				Chunk y;
				if (dots) y.read(a, a.y + (u64)rows[j] * a.row_bytes, first, lane, true);
#pragma unroll
				for (u32 u = 0; u < UNITS; u++) {
					u32 unit = first + u * UNIT, at = unit + lane * 16;
					if (unit >= a.row_bytes) continue;
					if (dots) {
						staged.grad[lane] = grad.v[u];
						staged.row[lane] = y.v[u];
						__syncwarp();
						dot[j].take(staged, min(UNIT, a.row_bytes - unit) / sizeof(Element), lane);
						__syncwarp();
					}
					if (at < a.row_bytes)
						store16(a.rows + (u64)rows[j] * a.row_bytes + at,
								absent ? grad.v[u] : scaled(a, grad.v[u], weights[j]));
				}
			}
		}
#pragma unroll
		for (u32 j = 0; j < ROWS_AT_ONCE; j++) {
			if (!dots || j >= n) continue;
			float sum = dot[j].sum();
			if (lane == 0)
				store_relaxed_sys4(a.group.window[src] + a.scalars.offset(a.shape, o, t * a.shape.topk + ks[j]),
								   bits(sum));
		}
	}
}

// spread_all makes what a share of src's tokens has here, a warp a token.
__device__ __forceinline__ void spread_all(const Gradients &a, const Operation &o, const char *from, Staged &staged,
										   u32 src, Share share, u32 lane) {
	u32 warps = blockDim.x / 32, t = share.from + threadIdx.x / 32;
	if (t >= share.to) return;
	u64 slots = (u64)src * a.shape.capacity;
	Arrived next(a, slots + t, lane);
	for (; t < share.to; t += warps) {
		Arrived here = next;
		if (t + warps < share.to) next = Arrived(a, slots + t + warps, lane);
		spread(a, o, from, staged, src, t, lane, here);
	}
}

} // namespace weft
