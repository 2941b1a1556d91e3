// Helpers: the ranks but the root, each with a share of a rooted operation's vectors. The root's link carries
// each vector once, and so does a helper's.
#pragma once
#include "slots.cuh"

namespace weft {

// Helpers are the live ranks but the root, and the vectors that they have: their numbers differ by one at most.
struct Helpers {
	const Live &live;
	u32 root, each, more; // the first `more` have one more
	RankSet set;

	__device__ __forceinline__ Helpers(u32 vectors, const Live &live, int root)
		: live(live), root((u32)root), each(vectors / (live.count - 1)), more(vectors - each * (live.count - 1)),
		  set(live.set & ~RankSet::one((u32)root)) {}

	__device__ __forceinline__ u32 number(u32 rank) const { return live.number(rank) - (rank > root ? 1 : 0); }
	__device__ __forceinline__ u32 first(u32 rank) const {
		u32 n = number(rank);
		return n * each + min(n, more);
	}
	__device__ __forceinline__ u32 size(u32 rank) const { return each + (number(rank) < more ? 1 : 0); }
	__device__ __forceinline__ u32 longest() const { return each + (more != 0 ? 1 : 0); }
	__device__ __forceinline__ bool has(u32 rank, u32 i) const { return holds(set, rank) && i < size(rank); }
};

} // namespace weft
