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
	u64 rows, results;		// staging memory in the window: [DEPTH][blocks][ranks] pieces
	u64 sent, got;			// counters in the window: [blocks][ranks] words of 8 bytes
	u32 piece;				// bytes: whole vectors
	u32 ring;				// results go round
	char *outs[MOST_RANKS]; // null: outputs are not in windows
	Group group;
};

static_assert(sizeof(Push) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

constexpr u32 DEPTH = 3;

// poll_counter is poll_begun whose caller sees what was stored before the counter was.
__device__ __noinline__ bool poll_counter(const Group &g, State *state, u32 op, u64 epoch, u32 peer, const char *word,
										  u64 value) {
	Wait w(g, state, op, epoch);
	u64 v = load_acquire_sys_u64(word);
	while (v < value && w.more(peer, value, v)) v = load_acquire_sys_u64(word);
	return v >= value;
}

// Pusher is a block's part of the operation.
struct Pusher {
	const Push &a;
	const Group &g;
	const Live &live;
	u64 epoch, base;	// base: of counters
	u32 ranks, vectors; // vectors: of a piece
	Part in, out;
	Shares shares;
	bool direct; // outputs are in windows
	u32 turns;	 // pieces of this block, in the longest share

	__device__ __forceinline__ Pusher(const Push &a, const Live &live, u64 epoch)
		: a(a), g(a.group), live(live), epoch(epoch), base(epoch << 24), ranks(RANKS != 0 ? RANKS : a.group.ranks),
		  vectors(a.piece / 16), in(a.in), out(a.out), shares(in.vectors(), live),
		  direct(a.outs[a.group.rank] != nullptr) {
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

	// place is where a piece of src's stands in a window's staging memory.
	__device__ __forceinline__ u64 place(u64 staging, u32 src, u32 j) const {
		return staging + (((u64)(j % DEPTH) * gridDim.x + blockIdx.x) * g.ranks + src) * a.piece;
	}

	// word is where a rank has a counter of src.
	__device__ __forceinline__ u64 word(u64 counter, u32 src) const {
		return counter + ((u64)blockIdx.x * g.ranks + src) * 8;
	}

	// say raises, at a rank, a counter that it has of src.
	__device__ __forceinline__ void say(u32 to, u64 counter, u32 src, u32 pieces) const {
		store_relaxed_sys_u64(g.window[to] + word(counter, src), base + pieces);
	}

	// await waits until a counter of each rank of a set has reached a number of pieces. It is false in all threads
	// of the block if one has not.
	__device__ __forceinline__ bool await(u64 counter, const RankSet &of, u32 pieces) const {
		u32 r = threadIdx.x;
		const char *at = g.window[g.rank] + word(counter, r);
		bool there =
			r >= g.ranks || !holds(of, r) || poll_counter(g, a.lane.state, a.lane.op, epoch, r, at, base + pieces);
		return __syncthreads_and(there);
	}

	// each moves the vectors of a piece of each rank of a set. Warps take a rank's in turn, rank after
	// rank, so that all links are busy; ranks begin with different ones.
	// load and store are the halves of a move.
	template <class L, class S> __device__ __forceinline__ void each(const RankSet &of, u32 j, L load, S store) const {
		u32 lane = threadIdx.x & 31, parts = (vectors + 32 * FLYING - 1) / (32 * FLYING);
		for (u32 k = threadIdx.x / 32; k < parts * ranks; k += blockDim.x / 32) {
			u32 r = (g.rank + 1 + k % ranks) % ranks, i = k / ranks * 32 * FLYING + lane;
			if (!holds(of, r)) continue;
			fly<FLYING>(
				i, 32, size(r, j), [&](u32 n) { return load(r, n); }, [&](u32 n, uint4 v) { store(r, n, v); });
		}
	}

	__device__ __forceinline__ void send(u32 j) const {
		each(
			live.others, j, [&](u32 r, u32 i) { return in.load(first(r, j) + i); },
			[&](u32 r, u32 i, uint4 v) { store16(g.window[r] + place(a.rows, g.rank, j) + i * 16, v); });
	}

	// at is a rank's output, as its own rank sees it.
	__device__ __forceinline__ Part at(u32 rank) const { return Part(Operand{a.outs[rank], out.bytes, out.unit, 0}); }

	__device__ __forceinline__ void reduce(u32 j, u32 next) const {
		const char *rows = g.window[g.rank] + place(a.rows, 0, j);
		u32 from = first(g.rank, j), n = size(g.rank, j);
		for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
			uint4 sum = fold_rows(a.how, live, ranks, [&](u32 r) {
				return r == g.rank ? in.load(from + i) : load_once(rows + (u64)r * a.piece + i * 16);
			});
			out.store(from + i, sum);
			if (a.ring != 0) {
				if (next != g.rank) at(next).store(from + i, sum);
				continue;
			}
#pragma unroll
			for (u32 k = 1; k < (RANKS != 0 ? RANKS : ranks); k++) {
				u32 r = (g.rank + k) % ranks;
				if (!holds(live.set, r)) continue;
				if (direct) {
					at(r).store(from + i, sum);
				} else {
					store16(g.window[r] + place(a.results, g.rank, j) + i * 16, sum);
				}
			}
		}
	}

	__device__ __forceinline__ void collect(u32 j) const {
		each(
			live.others, j, [&](u32 r, u32 i) { return load_once(g.window[g.rank] + place(a.results, r, j) + i * 16); },
			[&](u32 r, u32 i, uint4 v) { out.store(first(r, j) + i, v); });
	}

	// forward sends a piece of one rank on, of which all warps take some in turn.
	__device__ __forceinline__ void forward(u32 j, u32 owner, u32 next) const {
		Part to = at(next);
		u32 n = size(owner, j);
		for (u32 k = threadIdx.x / 32 * (32 * FLYING) + (threadIdx.x & 31); k < n; k += FLYING * BULK_THREADS)
			fly<FLYING>(
				k, 32, n, [&](u32 i) { return out.load(first(owner, j) + i); },
				[&](u32 i, uint4 v) { to.store(first(owner, j) + i, v); });
	}
};

} // namespace weft
