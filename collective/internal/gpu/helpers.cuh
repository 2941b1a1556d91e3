// Helpers: the ranks but the root, each with a share of a rooted operation's vectors. The root's link carries
// each vector once, and so does a helper's.
#pragma once
#include "slots.cuh"

namespace weft {

// Helpers are the live ranks but the root, and the vectors that they have.
struct Helpers {
	const Live &live;
	u32 root;
	Shares shares;
	RankSet others; // helpers but this rank

	__device__ __forceinline__ Helpers(u32 vectors, const Live &live, int root)
		: live(live), root((u32)root), shares(vectors, live.count - 1), others(live.others & ~RankSet::one((u32)root)) {}

	__device__ __forceinline__ u32 number(u32 rank) const { return live.number(rank) - (rank > root ? 1 : 0); }
	__device__ __forceinline__ u32 first(u32 rank) const { return shares.first(number(rank)); }
	__device__ __forceinline__ u32 size(u32 rank) const { return shares.size(number(rank)); }

	// send sends the others their shares of an operand, to slots of this rank's in their windows.
	__device__ __forceinline__ void send(const Lane &l, const Collective &c, const Peers &peers, const Part &in,
										 u64 slot_bytes) const {
		for (u32 base = c.at & ~31u; base < shares.longest(); base += c.step) {
			u32 i = base + (threadIdx.x & 31);
			auto has = [&](u32 r) { return holds(others, r) && i < size(r); };
			auto load = [&](u32 r) { return has(r) ? in.load(first(r) + i) : make_uint4(0, 0, 0, 0); };
			Parts parts;
			parts.fetch(load);
			parts.send(l, peers, others, slot_of(c.turn, peers.g.rank, slot_bytes, i), has, load);
		}
	}

	// take stores the others' shares, as they arrive, where they belong in an operand.
	__device__ __forceinline__ void take(const Collective &c, Arrivals<IN_TURN> &arrivals, const Part &out) const {
		for (u32 i = c.at; i < shares.longest(); i += c.step) {
			auto has = [&](u32 r) { return i < size(r); };
			arrivals.look(i, others, has);
			arrivals.each(i, others, has, [&](u32 r, uint4 v) { out.store(first(r) + i, v); });
		}
	}
};

} // namespace weft
