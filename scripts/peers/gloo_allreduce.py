"""Times Gloo's all-reduce of float32 sums and verifies them, as allreduce.c does for MPI.

    gloo_allreduce.py RANKS SECONDS BYTES...
"""

import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARMUP, FEWEST, MOST = 5, 7, 100_000


def timed(tensor):
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(tensor)
    return time.perf_counter() - start


def calls(tensor, seconds):
    """How many calls fill the time for a size: rank 0 decides for all."""
    for _ in range(WARMUP):
        timed(tensor)
    start = time.perf_counter()
    for _ in range(WARMUP):
        timed(tensor)
    each = (time.perf_counter() - start) / WARMUP
    n = torch.tensor([min(max(int(seconds / each), FEWEST), MOST)])
    dist.broadcast(n, 0)
    return int(n)


def measure(rank, ranks, seconds, size):
    count = size // 4
    ramp = torch.arange(count) % 1000
    tensor = (rank + 1 + ramp).float()
    dist.all_reduce(tensor)
    verified = bool((tensor == (ranks * (ranks + 1) // 2 + ranks * ramp).float()).all())

    # Gloo reduces in place, and zeros stay what they are however often they are summed.
    tensor.zero_()
    times = torch.tensor([timed(tensor) for _ in range(calls(tensor, seconds))], dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)  # of every call, the slowest rank
    wrong = torch.tensor([0 if verified else 1])
    dist.all_reduce(wrong)
    return float(times.median()) * 1e6, int(wrong) == 0


def run(rank, ranks, store, seconds, sizes):
    torch.set_num_threads(1)
    cpus = sorted(os.sched_getaffinity(0))
    if ranks <= len(cpus):
        os.sched_setaffinity(0, {cpus[rank]})
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=ranks)
    for size in sizes:
        p50, verified = measure(rank, ranks, seconds, size)
        if rank == 0:
            row = dict(op="allreduce", engine="gloo", ranks=ranks, bytes=size, p50_us=round(p50, 3), verified=verified)
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks, seconds, sizes = int(sys.argv[1]), float(sys.argv[2]), [int(a) for a in sys.argv[3:]]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (ranks, os.path.join(folder, "store"), seconds, sizes), nprocs=ranks)
