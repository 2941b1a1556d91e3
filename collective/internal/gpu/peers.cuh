// The ranks of an operation: which are live, where their windows are, a vector for each of them, and how vectors are
// cut into shares of theirs.
//
// Where the number of ranks is known at compile time (RANKS), loops over ranks are unrolled and all vectors of a thread
// are in registers. Else a warp goes round the ranks.
#pragma once
#include "encodings.cuh"

namespace weft {

// Live is the live ranks of an operation, those that are not masked, numbered from 0 in rank order.
struct Live {
	RankSet set, others;
	u32 count, own; // how many, and this rank's number among them
	bool all;		// no rank is masked

	__device__ __forceinline__ Live(const Group &g, const RankSet &mask) {
		u32 n = RANKS != 0 ? RANKS : g.ranks;
		set = RankSet::first_ranks(n) & ~mask;
		others = set & ~RankSet::one(g.rank);
		all = !nonempty(RankSet::first_ranks(n) & mask);
		count = all ? n : set.count();
		own = number(g.rank);
	}
	__device__ __forceinline__ u32 number(u32 rank) const { return all ? rank : set.before(rank); }
};

// Peers reach the windows of other ranks. Where the number of ranks is known at compile time they are
// constants of the launch; else a warp keeps them in its registers.
struct Peers {
	const Group &g;
#if WEFT_RANKS == 0
	Windows windows;
	__device__ __forceinline__ Peers(const Group &g) : g(g), windows(g) {}
#else
	__device__ __forceinline__ Peers(const Group &g) : g(g) {}
#endif

	// each calls f(rank, window) for every rank of a set. All lanes of the warp call it.
	template <class F> __device__ __forceinline__ void each(const RankSet &set, F f) const {
#if WEFT_RANKS == 0
		for (Round round(set, g.rank, g.ranks); round.more();) {
			u32 r = round.next();
			f(r, windows.of(r));
		}
#else
#pragma unroll
		for (u32 r = 0; r < RANKS; r++) {
			if (holds(set, r)) f(r, g.window[r]);
		}
#endif
	}
};

#if WEFT_RANKS != 0
// Vectors are one of each rank.
struct Vectors {
	uint4 v[RANKS];

	// of is a rank's that is not known at compile time.
	__device__ __forceinline__ uint4 of(u32 rank) const {
		uint4 w = v[0];
#pragma unroll
		for (u32 r = 1; r < RANKS; r++) {
			if (r == rank) w = v[r];
		}
		return w;
	}
};
#endif

// Parts are a vector of each rank's part, on the way to the ranks. Where the number of ranks is known at
// compile time all of them are loaded before the first is sent; a kernel loads those of a thread's first
// vector before it knows which ranks take part. F gives a rank's: load(rank).
struct Parts {
#if WEFT_RANKS == 0
	template <class F> __device__ __forceinline__ void fetch(F) {}
	// send sends to every rank of a set, at an offset in the rank's window, where has(rank). All lanes of
	// the warp call it.
	template <class H, class F>
	__device__ __forceinline__ void send(const Lane &l, const Peers &peers, const RankSet &to, u64 slot, H has,
										 F load) const {
		peers.each(to, [&](u32 r, char *there) {
			if (has(r)) deliver(l, there, slot, load(r));
		});
	}
	// of gives a rank's part, where that has been fetched.
	template <class F> __device__ __forceinline__ uint4 of(u32 rank, F load) const { return load(rank); }
#else
	Vectors all;

	template <class F> __device__ __forceinline__ void fetch(F load) {
#pragma unroll
		for (u32 r = 0; r < RANKS; r++) all.v[r] = load(r);
	}
	template <class H, class F>
	__device__ __forceinline__ void send(const Lane &l, const Peers &peers, const RankSet &to, u64 slot, H has, F) const {
		peers.each(to, [&](u32 r, char *there) {
			if (has(r)) deliver(l, there, slot, all.v[r]);
		});
	}
	template <class F> __device__ __forceinline__ uint4 of(u32 rank, F) const { return all.of(rank); }
#endif
};

// Shares cuts vectors into one share for each live rank, or for so many of them, by its number: they differ by one at
// most.
struct Shares {
	u32 each, more; // the first `more` have one more

	__device__ __forceinline__ Shares(u32 vectors, const Live &live) {
		each = RANKS != 0 && live.all ? vectors / (RANKS != 0 ? RANKS : 1) : vectors / live.count;
		more = vectors - each * live.count;
	}
	__device__ __forceinline__ Shares(u32 vectors, u32 count) : each(vectors / count), more(vectors - each * count) {}
	__device__ __forceinline__ u32 first(u32 number) const { return number * each + min(number, more); }
	__device__ __forceinline__ u32 size(u32 number) const { return each + (number < more ? 1 : 0); }
	__device__ __forceinline__ u32 longest() const { return each + (more != 0 ? 1 : 0); }
};

} // namespace weft
