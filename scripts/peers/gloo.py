"""Times a collective of Gloo on float32 and verifies it, as mpi.c does for MPI.

gloo.py OP RANKS SECONDS BYTES...

Under weft run it is one of the ranks, which meet at rank 0's address, one port above WEFT_ADDRESS's.
"""

import json
import os
import socket
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARMUP, FEWEST, MOST = 5, 7, 100_000


def timed(call):
    dist.barrier()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def calls(call, seconds):
    """How many calls fill the time for a size: rank 0 decides for all."""
    for _ in range(WARMUP):
        timed(call)
    start = time.perf_counter()
    for _ in range(WARMUP):
        timed(call)
    each = (time.perf_counter() - start) / WARMUP
    n = torch.tensor([min(max(int(seconds / each), FEWEST), MOST)])
    dist.broadcast(n, 0)
    return int(n)


def moved(sender, receiver, count):
    """What a rank sends a rank."""
    return ((31 * sender + 17 * receiver + torch.arange(count)) % 4093).float()


def exchange(op, rank, ranks, size):
    """A call, the bytes that it is of, and its output, with what that must be: None if there is none."""
    parts = ranks if op in ("reducescatter", "allgather", "alltoall") else 1
    count = max(1, size // 4 // parts)
    ramp, sums = torch.arange(parts * count) % 1000, ranks * (ranks + 1) // 2
    bytes = 4 * parts * count
    out = torch.zeros(count)
    if op in ("allreduce", "reduce"):  # Gloo reduces in place
        out = (rank + 1 + ramp).float()
        want = (sums + ranks * ramp).float()
        if op == "allreduce":
            return lambda: dist.all_reduce(out), bytes, out, want
        return lambda: dist.reduce(out, 0), bytes, out, want if rank == 0 else None
    if op == "reducescatter":
        given = (rank + 1 + ramp).float()
        want = (sums + ranks * ramp[rank * count :][:count]).float()
        return lambda: dist.reduce_scatter_tensor(out, given), bytes, out, want
    if op == "broadcast":
        if rank == 0:
            out = moved(0, 0, count)
        return lambda: dist.broadcast(out, 0), bytes, out, moved(0, 0, count)
    if op == "sendrecv":
        given, following, previous = (moved(rank, 0, count), (rank + 1) % ranks, (rank - 1) % ranks)

        def both():
            works = [dist.isend(given, following), dist.irecv(out, previous)]
            for work in works:
                work.wait()

        return both, bytes, out, moved(previous, 0, count)
    out = torch.zeros(parts * count)
    if op == "allgather":
        given = moved(rank, 0, count)
        want = torch.cat([moved(r, 0, count) for r in range(ranks)])
        return lambda: dist.all_gather_into_tensor(out, given), bytes, out, want
    given = torch.cat([moved(rank, r, count) for r in range(ranks)])
    want = torch.cat([moved(r, rank, count) for r in range(ranks)])
    return lambda: dist.all_to_all_single(out, given), bytes, out, want


def measure(op, rank, ranks, seconds, size):
    call, bytes, out, want = exchange(op, rank, ranks, size)
    call()
    wrong = torch.tensor([0 if want is None or torch.equal(out, want) else 1])
    if op in ("allreduce", "reduce"):
        out.zero_()  # zeros stay what they are however often they are summed
    times = torch.tensor([timed(call) for _ in range(calls(call, seconds))], dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)  # of every call, the slowest rank
    dist.all_reduce(wrong)
    return bytes, float(times.median()) * 1e6, int(wrong) == 0


def run(rank, op, ranks, meeting, seconds, sizes):
    torch.set_num_threads(1)
    cpus = sorted(os.sched_getaffinity(0))
    if ranks <= len(cpus):
        os.sched_setaffinity(0, {cpus[rank]})
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    for size in sizes:
        bytes, p50, verified = measure(op, rank, ranks, seconds, size)
        if rank == 0:
            row = dict(op=op, engine="gloo", ranks=ranks, bytes=bytes, p50_us=round(p50, 3), verified=verified)
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    op, ranks, seconds, sizes = (sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), [int(a) for a in sys.argv[4:]])
    if "WEFT_RANK" in os.environ:
        os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name != "lo")
        host, port = os.environ["WEFT_ADDRESS"].rsplit(":", 1)
        run(int(os.environ["WEFT_RANK"]), op, ranks, f"tcp://{host}:{int(port) + 1}", seconds, sizes)
    else:
        with tempfile.TemporaryDirectory() as folder:
            meeting = "file://" + os.path.join(folder, "store")
            mp.spawn(run, (op, ranks, meeting, seconds, sizes), nprocs=ranks)
