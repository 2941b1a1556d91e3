// All-reduce in one step: every rank stores its input in slots at every other, waits for theirs, and
// reduces all of them in rank order.
//
// A thread sends, waits for and reduces the same vectors. It has sent AHEAD more when it waits for one, so
// what it waits for was sent before its peer waited for anything later. In place a thread has read its input
// when it stores the result.
#include "all_reduce.cuh"

namespace weft {

namespace collective {

#if WEFT_RANKS != 0
__device__ __forceinline__ bool one_shot_plain(const AllReduce &a, Collective &c, const Early<1> &e, uint4 &own) {
	Plain p(a.group, a.lane, c, e, a.slot_bytes, a.in.bytes);
	own = e.load(0);
	if (!c.quiet()) return false;
	c.begin(a.group, a.lane);
	Seen seen(p, c.turn);
	if (p.has) {
		p.send(c.turn, own);
		seen.look();
	}
	c.clear(a.lane);
	c.note(a.lane, RANKS * p.slot_bytes, true);
	Vectors all;
	if (p.has && seen.await(all, own)) p.put(a.out.at, Fold::sum(all.v));
	WEFT_TRACED(c.o.trace.first_at(SITE_STORED);)
	let_next_start();
	return true;
}
#endif

__global__ void __launch_bounds__(THREADS, 1) all_reduce_one_shot(const __grid_constant__ AllReduce a) {
	const Group &g = a.group;
#if WEFT_RANKS != 0
	Early<1> early(g, a.lane, a.slot_bytes, a.in.at, a.in.bytes, 0);
	computed(early.all);
#endif
	Collective c(a.lane);
	uint4 first = make_uint4(0, 0, 0, 0); // of the thread's vectors
#if WEFT_RANKS != 0
	if (a.lane.plain != 0 && one_shot_plain(a, c, early, first)) return;
#endif
	Part in(a.in), out(a.out);
	u32 vectors = in.vectors();
	if (a.lane.plain == 0 && c.at < vectors) first = in.load(c.at);
	if (!c.begin(g, a.lane)) return;
	Peers peers(g);
	Live live(g, c.o.mask);
	Wait wait(g, a.lane.state, a.lane.op, c.o.epoch);
	await_begun(g, a.lane, c, wait, live.others);
	u32 lane = threadIdx.x & 31, next = c.at & ~31u; // the warp's next vectors to send
	auto send_next = [&] {
		u32 i = next + lane;
		uint4 v = first;
		if (i != c.at && i < vectors) v = in.load(i);
		peers.each(live.others, [&](u32, char *there) {
			if (i < vectors) send(there + slot_of(c.turn, g.rank, a.slot_bytes, i), v);
		});
		next += c.step;
	};
	for (u32 k = 0; k < AHEAD && next < vectors; k++) send_next();
	Arrivals arrivals(wait, a.lane, live, c.o.own + c.turn, a.slot_bytes);
	if (c.at < vectors) arrivals.look(c.at);
	c.clear(a.lane);
	c.note(a.lane, g.ranks * a.slot_bytes, true);
	for (u32 base = c.at & ~31u; base < vectors; base += c.step) {
		u32 i = base + lane;
		uint4 own = first;
		if (i != c.at && i < vectors) {
			own = in.load(i);
			arrivals.look(i);
		}
		if (next < vectors) send_next();
		if (i >= vectors) continue;
		Fold fold(a.how, live.count);
		arrivals.fold(fold, i, own);
		if (!wait.over) out.store(i, fold.result());
	}
	WEFT_TRACED(c.o.trace.first_at(SITE_STORED);)
	let_next_start();
}

} // namespace collective
} // namespace weft
