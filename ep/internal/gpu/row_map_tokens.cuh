// The row map of token-major rows: a token has one row at each rank that it goes to.
//
// A TokenMap has, for each rank, a bit for each token of the block's share: the token goes there. A block tells
// every rank what follows from its bits, in words that are their own flags (row_map.cuh):
//
//	the tokens of the block for each rank, to every rank
//	the selections of each expert, the bits themselves, and how many selections there are, to the rank concerned
//	the selections themselves, to the rank concerned: for each what it is and its weight, in any order
//
// So each block of each rank adds up by itself what lower ranks and lower blocks have. Nothing passes from block
// to block of one rank, and the row of every token is known before its selections come:
//
//	row = lower ranks' tokens for the rank + the source's lower blocks' + lower set bits of the block's map
//
// Ordering. A word refers to no other memory, so it needs no fence, and words may come in any order. A block tells all
// that it has to tell before it awaits anything of peers, so what is missing is its sender's own delay. It awaits all
// that its own number of each rank tells it, and counts of every block of every rank.
//
// Selections may come before the counts that say how many there are. Of the first four sources a thread reads those
// that it takes first while others still count. It looks at their numbers when it knows how many come, and reads a
// place again whose selection had not come.
//
// What is told stands in one of two buffers: a source stores there again two operations later at the earliest. It has
// then ended the operation between, in which it heard of each block of this rank, and those began when this rank's
// prepare had ended. That end also orders what a block has emptied before what comes next.
#pragma once
#include "row_map_arrived.cuh"

namespace weft {

// TokenMap is what a block counts. It stands in shared memory, or in global memory of the block's own if shared
// memory has no room for it. Go: tokenMapBytes.
struct TokenMap {
	uint2 *own, *arrived; // [ranks][words]: bits of 32 tokens, and how many bits are set in the words before
	u32 *experts;		  // [experts]: selections
	u32 *own_bases;		  // [ranks]: the row of the block's first token at each rank
	u32 *arrived_bases;	  // [ranks]: the row of the first token that comes from each rank's block
	u32 *sent, *coming;	  // [ranks]: selections told so far; selections that come from each rank's block

	__device__ __forceinline__ TokenMap(const RowMap &a, char *shared) {
		u32 n = a.group.ranks * words(a), size = 4 * n + 4 * a.group.ranks + ((a.shape.experts + 1) & ~1u);
		own = (uint2 *)(EVEN || a.map_entries != 0 ? shared : (char *)(a.bases + (u64)blockIdx.x * size));
		arrived = own + n;
		experts = (u32 *)(arrived + n);
		own_bases = experts + a.shape.experts;
		arrived_bases = own_bases + a.group.ranks;
		sent = arrived_bases + a.group.ranks;
		coming = sent + a.group.ranks;
	}

	// clear empties what is counted. All threads of the block call it, and a barrier follows.
	__device__ __forceinline__ void clear(const RowMap &a) const {
		for (u32 i = threadIdx.x; i < a.group.ranks * words(a); i += blockDim.x) own[i].x = 0;
		for (u32 i = threadIdx.x; i < a.shape.experts; i += blockDim.x) experts[i] = 0;
		for (u32 i = threadIdx.x; i < a.group.ranks; i += blockDim.x) sent[i] = 0;
	}
};

// row_of is the row of token t of a share, which comes, by the words of its rank.
__device__ __forceinline__ u32 row_of(uint2 word, u32 base, u32 t) {
	return base + word.y + __popc(word.x & ((1u << t % 32) - 1));
}

// sum_to_lane is the sum of n of the lower lanes and of this one. A warp calls it.
__device__ __forceinline__ u32 sum_to_lane(u32 n) {
	u32 lane = threadIdx.x & 31;
#pragma unroll
	for (u32 d = 1; d < 32; d *= 2) {
		u32 left = __shfl_up_sync(0xFFFFFFFFu, n, d);
		if (lane >= d) n += left;
	}
	return n;
}

// number_words writes n words whose bits are bits_of(i), with the set bits before each. It returns how many are
// set. A warp calls it.
template <class F> __device__ __forceinline__ u32 number_words(uint2 *words, u32 n, F bits_of) {
	u32 lane = threadIdx.x & 31, before = 0;
#pragma unroll 1
	for (u32 first = 0; first < n; first += 32) {
		u32 i = first + lane, bits = i < n ? bits_of(i) : 0, set = __popc(bits);
		__syncwarp();
		u32 end = sum_to_lane(set);
		if (i < n) words[i] = make_uint2(bits, before + end - set);
		before += __shfl_sync(0xFFFFFFFFu, end, 31);
	}
	return before;
}

// count_tokens counts the block's tokens. All threads of the block call it, and a barrier follows.
__device__ __forceinline__ void count_tokens(const RowMap &a, const OwnTokens &own, const TokenMap &m) {
	u32 lane = threadIdx.x & 31;
	own.each(a, own.q, own.share.from, own.share.to, [&](const Selections &c) {
		u32 rank[QUAD], at = c.t - own.share.from;
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			rank[j] = c.e[j] != 0 ? c.rank(a, j) : MAX_RANKS;
			if (c.e[j] != 0) atomicAdd(m.experts + c.e[j] - 1, 1u);
		}
		each_rank_line(a, rank, at, [&](u32 r, u32 tokens) {
			if (tokens != 0) atomicOr(&m.own[(r + lane) * words(a) + at / 32].x, tokens);
		});
	});
}

// send_shares tells the ranks what the block has counted. The last warps do, of which the most have no selections:
// meanwhile others tell theirs. All threads of the block call it.
__device__ __forceinline__ void send_shares(const RowMap &a, const Operation &o, const Windows &windows,
											const TokenMap &m) {
	u32 ranks = a.group.ranks, rank = a.group.rank, lane = threadIdx.x & 31, warps = blockDim.x / 32;
	// A warp has one after another: a rank's tokens, 32 experts.
#pragma unroll 1
	for (u32 i = warps - 1 - threadIdx.x / 32; i < ranks + (a.shape.experts + 31) / 32; i += warps) {
		if (i >= ranks) {
			u32 e = (i - ranks) * 32 + lane, r = e < a.shape.experts ? rank_of(a.shape, e) : 0;
			char *window = windows.each(r);
			if (e < a.shape.experts && !holds(o.mask, r))
				store_relaxed_sys_u64(window + share_at(a, o, rank, blockIdx.x, e - r * a.shape.local),
									  o.epoch << 32 | m.experts[e]);
			continue;
		}
		uint2 *own = m.own + i * words(a);
		char *to = windows.of(i) + share_at(a, o, rank, blockIdx.x, a.shape.local);
		bool here = !holds(o.mask, i);
		u32 selections = 0;
#pragma unroll 1
		for (u32 e = lane; e < a.shape.local; e += 32) selections += m.experts[i * a.shape.local + e];
		selections = __reduce_add_sync(0xFFFFFFFFu, selections);
		if (here && lane == 0) store_relaxed_sys_u64(to + (u64)words(a) * 8, o.epoch << 32 | selections);
		u32 n = number_words(own, words(a), [&](u32 word) {
			u32 bits = own[word].x;
			if (here) store_relaxed_sys_u64(to + (u64)word * 8, o.epoch << 32 | bits);
			return bits;
		});
#pragma unroll 1
		for (u32 first = 0; first < ranks; first += 32) {
			char *window = windows.each(first + lane);
			if (first + lane < ranks && !holds(o.mask, first + lane))
				store_relaxed_sys_u64(window + block_tokens_at(a, o, rank, blockIdx.x, i), o.epoch << 32 | n);
		}
	}
}

// SelectionBits says where a word has what a selection is: its token's number in the share, its k, and its local
// expert + 1. Go: selectionBits.
struct SelectionBits {
	u32 k, expert; // bits

	__device__ __forceinline__ SelectionBits(const RowMap &a)
		: k(32 - __clz((int)(a.shape.topk - 1))), expert(32 - __clz((int)a.shape.local)) {}

	__device__ __forceinline__ u32 word(u32 t, u32 at, u32 le) const { return (t << k | at) << expert | (le + 1); }
};

// selection_epoch is the number that the words of a selection carry. A place may stay empty for any number of
// operations, so 0 must not be a number. The operation that has the same number uses the other buffer.
__device__ __forceinline__ u64 selection_epoch(const Operation &o) { return o.epoch + ((u32)o.epoch == 0 ? 1 : 0); }

// send_selections tells the ranks the block's selections. The lanes of a warp whose next selection is of the same rank
// take that rank's next places, one behind another, so their stores meet in one packet. All threads of the block call
// it.
__device__ __forceinline__ void send_selections(const RowMap &a, const Operation &o, const Windows &windows,
												const OwnTokens &own, const TokenMap &m) {
	u32 lane = threadIdx.x & 31;
	u64 epoch = selection_epoch(o) << 32;
	SelectionBits bits(a);
	own.each(a, own.q, own.share.from, own.share.to, [&](const Selections &c) {
		u32 rank[QUAD], same[QUAD], first[QUAD];
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			rank[j] = c.e[j] != 0 ? c.rank(a, j) : MAX_RANKS;
			same[j] = __match_any_sync(0xFFFFFFFFu, rank[j]);
		}
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			bool leads = rank[j] < MAX_RANKS && same[j] << (31 - lane) == 1u << 31;
			first[j] = leads ? atomicAdd(m.sent + rank[j], (u32)__popc(same[j])) : 0;
		}
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			u32 place = __shfl_sync(0xFFFFFFFFu, first[j], __ffs((int)same[j]) - 1) + __popc(same[j] & ((1u << lane) - 1));
			char *window = windows.each(rank[j]);
			if (rank[j] == MAX_RANKS || holds(o.mask, rank[j])) continue;
			u32 what = bits.word(c.t - own.share.from, own.q.k + j, c.e[j] - 1 - rank[j] * a.shape.local);
			store_relaxed_sys_u64x2(window + selection_at(a, o, a.group.rank, blockIdx.x, place),
									make_ulonglong2(epoch | what, epoch | c.weight[j]));
		}
	});
}

// sum_shares waits for a count of all blocks. For each 32 sources, in order, it calls f(source, all, lower) with a
// source for each lane: the sum of its blocks, and of those below this one. Both are 0 for a source that is not there.
// place(source, block) is where a count stands. A warp calls it.
template <class P, class F>
__device__ __forceinline__ void sum_shares(const RowMap &a, const Operation &o, Wait &w, P place, F f) {
	constexpr u32 FLIGHT = 4; // sources whose counts are read at once, of as many blocks as a warp has lanes
	u32 lane = threadIdx.x & 31, ranks = a.group.ranks;
	auto at = [&](u32 src, u32 block) { return o.own + place(src, block); };
	auto read = [&](u32 src, u32 first, u64(&v)[FLIGHT]) {
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			bool there = first + lane < a.blocks && src + j < ranks && !holds(o.mask, src + j);
			v[j] = there ? load_relaxed_sys_u64(at(src + j, first + lane)) : o.epoch << 32;
		}
	};
	u64 next[FLIGHT]; // on their way
	u32 all = 0, lower = 0;
	read(0, 0, next);
#pragma unroll 1
	for (u32 src = 0, first = 0; src < ranks;) {
		u64 v[FLIGHT];
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) v[j] = next[j];
		u32 block = first + lane, here = src;
		first += 32;
		if (first >= a.blocks) first = 0, src += FLIGHT;
		if (src < ranks) read(src, first, next);
#pragma unroll 1
		for (;;) { // until all of them are there: those that were late are read again at once
			u32 late = FLIGHT;
#pragma unroll
			for (u32 j = FLIGHT; j-- > 0;) {
				if ((u32)(v[j] >> 32) != (u32)o.epoch) late = j;
			}
			if (late == FLIGHT || w.over) break;
			u64 now = await_late_count(a.group, a.state, o.epoch, here + late, at(here + late, block));
			w.over = (u32)(now >> 32) != (u32)o.epoch;
			read(here, block - lane, v);
		}
		__syncwarp();
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			u32 n = (u32)v[j], sum = __reduce_add_sync(0xFFFFFFFFu, n),
				below = __reduce_add_sync(0xFFFFFFFFu, block < blockIdx.x ? n : 0);
			if (lane == (here + j) % 32) all += sum, lower += below;
		}
		if (first != 0 || (src % 32 != 0 && src < ranks)) continue;
		f(here / 32 * 32 + lane, all, lower);
		all = lower = 0;
	}
}

// describe_tokens describes what rank i needs, or if i is no rank an expert: sum of all sources. It is not inlined, so
// that the places of what it stores take no registers of those that wait.
__device__ __noinline__ void describe_tokens(const RowMap &a, u32 i, u32 expert, u32 sum, bool absent, u32 epoch) {
	Described d(a.described, a.shape.local, a.group.ranks);
	if (i >= a.group.ranks) {
		d.counts[expert] = d.demand[expert] = d.padded[expert] = (int)sum;
		d.offsets[expert] = 0;
		return;
	}
	d.wanted[i] = absent ? 0 : (int)sum;
	d.over[i] = -1;
	d.excess[i] = 0;
	if (i == a.group.rank) *d.rows = (int)min(sum, a.rows), *d.routing = epoch;
}

// find_token_rows waits for what all blocks have counted: the bases, and which tokens come. Block 0 describes what
// comes, and the blocks share the local experts. The routing has no selections then of the tokens that come. If a wait
// gave up, w.over says so on its thread. All threads of the block call it.
__device__ __forceinline__ void find_token_rows(const RowMap &a, const Operation &o, Wait &w, const Sources &sources,
												const TokenMap &m) {
	Described d(a.described, a.shape.local, a.group.ranks);
	u32 ranks = a.group.ranks, rank = a.group.rank, lane = threadIdx.x & 31;
	bool first = blockIdx.x == 0;
	// A warp has one after another: the tokens for a rank, those that come from a rank, a local expert, and the routing of
	// a rank's tokens. The last warps go first, of which the most have told no selections.
	u32 experts = blockIdx.x < a.shape.local ? (a.shape.local - blockIdx.x + a.blocks - 1) / a.blocks : 0;
#pragma unroll 1
	for (u32 i = (blockDim.x - 1 - threadIdx.x) / 32; i < 3 * ranks + experts; i += blockDim.x / 32) {
		if (i - ranks < ranks) {
			u32 src = i - ranks;
			const char *at = o.own + share_at(a, o, src, blockIdx.x, a.shape.local + words(a));
			u64 coming = load_relaxed_sys_u64(at);
			number_words(m.arrived + src * words(a), words(a), [&](u32 word) {
				return await_count(a, o, w, src, share_at(a, o, src, blockIdx.x, a.shape.local + word));
			});
			u32 n = holds(o.mask, src) ? 0 : count_of_word(a, o.epoch, w, src, at, coming);
			if (lane == 0) m.coming[src] = n;
			WEFT_TRACED(if (lane == 0 && !holds(o.mask, src) && src != rank && !w.over) o.trace.arrived(src, 1);)
			continue;
		}
		if (i >= 2 * ranks + experts) {
			u32 src = i - 2 * ranks - experts;
			Share share(await_count(a, o, w, src, tokens_at(a, o, src)), a.blocks);
			Pair *to = a.recv_rows + (u64)src * a.shape.capacity * a.shape.topk;
			for (u32 at = share.from * a.shape.topk + lane; at < share.to * a.shape.topk; at += 32) to[at] = {0, 0};
			continue;
		}
		u32 sum = 0, base = 0;
		if (i >= ranks) {
			u32 le = blockIdx.x + (i - 2 * ranks) * a.blocks;
			sum_shares(a, o, w, [&](u32 src, u32 block) { return share_at(a, o, src, block, le); },
					   [&](u32, u32 all, u32) { sum += all; });
			sum = __reduce_add_sync(0xFFFFFFFFu, sum);
			if (lane == 0) describe_tokens(a, i, le, sum, false, (u32)o.epoch);
			continue;
		}
		sum_shares(a, o, w, [&](u32 src, u32 block) { return block_tokens_at(a, o, src, block, i); },
				   [&](u32 src, u32 all, u32 lower) {
					   base += src < rank ? all : src == rank ? lower : 0;
					   if (i == rank) { // its rows of this source begin behind those of lower ones
						   u32 end = sum_to_lane(all), before = __reduce_add_sync(0xFFFFFFFFu, sum);
						   if (src < ranks) {
							   m.arrived_bases[src] = before + end - all + lower;
							   if (first) d.from_source[src] = (int)all;
						   }
					   }
					   sum += all;
				   });
		sum = __reduce_add_sync(0xFFFFFFFFu, sum);
		base = __reduce_add_sync(0xFFFFFFFFu, base);
		if (lane != 0) continue;
		bool absent = holds(o.mask, i);
		m.own_bases[i] = absent ? NO_ROWS : base;
		if (first) describe_tokens(a, i, 0, sum, absent, (u32)o.epoch);
	}
	for (u32 src = threadIdx.x; first && src < ranks; src += blockDim.x) d.tokens[src] = (int)sources.tokens[src];
}

// assign_own_tokens gives this rank's selections their rows. All threads of the block call it.
__device__ __forceinline__ void assign_own_tokens(const RowMap &a, const OwnTokens &own, const TokenMap &m) {
	own.each(a, own.q, own.share.from, own.share.to, [&](const Selections &c) {
		u32 rank[QUAD], dest[QUAD], t = c.t - own.share.from;
		bool kept[QUAD]; // it has a row
		uint2 home[QUAD];
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			rank[j] = c.rank(a, j);
			uint2 word = c.e[j] != 0 ? m.own[rank[j] * words(a) + t / 32] : make_uint2(0, 0);
			u32 row = row_of(word, m.own_bases[rank[j]], t);
			kept[j] = c.e[j] != 0 && row < a.rows;
			dest[j] = kept[j] ? row + 1 : 0;
			home[j] = make_uint2((kept[j] ? c.e[j] : 0) | c.e[j] << 16, c.weight[j]);
		}
		u32 first_ones = leaders(a, own.q, kept, rank);
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) dest[j] |= (first_ones >> j & 1) != 0 ? LEADER : 0;
		store_words(own.q.vectors(), a.dest_rows + c.i, c.n, dest);
		store_pairs(own.q.vectors(), (uint2 *)a.home + c.i, c.n, home);
	});
}

// number_arrived gives the tokens that come their rows. All threads of the block call it; those go first that have no
// tokens of this rank.
__device__ __forceinline__ void number_arrived(const RowMap &a, const Sources &sources, const TokenMap &m) {
#pragma unroll 1
	for (u32 src = 0; src < a.group.ranks; src++) {
		Share share = sources.shares[src];
		u32 *to = a.recv_tokens + src * a.shape.capacity + share.from;
		for (u32 t = blockDim.x - 1 - threadIdx.x; t < share.to - share.from; t += blockDim.x) {
			uint2 word = m.arrived[src * words(a) + t / 32];
			u32 row = row_of(word, m.arrived_bases[src], t);
			to[t] = (word.x >> t % 32 & 1) != 0 && row < a.rows ? row + 1 : 0;
		}
	}
}

// tells says whether a source's block tells an i-th selection.
__device__ __forceinline__ bool tells(const RowMap &a, const TokenMap &m, u32 src, u32 i) {
	return src < a.group.ranks && i < m.coming[src];
}

// ReadAhead are the words of a selection of each of some sources, as a thread has read them.
struct ReadAhead {
	static constexpr u32 SOURCES = 4;
	ulonglong2 v[SOURCES];

	// read reads the i-th selections of the sources from `first` on, which may not have come.
	__device__ __forceinline__ void read(const RowMap &a, const Operation &o, u32 first, u32 i) {
		bool room = i < a.share * a.shape.topk;
#pragma unroll
		for (u32 j = 0; j < SOURCES; j++) {
			bool here = room && first + j < a.group.ranks;
			v[j] = here ? load_relaxed_sys_u64x2(o.own + selection_at(a, o, first + j, blockIdx.x, i))
						: make_ulonglong2(0, 0);
		}
	}

	// await waits for the i-th selection of each of the sources that tell so many, by m.coming. False: the wait gave up.
	__device__ __forceinline__ bool await(const RowMap &a, const Operation &o, const TokenMap &m, u32 first, u32 i) {
		constexpr u32 POLLS = 16; // of all of them, before it waits for one
		u32 epoch = (u32)selection_epoch(o); // all of it would take registers, and a report has the lower half
#pragma unroll 1
		for (u32 polls = 0;; polls++) {
			u32 late = SOURCES;
#pragma unroll
			for (u32 j = SOURCES; j-- > 0;) {
				bool whole = (u32)(v[j].x >> 32) == epoch && (u32)(v[j].y >> 32) == epoch;
				if (tells(a, m, first + j, i) && !whole) late = j;
			}
			if (late == SOURCES) return true;
			if (polls >= POLLS) {
				const char *at = o.own + selection_at(a, o, first + late, blockIdx.x, i);
				u64 x = await_late_count(a.group, a.state, epoch, first + late, at);
				u64 y = await_late_count(a.group, a.state, epoch, first + late, at + 8);
				if ((u32)(x >> 32) != epoch || (u32)(y >> 32) != epoch) return false;
			}
			read(a, o, first, i);
		}
	}
};

// first_coming is which selection of each source a thread takes first: those threads go first that have no tokens of
// this rank.
__device__ __forceinline__ u32 first_coming() { return blockDim.x - 1 - threadIdx.x; }

// take_selections waits for the selections that come, and writes them into the routing, without the expert where a
// token has no row. It empties their places. `ahead` has been read of the first sources, at first_coming. If a wait
// gave up, w.over says so on its thread. All threads of the block call it.
__device__ __forceinline__ void take_selections(const RowMap &a, const Operation &o, Wait &w, const Sources &sources,
												const TokenMap &m, ReadAhead ahead) {
	SelectionBits bits(a);
#pragma unroll 1
	for (u32 first = 0; first < a.group.ranks; first += ReadAhead::SOURCES) {
		u32 most = 0;
#pragma unroll
		for (u32 j = 0; j < ReadAhead::SOURCES; j++)
			most = max(most, first + j < a.group.ranks ? m.coming[first + j] : 0);
#pragma unroll 1
		for (u32 i = first_coming(); i < most; i += blockDim.x) {
			if (first != 0 || i != first_coming()) ahead.read(a, o, first, i);
			if (!ahead.await(a, o, m, first, i)) {
				w.over = true;
				return;
			}
#pragma unroll
			for (u32 j = 0; j < ReadAhead::SOURCES; j++) {
				u32 src = first + j;
				if (!tells(a, m, src, i)) continue;
				WEFT_TRACED(if (threadIdx.x % 32 == 0 && src != a.group.rank) o.trace.arrived(src, 1);)
				store16(o.own + selection_at(a, o, src, blockIdx.x, i), make_uint4(0, 0, 0, 0));
				u32 what = (u32)ahead.v[j].x, weight = (u32)ahead.v[j].y;
				u32 t = what >> (bits.k + bits.expert), k = what >> bits.expert & ((1u << bits.k) - 1);
				bool kept = row_of(m.arrived[src * words(a) + t / 32], m.arrived_bases[src], t) < a.rows;
				u64 token = (u64)src * a.shape.capacity + sources.shares[src].from + t;
				a.recv_rows[token * a.shape.topk + k] = {kept ? what & ((1u << bits.expert) - 1) : 0, weight};
			}
		}
	}
}

} // namespace weft
