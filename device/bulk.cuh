// Bulk copies of rows through shared memory, on Hopper and later: a warp has a whole row in flight
// without registers, so that few SMs fill the links.
#pragma once
#include "ptx.cuh"

namespace weft {

#if __CUDA_ARCH__ >= 900
constexpr u32 MOST_CARRIERS = 16;

// Carrier is a warp that moves rows by bulk copies, through a buffer of shared memory of its own: a
// chunk is fetched once, and stored at each of its destinations. Its waits need no deadline: a bulk
// copy ends as a load does, and a block must not end before its copies. All lanes call its functions.
struct Carrier {
	char *buffer;
	u64 *barrier;
	u32 parity, lane;

	// Every warp that carries makes one at the beginning of the kernel. After a wait for peers'
	// stores, fence_async comes before the fetch that reads them.
	__device__ __forceinline__ Carrier(char *buffers, u64 *barriers, u32 chunk, u32 warp, u32 lane)
		: buffer(buffers + warp * chunk), barrier(barriers + warp), parity(0), lane(lane) {
		if (lane == 0) {
			barrier_init(barrier, 1);
			fence_barrier_init();
		}
		__syncwarp();
	}

	__device__ __forceinline__ void fetch(const char *from, u32 bytes) const {
		if (lane != 0) return;
		bulk_wait_read(); // the stores before have read the buffer
		barrier_expect(barrier, bytes);
		bulk_load(buffer, from, bytes, barrier);
	}

	__device__ __forceinline__ void await() {
		while (!barrier_awaited(barrier, parity)) {
		}
		__syncwarp();
		parity ^= 1;
	}

	// commit follows the last store of a chunk.
	__device__ __forceinline__ void store(char *to, u32 bytes) const {
		if (lane == 0) bulk_store(to, buffer, bytes);
	}

	__device__ __forceinline__ void commit() const {
		if (lane == 0) bulk_commit();
	}

	// finish returns when all stores are done.
	__device__ __forceinline__ void finish() const {
		if (lane == 0) bulk_wait();
	}
};
#endif

} // namespace weft
