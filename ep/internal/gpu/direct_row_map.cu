// Row map: every selection of every token gets the row where it will stand, and every rank learns what
// comes. It is the prepare of handles whose rows go straight to their final rows.
//
//	count    every block sends each rank what its share of the tokens selects there, and counts by expert
//	         and by rank, with a bit a token in shared memory
//	before   each block adds up the counts of the lower blocks and sends the sums to the ranks concerned;
//	         the last block has its rank's totals, and sends them to every rank
//	arrived  each block counts what the blocks of its number on other ranks have sent
//	base     the counts of lower ranks and lower blocks and, for packed rows, of the zones before, turn
//	         indices within a share into rows
//	keep     this rank's selections, or by rank its tokens, get their rows, and so does what has arrived
#include "direct.cuh"

namespace weft {

// Go: rowMapArgs.
struct RowMap {
	Shape shape;
	State *state;
	u64 openings, totals, records, befores, marks; // offsets in a window
	u32 flags, tokens, call;
	u32 rows;			   // room: of an expert in zones of fixed size, else of a rank
	u32 align;			   // of packed zones
	u32 blocks;			   // that have something to do
	u32 map_entries, zero; // of a Map
	const void *ids;	   // [tokens][top-k]
	const float *weights;
	Pair *home;		  // [capacity][top-k]: expert + 1 if it has a row, expert + 1 << 16 in any case; weight
	u32 *dest_rows;	  // [capacity][top-k]: row + 1, LEADER
	Pair *recv_rows;  // [ranks][capacity][top-k]: row + 1, or by rank local expert + 1; 0: none
	u32 *recv_tokens; // [ranks][capacity], by rank: row + 1
	int *described;
	long long *ranges;
	u64 *counts; // [blocks][experts + ranks]: what a block has, and the operation's number above it
	u32 *bases;	 // [blocks][4][experts or, if there are more, ranks]: where shared memory has no room for them
	Group group;
};

static_assert(sizeof(RowMap) == WEFT_ROW_MAP_BYTES + WIDER, "not the size of the host's struct");

// Handles that differ in these have programs of their own: a prepare is as long as what a warp does
// one after the other, and each question costs.
constexpr bool BY_RANKS = WEFT_BY_RANK != 0; // a token has one row at a rank
// a Map has a bucket for all that is counted, and selections of a token are fours
constexpr bool EVEN = WEFT_EVEN != 0;

// columns are what a rank counts: its selections of each expert, and behind them its tokens for
// each rank.
__device__ __forceinline__ u32 columns(const RowMap &a) { return a.shape.experts + a.group.ranks; }

// incoming is what is counted of what comes: each rank's selections of each expert here, or by rank
// each rank's tokens.
__device__ __forceinline__ u32 incoming(const RowMap &a) { return BY_RANKS ? a.group.ranks : a.shape.experts; }

// ---- Counting. A map has a bit for each token of a tile and each of some buckets, which are the
// columns, or what is counted of what comes. It stands in shared memory, from where its bits are
// read once more when it is known what the numbers among a block's have to be raised by.

constexpr u32 BUCKETS = 1024, MOST_WIDTH = 33;

// Go: mapBytes.
__device__ __forceinline__ u32 map_bytes(u32 entries) { return entries * 8 + BUCKETS * 4; }

struct Map {
	u64 entries; // [buckets][width]: 32 tokens of the tile that the bucket has, and the number of the first of them
	u64 base;	 // [buckets]: what numbers of the tile begin with
	u32 tokens, buckets;
	u32 width; // entries of a bucket: an odd number, so that threads that go through buckets side by side use all banks

	// A map of so many entries has tiles of all tokens, or of as many as there is room for.
	__device__ __forceinline__ Map(u64 at, u32 room, u32 tokens, u32 buckets)
		: entries(at), base(at + room * 8), tokens(tokens), buckets(buckets) {
		width = (min(min(room / min(buckets, BUCKETS), MOST_WIDTH), (tokens + 31) / 32 + 1) - 1) | 1;
	}

	__device__ __forceinline__ u32 tile() const { return width * 32; }

	// all says whether the map has all buckets at once, and whole whether it has all tokens as
	// well.
	__device__ __forceinline__ bool all() const { return EVEN || buckets <= BUCKETS; }
	__device__ __forceinline__ bool whole() const { return all() && tokens <= tile(); }

	__device__ __forceinline__ u64 entry(u32 bucket, u32 i) const { return entries + (bucket * width + i) * 8; }

	// add adds token t, and add_some tokens of the same 32 as t.
	__device__ __forceinline__ void add(bool here, u32 bucket, u32 t) const { add_some(here, bucket, t, 1u << t % 32); }
	__device__ __forceinline__ void add_some(bool here, u32 bucket, u32 t, u32 some) const {
		or_shared4(entry(bucket, t / 32), some, here);
	}

	// number is how many tokens of the bucket are before t, and what the numbers begin with;
	// anything if it is not asked for.
	__device__ __forceinline__ u32 number(bool here, u32 bucket, u32 t) const {
		uint2 e = load_shared8(here ? entry(bucket, t / 32) : entries);
		return e.y + __popc(e.x & ((1u << t % 32) - 1));
	}

	// add_up numbers a bucket's tokens, and gives how many there are up to the end of the tile,
	// with which the next begins.
	__device__ __forceinline__ u32 add_up(u32 bucket) const {
		constexpr u32 FLIGHT = 8; // entries that are read before anything is stored
		u32 sum = load_shared4(base + bucket * 4);
#pragma unroll 1
		for (u32 first = 0; first < width; first += FLIGHT) {
			u32 v[FLIGHT];
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) v[j] = first + j < width ? load_shared4(entry(bucket, first + j)) : 0;
#pragma unroll
			for (u32 j = 0; j < FLIGHT; j++) {
				if (first + j < width) store_shared4(entry(bucket, first + j) + 4, sum);
				sum += __popc(v[j]);
			}
		}
		store_shared4(base + bucket * 4, sum);
		return sum;
	}

	// raise makes the numbers of a tile that has been added up begin with n.
	__device__ __forceinline__ void raise(u32 bucket, u32 n) const {
#pragma unroll 1
		for (u32 i = 0; i < width; i++) {
			u64 at = entry(bucket, i) + 4;
			store_shared4(at, load_shared4(at) + n);
		}
	}

	// each calls f with every one of n buckets, a thread each.
	template <class F> __device__ __forceinline__ static void each(u32 n, F f) {
		for (u32 i = threadIdx.x; i < n; i += blockDim.x) f(i);
	}

	// fill makes the tile at t: f(t, first, n) is to add its tokens to n buckets from first on.
	template <class F> __device__ __forceinline__ void fill(u32 t, u32 first, u32 n, F f) const {
		for (u32 i = threadIdx.x; i < n * width; i += blockDim.x) store_shared4(entries + i * 8, 0);
		__syncthreads();
		f(t, first, n);
		__syncthreads();
	}

	// count fills all tiles, and calls f(bucket, how many it has). All threads of the block call
	// it. What each has of a whole map's buckets it may go on with at once.
	template <class Fill, class F> __device__ __forceinline__ void count(Fill add, F f) const {
#pragma unroll 1
		for (u32 first = 0;; first += BUCKETS) {
			u32 n = min(BUCKETS, buckets - first);
			each(n, [&](u32 i) { store_shared4(base + i * 4, 0); });
#pragma unroll 1
			for (u32 t = 0;; t += tile()) {
				bool last = t + tile() >= tokens;
				fill(t, first, n, add);
				each(n, [&](u32 i) {
					u32 sum = add_up(i);
					if (last) f(first + i, sum);
				});
				if (whole()) return;
				__syncthreads();
				if (last) break;
			}
			if (first + BUCKETS >= buckets) break;
		}
	}

	// begin makes the numbers of a whole map begin with what f says of a bucket, each thread those
	// that it has added up. It is followed by a barrier.
	template <class F> __device__ __forceinline__ void begin(F f) const {
		each(buckets, [&](u32 i) { raise(i, f(i)); });
	}

	// again fills the tiles of a map that is not whole once more, their numbers beginning with what
	// begin says of a bucket, and calls f(t, first, n) for each, which may ask for numbers in n
	// buckets from first on. All threads of the block call it.
	template <class Fill, class Begin, class F>
	__device__ __forceinline__ void again(Fill add, Begin begin, F f) const {
#pragma unroll 1
		for (u32 first = 0;; first += BUCKETS) {
			u32 n = min(BUCKETS, buckets - first);
			each(n, [&](u32 i) { store_shared4(base + i * 4, begin(first + i)); });
#pragma unroll 1
			for (u32 t = 0;; t += tile()) {
				fill(t, first, n, add);
				each(n, [&](u32 i) { add_up(i); });
				__syncthreads();
				f(t, first, n);
				__syncthreads();
				if (t + tile() >= tokens) break;
			}
			if (all() || first + BUCKETS >= buckets) break;
		}
	}
};

// ---- What ranks send each other has two buffers, which operations take in turn: a peer may send for
// this operation while a rank still reads what came for the one before.

__device__ __forceinline__ u64 records_at(const RowMap &a, const Operation &o) {
	return a.records + (o.epoch & 1) * a.group.ranks * a.shape.capacity * a.shape.topk * sizeof(Pair);
}

__device__ __forceinline__ u64 total_at(const RowMap &a, const Operation &o, u32 src, u32 column) {
	return a.totals + (((u32)(o.epoch & 1) * a.group.ranks + src) * (columns(a) + 1) + column) * 8;
}

__device__ __forceinline__ u64 before_at(const RowMap &a, const Operation &o, u32 src, u32 le) {
	u32 width = BY_RANKS ? 1 : a.shape.local;
	return a.befores + ((((u32)(o.epoch & 1) * a.group.ranks + src) * a.blocks + blockIdx.x) * width + le) * 8;
}

// send_number sends a rank a number, with the epoch.
__device__ __forceinline__ void send_number(const RowMap &a, const Operation &o, u32 rank, u64 at, u32 n) {
	if (!holds(o.mask, rank)) store_relaxed_sys_u64(a.group.window[rank] + at, o.epoch << 32 | n);
}

// poll_number is for a number that was not there. It is a function of its own because many
// callers may wait for one, and almost none has to.
__device__ __noinline__ u64 poll_number(const Group &g, State *s, u64 epoch, u32 peer, const char *p) {
	Wait w(g, s, OP_PREPARE, epoch);
	u64 v = load_relaxed_sys_u64(p);
	while ((u32)(v >> 32) != (u32)epoch && w.more(peer, (u32)epoch, v >> 32)) v = load_relaxed_sys_u64(p);
	return v;
}

// checked gives a number that was looked at, or awaits it: another one was there.
__device__ __forceinline__ u32 checked(const RowMap &a, const Operation &o, Wait &w, u32 peer, const char *p, u64 v) {
	if ((u32)(v >> 32) != (u32)o.epoch) {
		v = poll_number(a.group, a.state, o.epoch, peer, p);
		if ((u32)(v >> 32) != (u32)o.epoch) w.over = true;
	}
	return (u32)v;
}

// awaited is a number that src sends; those of a masked rank are 0.
__device__ __forceinline__ u32 awaited(const RowMap &a, const Operation &o, Wait &w, u32 src, u64 at) {
	return holds(o.mask, src) ? 0 : checked(a, o, w, src, o.own + at, load_relaxed_sys_u64(o.own + at));
}

// each_total calls f with what each rank has in a column, in order.
template <class F>
__device__ __forceinline__ void each_total(const RowMap &a, const Operation &o, Wait &w, u32 column, F f) {
	constexpr u32 FLIGHT = 4; // ranks that are asked at once
	const char *p = o.own + total_at(a, o, 0, column);
	u64 stride = (columns(a) + 1) * 8;
#pragma unroll 1
	for (u32 first = 0; first < a.group.ranks;) {
		u64 v[FLIGHT];
		u32 late = FLIGHT;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++)
			v[j] = first + j < a.group.ranks && !holds(o.mask, first + j)
					   ? load_relaxed_sys_u64(p + (first + j) * stride)
					   : o.epoch << 32;
#pragma unroll
		for (u32 j = FLIGHT; j-- > 0;) {
			if ((u32)(v[j] >> 32) != (u32)o.epoch) late = j;
		}
		if (late < FLIGHT && !w.over) { // and then they are looked at again
			u64 now = poll_number(a.group, a.state, o.epoch, first + late, p + (first + late) * stride);
			w.over = (u32)(now >> 32) != (u32)o.epoch;
			continue;
		}
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			if (first + j < a.group.ranks) f(first + j, (u32)v[j]);
		}
		first += FLIGHT;
	}
}

// ---- Selections. A thread has four of a token, one after the other, and reads those of its next
// token while it works on these.

constexpr u32 QUAD = 4; // Go: placeQuad

// Quads gives every thread its selections. The threads of a token are a power of two, so that they
// meet in one warp.
struct Quads {
	u32 width, k, n; // log2 of that power; the thread's first selection of a token, and how many it has
	u32 token, step; // its first token, and how far the next is
	bool fours;		 // all that have some have four

	// Of so many threads this is one.
	__device__ __forceinline__ Quads(u32 topk, u32 thread, u32 threads) {
		width = topk > QUAD ? 32 - __clz((int)((topk - 1) / QUAD)) : 0;
		k = (thread & (lanes() - 1)) * QUAD;
		n = k < topk ? min(QUAD, topk - k) : 0;
		token = thread >> width;
		step = threads >> width;
		fours = topk % QUAD == 0;
	}

	// vectors says whether selections are read and written four at a time.
	__device__ __forceinline__ bool vectors() const { return EVEN || fours; }

	__device__ __forceinline__ u32 lanes() const { return 1u << width; }

	// of_token is what the lanes of this token vote.
	__device__ __forceinline__ bool of_token(bool vote) const {
		u32 lane = threadIdx.x & 31;
		return (__ballot_sync(0xFFFFFFFFu, vote) >> (lane & ~(lanes() - 1)) & ((1u << lanes()) - 1)) != 0;
	}
};

__device__ __forceinline__ void load_words(bool vectors, const u32 *p, u32 n, u32 none, u32 (&v)[QUAD]) {
	if (vectors) {
		uint4 q = n != 0 ? *(const uint4 *)p : make_uint4(none, none, none, none);
		v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
		return;
	}
#pragma unroll
	for (u32 j = 0; j < QUAD; j++) v[j] = j < n ? p[j] : none;
}

__device__ __forceinline__ void load_pairs(bool vectors, const uint2 *p, u32 n, u32 none, uint2 (&v)[QUAD]) {
	if (vectors) {
#pragma unroll
		for (u32 j = 0; j < QUAD; j += 2) {
			uint4 q = n != 0 ? ((const uint4 *)p)[j / 2] : make_uint4(none, none, none, none);
			v[j] = make_uint2(q.x, q.y), v[j + 1] = make_uint2(q.z, q.w);
		}
		return;
	}
#pragma unroll
	for (u32 j = 0; j < QUAD; j++) v[j] = j < n ? p[j] : make_uint2(none, none);
}

__device__ __forceinline__ void store_pairs(bool vectors, uint2 *p, u32 n, const uint2 (&v)[QUAD]) {
	if (vectors && n != 0) {
#pragma unroll
		for (u32 j = 0; j < QUAD; j += 2) ((uint4 *)p)[j / 2] = make_uint4(v[j].x, v[j].y, v[j + 1].x, v[j + 1].y);
		return;
	}
#pragma unroll
	for (u32 j = 0; j < QUAD; j++) {
		if (j < n) p[j] = v[j];
	}
}

__device__ __forceinline__ void store_words(bool vectors, u32 *p, u32 n, const u32 (&v)[QUAD]) {
	if (vectors && n != 0) {
		*(uint4 *)p = make_uint4(v[0], v[1], v[2], v[3]);
		return;
	}
#pragma unroll
	for (u32 j = 0; j < QUAD; j++) {
		if (j < n) p[j] = v[j];
	}
}

// ---- This rank's tokens.

// Choices are those of a thread that a token has.
struct Choices {
	u32 t, i, n; // i: the first, of the rank's; n: there are so many
	u32 e[QUAD]; // expert + 1, or 0
	u32 weight[QUAD];

	__device__ __forceinline__ u32 rank(const RowMap &a, u32 j) const {
		return e[j] != 0 ? rank_of(a.shape, e[j] - 1) : 0;
	}
};

// Given are Choices as the caller gives them.
struct Given {
	uint2 id[QUAD];
	u32 weight[QUAD];

	__device__ __forceinline__ void fetch(const RowMap &a, const Quads &q, u32 t, u32 to) {
		u32 i = t * a.shape.topk + q.k, n = t < to ? q.n : 0;
		bool vectors = q.vectors() && (((u64)a.ids | (u64)a.weights) & 15) == 0;
		if ((a.flags & WIDE_IDS) != 0) {
			load_pairs(vectors, (const uint2 *)a.ids + i, n, EMPTY, id);
		} else {
			u32 narrow[QUAD];
			load_words(vectors, (const u32 *)a.ids + i, n, EMPTY, narrow);
#pragma unroll
			for (u32 j = 0; j < QUAD; j++) id[j] = make_uint2(narrow[j], 0);
		}
		load_words(vectors, (const u32 *)a.weights + i, a.weights != nullptr ? n : 0, bits(1.0f), weight);
	}

	__device__ __forceinline__ Choices of(const RowMap &a, const Quads &q, u32 t, u32 to) const {
		Choices c;
		c.t = t, c.i = t * a.shape.topk + q.k, c.n = t < to ? q.n : 0;
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			c.e[j] = j < c.n && id[j].y == 0 && id[j].x < a.shape.experts ? id[j].x + 1 : 0;
			c.weight[j] = weight[j];
		}
		return c;
	}
};

// Own is what a thread has to do with of its rank's tokens. The first are read before anything
// else, and kept.
struct Own {
	Quads q;
	Share share;
	Given first;

	__device__ __forceinline__ explicit Own(const RowMap &a)
		: q(a.shape.topk, threadIdx.x, blockDim.x), share(a.tokens, a.blocks) {
		if (blockIdx.x >= a.blocks) share.to = share.from;
		first.fetch(a, q, share.from + q.token, share.to);
	}

	// each calls f with the choices of all tokens [from, to), those of one token of each thread at
	// a time: of all threads of the block, or of the first of them. All threads of a warp call it.
	template <class F>
	__device__ __forceinline__ void each(const RowMap &a, const Quads &q, u32 from, u32 to, F f) const {
		Given next = first;
		if (from != share.from) next.fetch(a, q, from + q.token, to);
#pragma unroll 1
		for (u32 t = from + q.token; __any_sync(0xFFFFFFFFu, t < to); t += q.step) {
			Choices c = next.of(a, q, t, to);
			if (__any_sync(0xFFFFFFFFu, t + q.step < to)) next.fetch(a, q, t + q.step, to);
			f(c);
		}
	}
};

// leaders are, of a token's selections that are valid, the first at each rank: a bit of each of the
// lane's. All lanes of a warp call it.
__device__ __forceinline__ u32 leaders(const RowMap &a, const Quads &q, const bool (&valid)[QUAD],
									   const u32 (&rank)[QUAD]) {
	u32 leaders = 0;
#pragma unroll 1
	for (u32 from = 0; from < a.group.ranks; from += 32) {
		u32 bit[QUAD], set = 0;
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			bit[j] = valid[j] && rank[j] - from < 32 ? 1u << (rank[j] - from) : 0;
			set |= bit[j];
		}
#pragma unroll 1
		for (u32 i = 1; i < q.lanes(); i *= 2) {
			u32 left = __shfl_up_sync(0xFFFFFFFFu, set, i, (int)q.lanes());
			if (q.k >= i * QUAD) set |= left;
		}
		u32 seen = __shfl_up_sync(0xFFFFFFFFu, set, 1, (int)q.lanes());
		if (q.k == 0) seen = 0;
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			if ((bit[j] & ~seen) != 0) leaders |= 1u << j;
			seen |= bit[j];
		}
	}
	return leaders;
}

// send tells every rank what a token's selections are to it.
__device__ __forceinline__ void send(const RowMap &a, const Operation &o, const Windows &windows, const Quads &q,
									 const Choices &c) {
	u64 at = records_at(a, o) + (a.group.rank * a.shape.capacity * a.shape.topk + c.i) * (u64)sizeof(Pair);
#pragma unroll 1
	for (u32 i = 0; i < a.group.ranks; i++) {
		u32 r = next_rank(a.group, i), first = r * a.shape.local;
		char *to = windows.of(r) + at;
		if (holds(o.mask, r)) continue;
		uint2 record[QUAD];
#pragma unroll
		for (u32 j = 0; j < QUAD; j++)
			record[j] = c.e[j] - 1 - first < a.shape.local ? make_uint2(c.e[j] - first, c.weight[j]) : make_uint2(0, 0);
		store_pairs(q.vectors(), (uint2 *)to, c.n, record);
	}
}

// add_own adds to a map's tile what the tokens select, and sends it if it is not sent. All threads
// of the block call it.
__device__ __forceinline__ void add_own(const RowMap &a, const Operation &o, const Own &own, const Map &m, bool sends,
										u32 t, u32 first, u32 n) {
	Windows windows(a.group);
	u32 from = own.share.from + t, lane = threadIdx.x & 31;
	own.each(a, own.q, from, min(from + m.tile(), own.share.to), [&](const Choices &c) {
		if (sends && first == 0) send(a, o, windows, own.q, c);
		u32 rank[QUAD], at = c.t - from;
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			u32 expert = c.e[j] - 1 - first;
			rank[j] = c.e[j] != 0 ? c.rank(a, j) : MAX_RANKS;
			m.add(c.e[j] != 0 && (EVEN || expert < n), expert, at);
		}
		// Most tokens of a warp, which are of the same 32, have the same ranks: a lane adds those
		// of a rank.
#pragma unroll 1
		for (u32 r = 0; r < a.group.ranks; r += 32) {
			u32 set = 0, tokens = 0;
#pragma unroll
			for (u32 j = 0; j < QUAD; j++) set |= rank[j] - r < 32 ? 1u << (rank[j] - r) : 0;
#pragma unroll 1
			for (u32 i = 0; i < min(32u, a.group.ranks - r); i++) {
				u32 some = __reduce_or_sync(0xFFFFFFFFu, (set >> i & 1) << at % 32);
				if (lane == i) tokens = some;
			}
			u32 bucket = a.shape.experts + r + lane - first;
			m.add_some(tokens != 0 && (EVEN || bucket < n), bucket, at, tokens);
		}
	});
}

// count sends what the tokens select, counts it, and says what it has counted. All threads of the
// block call it.
__device__ __forceinline__ void count(const RowMap &a, const Operation &o, const Own &own, const Map &m) {
	u64 *mine = a.counts + blockIdx.x * columns(a);
	m.count([&](u32 t, u32 first, u32 n) { add_own(a, o, own, m, true, t, first, n); },
			[&](u32 column, u32 n) { store_relaxed_sys_u64(mine + column, o.epoch << 32 | n); });
}

// counted_before is what the blocks before have in a column: of every some blocks, from the first
// on.
__device__ __forceinline__ u32 counted_before(const RowMap &a, const Operation &o, Wait &w, u32 column, u32 first,
											  u32 step) {
	constexpr u32 FLIGHT = 12; // blocks that are asked at once
	const u64 *counts = a.counts + column;
	u32 sum = 0;
#pragma unroll 1
	for (; first < blockIdx.x; first += FLIGHT * step) {
		u64 v[FLIGHT];
		u32 late = 0;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++)
			v[j] = first + j * step < blockIdx.x ? load_relaxed_sys_u64(counts + (first + j * step) * columns(a))
												 : o.epoch << 32;
#pragma unroll
		for (u32 j = 0; j < FLIGHT; j++) {
			bool there = (u32)(v[j] >> 32) == (u32)o.epoch;
			sum += there ? (u32)v[j] : 0;
			late |= there ? 0 : 1u << j;
		}
#pragma unroll 1
		for (; late != 0; late &= late - 1) {
			const u64 *p = counts + (first + ((u32)__ffs((int)late) - 1) * step) * columns(a);
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

	__device__ __forceinline__ Sources() {
		__shared__ u32 tokens[MAX_RANKS], shares[MAX_RANKS * 2];
		this->tokens = tokens;
		this->shares = (Share *)shares;
	}

	// look asks for what the thread's rank has, of which there is one: learn, which is followed by
	// a barrier, makes use of it.
	__device__ __forceinline__ u64 look(const RowMap &a, const Operation &o) const {
		return threadIdx.x < a.group.ranks ? load_relaxed_sys_u64(o.own + total_at(a, o, threadIdx.x, columns(a))) : 0;
	}

	__device__ __forceinline__ void learn(const RowMap &a, const Operation &o, Wait &w, u64 seen) const {
		u32 src = threadIdx.x;
		if (src >= a.group.ranks) return;
		tokens[src] = holds(o.mask, src) ? 0 : checked(a, o, w, src, o.own + total_at(a, o, src, columns(a)), seen);
		shares[src] = Share(tokens[src], a.blocks);
	}

	// most is how many tokens a share has at most.
	__device__ __forceinline__ u32 most(const RowMap &a) const {
		u32 n = 0;
#pragma unroll 1
		for (u32 src = 0; src < a.group.ranks; src++) n = max(n, shares[src].to - shares[src].from);
		return n;
	}
};

// Spots are selections of a thread that may come of a token.
struct Spots {
	u32 src, t, i, n;	// t: of the source's share; i: the first, of all ranks' capacities; n: there are so many
	uint2 record[QUAD]; // what was sent of them
};

// each_spot calls f with all selections of tokens [from, to) of every share, those of one token of
// each thread at a time; those of a warp are of one source, and of the same 32 tokens. All threads
// of the block call it.
template <class F> __device__ __forceinline__ void each_spot(const RowMap &a, const Operation &o, const Quads &q,
															 const Sources &sources, u32 from, u32 to, F f) {
	const uint2 *records = (const uint2 *)(o.own + records_at(a, o));
	// blocks of 32 tokens
	u32 n = to - from, blocks = (n + 31) / 32, all = a.group.ranks * blocks,
		reciprocal = 0xFFFFFFFFu / max(blocks, 1u) + 1;
	auto fetch = [&](u32 at) {
		Spots c;
		u32 block = at / 32, src = blocks <= 1 ? block : __umulhi(block, reciprocal);
		c.src = block < all ? src : 0;
		Share share = sources.shares[c.src];
		c.t = from + (block - src * blocks) * 32 + at % 32;
		c.n = block < all && c.t < to && share.from + c.t < share.to ? q.n : 0;
		c.i = (c.src * a.shape.capacity + share.from + c.t) * a.shape.topk + q.k;
		load_pairs(q.vectors(), records + c.i, c.n, 0, c.record);
		return c;
	};
	Spots next = fetch(q.token);
#pragma unroll 1
	for (u32 at = q.token; at / 32 < all; at += q.step) {
		Spots c = next;
		if ((at + q.step) / 32 < all) next = fetch(at + q.step);
		f(c);
	}
}

// bucket_of is what a selection that comes is counted in.
__device__ __forceinline__ u32 bucket_of(const RowMap &a, const Spots &c, u32 j) {
	return BY_RANKS ? c.src : c.src * a.shape.local + c.record[j].x - 1;
}

// comes_at_all says whether a token comes here. All lanes of a warp call it.
__device__ __forceinline__ bool comes_at_all(const Quads &q, const Spots &c) {
	return q.of_token((c.record[0].x | c.record[1].x | c.record[2].x | c.record[3].x) != 0);
}

// add_arrived adds to a map's tile what the blocks of this number have sent. All threads of the
// block call it.
__device__ __forceinline__ void add_arrived(const RowMap &a, const Operation &o, const Quads &q, const Sources &sources,
											const Map &m, u32 t, u32 first, u32 n) {
	each_spot(a, o, q, sources, t, min(t + m.tile(), m.tokens), [&](const Spots &c) {
		if constexpr (BY_RANKS) {
			u32 some = __reduce_or_sync(0xFFFFFFFFu, comes_at_all(q, c) ? 1u << (c.t - t) % 32 : 0);
			m.add_some((threadIdx.x & 31) == 0 && c.src - first < n, c.src - first, c.t - t, some);
		} else {
#pragma unroll
			for (u32 j = 0; j < QUAD; j++) {
				u32 bucket = bucket_of(a, c, j) - first;
				m.add(c.record[j].x != 0 && (EVEN || bucket < n), bucket, c.t - t);
			}
		}
	});
}

// ---- Rows.

// NOWHERE is no row: where a rank is left out they begin there.
constexpr u32 NOWHERE = 1u << 31;

// Bases are what numbers have to be raised by.
struct Bases {
	u32 *own;	  // of this rank's: [experts], or by rank [ranks]
	u32 *arrived; // of those that come: [ranks][local], or by rank [ranks]
	u32 *sum;	  // [experts]: what all ranks have
	u32 *before;  // as arrived: what the source's blocks before this one have

	__device__ __forceinline__ Bases(const RowMap &a, char *shared) {
		u32 n = max(a.shape.experts, a.group.ranks);
		own = n <= BUCKETS ? (u32 *)shared : a.bases + (u64)blockIdx.x * 4 * n;
		n = max(n, BUCKETS);
		before = own + n;
		arrived = before + n;
		sum = arrived + n;
	}
};

// add_before adds up what the blocks before have, some threads a column, and tells the rank
// concerned; the last block tells all of them what there is. What is not known, for a wait was
// given up, is not told: who waits for it gives up as well. All threads of the block call it.
__device__ __forceinline__ void add_before(const RowMap &a, const Operation &o, Wait &w, const Bases &bases) {
	bool last = blockIdx.x == a.blocks - 1;
	u32 from = BY_RANKS && !last ? a.shape.experts : 0, to = BY_RANKS || last ? columns(a) : a.shape.experts;
	u32 lanes = min(32u, 1u << (31 - __clz((int)max(1u, blockDim.x / (to - from))))), lane = threadIdx.x & (lanes - 1);
#pragma unroll 1
	for (u32 first = from; first < to; first += blockDim.x / lanes) {
		u32 column = first + threadIdx.x / lanes, before = 0;
		bool here = column < to, rank = column >= a.shape.experts;
		u64 mine = here && last ? load_relaxed_sys_u64(a.counts + blockIdx.x * columns(a) + column) : 0;
		if (here) before = counted_before(a, o, w, column, lane, lanes);
		if (__any_sync(0xFFFFFFFFu, w.over)) {
			w.over = true;
			return;
		}
#pragma unroll 1
		for (u32 i = 1; i < lanes; i *= 2) before += __shfl_xor_sync(0xFFFFFFFFu, before, i);
		if (here && rank == BY_RANKS && lane == 0) {
			u32 i = rank ? column - a.shape.experts : column, r = rank ? i : rank_of(a.shape, i);
			bases.own[i] = before;
			send_number(a, o, r, before_at(a, o, a.group.rank, rank ? 0 : i - r * a.shape.local), before);
		}
#pragma unroll 1
		for (u32 i = lane; here && last && i < a.group.ranks; i += lanes)
			send_number(a, o, next_rank(a.group, i), total_at(a, o, a.group.rank, column), before + (u32)mine);
	}
}

// room_for is how many of n rows from the first of an expert's zone on there is room for.
__device__ __forceinline__ u32 room_for(const RowMap &a, u32 zone, u32 n) {
	if ((a.flags & PACKED) == 0) return min(n, a.rows);
	return zone < a.rows ? min(n, a.rows - zone) : 0;
}

// describe_expert says what comes for a local expert, whose zone begins at a row, and where what
// each rank sends begins. One thread does.
__device__ __forceinline__ void describe_expert(const RowMap &a, const Described &d, const Bases &bases, u32 le,
												u32 zone, u32 sum, u32 padded) {
	u32 kept = room_for(a, zone, sum);
	bool first = blockIdx.x == 0;
	if (first) {
		d.counts[le] = (int)kept;
		d.offsets[le] = (int)zone;
		d.demand[le] = (int)sum;
		d.padded[le] = (int)((a.flags & PACKED) != 0 ? room_for(a, zone, padded) : kept);
	}
#pragma unroll 2
	for (u32 src = 0; src < a.group.ranks; src++) {
		u32 *p = bases.arrived + src * a.shape.local + le, begin = *p,
			end = src + 1 < a.group.ranks ? p[a.shape.local] : sum, from = min(begin, kept);
		*p = zone + begin + bases.before[src * a.shape.local + le];
		if (first)
			a.ranges[(u64)le * a.group.ranks + src] = (long long)((u64)from << 32 | min(end - begin, kept - from));
	}
}

// base_zones computes where the zones of a rank's experts begin. A warp does. The first block
// describes what it sees.
__device__ __forceinline__ void base_zones(const RowMap &a, const Operation &o, const Described &described,
										   const Bases &bases, u32 rank, u32 lane) {
	u32 next = 0, received = 0; // the zone behind those that were seen, and rows that there is room for
	u32 over = EMPTY, excess = 0;
#pragma unroll 1
	for (u32 first = 0; first < a.shape.local; first += 32) {
		u32 le = first + lane, e = rank * a.shape.local + le;
		bool here = le < a.shape.local;
		u32 sum = here ? bases.sum[e] : 0, zone = le * a.rows, padded = sum;
		if ((a.flags & PACKED) != 0) {
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
		bases.own[e] += holds(o.mask, rank) ? NOWHERE : zone;
		if (rank == a.group.rank) describe_expert(a, described, bases, le, zone, sum, padded);
	}
	if (blockIdx.x != 0 || lane != 0) return;
	bool absent = holds(o.mask, rank);
	described.wanted[rank] = absent ? 0 : (int)next;
	described.over[rank] = absent || over == EMPTY ? -1 : (int)(rank * a.shape.local + over);
	described.excess[rank] = (int)excess;
	if (rank == a.group.rank) *described.rows = (int)((a.flags & PACKED) != 0 ? min(next, a.rows) : received);
}

// base_experts learns what numbers of selections have to be raised by. All threads of the block
// call it.
__device__ __forceinline__ void base_experts(const RowMap &a, const Operation &o, Wait &w, const Described &d,
											 const Bases &bases) {
	u32 local = a.shape.local, mine = a.group.rank * local;
	for (u32 e = threadIdx.x; e < a.shape.experts; e += blockDim.x) {
		u32 from = rank_of(a.shape, e), sum = 0, own = 0; // the rank and its local expert whose number is e
		const char *p = o.own + before_at(a, o, from, e - from * local);
		u64 before = load_relaxed_sys_u64(p);
		each_total(a, o, w, e, [&](u32 src, u32 n) {
			if (src < a.group.rank) own += n;
			if (e - mine < local) bases.arrived[src * local + e - mine] = sum;
			sum += n;
		});
		bases.before[e] = holds(o.mask, from) ? 0 : checked(a, o, w, from, p, before);
		bases.own[e] += own;
		bases.sum[e] = sum;
	}
	__syncthreads();
	for (u32 r = threadIdx.x / 32; r < a.group.ranks; r += blockDim.x / 32)
		base_zones(a, o, d, bases, r, threadIdx.x & 31);
}

// base_ranks does where a token has one row at a rank. All threads of the block call it; what
// different threads wait for comes at the same time.
__device__ __forceinline__ void base_ranks(const RowMap &a, const Operation &o, Wait &w, const Described &d,
										   const Bases &bases) {
	u32 experts = a.shape.experts, ranks = a.group.ranks, rank = a.group.rank, lines = (ranks + 31) & ~31u;
	bool first = blockIdx.x == 0;
	for (u32 i = threadIdx.x; i < 2 * lines; i += blockDim.x) {
		bool arrives = i >= lines;
		u32 r = arrives ? i - lines : i, sum = 0, before = 0;
		if (r >= ranks) continue;
		const char *p = o.own + before_at(a, o, r, 0);
		u64 seen = arrives ? load_relaxed_sys_u64(p) : 0;
		each_total(a, o, w, experts + (arrives ? rank : r), [&](u32 src, u32 n) {
			if (src < (arrives ? r : rank)) before += n;
			sum += n;
		});
		if (arrives) {
			bases.arrived[r] = before + (holds(o.mask, r) ? 0 : checked(a, o, w, r, p, seen));
			continue;
		}
		bases.own[r] += holds(o.mask, r) ? NOWHERE : before;
		if (!first) continue;
		d.wanted[r] = (int)(holds(o.mask, r) ? 0 : sum);
		d.over[r] = -1;
		d.excess[r] = 0;
		if (r == rank) *d.rows = (int)min(sum, a.rows);
	}
	// by warps that have nothing to do
	for (u32 le = blockDim.x - 1 - threadIdx.x; first && le < a.shape.local; le += blockDim.x) {
		u32 sum = 0;
		each_total(a, o, w, rank * a.shape.local + le, [&](u32, u32 n) { sum += n; });
		d.counts[le] = d.demand[le] = d.padded[le] = (int)sum;
		d.offsets[le] = 0;
	}
}

// base learns what numbers have to be raised by, and describes what comes. All threads of the block
// call it.
__device__ __forceinline__ void base(const RowMap &a, const Operation &o, Wait &w, const Sources &sources,
									 const Bases &bases) {
	Described d(a.described, a.shape.local, a.group.ranks);
	// by threads that have nothing else to wait for
	for (u32 src = blockDim.x - 1 - threadIdx.x; blockIdx.x == 0 && src < a.group.ranks; src += blockDim.x) {
		d.tokens[src] = (int)sources.tokens[src];
		d.from_source[src] = (int)awaited(a, o, w, src, total_at(a, o, src, a.shape.experts + a.group.rank));
	}
	if (blockIdx.x == 0 && threadIdx.x == 0) *d.routing = (u32)o.epoch;
	if constexpr (BY_RANKS)
		base_ranks(a, o, w, d, bases);
	else
		base_experts(a, o, w, d, bases);
}

// limit is where rows end that a local expert, or by rank a rank, has.
__device__ __forceinline__ u32 limit(const RowMap &a, u32 le) {
	return (a.flags & (ROW_PER_TOKEN | PACKED)) != 0 ? a.rows : (le + 1) * a.rows;
}

// keep_own gives this rank's selections in a map's tile their rows. Those of the threads that call
// it are dealt with by q.
__device__ __forceinline__ void keep_own(const RowMap &a, const Own &own, const Quads &q, const Map &m, u32 t,
										 u32 first, u32 n) {
	u32 from = own.share.from + t;
	own.each(a, q, from, min(from + m.tile(), own.share.to), [&](const Choices &c) {
		u32 rank[QUAD], dest[QUAD];
		bool now[QUAD], kept[QUAD]; // now: what is numbered by one of these buckets
		uint2 home[QUAD];
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			rank[j] = c.rank(a, j);
			u32 bucket = (c.e[j] == 0 ? 0 : BY_RANKS ? a.shape.experts + rank[j] : c.e[j] - 1) - first;
			now[j] = j < c.n && (EVEN || bucket < n);
			u32 row = m.number(now[j], bucket, c.t - from);
			kept[j] = now[j] && c.e[j] != 0 && row < limit(a, c.e[j] - 1 - rank[j] * a.shape.local);
			dest[j] = kept[j] ? row + 1 : 0;
			home[j] = make_uint2((kept[j] ? c.e[j] : 0) | c.e[j] << 16, c.weight[j]);
		}
		if (m.all()) {
			u32 first_ones = leaders(a, q, kept, rank);
#pragma unroll
			for (u32 j = 0; j < QUAD; j++) dest[j] |= (first_ones >> j & 1) != 0 ? LEADER : 0;
			store_words(q.vectors(), a.dest_rows + c.i, c.n, dest);
			store_pairs(q.vectors(), (uint2 *)a.home + c.i, c.n, home);
			return;
		}
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			if (!now[j]) continue;
			a.dest_rows[c.i + j] = dest[j];
			((uint2 *)a.home)[c.i + j] = home[j];
		}
	});
}

// keep_leaders says which of a token's selections is the first at each rank where maps have some of
// them at a time: when all have their rows. All threads of the block call it.
__device__ __forceinline__ void keep_leaders(const RowMap &a, const Own &own) {
	own.each(a, own.q, own.share.from, own.share.to, [&](const Choices &c) {
		u32 rank[QUAD];
		bool kept[QUAD];
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) rank[j] = c.rank(a, j), kept[j] = j < c.n && a.dest_rows[c.i + j] != 0;
		u32 first_ones = leaders(a, own.q, kept, rank);
#pragma unroll
		for (u32 j = 0; j < QUAD; j++) {
			if ((first_ones >> j & 1) != 0) a.dest_rows[c.i + j] |= LEADER;
		}
	});
}

// keep_arrived gives what the blocks of this number have sent, in a map's tile, its rows. Those of
// the threads that call it are dealt with by q.
__device__ __forceinline__ void keep_arrived(const RowMap &a, const Operation &o, const Quads &q,
											 const Sources &sources, const Map &m, u32 t, u32 first, u32 n) {
	each_spot(a, o, q, sources, t, min(t + m.tile(), m.tokens), [&](const Spots &c) {
		uint2 recv_row[QUAD];
		if constexpr (BY_RANKS) {
			bool comes = comes_at_all(q, c), now = EVEN || (comes ? c.src : 0) - first < n;
			u32 row = m.number(now && comes, c.src - first, c.t - t);
			bool kept = comes && row < a.rows;
#pragma unroll
			for (u32 j = 0; j < QUAD; j++) recv_row[j] = make_uint2(kept ? c.record[j].x : 0, c.record[j].y);
			store_pairs(q.vectors(), (uint2 *)a.recv_rows + c.i, now ? c.n : 0, recv_row);
			if (q.k == 0 && now && c.n != 0)
				a.recv_tokens[c.src * a.shape.capacity + sources.shares[c.src].from + c.t] = kept ? row + 1 : 0;
		} else {
			bool now[QUAD];
#pragma unroll
			for (u32 j = 0; j < QUAD; j++) {
				bool comes = c.record[j].x != 0;
				u32 bucket = (comes ? bucket_of(a, c, j) : 0) - first;
				now[j] = j < c.n && (EVEN || bucket < n);
				u32 row = m.number(now[j] && comes, bucket, c.t - t);
				recv_row[j] = make_uint2(comes && row < limit(a, c.record[j].x - 1) ? row + 1 : 0, c.record[j].y);
			}
			if (m.all()) {
				store_pairs(q.vectors(), (uint2 *)a.recv_rows + c.i, c.n, recv_row);
				return;
			}
#pragma unroll
			for (u32 j = 0; j < QUAD; j++) {
				if (now[j]) ((uint2 *)a.recv_rows)[c.i + j] = recv_row[j];
			}
		}
	});
}

// Begin says what numbers begin with: of this rank's columns, and of what comes.
struct Begin {
	const u32 *own, *arrived;
	u32 columns, n; // where the columns begin that rows are numbered by, and how many those are

	__device__ __forceinline__ Begin(const RowMap &a, const Bases &bases)
		: own(bases.own), arrived(bases.arrived), columns(BY_RANKS ? a.shape.experts : 0),
		  n(BY_RANKS ? a.group.ranks : a.shape.experts) {}

	__device__ __forceinline__ u32 of_own(u32 column) const { return column - columns < n ? own[column - columns] : 0; }
	__device__ __forceinline__ u32 of_arrived(u32 bucket) const { return arrived[bucket]; }
};

// keep_again gives everything its rows where a map is not whole. It is a function of its own, so
// that it is out of the way of those that are.
__device__ __noinline__ void keep_again(const RowMap &a, const Operation o, const Map mine, const Map theirs,
										const Begin begin) {
	Own own(a);
	Sources sources;
	mine.again([&](u32 t, u32 first, u32 n) { add_own(a, o, own, mine, false, t, first, n); },
			   [&](u32 column) { return begin.of_own(column); },
			   [&](u32 t, u32 first, u32 n) { keep_own(a, own, own.q, mine, t, first, n); });
	if (!mine.all()) keep_leaders(a, own);
	theirs.again([&](u32 t, u32 first, u32 n) { add_arrived(a, o, own.q, sources, theirs, t, first, n); },
				 [&](u32 bucket) { return begin.of_arrived(bucket); },
				 [&](u32 t, u32 first, u32 n) { keep_arrived(a, o, own.q, sources, theirs, t, first, n); });
}

// keep gives everything its rows. If both maps are whole, two halves of the block do at the same
// time, for what takes long is what a warp does one after the other. All threads of the block call
// it.
__device__ __forceinline__ void keep(const RowMap &a, const Operation &o, const Own &own, const Sources &sources,
									 const Map &mine, const Map &theirs, const Bases &bases) {
	Begin begin(a, bases);
	if (!mine.whole() || !theirs.whole()) {
		keep_again(a, o, mine, theirs, begin);
		return;
	}
	mine.begin([&](u32 column) { return begin.of_own(column); });
	theirs.begin([&](u32 bucket) { return begin.of_arrived(bucket); });
	__syncthreads();
	u32 half = blockDim.x / 2;
	bool lower = threadIdx.x < half;
	Quads q(a.shape.topk, lower ? threadIdx.x : threadIdx.x - half, half);
	if (lower)
		keep_own(a, own, q, mine, 0, 0, mine.buckets);
	else
		keep_arrived(a, o, q, sources, theirs, 0, 0, theirs.buckets);
}

// clear_rest says of tokens that a rank does not have that nothing comes. All threads of the block
// call it.
__device__ __forceinline__ void clear_rest(const RowMap &a, const Sources &sources) {
	u32 topk = a.shape.topk;
#pragma unroll 1
	for (u32 src = 0; src < a.group.ranks; src++) {
		u32 tokens = sources.tokens[src], slot = src * a.shape.capacity;
		if (tokens >= a.shape.capacity) continue;
		Share rest(a.shape.capacity, a.blocks);
		for (u32 i = max(tokens, rest.from) * topk + threadIdx.x; i < rest.to * topk; i += blockDim.x)
			a.recv_rows[slot * topk + i] = {0, 0};
		for (u32 t = max(tokens, rest.from) + threadIdx.x; BY_RANKS && t < rest.to; t += blockDim.x)
			a.recv_tokens[slot + t] = 0;
	}
}

// announce_words opens the operation, before anything else, so that no rank waits long for it. It needs
// no fence, for the opening refers to no other memory.
__device__ __forceinline__ void announce_words(const RowMap &a, const Operation &o) {
	WEFT_TRACED(o.trace.signalled_by_all();)
	for (u32 r = threadIdx.x; r < a.group.ranks; r += blockDim.x) {
		announce(a.group, o.mask, a.openings, o.turn, r, a.call, 0, 0);
		send_number(a, o, r, total_at(a, o, a.group.rank, columns(a)), a.tokens);
	}
}

// await_words waits for the other ranks' openings, on threads that are idle meanwhile.
__device__ __forceinline__ void await_words(const RowMap &a, const Operation &o, Wait &w) {
	count_and_empty(a.group, o, w, a.openings);
	for (u32 r = threadIdx.x - MAX_RANKS; r < a.group.ranks; r += blockDim.x - MAX_RANKS) {
		if (!holds(o.mask, r)) await_peer(w, o.own, a.openings, o.turn, r, a.call);
	}
}

__device__ __forceinline__ void map_rows(const RowMap &a) {
	extern __shared__ __align__(16) char shared[];
	Own own(a);
	Operation o;
	bool begun = o.begin(a.group, a.state, 0, OP_PREPARE);
	if (!__syncthreads_and(begun))
		return; // all of a block or none: half of one would tell others what it has not counted
	if (blockIdx.x < a.blocks) {
		Wait w(a.group, a.state, OP_PREPARE, o.epoch);
		u64 at = shared_at(shared);
		Map mine(at, a.map_entries, own.share.to - own.share.from, columns(a));
		Bases bases(a, shared + 2 * map_bytes(a.map_entries));
		Sources sources;
		if (blockIdx.x == 0) announce_words(a, o);
		count(a, o, own, mine);
		mark(a.group, o, a.marks);
		u64 tokens = sources.look(a, o);
		add_before(a, o, w, bases);
		if (blockIdx.x == 0)
			await_words(a, o, w); // before any data of theirs is awaited: they may have made another call
		sources.learn(a, o, w, tokens);
		if (!await_marks(a.group, o, w, a.marks)) return;
		WEFT_TRACED(o.trace.first_at(SITE_COUNTED);)
		Map theirs(at + map_bytes(a.map_entries), a.map_entries, sources.most(a), incoming(a));
		theirs.count([&](u32 t, u32 first, u32 n) { add_arrived(a, o, own.q, sources, theirs, t, first, n); },
					 [](u32, u32) {});
		base(a, o, w, sources, bases); // what it awaits was sent while this block counted what came
		if (__syncthreads_or(w.over) != 0) return;
		keep(a, o, own, sources, mine, theirs, bases);
		clear_rest(a, sources);
	} else {
		mark(a.group, o, a.marks); // no block waits for it, but later operations count on marks that grow
	}
	WEFT_TRACED(o.trace.first_at(SITE_ROUTED);)
	leave(a.state, o.epoch - 1, o.turn, true);
	WEFT_TRACED(o.trace.first_at(SITE_END);)
}

} // namespace weft

namespace weft::direct {

__global__ void __launch_bounds__(768, 1) row_map(const __grid_constant__ RowMap a) { map_rows(a); }

} // namespace weft::direct
