// Barrier: every rank tells every other that it has begun the operation, and waits for all of them. What
// a rank's kernels stored before, anywhere, the others' kernels behind the barrier see: a kernel that has
// ended has its stores performed for the whole system, and one that begins reads afresh. So the words
// need no fence, which would take as long as the rest.
#include "slots.cuh"

namespace weft {

// Go: barrierArgs.
struct Barrier {
	Lane lane;
	Group group;
};

static_assert(sizeof(Barrier) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

namespace collective {

__global__ void __launch_bounds__(THREADS, 1) barrier(const __grid_constant__ Barrier a) {
	const Group &g = a.group;
	Collective c(a.lane);
	if (!c.begin(g, a.lane)) return;
	Live live(g, c.o.mask);
	u32 r = threadIdx.x;
	bool meets = blockIdx.x == 0 && r < g.ranks && holds(live.others, r);
	WEFT_TRACED(bool came = false;)
	WEFT_TRACED(c.o.trace.signalled_by_all();)
	if (meets) store_relaxed_sys_u64(g.window[r] + a.lane.heard + g.rank * 8, c.o.epoch);
	c.clear(a.lane);
	c.note(a.lane, 0, true);
	if (meets)
		WEFT_TRACED(came =)
		poll_begun(g, a.lane.state, a.lane.op, c.o.epoch, r, c.o.own + a.lane.heard + r * 8, c.o.epoch);
	WEFT_TRACED(if (came) c.o.trace.arrived(r);)
	let_next_start();
}

} // namespace collective
} // namespace weft
