// Reduce-scatter, and reduce to one rank: every rank stores, in slots at each rank that has a result,
// that rank's part of its input. A rank with a result reduces the parts in rank order.
//
// With WEFT_VARIES parts have different lengths, the same on all ranks.
#include "fold.cuh"
#include "plain.cuh"

#ifndef WEFT_VARIES
#define WEFT_VARIES 0
#endif

namespace weft {

// Go: reduceScatterArgs.
struct ReduceScatter {
	Lane lane;
	Operand in;	 // a part a rank, masked ranks' too; of a reduce, the whole
	Operand out; // the result, if this rank has one
	How how;
	u64 part_bytes, part_step, slot_bytes; // part_step: from a rank's part of the input to the next one's
	int root; // the only rank that has a result, or -1
	u32 full; // every rank has something of every other
#if WEFT_VARIES
	Span parts[MOST_RANKS]; // in bytes; part_bytes is the length of the longest
#endif
	Group group;
};

static_assert(sizeof(ReduceScatter) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

namespace collective {

#if WEFT_RANKS != 0
__device__ __forceinline__ bool reduce_scatter_plain(const ReduceScatter &a, Collective &c, const Early<RANKS> &e,
													 Vectors &parts) {
	Plain p(a.group, a.lane, c, e, a.slot_bytes, a.part_bytes);
	e.load(parts);
	if (!c.quiet()) return false;
	c.begin(a.group, a.lane);
	Seen seen(p, c.turn);
	if (p.has) {
		p.send_each(c.turn, parts);
		seen.look();
	}
	c.clear(a.lane);
	c.note(a.lane, RANKS * p.slot_bytes, true);
	Vectors all;
	if (p.has && seen.await(all, parts.of(a.group.rank))) p.put(a.out.at, Fold::sum(all.v));
	let_next_start();
	return true;
}
#endif

__global__ void __launch_bounds__(THREADS, 1) reduce_scatter(const __grid_constant__ ReduceScatter a) {
	const Group &g = a.group;
#if WEFT_RANKS != 0
	Early<RANKS> early(g, a.lane, a.slot_bytes, a.in.at, a.part_bytes, a.part_step);
	computed(early.all);
#endif
	Collective c(a.lane);
	Parts parts;
#if WEFT_RANKS != 0
	if (a.lane.plain != 0 && reduce_scatter_plain(a, c, early, parts.all)) return;
#endif
	bool rooted = a.root >= 0;
#if WEFT_VARIES
	auto part = [&](u32 r) { return Part(a.in.at + a.parts[r].from, a.parts[r].count); };
	auto has = [&](u32 r, u32 i) { return (u64)i * 16 < a.parts[r].count; };
#else
	auto part = [&](u32 r) { return Part(a.in, rooted ? 0 : r * a.part_step, a.part_bytes); };
	auto has = [&](u32, u32 i) { return (u64)i * 16 < a.part_bytes; };
#endif
	Part own = part(g.rank), out(a.out);
	u32 vectors = own.vectors(), longest = (u32)((a.part_bytes + 15) / 16);
	uint4 mine = make_uint4(0, 0, 0, 0);
	auto fetch = [&](u32 i) {
		parts.fetch([&](u32 r) { return has(r, i) ? part(r).load(i) : make_uint4(0, 0, 0, 0); });
	};
	if (a.lane.plain == 0 && c.at < longest) fetch(c.at);
	if (c.at < vectors) mine = own.load(c.at);
	if (!c.begin(g, a.lane)) return;
	Peers peers(g);
	Live live(g, c.o.mask);
	Wait wait(g, a.lane.state, a.lane.op, c.o.epoch);
	RankSet to = rooted ? live.others & RankSet::one((u32)a.root) : live.others;
	if (a.full == 0) say_begun(g, a.lane, c.o);
	await_begun(g, a.lane, c, wait, to);
	u32 lane = threadIdx.x & 31, next = c.at & ~31u; // the warp's next vectors to send
	auto send_next = [&] {
		u32 i = next + lane;
		if (i != c.at && i < longest) fetch(i);
		parts.send(a.lane, peers, to, slot_of(c.turn, g.rank, a.slot_bytes, i), [&](u32 r) { return has(r, i); },
				   [&](u32 r) { return part(r).load(i); });
		next += c.step;
	};
	for (u32 k = 0; k < AHEAD && next < longest; k++) send_next();
	bool receives = !rooted || (u32)a.root == g.rank;
	Arrivals arrivals(wait, a.lane, live, c.o.own + c.turn, a.slot_bytes);
	if (receives && c.at < vectors) arrivals.look(c.at);
	c.clear(a.lane);
	c.note(a.lane, g.ranks * a.slot_bytes, a.full != 0);
	for (u32 base = c.at & ~31u; base < longest; base += c.step) {
		u32 i = base + lane;
		bool reduces = receives && i < vectors;
		if (i != c.at && reduces) {
			mine = own.load(i);
			arrivals.look(i);
		}
		if (next < longest) send_next();
		if (!reduces) continue;
		Fold fold(a.how, live.count);
		arrivals.fold(fold, i, mine);
		if (!wait.over) out.store(i, fold.result());
	}
	let_next_start();
}

} // namespace collective
} // namespace weft
