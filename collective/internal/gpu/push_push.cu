// All-reduce by pushes alone, for large operands of any place: links carry more when no rank reads over them.
// Ranks push each share of the vectors to its owner, in pieces, through staging memory. The owner reduces a piece
// in rank order and pushes the result
//
//	push-push  to every output, where those lie in windows; else through staging memory again
//	push-ring  to the next rank's output, which sends it on: outputs lie in windows
//
// A block has every gridDim-th piece of each share, on all ranks, and meets its likes alone. Its turn t
//
//	sends     piece t of every share but its own
//	reduces   piece t-1 of its own share, and pushes the result
//	collects  piece t-2 of the other shares from staging memory, or
//	forwards  piece t-1-h of the share of the rank h before it in the ring
//
// and then, behind one fence, says so by counters: `sent`, that a rank has of each sender, is how many pieces
// of its rows are there; `got`, that it has of each owner, is how many of its results are, in a ring from the rank
// before. What a turn waits for the others said in turns before, of the same block, so none waits in a circle.
// A counter is the operation's number, in the upper bits, and pieces. So it only grows, and needs no reset.
//
// Staging memory has DEPTH places for each block and rank, which pieces use in turn.
// Invariant: a place has been read when a rank writes into it. The first turns write when all ranks have begun the
// operation, and thus ended the one before. In turn t a rank has awaited `sent` of turn t-2, so all have ended that
// turn, and reduced piece t-3, whose place it sends piece t to. Before it pushes the result of piece t-1 it has awaited
// `sent` of turn t-1, so all have ended that, and collected piece t-3 and thus t-4, whose place it writes into.
//
// An owner reduces a piece when every rank has sent it, and thus read its input of it. So the operation may be in
// place.
#include "push.cuh"

namespace weft {

namespace collective {

__global__ void __launch_bounds__(BULK_THREADS, 2) push_push(const __grid_constant__ Push a) {
	const Group &g = a.group;
	Collective c(a.lane);
	if (!c.begin(g, a.lane)) return;
	Live live(g, c.o.mask);
	Meeting meeting(g, a.lane, live, a.direct, c.o.epoch);
	if (!meeting.begin(c)) return;
	Pusher p(a, live, c.o.epoch);
	__shared__ u32 order[MAX_RANKS]; // the live ranks
	u32 r = threadIdx.x;
	bool ring = a.ring != 0, direct = p.direct, others = r < g.ranks && holds(live.others, r);
	if (others || r == g.rank) order[live.number(r)] = r;
	__syncthreads();
	auto around = [&](u32 steps) { return order[(live.own + steps) % live.count]; };
	u32 next = around(1);
	u32 behind = ring ? max(1, live.count - 1) : direct ? 1 : 2; // turns after the last piece was sent
	for (u32 t = 0; t < p.turns + behind; t++) {
		if (t < p.turns) p.send(t);
		u32 j = t - 1; // the piece that is reduced
		bool reduces = t >= 1 && j < p.turns;
		if (reduces) {
			if (!p.await(a.sent, live.others, j + 1)) return;
			p.reduce(j, next);
		}
		if (!direct && t >= 2 && t - 2 < p.turns) {
			if (!p.await(a.got, live.others, t - 1)) return;
			p.collect(t - 2);
		}
		for (u32 h = 1; ring && h + 1 < live.count; h++) {
			u32 owner = around(live.count - h), k = t - 1 - h;
			if (t < 1 + h || k >= p.turns) continue;
			if (!p.await(a.got, RankSet::one(owner), k + 1)) return;
			p.forward(k, owner, next);
		}
		__syncthreads();
		if (others) {
			fence_sys();
			if (t < p.turns) p.say(r, a.sent, g.rank, t + 1);
			if (reduces && (ring ? r == next : !direct)) p.say(r, a.got, g.rank, j + 1);
		}
		if (ring && r < live.count && r >= 1 && r + 1 < live.count && t >= 1 + r && t - 1 - r < p.turns) {
			fence_sys();
			p.say(next, a.got, around(live.count - r), t - r);
		}
	}
	if (direct) meeting.end();
	let_next_start();
}

} // namespace collective
} // namespace weft
