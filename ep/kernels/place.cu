// Place: every selection of every token gets the row where it will stand, and every rank learns what comes. It is the prepare of handles whose rows have their
// final places before they leave.
//
//	count   every block sends every rank what its share of the tokens selects there, and counts by expert and by rank, with a bit a token in shared memory
//	before  what the blocks before have is added up and told the ranks concerned; the last block so knows what its rank has in all, and tells every rank
//	base    what the ranks and the blocks before have and, for packed rows, the zones before, is what numbers among a share's have to be raised by to be rows
//	keep    this rank's selections, or by rank its tokens, get their rows; when what the blocks of this number have sent is there, it is counted in the same way, and
//	        gets its rows
#include "placed.cuh"

namespace weft {

// Go: placeArgs.
struct Place {
	Group group;
	Shape shape;
	State *state;
	u64 words, totals, records, befores, marks; // offsets in a window
	u32 what, tokens, call;
	u32 rows;	 // room: of an expert in zones of fixed size, else of a rank
	u32 align;	 // of packed zones
	u32 blocks;	 // that have something to do
	const void *ids; // [tokens][top-k]
	const float *weights;
	Pair *home;		// [capacity][top-k]: expert + 1 if it has a row, expert + 1 << 16 in any case; weight
	u32 *places;	// [capacity][top-k]: row + 1, LEADER
	Pair *landings; // [ranks][capacity][top-k]: row + 1, or by rank local expert + 1; 0: none
	u32 *arrivals;	// [ranks][capacity], by rank: row + 1
	int *described;
	long long *ranges;
	u64 *counts; // [blocks][experts + ranks]: what a block has, and the operation's number above it
	u32 *bases;	 // [blocks][4][experts or, if there are more, ranks]: where shared memory has no room for them
};

static_assert(sizeof(Place) == WEFT_PLACE_BYTES, "the host has another idea of the arguments");

__device__ __forceinline__ bool by_rank(const Place &a) { return (a.what & BY_RANK) != 0; }

// columns are what a rank counts: its selections of each expert, and behind them its tokens for each rank.
__device__ __forceinline__ u32 columns(const Place &a) { return a.shape.experts + a.group.ranks; }

// incoming is what is counted of what comes: each rank's selections of each expert here, or by rank each rank's tokens.
__device__ __forceinline__ u32 incoming(const Place &a) { return by_rank(a) ? a.group.ranks : a.shape.experts; }

// ---- Counting. A map has a bit for each token of a tile and each of some buckets, which are the columns, or what is counted of what comes.

constexpr u32 BUCKETS = 1024, MAP = 5120, MOST_WIDTH = 31;

// sums has room for one number of each bucket, four times.
__device__ __forceinline__ u32 *sums() {
	__shared__ u32 sums[4 * BUCKETS];
	return sums;
}

struct Map {
	u32 *words;	 // [buckets][width]
	u16 *before; // the same: tokens of the tile in the words before
	u32 *base;	 // [buckets]: those of the tiles before
	u32 width;	 // words of a bucket: an odd number, so that threads that go through buckets side by side use all banks

	// A map of so many buckets has tiles of so many tokens, or as many as there is room for.
	__device__ __forceinline__ Map(u32 tokens, u32 buckets) {
		__shared__ u32 words[MAP];
		__shared__ u16 before[MAP];
		this->words = words, this->before = before, base = sums();
		width = (min(min(MAP / min(buckets, BUCKETS), MOST_WIDTH), (tokens + 31) / 32 + 1) - 1) | 1;
	}

	__device__ __forceinline__ u32 tile() const { return width * 32; }

	__device__ __forceinline__ void add(u32 bucket, u32 t) const { atomicOr(&words[bucket * width + t / 32], 1u << t % 32); }

	// number is how many tokens of the bucket are before t.
	__device__ __forceinline__ u32 number(u32 bucket, u32 t) const {
		u32 word = bucket * width + t / 32;
		return base[bucket] + before[word] + __popc(words[word] & ((1u << t % 32) - 1));
	}

	// counted is how many there are in this tile and those before.
	__device__ __forceinline__ u32 counted(u32 bucket) const {
		u32 last = (bucket + 1) * width - 1;
		return base[bucket] + before[last] + __popc(words[last]);
	}

	__device__ __forceinline__ void add_up(u32 bucket) const {
		constexpr u32 FLIGHT = 8; // words that are read before anything is stored: a store might be to a word that is read after it, as the compiler sees it
		u32 sum = 0, end = (bucket + 1) * width;
#pragma unroll 1
		for (u32 first = bucket * width; first < end; first += FLIGHT) {
			u32 v[FLIGHT];
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) v[j] = first + j < end ? words[first + j] : 0;
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if (first + j < end) before[first + j] = (u16)sum;
				sum += __popc(v[j]);
			}
		}
	}

	// each calls f with every one of n buckets, a thread each.
	template <class F> __device__ __forceinline__ static void each(u32 n, F f) {
		for (u32 i = threadIdx.x; i < n; i += blockDim.x) f(i);
	}

	// go goes through so many tokens of so many buckets, as many as there is room for at a time: fill(t, first, n) is to add those of the tile at t, in n buckets from first
	// on, and then number(t, first, n) asks for their numbers; counted(first, n) is when the last tile of the buckets is counted. All threads of the block call it.
	template <class Fill, class Counted, class Number>
	__device__ __forceinline__ void go(u32 tokens, u32 buckets, Fill fill, Counted counted, Number number) const {
		for (u32 first = 0; first < buckets; first += BUCKETS) {
			u32 n = min(BUCKETS, buckets - first);
			__syncthreads();
			each(n, [&](u32 i) { base[i] = 0; });
			for (u32 t = 0;; t += tile()) {
				bool last = t + tile() >= tokens;
				for (u32 i = threadIdx.x; i < n * width; i += blockDim.x) words[i] = 0;
				__syncthreads();
				fill(t, first, n);
				__syncthreads();
				each(n, [&](u32 i) { add_up(i); });
				__syncthreads();
				if (last) counted(first, n);
				number(t, first, n);
				if (last) break;
				__syncthreads();
				each(n, [&](u32 i) { base[i] = this->counted(i); });
				__syncthreads();
			}
		}
	}
};

// ---- What ranks tell each other has places for every other operation: what this one tells may come while a rank still keeps what the one before told.

__device__ __forceinline__ u64 records_at(const Place &a, const Turn &o) { return a.records + (o.epoch & 1) * a.group.ranks * a.shape.capacity * a.shape.topk * sizeof(Pair); }

__device__ __forceinline__ u64 total_at(const Place &a, const Turn &o, u32 src, u32 column) {
	return a.totals + (((u32)(o.epoch & 1) * a.group.ranks + src) * (columns(a) + 1) + column) * 8;
}

__device__ __forceinline__ u64 before_at(const Place &a, const Turn &o, u32 src, u32 le) {
	u32 width = by_rank(a) ? 1 : a.shape.local;
	return a.befores + ((((u32)(o.epoch & 1) * a.group.ranks + src) * a.blocks + blockIdx.x) * width + le) * 8;
}

// tell_number tells a rank, with the operation's number.
__device__ __forceinline__ void tell_number(const Place &a, const Turn &o, u32 rank, u64 at, u32 n) {
	if (!holds(o.mask, rank)) store_relaxed_sys_u64(a.group.window[rank] + at, o.epoch << 32 | n);
}

// poll_number is for a number that was not there. It is a function of its own because there are many places that wait for one, and of those that have to almost none.
__device__ __noinline__ u64 poll_number(const Group &g, State *s, u64 epoch, u32 peer, const char *p) {
	Wait w(g, s, OP_PREPARE, epoch);
	u64 v = load_relaxed_sys_u64(p);
	while ((u32)(v >> 32) != (u32)epoch && w.more(peer, (u32)epoch, v >> 32)) v = load_relaxed_sys_u64(p);
	return v;
}

// checked gives a number that was looked at, or awaits it: another one was there.
__device__ __forceinline__ u32 checked(const Place &a, const Turn &o, Wait &w, u32 peer, const char *p, u64 v) {
	if ((u32)(v >> 32) != (u32)o.epoch) {
		v = poll_number(a.group, a.state, o.epoch, peer, p);
		if ((u32)(v >> 32) != (u32)o.epoch) w.over = true;
	}
	return (u32)v;
}

// told is a number that src tells; those of a rank that is left out are 0.
__device__ __forceinline__ u32 told(const Place &a, const Turn &o, Wait &w, u32 src, u64 at) {
	return holds(o.mask, src) ? 0 : checked(a, o, w, src, o.own + at, load_relaxed_sys_u64(o.own + at));
}

// each_total calls f with what each rank has in a column, in order.
template <class F> __device__ __forceinline__ void each_total(const Place &a, const Turn &o, Wait &w, u32 column, F f) {
	constexpr u32 FLIGHT = 4; // ranks that are asked at once
	const char *p = o.own + total_at(a, o, 0, column);
	u64 stride = (columns(a) + 1) * 8;
#pragma unroll 1
	for (u32 first = 0; first < a.group.ranks; first += FLIGHT) {
		u64 v[FLIGHT];
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) v[j] = first + j < a.group.ranks ? load_relaxed_sys_u64(p + (first + j) * stride) : 0;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			u32 src = first + j;
			if (src < a.group.ranks) f(src, holds(o.mask, src) ? 0 : checked(a, o, w, src, p + src * stride, v[j]));
		}
	}
}

// ---- This rank's tokens.

// Choice is a selection of a token.
struct Choice {
	u32 t, i; // i: of the rank's
	bool here; // there is such a selection
	u32 e;	  // expert + 1, or 0
	float weight;
	u32 number;

	__device__ __forceinline__ u32 rank(const Place &a) const { return e != 0 ? rank_of(a.shape, e - 1) : MAX_RANKS; }
};

// expert_of is the expert that an index names, + 1; 0 for none, and for what is no expert.
__device__ __forceinline__ u32 expert_of(const Place &a, uint2 id) { return id.y == 0 && id.x < a.shape.experts ? id.x + 1 : 0; }

constexpr u32 FLIGHT = 4; // selections of a thread that are on their way at once

// each_choice calls f with all selections of tokens [from, to), some of each thread at a time, and how many that are at most. All threads of the block call it.
template <bool WEIGHTS, bool NUMBERS, class F> __device__ __forceinline__ void each_choice(const Place &a, const Spread &s, u32 from, u32 to, F f) {
#pragma unroll 1
	for (u32 first = from; first < to; first += FLIGHT * s.step) {
		Choice c[FLIGHT];
		uint2 id[FLIGHT];
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			c[j].t = first + s.token + j * s.step;
			c[j].i = c[j].t * a.shape.topk + s.k;
			c[j].here = c[j].t < to && s.k < a.shape.topk;
		}
		if ((a.what & WIDE) != 0) {
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) id[j] = c[j].here ? ((const uint2 *)a.ids)[c[j].i] : make_uint2(EMPTY, EMPTY);
		} else {
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) id[j] = make_uint2(c[j].here ? ((const u32 *)a.ids)[c[j].i] : EMPTY, 0);
		}
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (WEIGHTS) c[j].weight = c[j].here && a.weights != nullptr ? a.weights[c[j].i] : 1.0f;
			if (NUMBERS) c[j].number = c[j].here ? a.places[c[j].i] : 0;
		}
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) c[j].e = expert_of(a, id[j]); // when all are on their way
		f(c, min(FLIGHT, (to - first + s.step - 1) / s.step));
	}
}

// send tells every rank what n selections of the thread are to it.
__device__ __forceinline__ void send(const Place &a, const Turn &o, const Windows &windows, const Choice (&c)[FLIGHT], u32 n) {
	u64 at = records_at(a, o) + a.group.rank * a.shape.capacity * a.shape.topk * sizeof(Pair);
#pragma unroll 1
	for (u32 i = 0; i < a.group.ranks; i++) {
		u32 r = next_rank(a.group, i), first = r * a.shape.local;
		if (holds(o.mask, r)) continue;
		char *to = windows.of(r) + at;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (j >= n || !c[j].here) continue;
			bool goes = c[j].e - 1 - first < a.shape.local;
			store_relaxed_sys8(to + c[j].i * (u64)sizeof(Pair), goes ? make_uint2(c[j].e - first, bits(c[j].weight)) : make_uint2(0, 0));
		}
	}
}

// count sends what the tokens select, counts it, says what it has counted, and numbers it. All threads of the block call it.
__device__ __forceinline__ void count(const Place &a, const Turn &o, const Spread &s, Share share) {
	u64 *mine = a.counts + blockIdx.x * columns(a);
	Windows windows(a.group);
	u32 n = share.to - share.from;
	Map m(n, columns(a));
	m.go(
		n, columns(a),
		[&](u32 t, u32 first, u32 n) {
			u32 from = share.from + t;
			each_choice<true, false>(a, s, from, min(from + m.tile(), share.to), [&](const Choice(&c)[FLIGHT], u32 some) {
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					if (c[j].e == 0) continue;
					u32 expert = c[j].e - 1 - first, rank = a.shape.experts + c[j].rank(a) - first;
					if (expert < n) m.add(expert, c[j].t - from);
					if (rank < n) m.add(rank, c[j].t - from);
				}
				if (first == 0) send(a, o, windows, c, some);
			});
		},
		[&](u32 first, u32 n) {
			Map::each(n, [&](u32 i) { store_relaxed_sys_u64(mine + first + i, o.epoch << 32 | m.counted(i)); });
		},
		[&](u32 t, u32 first, u32 n) {
			u32 from = share.from + t;
			each_choice<false, false>(a, s, from, min(from + m.tile(), share.to), [&](const Choice(&c)[FLIGHT], u32) {
#pragma unroll
				for (u32 j = 0; j < FLIGHT; j++) {
					u32 bucket = (by_rank(a) ? a.shape.experts + c[j].rank(a) : c[j].e - 1) - first;
					if (c[j].e != 0 && bucket < n) a.places[c[j].i] = m.number(bucket, c[j].t - from);
				}
			});
		});
}

// counted_before is what the blocks before have in a column.
__device__ __forceinline__ u32 counted_before(const Place &a, const Turn &o, Wait &w, u32 column) {
	constexpr u32 FLIGHT = 16; // blocks that are asked at once
	const u64 *counts = a.counts + column;
	u32 sum = 0;
#pragma unroll 1
	for (u32 first = 0; first < blockIdx.x; first += FLIGHT) {
		u64 v[FLIGHT];
		u32 late = 0;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) v[j] = first + j < blockIdx.x ? load_relaxed_sys_u64(counts + (first + j) * columns(a)) : o.epoch << 32;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if ((u32)(v[j] >> 32) == (u32)o.epoch) sum += (u32)v[j];
			else late |= 1u << j;
		}
#pragma unroll 1
		for (; late != 0; late &= late - 1) {
			const u64 *p = counts + (first + (u32)__ffs((int)late) - 1) * columns(a);
			sum += checked(a, o, w, a.group.rank, (const char *)p, load_relaxed_sys_u64(p));
		}
	}
	return sum;
}

// ---- What comes.

// Sources are the tokens of all ranks that the blocks of this number have to do with.
struct Sources {
	u32 *tokens;   // [ranks] that the rank has
	Share *shares; // [ranks]
	u32 most;	   // of a share

	__device__ __forceinline__ Sources() : most(0) {
		__shared__ u32 tokens[MAX_RANKS], shares[MAX_RANKS * 2];
		this->tokens = tokens;
		this->shares = (Share *)shares;
	}

	// learn is followed by a barrier, and then by measure.
	__device__ __forceinline__ void learn(const Place &a, const Turn &o, Wait &w) const {
		for (u32 src = threadIdx.x; src < a.group.ranks; src += blockDim.x) {
			tokens[src] = told(a, o, w, src, total_at(a, o, src, columns(a)));
			shares[src] = Share(tokens[src], a.blocks);
		}
	}

	__device__ __forceinline__ void measure(const Place &a) {
#pragma unroll 1
		for (u32 src = 0; src < a.group.ranks; src++) most = max(most, shares[src].to - shares[src].from);
	}
};

// Spot is a selection that may come.
struct Spot {
	u32 src, t, i; // t: of the source's share; i: of all ranks' capacities
	bool here;	   // there is such a selection
};

// each_spot calls f with all selections of tokens [from, to) of every share, some of each thread at a time. All threads of the block call it.
template <class F> __device__ __forceinline__ void each_spot(const Place &a, const Spread &s, const Sources &sources, u32 from, u32 to, F f) {
	u32 n = to - from, src = 0, t = s.token;
#pragma unroll 1
	for (u32 base = 0; base < a.group.ranks * n; base += FLIGHT * s.step) {
		Spot spot[FLIGHT];
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
#pragma unroll 1
			for (; t >= n && src < a.group.ranks; t -= n) src++;
			spot[j] = {src, from + t, 0, false};
			if (src < a.group.ranks) {
				Share share = sources.shares[src];
				u32 token = share.from + from + t;
				spot[j].here = token < share.to && s.k < a.shape.topk;
				spot[j].i = (src * a.shape.capacity + token) * a.shape.topk + s.k;
			}
			t += s.step;
		}
		f(spot);
	}
}

// each_record calls f with every selection of tokens [from, to) of every share, and what was sent of it. All threads of the block call it.
template <class F> __device__ __forceinline__ void each_record(const Place &a, const Turn &o, const Spread &s, const Sources &sources, u32 from, u32 to, F f) {
	const uint2 *records = (const uint2 *)(o.own + records_at(a, o));
	each_spot(a, s, sources, from, to, [&](const Spot(&spot)[FLIGHT]) {
		uint2 record[FLIGHT];
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) record[j] = spot[j].here ? records[spot[j].i] : make_uint2(0, 0);
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) f(spot[j], record[j]);
	});
}

// ---- Rows.

// Bases are what numbers have to be raised by.
struct Bases {
	u32 *own;	  // of this rank's: [experts], or by rank [ranks]
	u32 *arrived; // of those that come: [ranks][local], or by rank [ranks]
	u32 *sum;	  // [experts]: what all ranks have
	u32 *before;  // as arrived: what the source's blocks before this one have

	__device__ __forceinline__ explicit Bases(const Place &a) {
		u32 n = max(a.shape.experts, a.group.ranks);
		before = n <= BUCKETS ? sums() : a.bases + (u64)blockIdx.x * 4 * n;
		n = max(n, BUCKETS);
		own = before + n;
		arrived = own + n;
		sum = arrived + n;
	}
};

// add_before adds up what the blocks before have, and tells the rank concerned; the last block tells all of them what there is. What is not known, for a wait was
// given up, is not told: who waits for it gives up as well. All threads of the block call it.
__device__ __forceinline__ void add_before(const Place &a, const Turn &o, Wait &w, const Bases &bases) {
	const u64 *mine = a.counts + blockIdx.x * columns(a);
	bool last = blockIdx.x == a.blocks - 1;
	for (u32 column = threadIdx.x; column < columns(a); column += blockDim.x) {
		bool rank = column >= a.shape.experts, numbers = rank == by_rank(a);
		if (!numbers && !last) continue;
		u32 before = counted_before(a, o, w, column);
		if (w.over) return;
		if (numbers) {
			u32 i = rank ? column - a.shape.experts : column, to = rank ? i : rank_of(a.shape, i);
			bases.own[i] = before;
			tell_number(a, o, to, before_at(a, o, a.group.rank, rank ? 0 : i - to * a.shape.local), before);
		}
		if (!last) continue;
		u32 sum = before + (u32)load_relaxed_sys_u64(mine + column);
#pragma unroll 1
		for (u32 i = 0; i < a.group.ranks; i++) tell_number(a, o, next_rank(a.group, i), total_at(a, o, a.group.rank, column), sum);
	}
}

// room_for is how many of n rows from the first of an expert's zone on there is room for.
__device__ __forceinline__ u32 room_for(const Place &a, u32 zone, u32 n) {
	if ((a.what & PACKED) == 0) return min(n, a.rows);
	return zone < a.rows ? min(n, a.rows - zone) : 0;
}

// describe_expert says what comes for a local expert, whose zone begins at a row, and where what each rank sends begins. One thread does.
__device__ __forceinline__ void describe_expert(const Place &a, const Described &d, const Bases &bases, u32 le, u32 zone, u32 sum, u32 padded) {
	u32 kept = room_for(a, zone, sum);
	bool first = blockIdx.x == 0;
	if (first) {
		d.counts[le] = (int)kept;
		d.offsets[le] = (int)zone;
		d.demand[le] = (int)sum;
		d.padded[le] = (int)((a.what & PACKED) != 0 ? room_for(a, zone, padded) : kept);
	}
#pragma unroll 2
	for (u32 src = 0; src < a.group.ranks; src++) {
		u32 *p = bases.arrived + src * a.shape.local + le, begin = *p, end = src + 1 < a.group.ranks ? p[a.shape.local] : sum, from = min(begin, kept);
		*p = zone + begin + bases.before[src * a.shape.local + le];
		if (first) a.ranges[(u64)le * a.group.ranks + src] = (long long)((u64)from << 32 | min(end - begin, kept - from));
	}
}

// base_zones computes where the zones of a rank's experts begin. A warp does. The first block describes what it sees.
__device__ __forceinline__ void base_zones(const Place &a, const Turn &o, const Described &described, const Bases &bases, u32 rank, u32 lane) {
	u32 next = 0, received = 0; // the zone behind those that were seen, and rows that there is room for
	u32 over = EMPTY, excess = 0;
#pragma unroll 1
	for (u32 first = 0; first < a.shape.local; first += 32) {
		u32 le = first + lane, e = rank * a.shape.local + le;
		bool here = le < a.shape.local;
		u32 sum = here ? bases.sum[e] : 0, zone = le * a.rows, padded = sum;
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
		if (!here) continue;
		bases.own[e] += zone;
		if (rank == a.group.rank) describe_expert(a, described, bases, le, zone, sum, padded);
	}
	if (blockIdx.x != 0 || lane != 0) return;
	bool absent = holds(o.mask, rank);
	described.wanted[rank] = absent ? 0 : (int)next;
	described.over[rank] = absent || over == EMPTY ? -1 : (int)(rank * a.shape.local + over);
	described.excess[rank] = (int)excess;
	if (rank == a.group.rank) *described.rows = (int)((a.what & PACKED) != 0 ? min(next, a.rows) : received);
}

// base_experts learns what numbers of selections have to be raised by. All threads of the block call it.
__device__ __forceinline__ void base_experts(const Place &a, const Turn &o, Wait &w, const Described &d, const Bases &bases) {
	u32 local = a.shape.local, mine = a.group.rank * local;
	for (u32 e = threadIdx.x; e < a.shape.experts; e += blockDim.x) {
		u32 from = rank_of(a.shape, e), sum = 0, own = 0;
		bases.before[e] = told(a, o, w, from, before_at(a, o, from, e - from * local)); // of the rank and the local expert whose number is e
		each_total(a, o, w, e, [&](u32 src, u32 n) {
			if (src < a.group.rank) own += n;
			if (e - mine < local) bases.arrived[src * local + e - mine] = sum;
			sum += n;
		});
		bases.own[e] += own;
		bases.sum[e] = sum;
	}
	__syncthreads();
	for (u32 r = threadIdx.x / 32; r < a.group.ranks; r += blockDim.x / 32) base_zones(a, o, d, bases, r, threadIdx.x & 31);
}

// base_ranks does where a token has one row at a rank. All threads of the block call it.
__device__ __forceinline__ void base_ranks(const Place &a, const Turn &o, Wait &w, const Described &d, const Bases &bases) {
	u32 experts = a.shape.experts, ranks = a.group.ranks, rank = a.group.rank;
	bool first = blockIdx.x == 0;
	for (u32 r = threadIdx.x; r < ranks; r += blockDim.x) {
		u32 sum = 0, own = 0, before = told(a, o, w, r, before_at(a, o, r, 0));
		each_total(a, o, w, experts + r, [&](u32 src, u32 n) {
			if (src < rank) own += n;
			sum += n;
		});
		each_total(a, o, w, experts + rank, [&](u32 src, u32 n) { before += src < r ? n : 0; });
		bases.own[r] += own;
		bases.arrived[r] = before;
		if (!first) continue;
		d.wanted[r] = (int)(holds(o.mask, r) ? 0 : sum);
		d.over[r] = -1;
		if (r == rank) *d.rows = (int)min(sum, a.rows);
	}
	for (u32 le = blockDim.x - 1 - threadIdx.x; first && le < a.shape.local; le += blockDim.x) { // by warps that have nothing to do
		u32 sum = 0;
		each_total(a, o, w, rank * a.shape.local + le, [&](u32, u32 n) { sum += n; });
		d.counts[le] = d.demand[le] = d.padded[le] = (int)sum;
		d.offsets[le] = 0;
	}
}

// base learns what numbers have to be raised by, and describes what comes. All threads of the block call it.
__device__ __forceinline__ void base(const Place &a, const Turn &o, Wait &w, const Sources &sources, const Bases &bases) {
	Described d(a.described, a.shape.local, a.group.ranks);
	__syncthreads(); // all have added up what is before
	if (by_rank(a)) base_ranks(a, o, w, d, bases);
	else base_experts(a, o, w, d, bases);
	if (blockIdx.x != 0) return;
	for (u32 src = threadIdx.x; src < a.group.ranks; src += blockDim.x) {
		d.tokens[src] = (int)sources.tokens[src];
		d.came[src] = (int)told(a, o, w, src, total_at(a, o, src, a.shape.experts + a.group.rank));
	}
}

// limit is where rows end that a local expert, or by rank a rank, has.
__device__ __forceinline__ u32 limit(const Place &a, u32 le) { return (a.what & (BY_RANK | PACKED)) != 0 ? a.rows : (le + 1) * a.rows; }

// keep_own makes rows of the numbers of this rank's selections. All threads of the block call it.
__device__ __forceinline__ void keep_own(const Place &a, const Turn &o, const Spread &s, const Bases &bases, Share share) {
	u32 lane = threadIdx.x & 31, token = lane >> s.width;
	each_choice<true, true>(a, s, share.from, share.to, [&](const Choice(&c)[FLIGHT], u32 n) {
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (j >= n) break;
			u32 row = 0, rank = c[j].rank(a);
			bool kept = false;
			if (c[j].e != 0) {
				row = c[j].number + bases.own[by_rank(a) ? rank : c[j].e - 1];
				kept = row < limit(a, c[j].e - 1 - rank * a.shape.local) && !holds(o.mask, rank);
			}
			u32 same = __match_any_sync(0xFFFFFFFFu, kept ? token << 8 | rank : 0x10000u | lane); // whoever is not kept is alone
			if (!c[j].here) continue;
			a.places[c[j].i] = kept ? (row + 1) | ((same & ((1u << lane) - 1)) == 0 ? LEADER : 0) : 0;
			a.home[c[j].i] = {(kept ? c[j].e : 0) | c[j].e << 16, bits(c[j].weight)};
		}
	});
}

// keep_arrived counts what the blocks of this number have sent, and gives it its rows. All threads of the block call it.
__device__ __forceinline__ void keep_arrived(const Place &a, const Turn &o, const Spread &s, const Sources &sources, const Bases &bases) {
	Map m(sources.most, incoming(a));
	m.go(
		sources.most, incoming(a),
		[&](u32 t, u32 first, u32 n) {
			each_record(a, o, s, sources, t, min(t + m.tile(), sources.most), [&](const Spot &c, uint2 record) {
				u32 bucket = (by_rank(a) ? c.src : c.src * a.shape.local + record.x - 1) - first;
				if (record.x != 0 && bucket < n) m.add(bucket, c.t - t);
			});
		},
		[](u32, u32) {},
		[&](u32 t, u32 first, u32 n) {
			each_record(a, o, s, sources, t, min(t + m.tile(), sources.most), [&](const Spot &c, uint2 record) {
				bool comes = by_rank(a) ? s.of_token(record.x != 0) : record.x != 0;
				u32 le = record.x - 1, bucket = by_rank(a) ? c.src : c.src * a.shape.local + le;
				if (!c.here || (comes ? bucket - first >= n : first != 0)) return;
				u32 row = comes ? m.number(bucket - first, c.t - t) + bases.arrived[bucket] : 0;
				bool kept = comes && row < limit(a, le);
				a.landings[c.i] = {!kept || record.x == 0 ? 0 : by_rank(a) ? record.x : row + 1, record.y};
				if (by_rank(a) && s.k == 0) a.arrivals[c.src * a.shape.capacity + sources.shares[c.src].from + c.t] = kept ? row + 1 : 0;
			});
		});
}

// clear_rest says of tokens that a rank does not have that nothing comes. All threads of the block call it.
__device__ __forceinline__ void clear_rest(const Place &a, const Sources &sources) {
	Share rest(a.shape.capacity, a.blocks);
	u32 topk = a.shape.topk;
#pragma unroll 1
	for (u32 src = 0; src < a.group.ranks; src++) {
		u32 tokens = sources.tokens[src], slot = src * a.shape.capacity;
		for (u32 i = max(tokens, rest.from) * topk + threadIdx.x; i < rest.to * topk; i += blockDim.x) a.landings[slot * topk + i] = {0, 0};
		for (u32 t = max(tokens, rest.from) + threadIdx.x; by_rank(a) && t < rest.to; t += blockDim.x) a.arrivals[slot + t] = 0;
	}
}

// begin_words begins the operation with the others, before anything else, so that nobody waits for a word, and without a fence: the word goes with nothing.
__device__ __forceinline__ void begin_words(const Place &a, const Turn &o) {
	for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		tell_word(a.group, o, a.words, r, a.call, 0);
		tell_number(a, o, r, total_at(a, o, a.group.rank, columns(a)), a.tokens);
	}
}

// hear_words hears that the others have begun it.
__device__ __forceinline__ void hear_words(const Place &a, const Turn &o, Wait &w) {
	count_words(o, w, a.words);
	for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		if (!holds(o.mask, r)) hear(o, w, a.words, r, a.call);
	}
}

__device__ __forceinline__ void place(const Place &a) {
	Turn o;
	bool begun = o.begin(a.group, a.state, 0, OP_PREPARE);
	if (!__syncthreads_and(begun)) return; // all of a block or none: half of one would tell others what it has not counted
	if (blockIdx.x < a.blocks) {
		Wait w(a.group, a.state, OP_PREPARE, o.epoch);
		Spread s(a.shape.topk, blockDim.x);
		Share share(a.tokens, a.blocks);
		Bases bases(a);
		Sources sources;
		if (blockIdx.x == 0) begin_words(a, o);
		count(a, o, s, share);
		if (blockIdx.x == 0) { // others wait for what it counts, and it for none of theirs
			hear_words(a, o, w);
			if (__syncthreads_or(w.over) != 0) return;
		}
		mark(a.group, o, a.marks);
		add_before(a, o, w, bases);
		sources.learn(a, o, w);
		base(a, o, w, sources, bases); // what it awaits is told without a fence, so it is there before the marks
		if (__syncthreads_or(w.over) != 0) return;
		sources.measure(a);
		keep_own(a, o, s, bases, share);
		clear_rest(a, sources);
		if (!await_marks(a.group, o, w, a.marks)) return;
		keep_arrived(a, o, s, sources, bases);
	} else {
		mark(a.group, o, a.marks); // for nobody, but one that is too old may be taken for a new one
	}
	leave(a.state, o.epoch - 1, o.turn, true);
}

} // namespace weft

extern "C" __global__ void __launch_bounds__(512, 1) weft_place(const __grid_constant__ weft::Place a) { weft::place(a); }
