// What an all-reduce with a norm does with a row of sums: the rules stand at spec.Norm, and the order in
// which squares are added at simd.SumOfSquares. A block has a row, and a thread the vectors of its number:
// so a thread finds in shared memory only what it has put there.
#pragma once
#include "fold.cuh"
#include "scale.cuh"
#include "slots.cuh"

namespace weft {

constexpr u32 NORM_THREADS = 512; // of a block. Go: normThreads
constexpr u32 NORM_WARPS = NORM_THREADS / 32;
constexpr u32 GROUP_VECTORS = 128 / ELEMENTS; // whose columns share a scale

// How rows are quantised: the numbers of spec.Quant.
enum { QUANT_NONE, QUANT_FP32, QUANT_POW2, QUANT_UE8M0, QUANT_STATIC };

// The operands are rows: bytes is the length of one, and unit divides that, too. Those that are not there are at
// null. Go: allReduceNormArgs.
struct AllReduceNorm {
	Lane lane;
	Operand in, out, residual, residual_out, gamma;
	char *scales;
	const float *scale;
	u64 slot_bytes; // of a rank's rows in a turn; two shots: in each half of it
	u32 tokens, hidden;
	float eps;
	u32 quant;
	Group group;
};

static_assert(sizeof(AllReduceNorm) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

// row is a row of an operand.
__device__ __forceinline__ Part row(const Operand &o, u32 token) { return Part(o, token * o.bytes, o.bytes); }

// Beside are the vectors that meet a sum's. A thread loads those of its first sum before it waits for that.
struct Beside {
	uint4 residual, gamma;

	__device__ __forceinline__ void load(const AllReduceNorm &a, u32 token, u32 i) {
		if (a.residual.at != nullptr) residual = row(a.residual, token).load(i);
		gamma = row(a.gamma, 0).load(i);
	}
};

// square adds the squares of a vector's numbers: a tree.
__device__ __forceinline__ float square(uint4 v) {
	float x[ELEMENTS];
	unpack(x, v);
#pragma unroll
	for (u32 i = 0; i < ELEMENTS; i++) x[i] = multiply(x[i], x[i]);
#pragma unroll
	for (u32 h = ELEMENTS / 2; h > 0; h /= 2) {
#pragma unroll
		for (u32 i = 0; i < h; i++) x[i] = add(x[i], x[i + h]);
	}
	return x[0];
}

// Norm is a block's way through its rows.
struct Norm {
	const AllReduceNorm &a;
	const Wait &wait;
	uint4 *kept;  // [vectors] of the row, in shared memory
	float *sums;  // [2][NORM_WARPS], used in turn
	u32 vectors;  // of a row
	u32 flip;

	__device__ __forceinline__ Norm(const AllReduceNorm &a, const Wait &wait, char *kept, float *sums)
		: a(a), wait(wait), kept((uint4 *)kept), sums(sums), vectors(row(a.in, 0).vectors()), flip(0) {}

	// block_sum adds the threads' numbers. All threads get the sum.
	__device__ __forceinline__ float block_sum(float s) {
		u32 lane = threadIdx.x & 31;
		float *all = sums + flip * NORM_WARPS; // the others may still read the last row's
		flip ^= 1;
#pragma unroll
		for (u32 h = 16; h > 0; h /= 2) s = add(s, __shfl_xor_sync(0xFFFFFFFFu, s, h));
		if (lane == 0) all[threadIdx.x / 32] = s;
		__syncthreads();
		s = all[lane % NORM_WARPS];
#pragma unroll
		for (u32 h = NORM_WARPS / 2; h > 0; h /= 2) s = add(s, __shfl_xor_sync(0xFFFFFFFFu, s, h));
		return s;
	}

	// finish goes on with the sums of a row: sum(i) gives vector i. first has what meets the thread's first
	// vector, if it was loaded. All threads of the block call it.
	template <class F> __device__ __forceinline__ void finish(u32 token, const Beside *first, F sum) {
		float squares = 0;
		for (u32 i = threadIdx.x; i < vectors; i += NORM_THREADS) {
			uint4 v = sum(i);
			if (a.residual.at != nullptr) {
				float x[ELEMENTS], y[ELEMENTS];
				unpack(x, v);
				unpack(y, first != nullptr && i == threadIdx.x ? first->residual : row(a.residual, token).load(i));
#pragma unroll
				for (u32 k = 0; k < ELEMENTS; k++) x[k] = add(x[k], y[k]);
				v = pack(x);
			}
			if (a.residual_out.at != nullptr && !wait.over) row(a.residual_out, token).store(i, v);
			kept[i] = v;
			squares = add(squares, square(v));
		}
		float mean = divide(block_sum(squares), (float)a.hidden);
		float factor = divide(1.0f, root(add(mean, a.eps)));
		// Groups of columns lie in one warp, so all its lanes stay together.
		for (u32 base = threadIdx.x & ~31u; base < vectors; base += NORM_THREADS) {
			u32 i = base + (threadIdx.x & 31);
			bool here = i < vectors;
			float x[ELEMENTS], y[ELEMENTS];
			uint4 v = make_uint4(0, 0, 0, 0), gamma = v;
			if (here) {
				v = kept[i];
				gamma = first != nullptr && i == threadIdx.x ? first->gamma : row(a.gamma, 0).load(i);
			}
			unpack(x, v);
			unpack(y, gamma);
#pragma unroll
			for (u32 k = 0; k < ELEMENTS; k++) x[k] = multiply(multiply(x[k], factor), y[k]);
			v = pack(x);
			if (a.quant == QUANT_NONE) {
				if (here && !wait.over) row(a.out, token).store(i, v);
			} else {
				quantise(token, i, here && !wait.over, v);
			}
		}
	}

	// quantise stores a vector as e4m3 numbers, and the scale of a group. All lanes of the warp call it.
	__device__ __forceinline__ void quantise(u32 token, u32 i, bool here, uint4 v) const {
		float x[ELEMENTS], factor;
		unpack(x, v);
		if (a.quant == QUANT_STATIC) {
			factor = divide(1.0f, *a.scale);
		} else {
			float most = 0;
#pragma unroll
			for (u32 k = 0; k < ELEMENTS; k++) most = fmaxf(most, fabsf(x[k]));
#pragma unroll
			for (u32 h = 1; h < GROUP_VECTORS; h *= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, h));
			Scale scale(most, a.quant != QUANT_FP32);
			factor = scale.factor;
			if (here && i % GROUP_VECTORS == 0) {
				u64 group = (u64)token * (a.hidden / 128) + i / GROUP_VECTORS;
				if (a.quant == QUANT_UE8M0) {
					((u8 *)a.scales)[group] = (u8)scale.exponent();
				} else {
					((u32 *)a.scales)[group] = scale.size();
				}
			}
		}
		u32 w[2] = {0, 0};
#pragma unroll
		for (u32 k = 0; k < ELEMENTS; k += 2)
			w[k / 4] |= (u32)to_e4m3x2(multiply(x[k], factor), multiply(x[k + 1], factor)) << k % 4 * 8;
		if (!here) return;
		char *at = a.out.at + token * a.out.bytes + i * ELEMENTS;
		if (a.out.unit >= ELEMENTS && (i + 1) * ELEMENTS <= a.hidden) {
			if (ELEMENTS == 8) {
				*(uint2 *)at = make_uint2(w[0], w[1]);
			} else {
				*(u32 *)at = w[0];
			}
			return;
		}
		u32 n = min(ELEMENTS, a.hidden - i * ELEMENTS);
		store_slowly(at, n, min(a.out.unit, greatest_unit(n)), make_uint4(w[0], w[1], 0, 0));
	}
};

// sum_of_rows begins the sum of a vector of so many ranks.
__device__ __forceinline__ Fold sum_of_rows(u32 ranks) { return Fold(How{SUM, 0, 0, nullptr}, ranks); }

} // namespace weft
