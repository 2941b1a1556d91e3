// Sets of ranks. WEFT_DOMAIN_RANKS is the domain size that a kernel is compiled for: the most ranks
// whose memory a GPU reaches. A set of up to 64 ranks is one word, and costs no more than a word;
// in a domain of 32 the upper half of the word is empty.
#pragma once
#include "ptx.cuh"

#ifndef WEFT_DOMAIN_RANKS
#define WEFT_DOMAIN_RANKS 64
#endif

namespace weft {

constexpr u32 MAX_RANKS = WEFT_DOMAIN_RANKS;
constexpr u32 RANK_WORDS = (MAX_RANKS + 63) / 64; // words of a set
constexpr u32 RANK_LINES = (MAX_RANKS + 31) / 32; // ranks of a lane, if a warp's lanes share all

static_assert(MAX_RANKS >= 32 && MAX_RANKS <= 128, "a domain has 32 to 128 ranks");

// RankSet is a set of ranks: bit r of word r / 64 is rank r.
struct RankSet {
	u64 word[RANK_WORDS];

	__device__ __forceinline__ static RankSet none() {
		RankSet s;
#pragma unroll
		for (u32 i = 0; i < RANK_WORDS; i++) s.word[i] = 0;
		return s;
	}

	// one is {rank} if here, else the empty set.
	__device__ __forceinline__ static RankSet one(u32 rank, bool here = true) {
		RankSet s;
		if constexpr (RANK_WORDS == 1) {
			s.word[0] = here ? 1ull << rank : 0;
		} else {
#pragma unroll
			for (u32 i = 0; i < RANK_WORDS; i++) s.word[i] = here && rank / 64 == i ? 1ull << rank % 64 : 0;
		}
		return s;
	}

	// first_ranks is {0, ..., n-1}, for n from 1 to MAX_RANKS.
	__device__ __forceinline__ static RankSet first_ranks(u32 n) {
		RankSet s;
		if constexpr (RANK_WORDS == 1) {
			s.word[0] = ~0ull >> (64 - n);
		} else {
#pragma unroll
			for (u32 i = 0; i < RANK_WORDS; i++)
				s.word[i] = n >= 64 * i + 64 ? ~0ull : n > 64 * i ? ~0ull >> (64 * i + 64 - n) : 0;
		}
		return s;
	}

	// at is word i, or 0 if there is none.
	__device__ __forceinline__ u64 at(u32 i) const {
		u64 w = 0;
#pragma unroll
		for (u32 j = 0; j < RANK_WORDS; j++) w = i == j ? word[j] : w;
		return w;
	}

	// down moves every rank n down, and drops those that would be negative; up moves them n up.
	// n is less than MAX_RANKS.
	__device__ __forceinline__ RankSet down(u32 n) const {
		RankSet s;
		if constexpr (RANK_WORDS == 1) {
			s.word[0] = word[0] >> n;
		} else {
			u32 words = n / 64, rest = n % 64;
#pragma unroll
			for (u32 i = 0; i < RANK_WORDS; i++)
				s.word[i] = at(i + words) >> rest | (rest != 0 ? at(i + words + 1) << (64 - rest) : 0);
		}
		return s;
	}

	__device__ __forceinline__ RankSet up(u32 n) const {
		RankSet s;
		if constexpr (RANK_WORDS == 1) {
			s.word[0] = word[0] << n;
		} else {
			u32 words = n / 64, rest = n % 64;
#pragma unroll
			for (u32 i = 0; i < RANK_WORDS; i++) // a negative index is that of no word
				s.word[i] = at(i - words) << rest | (rest != 0 ? at(i - words - 1) >> (64 - rest) : 0);
		}
		return s;
	}

	__device__ __forceinline__ RankSet operator&(const RankSet &o) const {
		RankSet s;
#pragma unroll
		for (u32 i = 0; i < RANK_WORDS; i++) s.word[i] = word[i] & o.word[i];
		return s;
	}

	__device__ __forceinline__ RankSet operator|(const RankSet &o) const {
		RankSet s;
#pragma unroll
		for (u32 i = 0; i < RANK_WORDS; i++) s.word[i] = word[i] | o.word[i];
		return s;
	}

	__device__ __forceinline__ RankSet operator~() const {
		RankSet s;
#pragma unroll
		for (u32 i = 0; i < RANK_WORDS; i++) s.word[i] = ~word[i];
		return s;
	}

	__device__ __forceinline__ u32 count() const {
		u32 n = 0;
#pragma unroll
		for (u32 i = 0; i < RANK_WORDS; i++) n += __popcll((long long)word[i]);
		return n;
	}

	// before is how many ranks of the set are less than rank.
	__device__ __forceinline__ u32 before(u32 rank) const {
		if constexpr (RANK_WORDS == 1) {
			return __popcll((long long)(word[0] & ((1ull << rank) - 1)));
		} else {
			u32 n = 0;
#pragma unroll
			for (u32 i = 0; i < RANK_WORDS; i++) {
				u64 low = rank / 64 > i ? ~0ull : rank / 64 == i ? (1ull << rank % 64) - 1 : 0;
				n += __popcll((long long)(word[i] & low));
			}
			return n;
		}
	}
};

__device__ __forceinline__ bool holds(const RankSet &set, u32 rank) {
	if constexpr (RANK_WORDS == 1) {
		return (set.word[0] >> rank & 1) != 0;
	} else {
		return (set.at(rank / 64) >> rank % 64 & 1) != 0;
	}
}

// nonempty, lowest and drop_lowest go through a set, of ranks or of a word's bits, from its least on.
__device__ __forceinline__ bool nonempty(const RankSet &set) {
	u64 all = set.word[0];
#pragma unroll
	for (u32 i = 1; i < RANK_WORDS; i++) all |= set.word[i];
	return all != 0;
}

__device__ __forceinline__ u32 lowest(const RankSet &set) {
	u32 r = (u32)__ffsll((long long)set.word[RANK_WORDS - 1]) - 1 + 64 * (RANK_WORDS - 1);
#pragma unroll
	for (u32 i = RANK_WORDS - 1; i-- > 0;) {
		if (set.word[i] != 0) r = (u32)__ffsll((long long)set.word[i]) - 1 + 64 * i;
	}
	return r;
}

__device__ __forceinline__ void drop_lowest(RankSet &set) {
	bool dropped = false;
#pragma unroll
	for (u32 i = 0; i < RANK_WORDS; i++) {
		if (i + 1 < RANK_WORDS && (dropped || set.word[i] == 0)) continue;
		if (!dropped) set.word[i] &= set.word[i] - 1;
		dropped = true;
	}
}

__device__ __forceinline__ bool nonempty(u32 bits) { return bits != 0; }
__device__ __forceinline__ u32 lowest(u32 bits) { return (u32)__ffs((int)bits) - 1; }
__device__ __forceinline__ void drop_lowest(u32 &bits) { bits &= bits - 1; }

// union_of is the union of all lanes' sets. All lanes of the warp call it.
__device__ __forceinline__ RankSet union_of(const RankSet &set) {
	RankSet s;
#pragma unroll
	for (u32 i = 0; i < RANK_WORDS; i++) {
		u32 low = __reduce_or_sync(0xFFFFFFFFu, (u32)set.word[i]);
		u32 high = MAX_RANKS <= 32 ? 0 : __reduce_or_sync(0xFFFFFFFFu, (u32)(set.word[i] >> 32));
		s.word[i] = (u64)high << 32 | low;
	}
	return s;
}

// Round goes through a set of ranks from the rank after `from`, and ends with `from`.
struct Round {
#if WEFT_DOMAIN_RANKS <= 32
	u32 left; // rank i here is rank from + 1 + i, modulo ranks
#else
	RankSet left;
#endif
	u32 from, ranks;

	__device__ __forceinline__ Round(const RankSet &set, u32 from, u32 ranks) : from(from), ranks(ranks) {
#if WEFT_DOMAIN_RANKS <= 32
		u32 all = (u32)set.word[0]; // by from and by one: there may be 32
		left = all >> from >> 1 | (all & 0xFFFFFFFFu >> (31 - from)) << (ranks - 1 - from);
#else
		u32 up = from + 1; // as many as MAX_RANKS, where a shift by up would be none
		left = set.down(from).down(1) | (set & RankSet::first_ranks(up)).up(ranks - up);
#endif
	}

	__device__ __forceinline__ bool more() const { return nonempty(left); }

	__device__ __forceinline__ u32 next() {
		u32 r = from + 1 + lowest(left);
		drop_lowest(left);
		return r >= ranks ? r - ranks : r;
	}
};

} // namespace weft
