// Gradients: what a combine, or a dispatch, is in reverse, beside the sums that combine itself makes.
//
//	rows      the gradient of a row is the gradient of its token's output times the weight. The rank
//	          that has the row reads the token's gradient at home.
//	dots      the gradient of a selection's weight is the dot product of its token's gradient and its
//	          row, and is sent home
//	scalars   gradients of weights that came with the rows are sent home
//
// From Hopper on rows that went straight to their final rows use bulk copies. Gradients that are
// unchanged copies go as in a push: one is fetched, and stored in each row that it has here. For others
// the token's gradient is fetched into shared memory, with dots its rows too, and multiplied there while
// the next are in flight.
//
// A dot product adds element i to lane i mod 64, fused, i ascending, and then the lanes as a tree, on
// every engine.
#include "scalars.cuh"
#include "sum.cuh"

namespace weft {

// Go: gradientArgs.
struct Gradients {
	Shape shape;
	State *state;
	u64 openings, marks; // offsets in a window
	u32 first;			 // the lane's first count
	u32 flags, tokens;
	u32 at; // where the tokens' gradients begin in this rank's window, in 16 bytes
	u32 row_bytes, align, call, zero;
	// BULK: bytes of a row that a warp moves at a time, of which shared memory has some for each of
	// so many warps
	u32 chunk, carriers;
	// of rows that are multiplied: bytes of a part of some of a token's and of its gradient, of
	// which shared memory has DEPTH for each of so many warps
	u32 room, multipliers;
	const Pair *home;
	int *described;
	const char *y;
	char *rows;
	Scalars scalars;
	Group group;
};

static_assert(sizeof(Gradients) == WEFT_GRADIENT_BYTES + WIDER, "not the size of the host's struct");

constexpr u32 MOST_WARPS = 16, ROWS_AT_ONCE = 4, UNITS = 4; // of a row, on their way at once

#if WEFT_TYPE == 3
typedef float Element;
#else
typedef u16 Element;
#endif
constexpr u32 ELEMENTS = UNIT / sizeof(Element); // of a unit

__device__ __forceinline__ float wide(Element e) {
#if WEFT_TYPE == 1
	return number((u32)e << 16);
#elif WEFT_TYPE == 2
	return from_f16(e);
#else
	return e;
#endif
}

// Staged is a unit of two rows, in the order of their elements.
struct Staged {
	uint4 grad[32], row[32];
};

// Dot is a product under way: the lanes j and 32 + j of it.
struct Dot {
	float low, high;

	__device__ __forceinline__ void take(const Staged &s, u32 elements, u32 lane) {
		const Element *x = (const Element *)s.grad, *y = (const Element *)s.row;
#pragma unroll
		for (u32 i = 0; i < ELEMENTS; i += 64) {
			if (i + lane < elements) low = fused(wide(x[i + lane]), wide(y[i + lane]), low);
			if (i + 32 + lane < elements) high = fused(wide(x[i + 32 + lane]), wide(y[i + 32 + lane]), high);
		}
	}

	// sum is right on the first lane.
	__device__ __forceinline__ float sum() const {
		float s = add(low, high);
#pragma unroll
		for (u32 h = 16; h > 0; h /= 2) s = add(s, __shfl_down_sync(0xFFFFFFFFu, s, h));
		return s != s ? number(0x7FFFFFFF) : s;
	}
};

__device__ __forceinline__ uint4 times(const Sum &s, float weight) {
	Sum product;
#pragma unroll
	for (int i = 0; i < NUMBERS; i++) product.f[i] = multiply(s.f[i], weight);
	return product.round();
}

__device__ __forceinline__ uint4 scaled(const Gradients &a, uint4 v, float weight) {
	if ((a.flags & WEIGHTED) == 0) return v;
	Sum s;
	s.start(v);
	return times(s, weight);
}

// Arrived is what the lane knows of a token that is here: its selection, and the row + 1 that it
// has, or on the first lane the token.
struct Arrived {
	Pair p;
	u32 at; // recv_tokens

	__device__ __forceinline__ Arrived(const Gradients &a, u64 slot, u32 lane) : p{0, 0}, at(0) {
		if (lane < a.shape.topk) p = a.scalars.recv_rows[slot * a.shape.topk + lane];
		if (a.scalars.recv_tokens != nullptr && lane == 0) at = a.scalars.recv_tokens[slot];
	}

	__device__ __forceinline__ u32 row(const Gradients &a, u64 slot, u32 lane) const {
		if ((a.flags & ROW_PER_SELECTION) != 0) return p.target;
		if (!__any_sync(0xFFFFFFFFu, p.target != 0) || lane != 0) return 0;
		return a.scalars.recv_tokens != nullptr ? at : (u32)slot + 1;
	}
};

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

// clear_row makes the gradient of a row zeros. A warp does.
__device__ __forceinline__ void clear_row(const Gradients &a, u32 row, u32 lane) {
	for (u32 at = lane * 16; at < a.row_bytes; at += UNIT)
		store16(a.rows + (u64)row * a.row_bytes + at, make_uint4(0, 0, 0, 0));
}

__device__ __forceinline__ void gradients(const Gradients &a) {
	__shared__ char *grads[MAX_RANKS];
	__shared__ u32 shares[MAX_RANKS * 2];
	__shared__ Staged staged[MOST_WARPS];
	Operation o;
	u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
	bool rows = (a.flags & ROW_GRADIENTS) != 0;
	Described d(a.described, a.shape.local, a.group.ranks);
	u32 call = call_tag(a.call, *d.routing); // is on its way meanwhile
	if (!o.begin(a.group, a.state, a.first, rows ? OP_COMBINE_BACKWARD : OP_DISPATCH_BACKWARD)) return;
	Wait w(a.group, a.state, rows ? OP_COMBINE_BACKWARD : OP_DISPATCH_BACKWARD, o.epoch);
	WEFT_TRACED(w.trace = o.trace;)
	if (blockIdx.x == 0) announce_all(a.group, o, a.openings, call, a.at);
	count_and_empty(a.group, o, w, a.openings);
	for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		if (!holds(o.mask, r))
			grads[r] = a.group.window[r] + (u64)await_peer(w, o.own, a.openings, o.turn, r, call).x * 16;
		((Share *)shares)[r] = Share((u32)d.tokens[r]);
	}
	if (__syncthreads_or(w.over) != 0) return;
	if (rows) each_pad(d, a.shape.local, a.align, [&](u32 row) { clear_row(a, row, lane); });
#if __CUDA_ARCH__ >= 900
	extern __shared__ __align__(128) char buffers[];
	__shared__ u64 barriers[MOST_CARRIERS];
	Carrier carrier(buffers, barriers, a.chunk, warp, lane);
	fence_async(); // the gradients were stored by other ranks
	bool bulk = (a.flags & BULK) != 0, products = (a.flags & WEIGHTED) != 0;
	if (bulk && !products && warp < a.carriers) spread_bulk(a, o, carrier, grads, (Share *)shares, warp, lane);
	if (bulk && products && warp < a.multipliers) spread_products(a, o, buffers, grads, (Share *)shares, warp, lane);
#endif
	for (u32 src = 0; src < a.group.ranks; src++) {
		Share share = ((Share *)shares)[src];
		if (rows && ((a.flags & BULK) == 0 || holds(o.mask, src)))
			spread_all(a, o, grads[src], staged[warp], src, share, lane);
		if (a.scalars.rows != nullptr && !holds(o.mask, src))
			a.scalars.send(a.group, a.shape, o, src, share, (a.flags & ROW_PER_SELECTION) != 0);
	}
#if __CUDA_ARCH__ >= 900
	carrier.finish();
#endif
	WEFT_TRACED(o.trace.first_at(SITE_PLACED);)
	mark(a.group, o, a.marks);
	if (!await_marks(a.group, o, w, a.marks)) return;
	if (a.scalars.home != nullptr) a.scalars.take(a.shape, o, a.home, a.tokens);
	leave(a.state, o.epoch - 1, o.turn, true, a.first);
	WEFT_TRACED(o.trace.first_at(SITE_END);)
}

} // namespace weft

namespace weft::ep {

__global__ void __launch_bounds__(32 * MOST_WARPS, 1) gradients(const __grid_constant__ Gradients a) {
	weft::gradients(a);
}

} // namespace weft::ep
