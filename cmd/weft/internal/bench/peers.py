"""Times other libraries that send as many bytes from every rank to all others as a dispatch or a combine.

Started under torchrun, a rank on each GPU, with the bytes that leave a rank as arguments. Rank 0 prints a
line of JSON for each measurement, or one with the reason why there is none. The environment turns multicast
off.
"""

import json
import os
import sys

OPERATIONS, REPLAYS, WARMUPS = 50, 7, 2


def say(**line):
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps(line), flush=True)


def measure(torch, dist, run):
    """Microseconds of an operation in a graph: the slowest rank of each replay, the median over replays."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(OPERATIONS):
            run()
    times = []
    for i in range(WARMUPS + REPLAYS):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        slowest = torch.tensor([start.elapsed_time(end)], device="cuda")
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if i >= WARMUPS:
            times.append(1e3 * slowest.item() / OPERATIONS)
    return sorted(times)[len(times) // 2]


def run(torch, rank, to, ranks, count):
    """The count bytes that a rank sends to another one, which depend on both."""
    return torch.full((count,), (1 + rank * ranks + to) % 251, dtype=torch.uint8, device="cuda")


def contents(torch, rank, ranks, count):
    """What a rank sends: a run for each receiver."""
    return torch.cat([run(torch, rank, to, ranks, count) for to in range(ranks)])


def arrived(torch, rank, ranks, count, got):
    want = torch.cat([run(torch, of, rank, ranks, count) for of in range(ranks)])
    return torch.equal(got, want)


def nccl(torch, dist, rank, ranks, count):
    sent = contents(torch, rank, ranks, count)
    got = torch.zeros_like(sent)
    took = measure(torch, dist, lambda: dist.all_to_all_single(got, sent))
    return took, arrived(torch, rank, ranks, count, got)


def symmetric(torch, dist, rank, ranks, count):
    import torch.distributed._symmetric_memory as symm

    sent = contents(torch, rank, ranks, count)
    got = symm.empty(ranks * count, dtype=torch.uint8, device=torch.device("cuda", rank))
    handle = symm.rendezvous(got, dist.group.WORLD)
    got.zero_()
    torch.cuda.synchronize()
    dist.barrier()
    slots = [handle.get_buffer(to, (count,), torch.uint8, storage_offset=rank * count) for to in range(ranks)]

    def run():
        for step in range(ranks):
            to = (rank + step) % ranks
            slots[to].copy_(sent[to * count : (to + 1) * count])
        handle.barrier()

    took = measure(torch, dist, run)
    return took, arrived(torch, rank, ranks, count, got)


def main():
    peers = [("NCCL all_to_all_single", nccl), ("PyTorch symmetric memory: copies and a barrier", symmetric)]
    try:
        import torch
        import torch.distributed as dist
    except ImportError as e:
        for name, _ in peers:
            say(contract=name, skipped=f"{e}")
        return
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    for name, peer in peers:
        for wire in map(int, sys.argv[1:]):
            count = max(16, wire // max(ranks - 1, 1) // 16 * 16)  # to each receiver, itself included
            try:
                took, right = peer(torch, dist, rank, ranks, count)
            except Exception as e:  # another version may lack it
                say(contract=name, skipped=f"{type(e).__name__}: {e}"[:300])
                break
            sent = count * (ranks - 1)
            say(contract=name, op="all-to-all", wire_bytes=sent, p50_us=took, ranks=ranks, verified=right)
    dist.barrier()
    dist.destroy_process_group()


main()
