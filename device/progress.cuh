// Words by which a kernel and a collective of another stream meet part by part.
//
//	progress  an all-gather raises a word by one when the part of the output that it stands for has landed:
//	          progress_wait in the kernel that uses the output
//	ready     a reduce-scatter reads a part of its input when the word is not 0, and makes it 0 then:
//	          ready_raise in the kernel that makes the input, ready_taken before it makes the next one
//
// Progress words only grow: the kernel counts the calls, in memory of its own if it is in a graph. A kernel
// that waits takes no SM that the other needs: the group leaves some free (Options.SMs).
#pragma once
#include "ptx.cuh"

namespace weft {

// progress_wait waits until a word has been raised `times` times. False: it has not been after `patience` nanoseconds.
// One thread calls it; after a __syncthreads the block may read the part that the word stands for.
__device__ __forceinline__ bool progress_wait(const u64 *word, u64 times, u64 patience) {
	u64 begun = nanoseconds();
	while (load_acquire_sys_u64(word) < times) {
		if (nanoseconds() - begun > patience) return false;
	}
	return true;
}

// ready_taken waits until the part that a word stands for may be written: the collective has read it. False: it may not
// be after `patience` nanoseconds. One thread calls it; after a __syncthreads the block may write.
__device__ __forceinline__ bool ready_taken(const u64 *word, u64 patience) {
	u64 begun = nanoseconds();
	while (load_acquire_sys_u64(word) != 0) {
		if (nanoseconds() - begun > patience) return false;
	}
	return true;
}

// last_to_arrive is true on one thread of the last of `blocks` blocks that call it with the same count, which is 0
// before and after. That thread sees what all threads of these blocks have stored, and its next release passes that on.
// All threads of a block call it.
__device__ __forceinline__ bool last_to_arrive(u32 *count, u32 blocks) {
	__syncthreads();
	if (threadIdx.x != 0) return false;
	fence_gpu();
	if (atomic_add_gpu4(count, 1) != blocks - 1) return false;
	fence_gpu();
	store_relaxed_gpu4(count, 0);
	return true;
}

// ready_raise says that a block has written the part that a word stands for. With a count in this GPU's memory, the
// last of `blocks` blocks says so for all. All threads call it.
__device__ __forceinline__ void ready_raise(u64 *word) {
	__syncthreads();
	if (threadIdx.x == 0) store_release_sys_u64(word, 1);
}
__device__ __forceinline__ void ready_raise(u64 *word, u32 *count, u32 blocks) {
	if (last_to_arrive(count, blocks)) store_release_sys_u64(word, 1);
}

} // namespace weft
