// Bulk copies between shared memory and other GPUs' memory, issued by one lane of each warp. Hopper
// and later.
#include "pattern.cuh"

#if __CUDA_ARCH__ >= 900

constexpr u32 WARPS = 4, STAGES = 4;

// link_bulk_store sends pieces of chunk bytes. Shared memory holds WARPS x STAGES chunks, alike but
// for their first 16 bytes, which give the index.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
	link_bulk_store(const __grid_constant__ Targets targets, u64 bytes, u32 chunk, u32 seed) {
	extern __shared__ __align__(128) char shared[];
	u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	char *stages = shared + warp * STAGES * chunk;
	for (u32 stage = 0; stage < STAGES; stage++) {
		for (u32 i = lane; i < chunk / 16; i += 32) *(uint4 *)(stages + stage * chunk + 16 * i) = words_at(seed, i);
	}
	fence_async();
	__syncwarp();
	if (lane != 0) return;
	u64 stride = (u64)gridDim.x * WARPS * chunk;
	for (u64 at = ((u64)blockIdx.x * WARPS + warp) * chunk; at < bytes;) {
		u64 next = at;
		for (u32 stage = 0; stage < STAGES && next < bytes; stage++, next += stride)
			*(uint4 *)(stages + stage * chunk) = words_at(seed, next / 16);
		fence_async();
		for (u32 stage = 0; at < next; stage++, at += stride) {
			u32 size = bytes - at < chunk ? (u32)(bytes - at) : chunk;
			for (u32 k = 0; k < targets.count; k++) bulk_store(targets.at[k] + at, stages + stage * chunk, size);
		}
		bulk_commit();
		bulk_wait_read(); // while the other warps send
	}
	bulk_wait();
}

// link_bulk_load fetches pieces of chunk bytes, and adds up their words if it is told to: summing
// is for the check, and is left out of what is timed.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
	link_bulk_load(const __grid_constant__ Targets targets, u64 bytes, u32 chunk, const u32 *summing, u64 *sum,
				   const __grid_constant__ Group group, State *state) {
	extern __shared__ __align__(128) char shared[];
	__shared__ u64 arrived[WARPS][STAGES];
	u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	char *stages = shared + warp * STAGES * chunk;
	bool adding = load_relaxed_gpu4(summing) != 0;
	if (lane == 0) {
		for (u32 stage = 0; stage < STAGES; stage++) barrier_init(&arrived[warp][stage], 1);
		fence_barrier_init();
	}
	__syncwarp();

	Wait wait(group, state, 0, 0);
	u64 stride = (u64)gridDim.x * WARPS * chunk, first = ((u64)blockIdx.x * WARPS + warp) * chunk;
	u64 mine = first < bytes ? (bytes - first + stride - 1) / stride * targets.count : 0;
	u64 at = first, done_at = first; // the chunk that is fetched next, and the one that is awaited next
	u32 k = 0, done_k = 0, total = 0;
	for (u64 turn = 0; turn < mine + STAGES; turn++) {
		u32 stage = turn % STAGES;
		u64 *barrier = &arrived[warp][stage];
		char *to = stages + stage * chunk;
		if (turn >= STAGES && turn - STAGES < mine) {
			u32 parity = (turn / STAGES - 1) & 1;
			while (!barrier_awaited(barrier, parity) && !wait.over) wait.more(group.rank, mine, turn);
			if (__any_sync(0xFFFFFFFFu, wait.over)) return;
			if (adding) {
				u32 size = bytes - done_at < chunk ? (u32)(bytes - done_at) : chunk;
				for (u32 i = lane; i < size / 16; i += 32) total += sum_of(*(const uint4 *)(to + 16 * i));
				fence_async();
				__syncwarp();
			}
			if (++done_k == targets.count) done_k = 0, done_at += stride;
		}
		if (turn < mine && lane == 0) {
			u32 size = bytes - at < chunk ? (u32)(bytes - at) : chunk;
			barrier_expect(barrier, size);
			bulk_load(to, targets.at[k] + at, size, barrier);
			if (++k == targets.count) k = 0, at += stride;
		}
		__syncwarp();
	}
	if (adding) add_up(sum, total);
}

#endif
