// All-reduce round a ring, relaxed: the partial result of a share is rounded at every hop, and begins at another rank
// for each. Results are the same on all ranks, but not those of other algorithms, counts or numbers of ranks. It
// runs where it is named.
//
// A piece of a share begins at the rank behind the share's owner and goes round, through staging memory, until the
// owner has added its own and the result goes round from output to output. In turn t a rank serves
// piece t-s of the share that has made s hops.
//
// Invariant: a place of staging memory has been read when a rank writes into it. What stood there is the piece three
// before, of the same share. The rank wrote that in turn t-3, and the next rank read it in turn t-2, whose end the rank
// awaits before it writes in turn t. The next rank counts the turns that it has ended in a counter that has no other
// use: `sent` of the rank before this one. No piece of that rank's share comes to this rank, which begins that share.
#include "push.cuh"

namespace weft::collective {

// forward sends a piece of a rank's share on, of which all warps take some in turn.
__device__ __forceinline__ void forward(const Pusher &p, u32 j, u32 owner, const Part &to) {
	u32 n = p.size(owner, j), from = p.first(owner, j);
	for (u32 k = threadIdx.x / 32 * (32 * FLYING) + (threadIdx.x & 31); k < n; k += FLYING * BULK_THREADS)
		fly<FLYING>(
			k, 32, n, [&](u32 i) { return p.out.load(from + i); }, [&](u32 i, uint4 v) { to.store(from + i, v); });
}

__global__ void __launch_bounds__(BULK_THREADS, 2) relaxed_ring(const __grid_constant__ Push a) {
	const Group &g = a.group;
	Collective c(a.lane);
	if (!c.begin(g, a.lane)) return;
	Live live(g, c.o.mask);
	Meeting meeting(g, a.lane, live, a.direct, c.o.epoch);
	if (!meeting.begin(c)) return;
	Pusher p(a, live, Crew(1, 0, BULK_THREADS), c.o.epoch);
	__shared__ u32 order[MAX_RANKS]; // the live ranks
	u32 n = live.count, r = threadIdx.x;
	if (r < g.ranks && holds(live.set, r)) order[live.number(r)] = r;
	__syncthreads();
	auto around = [&](u32 steps) { return order[(live.own + steps) % n]; };
	u32 next = around(1), before = around(n - 1);
	Part to = p.at(next);
	for (u32 t = 0; t < p.turns + 2 * n - 2; t++) {
		if (t >= 2 && n > 1) { // the next rank has ended turn t-2
			const char *word = g.window[g.rank] + p.word(a.sent, before);
			bool there = r != 0 || poll_counter(g, a.lane.state, a.lane.op, c.o.epoch, next, word, p.base + t - 1);
			if (!__syncthreads_and(there)) return;
		}
		for (u32 s = 0; s < n; s++) {
			u32 owner = around(n - 1 - s), k = t - s;
			if (t < s || k >= p.turns) continue;
			if (s > 0 && !p.await(a.sent, RankSet::one(owner), k + 1)) return;
			u32 from = p.first(owner, k), size = p.size(owner, k);
			const char *partial = g.window[g.rank] + p.at_place(a.rows, owner, k);
			for (u32 i = r; i < size; i += blockDim.x) {
				Fold fold(a.how, n);
				uint4 own = p.in.load(from + i);
				if (s == 0) {
					fold.start(own);
				} else {
					unpack(fold.x, load_once(partial + i * 16));
					fold.carry.start(fold.x);
					fold.take(own);
				}
				if (s + 1 < n) {
					store16(g.window[next] + p.at_place(a.rows, owner, k) + i * 16, pack(fold.x));
					continue;
				}
				uint4 sum = fold.result();
				p.out.store(from + i, sum);
				if (next != g.rank) to.store(from + i, sum);
			}
		}
		for (u32 h = 1; h + 1 < n; h++) {
			u32 owner = around(n - h), k = t - (n - 1) - h;
			if (t < n - 1 + h || k >= p.turns) continue;
			if (!p.await(a.got, RankSet::one(owner), k + 1)) return;
			forward(p, k, owner, to);
		}
		__syncthreads();
		if (n == 1 || r >= 2 * n) continue;
		fence_sys();
		if (r == n - 1) p.say(before, a.sent, around(2 * n - 2), t + 1); // of the rank before that one
		if (r < n - 1 && t >= r && t - r < p.turns) p.say(next, a.sent, around(n - 1 - r), t - r + 1);
		u32 h = r - n;
		if (r >= n && h + 1 < n && t >= n - 1 + h && t - (n - 1) - h < p.turns)
			p.say(next, a.got, around(n - h), t - (n - 1) - h + 1);
	}
	meeting.end();
	let_next_start();
}

} // namespace weft::collective
