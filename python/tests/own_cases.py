"""Algorithms of the caller's own on emulated GPUs. test_gpu.py runs these."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from conftest import HERE
from emulated import OnGPU, tensors_on_gpus

import weft

sys.path.insert(0, str(HERE.parent / "examples"))
import own_kernel
import tune_kernel


@pytest.fixture
def gpus(threads):
    """Runs a function of a communicator on so many ranks, which are threads with a GPU each."""
    return lambda n, function, **options: threads(n, function, gpu=int, **options)


def sums(c, group, n):
    """Adds so many floats of each rank."""
    x = np.arange(n, dtype=np.float32) + c.rank
    out = OnGPU(np.full(n, np.nan, np.float32), c._device)
    group.all_reduce(OnGPU(x, c._device), out=out)
    c.wait()
    assert (out.array == np.arange(n, dtype=np.float32) * c.ranks + sum(range(c.ranks))).all(), n


def test_own_kernel(gpus):
    """The example: its kernel adds what is small, the library the rest, and its selector says which."""

    def rank(c):
        asked = []

        def select(call):
            asked.append((call, chosen := own_kernel.select(call)))
            return chosen

        options = {"staging": 1 << 20, "sms": 4, "algorithms": [own_kernel.own(c.ranks)], "select": select}
        with weft.Group(c, **options) as g:
            for n in (1, 777, own_kernel.MOST // 4, own_kernel.MOST // 4 + 1):
                sums(c, g, n)
            assert [name for _, name in asked] == ["example/packets"] * 3 + [None]
            assert asked[1][0] == ("all_reduce", "float32", "sum", 0, c.ranks, 777, 4 * 777)
            with g.launched(algorithm="all-reduce/two-shot", blocks=1):
                sums(c, g, 100)
            with g.launched(blocks=2, threads=32):
                sums(c, g, 300)
            assert len(asked) == 5  # none for a call that has its algorithm
            with g.launched(threads=1024), pytest.raises(weft.UnsupportedError, match="1024 threads"):
                sums(c, g, 100)
            with g.launched(blocks=-1), pytest.raises(weft.InvalidError, match="-1 blocks"):
                sums(c, g, 100)
            sums(c, g, 100)

    gpus(2, rank)


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
        with weft.Group(c, staging=1 << 20, sms=4, algorithms=[counting()]) as g:
            extras = {"counter": counter, "live": live}
            with g.launched(algorithm="test/count", extras=extras):
                for _ in range(4):
                    g.barrier()
            c.wait()
            assert (live.array[0], counter.array[0]) == (c.ranks, 12)
            for wrong in ({"counter": counter}, {**extras, "more": live}, {}):
                with g.launched(algorithm="test/count", extras=wrong), pytest.raises(weft.InvalidError, match="extra"):
                    g.barrier()
            with g.launched(extras=extras), pytest.raises(weft.UnsupportedError, match="extras"):
                g.barrier()
            with pytest.raises(weft.OperandError, match="live"), g.launched(extras={"live": np.zeros(1)}):
                pass
            g.barrier()

    gpus(2, rank)


def test_refusals(gpus):
    """What a compiler says is in every rank's error, and so is the name of an algorithm that differs."""

    def rank(c):
        def group(**options):
            return weft.Group(c, staging=1 << 20, sms=4, **options)

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
