// Moves through slots: all-gather, all-to-all, broadcast, gather and scatter. They differ in who sends
// to whom, and in where a rank's part stands in the input and in the output.
//
//	              senders   receivers   part of the input   part of the output
//	all-gather    all       all         the whole           the sender's
//	all-to-all    all       all         the receiver's      the sender's
//	gather        all       the root    the whole           the sender's
//	scatter       the root  all         the receiver's      the whole
//	broadcast     the root  all         the whole           the whole
#include "plain.cuh"

namespace weft {

// Go: moveArgs.
struct Move {
	Lane lane;
	Operand in, out;
	u64 part_bytes, slot_bytes;
	u64 in_step, out_step; // from a rank's part to the next one's; 0: all have the whole
	int sender, receiver;  // the only one, or -1
	Group group;
};

static_assert(sizeof(Move) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

namespace collective {

#if WEFT_RANKS != 0
// An all-gather, or an all-to-all.
__device__ __forceinline__ bool move_plain(const Move &a, Collective &c, const Early<RANKS> &e, Vectors &parts) {
	Plain p(a.group, a.lane, c, e, a.slot_bytes, a.part_bytes);
	e.load(parts); // of an all-gather, all the same
	if (!c.quiet()) return false;
	c.begin(a.group, a.lane);
	Seen seen(p, c.turn);
	if (p.has) {
		p.send_each(c.turn, parts);
		seen.look();
		p.send_sides(c.turn, parts);
	}
	c.clear(a.lane);
	c.note(a.lane, RANKS * p.slot_bytes, true);
	Vectors all;
	if (p.has && seen.await(all, parts.of(a.group.rank))) {
#pragma unroll
		for (u32 r = 0; r < RANKS; r++) p.put(a.out.at + r * a.out_step, all.v[r]);
	}
	let_next_start();
	return true;
}
#endif

__global__ void __launch_bounds__(THREADS, 1) move(const __grid_constant__ Move a) {
	const Group &g = a.group;
#if WEFT_RANKS != 0
	Early<RANKS> early(g, a.lane, a.slot_bytes, a.in.at, a.part_bytes, a.in_step);
	computed(early.all);
#endif
	Collective c(a.lane);
	Parts parts;
	uint4 first = make_uint4(0, 0, 0, 0);
#if WEFT_RANKS != 0
	if (a.lane.plain != 0 && move_plain(a, c, early, parts.all)) return;
	first = parts.all.v[0]; // of an all-gather
#endif
	Part whole(a.in, 0, a.part_bytes); // where all have the same of the input
	u32 vectors = whole.vectors();
	bool rooted = a.sender >= 0 || a.receiver >= 0;
	bool sends = a.sender < 0 || (u32)a.sender == g.rank, receives = a.receiver < 0 || (u32)a.receiver == g.rank;
	if (a.lane.plain == 0 && sends && c.at < vectors) {
		if (a.in_step == 0) {
			first = whole.load(c.at);
		} else {
			parts.fetch([&](u32 r) { return Part(a.in, r * a.in_step, a.part_bytes).load(c.at); });
		}
	}
	if (!c.begin(g, a.lane)) return;
	Peers peers(g);
	Live live(g, c.o.mask);
	Wait wait(g, a.lane.state, a.lane.op, c.o.epoch);
	RankSet to = a.receiver < 0 ? live.others : live.others & RankSet::one((u32)a.receiver);
	RankSet from = a.sender < 0 ? live.others : live.others & RankSet::one((u32)a.sender);
	if (!sends) to = RankSet::none();
	if (!receives) from = RankSet::none();
	if (rooted) say_begun(g, a.lane, c.o);
	await_begun(g, a.lane, c, wait, to);
	Part own(a.out, g.rank * a.out_step, a.part_bytes); // where what this rank has for itself goes
	bool keeps = sends && receives && own.at != a.in.at + g.rank * a.in_step;
	u32 lane = threadIdx.x & 31, next = sends ? c.at & ~31u : vectors; // the warp's next vectors to send
	auto send_next = [&] {
		u32 i = next + lane;
		u64 slot = slot_of(c.turn, g.rank, a.slot_bytes, i);
		if (a.in_step == 0) {
			uint4 v = first;
			if (i != c.at && i < vectors) v = whole.load(i);
			peers.each(to, [&](u32 r, char *there) {
				if (i < vectors) deliver(a.lane, there, slot, v);
			});
			if (keeps && i < vectors) own.store(i, v);
		} else {
			auto load = [&](u32 r) { return Part(a.in, r * a.in_step, a.part_bytes).load(i); };
			if (i != c.at && i < vectors) parts.fetch(load);
			parts.send(a.lane, peers, to, slot, [&](u32) { return i < vectors; }, load);
			if (keeps && i < vectors) own.store(i, parts.of(g.rank, load));
		}
		next += c.step;
	};
	for (u32 k = 0; k < AHEAD && next < vectors; k++) send_next();
	Arrivals arrivals(wait, a.lane, live, c.o.own + c.turn, a.slot_bytes);
	auto all = [](u32) { return true; };
	if (receives && c.at < vectors) arrivals.look(c.at, from, all);
	c.clear(a.lane);
	c.note(a.lane, g.ranks * a.slot_bytes, !rooted);
	for (u32 base = c.at & ~31u; base < vectors; base += c.step) {
		u32 i = base + lane;
		bool takes = receives && i < vectors;
		if (i != c.at && takes) arrivals.look(i, from, all);
		if (next < vectors) send_next();
		if (takes)
			arrivals.each(i, from, all, [&](u32 r, uint4 v) { Part(a.out, r * a.out_step, a.part_bytes).store(i, v); });
	}
	let_next_start();
}

} // namespace collective
} // namespace weft
