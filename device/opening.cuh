// The opening exchange: every rank sends every rank the fact that it has begun an operation, and
// the call's tag. A peer that makes another call ends the operation with CAUSE_MISMATCH.
//
// An opening is a value that is its own flag, of four words: two that the operation defines, the
// call's tag, and 0. The window has a region of 3 turns x [ranks] openings, of ones in the
// beginning. The openings of the turn before are emptied when those of this turn have come. The
// sender writes them again two operations later. By then it has the opening of this rank's next
// operation.
#pragma once
#include "flags.cuh"

namespace weft {

constexpr u32 OPENING_BYTES = 16; // of a rank, in a turn. Go: device.OpeningBytes

// opening_at is where src's opening stands in the window of the rank that it was sent to. region is
// the offset of the region.
__device__ __forceinline__ u64 opening_at(const Group &g, u64 region, u32 turn, u32 src) {
	return region + ((u64)turn * g.ranks + src) * OPENING_BYTES;
}

// announce sends this rank's opening to rank r, unless r is masked. Neither x nor y is EMPTY.
__device__ __forceinline__ void announce(const Group &g, const RankSet &mask, u64 region, u32 turn, u32 r, u32 call,
										 u32 x, u32 y) {
	if (holds(mask, r)) return;
	store_relaxed_sys16(g.window[r] + opening_at(g, region, turn, g.rank), make_uint4(x, y, call, 0));
}

// check_call ends the operation if src's opening is of another call.
__device__ __forceinline__ void check_call(Wait &w, u32 src, uint4 opening, u32 call) {
	if (!w.over && opening.z != call) w.give_up(src, CAUSE_MISMATCH, call, opening.z);
}

// await_peer waits for the opening of src, which is not masked, and gives it. The caller then sees
// the stores of src's earlier kernels.
__device__ __forceinline__ uint4 await_peer(Wait &w, const char *own, u64 region, u32 turn, u32 src, u32 call) {
	const char *p = own + opening_at(w.group, region, turn, src);
	uint4 v = load_acquire_sys16(p);
	while (!full(v) && !w.over && w.more(src, 0, v.w)) v = load_acquire_sys16(p);
	check_call(w, src, v, call);
	WEFT_TRACED(if (blockIdx.x == 0 && src != w.group.rank && !w.over) w.trace.arrived(src);)
	return v;
}

// count_openings counts how long the ranks keep this one waiting for their openings. One warp of the
// launch calls it.
__device__ __forceinline__ void count_openings(Wait &w, const char *own, const RankSet &mask, u64 region, u32 turn) {
	count_waits(w, mask,
				[&](u32 src) { return full(load_relaxed_sys16(own + opening_at(w.group, region, turn, src))); });
}

// empty_opening makes src's opening of the turn before ready for the next but one.
__device__ __forceinline__ void empty_opening(const Group &g, char *own, u64 region, u32 turn, u32 src) {
	store16(own + opening_at(g, region, turn_before(turn), src), empty16());
}

// await_peers waits for all openings, and calls f(src, opening) for each; those of masked ranks are
// zeros. It fills the openings of the turn before with ones. One warp of the launch calls it. It
// orders nothing: f uses the openings' own words alone.
template <class F> __device__ __forceinline__ void await_peers(Wait &w, char *own, const RankSet &mask, u64 region,
															   u32 turn, u32 call, F f) {
	const Group &g = w.group;
	count_openings(w, own, mask, region, turn);
	for (u32 src = threadIdx.x & 31; src < g.ranks; src += 32) {
		uint4 opening = make_uint4(0, 0, call, 0);
		if (!holds(mask, src)) opening = await16(w, src, own + opening_at(g, region, turn, src));
		check_call(w, src, opening, call);
		WEFT_TRACED(if (src != g.rank && !holds(mask, src) && !w.over) w.trace.arrived(src);)
		f(src, opening);
		empty_opening(g, own, region, turn, src);
	}
	__syncwarp();
}

} // namespace weft
