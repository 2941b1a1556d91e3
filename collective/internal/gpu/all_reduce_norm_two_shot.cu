// All-reduce with a norm in two steps: every rank owns a share of the rows, gets them from all ranks in slots,
// and stores the sums in slots at every other rank. Each rank goes on with all sums itself: it wants all
// rows with its residual added anyway, and to normalise one costs less than to send it.
//
// Blocks of one number serve the same rows of every share on all ranks, so a thread waits only for its likes. It
// sends all of a step before it waits for the first of it. In place a thread has read what it overwrites:
// its vector of the row, when it sent that.
#include "all_reduce_norm.cuh"

namespace weft {

namespace collective {

__global__ void __launch_bounds__(NORM_THREADS) all_reduce_norm_two_shot(const __grid_constant__ AllReduceNorm a) {
	extern __shared__ __align__(16) char kept[];
	__shared__ float sums[2 * NORM_WARPS];
	const Group &g = a.group;
	Collective c(a.lane);
	u32 vectors = row(a.in, 0).vectors();
	if (!c.begin(g, a.lane)) return;
	Peers peers(g);
	Live live(g, c.o.mask);
	Shares shares(a.tokens, live);
	Wait wait(g, a.lane.state, a.lane.op, c.o.epoch);
	u64 results = c.turn + g.ranks * a.slot_bytes; // the second half
	bool full = a.tokens >= live.count;			   // every rank owns something
	if (!full) say_begun(g, a.lane, c.o);
	await_begun(g, a.lane, c, wait, live.others);
	u32 from = shares.first(live.own), own = shares.size(live.own);
	for (u32 t = blockIdx.x; t < shares.longest(); t += gridDim.x) {
		for (u32 base = threadIdx.x & ~31u; base < vectors; base += NORM_THREADS) {
			u32 i = base + (threadIdx.x & 31);
			peers.each(live.others, [&](u32 r, char *there) {
				u32 n = live.number(r);
				if (i < vectors && t < shares.size(n))
					send(there + slot_of(c.turn, g.rank, a.slot_bytes, (u64)t * vectors + i),
						 row(a.in, shares.first(n) + t).load(i));
			});
		}
	}
	c.clear(a.lane);
	c.note(a.lane, 2 * g.ranks * a.slot_bytes, full);
	Norm norm(a, wait, kept, sums);
	Arrivals<IN_TURN> inputs(wait, a.lane, live, c.o.own + c.turn, a.slot_bytes);
	WEFT_TRACED(c.o.trace.signalled_first(1);)
	for (u32 t = blockIdx.x; t < own; t += gridDim.x) {
		for (u32 base = threadIdx.x & ~31u; base < vectors; base += NORM_THREADS) {
			u32 i = base + (threadIdx.x & 31);
			uint4 v = make_uint4(0, 0, 0, 0);
			if (i < vectors) {
				inputs.look(t * vectors + i);
				Fold fold = sum_of_rows(live.count);
				inputs.fold(fold, t * vectors + i, row(a.in, from + t).load(i));
				v = fold.result();
				norm.kept[i] = v;
			}
			peers.each(live.others, [&](u32, char *there) {
				if (i < vectors && !wait.over)
					send(there + slot_of(results, g.rank, a.slot_bytes, (u64)t * vectors + i), v);
			});
		}
		norm.finish(from + t, nullptr, [&](u32 i) { return norm.kept[i]; });
	}
	Arrivals<IN_TURN> rows(wait, a.lane, live, c.o.own + results, a.slot_bytes);
	WEFT_TRACED(rows.phase = 1;)
	for (u32 t = blockIdx.x; t < shares.longest(); t += gridDim.x) {
		for (u32 r = 0; r < g.ranks; r++) {
			if (!holds(live.others, r) || t >= shares.size(live.number(r))) continue;
			norm.finish(shares.first(live.number(r)) + t, nullptr, [&](u32 i) {
				const char *slot = rows.slot(r, t * vectors + i);
				return rows.take(r, t * vectors + i, look(slot));
			});
		}
	}
	let_next_start();
}

} // namespace collective
} // namespace weft
