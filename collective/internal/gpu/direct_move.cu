// All-gather, all-to-all, broadcast and scatter into the outputs of peers, which lie in windows: a rank stores
// its data where it belongs.
//
// Warps take pieces of a peer's part in turn, peer after peer, so that all links are busy from the
// beginning; ranks begin with different peers.
#include "direct.cuh"

namespace weft {

// Go: directMoveArgs.
struct DirectMove {
	Lane lane;
	Direct direct;
	Operand in;
	u64 out_unit; // what the outputs' addresses are multiples of
	u64 part_bytes;
	u64 in_step, out_step; // from a rank's part to the next one's; 0: all get the whole, or an output is a part
	int sender;			   // the only one, or -1
	u32 zero;
	char *outs[MOST_RANKS]; // by rank: its output
	Group group;
};

static_assert(sizeof(DirectMove) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

namespace collective {

__global__ void __launch_bounds__(THREADS, 1) direct_move(const __grid_constant__ DirectMove a) {
	const Group &g = a.group;
	Collective c(a.lane);
	if (!c.begin(g, a.lane)) return;
	Live live(g, c.o.mask);
	Meeting meeting(g, a.lane, live, a.direct, c.o.epoch);
	if (!meeting.begin(c)) return;
	u32 vectors = (u32)((a.part_bytes + 15) / 16), lane = threadIdx.x & 31;
	u32 pieces = (vectors + 32 * FLYING - 1) / (32 * FLYING);
	u32 unit = min(a.in.unit, (u32)a.out_unit);
	u64 step = c.step / 32;
	bool sends = a.sender < 0 || (u32)a.sender == g.rank;
	for (u64 k = c.at / 32; sends && k < (u64)pieces * g.ranks; k += step) {
		u32 to = (g.rank + (u32)(k % g.ranks)) % g.ranks, base = (u32)(k / g.ranks) * 32 * FLYING + lane;
		if (!holds(live.set, to)) continue;
		Operand from = {a.in.at + to * a.in_step, a.part_bytes, unit, 0};
		Operand into = {a.outs[to] + g.rank * a.out_step, a.part_bytes, unit, 0};
		if (from.at == into.at) continue; // in place
		Part in(from), out(into);
		fly<FLYING>(base, 32, vectors, [&](u32 i) { return in.load(i); }, [&](u32 i, uint4 v) { out.store(i, v); });
	}
	meeting.end();
	let_next_start();
}

} // namespace collective
} // namespace weft
