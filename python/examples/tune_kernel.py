"""Finds the fastest all-reduce of a machine among the library's and one's own, for each size: every algorithm runs with
every number of blocks and threads, what it gives is checked, and the best is saved::

torchrun --nproc-per-node 2 tune_kernel.py best.json
"""

import itertools
import json
import sys
import time

import own_kernel
import torch

import weft

LIBRARY = ("all-reduce/one-shot", "all-reduce/two-shot")


def forms(blocks, threads):
    """All ways to launch: the library's kernels have their own number of threads."""
    for name, b in itertools.product(LIBRARY, blocks):
        yield {"algorithm": name, "blocks": b}
    for b, t in itertools.product(blocks, threads):
        yield {"algorithm": own_kernel.NAME, "blocks": b, "threads": t}


def seconds(comm, group, x, times, form):
    """How many sums are wrong, and what a call takes on this rank."""
    numbers = torch.arange(len(x), device=x.device) % 7
    x.copy_(numbers + comm.rank)
    want = numbers * comm.ranks + sum(range(comm.ranks))
    out = group.all_reduce(x, **form)
    comm.wait()
    wrong = int((out != want).sum())
    start = time.perf_counter()
    for _ in range(times):
        group.all_reduce(x, out=out, **form)
    comm.wait()
    return wrong, (time.perf_counter() - start) / times


def tune(comm, path, *, device, sizes, blocks=(1, 2, 4, 8, 16), threads=(128, 256), times=100):
    """Writes for each size the best way to launch, on rank 0."""
    table = []
    with weft.Group(comm, algorithms=[own_kernel.own(comm.ranks)]) as group:
        for size in sizes:
            x, best = torch.zeros(size // 4, device=device), None
            for form in forms(blocks, threads):
                if form["algorithm"] == own_kernel.NAME and size > own_kernel.MOST:
                    continue
                wrong, took = seconds(comm, group, x, times, form)
                wrong, took = group.all_reduce(torch.tensor([wrong, took], device=device), "max").tolist()
                comm.wait()
                if wrong:
                    raise SystemExit(f"{form} gives {wrong:g} wrong sums of {size} bytes")
                if best is None or took < best["seconds"]:
                    best = {"bytes": size, "seconds": took, **form}
            table.append(best)
        if comm.rank == 0:
            with open(path, "w") as f:
                json.dump(table, f, indent=1)
        group.barrier()  # the others may read it now
        comm.wait()
    return table


def row_of(table, size):
    """What the table says of the next larger size, or of the largest."""
    return next((row for row in table if row["bytes"] >= size), table[-1])


def selector(table):
    """Has a group choose by the table."""

    def select(call):
        name = row_of(table, call.bytes)["algorithm"]
        return name if call.collective == "all_reduce" and name != own_kernel.NAME else own_kernel.select(call)

    return select


def all_reduce(group, table, x):
    """Adds as the table says, with its numbers of blocks and threads."""
    row = row_of(table, x.nbytes)
    return group.all_reduce(x, blocks=row["blocks"], threads=row.get("threads", 0))


if __name__ == "__main__":
    with weft.join(engine="gpu") as comm:
        table = tune(comm, sys.argv[1], device="cuda", sizes=[1 << n for n in range(10, 24)])
        with weft.Group(comm, algorithms=[own_kernel.own(comm.ranks)], select=selector(table)) as group:
            print(all_reduce(group, table, torch.ones(1000, device="cuda"))[0].item())
