// Reduce-scatter that reads a chunk of its input when a word says that it is there.
//
// A rank sends its parts for the others, that of the next rank first, each chunk when it is ready, and waits for
// data only when it has sent all. So it waits in the end for the kernels that make inputs, and for nothing
// that waits for it. Words of masked ranks are not looked at and stay as they are.
#include "chunks.cuh"
#include "fold.cuh"

namespace weft {

// Go: reduceScatterReadyArgs.
struct ReduceScatterReady {
	Lane lane;
	Operand in, out; // from the launch's first byte of a part on
	How how;
	Chunks chunks;
	u64 slot_bytes, in_step; // in_step: from a rank's part to the next one's
	Group group;
};

static_assert(sizeof(ReduceScatterReady) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

// Ready is a block's way through the chunks of parts.
struct Ready {
	const ReduceScatterReady &a;
	const Collective &c;
	Wait &wait;

	// each calls f(first vector, end) for each chunk of a rank's part, when it is ready. All threads of the block call
	// it.
	template <class F> __device__ __forceinline__ void each(u32 rank, F f) const {
		a.chunks.each([&](u32 chunk, u32 from, u32 end, bool ends) {
			u64 *word = a.chunks.word(rank, chunk);
			if (threadIdx.x == 0 && !wait.over)
				wait.over = !poll_word(a.group, a.lane.state, a.lane.op, c.o.epoch, word);
			if (__syncthreads_or(wait.over)) {
				wait.over = true;
				return false;
			}
			f(from, end);
			if (ends && last_to_arrive(a.chunks.blocks(rank, chunk), gridDim.x)) store_release_sys_u64(word, 0);
			return true;
		});
	}
};

namespace collective {

__global__ void __launch_bounds__(THREADS, 1)
	reduce_scatter_ready(const __grid_constant__ ReduceScatterReady a) {
	const Group &g = a.group;
	Collective c(a.lane);
	if (!c.begin(g, a.lane)) return;
	Live live(g, c.o.mask);
	Wait wait(g, a.lane.state, a.lane.op, c.o.epoch);
	Part out(a.out);
	u32 vectors = (u32)((a.chunks.bytes + 15) / 16);
	if (vectors == 0) say_begun(g, a.lane, c.o);
	await_begun(g, a.lane, c, wait, live.others);
	Ready ready = {a, c, wait};
	for (u32 k = 1; k < g.ranks; k++) {
		u32 to = (g.rank + k) % g.ranks;
		if (!holds(live.others, to)) continue;
		Part in(a.in, to * a.in_step, a.chunks.bytes);
		char *slots = g.window[to] + slot_of(c.turn, g.rank, a.slot_bytes, 0);
		ready.each(to, [&](u32 from, u32 end) {
			batches(from, end, c.at, c.step, [&](u32 base) {
				fly<BATCH>(
					base, c.step, end, [&](u32 i) { return in.load(i); },
					[&](u32 i, uint4 v) { send(slots + (u64)i * SLOT_BYTES, v); });
			});
		});
	}
	c.clear(a.lane);
	c.note(a.lane, g.ranks * a.slot_bytes, vectors != 0);
	Part own(a.in, g.rank * a.in_step, a.chunks.bytes);
	Arrivals arrivals(wait, a.lane, live, c.o.own + c.turn, a.slot_bytes);
	ready.each(g.rank, [&](u32 from, u32 end) {
		for (u32 i = from + c.at; i < end; i += c.step) {
			arrivals.look(i);
			Fold fold(a.how, live.count);
			arrivals.fold(fold, i, own.load(i));
			if (!wait.over) out.store(i, fold.result());
		}
	});
	let_next_start();
}

} // namespace collective
} // namespace weft
