// Gradients: what a combine, or a dispatch, is in reverse, beside the sums that combine itself makes.
//
//	rows      a row's gradient is that of its token's output, times the weight. Whoever has the row reads the token's where it is, at home.
//	dots      the gradient of a selection's weight is the product of its token's gradient and its row, and is sent home
//	scalars   gradients of weights that came with the rows are sent home
//
// From Hopper on rows that are as they were at home, and have places, go by bulk copies, as those of a push do: one comes, and leaves for each row that it has here.
//
// A product adds element i to lane i mod 64, fused, i ascending, and then the lanes as a tree, on whichever engine.
#include "scalars.cuh"
#include "sum.cuh"

namespace weft {

// What the launch does, beside what placed.cuh names.
enum {
	ROWS = 1,
	DOTS = 2,
	BY_EXPERT = 16, // a row is a selection's
	WEIGHTED = 64,
	BULK = 512,
};

// Go: gradientArgs.
struct Gradients {
	Group group;
	Shape shape;
	State *state;
	u64 words, marks; // offsets in a window
	u32 first;		  // the lane's first count
	u32 what, tokens;
	u32 at; // where the tokens' gradients begin in this rank's window, in 16 bytes
	u32 row_bytes, align, call, zero;
	u32 chunk, carriers; // BULK: bytes of a row that a warp moves at a time, of which shared memory has some for each of so many warps
	const Pair *home;
	int *described;
	const char *y;
	char *rows;
	Scalars scalars;
};

static_assert(sizeof(Gradients) == WEFT_GRADIENT_BYTES, "the host has another idea of the arguments");

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

__device__ __forceinline__ uint4 scaled(const Gradients &a, uint4 v, float weight) {
	if ((a.what & WEIGHTED) == 0) return v;
	Sum s;
	s.start(v);
#pragma unroll
	for (int i = 0; i < NUMBERS; i++) s.f[i] = multiply(s.f[i], weight);
	return s.round();
}

// Arrived is what the lane knows of a token that is here: its selection, and the row + 1 that it has, or on the first lane the token.
struct Arrived {
	Pair p;
	u32 at; // arrivals

	__device__ __forceinline__ Arrived(const Gradients &a, u64 slot, u32 lane) : p{0, 0}, at(0) {
		if (lane < a.shape.topk) p = a.scalars.landings[slot * a.shape.topk + lane];
		if (a.scalars.arrivals != nullptr && lane == 0) at = a.scalars.arrivals[slot];
	}

	__device__ __forceinline__ u32 row(const Gradients &a, u64 slot, u32 lane) const {
		if ((a.what & BY_EXPERT) != 0) return p.what;
		if (!__any_sync(0xFFFFFFFFu, p.what != 0) || lane != 0) return 0;
		return a.scalars.arrivals != nullptr ? at : (u32)slot + 1;
	}
};

// Chunk is a lane's 16 bytes of each of some units that follow each other, all on their way at once.
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

// spread makes the gradients of the rows that src's token has here, and with DOTS those of its weights. A warp does.
__device__ __forceinline__ void spread(const Gradients &a, const Turn &o, const char *from, Staged &staged, u32 src, u32 t, u32 lane, const Arrived &here) {
	u64 slot = (u64)src * a.shape.capacity + t;
	u32 row = here.row(a, slot, lane);
	bool absent = holds(o.mask, src), dots = (a.what & DOTS) != 0 && !absent;
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
					if (at < a.row_bytes) store16(a.rows + (u64)rows[j] * a.row_bytes + at, absent ? grad.v[u] : scaled(a, grad.v[u], weights[j]));
				}
			}
		}
#pragma unroll
		for (u32 j = 0; j < ROWS_AT_ONCE; j++) {
			if (!dots || j >= n) continue;
			float sum = dot[j].sum();
			if (lane == 0) store_relaxed_sys4(a.group.window[src] + a.scalars.offset(a.shape, o, t * a.shape.topk + ks[j]), bits(sum));
		}
	}
}

// spread_all makes what a share of src's tokens has here, a warp a token.
__device__ __forceinline__ void spread_all(const Gradients &a, const Turn &o, const char *from, Staged &staged, u32 src, Share share, u32 lane) {
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
// spread_bulk makes the gradients of the rows that shares of the ranks' tokens have here. It goes round the ranks with every step, so that all links are used at any time.
// The warps that carry call it.
__device__ __forceinline__ void spread_bulk(const Gradients &a, const Turn &o, Carrier &carrier, char *const *grads, const Share *shares, u32 warp, u32 lane) {
	u32 most = 0, ranks = a.group.ranks;
	for (u32 r = lane; r < ranks; r += 32) most = max(most, shares[r].to - shares[r].from);
	most = __reduce_max_sync(0xFFFFFFFFu, most) * ranks;
	auto arrived = [&](u32 i, u32 &src, u32 &t) {
		src = next_rank(a.group, i % ranks);
		Share share = shares[src];
		t = share.from + i / ranks;
		return Arrived(a, (u64)src * a.shape.capacity + t, i < most && t < share.to && !holds(o.mask, src) ? lane : 32);
	};
	u32 src, t;
	Arrived here = arrived(warp, src, t);
	for (u32 i = warp; i < most; i += a.carriers) {
		u32 row = here.row(a, (u64)src * a.shape.capacity + t, lane), rows = __ballot_sync(0xFFFFFFFFu, row != 0);
		const char *from = grads[src] + (u64)t * a.row_bytes;
		here = arrived(i + a.carriers, src, t);
		for (u32 at = 0; rows != 0 && at < a.row_bytes; at += a.chunk) {
			u32 bytes = min(a.chunk, a.row_bytes - at);
			carrier.fetch(from + at, bytes);
			carrier.await();
			for (u32 todo = rows; todo != 0; todo &= todo - 1) {
				u32 to = __shfl_sync(0xFFFFFFFFu, row, __ffs((int)todo) - 1) - 1;
				carrier.store(a.rows + (u64)to * a.row_bytes + at, bytes);
			}
			carrier.commit();
		}
	}
}
#endif

// clear_row makes the gradient of a row zeros. A warp does.
__device__ __forceinline__ void clear_row(const Gradients &a, u32 row, u32 lane) {
	for (u32 at = lane * 16; at < a.row_bytes; at += UNIT) store16(a.rows + (u64)row * a.row_bytes + at, make_uint4(0, 0, 0, 0));
}

__device__ __forceinline__ void gradients(const Gradients &a) {
	__shared__ char *grads[MAX_RANKS];
	__shared__ u32 shares[MAX_RANKS * 2];
	__shared__ Staged staged[MOST_WARPS];
	Turn o;
	u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
	bool rows = (a.what & ROWS) != 0;
	if (!o.begin(a.group, a.state, a.first, rows ? OP_COMBINE_BACKWARD : OP_DISPATCH_BACKWARD)) return;
	Wait w(a.group, a.state, rows ? OP_COMBINE_BACKWARD : OP_DISPATCH_BACKWARD, o.epoch);
	Described d(a.described, a.shape.local, a.group.ranks);
	if (blockIdx.x == 0) tell(a.group, o, a.words, a.call, a.at);
	count_words(o, w, a.words);
	for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		if (!holds(o.mask, r)) grads[r] = a.group.window[r] + (u64)hear(o, w, a.words, r, a.call) * 16;
		((Share *)shares)[r] = Share((u32)d.tokens[r]);
	}
	if (__syncthreads_or(w.over) != 0) return;
	if (rows) each_pad(d, a.shape.local, a.align, [&](u32 row) { clear_row(a, row, lane); });
#if __CUDA_ARCH__ >= 900
	extern __shared__ __align__(128) char buffers[];
	__shared__ u64 barriers[MOST_CARRIERS];
	Carrier carrier(buffers, barriers, a.chunk, warp, lane);
	fence_async(); // what was heard of was stored by others
	if ((a.what & BULK) != 0 && warp < a.carriers) spread_bulk(a, o, carrier, grads, (Share *)shares, warp, lane);
#endif
	for (u32 src = 0; src < a.group.ranks; src++) {
		Share share = ((Share *)shares)[src];
		if (rows && ((a.what & BULK) == 0 || holds(o.mask, src))) spread_all(a, o, grads[src], staged[warp], src, share, lane);
		if (a.scalars.rows != nullptr && !holds(o.mask, src)) a.scalars.send(a.group, a.shape, o, src, share, (a.what & BY_EXPERT) != 0);
	}
#if __CUDA_ARCH__ >= 900
	carrier.finish();
#endif
	mark(a.group, o, a.marks);
	if (!await_marks(a.group, o, w, a.marks)) return;
	if (a.scalars.home != nullptr) a.scalars.take(a.shape, o, a.home, a.tokens);
	leave(a.state, o.epoch - 1, o.turn, true, a.first);
}

} // namespace weft

extern "C" __global__ void __launch_bounds__(32 * weft::MOST_WARPS, 1) weft_gradients(const __grid_constant__ weft::Gradients a) { weft::gradients(a); }
