"""A program that prints what a call costs over the call of C's that it makes.

The argument is how many rounds it measures, 30 without. Once torch.compile has been used in a process, every
function of Python's costs more there.
"""

from __future__ import annotations

import sys
import time

import weft


def best(calls, rounds, times=200):
    """The microseconds of calls, each in the round of theirs in which all together were fastest."""
    least = [float("inf")] * len(calls)
    for _ in range(rounds):
        took = []
        for call in calls:
            since = time.perf_counter()
            for _ in range(times):
                call()
            took.append((time.perf_counter() - since) / times * 1e6)
        least = min(least, took, key=sum)
    return least


def measure(comm, rounds):
    import torch

    h = weft.ep.Handle(comm, experts=4, topk=2, hidden=8, max_tokens=4)
    g = weft.Group(comm)
    x, topk, weights = torch.zeros(1, 8, dtype=torch.bfloat16), torch.tensor([[0, 1]]), torch.ones(1, 2)
    routing = h.prepare(topk, weights)
    rows, out = h.dispatch(x, routing=routing).rows.clone(), torch.empty_like(x)
    total = torch.empty_like(x)

    def dispatch():
        h.dispatch(x, routing=routing).release()

    lib = h._lib
    frame = h._dispatches.take()
    frame.arguments(routing._number, None, None, x, None)

    def raw_dispatch():
        lib.ep_dispatch(h._handle, 0, frame.address, frame.result_address, 0)
        lib.received_release(frame.result[1])

    home = h._combines.take()
    home.arguments(routing._number, rows, out, None)
    reduction = g._pool.take()
    to, source = reduction.out_array, reduction.array
    to.fill(total), source.fill(x)

    # C's half of an asynchronous call is another thread's work, which takes as long as it likes.
    class Without:
        def __getattr__(self, name):
            return getattr(lib, name)

    def nothing(*_):
        return 0

    started = weft.Group(comm)
    started._lib = Without()
    for name in ("group_start", "work_wait", "work_get", "work_release"):
        setattr(started._lib, name, nothing)

    for name, call, raw in (
        ("Handle.dispatch and release", dispatch, raw_dispatch),
        (
            "Handle.combine",
            lambda: h.combine(rows, routing, out=out),
            lambda: lib.ep_combine(h._handle, 0, home.address, 0),
        ),
        (
            "Group.all_reduce",
            lambda: g.all_reduce(x, out=total),
            lambda: lib.all_reduce(g._handle, 0, to.address, source.address, 0),
        ),
        ("Group.barrier", g.barrier, lambda: lib.barrier(g._handle, 0)),
        (
            "Group.all_reduce with async_op and Work.wait, but for C",
            lambda: started.all_reduce(x, out=total, async_op=True).wait(),
            nothing,
        ),
    ):
        whole, c, tensor = best((call, raw, lambda: torch.empty(4)), rounds)
        print(f"| `{name}` | {whole:.1f} | {c:.1f} | {(whole - c) / tensor:.1f} |", flush=True)
    started._lib = lib


if __name__ == "__main__":
    with weft.join() as comm:
        measure(comm, int(sys.argv[1]) if len(sys.argv) > 1 else 30)
