// All-reduce and reduce-scatter of inputs that lie in windows: every rank reads its part of all inputs,
// reduces them in rank order, and stores the result in its own output, or in all outputs, which lie in
// windows then.
#include "direct_reduce.cuh"

namespace weft::collective {

static_assert(sizeof(DirectReduce) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

__global__ void __launch_bounds__(THREADS, 1) direct_reduce(const __grid_constant__ DirectReduce a) {
	const Group &g = a.group;
	Collective c(a.lane);
	if (!c.begin(g, a.lane)) return;
	Live live(g, c.o.mask);
	Meeting meeting(g, a.lane, live, a.direct, c.o.epoch);
	if (!meeting.begin(c)) return;
	reduce_by_threads(a, c, live, Owned(a, live), a.unit);
	meeting.end();
	let_next_start();
}

} // namespace weft::collective
