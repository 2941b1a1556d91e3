// Threads that write to other GPUs' memory, or read from it, 16 bytes at a time. Targets are taken
// in turn for every piece, so all links are busy at once.
#include "pattern.cuh"

extern "C" __global__ void __launch_bounds__(1024)
	link_store(const __grid_constant__ Targets targets, u64 pieces, u32 seed) {
	u64 threads = (u64)gridDim.x * blockDim.x;
	for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < pieces; i += threads) {
		uint4 v = words_at(seed, i);
		for (u32 k = 0; k < targets.count; k++) store16(targets.at[k] + 16 * i, v);
	}
}

// A thread has so many loads in flight: with fewer, one SM would not keep a link busy over the time
// that a load takes.
constexpr u32 DEPTH = 4;

extern "C" __global__ void __launch_bounds__(1024)
	link_load(const __grid_constant__ Targets targets, u64 pieces, u64 *sum) {
	u64 threads = (u64)gridDim.x * blockDim.x;
	u32 total = 0;
	for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < pieces; i += DEPTH * threads) {
		for (u32 k = 0; k < targets.count; k++) {
			uint4 v[DEPTH];
#pragma unroll
			for (u32 d = 0; d < DEPTH; d++) {
				u64 at = i + d * threads;
				v[d] = at < pieces ? load_once(targets.at[k] + 16 * at) : make_uint4(0, 0, 0, 0);
			}
#pragma unroll
			for (u32 d = 0; d < DEPTH; d++) total += sum_of(v[d]);
		}
	}
	__syncwarp();
	add_up(sum, total);
}
