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
	for (u32 base = c.at & ~31u; base < shares.longest(); base += c.step) {
		u32 i = base + (threadIdx.x & 31);
		send_parts(
			peers, live.others, slot_of(c.turn, g.rank, a.slot_bytes, i),
			[&](u32 r) { return i < shares.size(live.number(r)); },
			[&](u32 r) { return in.load(shares.first(live.number(r)) + i); });
	}
	c.clear(a.lane);
	u32 from = shares.first(live.own), own = shares.size(live.own);
	for (u32 base = c.at & ~31u; base < own; base += c.step) {
		u32 i = base + (threadIdx.x & 31);
		uint4 v = make_uint4(0, 0, 0, 0);
		if (i < own) {
			Fold fold(a.how, live.count);
			fold_slots(fold, wait, a.lane, live, c.o.own + slot_of(c.turn, 0, 0, i), a.slot_bytes, in.load(from + i));
			v = fold.result();
			if (!wait.over) out.store(from + i, v);
		}
		peers.each(live.others, [&](u32, char *there) {
			if (i < own && !wait.over) send(there + slot_of(results, g.rank, a.slot_bytes, i), v);
		});
	}
	for (u32 base = c.at & ~31u; base < shares.longest(); base += c.step) {
		u32 i = base + (threadIdx.x & 31);
		gather_slots(wait, a.lane, live.others, c.o.own + slot_of(results, 0, 0, i), a.slot_bytes,
					 [&](u32 r) { return i < shares.size(live.number(r)); },
					 [&](u32 r, uint4 v) { out.store(shares.first(live.number(r)) + i, v); });
	}
	c.end(a.lane, 2 * g.ranks * a.slot_bytes, full);
}

} // namespace collective
} // namespace weft
