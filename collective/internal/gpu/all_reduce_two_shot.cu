// All-reduce in two steps: every rank owns a share of the vectors. It gets that share of every input in
// slots, reduces it in rank order, and stores the rounded result in slots at every other rank.
//
// Threads of one number serve the same vectors of every share on all ranks, so a thread waits only for
// its likes. It sends all of a step before it waits for the first of it. A thread has read its input
// of a share when it stores that share's result, so the operation may be in place.
#include "all_reduce.cuh"

namespace weft {

namespace collective {

__global__ void __launch_bounds__(THREADS) all_reduce_two_shot(const __grid_constant__ AllReduce a) {
	const Group &g = a.group;
	Collective c(a.lane);
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
	Parts parts;
	uint4 mine = make_uint4(0, 0, 0, 0); // of the thread's first vector
	if (c.at < own) mine = in.load(from + c.at);
	for (u32 base = c.at & ~31u; base < shares.longest(); base += c.step) {
		u32 i = base + (threadIdx.x & 31);
		auto has = [&](u32 r) { return i < shares.size(live.number(r)); };
		auto load = [&](u32 r) {
			return has(r) ? in.load(shares.first(live.number(r)) + i) : make_uint4(0, 0, 0, 0);
		};
		parts.fetch(load);
		parts.send(peers, live.others, slot_of(c.turn, g.rank, a.slot_bytes, i), has, load);
	}
	Arrivals inputs(wait, a.lane, live, c.o.own + c.turn, a.slot_bytes);
	if (c.at < own) inputs.look(c.at);
	c.clear(a.lane);
	c.note(a.lane, 2 * g.ranks * a.slot_bytes, full);
	for (u32 base = c.at & ~31u; base < own; base += c.step) {
		u32 i = base + (threadIdx.x & 31);
		uint4 v = make_uint4(0, 0, 0, 0);
		if (i < own) {
			if (i != c.at) {
				mine = in.load(from + i);
				inputs.look(i);
			}
			Fold fold(a.how, live.count);
			inputs.fold(fold, i, mine);
			v = fold.result();
			if (!wait.over) out.store(from + i, v);
		}
		peers.each(live.others, [&](u32, char *there) {
			if (i < own && !wait.over) send(there + slot_of(results, g.rank, a.slot_bytes, i), v);
		});
	}
	Arrivals sums(wait, a.lane, live, c.o.own + results, a.slot_bytes);
	for (u32 i = c.at; i < shares.longest(); i += c.step) {
		auto has = [&](u32 r) { return i < shares.size(live.number(r)); };
		sums.look(i, live.others, has);
		sums.each(i, live.others, has, [&](u32 r, uint4 v) { out.store(shares.first(live.number(r)) + i, v); });
	}
	let_next_start();
}

} // namespace collective
} // namespace weft
