"""Times other libraries between GPUs, and Gloo between processes.

    peers.py exchange BYTES...                 as many bytes from every rank to all others as a dispatch
    peers.py KIND DTYPE OP eager|graph BYTES...   a collective through NCCL
    peers.py KIND DTYPE OP host BYTES...       a collective through Gloo

Started under torchrun, a rank on each GPU, or on the host. BYTES are those that leave a rank, or the size of a
collective as nccl-tests has it. Rank 0 prints a line of JSON for each measurement, or one with the reason why
there is none. The environment turns multicast off.
"""

import json
import math
import os
import sys
import time

OPERATIONS, REPLAYS, WARMUPS = 50, 7, 2
SECONDS, FEWEST, MOST = 0.2, 7, 200  # of calls on the host


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


def eager(torch, dist, run, device, calls=MOST):
    """Microseconds of a call until the host sees its end: of the slowest rank, the median and the 99th percentile."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def timed():
        wait()
        dist.barrier()
        wait()
        start = time.perf_counter()
        run()
        wait()
        return time.perf_counter() - start

    warm = [timed() for _ in range(10)]
    if device == "cpu":  # as many as fit, the same on all ranks
        slowest = torch.tensor([sorted(warm)[len(warm) // 2]])
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        calls = min(max(int(SECONDS / slowest.item()), FEWEST), MOST)
    slowest = torch.tensor([1e6 * timed() for _ in range(calls)], device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    ordered = sorted(slowest.tolist())
    return ordered[calls // 2], ordered[calls * 99 // 100]


DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "int64": "int64",
}


def collective(torch, dist, rank, ranks, kind, dtype, op, size, device):
    """A call, what it is named, the bytes it is of, and a function that checks it.

    Rank r brings r + 1 everywhere to a reduction, and numbers that say sender and receiver to a move. Both
    libraries reduce in place through PyTorch; the timed calls of these reduce whatever is there.
    """
    kinds = getattr(torch, DTYPES[dtype])
    library = "NCCL" if device == "cuda" else "Gloo"
    width = torch.tensor([], dtype=kinds).element_size()
    parts = ranks if kind in ("allgather", "reducescatter", "alltoall") else 1
    count = max(1, size // (parts * width))

    def full(value, n=count):
        return torch.full((n,), value, dtype=kinds, device=device)

    def tag(sender, receiver):
        return (1 + sender * ranks + receiver) % 100

    reduction = getattr(dist.ReduceOp, {"prod": "PRODUCT"}.get(op, op.upper()))
    each = range(1, ranks + 1)
    result = {"sum": sum(each), "prod": math.prod(each), "min": 1, "max": ranks, "avg": (1 + ranks) / 2}[op]
    out, want = full(0), None
    if kind == "allreduce":
        given, want = full(rank + 1), full(result)

        def run():
            out.copy_(given)
            dist.all_reduce(out, op=reduction)

        timed, name = (lambda: dist.all_reduce(given, op=reduction)), library + " all_reduce"
    elif kind == "reduce":
        given, want = full(rank + 1), full(result) if rank == 0 else None

        def run():
            out.copy_(given)
            dist.reduce(out, 0, op=reduction)

        timed, name = (lambda: dist.reduce(given, 0, op=reduction)), library + " reduce"
    elif kind == "broadcast":
        out, want = full(7 if rank == 0 else 0), full(7)
        timed = run = lambda: dist.broadcast(out, 0)
        name = library + " broadcast"
    elif kind == "allgather":
        given, out = full(tag(rank, 0)), full(0, ranks * count)
        want = torch.cat([full(tag(r, 0)) for r in range(ranks)])
        timed = run = lambda: dist.all_gather_into_tensor(out, given)
        name = library + " all_gather_into_tensor"
    elif kind == "reducescatter":
        given, want = full(rank + 1, ranks * count), full(result)
        timed = run = lambda: dist.reduce_scatter_tensor(out, given, op=reduction)
        name = library + " reduce_scatter_tensor"
    elif kind == "alltoall":
        given, out = (torch.cat([full(tag(rank, r)) for r in range(ranks)]), full(0, ranks * count))
        want = torch.cat([full(tag(r, rank)) for r in range(ranks)])
        timed = run = lambda: dist.all_to_all_single(out, given)
        name = library + " all_to_all_single"
    else:
        raise ValueError(f"PyTorch's {kind} is not measured")

    def right():
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        wrong = torch.tensor([0 if want is None or torch.equal(out, want) else 1], device=device)
        dist.all_reduce(wrong)
        return wrong.item() == 0

    return timed, name, parts * count * width, right


def collectives(torch, dist, rank, ranks, kind, dtype, op, how, sizes):
    device = "cpu" if how == "host" else "cuda"
    for size in sizes:
        try:
            run, name, took, right = collective(torch, dist, rank, ranks, kind, dtype, op, size, device)
            verified = right()
            if how == "graph":
                p50 = p99 = measure(torch, dist, run)
            else:
                p50, p99 = eager(torch, dist, run, device)
        except Exception as e:  # another version may lack it
            say(contract=kind, skipped=f"{type(e).__name__}: {e}"[:300])
            return
        say(contract=name, op=kind, bytes=took, p50_us=p50, p99_us=p99, ranks=ranks, verified=verified)


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
    kind, *given = sys.argv[1:]
    if kind != "exchange" and given[2] == "host":
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    else:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    if kind != "exchange":
        collectives(torch, dist, rank, ranks, kind, *given[:3], [int(n) for n in given[3:]])
        peers = []
    for name, peer in peers:
        for wire in map(int, given):
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
