// The residual and the norm behind an all-reduce, as a kernel of its own: what the fused form is measured
// against. A block has a row. Squares are added in the order of simd.SumOfSquares, so the bits are the same.
#include "sum.cuh"

namespace weft {

// Go: normArgs.
struct RmsNorm {
	uint4 *rows; // the sums, and the result
	const uint4 *residual, *gamma;
	uint4 *residual_out;
	u32 vectors; // of a row
	float columns, eps;
	u32 zero;
};

static_assert(sizeof(RmsNorm) == WEFT_PARAMETER_BYTES, "not the size of the host's struct");

constexpr u32 WARPS = 16;

__device__ __forceinline__ float across(float s, u32 lanes) {
	for (u32 h = lanes / 2; h > 0; h /= 2) s = add(s, __shfl_xor_sync(0xFFFFFFFFu, s, h));
	return s;
}

__global__ void __launch_bounds__(512) rms_norm(const __grid_constant__ RmsNorm a) {
	extern __shared__ uint4 kept[];
	__shared__ float sums[WARPS];
	wait_for_previous();
	u64 row = (u64)blockIdx.x * a.vectors;
	float squares = 0;
	for (u32 i = threadIdx.x; i < a.vectors; i += blockDim.x) {
		Sum s, r;
		s.start(a.rows[row + i]);
		s.take(a.residual[row + i], 1);
		uint4 v = s.round();
		a.residual_out[row + i] = v;
		kept[i] = v;
		r.start(v);
#pragma unroll
		for (int k = 0; k < NUMBERS; k++) r.f[k] = multiply(r.f[k], r.f[k]);
#pragma unroll
		for (int h = NUMBERS / 2; h > 0; h /= 2) {
#pragma unroll
			for (int k = 0; k < h; k++) r.f[k] = add(r.f[k], r.f[k + h]);
		}
		squares = add(squares, r.f[0]);
	}
	squares = across(squares, 32);
	if ((threadIdx.x & 31) == 0) sums[threadIdx.x / 32] = squares;
	__syncthreads();
	squares = across(sums[threadIdx.x % WARPS], WARPS);
	float factor = divide(1, root(add(divide(squares, a.columns), a.eps)));
	for (u32 i = threadIdx.x; i < a.vectors; i += blockDim.x) {
		Sum x, g;
		x.start(kept[i]);
		g.start(a.gamma[i]);
#pragma unroll
		for (int k = 0; k < NUMBERS; k++) x.f[k] = multiply(multiply(x.f[k], factor), g.f[k]);
		a.rows[row + i] = x.round();
	}
	let_next_start();
}

} // namespace weft
