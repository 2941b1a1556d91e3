// An all-reduce of floats: every rank sends its operand to every other as packets, and adds what comes in rank
// order. A word says itself that it is there, so nothing is signalled, and one trip is all that it takes.
#include "weft.cuh"
using namespace weft;

extern "C" __global__ void all_reduce(const __grid_constant__ AlgorithmArgs a) {
	Call c(a);
	if (!c.begun) return;
	const float *in = (const float *)a.in;
	Threads all = Threads::of_grid();
	u64 room = a.bytes * 2; // of a rank's packets
	for (Round r = c.others(); r.more();)
		c.to(r.next()).put_packets(c.turn() + c.rank() * room, in, a.bytes, c.epoch, all);
	for (u64 i = all.at; i < a.count; i += all.count) {
		float sum = 0;
		for (u32 r = 0; r < c.ranks(); r++) {
			float x = in[i];
			if (r != c.rank() && holds(c.peers, r))
				c.to(r).get_packets(c.wait, &x, c.turn() + r * room + i * PACKET_BYTES, 4, c.epoch, {0, 1});
			if (r == c.rank() || holds(c.peers, r)) sum = add(sum, x);
		}
		if (!c.wait.over) ((float *)a.out)[i] = sum;
	}
	c.end();
}
