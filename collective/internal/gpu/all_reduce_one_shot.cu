// All-reduce in one step: every rank stores its input in slots at every other, waits for theirs, and
// reduces all of them in rank order.
//
// A thread sends, waits for and reduces the same vectors. It sends all of them before it waits for the
// first, so no rank waits for one that waits. In place a thread has read its input when it stores the
// result.
#include "all_reduce.cuh"

namespace weft {

namespace collective {

__global__ void __launch_bounds__(THREADS) all_reduce_one_shot(const __grid_constant__ AllReduce a) {
	const Group &g = a.group;
	Collective c(a.lane);
	Part in(a.in), out(a.out);
	u32 vectors = in.vectors();
	uint4 first = make_uint4(0, 0, 0, 0); // of the thread's vectors
	if (c.at < vectors) first = in.load(c.at);
	if (!c.begin(g, a.lane)) return;
	Peers peers(g);
	Live live(g, c.o.mask);
	Wait wait(g, a.lane.state, a.lane.op, c.o.epoch);
	await_begun(g, a.lane, c, wait, live.others);
	for (u32 base = c.at & ~31u; base < vectors; base += c.step) {
		u32 i = base + (threadIdx.x & 31);
		uint4 v = first;
		if (i != c.at && i < vectors) v = in.load(i);
		peers.each(live.others, [&](u32, char *there) {
			if (i < vectors) send(there + slot_of(c.turn, g.rank, a.slot_bytes, i), v);
		});
	}
	Arrivals arrivals(wait, a.lane, live, c.o.own + c.turn, a.slot_bytes);
	if (c.at < vectors) arrivals.look(c.at);
	c.clear(a.lane);
	c.note(a.lane, g.ranks * a.slot_bytes, true);
	for (u32 i = c.at; i < vectors; i += c.step) {
		uint4 own = first;
		if (i != c.at) {
			own = in.load(i);
			arrivals.look(i);
		}
		Fold fold(a.how, live.count);
		arrivals.fold(fold, i, own);
		if (!wait.over) out.store(i, fold.result());
	}
	let_next_start();
}

} // namespace collective
} // namespace weft
