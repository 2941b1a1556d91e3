// All-reduce in two steps: every rank owns a share of the vectors. It gets that share of every input in
// slots, reduces it in rank order, and stores the rounded result in slots at every other rank.
//
// Threads of one number serve the same vectors of every share on all ranks, so a thread waits only for
// its likes, and for what they sent before they waited for anything later. A thread has read its input of a
// share when it stores that share's result, so the operation may be in place.
#include "all_reduce.cuh"

namespace weft {

namespace collective {

#if WEFT_RANKS != 0
__device__ __forceinline__ bool two_shot_plain(const AllReduce &a, Collective &c, const Early<RANKS> &e, Vectors &all) {
	u64 share = a.in.bytes / RANKS;
	Plain p(a.group, a.lane, c, e, a.slot_bytes, share);
	u32 me = a.group.rank;
	e.load(all);
	if (!c.quiet()) return false;
	c.begin(a.group, a.lane);
	u64 results = c.turn + (u64)RANKS * a.slot_bytes;
	Seen<IN_TURN> inputs(p, c.turn), sums(p, results);
	if (p.has) {
		p.send_each(c.turn, all);
		inputs.look();
	}
	c.clear(a.lane);
	c.note(a.lane, 2 * RANKS * p.slot_bytes, true);
	if (p.has && inputs.await(all, all.of(me))) {
		uint4 sum = Fold::sum(all.v);
		WEFT_TRACED(c.o.trace.first_at(SITE_REDUCED);)
		p.send(results, sum);
		sums.look();
		p.put(a.out.at + me * share, sum);
		if (sums.await(all, sum)) {
#pragma unroll
			for (u32 r = 0; r < RANKS; r++) {
				if (r != me) p.put(a.out.at + r * share, all.v[r]);
			}
		}
	}
	WEFT_TRACED(c.o.trace.first_at(SITE_STORED);)
	let_next_start();
	return true;
}
#endif

__global__ void __launch_bounds__(THREADS, 1) all_reduce_two_shot(const __grid_constant__ AllReduce a) {
	const Group &g = a.group;
#if WEFT_RANKS != 0
	Early<RANKS> early(g, a.lane, a.slot_bytes, a.in.at, a.in.bytes / RANKS, a.in.bytes / RANKS);
	computed(early.all);
#endif
	Collective c(a.lane);
	Parts parts;
#if WEFT_RANKS != 0
	if (a.lane.plain != 0 && two_shot_plain(a, c, early, parts.all)) return;
#endif
	Part in(a.in), out(a.out);
	u32 vectors = in.vectors();
	if (!c.begin(g, a.lane)) return;
	Peers peers(g);
	Live live(g, c.o.mask);
	Shares shares(vectors, live);
	Wait wait(g, a.lane.state, a.lane.op, c.o.epoch);
	u64 results = c.turn + g.ranks * a.slot_bytes; // the second half
	bool full = vectors >= live.count;			   // every rank owns something
	if (!full) say_begun(g, a.lane, c.o);
	await_begun(g, a.lane, c, wait, live.others);
	u32 from = shares.first(live.own), own = shares.size(live.own);
	uint4 mine = make_uint4(0, 0, 0, 0); // of the thread's first vector
	if (c.at < own) mine = in.load(from + c.at);
	u32 lane = threadIdx.x & 31, next = c.at & ~31u; // the warp's next vectors of a share to send
	auto send_next = [&](bool loaded) {
		u32 i = next + lane;
		auto has = [&](u32 r) { return holds(live.others, r) && i < shares.size(live.number(r)); };
		auto load = [&](u32 r) {
			return has(r) ? in.load(shares.first(live.number(r)) + i) : make_uint4(0, 0, 0, 0);
		};
		if (!loaded) parts.fetch(load);
		parts.send(a.lane, peers, live.others, slot_of(c.turn, g.rank, a.slot_bytes, i), has, load);
		next += c.step;
	};
	if (next < shares.longest()) send_next(a.lane.plain != 0 && live.all);
	for (u32 k = 1; k < AHEAD && next < shares.longest(); k++) send_next(false);
	Arrivals<IN_TURN> inputs(wait, a.lane, live, c.o.own + c.turn, a.slot_bytes);
	if (c.at < own) inputs.look(c.at);
	c.clear(a.lane);
	c.note(a.lane, 2 * g.ranks * a.slot_bytes, full);
	Arrivals<IN_TURN> sums(wait, a.lane, live, c.o.own + results, a.slot_bytes);
	WEFT_TRACED(sums.phase = 1; c.o.trace.signalled_first(1);) // what is reduced is sent behind it
	u32 taken = c.at; // the thread's next vector to take from all other shares
	auto take_next = [&] {
		auto has = [&](u32 r) { return taken < shares.size(live.number(r)); };
		sums.look(taken, live.others, has);
		sums.each(taken, live.others, has,
				  [&](u32 r, uint4 v) { out.store(shares.first(live.number(r)) + taken, v); });
		taken += c.step;
	};
	for (u32 base = c.at & ~31u; base < own; base += c.step) {
		u32 i = base + lane;
		if (i != c.at && i < own) {
			mine = in.load(from + i);
			inputs.look(i);
		}
		if (next < shares.longest()) send_next(false);
		uint4 v = make_uint4(0, 0, 0, 0);
		if (i < own) {
			Fold fold(a.how, live.count);
			inputs.fold(fold, i, mine);
			v = fold.result();
			if (!wait.over) out.store(from + i, v);
		}
		peers.each(live.others, [&](u32, char *there) {
			if (i < own && !wait.over) send(there + slot_of(results, g.rank, a.slot_bytes, i), v);
		});
		if (i >= taken + AHEAD * c.step) take_next();
	}
	WEFT_TRACED(c.o.trace.first_at(SITE_REDUCED);)
	while (taken < shares.longest()) take_next();
	WEFT_TRACED(c.o.trace.first_at(SITE_STORED);)
	let_next_start();
}

} // namespace collective
} // namespace weft
