// The matrix products of the experts, in fp32: textbook tiles in shared memory, one thread for each
// number of a tile.
//
// Every sum goes over its terms in ascending order, by fused multiply-adds from 0. So a row's
// numbers depend neither on the tile that they are in nor on the rows beside it, and losses are the
// same on any number of ranks.
//
// How many rows an expert has is known on the GPU alone. So grids do not follow from it: blocks
// take tiles of rows in turn until there are no more.
#include "ptx.cuh"

using namespace weft;

constexpr u32 TILE = 16; // rows and columns; blocks have TILE x TILE threads

// Product is y = x·w for the rows of each expert, or x·wᵀ with the strides of w exchanged. Go:
// productArgs.
struct Product {
	const float *x, *w;
	float *y;
	const float *mask;			 // where it is 0, y is; null: nowhere
	const u32 *offsets, *counts; // the first row of each expert, and how many it has
	u32 in, out;				 // columns of x and of y
	// how far apart w's numbers are that stand below each other and beside each other, and two
	// experts' w
	u32 down, right, expert;
	u32 relu;
};

extern "C" __global__ void __launch_bounds__(TILE *TILE) moe_product(const __grid_constant__ Product p) {
	__shared__ float x[TILE][TILE], w[TILE][TILE];
	u32 i = threadIdx.y, j = threadIdx.x, column = blockIdx.x * TILE + j;
	u32 offset = p.offsets[blockIdx.z], count = p.counts[blockIdx.z];
	const float *weights = p.w + blockIdx.z * p.expert;
	for (u32 first = blockIdx.y * TILE; first < count; first += gridDim.y * TILE) {
		u64 row = offset + first + i;
		bool inside = first + i < count && column < p.out;
		float sum = 0;
		for (u32 at = 0; at < p.in; at += TILE) {
			x[i][j] = first + i < count && at + j < p.in ? p.x[row * p.in + at + j] : 0;
			w[i][j] = at + i < p.in && column < p.out ? weights[(at + i) * p.down + column * p.right] : 0;
			__syncthreads();
			for (u32 k = 0; k < TILE; k++) sum = fused(x[i][k], w[k][j], sum);
			__syncthreads();
		}
		if (!inside) continue;
		u64 to = row * p.out + column;
		if (p.mask != nullptr && p.mask[to] == 0) sum = 0;
		p.y[to] = p.relu != 0 && sum <= 0 ? 0 : sum;
	}
}

// Gradient adds xᵀ·g to the gradient of w, for the rows of each expert: a sum for the rows of each
// rank, one after the other in the order of the ranks. Go: gradientArgs.
struct Gradient {
	const float *x, *g;
	float *w;
	const u32 *offsets; // the first row of each expert
	// of each expert the rows of each rank: the first, counted from the offset, << 32 | how many
	// there are
	const u64 *ranges;
	u32 in, out; // columns of x and of g
	u32 expert, ranks;
};

extern "C" __global__ void __launch_bounds__(TILE *TILE) moe_gradient(const __grid_constant__ Gradient p) {
	__shared__ float x[TILE][TILE], g[TILE][TILE];
	u32 i = threadIdx.y, j = threadIdx.x;
	// of w; the tile of x has its rows' numbers side by side
	u32 row = blockIdx.y * TILE + i, column = blockIdx.x * TILE + j;
	float *w = p.w + blockIdx.z * p.expert + row * p.out + column;
	bool inside = row < p.in && column < p.out;
	float total = inside ? *w : 0;
	for (u32 rank = 0; rank < p.ranks; rank++) {
		u64 range = p.ranges[blockIdx.z * p.ranks + rank];
		u64 first = p.offsets[blockIdx.z] + (range >> 32);
		u32 count = (u32)range;
		float sum = 0;
		for (u32 at = 0; at < count; at += TILE) {
			u64 from = first + at + i;
			x[i][j] = at + i < count && blockIdx.y * TILE + j < p.in ? p.x[from * p.in + blockIdx.y * TILE + j] : 0;
			g[i][j] = at + i < count && column < p.out ? p.g[from * p.out + column] : 0;
			__syncthreads();
			for (u32 k = 0; k < TILE; k++) sum = fused(x[k][i], g[k][j], sum);
			__syncthreads();
		}
		total = add(total, sum);
	}
	if (inside) *w = total;
}
