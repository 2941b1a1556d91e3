// Writing the pattern where it is read from, and counting words that are not as they should be
// where it has arrived.
#include "pattern.cuh"

// link_fill writes pieces of 16 bytes.
extern "C" __global__ void link_fill(char *to, u64 pieces, u32 seed) {
	u64 threads = (u64)gridDim.x * blockDim.x;
	for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < pieces; i += threads)
		store16(to + 16 * i, words_at(seed, i));
}

// link_check adds to wrong how many words are wrong. With a period, in pieces, only the first piece
// of each period gives its index, and the others are as in the first period: that is how bulk
// copies send it.
extern "C" __global__ void link_check(const char *from, u64 pieces, u32 seed, u32 period, u64 *wrong) {
	u64 threads = (u64)gridDim.x * blockDim.x;
	u32 bad = 0;
	for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < pieces; i += threads) {
		u64 index = period != 0 && i % period != 0 ? i % period : i;
		uint4 want = words_at(seed, index), got = load_relaxed_sys16(from + 16 * i);
		bad += (got.x != want.x) + (got.y != want.y) + (got.z != want.z) + (got.w != want.w);
	}
	__syncwarp();
	add_up(wrong, bad);
}
