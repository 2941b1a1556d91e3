// Multicast: operands in windows whose multicast addresses reach all ranks at once. A store there goes to
// every rank, and a load gives the sum of what all of them hold: the switch does both. They are vectors of 16
// bytes at multiples of 16 (Body). What is before the first of them, and behind the last, goes by plain loads and
// stores.
//
// An access by a multicast address and one by another address of the same memory are ordered by fence_alias
// beside what orders accesses anyway:
//
//	ready   the words of the ranks, fence_alias, then accesses by multicast addresses
//	done    those accesses, fence_alias, then the block's barrier, the fence and the words of Meeting
//
// No rank is masked: the group of GPUs is that of all ranks. The host sees to that.
#pragma once
#include "direct.cuh"

namespace weft {

// fly_all moves all vectors, which threads take in turn, between multicast addresses and others.
template <class L, class S>
__device__ __forceinline__ void fly_all(const Collective &c, u64 bytes, L load, S store) {
#if __CUDA_ARCH__ >= 900
	u32 vectors = (u32)(bytes / 16);
	fence_alias();
	for (u64 i = c.at; i < vectors; i += FLYING * (u64)c.step) fly<FLYING>((u32)i, c.step, vectors, load, store);
	fence_alias();
#endif
}

} // namespace weft
