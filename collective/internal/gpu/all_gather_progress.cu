// All-gather that raises words as chunks of the output land.
//
// The lower half of the blocks sends, to the rank before this one first, and so on: that one wants this
// rank's part next after its own. The upper half waits: it copies this rank's part, then takes that of the
// next rank, and so on. A launch of one block sends, and then waits.
//
// Blocks that send wait for no data, and are the first to be scheduled. So those that wait are sent what they
// wait for, on any number of SMs.
//
// Words of masked ranks stay as they are.
#include "chunks.cuh"

namespace weft {

// Go: allGatherProgressArgs.
struct AllGatherProgress {
	Lane lane;
	Operand in, out; // from the launch's first byte of a part on
	Chunks chunks;
	u64 slot_bytes, out_step; // out_step: from a rank's part to the next one's
	Group group;
};

static_assert(sizeof(AllGatherProgress) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

namespace collective {

__global__ void __launch_bounds__(THREADS, 1) all_gather_progress(const __grid_constant__ AllGatherProgress a) {
	const Group &g = a.group;
	Collective c(a.lane);
	if (!c.begin(g, a.lane)) return;
	Live live(g, c.o.mask);
	Wait wait(g, a.lane.state, a.lane.op, c.o.epoch);
	Part whole(a.in, 0, a.chunks.bytes);
	u32 vectors = whole.vectors();
	if (vectors == 0) say_begun(g, a.lane, c.o);
	await_begun(g, a.lane, c, wait, live.others);
	u32 senders = max(1, gridDim.x / 2), first = gridDim.x == 1 ? 0 : senders; // first: of those that take
	bool sends = blockIdx.x < senders, takes = blockIdx.x >= first;
	for (u32 k = 1; sends && k < g.ranks; k++) {
		u32 to = (g.rank + g.ranks - k) % g.ranks;
		if (!holds(live.others, to)) continue;
		u64 slots = slot_of(c.turn, g.rank, a.slot_bytes, 0);
		u32 step = senders * blockDim.x;
		batches(0, vectors, blockIdx.x * blockDim.x + threadIdx.x, step, [&](u32 base) {
			fly<BATCH>(
				base, step, vectors, [&](u32 i) { return whole.load(i); },
				[&](u32 i, uint4 v) { deliver(a.lane, g.window[to], slots + (u64)i * SLOT_BYTES, v); });
		});
	}
	c.clear(a.lane);
	c.note(a.lane, g.ranks * a.slot_bytes, vectors != 0);
	u32 at = (blockIdx.x - first) * blockDim.x + threadIdx.x, step = (gridDim.x - first) * blockDim.x;
	Arrivals arrivals(wait, a.lane, live, c.o.own + c.turn, a.slot_bytes);
	for (u32 k = 0; takes && k < g.ranks; k++) {
		u32 src = (g.rank + k) % g.ranks;
		if (!holds(live.set, src)) continue;
		Part out(a.out, src * a.out_step, a.chunks.bytes);
		a.chunks.each([&](u32 chunk, u32 from, u32 end, bool ends) {
			batches(from, src == g.rank && whole.at == out.at ? from : end, at, step, [&](u32 i) {
				Slot seen[BATCH];
				uint4 v[BATCH];
#pragma unroll
				for (u32 j = 0; j < BATCH; j++) {
					if (i + (u64)j * step >= end) continue;
					if (src == g.rank) {
						v[j] = whole.load(i + j * step);
					} else {
						seen[j] = look(arrivals.slot(src, i + j * step));
					}
				}
#pragma unroll
				for (u32 j = 0; j < BATCH; j++) {
					if (i + (u64)j * step >= end) continue;
					if (src != g.rank) v[j] = arrivals.take(src, i + j * step, seen[j]);
					if (!wait.over) out.store(i + j * step, v[j]);
				}
			});
			if (!ends) return true;
			if (__syncthreads_or(wait.over)) return false;
			if (last_to_arrive(a.chunks.blocks(src, chunk), gridDim.x - first)) {
				u64 *word = a.chunks.word(src, chunk);
				store_release_sys_u64(word, load_relaxed_sys_u64(word) + 1);
			}
			return true;
		});
	}
	let_next_start();
}

} // namespace collective
} // namespace weft
