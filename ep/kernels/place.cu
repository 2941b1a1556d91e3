// Place: every selection of every token gets the row where it will stand, and every rank learns what comes. It is the prepare of handles whose rows have their
// final places before they leave.
//
//	count    every block counts its share of the tokens, by expert and by rank, with a bit a token in shared memory
//	totals   when all blocks have, the sums go to every rank
//	start    what the ranks before have, and the blocks before, and for packed rows the zones before, is where a block's first selection of an expert stands
//	number   every selection gets its row, and every rank is told of those that go there
//	keep     when the blocks of this number have told everything, what came is copied to where the routing is kept
#include "placed.cuh"

namespace weft {

// Go: placeArgs.
struct Place {
	Group group;
	Shape shape;
	State *state;
	u64 words, totals, records, visits, marks; // offsets in a window
	u32 what, tokens, call;
	u32 rows;  // room: of an expert in zones of fixed size, else of a rank
	u32 align; // of packed zones
	u32 zero;
	Divisor topk;
	const void *ids; // [tokens][top-k]
	const float *weights;
	Pair *home;		// [capacity][top-k]: expert + 1 if it has a row, expert + 1 << 16 in any case; weight
	u32 *places;	// [capacity][top-k]: row + 1, LEADER
	Pair *landings; // [ranks][capacity][top-k]: row + 1, or by rank local expert + 1; 0: none
	u32 *arrivals;	// [ranks][capacity], by rank: row + 1
	int *described;
	long long *ranges;
	u32 *counts; // [blocks][experts + ranks]
	u32 *starts; // the same: a block's first row of each expert, or at each rank
	u32 *met;	 // [blocks]: the operation for which the block has counted
};

static_assert(sizeof(Place) == WEFT_PLACE_BYTES, "the host has another idea of the arguments");

// Buckets are the experts and, behind them, the ranks. A map has a bit for each token of a tile and each of some buckets.
constexpr u32 BUCKETS = 1024, TILE = 256, WORDS = TILE / 32;

struct Map {
	u32 *words; // [BUCKETS][WORDS]
	u32 *base;	// [BUCKETS]
};

__device__ __forceinline__ Map map() {
	__shared__ u32 words[BUCKETS * WORDS], base[BUCKETS];
	return {words, base};
}

__device__ __forceinline__ u32 columns(const Place &a) { return a.shape.experts + a.group.ranks; }

// at_once says that the map holds all of a share, so that it is filled once for counting and for numbering.
__device__ __forceinline__ bool at_once(const Place &a, Share share) { return columns(a) <= BUCKETS && share.to - share.from <= TILE; }

// expert_of is the expert that a selection names, + 1; 0 for none, and for what is no expert.
__device__ __forceinline__ u32 expert_of(const Place &a, u32 i) {
	u32 low, high = 0;
	if ((a.what & WIDE) != 0) {
		uint2 wide = ((const uint2 *)a.ids)[i];
		low = wide.x, high = wide.y;
	} else {
		low = ((const u32 *)a.ids)[i];
	}
	return high == 0 && low < a.shape.experts ? low + 1 : 0;
}

// fill marks the tokens of a tile in buckets [first, first + n). All threads of the block call it.
__device__ __forceinline__ void fill(const Place &a, const Map &m, u32 from, u32 to, u32 first, u32 n) {
	for (u32 i = threadIdx.x; i < n * WORDS; i += blockDim.x) m.words[i] = 0;
	__syncthreads();
	for (u32 i = from * a.shape.topk + threadIdx.x; i < to * a.shape.topk; i += blockDim.x) {
		u32 e = expert_of(a, i), k, t = a.topk.quotient(i, k) - from;
		if (e == 0) continue;
		u32 expert = e - 1 - first, rank = a.shape.experts + rank_of(a.shape, e - 1) - first;
		if (expert < n) atomicOr(&m.words[expert * WORDS + t / 32], 1u << t % 32);
		if (rank < n) atomicOr(&m.words[rank * WORDS + t / 32], 1u << t % 32);
	}
	__syncthreads();
}

// add_up moves on behind a tile: base has the tokens of each bucket. All threads of the block call it.
__device__ __forceinline__ void add_up(const Map &m, u32 n) {
	for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
		u32 sum = 0;
#pragma unroll
		for (u32 w = 0; w < WORDS; w++) sum += __popc(m.words[i * WORDS + w]);
		m.base[i] += sum;
	}
	__syncthreads();
}

__device__ __forceinline__ void count(const Place &a, const Map &m, Share share) {
	u32 all = columns(a);
	for (u32 first = 0; first < all; first += BUCKETS) {
		u32 n = min(BUCKETS, all - first);
		for (u32 i = threadIdx.x; i < n; i += blockDim.x) m.base[i] = 0;
		for (u32 t = share.from; t < share.to; t += TILE) {
			fill(a, m, t, min(t + TILE, share.to), first, n);
			add_up(m, n);
		}
		__syncthreads();
		for (u32 i = threadIdx.x; i < n; i += blockDim.x) a.counts[(u64)blockIdx.x * all + first + i] = m.base[i];
		__syncthreads();
	}
}

// meet returns when all blocks have counted. False: it gave up, on every thread of the block.
__device__ __forceinline__ bool meet(const Place &a, const Turn &o, Wait &w) {
	__syncthreads();
	if (threadIdx.x == 0) {
		fence_gpu();
		store_relaxed_gpu4(&a.met[blockIdx.x], (u32)o.epoch);
	}
	for (u32 b = threadIdx.x; b < gridDim.x; b += blockDim.x) {
		u32 seen;
		while ((seen = load_relaxed_gpu4(&a.met[b])) != (u32)o.epoch && !w.over && w.more(a.group.rank, (u32)o.epoch, seen)) {}
		fence_gpu();
	}
	return __syncthreads_or(w.over) == 0;
}

__device__ __forceinline__ u64 total_at(const Place &a, const Turn &o, u32 src, u32 column) {
	return a.totals + (((o.epoch & 1) * a.group.ranks + src) * (columns(a) + 1) + column) * 8;
}

// send_totals tells every rank what this one has in all. The last number is that of its tokens.
__device__ __forceinline__ void send_totals(const Place &a, const Turn &o) {
	u32 all = columns(a), lane = threadIdx.x & 31;
	for (u32 c = (threadIdx.x / 32 * gridDim.x + blockIdx.x) * 32 + lane; c <= all; c += blockDim.x * gridDim.x) {
		u32 sum = c == all ? a.tokens : 0;
#pragma unroll 16
		for (u32 b = 0; c < all && b < gridDim.x; b++) sum += a.counts[(u64)b * all + c];
		for (Round to(all_ranks(a.group) & ~o.mask, a.group.rank, a.group.ranks); to.more();) {
			store_relaxed_sys_u64(a.group.window[to.next()] + total_at(a, o, a.group.rank, c), (o.epoch << 32) | sum);
		}
	}
}

// total awaits a number of src's; those of a rank that is left out are 0.
__device__ __forceinline__ u32 total(const Place &a, const Turn &o, Wait &w, u32 src, u32 column) {
	if (holds(o.mask, src)) return 0;
	const char *p = o.own + total_at(a, o, src, column);
	u64 v = load_relaxed_sys_u64(p);
	while ((u32)(v >> 32) != (u32)o.epoch && !w.over && w.more(src, (u32)o.epoch, v >> 32)) v = load_relaxed_sys_u64(p);
	return (u32)v;
}

// Column is what all ranks have in a bucket, and those before this one.
struct Column {
	u32 sum, before;

	__device__ __forceinline__ Column(const Place &a, const Turn &o, Wait &w, u32 column) : sum(0), before(0) {
#pragma unroll 4
		for (u32 src = 0; src < a.group.ranks; src++) {
			u32 n = total(a, o, w, src, column);
			if (src < a.group.rank) before += n;
			sum += n;
		}
	}
};

// room_for is how many of n rows from the first of an expert's zone on there is room for.
__device__ __forceinline__ u32 room_for(const Place &a, u32 zone, u32 n) {
	if ((a.what & PACKED) == 0) return min(n, a.rows);
	return zone < a.rows ? min(n, a.rows - zone) : 0;
}

// describe_expert says what comes for a local expert, whose zone begins at a row. One thread does.
__device__ __forceinline__ void describe_expert(const Place &a, const Turn &o, Wait &w, const Described &d, u32 le, u32 zone, u32 sum, u32 padded) {
	u32 kept = room_for(a, zone, sum), begin = 0, column = a.group.rank * a.shape.local + le;
	d.counts[le] = (int)kept;
	d.offsets[le] = (int)zone;
	d.demand[le] = (int)sum;
	d.padded[le] = (int)((a.what & PACKED) != 0 ? room_for(a, zone, padded) : kept);
	for (u32 src = 0; src < a.group.ranks; src++) {
		u32 n = min(total(a, o, w, src, column), kept - begin);
		a.ranges[(u64)le * a.group.ranks + src] = (long long)((u64)begin << 32 | n);
		begin += n;
	}
}

// start_zones adds to the starts where the zones of a rank's experts begin, and what the ranks before have in each: a warp does for one rank. The first block
// describes what it sees.
__device__ __forceinline__ void start_zones(const Place &a, const Turn &o, Wait &w, const Described &described, u32 *starts, u32 rank, u32 lane) {
	u32 next = 0, received = 0; // the zone behind those that were seen, and rows that there is room for
	u32 over = EMPTY, excess = 0;
	for (u32 first = 0; first < a.shape.local; first += 32) {
		u32 le = first + lane, e = rank * a.shape.local + le;
		bool here = le < a.shape.local;
		u32 sum = 0, zone = le * a.rows, padded = 0;
		if (here) {
			Column c(a, o, w, e);
			sum = padded = c.sum;
			starts[e] += c.before;
		}
		if ((a.what & PACKED) != 0) {
			padded = (sum + a.align - 1) & ~(a.align - 1);
			u32 behind = padded;
#pragma unroll
			for (u32 i = 1; i < 32; i *= 2) {
				u32 before = __shfl_up_sync(0xFFFFFFFFu, behind, i);
				if (lane >= i) behind += before;
			}
			zone = next + behind - padded;
			next += __shfl_sync(0xFFFFFFFFu, behind, 31);
		} else {
			next += __reduce_add_sync(0xFFFFFFFFu, sum);
			received += __reduce_add_sync(0xFFFFFFFFu, min(sum, a.rows));
			u32 many = __ballot_sync(0xFFFFFFFFu, sum > a.rows);
			if (over == EMPTY && many != 0) {
				over = first + __ffs((int)many) - 1;
				excess = __shfl_sync(0xFFFFFFFFu, sum, __ffs((int)many) - 1);
			}
		}
		if (here) {
			starts[e] += zone;
			if (rank == a.group.rank && blockIdx.x == 0) describe_expert(a, o, w, described, le, zone, sum, padded);
		}
	}
	if (blockIdx.x != 0 || lane != 0) return;
	bool absent = holds(o.mask, rank);
	described.wanted[rank] = absent ? 0 : (int)next;
	described.over[rank] = absent || over == EMPTY ? -1 : (int)(rank * a.shape.local + over);
	described.excess[rank] = (int)excess;
	if (rank == a.group.rank) *described.rows = (int)((a.what & PACKED) != 0 ? min(next, a.rows) : received);
}

// start computes where this block's first selection of every expert, or its first token at every rank, stands. All threads of the block call it. False: it gave up.
__device__ __forceinline__ bool start(const Place &a, const Turn &o, Wait &w) {
	u32 all = columns(a), experts = a.shape.experts, ranks = a.group.ranks, lane = threadIdx.x & 31;
	u32 *starts = a.starts + (u64)blockIdx.x * all;
	bool by_rank = (a.what & BY_RANK) != 0, first = blockIdx.x == 0;
	Described described(a.described, a.shape.local, ranks);
	for (u32 c = threadIdx.x; c < all; c += blockDim.x) {
		u32 sum = 0;
#pragma unroll 16
		for (u32 b = 0; b < blockIdx.x; b++) sum += a.counts[(u64)b * all + c];
		starts[c] = sum;
	}
	__syncthreads();
	for (u32 r = threadIdx.x / 32; !by_rank && r < ranks; r += blockDim.x / 32) start_zones(a, o, w, described, starts, r, lane);
	for (u32 r = threadIdx.x; by_rank && r < ranks; r += blockDim.x) {
		Column c(a, o, w, experts + r);
		starts[experts + r] += c.before;
		if (!first) continue;
		described.wanted[r] = (int)(holds(o.mask, r) ? 0 : c.sum);
		described.over[r] = -1;
		if (r == a.group.rank) *described.rows = (int)min(c.sum, a.rows);
	}
	for (u32 le = threadIdx.x; by_rank && first && le < a.shape.local; le += blockDim.x) {
		u32 sum = Column(a, o, w, a.group.rank * a.shape.local + le).sum;
		described.counts[le] = described.demand[le] = described.padded[le] = (int)sum;
		described.offsets[le] = 0;
	}
	for (u32 src = threadIdx.x; first && src < ranks; src += blockDim.x) {
		if (!holds(o.mask, src)) hear(o, w, a.words, src, a.call);
		described.came[src] = (int)total(a, o, w, src, experts + a.group.rank);
		described.tokens[src] = (int)total(a, o, w, src, all);
	}
	return __syncthreads_or(w.over) == 0;
}

// number gives every selection of the share its row. All threads of the block call it.
__device__ __forceinline__ void number_share(const Place &a, const Turn &o, Map m, Share share) {
	bool by_rank = (a.what & BY_RANK) != 0;
	u32 from = by_rank ? a.shape.experts : 0, end = by_rank ? columns(a) : a.shape.experts;
	const u32 *starts = a.starts + (u64)blockIdx.x * columns(a);
	bool filled = at_once(a, share);
	if (filled) m.words += from * WORDS;
	for (u32 first = from; first < end; first += BUCKETS) {
		u32 n = min(BUCKETS, end - first);
		for (u32 i = threadIdx.x; i < n; i += blockDim.x) m.base[i] = starts[first + i];
		for (u32 tile = share.from; tile < share.to; tile += TILE) {
			u32 to = min(tile + TILE, share.to);
			if (filled) {
				__syncthreads();
			} else {
				fill(a, m, tile, to, first, n);
			}
			for (u32 i = tile * a.shape.topk + threadIdx.x; i < to * a.shape.topk; i += blockDim.x) {
				u32 e = expert_of(a, i), k, t = a.topk.quotient(i, k) - tile;
				u32 rank = e != 0 ? rank_of(a.shape, e - 1) : 0, bucket = (by_rank ? a.shape.experts + rank : e - 1) - first;
				if (e == 0 ? first != from : bucket >= n) continue;
				u32 row = 0;
				bool kept = false;
				if (e != 0) {
					const u32 *words = m.words + bucket * WORDS;
					row = m.base[bucket] + __popc(words[t / 32] & ((1u << t % 32) - 1));
#pragma unroll
					for (u32 j = 0; j < WORDS - 1; j++) row += j < t / 32 ? __popc(words[j]) : 0;
					u32 limit = by_rank || (a.what & PACKED) != 0 ? a.rows : (e - rank * a.shape.local) * a.rows;
					kept = row < limit && !holds(o.mask, rank);
				}
				float weight = a.weights != nullptr ? a.weights[i] : 1.0f;
				a.home[i] = {(kept ? e : 0) | e << 16, bits(weight)};
				a.places[i] = kept ? row + 1 : 0;
			}
			__syncthreads();
			add_up(m, n);
		}
		__syncthreads();
	}
}

// tell_records finds the first selection of a token at each rank, and tells every rank what the share's selections are to it. All threads of the block call it: a
// thread takes a selection, and those of a token stand a power of two apart, so that they meet in one warp.
__device__ __forceinline__ void tell_records(const Place &a, const Turn &o, Share share) {
	bool by_rank = (a.what & BY_RANK) != 0;
	u32 topk = a.shape.topk, capacity = a.shape.capacity, lane = threadIdx.x & 31;
	u32 width = topk > 1 ? 1u << (32 - __clz((int)topk - 1)) : 1, k = lane & (width - 1);
	for (u32 first = share.from + (threadIdx.x & ~31u) / width; first < share.to; first += blockDim.x / width) {
		u32 t = first + lane / width;
		bool here = t < share.to && k < topk;
		u32 i = t * topk + k, row = 0;
		Pair p = {0, 0};
		if (here) {
			p = a.home[i];
			row = a.places[i];
		}
		u32 e = p.what & 0xFFFF, rank = e != 0 ? rank_of(a.shape, e - 1) : MAX_RANKS;
		// Whoever has no row is alone.
		u32 same = __match_any_sync(0xFFFFFFFFu, e != 0 ? (lane / width) << 8 | rank : 0x10000u | lane);
		bool leads = e != 0 && (same & ((1u << lane) - 1)) == 0;
		if (leads) a.places[i] = row | LEADER;
		u64 at = a.records + ((u64)a.group.rank * capacity * topk + i) * sizeof(Pair);
		for (Round to(all_ranks(a.group) & ~o.mask, a.group.rank, a.group.ranks); here && to.more();) {
			u32 r = to.next(), what = by_rank ? e - rank * a.shape.local : row;
			store_relaxed_sys8(a.group.window[r] + at, r == rank ? make_uint2(what, p.weight) : make_uint2(0, 0));
		}
		if (!by_rank) continue;
		u64 visits = a.visits + ((u64)a.group.rank * capacity + t) * 4, visited = leads ? 1ull << rank : 0;
		if (leads) store_relaxed_sys4(a.group.window[rank] + visits, row);
		for (u32 d = 1; d < width; d *= 2) visited |= __shfl_xor_sync(0xFFFFFFFFu, visited, d);
		for (u32 r = k; t < share.to && r < a.group.ranks; r += width) {
			if (!holds(visited | o.mask, r)) store_relaxed_sys4(a.group.window[r] + visits, 0);
		}
	}
}

// keep copies what this block's number was told of src's tokens, of which it has so many.
__device__ __forceinline__ void keep(const Place &a, const Turn &o, u32 src, u32 tokens) {
	constexpr u32 FLIGHT = 4; // pairs of a thread that are on their way at once
	u32 topk = a.shape.topk, capacity = a.shape.capacity;
	bool by_rank = (a.what & BY_RANK) != 0;
	Share share(tokens), rest(capacity);
	u64 slot = (u64)src * capacity;
	const char *records = o.own + a.records + slot * topk * sizeof(Pair), *visits = o.own + a.visits + slot * 4;
	Pair *landings = a.landings + slot * topk;
	for (u32 first = share.from * topk + threadIdx.x; first < share.to * topk; first += FLIGHT * blockDim.x) {
		uint2 p[FLIGHT];
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			u32 i = first + j * blockDim.x;
			if (i < share.to * topk) p[j] = load_relaxed_sys8(records + (u64)i * sizeof(Pair));
		}
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			u32 i = first + j * blockDim.x;
			if (i < share.to * topk) landings[i] = {p[j].x, p[j].y};
		}
	}
	for (u32 t = share.from + threadIdx.x; by_rank && t < share.to; t += blockDim.x) a.arrivals[slot + t] = load_relaxed_sys4(visits + t * 4);
	for (u32 i = max(tokens, rest.from) * topk + threadIdx.x; i < rest.to * topk; i += blockDim.x) landings[i] = {0, 0};
	for (u32 t = max(tokens, rest.from) + threadIdx.x; by_rank && t < rest.to; t += blockDim.x) a.arrivals[slot + t] = 0;
}

// keep_all copies what this block's number was told.
__device__ __forceinline__ void keep_all(const Place &a, const Turn &o, Wait &w) {
	u32 lane = threadIdx.x & 31, ranks = a.group.ranks;
	for (u32 first = 0; first < ranks; first += 32) {
		u32 src = first + lane, tokens = src < ranks ? total(a, o, w, src, columns(a)) : 0; // they are there: the marks came after them
		__syncwarp();
		for (u32 i = 0; first + i < ranks && i < 32; i++) keep(a, o, first + i, __shfl_sync(0xFFFFFFFFu, tokens, i));
	}
}

__device__ __forceinline__ void place(const Place &a) {
	Turn o;
	Map m = map();
	Share share(a.tokens);
	if (!o.begin(a.group, a.state, 0, OP_PREPARE)) return;
	Wait w(a.group, a.state, OP_PREPARE, o.epoch);
	if (blockIdx.x == 0) tell(a.group, o, a.words, a.call, 0);
	count(a, m, share);
	if (!meet(a, o, w)) return;
	send_totals(a, o);
	count_words(o, w, a.words);
	if (!start(a, o, w)) return;
	number_share(a, o, m, share);
	tell_records(a, o, share);
	mark(a.group, o, a.marks);
	if (!await_marks(a.group, o, w, a.marks)) return;
	keep_all(a, o, w);
	leave(a.state, o.epoch - 1, o.turn, true);
}

} // namespace weft

extern "C" __global__ void __launch_bounds__(512, 1) weft_place(const __grid_constant__ weft::Place a) { weft::place(a); }
