// Arrivals: how a thread waits for its peers' vectors and takes them. It looks at the slots of several ranks at a time,
// looks again at those that were empty, and takes the vectors in rank order, so that sums have one order.
#pragma once
#include "operands.cuh"
#include "operation.cuh"
#include "peers.cuh"

namespace weft {

// slot_of is where a vector of src's stands in a window, of an operation whose ranks have slot_bytes each.
__device__ __forceinline__ u64 slot_of(u64 turn, u32 src, u64 slot_bytes, u64 vector) {
	return turn + src * slot_bytes + vector * SLOT_BYTES;
}

// FLIGHT is how many ranks' slots of a vector a thread looks at together.
constexpr u32 FLIGHT = RANKS != 0 ? RANKS : 4;

// Looking is how a thread looks again at slots that were empty.
//
//	AT_ONCE  all loads are in flight together, so it sees the last vector soonest. It is faster for operations that
//	         send everything before they look.
//	IN_TURN  a load is back before the next one begins. A two-shot is faster so: its loads AT_ONCE delay the
//	         results that other warps send, and on four H100s 1 MB takes 8.2 us in place of 7.8. Rooted operations by
//	         helpers have too few registers for AT_ONCE.
enum Looking { AT_ONCE, IN_TURN };

// TRIES is how often a thread looks at all its slots. After that it waits for one after the other, with the deadline.
constexpr u32 TRIES = 64;

// Looks is what was seen in the slots of a vector, of FLIGHT ranks from `first` on. A thread begins to look for its
// first vector before Collective::clear and note, which take as long as the look.
struct Looks {
	Slot s[FLIGHT];

	// missing says of which ranks the slots were empty, a bit each, among those that wants(j) of rank first + j.
	template <class W> __device__ __forceinline__ u32 missing(W wants) const {
		u32 m = 0;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) m |= (u32)(wants(j) && !there(s[j])) << j;
		return m;
	}

	// again looks at the slots of missing ranks once more. All loads are in flight together.
	__device__ __forceinline__ void again(u32 missing, const char *slots, u64 slot_bytes) {
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if ((missing >> j & 1) != 0) s[j] = look(slots + j * slot_bytes);
		}
	}

	// try_all looks until all vectors that are wanted are there, at most TRIES times. It returns the missing ones. Kernels
	// that trace call saw(j) for each that is there, after every look.
	template <class W, class F>
	__device__ __forceinline__ u32 try_all(const char *slots, u64 slot_bytes, W wants, F saw) {
		u32 rest = missing(wants);
		WEFT_TRACED(show(wants, saw);)
#pragma unroll 1
		for (u32 tries = 0; rest != 0 && tries < TRIES; tries++) {
			again(rest, slots, slot_bytes);
			rest = missing(wants);
			WEFT_TRACED(show(wants, saw);)
		}
		return rest;
	}

#if WEFT_TRACE
	template <class W, class F> __device__ __forceinline__ void show(W wants, F saw) const {
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (wants(j) && there(s[j])) saw(j);
		}
	}
#endif

	// look_at begins: it looks at the slots of the FLIGHT ranks from `first` on.
	template <class W> __device__ __forceinline__ void look_at(u32 first, u32 ranks, const RankSet &from,
															  const char *slots, u64 slot_bytes, W wants) {
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			u32 r = first + j;
			if (r < ranks && holds(from, r) && wants(r)) s[j] = look(slots + r * slot_bytes);
		}
	}
};

// Arrivals takes peers' data from its slots, one vector after the other: look(vector), then fold or each.
template <Looking LOOKING = AT_ONCE> struct Arrivals {
	Wait &wait;
	const Lane &lane;
	const Live &live;
	char *slots; // rank 0's, of vector 0
	u64 slot_bytes;
	u32 ranks;
	Looks looks;
	WEFT_TRACED(u32 phase = 0, noted = 0;) // phase 1: of what was reduced; noted: ranks that were seen before take

	__device__ __forceinline__ Arrivals(Wait &w, const Lane &l, const Live &live, char *slots, u64 slot_bytes)
		: wait(w), lane(l), live(live), slots(slots), slot_bytes(slot_bytes), ranks(RANKS != 0 ? RANKS : w.group.ranks) {}

	__device__ __forceinline__ char *slot(u32 rank, u32 vector) const {
		return slots + (u64)vector * SLOT_BYTES + rank * slot_bytes;
	}

	// look begins a vector: its data comes from a set of ranks, where wants(rank).
	template <class W> __device__ __forceinline__ void look(u32 vector, const RankSet &from, W wants) {
		looks.look_at(0, ranks, from, slot(0, vector), slot_bytes, wants);
	}
	__device__ __forceinline__ void look(u32 vector) {
		look(vector, live.others, [](u32) { return true; });
	}

	// take waits for a rank's vector, of which `seen` was seen, and gives it with the bits that it had.
	__device__ __forceinline__ uint4 take(u32 rank, u32 vector, const Slot &seen) {
		uint4 v = await(wait, rank, slot(rank, vector), seen);
		if (!wait.over) wait.over = !restore(wait.group, lane, wait.epoch, rank, slot(rank, vector), v);
		WEFT_TRACED(if (!wait.over) note(rank); noted &= ~(1u << (rank & 31));)
		if (lane.clear != 0) empty(lane, slot(rank, vector));
		return v;
	}

#if WEFT_TRACE
	// note notes that a rank's vector was seen, the first time until it is taken.
	__device__ __forceinline__ void note(u32 rank) {
		if (threadIdx.x != 0 || (noted >> (rank & 31) & 1) != 0) return;
		noted |= 1u << (rank & 31);
		wait.trace.arrived(rank, phase);
	}
#endif

	// fold reduces a vector that was looked at, of every live rank in rank order; own is this rank's. F is
	// a Fold.
	template <class F> __device__ __forceinline__ void fold(F &fold, u32 vector, uint4 own) {
		u32 me = wait.group.rank;
		if (RANKS != 0 && live.all) {
			if (LOOKING == AT_ONCE && !wait.over) {
				looks.try_all(slot(0, vector), slot_bytes, [&](u32 r) { return r != me; },
							  [&](u32 r) { WEFT_TRACED(note(r);) });
			}
			uint4 v[FLIGHT];
#pragma unroll
			for (u32 r = 0; r < FLIGHT; r++) {
				v[r] = own;
				if (r != me) v[r] = take(r, vector, looks.s[r]);
			}
			return fold.rows(v);
		}
		bool begun = false;
		for (u32 first = 0; first < ranks; first += FLIGHT) {
			if (first != 0)
				looks.look_at(first, ranks, live.others, slot(0, vector), slot_bytes, [](u32) { return true; });
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				u32 r = first + j;
				if (r >= ranks || !holds(live.set, r)) continue;
				uint4 v = own;
				if (r != me) v = take(r, vector, looks.s[j]);
				if (begun) {
					fold.take(v);
				} else {
					fold.start(v);
				}
				begun = true;
			}
		}
	}

	// each calls f(rank, vector's data) for every rank of a set that was looked at.
	template <class W, class F> __device__ __forceinline__ void each(u32 vector, const RankSet &from, W wants, F f) {
		for (u32 first = 0; first < ranks; first += FLIGHT) {
			if (first != 0) looks.look_at(first, ranks, from, slot(0, vector), slot_bytes, wants);
			auto waits = [&](u32 j) { return first + j < ranks && holds(from, first + j) && wants(first + j); };
			if (LOOKING == AT_ONCE && !wait.over) {
				looks.try_all(slot(first, vector), slot_bytes, waits, [&](u32 j) { WEFT_TRACED(note(first + j);) });
			}
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				u32 r = first + j;
				if (r >= ranks || !holds(from, r) || !wants(r)) continue;
				uint4 v = take(r, vector, looks.s[j]);
				if (!wait.over) f(r, v);
			}
		}
	}
};

} // namespace weft
