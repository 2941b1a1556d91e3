// The product of two matrices of bf16 numbers, by tensor cores. It is work for a GPU to do beside
// something else: simple, and no record.
#include "ptx.cuh"

using namespace weft;

// A block makes TILE x TILE numbers, of which each of its four warps makes a quarter, and takes
// STEP columns of both matrices at a time into shared memory. Rows there have a few words more than
// they need, so that the lanes of a warp read from different banks.
constexpr u32 TILE = 64, STEP = 32, ROW = STEP / 2 + 4, THREADS = 128;
// rows and columns of a warp's quarter, rows and columns of a product of its tensor core
constexpr u32 WARP = TILE / 2, HIGH = 16, WIDE = 8;

// stage copies STEP columns of TILE rows to shared memory.
__device__ __forceinline__ void stage(u32 *to, const u32 *from, u32 words) {
#pragma unroll
	for (u32 i = threadIdx.x; i < TILE * STEP / 8; i += THREADS) {
		u32 row = i / (STEP / 8), piece = 4 * (i % (STEP / 8));
		*(uint4 *)(to + row * ROW + piece) = *(const uint4 *)(from + (u64)row * words + piece);
	}
}

// weft_matmul is c = a·bᵀ, of a [rows, inner], b [columns, inner] and c, fp32 [rows, columns]: a
// block for each tile, those of a row side by side. Rows and columns are multiples of TILE, inner
// of STEP.
extern "C" __global__ void __launch_bounds__(THREADS) weft_matmul(const u32 *a, const u32 *b, float *c, u32 inner) {
	alignas(16) __shared__ u32 left[TILE * ROW], right[TILE * ROW];
	u32 words = inner / 2, columns = gridDim.x * TILE;
	u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
	u32 row = warp / 2 * WARP, column = warp % 2 * WARP;
	a += (u64)blockIdx.y * TILE * words;
	b += (u64)blockIdx.x * TILE * words;
	float4 sums[WARP / HIGH][WARP / WIDE] = {};
	for (u32 at = 0; at < words; at += STEP / 2) {
		stage(left, a + at, words);
		stage(right, b + at, words);
		__syncthreads();
#pragma unroll
		for (u32 k = 0; k < STEP / 2; k += HIGH / 2) {
			uint4 x[WARP / HIGH];
#pragma unroll
			for (u32 i = 0; i < WARP / HIGH; i++) {
				const u32 *p = left + (row + i * HIGH + group) * ROW + k + quarter, *q = p + 8 * ROW;
				x[i] = make_uint4(p[0], q[0], p[4], q[4]);
			}
#pragma unroll
			for (u32 j = 0; j < WARP / WIDE; j++) {
				const u32 *p = right + (column + j * WIDE + group) * ROW + k + quarter;
				uint2 y = make_uint2(p[0], p[4]);
#pragma unroll
				for (u32 i = 0; i < WARP / HIGH; i++) sums[i][j] = mma_bf16(sums[i][j], x[i], y);
			}
		}
		__syncthreads();
	}
	row += blockIdx.y * TILE + group;
	column += blockIdx.x * TILE + 2 * quarter;
#pragma unroll
	for (u32 i = 0; i < WARP / HIGH; i++) {
#pragma unroll
		for (u32 j = 0; j < WARP / WIDE; j++) {
			float *to = c + (u64)(row + i * HIGH) * columns + column + j * WIDE;
			float4 sum = sums[i][j];
			*(float2 *)to = make_float2(sum.x, sum.y);
			*(float2 *)(to + 8 * columns) = make_float2(sum.z, sum.w);
		}
	}
}
