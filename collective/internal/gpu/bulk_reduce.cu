// Reductions of inputs that lie in windows, by bulk copies, Hopper and later: an all-reduce (pull-push), a
// reduce-scatter and a reduce (pull). Few SMs fill the links.
//
// A block has three stages in shared memory, each with a chunk of every row. While threads reduce one, the rows
// of the next two are on their way. The result takes the place of rank 0's row, and goes from there to where it
// belongs. A warp's lanes ask for the rows of a rank each, and store at a rank each.
//
// Bulk copies move multiples of 16 bytes between addresses that are such. What is before the first of them,
// and behind the last, goes by threads; if input and output differ modulo 16, everything does.
#include "direct_reduce.cuh"

namespace weft {

static_assert(sizeof(DirectReduce) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

#if __CUDA_ARCH__ >= 900

constexpr u32 STAGES = 3;

// Rows are where bulk copies find rows, and where they store results: of the ranks of a lane of the first warp.
struct Rows {
	const DirectReduce &a;
	const Live &live;
	u64 row, from; // where the owned bytes begin in an input, and in an output
	u32 ranks, lane;

	// each calls f(rank) for this lane's ranks; every rank begins with itself.
	template <class F> __device__ __forceinline__ void each(F f) const {
		for (u32 k = lane; k < ranks; k += 32) {
			u32 r = a.group.rank + k;
			r = r >= ranks ? r - ranks : r;
			if (holds(live.set, r)) f(r);
		}
	}

	__device__ __forceinline__ void fetch(char *stage, u64 *arrived, u64 at, u32 bytes) const {
		if (lane == 0) barrier_expect(arrived, live.count * bytes);
		__syncwarp();
		each([&](u32 r) { bulk_load(stage + r * a.chunk, a.ins[r] + row + at, bytes, arrived); });
	}

	__device__ __forceinline__ void store(const char *stage, u64 at, u32 bytes) const {
		if (a.out == nullptr) {
			each([&](u32 r) { bulk_store(a.outs[r] + from + at, stage, bytes); });
		} else if (lane == 0) {
			bulk_store(a.out + from + at, stage, bytes);
		}
		bulk_commit();
	}
};

// reduce_by_copies reduces whole vectors between addresses that are multiples of 16.
__device__ __forceinline__ void reduce_by_copies(const DirectReduce &a, const Live &live, const Owned &of) {
	extern __shared__ __align__(128) char stages[];
	__shared__ u64 arrived[STAGES];
	u32 warp = threadIdx.x / 32, ranks = RANKS != 0 ? RANKS : a.group.ranks, stage_bytes = ranks * a.chunk;
	Rows rows{a, live, a.group.rank * a.part_step + of.from, of.from, ranks, threadIdx.x & 31};
	auto bytes = [&](u64 at) { return (u32)min((u64)a.chunk, of.bytes - at); };
	u64 step = (u64)gridDim.x * a.chunk, first = (u64)blockIdx.x * a.chunk;
	auto fetch = [&](u32 s, u64 at) {
		if (at < of.bytes) rows.fetch(stages + s * stage_bytes, &arrived[s], at, bytes(at));
	};
	if (threadIdx.x < STAGES) {
		barrier_init(&arrived[threadIdx.x], 1);
		fence_barrier_init();
	}
	fence_async(); // other ranks stored the rows
	__syncthreads();
	if (warp == 0) {
		for (u32 s = 0; s < STAGES; s++) fetch(s, first + s * step);
	}
	u64 tiles = shared_at(stages);
	u32 s = 0, parity = 0;
	for (u64 at = first; at < of.bytes; at += step) {
		while (!barrier_awaited(&arrived[s], parity)) {
		}
		u64 tile = tiles + s * stage_bytes;
		for (u32 v = threadIdx.x * 16; v < bytes(at); v += blockDim.x * 16) {
			uint4 sum = fold_rows(a.how, live, ranks, [&](u32 r) { return load_shared16(tile + r * a.chunk + v); });
			store_shared16(tile + v, sum);
		}
		fence_async_shared();
		__syncthreads();
		if (warp == 0) {
			rows.store(stages + s * stage_bytes, at, bytes(at));
			// The chunk before has left its stage, where the one after the next two comes.
			bulk_wait_read_before();
			__syncwarp();
			if (at != first) fetch(s == 0 ? STAGES - 1 : s - 1, at + (STAGES - 1) * step);
		}
		if (++s == STAGES) s = 0, parity ^= 1;
	}
	if (warp == 0) {
		bulk_wait();
		fence_async(); // the stores are seen before what says that they are done
	}
}

#endif

namespace collective {

__global__ void __launch_bounds__(BULK_THREADS, 2) bulk_reduce(const __grid_constant__ DirectReduce a) {
	const Group &g = a.group;
	Collective c(a.lane);
	if (!c.begin(g, a.lane)) return;
	Live live(g, c.o.mask);
	Meeting meeting(g, a.lane, live, a.direct, c.o.epoch);
	if (!meeting.begin(c)) return;
	Owned of(a, live);
#if __CUDA_ARCH__ >= 900
	const char *from = a.ins[g.rank] + g.rank * a.part_step + of.from;
	const char *to = (a.out != nullptr ? a.out : a.outs[g.rank]) + of.from;
	Body body(from, to, of.bytes);
	if (body.bytes != 0) {
		Owned part = of;
		part.bytes = body.head;
		reduce_by_threads(a, c, live, part, ELEMENT_BYTES);
		part.from = of.from + body.head + body.bytes, part.bytes = of.bytes - body.head - body.bytes;
		reduce_by_threads(a, c, live, part, ELEMENT_BYTES);
		part.from = of.from + body.head, part.bytes = body.bytes;
		reduce_by_copies(a, live, part);
	} else {
		reduce_by_threads(a, c, live, of, a.unit);
	}
#else
	reduce_by_threads(a, c, live, of, a.unit);
#endif
	meeting.end(a.part_step == 0 && a.root < 0);
	let_next_start();
}

} // namespace collective
} // namespace weft
