// Reduce-scatter, and reduce to one rank: every rank stores, in slots at each rank that has a result,
// that rank's part of its input. A rank with a result reduces the parts in rank order.
#include "fold.cuh"
#include "slots.cuh"

namespace weft {

// Go: reduceScatterArgs.
struct ReduceScatter {
	Lane lane;
	Operand in;	 // a part a rank, masked ranks' too; of a reduce, the whole
	Operand out; // the result, if this rank has one
	How how;
	u64 part_bytes, part_step, slot_bytes; // part_step: from a rank's part of the input to the next one's
	int root; // the only rank that has a result, or -1
	u32 zero;
	Group group;
};

static_assert(sizeof(ReduceScatter) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

namespace collective {

__global__ void __launch_bounds__(THREADS) reduce_scatter(const __grid_constant__ ReduceScatter a) {
	const Group &g = a.group;
	Collective c(a.lane);
	if (!c.begin(g, a.lane)) return;
	Peers peers(g);
	Live live(g, c.o.mask);
	Wait wait(g, a.lane.state, a.lane.op, c.o.epoch);
	bool rooted = a.root >= 0;
	auto part = [&](u32 r) { return Part(a.in, rooted ? 0 : r * a.part_step, a.part_bytes); };
	RankSet to = rooted ? live.others & RankSet::one((u32)a.root) : live.others;
	Part own = part(g.rank), out(a.out);
	u32 vectors = own.vectors();
	if (rooted) say_begun(g, a.lane, c.o);
	await_begun(g, a.lane, c, wait, to);
	for (u32 base = c.at & ~31u; base < vectors; base += c.step) {
		u32 i = base + (threadIdx.x & 31);
		send_parts(
			peers, to, slot_of(c.turn, g.rank, a.slot_bytes, i), [&](u32) { return i < vectors; },
			[&](u32 r) { return part(r).load(i); });
	}
	c.clear(a.lane);
	if (!rooted || (u32)a.root == g.rank) {
		for (u32 i = c.at; i < vectors; i += c.step) {
			Fold fold(a.how, live.count);
			fold_slots(fold, wait, a.lane, live, c.o.own + slot_of(c.turn, 0, 0, i), a.slot_bytes, own.load(i));
			if (!wait.over) out.store(i, fold.result());
		}
	}
	c.end(a.lane, g.ranks * a.slot_bytes, !rooted);
}

} // namespace collective
} // namespace weft
