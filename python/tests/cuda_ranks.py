"""What ranks do on real GPUs, all checks in one start of processes: test_cuda.py starts them, and tells
what each check has found.

A rank is a process; ranks are spread over the GPUs that there are, and share them if they are more.
They know each other by a store, through which every check joins anew, under its name, and after every
check they meet, so that one that fails costs the next ones nothing but what it has done to the GPU.

Where HOSTS names a host for each rank, as WEFT_HOSTID does, the checks are those between hosts.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import gc
import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import socket
import stat
import struct
import sys
import tempfile
import threading
import time
import traceback

import deep_ep_utils
import internode
import intranode
import original
import pytest
import torch
import torch.distributed as dist

import weft
import weft.torch
from weft import ep

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GPUS = torch.cuda.device_count()
GPU = RANK % GPUS
DEVICE = torch.device("cuda", GPU)
# The number of each rank's host.
NAMES = os.environ.get("HOSTS", RANKS * "a")
HOSTS = tuple(sorted(set(NAMES), key=NAMES.index).index(name) for name in NAMES)
LAYOUTS = ("expert_major", "expert_packed", "rank_major", "token_major")


class NotHereError(Exception):
    """A check that cannot be made here, and why."""


class Meetings:
    """Where ranks meet within a check: by its name and a number, so that they stay together though one has failed."""

    def __init__(self):
        self.store = dist.TCPStore(
            "127.0.0.1", int(os.environ["MASTER_PORT"]), RANKS, RANK == 0, datetime.timedelta(seconds=60)
        )
        self.begin("")

    def begin(self, check):
        self.check, self.times = check, 0

    def name(self):
        self.times += 1
        return f"{self.check} {self.times}"

    def fail(self):
        self.store.add(f"{self.check} failed", 1)

    def meet(self, name=None, seconds=60):
        name = name or self.name()
        self.store.add(name, 1)
        end = time.monotonic() + seconds
        while self.store.add(name, 0) < RANKS:
            assert not name.startswith(self.check) or not self.store.add(f"{self.check} failed", 0), (
                "another rank has failed"
            )
            assert time.monotonic() < end, f"another rank did not come to {name}"
            time.sleep(0.001)

    def leave(self, ranks):
        """Rank 0, which has the store, is the last of so many ranks to go."""
        self.store.add("left", 1)
        while RANK == 0 and self.store.add("left", 0) < ranks:
            time.sleep(0.001)


meetings = None


def join(**options):
    return weft.Communicator.from_store(
        meetings.store, RANK, RANKS, name=meetings.name(), engine="gpu", gpu=GPU, **{"deadline": 30, **options}
    )


def join_on_host():
    return weft.Communicator.from_store(meetings.store, RANK, RANKS, name=meetings.name(), deadline=30)


def meet():
    meetings.meet()


def batch(seed=0, *, tokens=9, experts=None, topk=3, hidden=256, dtype=torch.float32, rank=RANK):
    """A rank's rows, selections and weights. Numbers are small and whole, or halves of such, so that sums are exact."""
    g = torch.Generator().manual_seed(1000 * seed + rank)
    experts = experts or 4 * RANKS
    tokens = int(torch.randint(2, tokens + 1, (), generator=g))
    x = torch.randint(-4, 5, (tokens, hidden), generator=g).to(dtype)
    ids = torch.stack([torch.randperm(experts, generator=g)[:topk] for _ in range(tokens)])
    ids[torch.rand(ids.shape, generator=g) < 0.2] = -1
    return x, ids, torch.randint(1, 5, ids.shape, generator=g) / 2.0


def handle(c, **choices):
    return ep.Handle(
        c, **{"experts": 4 * RANKS, "topk": 3, "hidden": 256, "max_tokens": 9, "payload": "fp32", **choices}
    )


def host(t):
    """A tensor's bits on the host."""
    return t.detach().cpu().contiguous()


def same(got, want):
    """Whether results are the host engine's, bit by bit."""
    assert got.keys() == want.keys()
    for name, t in want.items():
        mine = got[name]
        assert (mine.dtype, mine.shape) == (t.dtype, t.shape), name
        a, b = (v.reshape(-1).view(torch.uint8) for v in (mine, t))
        assert torch.equal(a, b), (
            f"{name}: {int((a != b).sum())} bytes of {a.numel()} differ, the first at {int((a != b).nonzero()[0])}"
        )


def on_both(check, **options):
    """Makes a check's exchanges on GPUs, and the same on the host."""
    with join(**options) as c:
        got = check(c, DEVICE)
        c.wait()
    with join_on_host() as c:
        same(got, check(c, torch.device("cpu")))


# Exchanges.


def exchange(c, device, halves=False, seed=0, dtype=torch.float32, **choices):
    x, ids, weights = (t.to(device) for t in batch(seed, dtype=dtype))
    found = {}
    with handle(c, **choices) as h, h.prepare(ids, weights) as routing:
        held = routing.source_ranks >= 0
        for name in ("expert_counts", "expert_offsets", "source_counts", "row_demand"):
            found[name] = host(getattr(routing, name))
        for name in (
            ("source_tokens", "row_experts", "row_selection_weights")
            if h.spec.one_row_per_rank
            else ("source_tokens", "row_weights")
        ):
            found[name] = host(getattr(routing, name)[held])
        for i, by in enumerate((routing, None, routing)):
            selected = {"routing": by} if by else {"topk": ids, "weights": weights}
            got = h.send_dispatch(x, **selected).receive() if halves else h.dispatch(x, **selected)
            assert got.rows.device == device
            found[f"rows {i}"] = host(got.rows.reshape(-1, 256)[held])
            if got.scales is not None:
                found[f"scales {i}"] = host(got.scales.reshape(held.numel(), -1)[held])
                continue
            rows = got.rows.mul_(RANK + 2)
            bias = torch.full_like(x, i)
            out = (
                h.send_combine(rows, got, bias=(bias, bias)).wait()
                if halves
                else h.combine(rows, got, bias=(bias, bias))
            )
            assert out.device == device
            found[f"out {i}"] = host(out)
            got.release()
    return found


def exchanges():
    for layout in LAYOUTS:
        for halves in (False, True):
            on_both(lambda c, d, layout=layout, halves=halves: exchange(c, d, halves, layout=layout))


def exchanges_of_halves():
    for layout in ("expert_major", "token_major"):
        for dtype, payload in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
            on_both(
                lambda c, d, layout=layout, dtype=dtype, payload=payload: exchange(
                    c, d, seed=1, dtype=dtype, payload=payload, layout=layout
                )
            )


def exchanges_of_fp8():
    for layout in ("expert_major", "token_major"):
        on_both(
            lambda c, d, layout=layout: exchange(
                c, d, seed=2, dtype=torch.bfloat16, payload="fp8", quantize="bfloat16", layout=layout
            )
        )


def device_counts():
    def check(c, device):
        x, ids, weights = (t.to(device) for t in batch(3))
        with handle(c, layout="token_major", counts="device") as h:
            got = h.dispatch(x, ids, weights)
            assert got.rows.shape == (h.capacity, 256)
            n = got.routing.received
            rows, buffer = got.rows, h.combine_buffer(kind="torch")
            if buffer is not None:
                rows = buffer.copy_(rows)
            return {
                "rows": host(got.rows[:n]),
                "out": host(h.combine(rows, got)),
                "demand": host(got.routing.row_demand),
            }

    on_both(check)


def gradients():
    def check(c, device, layout):
        x, ids, weights = (t.to(device) for t in batch(4))
        with handle(c, layout=layout) as h:
            got = h.dispatch(x, ids, weights)
            held = got.routing.source_ranks >= 0
            y = torch.where(held.view(*got.rows.shape[:-1], 1), got.rows * 2, 0)
            weighted = h.spec.weighting == ep.Weighting.weighted
            grad_rows, grad_weights = h.combine_backward(
                x - 1, got, y if weighted else None, grad_rows=torch.zeros_like(y)
            )
            per_row = torch.arange(
                held.numel() * (3 if h.spec.one_row_per_rank else 1), dtype=torch.float32, device=device
            )
            grad_x, back = h.dispatch_backward(
                grad_rows, got, per_row.view(-1, 3) if h.spec.one_row_per_rank else per_row
            )
            plain, none = h.dispatch_backward(grad_rows, got)
            assert none is None
            found = {
                "rows": host(grad_rows.reshape(-1, 256)[held]),
                "x": host(grad_x),
                "back": host(torch.where(ids >= 0, back, 0)),
                "plain": host(plain),
            }
            return found | ({"weights": host(torch.where(ids >= 0, grad_weights, 0))} if weighted else {})

    for layout in ("expert_major", "expert_packed", "token_major"):
        on_both(lambda c, d, layout=layout: check(c, d, layout))


# Training.


def layer(h, weighted):
    def run(x, ids, weights, factor):
        rows, row_weights, routing = weft.torch.dispatch(h, x, ids, weights)
        rows = rows * factor
        if weighted:
            return weft.torch.combine(h, rows, routing, weights)
        return weft.torch.combine(h, rows * row_weights.sum(1, keepdim=True), routing)

    return run


def trained(c, device, layout, compiled=None):
    x, ids, weights = (t.to(device) for t in batch(5))
    found = {}
    with handle(c, layout=layout, live=4) as h:
        run = layer(h, layout == "expert_major")
        if compiled:
            torch._dynamo.reset()
            run = torch.compile(run, fullgraph=True, backend=compiled)
        for i in range(3):
            mine, w, factor = (
                x.clone().requires_grad_(),
                weights.clone().requires_grad_(),
                torch.full((), 2.0, device=device, requires_grad=True),
            )
            out = run(mine, ids, w, factor)
            out.backward(torch.ones_like(out) * (i + 1))
            found |= {
                f"out {i}": host(out),
                f"x {i}": host(mine.grad),
                f"weights {i}": host(w.grad),
                f"factor {i}": host(factor.grad),
            }
    return found


def autograd():
    """The backward pass runs in a thread of PyTorch's, on the stream of the forward pass."""
    for layout in ("expert_major", "token_major"):
        with join() as c:
            side = torch.cuda.Stream(DEVICE)
            side.wait_stream(torch.cuda.current_stream(DEVICE))
            got = trained(c, DEVICE, layout)
            with torch.cuda.stream(side):
                other = trained(c, DEVICE, layout)
            c.wait(side)
        with join_on_host() as c:
            want = trained(c, torch.device("cpu"), layout)
        for results in (got, other):
            # A sum over all rows, whose order is PyTorch's.
            for i in range(3):
                torch.testing.assert_close(results.pop(f"factor {i}"), want[f"factor {i}"], rtol=1e-5, atol=1e-3)
            same(results, {k: v for k, v in want.items() if not k.startswith("factor")})


def compiled_by(backend):
    for layout in ("expert_major", "token_major"):
        with join(deadline=300) as c:
            torch.testing.assert_close(
                trained(c, DEVICE, layout, backend), trained(c, DEVICE, layout), rtol=1e-5, atol=1e-3
            )


def compiled():
    compiled_by("aot_eager")


def compiled_by_inductor():
    if importlib.util.find_spec("triton") is None or not (
        shutil.which("cc") or shutil.which("gcc") or os.environ.get("CC")
    ):
        raise NotHereError("inductor wants Triton and a C compiler")
    compiled_by("inductor")


def operators():
    """PyTorch's own checks of operators, with tensors of a GPU."""
    if RANKS > 1:
        raise NotHereError("for one rank alone")
    with join() as c:
        x, ids, weights = (t.to(DEVICE) for t in batch(5))
        h = handle(c, live=16)
        checks = ("test_schema", "test_faketensor", "test_autograd_registration")
        torch.library.opcheck(
            torch.ops.weft.dispatch.default,
            (x.requires_grad_(), ids, weights.requires_grad_(), h.number),
            test_utils=checks,
        )
        rows, _, routing = weft.torch.dispatch(h, x, ids, weights)
        rows = rows.detach().clone().requires_grad_()
        torch.library.opcheck(
            torch.ops.weft.combine.default,
            (rows, weights, routing, h.number),
            test_utils=(*checks, "test_aot_dispatch_static"),
        )
        h.close()


# Streams and memory.


def streams():
    """Exchanges beside a computation that takes long; operands that are freed at once, and whose memory
    others take; copies in the call's stream."""
    with join() as c, handle(c, counts="device") as h:  # so that nothing waits for the host
        side = torch.cuda.Stream(DEVICE)
        for i in range(20):
            x, ids, weights = batch(i)
            want = x * (weights * (ids >= 0)).sum(1, keepdim=True)
            mine, selected, w = x.to(DEVICE), ids.to(DEVICE), weights.to(DEVICE)
            made = torch.cuda.Event()
            torch.cuda._sleep(2_000_000)
            mine = (mine + 1 - 1).t().contiguous().t()  # is copied by the call, behind the event
            made.record()
            side.wait_event(made)
            got = h.dispatch(mine, selected, w, stream=side)
            del mine, selected, w
            garbage = [
                torch.full((n,), float("nan"), device=DEVICE)
                for n in (x.numel(), ids.numel() * 2, weights.numel())
                for _ in range(8)
            ]
            out = h.combine(got.rows, got, stream=side)
            arrived = torch.cuda.Event()
            arrived.record(side)
            torch.cuda.current_stream(DEVICE).wait_event(arrived)
            out.record_stream(torch.cuda.current_stream(DEVICE))
            assert torch.equal(out.cpu(), want), f"round {i}"
            got.release()
            del garbage
        c.wait(side)
        x, ids, weights = (t.to(DEVICE) for t in batch(0))
        torch.cuda.synchronize(DEVICE)
        with h.dispatch(x, ids, weights, stream=weft.OWN) as got:
            out = torch.empty_like(x)
            assert h.combine(got.rows, got, out=out, stream=weft.OWN) is out
            assert torch.equal(out, x * (weights * (ids >= 0)).sum(1, keepdim=True))
            for call in (
                lambda: h.combine(got.rows, got, stream=weft.OWN),
                lambda: h.dispatch(x.t().contiguous().t(), ids, weights, stream=weft.OWN),
            ):
                refused(weft.OperandError, call, "OWN")
        for number in (0, side.cuda_stream):
            with h.dispatch(x, ids, weights, stream=number) as got:
                h.combine(got.rows, got, out=out, stream=number)
            c.wait(number)
        if GPUS > 1:
            refused(
                weft.InvalidError,
                lambda: h.dispatch(x, ids, weights, stream=torch.cuda.Stream((GPU + 1) % GPUS)),
                "stream: it is GPU",
            )


def refused(kind, call, words):
    with pytest.raises(kind, match=re.escape(words) or None):
        call()


def operands():
    """What is on another device, or as GPUs do not have it, is refused by name, and nothing has moved."""
    with join() as c, handle(c) as h:
        x, ids, weights = (t.to(DEVICE) for t in batch(0))
        got = h.dispatch(x, ids, weights)
        elsewhere = [x.cpu(), x.cpu().pin_memory(), x.cpu().numpy() if importlib.util.find_spec("numpy") else x.cpu()]
        if GPUS > 1:
            elsewhere.append(x.to(torch.device("cuda", (GPU + 1) % GPUS)))
        for wrong in elsewhere:
            refused(weft.OperandError, lambda wrong=wrong: h.dispatch(wrong, ids, weights), "rows: it is on")
            refused(weft.OperandError, lambda wrong=wrong: h.combine(got.rows, got, out=wrong), "out: it is on")
        refused(weft.OperandError, lambda: h.dispatch(x, ids.cpu(), weights), "topk: it is on cpu")
        refused(
            weft.OperandError, lambda: h.dispatch(x.to(torch.complex64), ids, weights), "rows: type torch.complex64"
        )
        refused(weft.InvalidError, lambda: h.dispatch(x.double(), ids, weights), "")
        refused(
            weft.OperandError,
            lambda: h.combine(got.rows, got, out=torch.empty(256, x.shape[0], device=DEVICE).t()),
            "out: shape",
        )
        shifted = torch.empty(x.numel() + 1, device=DEVICE)[1:].view_as(x).copy_(x)
        refused(weft.UnsupportedError, lambda: h.dispatch(shifted, ids, weights), "multiples of 16 bytes")
        out = torch.empty_like(x)
        assert h.combine(got.rows, got, out=out) is out
        assert torch.equal(out, x * (weights * (ids >= 0)).sum(1, keepdim=True))


def collectives():
    """Of PyTorch's tensors, in streams of its own, and replayed with other inputs. The part of rank p of what a
    rank gives is xs[rank][p]."""
    n, root = 1000, RANKS - 1
    xs = torch.randint(0, 9, (RANKS, RANKS, n), generator=torch.Generator().manual_seed(1)).float().to(DEVICE)
    total, three = xs.sum(0), torch.full((1,), 3.0, device=DEVICE)
    with join() as c, weft.Group(c, staging=1 << 20, sms=2 * RANKS) as g:
        for stream in (None, torch.cuda.Stream()):
            torch.cuda.synchronize()
            x, copy = xs[RANK].clone(), xs[RANK].clone()
            torch.cuda.synchronize()
            found = (
                (g.all_reduce(x, stream=stream), total),
                (g.all_reduce(x, "premulsum", scalar=three, stream=stream), 3 * total),
                (g.reduce_scatter(x, stream=stream), total[RANK]),
                (g.all_gather(x[0], stream=stream), xs[:, 0]),
                (g.all_to_all(list(x), out=list(torch.empty_like(x)), stream=stream), list(xs[:, RANK])),
                (g.broadcast(copy, root, stream=stream), xs[root]),
                (g.scatter(x, root, out=torch.empty_like(x[0]), stream=stream), xs[root][RANK]),
                (g.gather(x[0], root, stream=stream), xs[:, 0] if root == RANK else None),
                (g.reduce(x, "max", root, stream=stream), xs.max(0)[0] if root == RANK else None),
            )
            g.barrier(stream=stream)
            c.wait(stream)
            for i, (got, want) in enumerate(found):
                if isinstance(want, list):
                    got, want = torch.stack(got), torch.stack(want)
                assert (got is None and want is None) or torch.equal(got, want), i
        out, graph = torch.empty_like(x), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            g.all_to_all(x, out=out)
        for factor in (1, 2):
            x.copy_(factor * xs[RANK])
            graph.replay()
            c.wait()
            assert torch.equal(out, factor * xs[:, RANK])


def works():
    """Calls that are started: in streams, with operands that are dropped meanwhile, captured; counts in the GPU's
    memory, which a replay finds changed."""
    n, root = 1000, RANKS - 1
    xs = torch.randint(0, 9, (RANKS, RANKS, n), generator=torch.Generator().manual_seed(2)).float().to(DEVICE)
    total, x = xs.sum(0), xs[RANK].clone()
    side = torch.cuda.Stream()
    with join() as c, weft.Group(c, staging=1 << 20, sms=2 * RANKS, dtypes=["float32"]) as g:
        for stream in (None, side):
            side.wait_stream(torch.cuda.current_stream())
            started = []
            for i in range(20):
                operand = x * (i + 1)
                if stream is not None:
                    side.wait_stream(torch.cuda.current_stream())
                started.append(g.all_reduce(operand, stream=stream, async_op=True))
                del operand
                torch.full_like(x, float("nan"))  # where the operand was, if its memory is free
            for i, work in enumerate(started):
                assert torch.equal(work.wait_on(), total * (i + 1)), i
            assert torch.equal(started[-1].wait(timeout=20), total * 20)
            assert all(work.done() and work.error() is None for work in started)
            assert {work.algorithm.partition("/")[0] for work in started} == {"all-reduce"}
        assert not g._started
        out = torch.empty_like(x)
        with g.all_to_all(x, out=out, stream=weft.OWN, async_op=True):
            pass
        assert torch.equal(out, xs[:, RANK])
        with g.broadcast(x.clone(), root, async_op=True) as work:
            pass
        assert torch.equal(work.wait(), xs[root])

        counts = torch.full((RANKS,), n, device=DEVICE)
        at, back = n * torch.arange(RANKS, device=DEVICE), n * torch.arange(RANKS, device=DEVICE).flip(0)
        places = {"send": counts, "recv": counts.clone(), "send_at": at, "recv_at": back.clone()}
        g.all_to_all_v(x, **places, out=out)
        assert torch.equal(out.flip(0), xs[:, RANK])
        out.zero_()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work = g.all_to_all_v(x, **places, out=out, async_op=True)
            assert work.wait_on() is out
            assert not work.done()
            refused(weft.UnsupportedError, work.wait, "captured")
        for order in (at, back):
            places["recv_at"].copy_(order)
            graph.replay()
            c.wait()
            assert torch.equal(out if order is at else out.flip(0), xs[:, RANK])
        del work
        g.barrier()
        assert not g._started
        c.wait()


def functional():
    """Collectives that return new tensors, with gradients, and compiled."""
    f = weft.torch
    whole = torch.randint(-4, 5, (RANKS, RANKS, 3), generator=torch.Generator().manual_seed(3)).float().to(DEVICE)
    with join() as c, weft.Group(c, staging=1 << 20, sms=2 * RANKS) as g:

        def program(x):
            y = f.all_to_all(g, f.all_to_all(g, x) * 2) + f.broadcast(g, x, RANKS - 1)
            return f.reduce_scatter(g, f.all_gather(g, f.reduce_scatter(g, y))) + f.all_reduce(g, x)[:1]

        want = RANKS * (2 * whole + whole[-1]).sum(0)[RANK][None] + whole.sum(0)[:1]
        results = []
        for run in (program, torch.compile(program, fullgraph=True, backend="aot_eager")):
            x = whole[RANK].clone().requires_grad_()
            out = run(x)
            out.sum().backward()
            c.wait()
            assert torch.equal(out.detach(), want)
            results.append(x.grad)
        assert torch.equal(*results)


def cost_of_collectives():
    """Host time of calls that enqueue."""
    x = torch.zeros(256, device=DEVICE)
    out = torch.empty_like(x)
    with join() as c, weft.Group(c, staging=1 << 20, dtypes=["float32"]) as g:
        figures = {
            name: {"host": host_time(call, 50)}
            for name, call in (
                ("Group.all_reduce", lambda: g.all_reduce(x, out=out)),
                ("Group.all_reduce, async_op", lambda: g.all_reduce(x, out=out, async_op=True).wait_on()),
                ("Group.barrier", g.barrier),
            )
        }
        c.wait()
    return figures


def own_kernels():
    """The examples of kernels of one's own, eager and replayed, and the tuner."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples"))
    import own_kernel
    import tune_kernel

    own = own_kernel.own(RANKS, blocks=4)
    with join() as c, tempfile.TemporaryDirectory() as folder:
        with weft.Group(c, staging=1 << 20, sms=2 * RANKS, algorithms=[own], select=own_kernel.select) as g:
            for n in (1, 777, own_kernel.MOST // 4, own_kernel.MOST // 4 + 1):
                x = torch.arange(n, device=DEVICE, dtype=torch.float32)
                want = x * RANKS + sum(range(RANKS))
                x += RANK
                for stream in (None, torch.cuda.Stream()):
                    torch.cuda.synchronize()
                    got = g.all_reduce(x, stream=stream)
                    c.wait(stream)
                    assert torch.equal(got, want), n
            out, graph = torch.empty_like(x), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                g.all_reduce(x[:900], out=out[:900], threads=64)
                g.all_reduce(out[:900], out=out[:900], threads=64)
            for _ in range(100):
                out.zero_()
                graph.replay()
                c.wait()
                assert torch.equal(out[:900], RANKS * want[:900])
        path = os.path.join(folder, "best.json")
        sizes = (1 << 10, 1 << 16, 1 << 18)
        table = tune_kernel.tune(c, path, device=DEVICE, sizes=sizes, blocks=(1, 4), threads=(128,), times=20)
        assert [row["bytes"] for row in table] == list(sizes)
        return {f"{row['algorithm']} of {row['bytes']}": round(1e6 * row["seconds"], 1) for row in table}


def port_kernels():
    """The example of a kernel that puts through a port channel, by libfabric also within a host. Groups take kernels
    there alone."""
    if RANKS != 2:
        raise NotHereError("for two ranks")
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples"))
    import port_kernel as p

    with join() as c, contextlib.ExitStack() as closing:
        try:
            service = closing.enter_context(weft.port.Service(c))
        except weft.UnsupportedError as e:
            raise NotHereError(f"needs libfabric: {e}") from None
        rows = torch.zeros(4 * p.MOST, dtype=torch.uint8, pin_memory=True)
        channel = service.connect(1 - RANK, service.register(rows), kind="fabric")
        own = p.own(channel, rows.data_ptr(), lambda raw: torch.frombuffer(bytearray(raw), dtype=torch.uint8).cuda())
        if max(HOSTS):
            refused(weft.UnsupportedError, lambda: weft.Group(c, algorithms=[own]), "ranks of one host")
            return
        with weft.Group(c, algorithms=[own]) as g:
            for n in (1, 777, p.MOST // 4):
                mine = torch.arange(n, device=DEVICE, dtype=torch.float32) + RANK
                for _ in range(5):
                    got = g.all_gather(mine, algorithm=p.NAME)
                c.wait()
                assert torch.equal(got - torch.arange(2, device=DEVICE)[:, None], (mine - RANK).expand(2, n))


class OnlyDLPack:
    def __init__(self, t):
        self.t = t

    def __dlpack__(self, stream=None, **_):
        return self.t.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self.t.__dlpack_device__()


class OnlyInterface:
    def __init__(self, t):
        self.t = t
        self.__cuda_array_interface__ = t.__cuda_array_interface__


def libraries():
    """Arrays of other libraries, by DLPack and by __cuda_array_interface__, and DeviceArrays as tensors."""
    with join() as c, handle(c) as h:
        x, ids, weights = (t.to(DEVICE) for t in batch(0))
        want = x * (weights * (ids >= 0)).sum(1, keepdim=True)
        for kind in (OnlyDLPack, OnlyInterface):
            got = h.dispatch(kind(x), kind(ids), kind(weights))
            rows = got.rows
            assert isinstance(rows, weft.DeviceArray)
            assert rows.device == GPU
            shown = torch.from_dlpack(rows)
            assert (shown.data_ptr(), shown.device, shown.dtype, shown.shape) == (
                rows.address,
                DEVICE,
                torch.float32,
                rows.shape,
            )
            again = torch.as_tensor(rows, device=DEVICE)
            assert again.shape == rows.shape
            out = torch.empty_like(x)
            h.combine(kind(shown), got, out=kind(out))
            assert torch.equal(out, want)
            refused(weft.OperandError, lambda got=got: h.combine(got.rows, got), "give out")
            del shown, again, rows, got
            gc.collect()
        for _ in range(4):  # all of it was given back
            assert torch.equal(h.combine((got := h.dispatch(x, ids, weights)).rows, got), want)


def windows():
    with join() as c:
        w = weft.Window(c, 1 << 16)
        mine = w.array((64, 64), "float32", offset=4096)
        assert mine.device == DEVICE
        mine.fill_(RANK + 1)
        torch.cuda.synchronize(DEVICE)
        meet()
        for r in range(RANKS):
            theirs = w.array((64, 64), "float32", offset=4096, rank=r)
            assert theirs.device == DEVICE
            assert bool((theirs == r + 1).all()), f"rank {r}'s part is {theirs[0, :4].tolist()}"
        meet()
        w.close()
        assert bool((mine == RANK + 1).all())
        del mine, theirs
        meet()
        # Memory of PyTorch's allocator, with an offset into its segment.
        owned = torch.full((3, 1 << 18), float(RANK), device=DEVICE)
        torch.cuda.synchronize(DEVICE)
        w = weft.Window.from_array(c, owned[1])
        meet()
        for r in range(RANKS):
            assert bool((w.array((1 << 18,), "float32", rank=r) == r).all())
        meet()
        w.close()


def lifetimes():
    """Rows outlive what they show; their memory is given back by a call, not by who drops them."""
    with join() as c:
        x, ids, weights = (t.to(DEVICE) for t in batch(0, hidden=256))
        torch.cuda.synchronize(DEVICE)
        h = handle(c, max_tokens=4096, live=2)
        for _ in range(6):
            h.dispatch(x, ids, weights)  # which nobody keeps
        got = h.dispatch(x, ids, weights)
        held, rows = got.routing.source_ranks >= 0, got.rows
        want = rows.reshape(-1, 256)[held].clone()
        h.close()
        assert torch.equal(rows.reshape(-1, 256)[held], want)
        torch.cuda.synchronize(DEVICE)
        before = torch.cuda.mem_get_info(DEVICE)[0]
        dropping = threading.Thread(target=lambda kept: kept.clear(), args=([rows, got],))
        del rows, got
        dropping.start()
        dropping.join()
        gc.collect()
        weft.views.sweep()  # so that it is known that they are no more
        weft.resources.compiled.sweep(weft.resources._lease_of)
        assert weft.resources._left == [h]
        weft.resources.sweep()
        assert weft.resources._left == []
        assert torch.cuda.mem_get_info(DEVICE)[0] > before


def threads():
    """Calls from threads that have never used CUDA, and current devices that stay what they were."""
    with join() as c, handle(c) as h:
        x, ids, weights = (t.to(DEVICE) for t in batch(0))
        want = x * (weights * (ids >= 0)).sum(1, keepdim=True)
        torch.cuda.synchronize(DEVICE)
        found = []

        def work():
            found.append(torch.cuda.current_device())
            got = h.dispatch(x, ids, weights)
            found.append(torch.cuda.current_device())
            out = h.combine(got.rows, got)
            c.wait()
            found.append(torch.equal(out, want))

        t = threading.Thread(target=work)
        t.start()
        t.join(60)
        assert found[1:] == [found[0], True], found
        other = (GPU + 1) % GPUS
        with torch.cuda.device(other):
            with h.dispatch(x, ids, weights) as got:
                out = h.combine(got.rows, got)
            c.wait()
            assert torch.cuda.current_device() == other
            assert torch.empty(1, device="cuda").get_device() == other
        assert torch.equal(out, want)


# Captures.


def captured(c, layout, counts, replays=20):
    """A graph of a layer, replayed with other inputs each time, beside a thread that asks what there is to ask."""
    shapes = batch(0)[0].shape[0]
    with handle(c, layout=layout, counts=counts, live=2) as h:
        x = torch.zeros(shapes, 256, device=DEVICE)
        ids = torch.full((shapes, 3), -1, dtype=torch.int64, device=DEVICE)
        weights, out = torch.zeros(shapes, 3, device=DEVICE), torch.empty(shapes, 256, device=DEVICE)

        def run():
            got = h.dispatch(x, ids, weights)
            rows = got.rows
            if h.spec.one_row_per_rank:
                factor = torch.where(got.routing.row_experts >= 0, got.routing.row_selection_weights, 0).sum(
                    1, keepdim=True
                )
                rows = rows * factor
            h.combine(rows, got, out=out)
            return got

        side = torch.cuda.Stream(DEVICE)
        side.wait_stream(torch.cuda.current_stream(DEVICE))
        with torch.cuda.stream(side):
            for _ in range(3):
                run().release()
        torch.cuda.current_stream(DEVICE).wait_stream(side)
        torch.cuda.synchronize(DEVICE)
        stop, asked = threading.Event(), []

        def ask():
            while not stop.is_set():
                try:
                    c.check()
                    c.wait(0)  # the default stream, which no capture of PyTorch's uses
                except weft.BusyError:
                    pass
                except BaseException as e:
                    asked.append(e)
                    return
                time.sleep(0.0005)

        asking = threading.Thread(target=ask)
        asking.start()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):  # in global mode
                kept = run()
        finally:
            stop.set()
            asking.join()
        assert not asked, asked
        for i in range(replays):
            new = batch(i)
            n = min(shapes, new[0].shape[0])
            ids.fill_(-1)
            for to, t in zip((x, ids, weights), new, strict=True):
                to[:n].copy_(t[:n])
            graph.replay()
            c.wait()
            want = torch.zeros_like(out)
            want[:n] = (new[0] * (new[2] * (new[1] >= 0)).sum(1, keepdim=True))[:n].to(DEVICE)
            assert torch.equal(out, want), f"{layout}, replay {i}"
        # What was captured and the same uncaptured may follow each other.
        run().release()
        c.wait()
        assert torch.equal(out, want)
        kept.release()
        del graph
        torch.cuda.synchronize(DEVICE)


def captures():
    with join() as c:
        captured(c, "expert_major", "host")
        captured(c, "rank_major", "host")
        captured(c, "token_major", "device")


def captures_refuse():
    """What a capture cannot have is refused by name, and the capture goes on."""
    with join() as c:
        x, ids, weights = (t.to(DEVICE) for t in batch(0))
        with handle(c, layout="token_major") as exact, handle(c, layout="expert_major", live=4) as h:
            got = h.dispatch(x, ids, weights)
            out = h.combine(got.rows, got)
            got.release()
            c.wait()
            torch.cuda.synchronize(DEVICE)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                refused(weft.UnsupportedError, lambda: exact.dispatch(x, ids, weights), "device counts")
                got = h.dispatch(x, ids, weights)
                refused(weft.UnsupportedError, lambda: got.routing.received, "cannot be read in a capture")
                refused(weft.UnsupportedError, c.wait, "captures")
                h.combine(got.rows, got, out=out)
            out.zero_()
            graph.replay()
            c.wait()
            assert torch.equal(out, x * (weights * (ids >= 0)).sum(1, keepdim=True))
            with exact.dispatch(x, ids, weights) as exactly:
                assert exactly.routing.received == exactly.rows.shape[0]


# Failures.


def late_errors():
    """The last rank stays away: calls return, and what they have met is told by wait, by check and by
    the next call. Without it the others go on."""
    if RANKS == 1:
        raise NotHereError("for several ranks")
    # else a dispatch waits for counts, and says at once what it has met
    with join(deadline=3) as c, handle(c, counts="device") as h:
        x, ids, weights = (t.to(DEVICE) for t in batch(0))
        with h.dispatch(x, ids, weights) as got:
            h.combine(got.rows, got)
        c.wait()
        meet()
        if RANK < RANKS - 1:
            since = time.monotonic()
            h.dispatch(x, ids, weights)
            assert time.monotonic() - since < 2.9, "the call has waited"
            for call in (c.wait, c.check, lambda: h.dispatch(x, ids, weights)):
                refused((weft.DeadlineError, weft.AbortedError), call, "")
            c.set_mask([RANKS - 1])
            for _ in range(2):
                with h.dispatch(x, ids, weights) as got:
                    out = h.combine(got.rows, got)
                c.wait()
                there = (ids >= 0) & (ids < 4 * (RANKS - 1))
                assert torch.equal(out, x * (weights * there).sum(1, keepdim=True))
        meet()


def death():
    """The last rank is killed; the others hear of it well before the deadline, and go on. It is in a
    start of processes of its own."""
    with join(deadline=20) as c, handle(c) as h:
        x, ids, weights = (t.to(DEVICE) for t in batch(0))
        with h.dispatch(x, ids, weights) as got:
            h.combine(got.rows, got)
        c.wait()
        meet()
        if RANK == RANKS - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        since = time.monotonic()
        with contextlib.suppress(weft.DiedError):
            h.dispatch(x, ids, weights)
        with pytest.raises(weft.DiedError) as e:
            c.wait()
        seconds = time.monotonic() - since
        assert e.value.rank == RANKS - 1
        c.set_mask([RANKS - 1])
        with h.dispatch(x, ids, weights) as got:
            out = h.combine(got.rows, got)
        c.wait()
        assert torch.equal(out, x * (weights * ((ids >= 0) & (ids < 4 * (RANKS - 1)))).sum(1, keepdim=True))
        return {"seconds until the death was told": round(seconds, 3)}


# DeepEP's first interface.


def buffer(**options):
    import deep_ep

    torch.cuda.set_device(GPU)
    return deep_ep.Buffer(dist.group.WORLD, 1 << 20, 1 << 20, explicitly_destroy=True, **options)


def deep_ep_normal():
    b = buffer()
    experts = 4 * RANKS
    x, ids, weights = batch(6, topk=4, experts=experts, dtype=torch.bfloat16)
    x, ids, weights = x.to(DEVICE), ids.to(DEVICE), weights.to(DEVICE)
    per_rank, per_node, per_expert, in_rank, event = b.get_dispatch_layout(ids, experts)
    assert torch.equal(per_expert.cpu(), torch.bincount(ids[ids >= 0].cpu(), minlength=experts).int())
    for previous, finish in ((None, False), (b.capture(), True)):
        rows, got_ids, got_weights, counts, made, event = b.dispatch(
            x, None, per_rank, per_node, in_rank, per_expert, ids, weights, previous_event=previous, async_finish=finish
        )
        if finish:
            event.current_stream_wait()
        assert (rows.device, rows.dtype) == (DEVICE, torch.bfloat16)
        assert got_ids.shape == got_weights.shape == (rows.shape[0], 4)
        assert sum(counts) == int((got_ids >= 0).sum())
        home, home_weights, event = b.combine(rows, made, topk_weights=got_weights, async_finish=finish)
        if finish:
            event.current_stream_wait()
        assert torch.equal(home, x * in_rank.sum(1, keepdim=True))
        assert torch.equal(home_weights, torch.where(ids >= 0, weights, 0))
        again, _, _, _, _, _ = b.dispatch(x, handle=made)
        assert torch.equal(again, rows)
    b.destroy()


def deep_ep_intranode():
    """DeepEP's own test of normal exchanges, and numbers of selections that come home from all ranks."""
    b = buffer()
    intranode.replay(b, DEVICE)
    for columns in (1, 4, 7):
        for worst in (False, True):
            intranode.numbers_at_home(b, DEVICE, columns, worst)
    b.destroy()


def deep_ep_helpers():
    """What deep_ep.utils computes, and scores for tests of 72 ranks, which are made on the GPU: nearly
    48,000 times in a test that is to take 4 minutes."""
    if RANK:
        return None
    deep_ep_utils.check(DEVICE)
    figures, calls = {}, 72
    for tokens, local, topk, ratio, precise in itertools.product((1, 4096), (1, 16), (1, 9), (1.0, 4.0), (True, False)):
        if precise and -(-topk // local) > min(topk, int(71 / ratio) + 1):
            continue
        seconds, visits = deep_ep_utils.gate(tokens, local, 72, topk, ratio, precise, calls)
        others = visits[1:]
        assert (
            tokens == 1
            or not precise
            or (abs(visits[0] / min(others) / ratio - 1) < 0.1 and max(others) < 1.02 * min(others))
        )
        figures[f"{tokens=} {local=} {topk=} {ratio=} {precise=}"] = round(seconds * 1e6)
    assert sum(figures.values()) / len(figures) < 240e6 / 48000, figures
    return figures


def deep_ep_intranode_captured():
    """Normal exchanges of the worst case in a graph, with numbers of selections that go home beside rows and biases."""
    b, experts, topk = buffer(), 4 * RANKS, 4
    x, ids, _ = (t.to(DEVICE) for t in batch(11, tokens=16, topk=topk, experts=experts, dtype=torch.bfloat16))
    sent = torch.full((16 * RANKS, topk), float(RANK + 1), device=DEVICE)

    def exchange(bias):
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, experts)
        rows, *_, made, _ = b.dispatch(x, None, per_rank, None, in_rank, per_expert, ids, num_worst_tokens=16 * RANKS)
        return b.combine(rows, made, topk_weights=sent, bias=bias)

    for bias in (None, x):
        side = torch.cuda.Stream(DEVICE)
        side.wait_stream(torch.cuda.current_stream(DEVICE))
        with torch.cuda.stream(side):
            for _ in range(2):
                exchange(bias)
        torch.cuda.synchronize(DEVICE)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, home, _ = exchange(bias)
        for i in range(10):
            x.copy_(torch.full_like(x, i - 4))
            ids.copy_(torch.where(ids >= 0, (ids + 1) % experts, -1))
            graph.replay()
            torch.cuda.synchronize(DEVICE)
            in_rank = torch.stack([((ids >= 0) & (ids // 4 == r)).any(1) for r in range(RANKS)], 1)
            assert torch.equal(out, (x.float() * (in_rank.sum(1, keepdim=True) + (bias is not None))).bfloat16())
            assert torch.equal(
                home,
                (in_rank * torch.arange(1, RANKS + 1, device=DEVICE)).sum(1, keepdim=True).expand(-1, topk).float(),
            )
        del graph, out, home
    b.destroy()


def low_latency(b, x, ids, weights, tokens, experts, fp8, hook=False):
    rows, counts, made, _, receive = b.low_latency_dispatch(x, ids, tokens, experts, use_fp8=fp8, return_recv_hook=hook)
    if hook:
        receive()
    plain = (
        (rows[0].float().view(*rows[0].shape[:-1], -1, 128) * rows[1].unsqueeze(-1)).flatten(-2).to(torch.bfloat16)
        if fp8
        else rows
    )
    out, _, receive = b.low_latency_combine(plain, ids, weights, made, return_recv_hook=hook)
    if hook:
        receive()
    return out, counts


def deep_ep_low_latency():
    b, experts = buffer(low_latency_mode=True), 4 * RANKS
    x, ids, weights = batch(7, tokens=16, topk=4, experts=experts, hidden=512, dtype=torch.bfloat16)
    x, ids, weights = x.to(DEVICE), ids.to(DEVICE), weights.to(DEVICE)
    want = x.float() * (weights * (ids >= 0)).sum(1, keepdim=True)
    of_ranks = [batch(7, tokens=16, topk=4, experts=experts, hidden=512, rank=r)[1] for r in range(RANKS)]
    everyone = sum(torch.bincount(i[i >= 0], minlength=experts) for i in of_ranks)
    for fp8 in (False, True):
        for hook in (False, True):
            out, counts = low_latency(b, x, ids, weights, 16, experts, fp8, hook)
            torch.testing.assert_close(out.float(), want, rtol=0.08 if fp8 else 0.01, atol=0.1)
            assert counts.tolist() == everyone[4 * RANK : 4 * RANK + 4].tolist()
    b.destroy()


def deep_ep_streams():
    """Exchanges of one buffer in one stream after another, of which none waits for the host: each comes after the last,
    whose memory it takes again. The first stream is PyTorch's default."""
    b, experts = buffer(low_latency_mode=True), 4 * RANKS
    x, ids, weights = batch(7, tokens=16, topk=4, experts=experts, hidden=512, dtype=torch.bfloat16)
    x, ids, weights = x.to(DEVICE), ids.to(DEVICE), weights.to(DEVICE)
    xs = [x * i for i in range(1, 24)]
    of_weights = (weights * (ids >= 0)).sum(1, keepdim=True)
    streams = [torch.cuda.default_stream(DEVICE), *(torch.cuda.Stream(DEVICE) for _ in range(2))]
    found = []
    torch.cuda.synchronize(DEVICE)
    for i, y in enumerate(xs):
        with torch.cuda.stream(streams[0 if i < 8 else i * i % 3 if i % 7 else 2]):
            out, _ = low_latency(b, y, ids, weights, 16, experts, False)
            per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, experts)
            rows, got_ids, _, counts, made, event = b.dispatch(
                y, None, per_rank, None, in_rank, per_expert, ids, weights, async_finish=i % 5 == 4
            )
            if i % 5 == 4:
                event.current_stream_wait()
            home, *_ = b.combine(rows, made)
            found.append((out, home, counts, got_ids, in_rank))
            del rows, made
    torch.cuda.synchronize(DEVICE)
    for y, (out, home, counts, got_ids, in_rank) in zip(xs, found, strict=True):
        torch.testing.assert_close(out.float(), y.float() * of_weights, rtol=0.01, atol=0.1)
        assert torch.equal(home, y * in_rank.sum(1, keepdim=True))
        assert sum(counts) == int((got_ids >= 0).sum())
        assert got_ids.equal(found[0][3])
    b.destroy()


def profiled(call, names, period=1, calls=10):
    """What DeepEP's benchmarks want of a profile of calls: a row of the table with each name, and so
    many kernels a call in a namespace."""
    call()
    meet()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA], schedule=torch.profiler.schedule(wait=1, warmup=0, active=1)
    ) as p:
        for _ in range(2):
            for _ in range(calls):
                call()
            torch.cuda.synchronize(DEVICE)
            p.step()
    lines = p.key_averages().table(max_name_column_width=100).split("\n")
    with tempfile.NamedTemporaryFile(suffix=".json") as trace:
        p.export_chrome_trace(trace.name)
        with open(trace.name) as f:
            events = [e["name"] for e in json.load(f)["traceEvents"] if "name" in e]
    for name in names:
        rows = [line for line in lines if name in line]
        assert len(rows) == 1, f"{name}: {len(rows)} rows:\n" + "\n".join(rows or lines)
        found = sum(f"::{name}" in e for e in events)
        assert found == period * calls, f"{name}: {found} kernels of {calls} calls"


def deep_ep_kernel_names():
    """A profiler's table has one row with dispatch in it and one with combine, with and without hooks,
    and of normal exchanges with and without a handle."""
    b, experts = buffer(low_latency_mode=True), 4 * RANKS
    x, ids, weights = (
        t.to(DEVICE) for t in batch(7, tokens=16, topk=4, experts=experts, hidden=512, dtype=torch.bfloat16)
    )
    for fp8 in (False, True):
        for hook in (False, True):
            profiled(
                lambda fp8=fp8, hook=hook: low_latency(b, x, ids, weights, 16, experts, fp8, hook),
                ("dispatch", "combine"),
                1 + hook,
            )
    per_rank, per_node, per_expert, in_rank, _ = b.get_dispatch_layout(ids, experts)

    def normal(weighted):
        rows, _, of_rows, _, made, _ = b.dispatch(x, None, per_rank, per_node, in_rank, per_expert, ids, weights)
        b.combine(rows, made, topk_weights=of_rows if weighted else None)
        return rows, made

    profiled(lambda: normal(False), ("dispatch", "combine", "row_map"))
    rows, made = normal(True)
    profiled(lambda: (b.dispatch(x, handle=made), b.combine(rows, made)), ("dispatch", "combine"))
    profiled(lambda: b.get_dispatch_layout(ids, experts), ("token_counts",))
    b.destroy()


def deep_ep_masks():
    """Hooks that are lost, selections in another order, and a rank that is left out and taken in again."""
    if RANKS == 1:
        raise NotHereError("for several ranks")
    b = buffer(low_latency_mode=True, enable_shrink=True)
    experts, last = 4 * RANKS, RANKS - 1
    x, ids, weights = (t.to(DEVICE) for t in batch(10, topk=3, experts=experts, dtype=torch.bfloat16))

    def exchange(gone=RANKS):
        there = (ids >= 0) & (ids // 4 != gone)
        rows, _, made, _, _ = b.low_latency_dispatch(x, ids, 16, experts, use_fp8=False)
        # each expert's own number
        rows = torch.ones_like(rows) * (torch.arange(4, device=DEVICE) + 4 * RANK + 1).view(4, 1, 1)
        want = torch.where(there, weights * (ids + 1), 0).sum(1)
        for order in ([0, 1, 2], [2, 0, 1]):
            home, _, _ = b.low_latency_combine(rows, ids[:, order].contiguous(), weights[:, order].contiguous(), made)
            torch.testing.assert_close(home[:, 0].float(), want, rtol=0.01, atol=0.01)
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, experts)
        rows, _, of_rows, _, made, _ = b.dispatch(x, None, per_rank, None, in_rank, per_expert, ids, weights)
        home, home_weights, _ = b.combine(rows, made, topk_weights=of_rows, bias=x)
        reached = in_rank.clone()
        reached[:, gone : gone + 1] = False
        assert torch.equal(home_weights, torch.where(there, weights, 0))
        torch.testing.assert_close(home.float(), x.float() * (1 + reached.sum(1, keepdim=True)), rtol=0.01, atol=0.01)

    exchange()
    b.low_latency_dispatch(x, ids, 16, experts, use_fp8=False, return_recv_hook=True)
    exchange()
    torch.cuda.synchronize(DEVICE)
    meet()
    if last != RANK:
        b.low_latency_update_mask_buffer(last, True)
        exchange(last)
        torch.cuda.synchronize(DEVICE)
    meet()
    b.low_latency_clean_mask_buffer()
    per_rank, *_ = b.get_dispatch_layout(ids, experts)  # which comes first
    assert int(per_rank.sum()) > 0
    exchange()
    torch.cuda.synchronize(DEVICE)
    meet()
    b.destroy()


def deep_ep_captured():
    """Low-latency exchanges in a graph, as inference runs them."""
    b, experts = buffer(low_latency_mode=True), 4 * RANKS
    x, ids, weights = batch(7, tokens=16, topk=4, experts=experts, hidden=512, dtype=torch.bfloat16)
    x, ids, weights = x.to(DEVICE), ids.to(DEVICE), weights.to(DEVICE)
    side = torch.cuda.Stream(DEVICE)
    side.wait_stream(torch.cuda.current_stream(DEVICE))
    with torch.cuda.stream(side):
        for _ in range(3):
            low_latency(b, x, ids, weights, 16, experts, False)
    torch.cuda.synchronize(DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = low_latency(b, x, ids, weights, 16, experts, False)
    for i in range(10):
        x.copy_(torch.full_like(x, i - 4))
        graph.replay()
        torch.cuda.synchronize(DEVICE)
        torch.testing.assert_close(
            out.float(), x.float() * (weights * (ids >= 0)).sum(1, keepdim=True), rtol=0.01, atol=0.1
        )
    del graph, out
    b.destroy()


# DeepEP's second interface.


def elastic(c, device, kind):
    """Everything that an ElasticBuffer's exchanges return, of rows of a kind, as far as there is something."""
    import deep_ep
    from deep_ep.utils.math import per_token_cast_to_fp8

    experts, topk = 4 * RANKS, 4
    b = deep_ep.ElasticBuffer.from_communicator(c, num_max_tokens_per_rank=40)
    x, ids, weights = batch(8, tokens=40, topk=topk, experts=experts, dtype=torch.bfloat16)
    g = torch.Generator().manual_seed(RANK)
    given = x if kind == "bf16" else per_token_cast_to_fp8(x)
    if kind == "packed":  # whatever words
        given = given[0], torch.randint(1 << 30, (len(x), 2), generator=g, dtype=torch.int32)
    given = given.to(device) if kind == "bf16" else tuple(t.to(device) for t in given)
    x, ids, weights = x.to(device), ids.to(device), weights.to(device)
    bias = tuple(torch.randn(x.shape, generator=g).bfloat16().to(device) for _ in range(2))
    y = torch.randn((RANKS * 40 * topk + 8 * experts, x.shape[1]), generator=g).bfloat16().to(device)
    out = {}
    for expand, sync, later in ((False, True, False), (False, False, True), (True, True, True), (True, False, False)):

        def keep(name, t, expand=expand, sync=sync):
            out[f"{name}, {expand=}, {sync=}"] = host(t)

        after = (
            {"previous_event": b.capture(), "allocate_on_comm_stream": True, "async_with_compute_stream": True}
            if later
            else {}
        )
        layout = {"do_expand": expand, "do_zero_padding": expand}
        options = {"num_experts": experts, "expert_alignment": 8, "do_cpu_sync": sync, **layout}
        rows, got_ids, got_weights, made, event = b.dispatch(given, ids, weights, **options, **after)
        if later:
            event.current_stream_wait()
        tokens = int(made.psum_num_recv_tokens_per_scaleup_rank[-1])
        ends = made.psum_num_recv_tokens_per_expert.tolist()
        n = (ends[-1] + 7) // 8 * 8 if expand else tokens
        for name in (
            "num_unaligned_recv_tokens_per_expert",
            "psum_num_recv_tokens_per_expert",
            "psum_num_recv_tokens_per_scaleup_rank",
            "dst_buffer_slot_idx",
        ):
            keep(name, getattr(made, name))
        keep("sources", made.recv_src_metadata[:tokens])
        keep(
            "lists",
            torch.tensor([made.num_recv_tokens, made.num_expanded_tokens, *made.num_recv_tokens_per_expert_list]),
        )
        again, again_ids, other_weights, _, _ = b.dispatch(given, handle=made, topk_weights=2 * weights, **layout)
        for name, arrived, arrived_ids, weigh in (
            ("first", rows, got_ids, got_weights),
            ("again", again, again_ids, other_weights),
        ):
            for i, t in enumerate(arrived if isinstance(arrived, tuple) else (arrived,)):
                keep(f"{name}, rows {i}", t[:n])
            if not expand:
                keep(f"{name}, ids", arrived_ids[:n])
            keep(f"{name}, weights", weigh[:n])
        given_back = y[: rows[0].shape[0] if isinstance(rows, tuple) else rows.shape[0]]
        for biases in (None, bias[0], bias):
            summed, home, event = b.combine(
                given_back, made, other_weights, biases, **({**after, "previous_event": b.capture()} if later else {})
            )
            if later:
                event.current_stream_wait()
            keep(f"sum, {0 if biases is None else len(biases)}", summed)
            keep("weights at home", home)
        keep("sum without weights", b.combine(given_back, made)[0])
    b.barrier(with_cpu_sync=True)
    return out


def deep_ep_elastic():
    for kind in ("bf16", "fp8", "packed"):
        with join() as c:
            got = elastic(c, DEVICE, kind)  # whose buffer closes the communicator
        with join_on_host() as c:
            same(got, elastic(c, torch.device("cpu"), kind))


def deep_ep_hybrid():
    """What a HybridEPBuffer's exchanges return, rows with pads and dropped ones too, as the host has it."""
    import deep_ep
    from deep_ep.hybrid_ep_buffer import indices_to_map
    from deep_ep.utils.math import per_token_cast_to_fp8

    experts = 4 * RANKS
    x, ids, weights = batch(9, tokens=40, topk=4, experts=experts, dtype=torch.bfloat16)

    def exchanged(c, device):
        b, out = deep_ep.HybridEPBuffer.from_communicator(c, x.shape[1], 40, 4), {}
        chosen, probs = indices_to_map(ids.to(device), weights.to(device), len(x), experts)
        for fp8, room in ((False, None), (True, None), (False, 16), (False, 2000)):
            sent, scales = (t.to(device) for t in per_token_cast_to_fp8(x)) if fp8 else (x.to(device), None)
            got = b.dispatch_with_permute(
                hidden=sent.view(torch.uint8) if fp8 else sent,
                routing_map=chosen,
                probs=probs,
                scaling_factor=scales,
                pad_multiple=8,
                num_permuted_tokens=room,
                non_blocking=room is not None,
            )
            rows, come, come_scales, counts, made = got
            assert room is None or counts.device == device
            n = int(counts.sum())
            home, home_probs = b.combine_with_unpermute(hidden=rows.bfloat16(), probs=come, handle=made)
            of = f"{fp8=}, {room=}"
            for name, t in (("rows", rows), ("probs", come), ("scales", come_scales)):
                if t is not None:
                    out[f"{name}, {of}"] = host(t[:n])
            for name, t in (("counts", counts), ("home", home), ("probs at home", home_probs), ("flag", made[-1])):
                out[f"{name}, {of}"] = host(t)
            out[f"again, {of}"] = host(b.dispatch_with_permute(hidden=x.to(device), handle=made)[0][:n])
        rows, come, _, made = b.dispatch(x.to(device), probs=probs, routing_map=chosen)
        home, home_probs = b.combine(rows, come, made)
        return out | {"tokens": host(rows), "home": host(home), "probs": host(come), "back": host(home_probs)}

    with join() as c:
        got = exchanged(c, DEVICE)  # whose buffer closes the communicator
    with join_on_host() as c:
        same(got, exchanged(c, torch.device("cpu")))


def deep_ep_elastic_captured():
    """Exchanges of a buffer in a graph, where nothing waits for the host."""
    import deep_ep

    experts = 4 * RANKS
    with join() as c:
        b = deep_ep.ElasticBuffer.from_communicator(c, num_max_tokens_per_rank=40)
        x, ids, weights = (t.to(DEVICE) for t in batch(9, tokens=40, topk=4, experts=experts, dtype=torch.bfloat16))
        for expand in (False, True):

            def exchange(expand=expand):
                rows, _, got, made, _ = b.dispatch(
                    x, ids, weights, num_experts=experts, do_expand=expand, do_zero_padding=expand, do_cpu_sync=False
                )
                return b.combine(rows, made, got)

            side = torch.cuda.Stream(DEVICE)
            side.wait_stream(torch.cuda.current_stream(DEVICE))
            with torch.cuda.stream(side):
                for _ in range(2):
                    exchange()
            torch.cuda.synchronize(DEVICE)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out, home, _ = exchange()
            for i in range(10):
                x.copy_(torch.full_like(x, i - 4))
                ids.copy_(torch.where(ids >= 0, (ids + 1) % experts, -1))
                graph.replay()
                torch.cuda.synchronize(DEVICE)
                there = torch.where(ids >= 0, ids // 4, RANKS)
                visits = torch.zeros((len(x), RANKS + 1), device=DEVICE).scatter_(1, there, 1)[:, :RANKS].sum(1)
                times = (ids >= 0).sum(1) if expand else visits
                assert torch.equal(out, (x.float() * times[:, None]).bfloat16())
                assert torch.equal(home, torch.where(ids >= 0, weights, 0))
            del graph, out, home
        c.wait()


# Between hosts.


def left():
    """Bytes that this process has sent by TCP, and the other end has acknowledged. Ranks of other hosts are reached by
    libfabric's tcp alone. None where the kernel does not count them."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as s:
                if s.family in (socket.AF_INET, socket.AF_INET6) and s.type == socket.SOCK_STREAM:
                    info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
                    total += struct.unpack_from("Q", info, 120)[0] if len(info) >= 128 else 0
    return total or None


def bytes_cross():
    """What goes to other hosts goes by the network: at least one copy of a token for each host, and one home."""
    b, others, tokens, hidden = buffer(low_latency_mode=True), max(HOSTS), 64, 2048
    x = torch.full((tokens, hidden), float(RANK + 1), dtype=torch.bfloat16, device=DEVICE)
    ids = torch.arange(RANKS, device=DEVICE).repeat(tokens, 1)  # an expert of each rank
    weights, figures, floor = torch.ones((tokens, RANKS), device=DEVICE), {}, tokens * hidden * 2 * others

    def normal():
        per_rank, per_host, per_expert, in_rank, _ = b.get_dispatch_layout(ids, RANKS)
        assert per_host.tolist() == [tokens] * (1 + others)
        rows, *_, made, _ = b.internode_dispatch(x, None, per_rank, per_host, in_rank, per_expert, ids, weights)
        yield
        yield b.internode_combine(rows, made)[0]

    def few():
        rows, _, made, *_ = b.low_latency_dispatch(x, ids, tokens, RANKS, use_fp8=False)
        yield
        yield b.low_latency_combine(rows, ids, weights, made)[0]

    for exchange in (normal, few):
        *_, home = exchange()  # makes connections
        torch.cuda.synchronize(DEVICE)
        meet()
        running, moved = exchange(), []
        for name in ("dispatch", "combine"):
            before = left()
            home = next(running)
            torch.cuda.synchronize(DEVICE)
            meet()
            after = left()
            if before is not None:
                figures[f"{exchange.__name__} {name}, bytes sent of {floor}"] = after - before
                moved.append(after - before)
            meet()
        assert torch.equal(home, x * RANKS)
        everyone = [None] * RANKS
        dist.all_gather_object(everyone, moved)
        for name, of_ranks in zip(("dispatch", "combine"), zip(*everyone, strict=True), strict=bool(moved)):
            assert sum(of_ranks) >= RANKS * floor, f"{exchange.__name__} {name}: {of_ranks} bytes, want {floor} each"
    b.destroy()
    return figures


def deep_ep_internode():
    """Results are the host engine's, and DeepEP's own test of exchanges between nodes."""
    with join() as c:
        got = internode.returned(c, DEVICE)
    with join_on_host() as c:
        same(got, internode.returned(c, torch.device("cpu")))
    b = buffer()
    intranode.replay(b, DEVICE, HOSTS)
    b.destroy()


def mscclpp_internode():
    """MSCCL++'s own tests, step by step."""
    from mscclpp.ext import ep

    b = ep.Buffer(dist.group.WORLD, num_rdma_bytes=256, low_latency_mode=True)
    count = 1 + max(HOSTS)
    assert (b.is_available(), b.is_internode_available(), b.get_num_rdma_ranks()) == (True, True, count)
    assert b.get_rdma_rank() == HOSTS[RANK]
    for hidden in (512, 7168):
        original.low_latency(b, 64, hidden, 4, 4, DEVICE)
    original.internode(b, HOSTS, DEVICE)


def windows_of_hosts():
    """A window shows the parts of the host's ranks, and says that those of others are elsewhere."""
    with join() as c:
        assert c.hosts == HOSTS
        w = weft.Window(c, 1 << 16)

        def part(r):
            return w.array((64, 64), "float32", offset=4096, rank=r, kind="torch")

        part(RANK).fill_(RANK + 1)
        torch.cuda.synchronize(DEVICE)
        meet()
        for r in range(RANKS):
            if HOSTS[r] == HOSTS[RANK]:
                assert bool((part(r) == r + 1).all())
            else:
                refused(weft.WeftError, lambda r=r: part(r), f"rank {r}")
        meet()
        w.close()


def deep_ep_death():
    """The last rank of a buffer is killed; the others hear of it well before the deadline, leave it out and go on. It
    is in a start of processes of its own."""
    b = buffer(low_latency_mode=True, enable_shrink=True)
    experts, last = 4 * RANKS, RANKS - 1
    x, ids, weights = (t.to(DEVICE) for t in batch(10, topk=3, experts=experts, dtype=torch.bfloat16))
    low_latency(b, x, ids, weights, 16, experts, False)
    torch.cuda.synchronize(DEVICE)
    meet()
    if last == RANK:
        os.kill(os.getpid(), signal.SIGKILL)
    since = time.monotonic()

    def go_on():
        while time.monotonic() < since + 60:
            low_latency(b, x, ids, weights, 16, experts, False)
            torch.cuda.synchronize(DEVICE)

    with pytest.raises(weft.DiedError) as e:
        go_on()
    seconds = time.monotonic() - since
    assert e.value.rank == last
    b.low_latency_update_mask_buffer(last, True)
    there = (ids >= 0) & (ids < 4 * last)
    for _ in range(3):
        out, _ = low_latency(b, x, ids, weights, 16, experts, False)
        want = x.float() * (weights * there).sum(1, keepdim=True)
        torch.testing.assert_close(out.float(), want, rtol=0.01, atol=0.1)
    return {"seconds until the death was told": round(seconds, 3)}


# What it costs.


def median(times):
    return sorted(times)[len(times) // 2]


def host_time(call, calls=200):
    """Microseconds of the host's for a call that enqueues: the median, with the GPU let come to rest now and then."""
    times = []
    for i in range(calls):
        if i % 10 == 0:
            torch.cuda.synchronize(DEVICE)
            meet()
        since = time.perf_counter()
        call()
        times.append((time.perf_counter() - since) * 1e6)
    torch.cuda.synchronize(DEVICE)
    return median(times)


def gpu_time(call, calls=20):
    """Microseconds of the GPU's for a call, by events around each: the median."""
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)]
    torch.cuda.synchronize(DEVICE)
    meet()
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize(DEVICE)
    return median([start.elapsed_time(end) * 1e3 for start, end in events])


def kernel_times(call, calls=20):
    """Microseconds of each kernel's launches, by PyTorch's profiler."""
    torch.cuda.synchronize(DEVICE)
    meet()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
        for _ in range(calls):
            call()
        torch.cuda.synchronize(DEVICE)
    return {
        row.key: (row.device_time_total / max(row.count, 1), row.count)
        for row in p.key_averages()
        if row.device_time_total
    }


TOKENS, HIDDEN, TOPK, EXPERTS = 128, 7168, 8, 256


def cost_of_handle(x, ids, weights, out):
    figures = {}
    with (
        join() as c,
        ep.Handle(
            c, experts=EXPERTS, topk=TOPK, hidden=HIDDEN, max_tokens=TOKENS, payload="bf16", counts="device"
        ) as h,
    ):
        got = h.dispatch(x, ids, weights)
        rows, routing = got.rows, got.routing

        def dispatch():
            h.dispatch(x, ids, weights).release()

        def combine():
            h.combine(rows, routing, out=out)

        for name, call in (
            ("Handle.dispatch and release", dispatch),
            ("Handle.dispatch by a routing", lambda: h.dispatch(x, routing=routing).release()),
            ("Handle.combine", combine),
        ):
            call()
            figures[name] = {"host": host_time(call), "gpu": gpu_time(call)}
        figures["Received.rows"] = {"host": host_time(lambda: got.rows)}
        figures["kernels of dispatch"], figures["kernels of combine"] = kernel_times(dispatch), kernel_times(combine)
        c.wait()
    return figures


def cost():
    """Host and GPU time of calls on the shape of low-latency benchmarks; figures only, which mean
    nothing where ranks share a GPU."""
    if RANKS > GPUS:
        raise NotHereError("ranks share a GPU")
    if EXPERTS % RANKS:
        raise NotHereError(f"{EXPERTS} experts are not for {RANKS} ranks")
    g = torch.Generator().manual_seed(RANK)
    x = torch.randn(TOKENS, HIDDEN, generator=g).to(torch.bfloat16).to(DEVICE)
    ids = torch.stack([torch.randperm(EXPERTS, generator=g)[:TOPK] for _ in range(TOKENS)]).to(DEVICE)
    weights, out = torch.rand(TOKENS, TOPK, generator=g).to(DEVICE), torch.empty_like(x)
    figures = cost_of_handle(x, ids, weights, out)
    b = buffer(low_latency_mode=True)
    for fp8 in (False, True):
        last = []

        def dispatch(fp8=fp8, last=last):
            last[:] = b.low_latency_dispatch(x, ids, TOKENS, EXPERTS, use_fp8=fp8)

        dispatch()
        rows = torch.zeros(EXPERTS // RANKS, RANKS * TOKENS, HIDDEN, dtype=torch.bfloat16, device=DEVICE)
        for name, call in (
            ("dispatch", dispatch),
            ("combine", lambda last=last, rows=rows: b.low_latency_combine(rows, ids, weights, last[2])),
        ):
            call()
            name = f"Buffer.low_latency_{name}{', fp8' if fp8 else ''}"
            figures[name] = {"host": host_time(call, 50), "gpu": gpu_time(call), "kernels": kernel_times(call)}
    b.destroy()
    return figures


def graph_time(exchange, calls=100, replays=7):
    """Microseconds of an exchange in a graph of so many, of the slowest rank, and the last's result:
    the median of replays that all ranks begin together."""
    side = torch.cuda.Stream(DEVICE)
    side.wait_stream(torch.cuda.current_stream(DEVICE))
    with torch.cuda.stream(side):
        exchange()
    torch.cuda.synchronize(DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            kept = None  # it shows memory that the next exchange is to have
            kept = exchange()
    times = []
    for _ in range(replays + 2):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(DEVICE)
        meet()
        graph.replay()  # so that the next one begins on all ranks at once
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize(DEVICE)
        times.append(start.elapsed_time(end) * 1e3 / calls)
    slowest = torch.tensor(times[2:])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return median(slowest.tolist()), kept


def graph_cost():
    """What exchanges through deep_ep take in graphs, beside "weft bench ep" of the same shapes; figures
    only, which mean nothing where ranks share a GPU."""
    if RANKS > GPUS:
        raise NotHereError("ranks share a GPU")
    if EXPERTS % RANKS:
        raise NotHereError(f"{EXPERTS} experts are not for {RANKS} ranks")
    figures = {}
    b = buffer(low_latency_mode=True)
    g = torch.Generator().manual_seed(RANK)
    for tokens in (1, 8, TOKENS):
        x = torch.randn(tokens, HIDDEN, generator=g).to(torch.bfloat16).to(DEVICE)
        ids = torch.stack([torch.randperm(EXPERTS, generator=g)[:TOPK] for _ in range(tokens)]).to(DEVICE)
        weights = torch.rand(tokens, TOPK, generator=g).to(DEVICE)
        for fp8 in (False, True):

            def dispatch(x=x, ids=ids, fp8=fp8, tokens=tokens):
                return b.low_latency_dispatch(x, ids, tokens, EXPERTS, use_fp8=fp8)

            figures[f"low_latency_dispatch, {tokens} tokens{', fp8' if fp8 else ''}"], sent = graph_time(dispatch)
            if fp8:
                continue
            rows, _, made, *_ = dispatch()
            out = torch.empty_like(x)
            figures[f"low_latency_combine, {tokens} tokens"], _ = graph_time(
                lambda: b.low_latency_combine(rows, ids, weights, made, out=out)  # noqa: B023
            )
            want = x.float() * weights.sum(1, keepdim=True)
            torch.testing.assert_close(out.float(), want, rtol=0.01, atol=0.05)
            del rows, made
        del sent
    tokens = 4096
    x = torch.randn(tokens, HIDDEN, generator=g).to(torch.bfloat16).to(DEVICE)
    ids = torch.rand(tokens, EXPERTS, generator=g).topk(TOPK).indices.to(DEVICE)
    layout = b.get_dispatch_layout(ids, EXPERTS)
    rows, _, _, _, made, _ = b.dispatch(
        x, None, layout[0], None, layout[3], layout[2], ids, torch.ones(tokens, TOPK, device=DEVICE)
    )
    y = rows.clone()
    del rows  # they show memory that there is for one batch, beside the next
    figures["dispatch by a handle, 4096 tokens"], (rows, *_) = graph_time(lambda: b.dispatch(x, handle=made))
    figures["combine of what was received, 4096 tokens"], _ = graph_time(lambda: b.combine(rows, made))
    figures["combine of another tensor, 4096 tokens"], _ = graph_time(lambda: b.combine(y, made))
    b.destroy()
    rows = made = None  # which hold the multiprocessors of the buffer
    figures |= graph_cost_of_elastic(x, ids, y)
    return {name: round(us, 2) for name, us in figures.items()}


def graph_cost_of_elastic(x, ids, y):
    """The same of an ElasticBuffer, by as many multiprocessors as a Buffer's."""
    import deep_ep

    figures, weights = {}, torch.ones(ids.shape, device=DEVICE)
    b = deep_ep.ElasticBuffer(dist.group.WORLD, num_max_tokens_per_rank=len(x), hidden=HIDDEN, explicitly_destroy=True)

    def dispatch():
        return b.dispatch(x, ids, weights, num_experts=EXPERTS, do_cpu_sync=False, num_sms=20)

    figures["ElasticBuffer.dispatch, 4096 tokens"], kept = graph_time(dispatch)
    del kept
    made = dispatch()[3]
    figures["ElasticBuffer.dispatch by a handle, 4096 tokens"], (rows, *_) = graph_time(
        lambda: b.dispatch(x, handle=made)
    )
    figures["ElasticBuffer.combine of what was received, 4096 tokens"], _ = graph_time(lambda: b.combine(rows, made))
    figures["ElasticBuffer.combine of another tensor, 4096 tokens"], _ = graph_time(lambda: b.combine(y, made))
    b.destroy()
    return figures


CHECKS = (
    exchanges, exchanges_of_halves, exchanges_of_fp8, device_counts, gradients, operators, autograd, compiled,
    streams, operands, collectives, works, functional, own_kernels, port_kernels, libraries, windows, lifetimes,
    threads, captures, captures_refuse, late_errors,
    deep_ep_normal, deep_ep_helpers, deep_ep_intranode,
    deep_ep_intranode_captured,
    deep_ep_low_latency, deep_ep_streams, deep_ep_kernel_names, deep_ep_masks, deep_ep_captured,
    deep_ep_hybrid,
    deep_ep_elastic, deep_ep_elastic_captured, cost, cost_of_collectives, graph_cost, compiled_by_inductor,
)  # fmt: skip

CHECKS_BETWEEN_HOSTS = (
    bytes_cross, deep_ep_internode, mscclpp_internode, exchanges, exchanges_of_halves, exchanges_of_fp8, device_counts,
    gradients, autograd, compiled, streams, collectives, works, functional, windows_of_hosts, port_kernels, lifetimes,
    threads, captures, late_errors, deep_ep_low_latency, deep_ep_streams, deep_ep_masks, deep_ep_captured,
    deep_ep_intranode_captured, deep_ep_hybrid, deep_ep_elastic, deep_ep_elastic_captured,
)  # fmt: skip


def lacking():
    """Why this machine has no checks between hosts."""
    if max(HOSTS) == 0:
        return None
    try:
        with join_on_host() as c, weft.port.Service(c) as s:
            return None if s.rails else "there is no libfabric"
    except weft.UnsupportedError as e:
        return f"needs libfabric: {e}"


def main(names):
    global meetings
    if seconds := os.environ.get("WEFT_TRACE_SECONDS"):
        faulthandler.dump_traceback_later(float(seconds), repeat=True)  # where it hangs, then
    meetings = Meetings()
    torch.cuda.set_device(GPU)
    # What DeepEP's buffers are made from.
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore("gloo", meetings.store),
        rank=RANK,
        world_size=RANKS,
        timeout=datetime.timedelta(seconds=120),
    )
    meetings.begin("lacking")
    lacks = lacking()
    assert not lacks or os.environ.get("WEFT_REQUIRE_FABRIC") != "1", lacks
    checks = CHECKS_BETWEEN_HOSTS if max(HOSTS) else CHECKS
    for check in [globals()[name] for name in names] if names else checks:
        meetings.begin(check.__name__)
        result = {"check": check.__name__, "rank": RANK, "error": None, "skipped": None}
        since = time.monotonic()
        try:
            if lacks:
                raise NotHereError(lacks)
            result["figures"] = check()
        except NotHereError as e:
            result["skipped"] = str(e)
        except BaseException:
            result["error"] = traceback.format_exc()
            meetings.fail()
        result["seconds"] = round(time.monotonic() - since, 2)
        gc.collect()
        print(json.dumps(result), flush=True)
        alive = RANKS if lacks or check not in (death, deep_ep_death) else RANKS - 1
        if alive == RANKS:
            meetings.meet(f"after {check.__name__}", 200)
    sys.stdout.flush()
    meetings.leave(alive)
    os._exit(0)  # what a failed check has left is nobody's any more


if __name__ == "__main__":
    main(sys.argv[1:])
