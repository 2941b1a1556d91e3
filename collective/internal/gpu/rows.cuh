// Rows: a vector of every rank, reduced where a thread can load all of them.
#pragma once
#include "fold.cuh"
#include "slots.cuh"

namespace weft {

// fold_rows reduces a vector of every live rank in rank order: load(rank) gives a rank's.
template <class F> __device__ __forceinline__ uint4 fold_rows(const How &how, const Live &live, u32 ranks, F load) {
	Fold fold(how, live.count);
	bool begun = false;
	for (u32 r0 = 0; r0 < ranks; r0 += FLIGHT) {
		uint4 v[FLIGHT];
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (r0 + j < ranks && holds(live.set, r0 + j)) v[j] = load(r0 + j);
		}
		if (RANKS != 0 && live.all) {
			fold.rows(v);
			break;
		}
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (r0 + j >= ranks || !holds(live.set, r0 + j)) continue;
			if (begun) {
				fold.take(v[j]);
			} else {
				fold.start(v[j]);
			}
			begun = true;
		}
	}
	return fold.result();
}

} // namespace weft
