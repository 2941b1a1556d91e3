// All-reduce, reduce-scatter and reduce by multicast, relaxed: the switch adds up the inputs of all ranks, in an order
// of its own, and rounds once. Compiled for Hopper and later, and tested on emulated GPUs: it was never run on a GPU.
//
// A rank asks for the sum of a part. In one shot that is all of the operand, which each rank stores in its own
// output, wherever it lies: nothing is stored at a peer, so nothing is fenced. In two shots it is a share, which
// goes to all outputs by one store: a link carries (1 + 1/n) S bytes each way, not 2(n-1)/n S.
//
// In two shots a vector is asked for by one thread of one rank, before that thread stores it. So an all-reduce in two
// shots may be in place, and one in one shot may not.
//
// The bits are not those of other algorithms. In one shot each rank asks the switch itself, and nothing says that it
// adds in the same order for all of them.
#include "direct_reduce.cuh"
#include "multicast.cuh"

namespace weft {

// Go: multicastReduceArgs.
struct MulticastReduce {
	char *all_in, *all_out; // the multicast addresses of inputs and outputs; no all_out: direct.out is the only one
	u64 whole;				// in one shot: a rank reduces all
	DirectReduce direct;
};

static_assert(sizeof(MulticastReduce) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ uint4 multimem_sum(const char *p) {
#if WEFT_TYPE == TYPE_BF16
	return multimem_sum_bf16(p);
#elif WEFT_TYPE == TYPE_F16
	return multimem_sum_f16(p);
#else
	return multimem_sum_f32(p);
#endif
}

#endif

namespace collective {

__global__ void __launch_bounds__(THREADS, 1) multicast_reduce(const __grid_constant__ MulticastReduce m) {
#if __CUDA_ARCH__ >= 900
	const DirectReduce &a = m.direct;
	const Group &g = a.group;
	Collective c(a.lane);
	if (!c.begin(g, a.lane)) return;
	Live live(g, c.o.mask);
	Meeting meeting(g, a.lane, live, a.direct, c.o.epoch);
	if (!meeting.begin(c)) return;
	Owned of(a, live);
	if (m.whole != 0) of.from = 0, of.bytes = a.bytes;
	const char *from = m.all_in + g.rank * a.part_step + of.from;
	char *to = m.all_out + of.from;
	Body body(from, m.all_out != nullptr ? to : from, of.bytes);
	from += body.head;
	to += body.head;
	auto sum = [&](u32 i) { return multimem_sum(from + (u64)i * 16); };
	if (m.all_out != nullptr) {
		fly_all(c, body.bytes, sum, [&](u32 i, uint4 v) { multimem_store16(to + (u64)i * 16, v); });
	} else {
		Part out(a.out + of.from + body.head, body.bytes);
		fly_all(c, body.bytes, sum, [&](u32 i, uint4 v) { out.store(i, v); });
	}
	u64 moved = body.head + body.bytes;
	Owned head{of}, tail{of};
	head.bytes = body.head;
	tail.from += moved, tail.bytes -= moved;
	reduce_by_threads(a, c, live, head, ELEMENT_BYTES);
	reduce_by_threads(a, c, live, tail, moved != 0 ? ELEMENT_BYTES : a.unit);
	meeting.end(m.all_out != nullptr);
	let_next_start();
#endif
}

} // namespace collective
} // namespace weft
