// All-gather and broadcast by multicast: a rank stores its data once, at an address that is that of all outputs.
// Compiled for Hopper and later, and tested on emulated GPUs: it was never run on a GPU.
//
// A link carries S bytes out of a rank, not (n-1) S, and one instruction stores at all ranks. So a broadcast takes
// the time of one copy. An all-gather does not move less: what a link brings is (n-1) S anyway.
#include "multicast.cuh"

namespace weft {

// Go: multicastMoveArgs.
struct MulticastMove {
	Lane lane;
	Direct direct;
	char *in;
	u64 bytes;	// that a rank sends
	u64 out_at; // where they belong in the outputs
	char *all;	// the multicast address of the outputs
	int sender; // the only one, or -1
	u32 zero;
	char *outs[MOST_RANKS]; // by rank: its output
	Group group;
};

static_assert(sizeof(MulticastMove) == WEFT_PARAMETER_BYTES + WIDER, "not the size of the host's struct");

// move_rest stores some bytes at every rank by plain stores: a thread a byte and rank.
__device__ __forceinline__ void move_rest(const MulticastMove &a, const Collective &c, u64 from, u64 bytes) {
	for (u64 k = c.at; k < bytes * a.group.ranks; k += c.step) {
		u64 at = from + k / a.group.ranks;
		char *to = a.outs[k % a.group.ranks] + a.out_at + at;
		if (to != a.in + at) *to = a.in[at];
	}
}

namespace collective {

__global__ void __launch_bounds__(THREADS, 1) multicast_move(const __grid_constant__ MulticastMove a) {
#if __CUDA_ARCH__ >= 900
	const Group &g = a.group;
	Collective c(a.lane);
	if (!c.begin(g, a.lane)) return;
	Live live(g, c.o.mask);
	Meeting meeting(g, a.lane, live, a.direct, c.o.epoch);
	if (!meeting.begin(c)) return;
	if (a.sender < 0 || (u32)a.sender == g.rank) {
		char *to = a.all + a.out_at;
		Body body(to, to, a.bytes);
		Part in(a.in + body.head, body.bytes);
		to += body.head;
		fly_all(
			c, body.bytes, [&](u32 i) { return in.load(i); },
			[&](u32 i, uint4 v) { multimem_store16(to + (u64)i * 16, v); });
		u64 moved = body.head + body.bytes;
		move_rest(a, c, 0, body.head);
		move_rest(a, c, moved, a.bytes - moved);
	}
	meeting.end();
	let_next_start();
#endif
}

} // namespace collective
} // namespace weft
