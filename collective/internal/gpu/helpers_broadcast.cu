// Broadcast with helpers: the root sends each of the others a share, and they send it to each other as it comes.
//
// Threads of one number serve the same vectors of every share on all ranks. A thread of a helper first sends on
// what the root's sends it, which waits for none, and then waits for that of the other helpers.
#include "helpers.cuh"

namespace weft {

// Go: helpersBroadcastArgs.
struct HelpersBroadcast {
	Lane lane;
	Operand in, out; // in: the root's
	u64 slot_bytes;	 // of a rank: what it sends, in slots of the turn
	int root;
	u32 zero;
	Group group;
};

static_assert(sizeof(HelpersBroadcast) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

namespace collective {

__global__ void __launch_bounds__(THREADS, 1) helpers_broadcast(const __grid_constant__ HelpersBroadcast a) {
	const Group &g = a.group;
	Collective c(a.lane);
	Part in(a.in), out(a.out);
	u32 vectors = out.vectors();
	if (!c.begin(g, a.lane)) return;
	Peers peers(g);
	Live live(g, c.o.mask);
	Wait wait(g, a.lane.state, a.lane.op, c.o.epoch);
	Helpers helpers(vectors, live, a.root);
	bool is_root = g.rank == helpers.root;
	say_begun(g, a.lane, c.o);
	await_begun(g, a.lane, c, wait, helpers.others);
	Arrivals<IN_TURN> arrivals(wait, a.lane, live, c.o.own + c.turn, a.slot_bytes);
	RankSet from_root = RankSet::one(helpers.root);
	auto all = [](u32) { return true; };
	u32 own = is_root ? 0 : helpers.size(g.rank);
	if (is_root) {
		helpers.send(a.lane, c, peers, in, a.slot_bytes);
	} else if (c.at < own) {
		arrivals.look(c.at, from_root, all);
	}
	c.clear(a.lane);
	c.note(a.lane, g.ranks * a.slot_bytes, false);
	for (u32 base = c.at & ~31u; base < own; base += c.step) {
		u32 i = base + (threadIdx.x & 31);
		uint4 v = make_uint4(0, 0, 0, 0);
		if (i < own) {
			if (i != c.at) arrivals.look(i, from_root, all);
			arrivals.each(i, from_root, all, [&](u32, uint4 data) { v = data; });
			if (!wait.over) out.store(helpers.first(g.rank) + i, v);
		}
		peers.each(helpers.others, [&](u32, char *there) {
			if (i < own && !wait.over) deliver(a.lane, there, slot_of(c.turn, g.rank, a.slot_bytes, i), v);
		});
	}
	if (!is_root) helpers.take(c, arrivals, out);
	for (u32 i = c.at; is_root && in.at != out.at && i < vectors; i += c.step) out.store(i, in.load(i));
	let_next_start();
}

} // namespace collective
} // namespace weft
