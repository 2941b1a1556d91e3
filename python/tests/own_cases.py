"""Algorithms of the caller's own on emulated GPUs. test_gpu.py runs these."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import weakref

import numpy as np
import pytest
from conftest import HERE
from emulated import OnGPU, tensors_on_gpus

import weft
from weft import own

sys.path.insert(0, str(HERE.parent / "examples"))
import own_kernel
import port_kernel
import tune_kernel


@pytest.fixture
def gpus(threads):
    """Runs a function of a communicator on so many ranks, which are threads with a GPU each."""
    return lambda n, function, **options: threads(n, function, gpu=int, **options)


def sums(c, group, n, **how):
    """Adds so many floats of each rank."""
    x = np.arange(n, dtype=np.float32) + c.rank
    out = OnGPU(np.full(n, np.nan, np.float32), c._device)
    group.all_reduce(OnGPU(x, c._device), out=out, **how)
    c.wait()
    assert (out.array == np.arange(n, dtype=np.float32) * c.ranks + sum(range(c.ranks))).all(), n


def test_own_kernel(gpus):
    """The example: its kernel adds what is small, the library the rest, and its selector says which."""

    def rank(c):
        asked = []

        def select(call):
            asked.append((call, chosen := own_kernel.select(call)))
            return chosen

        options = {"staging": 1 << 20, "sms": 4 * c.ranks, "algorithms": [own_kernel.own(c.ranks)], "select": select}
        with weft.Group(c, **options) as g:
            for n in (1, 777, own_kernel.MOST // 4, own_kernel.MOST // 4 + 1):
                sums(c, g, n)
            assert [name for _, name in asked] == ["example/packets"] * 3 + [None]
            assert asked[1][0] == ("all_reduce", "float32", "sum", 0, c.ranks, 777, 4 * 777)
            sums(c, g, 100, algorithm="all-reduce/two-shot", blocks=1)
            sums(c, g, 300, blocks=2, threads=32)
            assert len(asked) == 5  # none for a call that has its algorithm
            with pytest.raises(weft.UnsupportedError, match="1024 threads"):
                sums(c, g, 100, threads=1024)
            with pytest.raises(weft.InvalidError, match="-1 blocks"):
                sums(c, g, 100, blocks=-1)
            with pytest.raises(weft.InvalidError, match="blocks is 4294967297, want"):
                sums(c, g, 100, blocks=(1 << 32) + 1)
            work = g.barrier(algorithm="barrier/flagged", blocks=1, async_op=True)  # how a call is launched is its own
            sums(c, g, 300, threads=32)
            work.wait()
            sums(c, g, 100)

    gpus(2, rank)


def test_port_kernel(gpus):
    """The example: its kernel puts to the other rank by libfabric, through memory of the host."""

    def rank(c):
        try:
            service = weft.port.Service(c, sources=["127.0.0.1"])
        except weft.UnsupportedError as e:
            if os.environ.get("WEFT_REQUIRE_FABRIC") == "1":
                raise
            return str(e)
        with service:
            rows = np.zeros(4 * port_kernel.MOST, np.uint8)
            channel = service.connect(1 - c.rank, service.register(rows))
            assert channel.kind.name == "fabric"
            handle = channel.device_handle().raw
            assert len(handle) == 88

            def on_gpu(raw):
                assert raw == handle
                return OnGPU(np.frombuffer(bytearray(raw), np.uint8), c._device)

            made = port_kernel.own(channel, rows.ctypes.data, on_gpu)
            with weft.Group(c, staging=1 << 20, algorithms=[made]) as g:
                for n in (1, 1000, port_kernel.MOST // 4, 3):
                    x = OnGPU(np.arange(n, dtype=np.float32) + 100 * c.rank, c._device)
                    out = OnGPU(np.full((2, n), np.nan, np.float32), c._device)
                    g.all_gather(x, out=out, algorithm=port_kernel.NAME)
                    c.wait()
                    for r in range(2):
                        assert (out.array[r] == np.arange(n) + 100 * r).all()
                # The host uses the same channel, when no kernel consumes its signals.
                channel.signal()
                channel.wait()
        return None

    if reason := gpus(2, rank)[0]:
        pytest.skip(f"needs libfabric: {reason}")


COUNTS = """
#include "weft.cuh"
#include "more.cuh"
using namespace weft;

extern "C" __global__ void count(const __grid_constant__ AlgorithmArgs a) {
	Call c(a);
	if (!c.begun) return;
	if (c.barrier() && blockIdx.x == 0 && threadIdx.x == 0) {
		*(float *)a.extras[1] += ADDS;
		*(float *)a.extras[0] = (float)c.live;
	}
	c.end();
}
"""


def counting(**more):
    return weft.OwnAlgorithm(
        **{
            "name": "test/count",
            "collective": "barrier",
            "source": COUNTS,
            "kernel": "count",
            "headers": {"more.cuh": "#define ADDS STEP"},
            "defines": {"STEP": 3},
            "tags": {"kind": "test"},
            "extras": ["live", "counter"],
            "blocks": 2,
            "threads": 64,
            **more,
        }
    )


def test_extras(gpus):
    """Arrays that a kernel takes by name, headers and macros."""

    def rank(c):
        live, counter = (OnGPU(np.zeros(1, np.float32), c._device) for _ in range(2))
        with weft.Group(c, staging=1 << 20, sms=4 * c.ranks, algorithms=[counting()]) as g:
            extras = {"counter": counter, "live": live}
            for times in range(4):
                work = g.barrier(algorithm="test/count", extras=extras, async_op=times % 2 == 1)
            work.wait()
            assert work.algorithm == "test/count"
            assert (live.array[0], counter.array[0]) == (c.ranks, 12)
            for wrong in ({"counter": counter}, {**extras, "more": live}, {}):
                with pytest.raises(weft.InvalidError, match="extra"):
                    g.barrier(algorithm="test/count", extras=wrong)
            with pytest.raises(weft.UnsupportedError, match="extras"):
                g.barrier(extras=extras)
            g.barrier()
            for wrong in (np.zeros(1), None):
                with pytest.raises(weft.OperandError, match="live"):
                    g.barrier(extras={"live": wrong})
            c.wait()

    gpus(2, rank)


SCALES = """
#include "weft.cuh"
using namespace weft;

// Each rank's own floats, times a value of the context, whose calls it counts.
extern "C" __global__ void scale(const __grid_constant__ AlgorithmArgs a) {
	Call c(a);
	if (!c.begun) return;
	if (threadIdx.x == 0) {
		*(float *)a.values[0] += 1;
		for (u64 i = 0; i < a.count; i++) ((float *)a.out)[i] = ((const float *)a.in)[i] * (float)a.values[1];
		*(u32 *)a.local += 1;
		*(float *)a.values[2] = (float)(a.local_bytes + *(u32 *)a.local);
	}
	c.barrier();
	c.end();
}
"""


def scaling(**hooks):
    what = {"name": "test/scale", "collective": "all_reduce", "source": SCALES, "kernel": "scale"}
    return weft.OwnAlgorithm(**what, **hooks, blocks=1, threads=32, local=4)


def test_hooks(gpus):
    """Contexts are made for each key, on all ranks, and live as long as the group."""

    def rank(c):
        made, locals_ = [], OnGPU(np.zeros(1, np.float32), c._device)

        class Kept(list):
            pass

        def prepare(context):
            kept = Kept()
            made.append((context.key, context.scratch, context.local, weakref.ref(kept)))
            counter = OnGPU(np.zeros(1, np.float32), c._device)
            context.values = [counter, 10 if context.key == "few" else 20, locals_]
            context.local *= 1 if context.key == "few" else 2
            made[-1] += (counter,)
            return kept

        def key(call):
            assert (call.collective, call.dtype, call.op, call.ranks) == ("all_reduce", "float32", "sum", c.ranks)
            return "few" if call.bytes <= 40 else "many"

        options = {"staging": 1 << 20, "sms": 4 * c.ranks}
        with weft.Group(c, **options, algorithms=[scaling(key=key, prepare=prepare)]) as g:
            assert not made
            for n, times in ((10, 10), (11, 20), (0, 10), (3, 10), (100, 20), (100, 20)):
                x = np.arange(n, dtype=np.float32)
                out = OnGPU(np.zeros(n, np.float32), c._device)
                work = g.all_reduce(OnGPU(x, c._device), out=out, algorithm="test/scale", async_op=True)
                work.wait()
                assert (out.array == times * x).all()
            assert [m[:3] for m in made] == [("few", 0, 4), ("many", 0, 4)]
            assert [m[4].array[0] for m in made] == [2, 3]  # none for a call without elements
            assert locals_.array[0] == 8 + 3
            assert all(m[3]() is not None for m in made)
        assert all(m[3]() is None for m in made)
        made.clear()
        with weft.Group(c, **options, algorithms=[scaling(prepare=prepare)]) as g:
            assert [m[:3] for m in made] == [("", 0, 4)]
        assert made[0][3]() is None

    gpus(2, rank)


def test_hooks_that_fail(gpus):
    """What a hook of one rank raises is an error on all, and nothing is left behind."""

    def rank(c):
        def prepare(context):
            if c.rank == 1:
                raise KeyError("this")
            return [context]

        def key(call):
            raise KeyError("that")

        def group(**hooks):
            return weft.Group(c, staging=1 << 20, sms=4 * c.ranks, algorithms=[scaling(**hooks)])

        with pytest.raises(weft.InvalidError, match="prepare raised KeyError: 'this'" if c.rank else "rank 1"):
            group(prepare=prepare)
        with pytest.raises(weft.InvalidError, match="9 values, want at most 8"):
            group(prepare=lambda context: context.values.extend(range(9)))
        with pytest.raises(weft.InvalidError, match=r"values\[0\]|rank 1"):
            group(prepare=lambda context: context.values.extend([np.zeros(1)] if c.rank else []))
        with pytest.raises(weft.MismatchError, match="bytes scratch"):
            group(prepare=lambda context: setattr(context, "scratch", 100 * c.rank))
        x, out = (OnGPU(np.ones(5, np.float32), c._device) for _ in range(2))
        with pytest.raises(weft.InvalidError, match="key raised KeyError: 'that'"), group(key=key) as g:
            g.all_reduce(x, out=out, algorithm="test/scale")
        with pytest.raises(weft.UnsupportedError, match="test/scale: all-to-all-v has counts"):
            weft.Group(c, algorithms=[dataclasses.replace(scaling(), collective="all_to_all_v")])
        with pytest.raises(weft.MismatchError, match="algorithm test/scale"):
            weft.Group(c, algorithms=[dataclasses.replace(scaling(), dtypes=["float32", "int32"][: 1 + c.rank])])
        with weft.Group(c, algorithms=[dataclasses.replace(scaling(), needs=["inputs"])]) as g:
            with pytest.raises(weft.WeftError, match="test/scale"):  # they lie in no window
                g.all_reduce(x, out=out, algorithm="test/scale")
            c.wait()
        with pytest.raises(weft.InvalidError, match="needs: \\['input'\\], want some of inputs, outputs"):
            weft.Group(c, algorithms=[dataclasses.replace(scaling(), needs=["input"])])
        with pytest.raises(weft.InvalidError, match="blocks is 4294967297"):
            weft.Group(c, algorithms=[dataclasses.replace(scaling(), blocks=(1 << 32) + 1)])

    gpus(2, rank)
    assert not own._contexts


def test_refusals(gpus):
    """What a compiler says is in every rank's error, and so is the name of an algorithm that differs."""

    def rank(c):
        def group(**options):
            return weft.Group(c, staging=1 << 20, sms=4 * c.ranks, **options)

        with pytest.raises(weft.WeftError, match="nonsense"):
            group(algorithms=[counting(source=COUNTS.replace("c.barrier()", "nonsense()"))])
        with pytest.raises(weft.MismatchError, match="test/count"):
            group(algorithms=[counting(blocks=2 + c.rank)])
        with pytest.raises(weft.MismatchError, match="algorithm test/count"):
            group(algorithms=[counting(extras=["live", "other"][: 1 + c.rank])])
        with pytest.raises(weft.InvalidError, match="all-reduce/one-shot"):
            group(algorithms=[counting(name="all-reduce/one-shot")])
        with pytest.raises(weft.InvalidError, match="'max_reduce', want one of"):
            group(algorithms=[counting(collective="max_reduce")])
        with pytest.raises(weft.InvalidError, match="no such"), group(select=lambda _: "no such") as g:
            g.barrier()

        def broken(_):
            raise KeyError("this")

        with pytest.raises(weft.InvalidError, match="the selector raised KeyError: 'this'"):  # noqa: SIM117
            with group(select=broken) as g:
                g.barrier()

    gpus(2, rank)


def test_tuner(gpus, monkeypatch, tmp_path):
    """The tuner measures what is right, saves it, and a group uses it."""
    torch = pytest.importorskip("torch")
    tensors_on_gpus(monkeypatch)

    def rank(c):
        path = tmp_path / "best.json"
        tune_kernel.tune(c, path, device="cpu", sizes=(256, 4096), blocks=(1, 4), threads=(32, 64), times=1)
        table = json.loads(path.read_text())
        assert [row["bytes"] for row in table] == [256, 4096]
        options = {"staging": 1 << 20, "algorithms": [own_kernel.own(c.ranks)], "select": tune_kernel.selector(table)}
        with weft.Group(c, **options) as g:
            for n in (64, 1024):
                x = torch.full((n,), float(c.rank + 1))
                assert tune_kernel.all_reduce(g, table, x).tolist() == [c.ranks * (c.ranks + 1) / 2] * n

    gpus(2, rank)
