"""An all-reduce of floats by a kernel of one's own where they are few, and else by the library's::

torchrun --nproc-per-node 2 own_kernel.py
"""

import weft

NAME = "example/packets"
MOST = 64 << 10  # bytes of an operand; packets take twice the room, in two turns

SOURCE = """
#include "weft.cuh"
using namespace weft;

// Every rank sends its floats to every other as packets, and adds what comes in rank order.
extern "C" __global__ void all_reduce(const __grid_constant__ AlgorithmArgs a) {
	Call c(a);
	if (!c.begun) return;
	const float *in = (const float *)a.in;
	u64 room = a.bytes * 2; // of a rank's packets
	Threads all = Threads::of_grid();
	for (Round r = c.others(); r.more();)
		c.to(r.next()).put_packets(c.turn() + c.rank() * room, in, a.bytes, c.epoch, all);
	for (u64 i = all.at; i < a.count; i += all.count) {
		float own = in[i], sum = 0;
		for (u32 r = 0; r < c.ranks(); r++) {
			float x = own;
			u64 at = c.turn() + r * room + i * PACKET_BYTES;
			if (holds(c.peers, r)) c.to(r).get_packets(c.wait, &x, at, 4, c.epoch, {0, 1});
			if (r == c.rank() || holds(c.peers, r)) sum = add(sum, x);
		}
		if (!c.wait.over) ((float *)a.out)[i] = sum;
	}
	c.end();
}
"""


def own(ranks, **more):
    """The algorithm, for so many ranks."""
    sizes = {"blocks": 16, "threads": 256, "max_bytes": MOST, "scratch": 4 * MOST * ranks}
    kinds = {"dtypes": ["float32"], "ops": ["sum"]}
    what = {"name": NAME, "collective": "all_reduce", "source": SOURCE, "kernel": "all_reduce"}
    return weft.OwnAlgorithm(**{**what, **kinds, **sizes, **more})


def select(call):
    few = (call.collective, call.dtype, call.op) == ("all_reduce", "float32", "sum") and call.bytes <= MOST
    return NAME if few else None


if __name__ == "__main__":
    import torch

    with weft.join(engine="gpu") as comm, weft.Group(comm, algorithms=[own(comm.ranks)], select=select) as group:
        for n in (1000, 1 << 20):
            print(n, "floats:", group.all_reduce(torch.ones(n, device="cuda"))[0].item())
