// Phase "spread" of gradients that are multiplied, by bulk copies: a warp has parts of a token's gradient, with
// WEIGHT_GRADIENTS of up to four of its rows too, fetched into shared memory, and multiplies one while the next is on
// its way.
//
//	Sender           asks for the next part: of a Parcel, which is a token and some of its rows
//	multiply_part    stores the part times the weight of each row, and goes on with Products
//	spread_products  waits for parts in turn, and sends the products of a parcel home when it has all
//
// Ordering: a part's barrier says that its bytes are there. fence_async_shared keeps the next bulk copy into the same
// memory behind the reads of all lanes. The block's mark goes behind the products: gradients.cu.
#pragma once
#include "gradients_bulk.cuh"

namespace weft {

#if __CUDA_ARCH__ >= 900
// Parcel is some rows of a token that are multiplied together.
struct Parcel {
	u32 rows[ROWS_AT_ONCE], ks[ROWS_AT_ONCE];
	float weights[ROWS_AT_ONCE];
	u32 src, t, count;
	u32 part; // bytes of a row that come at a time
};

constexpr u32 DEPTH = 2; // parts of a warp's: one that it multiplies, one on its way

// Sender sets parts of parcels on their way to the stages of a warp, one after another.
struct Sender {
	Tokens token;
	Parcel *parcels; // DEPTH
	u32 begun;
	u32 left;		  // lanes of rows of the token that are still to come
	const char *from; // what the lane copies of the parcel: the token's gradient, or one of the rows
	u32 copies, part, at;

	__device__ __forceinline__ Sender(const Gradients &a, const Operation &o, const Share *shares, Parcel *parcels,
									  u32 warp, u32 lane)
		: token(a, o, shares, warp, lane), parcels(parcels), begun(0), left(0), from(nullptr), copies(0), part(0),
		  at(a.row_bytes) {}

	// begin takes the next rows. False: there are none.
	__device__ __forceinline__ bool begin(const Gradients &a, const Operation &o, char *const *grads,
										  const Share *shares, u32 lane) {
		while (left == 0) {
			if (!token.go(a, o, shares, a.multipliers, lane, left)) return false;
		}
		Parcel &p = parcels[begun++ % DEPTH];
		u32 rest = left;
#pragma unroll
		for (u32 j = 0; j < ROWS_AT_ONCE; j++) rest &= rest - 1;
		u32 lanes = left & ~rest, before = __popc(lanes & ((1u << lane) - 1)), count = __popc(lanes);
		left = rest;
		copies = (a.flags & WEIGHT_GRADIENTS) != 0 ? 1 + count : 1;
		part = a.room / copies & ~(UNIT - 1);
		if ((lanes >> lane & 1) != 0)
			p.rows[before] = token.row - 1, p.ks[before] = lane, p.weights[before] = number(token.weight);
		if (lane == 0) p.src = token.src, p.t = token.t, p.count = count, p.part = part;
		__syncwarp();
		from = grads[token.src] + (u64)token.t * a.row_bytes;
		if (lane != 0 && lane < copies) from = a.y + (u64)p.rows[lane - 1] * a.row_bytes;
		at = 0;
		return true;
	}

	// send says whether there was one.
	__device__ __forceinline__ bool send(const Gradients &a, const Operation &o, char *const *grads,
										 const Share *shares, char *stage, u64 *barrier, u32 lane) {
		if (at >= a.row_bytes && !begin(a, o, grads, shares, lane)) return false;
		u32 bytes = min(part, a.row_bytes - at);
		if (lane == 0) barrier_expect(barrier, copies * bytes);
		__syncwarp();
		if (lane < copies) bulk_load(stage + lane * part, from + at, bytes, barrier);
		at += part;
		return true;
	}
};

// Two is two elements that follow each other, of a row in shared memory: those of a lane of each
// PAIRS that a unit has.
struct Two {
	float low, high;

	__device__ __forceinline__ Two(u64 at) {
#if WEFT_TYPE == 3
		uint2 v = load_shared8(at);
		low = number(v.x), high = number(v.y);
#else
		u32 v = load_shared4(at);
		low = wide((Element)v), high = wide((Element)(v >> 16));
#endif
	}
};
constexpr u32 TWO = 2 * sizeof(Element), PAIR = 32 * TWO, PAIRS = UNIT / PAIR; // bytes of a lane's and of a warp's

// Products are those of the rows of a parcel, under way: a lane's elements 2 lane and 2 lane + 1 of
// 64.
struct Products {
	Dot of[ROWS_AT_ONCE];

	// take takes a unit of N rows, of so many bytes.
	template <u32 N, bool WHOLE> __device__ __forceinline__ void take(u64 grad, u32 part, u32 bytes, u32 lane) {
#pragma unroll
		for (u32 i = 0; i < PAIRS; i++) {
			u32 at = i * PAIR + lane * TWO;
			if (!WHOLE && at >= bytes) continue;
			Two x(grad + at);
#pragma unroll
			for (u32 j = 0; j < N; j++) {
				Two y(grad + (1 + j) * part + at);
				of[j].low = fused(x.low, y.low, of[j].low);
				of[j].high = fused(x.high, y.high, of[j].high);
			}
		}
	}

	// sum is right on the first lane. All lanes call it.
	__device__ __forceinline__ float sum(u32 j) const {
		Dot d = of[j];
#pragma unroll
		for (u32 h = 16; h > 0; h /= 2) {
			d.low = add(d.low, __shfl_down_sync(0xFFFFFFFFu, d.low, h));
			d.high = add(d.high, __shfl_down_sync(0xFFFFFFFFu, d.high, h));
		}
		float s = add(d.low, d.high);
		return s != s ? number(0x7FFFFFFF) : s;
	}
};

// multiply_part makes a part of N rows, and goes on with their products. The parts of the token's
// gradient and of the rows are `part` bytes apart.
template <u32 N> __device__ __forceinline__ void multiply_part(const Gradients &a, const Parcel &parcel, u64 grad,
															   u32 at, u32 part, Products &products, u32 lane) {
	char *rows[N];
	float weights[N];
#pragma unroll
	for (u32 j = 0; j < N; j++)
		rows[j] = a.rows + (u64)parcel.rows[j] * a.row_bytes + at + lane * 16, weights[j] = parcel.weights[j];
	u32 bytes = min(part, a.row_bytes - at);
	bool dots = (a.flags & WEIGHT_GRADIENTS) != 0;
#pragma unroll 1
	for (u32 unit = 0; unit < bytes; unit += UNIT) {
		bool whole = unit + UNIT <= bytes;
		if (dots && whole) products.take<N, true>(grad + unit, part, UNIT, lane);
		if (dots && !whole) products.take<N, false>(grad + unit, part, bytes - unit, lane);
		if (unit + lane * 16 >= bytes) continue;
		Sum token;
		token.start(load_shared16(grad + unit + lane * 16));
#pragma unroll
		for (u32 j = 0; j < N; j++) store16(rows[j] + unit, times(token, weights[j]));
	}
}

// spread_products makes the gradients of the rows that shares of the ranks' tokens have here, times
// their weights, and with WEIGHT_GRADIENTS those of the weights. The warps that multiply call it. Its
// waits need no deadline: a bulk copy ends as a load does, and a block must not end before its copies.
__device__ __forceinline__ void spread_products(const Gradients &a, const Operation &o, char *buffers,
												char *const *grads, const Share *shares, u32 warp, u32 lane) {
	__shared__ Parcel parcels[MOST_CARRIERS][DEPTH];
	__shared__ u64 arrived[MOST_CARRIERS][DEPTH];
	if (lane < DEPTH) {
		barrier_init(&arrived[warp][lane], 1);
		fence_barrier_init();
	}
	__syncwarp();
	char *stages = buffers + warp * DEPTH * a.room;
	u64 stages_at = shared_at(stages);
	u32 under_way = 0, stage = 0, parity = 0, done = 0, at = 0; // done: parcels
	Sender sender(a, o, shares, parcels[warp], warp, lane);
	auto send = [&](u32 s) {
		if (sender.send(a, o, grads, shares, stages + s * a.room, &arrived[warp][s], lane)) under_way++;
	};
	Products products;
	for (u32 s = 0; s < DEPTH; s++) send(s);
	while (under_way != 0) {
		while (!barrier_awaited(&arrived[warp][stage], parity)) {
		}
		__syncwarp();
		const Parcel &parcel = parcels[warp][done % DEPTH];
		u64 grad = stages_at + stage * a.room;
		u32 count = parcel.count, part = parcel.part;
		if (at == 0) {
#pragma unroll
			for (u32 j = 0; j < ROWS_AT_ONCE; j++) products.of[j] = {0, 0};
		}
		if (count == 4) multiply_part<4>(a, parcel, grad, at, part, products, lane);
		if (count == 3) multiply_part<3>(a, parcel, grad, at, part, products, lane);
		if (count == 2) multiply_part<2>(a, parcel, grad, at, part, products, lane);
		if (count == 1) multiply_part<1>(a, parcel, grad, at, part, products, lane);
		at += part;
		if (at >= a.row_bytes) {
#pragma unroll
			for (u32 j = 0; j < ROWS_AT_ONCE; j++) {
				if ((a.flags & WEIGHT_GRADIENTS) == 0 || j >= count) continue;
				float sum = products.sum(j);
				if (lane == 0)
					store_relaxed_sys4(a.group.window[parcel.src] +
										   a.scalars.offset(a.shape, o, parcel.t * a.shape.topk + parcel.ks[j]),
									   bits(sum));
			}
			at = 0, done++;
		}
		under_way--;
		fence_async_shared(); // all have read before anything comes there again
		__syncwarp();
		send(stage);
		if (++stage == DEPTH) stage = 0, parity ^= 1;
	}
}
#endif

} // namespace weft
