// Pieces of shares: how large operands of any place travel, by pushes alone. Blocks of one number meet on all ranks,
// and have every gridDim-th piece of each share.
#pragma once
#include "direct.cuh"
#include "rows.cuh"

namespace weft {

// Go: pushArgs.
struct Push {
	Lane lane;
	Direct direct;
	How how;
	Operand in, out;
	u64 rows, results;		// staging memory in the window: [DEPTH][blocks][places] pieces
	u64 sent, got, taken;	// counters in the window: [blocks][ranks] words of 8 bytes
	u32 piece, places;		// piece: bytes: whole vectors
	char *outs[MOST_RANKS]; // null: outputs are not in windows
	Group group;
};

static_assert(sizeof(Push) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

constexpr u32 DEPTH = 3;		  // Go: pushDepth
constexpr u32 PUSH_THREADS = 512; // of a block of push-push. Go: wide

// What a thread has on its way where operands are plain: ROWS vectors of each rank's, to be reduced, or PASSING of each
// other rank's, to be moved.
constexpr u32 ROWS = RANKS <= 4 ? 2 : 1;
constexpr u32 PASSING = RANKS <= 4 ? 4 : RANKS <= 6 ? 2 : 1;

// Crew is warps of a block that do one thing. They meet at a barrier of their own.
struct Crew {
	u32 number, threads, me;

	// The thread belongs to crew 1 if it is one of the first threads of the block, and so on.
	__device__ __forceinline__ Crew(u32 number, u32 first, u32 threads)
		: number(number), threads(threads), me(threadIdx.x - first) {}

	__device__ __forceinline__ void sync() const { sync_some(number, threads); }
	__device__ __forceinline__ bool all(bool p) const { return sync_some_and(number, threads, p); }
};

// poll_counter is poll_begun whose caller sees what was stored before the counter was.
__device__ __noinline__ bool poll_counter(const Group &g, State *state, u32 op, u64 epoch, u32 peer, const char *word,
										  u64 value) {
	Wait w(g, state, op, epoch);
	u64 v = load_acquire_sys_u64(word);
	while (v < value && w.more(peer, value, v)) v = load_acquire_sys_u64(word);
	return v >= value;
}

// Pusher is a block's part of the operation, as a crew sees it.
struct Pusher {
	const Push &a;
	const Group &g;
	const Live &live;
	Crew crew;
	u64 epoch, base;	// base: of counters
	u32 ranks, vectors; // vectors: of a piece
	Part in, out;
	Shares shares;
	bool direct; // outputs are in windows
	bool plain;	 // all ranks take part, and operands are whole vectors of aligned memory
	u32 turns;	 // pieces of this block, in the longest share

	__device__ __forceinline__ Pusher(const Push &a, const Live &live, Crew crew, u64 epoch)
		: a(a), g(a.group), live(live), crew(crew), epoch(epoch), base(epoch << 24),
		  ranks(RANKS != 0 ? RANKS : a.group.ranks), vectors(a.piece / 16), in(a.in), out(a.out),
		  shares(in.vectors(), live), direct(a.outs[a.group.rank] != nullptr),
		  plain(RANKS > 1 && live.all && in.whole() && out.whole()) {
		u32 pieces = (shares.longest() + vectors - 1) / vectors;
		turns = pieces > blockIdx.x ? (pieces - blockIdx.x - 1) / gridDim.x + 1 : 0;
	}

	// A piece of a rank's share: where it begins, in vectors, and how many it has.
	__device__ __forceinline__ u32 first(u32 rank, u32 j) const {
		return shares.first(live.number(rank)) + (blockIdx.x + j * gridDim.x) * vectors;
	}
	__device__ __forceinline__ u32 size(u32 rank, u32 j) const {
		u32 from = (blockIdx.x + j * gridDim.x) * vectors, all = shares.size(live.number(rank));
		return min(vectors, max(all, from) - from);
	}

	// at_place is where piece j of a place stands in a window's staging memory.
	__device__ __forceinline__ u64 at_place(u64 staging, u32 place, u32 j) const {
		return staging + (((u64)(j % DEPTH) * gridDim.x + blockIdx.x) * a.places + place) * a.piece;
	}

	// place_of is the place that a rank has for another's pieces: none for its own.
	__device__ __forceinline__ static u32 place_of(u32 there, u32 src) { return src - (src > there ? 1 : 0); }

	// word is where a rank has a counter of src.
	__device__ __forceinline__ u64 word(u64 counter, u32 src) const {
		return counter + ((u64)blockIdx.x * g.ranks + src) * 8;
	}

	// say raises, at a rank, a counter that it has of src.
	__device__ __forceinline__ void say(u32 to, u64 counter, u32 src, u32 pieces) const {
		store_relaxed_sys_u64(g.window[to] + word(counter, src), base + pieces);
	}

	// reached says whether, for this thread, a counter that this rank has of another has reached a number of pieces. It
	// waits for that, or for the end of the wait.
	__device__ __forceinline__ bool reached(u64 counter, const RankSet &of, u32 pieces) const {
		u32 r = crew.me;
		const char *at = g.window[g.rank] + word(counter, r);
		return r >= g.ranks || !holds(of, r) || poll_counter(g, a.lane.state, a.lane.op, epoch, r, at, base + pieces);
	}

	// await waits until a counter of each rank of a set has reached a number of pieces. It is false in all threads
	// of the crew if one has not.
	__device__ __forceinline__ bool await(u64 counter, const RankSet &of, u32 pieces) const {
		return crew.all(reached(counter, of, pieces));
	}

	// tell raises a counter at all others, once the crew is done with its piece. fenced: what the crew has stored
	// there is seen before.
	__device__ __forceinline__ void tell(u64 counter, u32 pieces, bool fenced) const {
		crew.sync();
		u32 r = crew.me;
		if (r >= g.ranks || !holds(live.others, r)) return;
		if (fenced) fence_sys();
		say(r, counter, g.rank, pieces);
	}

	// each moves the vectors of a piece of each rank of a set. Warps take a rank's in turn, rank after
	// rank, so that all links are busy; ranks begin with different ones.
	// load and store are the halves of a move.
	template <class L, class S> __device__ __forceinline__ void each(const RankSet &of, u32 j, L load, S store) const {
		u32 lane = crew.me & 31, parts = (vectors + 32 * FLYING - 1) / (32 * FLYING), others = ranks - 1;
		for (u32 k = crew.me / 32; k < parts * others; k += crew.threads / 32) {
			u32 r = (g.rank + 1 + k % others) % ranks, i = k / others * 32 * FLYING + lane;
			if (!holds(of, r)) continue;
			fly<FLYING>(
				i, 32, size(r, j), [&](u32 n) { return load(r, n); }, [&](u32 n, uint4 v) { store(r, n, v); });
		}
	}

#if WEFT_RANKS > 1
	// each_plain is each where operands are plain. from and to say where a rank's piece stands, and where it goes. A
	// thread has vectors of all ranks on their way at once.
	template <class F, class T> __device__ __forceinline__ void each_plain(u32 j, F from, T to) const {
		constexpr u32 OTHERS = RANKS - 1;
		const char *src[OTHERS];
		char *dst[OTHERS];
		u32 n[OTHERS];
#pragma unroll
		for (u32 k = 0; k < OTHERS; k++) {
			u32 r = next_rank(g, k);
			src[k] = from(r), dst[k] = to(r), n[k] = size(r, j);
		}
		for (u32 i = crew.me / 32 * 32 * PASSING + (crew.me & 31); i < vectors; i += crew.threads * PASSING) {
			uint4 v[OTHERS][PASSING];
#pragma unroll
			for (u32 k = 0; k < OTHERS; k++) {
#pragma unroll
				for (u32 l = 0; l < PASSING; l++) {
					if (i + l * 32 < n[k]) v[k][l] = load_once(src[k] + (i + l * 32) * 16);
				}
			}
#pragma unroll
			for (u32 k = 0; k < OTHERS; k++) {
#pragma unroll
				for (u32 l = 0; l < PASSING; l++) {
					if (i + l * 32 < n[k]) store16(dst[k] + (i + l * 32) * 16, v[k][l]);
				}
			}
		}
	}
#else
	template <class F, class T> __device__ __forceinline__ void each_plain(u32, F, T) const {}
#endif

	__device__ __forceinline__ void send(u32 j) const {
		if (plain) {
			return each_plain(
				j, [&](u32 r) { return in.at + (u64)first(r, j) * 16; },
				[&](u32 r) { return g.window[r] + at_place(a.rows, place_of(r, g.rank), j); });
		}
		each(
			live.others, j, [&](u32 r, u32 i) { return in.load(first(r, j) + i); },
			[&](u32 r, u32 i, uint4 v) { store16(g.window[r] + at_place(a.rows, place_of(r, g.rank), j) + i * 16, v); });
	}

	// at is a rank's output, as its own rank sees it.
	__device__ __forceinline__ Part at(u32 rank) const { return Part(Operand{a.outs[rank], out.bytes, out.unit, 0}); }

#if WEFT_RANKS > 1
	// reduce_plain is reduce where operands are plain. Stores to peers fill the queue of an SM, and its next loads wait
	// behind them. So the rows of ROWS vectors are on their way at once.
	__device__ __forceinline__ void reduce_plain(u32 j) const {
		const char *rows[RANKS];
		char *to[RANKS];
		u64 from = (u64)first(g.rank, j) * 16;
#pragma unroll
		for (u32 r = 0; r < RANKS; r++) {
			rows[r] = r == g.rank ? in.at + from : g.window[g.rank] + at_place(a.rows, place_of(g.rank, r), j);
		}
		to[0] = out.at + from;
#pragma unroll
		for (u32 k = 1; k < RANKS; k++) {
			u32 r = next_rank(g, k - 1);
			to[k] = direct ? a.outs[r] + from : g.window[r] + at_place(a.results, place_of(r, g.rank), j);
		}
		Fold fold(a.how, RANKS);
		for (u32 i = crew.me, n = size(g.rank, j); i < n; i += ROWS * crew.threads) {
			uint4 v[ROWS][RANKS];
#pragma unroll
			for (u32 k = 0; k < ROWS; k++) {
				u32 at = i + k * crew.threads;
				if (at >= n) continue;
#pragma unroll
				for (u32 r = 0; r < RANKS; r++) v[k][r] = load_once(rows[r] + at * 16);
			}
#pragma unroll
			for (u32 k = 0; k < ROWS; k++) {
				u32 at = i + k * crew.threads;
				if (at >= n) continue;
				fold.rows(v[k]);
				uint4 sum = fold.result();
#pragma unroll
				for (u32 r = 0; r < RANKS; r++) store16(to[r] + at * 16, sum);
			}
		}
	}
#else
	__device__ __forceinline__ void reduce_plain(u32) const {}
#endif

	__device__ __forceinline__ void reduce(u32 j) const {
		if (plain) return reduce_plain(j);
		const char *rows = g.window[g.rank] + at_place(a.rows, 0, j);
		u32 from = first(g.rank, j), n = size(g.rank, j);
		for (u32 i = crew.me; i < n; i += crew.threads) {
			uint4 sum = fold_rows(a.how, live, ranks, [&](u32 r) {
				return r == g.rank ? in.load(from + i)
								   : load_once(rows + (u64)place_of(g.rank, r) * a.piece + i * 16);
			});
			out.store(from + i, sum);
#pragma unroll
			for (u32 k = 1; k < (RANKS != 0 ? RANKS : ranks); k++) {
				u32 r = (g.rank + k) % ranks;
				if (!holds(live.set, r)) continue;
				if (direct) {
					at(r).store(from + i, sum);
				} else {
					store16(g.window[r] + at_place(a.results, place_of(r, g.rank), j) + i * 16, sum);
				}
			}
		}
	}

	__device__ __forceinline__ void collect(u32 j) const {
		if (plain) {
			return each_plain(
				j, [&](u32 r) { return g.window[g.rank] + at_place(a.results, place_of(g.rank, r), j); },
				[&](u32 r) { return out.at + (u64)first(r, j) * 16; });
		}
		each(
			live.others, j,
			[&](u32 r, u32 i) {
				return load_once(g.window[g.rank] + at_place(a.results, place_of(g.rank, r), j) + i * 16);
			},
			[&](u32 r, u32 i, uint4 v) { out.store(first(r, j) + i, v); });
	}
};

} // namespace weft
