// Place: every selection of every token gets the row where it will stand, and every rank learns what comes. It is the prepare of handles whose rows have their
// final places before they leave.
//
//	count   every block counts its share of the tokens, by expert and by rank, with a bit a token in shared memory, and says what it has
//	number  what the blocks before have makes numbers of a rank's selections of each expert; every rank is told of those that go there
//	total   the last block so knows what the rank has in all, and tells every rank
//	base    what the ranks before have in all, and for packed rows the zones before, is what numbers have to be raised by to be rows
//	keep    when the blocks of this number have told everything, the numbers become rows: of this rank's selections, and of those that come
#include "placed.cuh"

namespace weft {

// Go: placeArgs.
struct Place {
	Group group;
	Shape shape;
	State *state;
	u64 words, totals, records, visits, marks; // offsets in a window
	u32 what, tokens, call;
	u32 rows;	 // room: of an expert in zones of fixed size, else of a rank
	u32 align;	 // of packed zones
	u32 blocks;	 // that have something to do
	u32 numbers; // bits of a number in a record, by expert
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
	u64 *counts; // [blocks][experts + ranks]: what a block has, and the operation's number above it
	u32 *bases;	 // [blocks][2 x experts]: where shared memory has no room for them
};

static_assert(sizeof(Place) == WEFT_PLACE_BYTES, "the host has another idea of the arguments");

// Buckets are the experts and, behind them, the ranks. A map has a bit for each token of a tile and each of some buckets.
constexpr u32 BUCKETS = 1024, MAP = 7168, MOST_WIDTH = 31;

struct Map {
	u32 *words;	 // [buckets][width]
	u16 *before; // the same: tokens of the tile in the words before
	u32 *base;	 // [buckets]: those of the tiles before, and when selections are numbered those of the blocks before as well
	u32 width;	 // words of a bucket: an odd number, so that threads that go through buckets side by side use all banks

	__device__ __forceinline__ u32 tile() const { return width * 32; }
};

__device__ __forceinline__ u32 columns(const Place &a) { return a.shape.experts + a.group.ranks; }

// map_for has tiles as large as the share, or as there is room for.
__device__ __forceinline__ Map map_for(const Place &a, Share share) {
	__shared__ u32 words[MAP], base[BUCKETS];
	__shared__ u16 before[MAP];
	u32 most = min(MAP / min(columns(a), BUCKETS), MOST_WIDTH), wanted = (share.to - share.from + 31) / 32;
	return {words, before, base, (min(most, wanted + 1) - 1) | 1};
}

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
	__syncthreads();
	for (u32 i = threadIdx.x; i < n * m.width; i += blockDim.x) m.words[i] = 0;
	__syncthreads();
#pragma unroll 4
	for (u32 i = from * a.shape.topk + threadIdx.x; i < to * a.shape.topk; i += blockDim.x) {
		u32 e = expert_of(a, i), k, t = a.topk.quotient(i, k) - from;
		if (e == 0) continue;
		u32 expert = e - 1 - first, rank = a.shape.experts + rank_of(a.shape, e - 1) - first;
		if (expert < n) atomicOr(&m.words[expert * m.width + t / 32], 1u << t % 32);
		if (rank < n) atomicOr(&m.words[rank * m.width + t / 32], 1u << t % 32);
	}
	__syncthreads();
	for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
		u32 sum = 0;
		for (u32 w = i * m.width; w < (i + 1) * m.width; w++) {
			m.before[w] = (u16)sum;
			sum += __popc(m.words[w]);
		}
	}
	__syncthreads();
}

// add_tile moves on behind a tile. All threads of the block call it.
__device__ __forceinline__ void add_tile(const Map &m, u32 n) {
	for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
		u32 last = (i + 1) * m.width - 1;
		m.base[i] += m.before[last] + __popc(m.words[last]);
	}
}

// at_once says that the map holds all of a share, so that it is filled once for counting and for numbering.
__device__ __forceinline__ bool at_once(const Place &a, const Map &m, Share share) { return columns(a) <= BUCKETS && share.to - share.from <= m.tile(); }

// each_group calls f with the first bucket and the number of buckets of every group that the map has room for.
template <class F> __device__ __forceinline__ void each_group(const Place &a, F f) {
	for (u32 first = 0; first < columns(a); first += BUCKETS) f(first, min(BUCKETS, columns(a) - first));
}

__device__ __forceinline__ void count(const Place &a, const Turn &o, const Map &m, Share share) {
	u64 *mine = a.counts + (u64)blockIdx.x * columns(a);
	each_group(a, [&](u32 first, u32 n) {
		for (u32 i = threadIdx.x; i < n; i += blockDim.x) m.base[i] = 0;
		for (u32 t = share.from; t < share.to; t += m.tile()) {
			fill(a, m, t, min(t + m.tile(), share.to), first, n);
			add_tile(m, n);
		}
		for (u32 i = threadIdx.x; i < n; i += blockDim.x) store_relaxed_sys_u64(mine + first + i, o.epoch << 32 | m.base[i]);
	});
}

// counted_before is what the blocks before have in a bucket.
__device__ __forceinline__ u32 counted_before(const Place &a, const Turn &o, Wait &w, u32 column) {
	constexpr u32 FLIGHT = 16; // blocks that are asked at once
	const u64 *counts = a.counts + column;
	u32 sum = 0;
	for (u32 first = 0; first < blockIdx.x; first += FLIGHT) {
		u64 v[FLIGHT];
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) v[j] = load_relaxed_sys_u64(counts + (u64)min(first + j, blockIdx.x - 1) * columns(a));
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (first + j >= blockIdx.x) break;
			while ((u32)(v[j] >> 32) != (u32)o.epoch && !w.over && w.more(a.group.rank, (u32)o.epoch, v[j] >> 32)) {
				v[j] = load_relaxed_sys_u64(counts + (u64)(first + j) * columns(a));
			}
			sum += (u32)v[j];
		}
	}
	return sum;
}

__device__ __forceinline__ u64 total_at(const Place &a, const Turn &o, u32 src, u32 column) {
	return a.totals + (((o.epoch & 1) * a.group.ranks + src) * (columns(a) + 1) + column) * 8;
}

// send_total tells every rank a number of what this one has in all.
__device__ __forceinline__ void send_total(const Place &a, const Turn &o, u32 column, u32 sum) {
	for (Round to(all_ranks(a.group) & ~o.mask, a.group.rank, a.group.ranks); to.more();) {
		store_relaxed_sys_u64(a.group.window[to.next()] + total_at(a, o, a.group.rank, column), (o.epoch << 32) | sum);
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

// Choice is a selection of a token. Tokens stand a power of two of lanes apart, so that a token's selections meet in one warp.
struct Choice {
	u32 t, k, i;	   // i: of the rank's
	bool inside, here; // the token is one of those, and there is such a selection
	u32 e; // expert + 1, or 0
	float weight;
	u32 number; // if it has one already

	template <bool NUMBERED> __device__ __forceinline__ void read(const Place &a, u32 first, u32 end, u32 width, u32 lane) {
		t = first + lane / width;
		k = lane & (width - 1);
		i = t * a.shape.topk + k;
		inside = t < end;
		here = inside && k < a.shape.topk;
		e = here ? expert_of(a, i) : 0;
		weight = here && a.weights != nullptr ? a.weights[i] : 1.0f;
		number = NUMBERED && here ? a.places[i] : 0;
	}

	__device__ __forceinline__ u32 rank(const Place &a) const { return e != 0 ? rank_of(a.shape, e - 1) : MAX_RANKS; }

	// leads says whether the selection is the token's first at its rank, of those that are taken. All lanes call it.
	__device__ __forceinline__ bool leads(bool taken, u32 rank, u32 width, u32 lane) const {
		u32 same = __match_any_sync(0xFFFFFFFFu, taken ? (lane / width) << 8 | rank : 0x10000u | lane); // whoever is not taken is alone
		return taken && (same & ((1u << lane) - 1)) == 0;
	}
};

// each_choice calls f with every selection of tokens [from, to), a whole warp at a time. All threads of the block call it. What memory has of several is on its way
// at once.
template <bool NUMBERED, class F> __device__ __forceinline__ void each_choice(const Place &a, u32 from, u32 to, F f) {
	constexpr u32 FLIGHT = 4;
	u32 topk = a.shape.topk, lane = threadIdx.x & 31, width = topk > 1 ? 1u << (32 - __clz((int)topk - 1)) : 1, step = blockDim.x / width;
	for (u32 first = from + (threadIdx.x & ~31u) / width; first < to; first += FLIGHT * step) {
		Choice c[FLIGHT];
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) c[j].read<NUMBERED>(a, first + j * step, to, width, lane);
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (first + j * step < to) f(c[j], width, lane);
		}
	}
}

// Records and visits have a place for every other operation: what this one tells may come while a rank still keeps what the one before told.
__device__ __forceinline__ u64 record_at(const Place &a, const Turn &o, u32 src) {
	return a.records + ((o.epoch & 1) * a.group.ranks + src) * a.shape.capacity * a.shape.topk * sizeof(Pair);
}

__device__ __forceinline__ u64 visit_at(const Place &a, const Turn &o, u32 src) { return a.visits + ((o.epoch & 1) * a.group.ranks + src) * a.shape.capacity * 4; }

// tell_choice tells every rank what a selection with a number is to it, and by rank what its token is.
__device__ __forceinline__ void tell_choice(const Place &a, const Turn &o, const Choice &c, u32 number, bool told, bool first, u32 width, u32 lane) {
	u32 own = a.group.rank, rank = c.rank(a), le = c.e - rank * a.shape.local; // + 1
	bool by_rank = (a.what & BY_RANK) != 0;
	u32 what = by_rank ? le : le << a.numbers | number, weight = 0;
	if (told) weight = bits(c.weight);
	u64 at = record_at(a, o, own) + (u64)c.i * sizeof(Pair);
	for (Round to(all_ranks(a.group) & ~o.mask, own, a.group.ranks); told && to.more();) {
		u32 r = to.next();
		store_relaxed_sys8(a.group.window[r] + at, r == rank ? make_uint2(what, weight) : make_uint2(0, 0));
	}
	if (!by_rank) return;
	u64 visit = visit_at(a, o, own) + c.t * 4, visited = c.e != 0 ? 1ull << rank : 0;
	if (c.leads(c.e != 0, rank, width, lane) && told && !holds(o.mask, rank)) store_relaxed_sys4(a.group.window[rank] + visit, number + 1);
	for (u32 d = 1; d < width; d *= 2) visited |= __shfl_xor_sync(0xFFFFFFFFu, visited, d);
	for (u32 r = c.k; first && c.inside && r < a.group.ranks; r += width) {
		if (!holds(visited | o.mask, r)) store_relaxed_sys4(a.group.window[r] + visit, 0);
	}
}

// number_share gives every selection of the share its number, and tells the ranks. All threads of the block call it.
__device__ __forceinline__ void number_share(const Place &a, const Turn &o, Wait &w, const Map &m, Share share) {
	bool by_rank = (a.what & BY_RANK) != 0, filled = at_once(a, m, share), last = blockIdx.x == a.blocks - 1;
	const u64 *mine = a.counts + (u64)blockIdx.x * columns(a);
	each_group(a, [&](u32 group, u32 n) {
		__syncthreads();
		for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
			u32 before = counted_before(a, o, w, group + i);
			m.base[i] = before;
			if (last) send_total(a, o, group + i, before + (u32)load_relaxed_sys_u64(mine + group + i));
		}
		__syncthreads();
		for (u32 tile = share.from; tile < share.to; tile += m.tile()) {
			u32 to = min(tile + m.tile(), share.to);
			if (!filled) fill(a, m, tile, to, group, n);
			each_choice<false>(a, tile, to, [&](const Choice &c, u32 width, u32 lane) {
				u32 bucket = (by_rank ? a.shape.experts + c.rank(a) : c.e - 1) - group, t = c.t - tile, number = 0;
				bool told = c.here && (c.e != 0 ? bucket < n : group == 0);
				if (told && c.e != 0) {
					u32 word = bucket * m.width + t / 32;
					number = m.base[bucket] + m.before[word] + __popc(m.words[word] & ((1u << t % 32) - 1));
				}
				if (told) a.places[c.i] = number;
				tell_choice(a, o, c, number, told, group == 0, width, lane);
			});
			if (filled) continue;
			__syncthreads();
			add_tile(m, n);
		}
	});
	if (last && threadIdx.x == 0) send_total(a, o, columns(a), a.tokens);
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

// Bases are what numbers have to be raised by.
struct Bases {
	u32 *own;	   // of this rank's: [experts], or by rank [ranks]
	u32 *arrived;  // of those that come: [ranks][local], or by rank [ranks]
	u32 *tokens;   // that the ranks have
	Share *shares; // of them
};

// bases_for has them in the map, which nobody needs any more, or in memory.
__device__ __forceinline__ Bases bases_for(const Place &a, const Map &m) {
	__shared__ u32 tokens[MAX_RANKS], shares[MAX_RANKS * 2];
	u32 n = max(a.shape.experts, a.group.ranks), *at = 2 * n <= MAP ? m.words : a.bases + (u64)blockIdx.x * 2 * n;
	return {at, at + n, tokens, (Share *)shares};
}

// describe_expert says what comes for a local expert, whose zone begins at a row, and where what each rank sends begins. One thread does.
__device__ __forceinline__ void describe_expert(const Place &a, const Turn &o, Wait &w, const Described &d, const Bases &bases, u32 le, u32 zone, u32 sum, u32 padded) {
	u32 kept = room_for(a, zone, sum), begin = 0, column = a.group.rank * a.shape.local + le;
	bool first = blockIdx.x == 0;
	if (first) {
		d.counts[le] = (int)kept;
		d.offsets[le] = (int)zone;
		d.demand[le] = (int)sum;
		d.padded[le] = (int)((a.what & PACKED) != 0 ? room_for(a, zone, padded) : kept);
	}
#pragma unroll 4
	for (u32 src = 0; src < a.group.ranks; src++) {
		u32 n = total(a, o, w, src, column), from = min(begin, kept);
		bases.arrived[src * a.shape.local + le] = zone + begin;
		if (first) a.ranges[(u64)le * a.group.ranks + src] = (long long)((u64)from << 32 | min(n, kept - from));
		begin += n;
	}
}

// base_zones computes where the zones of a rank's experts begin, and what the ranks before have in each: a warp does for one rank. The first block describes what
// it sees.
__device__ __forceinline__ void base_zones(const Place &a, const Turn &o, Wait &w, const Described &described, const Bases &bases, u32 rank, u32 lane) {
	u32 next = 0, received = 0; // the zone behind those that were seen, and rows that there is room for
	u32 over = EMPTY, excess = 0;
	for (u32 first = 0; first < a.shape.local; first += 32) {
		u32 le = first + lane, e = rank * a.shape.local + le;
		bool here = le < a.shape.local;
		u32 sum = 0, before = 0, zone = le * a.rows, padded = 0;
		if (here) {
			Column c(a, o, w, e);
			sum = padded = c.sum;
			before = c.before;
		}
		if ((a.what & PACKED) != 0) {
			padded = (sum + a.align - 1) & ~(a.align - 1);
			u32 behind = padded;
#pragma unroll
			for (u32 i = 1; i < 32; i *= 2) {
				u32 left = __shfl_up_sync(0xFFFFFFFFu, behind, i);
				if (lane >= i) behind += left;
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
			bases.own[e] = zone + before;
			if (rank == a.group.rank) describe_expert(a, o, w, described, bases, le, zone, sum, padded);
		}
	}
	if (blockIdx.x != 0 || lane != 0) return;
	bool absent = holds(o.mask, rank);
	described.wanted[rank] = absent ? 0 : (int)next;
	described.over[rank] = absent || over == EMPTY ? -1 : (int)(rank * a.shape.local + over);
	described.excess[rank] = (int)excess;
	if (rank == a.group.rank) *described.rows = (int)((a.what & PACKED) != 0 ? min(next, a.rows) : received);
}

// base_ranks does where a token has one row at a rank. All threads of the block call it.
__device__ __forceinline__ void base_ranks(const Place &a, const Turn &o, Wait &w, const Described &d, const Bases &bases) {
	u32 experts = a.shape.experts, ranks = a.group.ranks;
	bool first = blockIdx.x == 0;
	for (u32 r = threadIdx.x; r < ranks; r += blockDim.x) {
		Column c(a, o, w, experts + r);
		bases.own[r] = c.before;
		u32 arrived = 0;
		for (u32 src = 0; src < r; src++) arrived += total(a, o, w, src, experts + a.group.rank);
		bases.arrived[r] = arrived;
		if (!first) continue;
		d.wanted[r] = (int)(holds(o.mask, r) ? 0 : c.sum);
		d.over[r] = -1;
		if (r == a.group.rank) *d.rows = (int)min(c.sum, a.rows);
	}
	for (u32 le = threadIdx.x; first && le < a.shape.local; le += blockDim.x) {
		u32 sum = Column(a, o, w, a.group.rank * a.shape.local + le).sum;
		d.counts[le] = d.demand[le] = d.padded[le] = (int)sum;
		d.offsets[le] = 0;
	}
}

// base learns what numbers have to be raised by, and describes what comes. All threads of the block call it.
__device__ __forceinline__ void base(const Place &a, const Turn &o, Wait &w, const Bases &bases) {
	u32 ranks = a.group.ranks, lane = threadIdx.x & 31;
	Described d(a.described, a.shape.local, ranks);
	if ((a.what & BY_RANK) != 0) {
		base_ranks(a, o, w, d, bases);
	} else {
		for (u32 r = threadIdx.x / 32; r < ranks; r += blockDim.x / 32) base_zones(a, o, w, d, bases, r, lane);
	}
	for (u32 src = blockDim.x - 1 - threadIdx.x; src < ranks; src += blockDim.x) { // by warps that have had little to do
		bases.tokens[src] = total(a, o, w, src, columns(a));
		bases.shares[src] = Share(bases.tokens[src], a.blocks);
		if (blockIdx.x != 0) continue;
		d.tokens[src] = (int)bases.tokens[src];
		d.came[src] = (int)total(a, o, w, src, a.shape.experts + a.group.rank);
	}
}

// limit is where rows end that a local expert, or by rank a rank, has.
__device__ __forceinline__ u32 limit(const Place &a, u32 le) { return (a.what & (BY_RANK | PACKED)) != 0 ? a.rows : (le + 1) * a.rows; }

// keep_own makes rows of the numbers of this rank's selections. All threads of the block call it.
__device__ __forceinline__ void keep_own(const Place &a, const Turn &o, const Bases &bases, Share share) {
	bool by_rank = (a.what & BY_RANK) != 0;
	each_choice<true>(a, share.from, share.to, [&](const Choice &c, u32 width, u32 lane) {
		u32 row = 0, rank = c.rank(a);
		bool kept = false;
		if (c.e != 0) {
			row = c.number + bases.own[by_rank ? rank : c.e - 1];
			kept = row < limit(a, c.e - 1 - rank * a.shape.local) && !holds(o.mask, rank);
		}
		bool leads = c.leads(kept, rank, width, lane);
		if (!c.here) return;
		a.places[c.i] = kept ? (row + 1) | (leads ? LEADER : 0) : 0;
		a.home[c.i] = {(kept ? c.e : 0) | c.e << 16, bits(c.weight)};
	});
}

// Told is what was told of a selection.
struct Told {
	uint2 record;
	u32 visit; // by rank: its token's number + 1
};

// keep_told makes rows of the numbers of a selection that comes from src.
__device__ __forceinline__ void keep_told(const Place &a, const Bases &bases, u32 src, u32 i, Told told) {
	u64 slot = (u64)src * a.shape.capacity;
	u32 k, t = a.topk.quotient(i, k), what = 0;
	if ((a.what & BY_RANK) != 0) {
		u32 row = told.visit - 1 + bases.arrived[src];
		bool kept = told.visit != 0 && row < a.rows;
		what = kept ? told.record.x : 0;
		if (k == 0) a.arrivals[slot + t] = kept ? row + 1 : 0;
	} else if (told.record.x != 0) {
		u32 le = (told.record.x >> a.numbers) - 1, row = (told.record.x & ((1u << a.numbers) - 1)) + bases.arrived[src * a.shape.local + le];
		what = row < limit(a, le) ? row + 1 : 0;
	}
	a.landings[slot * a.shape.topk + i] = {what, told.record.y};
}

// keep_arrived does for all that the blocks of this number told of. All threads of the block call it.
__device__ __forceinline__ void keep_arrived(const Place &a, const Turn &o, const Bases &bases) {
	constexpr u32 SOURCES = 2, FLIGHT = 4; // of a thread, that are on their way at once
	u32 topk = a.shape.topk, ranks = a.group.ranks;
	bool by_rank = (a.what & BY_RANK) != 0;
	Share rest(a.shape.capacity, a.blocks);
	for (u32 group = 0; group < ranks; group += SOURCES) {
		u32 from[SOURCES], n[SOURCES], most = 0; // selections
#pragma unroll
		for (u32 s = 0; s < SOURCES; s++) {
			from[s] = n[s] = 0;
			if (group + s >= ranks) continue;
			Share share = bases.shares[group + s];
			from[s] = share.from * topk;
			n[s] = (share.to - share.from) * topk;
			most = max(most, n[s]);
		}
		for (u32 at = threadIdx.x; at < most; at += FLIGHT * blockDim.x) {
			Told told[SOURCES][FLIGHT];
#pragma unroll
			for (u32 s = 0; s < SOURCES; s++) {
				const char *records = o.own + record_at(a, o, group + s), *visits = o.own + visit_at(a, o, group + s);
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					u32 k, i = from[s] + at + j * blockDim.x;
					if (at + j * blockDim.x >= n[s]) continue;
					told[s][j].record = load_relaxed_sys8(records + (u64)i * sizeof(Pair));
					if (by_rank) told[s][j].visit = load_relaxed_sys4(visits + a.topk.quotient(i, k) * 4);
				}
			}
#pragma unroll
			for (u32 s = 0; s < SOURCES; s++) {
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (at + j * blockDim.x < n[s]) keep_told(a, bases, group + s, from[s] + at + j * blockDim.x, told[s][j]);
				}
			}
		}
	}
	for (u32 src = 0; src < ranks; src++) { // of tokens that a rank does not have
		u32 tokens = bases.tokens[src];
		u64 slot = (u64)src * a.shape.capacity;
		for (u32 i = max(tokens, rest.from) * topk + threadIdx.x; i < rest.to * topk; i += blockDim.x) a.landings[slot * topk + i] = {0, 0};
		for (u32 t = max(tokens, rest.from) + threadIdx.x; by_rank && t < rest.to; t += blockDim.x) a.arrivals[slot + t] = 0;
	}
}

__device__ __forceinline__ void place(const Place &a) {
	Turn o;
	Share share(a.tokens, a.blocks);
	if (!o.begin(a.group, a.state, 0, OP_PREPARE)) return;
	if (blockIdx.x < a.blocks) {
		Wait w(a.group, a.state, OP_PREPARE, o.epoch);
		Map m = map_for(a, share);
		count(a, o, m, share);
		if (blockIdx.x == 0) tell(a.group, o, a.words, a.call, 0); // others wait for what it counts, and it for none of theirs
		number_share(a, o, w, m, share);
		count_words(o, w, a.words);
		for (u32 r = threadIdx.x; blockIdx.x == 0 && r < a.group.ranks; r += blockDim.x) {
			if (!holds(o.mask, r)) hear(o, w, a.words, r, a.call);
		}
		if (__syncthreads_or(w.over) != 0) return;
		mark(a.group, o, a.marks);
		Bases bases = bases_for(a, m);
		base(a, o, w, bases);
		if (!await_marks(a.group, o, w, a.marks)) return;
		keep_own(a, o, bases, share);
		keep_arrived(a, o, bases);
	} else {
		mark(a.group, o, a.marks); // for nobody, but one that is too old may be taken for a new one
	}
	leave(a.state, o.epoch - 1, o.turn, true);
}

} // namespace weft

extern "C" __global__ void __launch_bounds__(512, 1) weft_place(const __grid_constant__ weft::Place a) { weft::place(a); }
