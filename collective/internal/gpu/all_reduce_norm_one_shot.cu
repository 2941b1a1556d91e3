// All-reduce with a norm in one step: every rank stores its rows in slots at every other, and a block that
// has all ranks' vectors of a row goes on with their sum.
//
// A thread sends all its vectors before it waits for the first. Blocks of one number have the same rows on
// all ranks, and wait for each other's alone. In place a thread has read its input when it stores there.
#include "all_reduce_norm.cuh"

namespace weft {

namespace collective {

__global__ void __launch_bounds__(NORM_THREADS) all_reduce_norm_one_shot(const __grid_constant__ AllReduceNorm a) {
	extern __shared__ __align__(16) char kept[];
	__shared__ float sums[2 * NORM_WARPS];
	const Group &g = a.group;
	Collective c(a.lane);
	u32 vectors = row(a.in, 0).vectors();
	uint4 first = make_uint4(0, 0, 0, 0); // of the thread's vectors
	Beside beside;
	if (threadIdx.x < vectors) {
		first = row(a.in, blockIdx.x).load(threadIdx.x);
		beside.load(a, blockIdx.x, threadIdx.x);
	}
	if (!c.begin(g, a.lane)) return;
	Peers peers(g);
	Live live(g, c.o.mask);
	Wait wait(g, a.lane.state, a.lane.op, c.o.epoch);
	await_begun(g, a.lane, c, wait, live.others);
	for (u32 token = blockIdx.x; token < a.tokens; token += gridDim.x) {
		for (u32 base = threadIdx.x & ~31u; base < vectors; base += NORM_THREADS) {
			u32 i = base + (threadIdx.x & 31);
			uint4 v = first;
			if (i < vectors && (i != threadIdx.x || token != blockIdx.x)) v = row(a.in, token).load(i);
			peers.each(live.others, [&](u32, char *there) {
				if (i < vectors) send(there + slot_of(c.turn, g.rank, a.slot_bytes, (u64)token * vectors + i), v);
			});
		}
	}
	Arrivals arrivals(wait, a.lane, live, c.o.own + c.turn, a.slot_bytes);
	if (threadIdx.x < vectors) arrivals.look(blockIdx.x * vectors + threadIdx.x);
	c.clear(a.lane);
	c.note(a.lane, g.ranks * a.slot_bytes, true);
	Norm norm(a, wait, kept, sums);
	for (u32 token = blockIdx.x; token < a.tokens; token += gridDim.x) {
		bool begins = token == blockIdx.x;
		norm.finish(token, begins ? &beside : nullptr, [&](u32 i) {
			uint4 own = first;
			if (i != threadIdx.x || !begins) {
				own = row(a.in, token).load(i);
				arrivals.look(token * vectors + i);
			}
			Fold fold = sum_of_rows(live.count);
			arrivals.fold(fold, token * vectors + i, own);
			return fold.result();
		});
	}
	let_next_start();
}

} // namespace collective
} // namespace weft
