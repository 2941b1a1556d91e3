"""An all-gather of floats between two GPUs of a host by a kernel of one's own that puts through a port channel. The
bytes go through pinned memory of the host and by libfabric::

torchrun --nproc-per-node 2 port_kernel.py

A kernel's channel may lead to another host. Groups take kernels of one's own within a host alone.
"""

import weft

NAME = "example/port"
MOST = 64 << 10  # bytes of a rank's part

SOURCE = """
#include "weft.cuh"
#include "port.cuh"
using namespace weft;

// Each rank puts its floats into the other's memory, by turns into two slots from two slots: a signal of an operation
// says that those of the one before have been read.
extern "C" __global__ void all_gather(const __grid_constant__ AlgorithmArgs a) {
	Call c(a);
	if (!c.begun) return;
	const PortChannel &to = *(const PortChannel *)a.values[0];
	char *memory = (char *)a.values[1]; // of the host, as this GPU sees it
	u64 slot = a.values[2], dst = (c.epoch & 1) * slot, src = dst + 2 * slot;
	const u32 *in = (const u32 *)a.in;
	for (u64 i = threadIdx.x; i < a.count; i += blockDim.x) {
		store_relaxed_sys4(memory + src + 4 * i, in[i]);
		((u32 *)a.out)[c.rank() * a.count + i] = in[i];
	}
	__syncthreads();
	if (threadIdx.x == 0 && to.put_with_signal(c.wait, dst, src, a.bytes)) to.wait(c.wait);
	if (!__syncthreads_or(c.wait.over))
		for (u64 i = threadIdx.x; i < a.count; i += blockDim.x)
			((u32 *)a.out)[to.peer * a.count + i] = load_relaxed_sys4(memory + dst + 4 * i);
	c.end();
}
"""


def own(channel, memory, on_gpu):
    """The algorithm over a channel, whose memory has room for 4 slots. ``on_gpu`` copies bytes to the GPU."""

    def prepare(context):
        context.values = [on_gpu(channel.device_handle().raw), memory, MOST]

    sizes = {"blocks": 1, "threads": 256, "max_bytes": MOST, "ranks": 2}
    what = {"name": NAME, "collective": "all_gather", "source": SOURCE, "kernel": "all_gather"}
    return weft.OwnAlgorithm(**what, **sizes, dtypes=["float32"], prepare=prepare)


if __name__ == "__main__":
    import torch

    def on_gpu(raw):
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8).cuda()

    with weft.join(engine="gpu") as comm, weft.port.Service(comm) as service:
        rows = torch.zeros(4 * MOST, dtype=torch.uint8, pin_memory=True)
        channel = service.connect(1 - comm.rank, service.register(rows), kind="fabric")
        with weft.Group(comm, algorithms=[own(channel, rows.data_ptr(), on_gpu)]) as group:
            mine = torch.full((1000,), float(comm.rank), device="cuda")
            print(group.all_gather(mine, algorithm=NAME)[:, 0].tolist())
