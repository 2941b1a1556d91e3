// The notify blocks of a dispatch. The last block tells every rank that this one has begun, and waits
// for the others. It also describes what comes here, or a second notify block does. That takes the
// records of all sources; for many rows by expert it takes counts, which ranks send first, for receivers
// need to know where a source's rows begin long before all its records are there.
#pragma once
#include "expert_index.cuh"

namespace weft {

// Counters are a notify block's shared memory.
struct Counters {
	u32 *words;		  // [WORDS]
	u32 *tokens_here; // [MAX_RANKS]: tokens, by source
	u32 *sum;
};

__device__ __forceinline__ Counters counters() {
	__shared__ u32 tokens_here[MAX_RANKS], sum[1];
	return {shared_words(), tokens_here, sum};
}

// SelectionBatch is what a thread reads of this rank's selections at once.
struct SelectionBatch {
	static constexpr u32 FLIGHT = 4;
	Choice c[FLIGHT];

	__device__ __forceinline__ void read(const Dispatch &a, const Batch &b, const Spread &s, u32 skip) {
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			u32 t = s.token + skip + j * s.step;
			c[j] = {EMPTY, EMPTY};
			if (t < a.tokens && s.k < a.shape.topk) c[j] = choose(a, b, (u64)t * a.shape.topk + s.k);
		}
	}
};

// announce_all tells every rank that this one has begun, and that all its blocks have, for this one
// is the last.
__device__ __forceinline__ void announce_all(const Dispatch &a, const Batch &b, u32 call) {
	for (u32 r = blockDim.x - 1 - threadIdx.x; r < a.group.ranks; r += blockDim.x)
		announce(a.group, b.mask, a.heads, b.turn, r, call, a.tokens, a.free);
}

// send_counts counts this rank's selections. The thread's first were read before the state was
// known, and the memory is clear.
__device__ __forceinline__ void send_counts(const Dispatch &a, const Batch &b, const Windows &windows,
											const Counters &m, const Spread &s, const SelectionBatch &first) {
	u32 local = a.shape.local;
	for (u32 from = 0; from < a.shape.experts; from += WORDS) {
		u32 end = min(WORDS, a.shape.experts - from);
		SelectionBatch now = first;
		for (u32 skip = 0; s.base + skip < a.tokens; skip += SelectionBatch::FLIGHT * s.step) {
			if (skip != 0) now.read(a, b, s, skip);
#pragma unroll
			for (u32 j = 0; j < SelectionBatch::FLIGHT; j++) {
				u32 e = expert_of(a, b, now.c[j]);
				if (e - 1 - from < end) atomicAdd(&m.words[e - 1 - from], 1);
			}
		}
		__syncthreads();
		for (u32 base = threadIdx.x & ~31u; base < end; base += blockDim.x) {
			u32 i = base + (threadIdx.x & 31), r = i < end ? rank_of(a.shape, from + i) : a.group.rank;
			char *window = windows.each(r);
			if (i < end && !holds(b.mask, r))
				store_relaxed_sys4(window + sent_count_at(a, b, window, r, COUNTS + from + i - r * local), m.words[i]);
		}
		if (end == a.shape.experts) break;
		__syncthreads();
		clear(m.words, WORDS);
		__syncthreads();
	}
}

// send_token_counts tells every rank how many of this rank's tokens go there. Only the block that
// describes waits for it.
__device__ __forceinline__ void send_token_counts(const Dispatch &a, const Batch &b, const Counters &m, const Spread &s,
												  const SelectionBatch &first) {
	SelectionBatch now = first;
	for (u32 skip = 0; s.base + skip < a.tokens; skip += SelectionBatch::FLIGHT * s.step) {
		if (skip != 0) now.read(a, b, s, skip);
		RankSet to[SelectionBatch::FLIGHT]; // where the lane's selections go; then, where their tokens go
#pragma unroll
		for (u32 j = 0; j < SelectionBatch::FLIGHT; j++) {
			u32 e = expert_of(a, b, now.c[j]);
			to[j] = RankSet::one(rank_of(a.shape, e - 1), e != 0);
		}
		for (u32 d = 1; d < 1u << s.width; d *= 2) {
#pragma unroll
			for (u32 j = 0; j < SelectionBatch::FLIGHT; j++) {
#pragma unroll
				for (u32 i = 0; i < RANK_WORDS; i++) to[j].word[i] |= __shfl_xor_sync(0xFFFFFFFFu, to[j].word[i], d);
			}
		}
		for (u32 r = s.k; r < a.group.ranks; r += 1u << s.width) {
#pragma unroll
			for (u32 j = 0; j < SelectionBatch::FLIGHT; j++) {
				if (holds(to[j], r)) atomicAdd(&m.tokens_here[r], 1);
			}
		}
	}
	__syncthreads();
	for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		char *window = a.group.window[r];
		if (!holds(b.mask, r))
			store_relaxed_sys4(window + sent_count_at(a, b, window, r, TOKENS_HERE), m.tokens_here[r]);
	}
}

// send_records is for few tokens. A warp's first was read before the state was known.
__device__ __forceinline__ void send_records(const Dispatch &a, const Batch &b, const Windows &windows,
											 TokenRouting token) {
	u32 lane = threadIdx.x & 31;
	for (u32 t = threadIdx.x / 32, step = blockDim.x / 32; t < a.tokens; t += step) {
		u32 e = expert_of(a, b, token.choice);
		send_record(a, b, windows, t, e, token.weight, BY_EXPERT ? index_of(a, b, t, e, lane) : 0, lane);
		if (t + step < a.tokens) token.read(a, b, t + step, lane);
	}
}

// await_all waits until every rank has begun. All warps call it, and the last does it.
__device__ __forceinline__ void await_all(const Dispatch &a, const Batch &b, Wait &w, u32 call) {
	if (threadIdx.x / 32 != blockDim.x / 32 - 1) return;
	bool route = (b.flags & ROUTE) != 0;
	await_peers(w, b.own, b.mask, a.heads, b.turn, call, [&](u32 src, uint4 opening) {
		a.credits[src] = opening.y;
		if (route) routed_tokens(a)[src] = (int)opening.x;
		turn_tokens(a, b.turn)[src] = opening.x;
	});
	if (route && threadIdx.x % 32 == 0) *prepare_number(a) = (u32)b.epoch + 1;
	__syncwarp();
	// Every rank's blocks run, so this kernel ends whatever room the next one's take.
	let_next_start();
}

// count_records waits for every source's records. It counts the tokens that come, and the
// selections of local experts from..from+columns, by source for rows by expert. A thread awaits
// FLIGHT records at once.
template <u32 FLIGHT> __device__ __forceinline__ void
count_records(const Dispatch &a, const Batch &b, Wait &w, const Counters &m, const Spread &s, u32 from, u32 columns) {
	// width: tokens of a source that are looked at
	u32 topk = a.shape.topk, first = a.group.rank * a.shape.local, width = a.shape.capacity, sum = 0;
	if (!b.few && width > EAGER) {
		Extent e;
		if (!e.learn(a, b, w)) return;
		width = min(width, e.now);
	}
	u32 n = a.group.ranks * width;
	for (u32 skip = 0; s.base + skip < n; skip += FLIGHT * s.step) {
		uint2 record[FLIGHT];
		u32 src[FLIGHT], t[FLIGHT], need = 0;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			u32 i = s.token + skip + j * s.step, rest;
			if (b.few) {
				src[j] = a.selections.quotient(i * topk, rest);
			} else {
				src[j] = i / width;
			}
			t[j] = i - src[j] * width;
			record[j] = make_uint2(0, 0);
			if (i < n && s.k < topk && !holds(b.mask, src[j])) need |= 1u << j;
		}
		while (need != 0) {
			u32 tokens[FLIGHT], missing = 0;
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if ((need >> j & 1) == 0) continue;
				tokens[j] = tokens_of(a, b, src[j]);
				u64 i = (((u64)b.turn * a.group.ranks + src[j]) * a.shape.capacity + t[j]) * topk + s.k;
				record[j] = load_relaxed_sys8(b.own + a.records + i * sizeof(Pair));
			}
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if ((need >> j & 1) == 0) continue;
				bool absent = tokens[j] != EMPTY && t[j] >= tokens[j];
				if (absent) record[j].x = 0;
				if (absent || full(record[j]))
					need &= ~(1u << j);
				else
					missing = src[j];
			}
			if (need != 0 && !w.more(missing, 1, 0)) break;
		}
		__syncwarp();
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			u32 le = (record[j].x & 0xFFFF) - 1 - first;
			if (le - from < columns) atomicAdd(&m.words[(BY_EXPERT ? src[j] * columns : 0) + le - from], 1);
			if (s.of_token(le < a.shape.local) && s.k == 0 && from == 0) atomicAdd(&m.tokens_here[src[j]], 1);
			if (BY_EXPERT) sum += __popc(__ballot_sync(0xFFFFFFFFu, le - from < columns));
		}
	}
	if (BY_EXPERT && (threadIdx.x & 31) == 0 && sum != 0) atomicAdd(m.sum, sum);
}

// receive_counts waits for the counts of all sources: their selections of local experts
// from..from+columns and, once, the tokens that come.
__device__ __forceinline__ void receive_counts(const Dispatch &a, const Batch &b, Wait &w, const Counters &m, u32 from,
											   u32 columns) {
	constexpr u32 FLIGHT = 4; // words that a thread awaits at once
	u32 all = COUNTS + a.shape.local, before = b.turn == 0 ? 2 : b.turn - 1, n = columns * a.group.ranks;
	const char *p = b.own + count_at(a, b.turn, 0, 0);
	u32 sum = 0;
	for (u32 base = threadIdx.x; base < n; base += FLIGHT * blockDim.x) {
		u32 c[FLIGHT], at[FLIGHT], need = 0;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			u32 i = base + j * blockDim.x, src = columns == a.shape.local ? rank_of(a.shape, i) : i / columns;
			c[j] = 0;
			at[j] = src * all + COUNTS + from + i - src * columns;
			if (i < n && !holds(b.mask, src)) need |= 1u << j;
		}
		while (need != 0) {
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if ((need >> j & 1) != 0) c[j] = load_relaxed_sys4(p + (u64)at[j] * 4);
			}
			u32 missing = 0;
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if ((need >> j & 1) == 0) continue;
				if (c[j] != EMPTY)
					need &= ~(1u << j);
				else
					missing = at[j];
			}
			if (need != 0 && !w.more(missing / all, 1, 0)) break;
		}
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			u32 i = base + j * blockDim.x;
			if (i >= n) continue;
			m.words[i] = c[j];
			sum += c[j];
			*(u32 *)(b.own + count_at(a, before, 0, at[j])) = EMPTY;
		}
	}
	for (u32 src = threadIdx.x; from == 0 && src < a.group.ranks; src += blockDim.x) {
		m.tokens_here[src] = holds(b.mask, src) ? 0 : await4(w, src, p + (u64)(src * all + TOKENS_HERE) * 4);
		*(u32 *)(b.own + count_at(a, before, src, TOKENS_HERE)) = EMPTY;
	}
	__syncwarp();
	sum = __reduce_add_sync(0xFFFFFFFFu, sum);
	if ((threadIdx.x & 31) == 0 && sum != 0) atomicAdd(m.sum, sum);
}

// reset_counts empties the counts of the turn before in a launch that receives none.
__device__ __forceinline__ void reset_counts(const Dispatch &a, const Batch &b) {
	u32 all = COUNTS + a.shape.local, before = b.turn == 0 ? 2 : b.turn - 1;
	for (u32 i = threadIdx.x; i < a.group.ranks * all; i += blockDim.x) {
		*(u32 *)(b.own + count_at(a, before, 0, i)) = EMPTY;
	}
}

// describe_zones writes, for local experts from..from+columns, how many rows they have and, by expert,
// how many rows come from each source.
__device__ __forceinline__ void describe_zones(const Dispatch &a, const Counters &m, u32 from, u32 columns) {
	u32 ranks = a.group.ranks;
	for (u32 i = threadIdx.x; i < columns; i += blockDim.x) {
		u32 total = BY_EXPERT ? 0 : m.words[i];
#pragma unroll 2
		for (u32 src = 0; BY_EXPERT && src < ranks; src++) {
			u32 c = m.words[src * columns + i];
			a.ranges[(u64)(from + i) * ranks + src] = (long long)((u64)total << 32 | c);
			total += c;
		}
		a.described[from + i] = (int)total;
	}
}

// describe_all describes what comes. The memory is clear where records are counted.
__device__ __forceinline__ void describe_all(const Dispatch &a, const Batch &b, Wait &w, const Counters &m,
											 const Spread &s) {
	u32 local = a.shape.local, ranks = a.group.ranks, chunk = BY_EXPERT ? WORDS / ranks : WORDS;
	bool records = from_records(b);
	// Where zones begin needs no count.
	for (u32 i = threadIdx.x; i < local; i += blockDim.x) a.described[local + i] = BY_EXPERT ? (int)(i * a.zone.by) : 0;
	for (u32 from = 0; from < local; from += chunk) {
		u32 columns = min(chunk, local - from);
		if (from != 0) {
			__syncthreads();
			if (records) clear(m.words, WORDS);
			__syncthreads();
		}
		if (!records) {
			receive_counts(a, b, w, m, from, columns);
		} else if (columns == local && ranks * a.shape.capacity <= s.step) {
			count_records<1>(a, b, w, m, s, from, columns);
		} else {
			count_records<4>(a, b, w, m, s, from, columns);
		}
		__syncthreads();
		describe_zones(a, m, from, columns);
	}
	int *tokens_here = a.described + 2 * local;
	// The last warp says how many tokens came, while the first ones describe zones.
	if (threadIdx.x / 32 != blockDim.x / 32 - 1) return;
	u32 lane = threadIdx.x & 31, rows = 0; // rows: of rank-major
	for (u32 src = lane; src < ranks; src += 32) {
		rows += m.tokens_here[src];
		tokens_here[src] = (int)m.tokens_here[src];
	}
	rows = __reduce_add_sync(0xFFFFFFFFu, rows);
	if (lane == 0) tokens_here[2 * ranks] = (int)(BY_EXPERT ? *m.sum : rows);
}

} // namespace weft
