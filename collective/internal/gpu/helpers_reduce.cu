// Reduce with helpers: every rank sends each helper its share, the helpers reduce them in rank order, and send the
// root the rounded results.
//
// Threads of one number serve the same vectors of every share on all ranks, and send all inputs before they wait.
// The root's has read its input of a vector when it stores the result, so the operation may be in place.
#include "fold.cuh"
#include "helpers.cuh"

namespace weft {

// Go: helpersReduceArgs.
struct HelpersReduce {
	Lane lane;
	Operand in, out; // out: the root's
	How how;
	u64 slot_bytes; // of a rank: what it sends, in each half of the turn: inputs, results
	int root;
	u32 zero;
	Group group;
};

static_assert(sizeof(HelpersReduce) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

namespace collective {

__global__ void __launch_bounds__(THREADS, 1) helpers_reduce(const __grid_constant__ HelpersReduce a) {
	const Group &g = a.group;
	Collective c(a.lane);
	Part in(a.in), out(a.out);
	u32 vectors = in.vectors();
	if (!c.begin(g, a.lane)) return;
	Peers peers(g);
	Live live(g, c.o.mask);
	Wait wait(g, a.lane.state, a.lane.op, c.o.epoch);
	Helpers helpers(vectors, live, a.root);
	bool is_root = g.rank == helpers.root, full = vectors >= live.count - 1; // every helper has something
	RankSet root = RankSet::one(helpers.root);
	if (!full) say_begun(g, a.lane, c.o);
	await_begun(g, a.lane, c, wait, live.others);
	helpers.send(a.lane, c, peers, in, a.slot_bytes);
	u64 results = c.turn + g.ranks * a.slot_bytes; // the second half
	u32 from = is_root ? 0 : helpers.first(g.rank), own = is_root ? 0 : helpers.size(g.rank);
	Arrivals<IN_TURN> inputs(wait, a.lane, live, c.o.own + c.turn, a.slot_bytes);
	WEFT_TRACED(c.o.trace.signalled_first(1);)
	if (c.at < own) inputs.look(c.at);
	c.clear(a.lane);
	c.note(a.lane, 2 * g.ranks * a.slot_bytes, full);
	for (u32 base = c.at & ~31u; base < own; base += c.step) {
		u32 i = base + (threadIdx.x & 31);
		uint4 v = make_uint4(0, 0, 0, 0);
		if (i < own) {
			if (i != c.at) inputs.look(i);
			Fold fold(a.how, live.count);
			inputs.fold(fold, i, in.load(from + i));
			v = fold.result();
		}
		peers.each(root, [&](u32, char *there) {
			if (i < own && !wait.over) send(there + slot_of(results, g.rank, a.slot_bytes, i), v);
		});
	}
	Arrivals<IN_TURN> sums(wait, a.lane, live, c.o.own + results, a.slot_bytes);
	WEFT_TRACED(sums.phase = 1;)
	if (is_root) helpers.take(c, sums, out);
	let_next_start();
}

} // namespace collective
} // namespace weft
