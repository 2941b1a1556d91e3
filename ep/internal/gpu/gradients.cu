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
// The phases:
//
//	clear    clear_row               pad rows become zeros
//	spread   gradients_spread.cuh    by loads and stores: a token's gradient becomes that of its rows here
//	         gradients_bulk.cuh      by bulk copies, unchanged
//	         gradients_products.cuh  by bulk copies, multiplied
//	scalars  scalars.cuh             gradients of weights that came with rows go home; home takes all that came
//
// gradients.cuh has the arguments and the dot product.
//
//	rank that has rows of a token    its home
//	opening  <--------------------   opening: where the gradients are
//	spread   <--------------------   gradients
//	products, scalars  ---------->   take
//	mark  ----------------------->   mark: products and scalars are there, and gradients are read no more
#include "gradients_products.cuh"
#include "gradients_spread.cuh"

namespace weft {

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
