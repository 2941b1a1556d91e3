"""What MSCCL++'s package has around its language: compiled programs, collections of them, and ranks that meet."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading

import plan_programs
import pytest
from conftest import alone

import mscclpp
import weft
from mscclpp import _mscclpp
from mscclpp.language import AllReduce, Buffer, CollectiveProgram, MemoryChannel, Rank
from weft import plan

SPEC = mscclpp.AlgoSpec(
    name="sum",
    collective=AllReduce(2, 1, True),
    nranks_per_node=2,
    world_size=2,
    in_place=True,
    instances=2,
    protocol="Simple",
    min_message_size=64,
    max_message_size=1 << 20,
    tags={"nvls": 1},
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MSCCLPP_CACHE_DIR", str(tmp_path))
    return tmp_path


def compiled(**changes):
    return mscclpp.compile(algo=plan_programs.switched, algo_spec=SPEC, rank=1, **changes)


def test_compile(cache):
    a = compiled()
    (file,) = cache.iterdir()
    text = file.read_bytes()
    assert a.id == hashlib.sha256(text).hexdigest() == file.stem
    assert json.loads(text) == json.loads(plan_programs.switched(SPEC).to_json())
    assert b"\n" not in text
    assert len(json.loads(text)["gpus"][0]["threadblocks"]) == SPEC.instances
    assert (a.name, a.collective, a.message_size_range) == ("sum", "allreduce", (64, 1 << 20))
    assert a.tags == {"nvls": 1}
    assert a.constraint == mscclpp.Algorithm.Constraint(2, 2)
    assert a.buffer_mode == 1
    assert a.is_dsl_algorithm()
    assert not a.is_native_algorithm()
    a.reset()
    with pytest.raises(TypeError, match="sum is a plan, for messages from 64 to 1048576"):
        a.set_message_size_range(0, 1)


def test_what_compile_goes_by(cache):
    """Equal programs are one file, and what the function is given makes another."""

    def named(spec, tag="a", cycles=1):
        with CollectiveProgram(spec.name + tag, spec.collective, 2) as program:
            for _ in range(cycles):
                for me in range(2):
                    ch = MemoryChannel(1 - me, me)
                    ch.signal(0)
                    ch.wait(0)
        return program

    keys = [mscclpp.compile(named, SPEC, 0, **kwargs).id for kwargs in ({}, {}, {"tag": "b"}, {"cycles": 2})]
    assert keys[0] == keys[1]
    assert len(set(keys)) == len(list(cache.iterdir())) == 3
    (cache / f"{keys[0]}.json").write_text("cut off")
    assert mscclpp.compile(named, SPEC, 0).name == "suma"


def test_compile_on_threads(cache, monkeypatch):
    """Ranks that are threads of one process write one plan at the same time."""
    ranks = 3
    written, write = threading.Barrier(ranks), pathlib.Path.write_bytes

    def write_and_meet(self, data):
        n = write(self, data)
        written.wait(30)
        return n

    monkeypatch.setattr(pathlib.Path, "write_bytes", write_and_meet)
    with concurrent.futures.ThreadPoolExecutor(ranks) as pool:
        made = list(pool.map(lambda _: compiled().id, range(ranks)))
    (file,) = cache.iterdir()
    assert made == [file.stem] * ranks


def test_what_compile_refuses(cache):
    with pytest.raises(ValueError, match="int is no function"):
        mscclpp.compile(1, SPEC, 0)
    with pytest.raises(TypeError, match="the function returned NoneType"):
        mscclpp.compile(lambda _: None, SPEC, 0)

    def unpaired(spec):
        with CollectiveProgram.from_spec(spec) as program:
            MemoryChannel(1, 0).signal(0)
        return program

    with pytest.raises(RuntimeError, match="Signal/Wait mismatch on memory"):
        mscclpp.compile(unpaired, SPEC, 0)
    assert list(cache.iterdir()) == []
    with pytest.raises(_mscclpp.Error, match="GPU rank does not match") as raised:
        mscclpp.compile(plan_programs.switched, SPEC, 2)
    assert raised.value.args == (6, "GPU rank does not match (mscclpp failure: ExecutorError)")


def test_what_compile_finds(cache, caplog):
    """A plan that hangs is refused; what else is wrong is logged on rank 0."""

    def waiting(spec):
        with CollectiveProgram.from_spec(spec) as program:
            for me in range(2):
                ch = MemoryChannel(1 - me, me)
                ch.wait(0)
                ch.signal(0)
        return program

    with pytest.raises(weft.InvalidError, match=r"plan sum: error: deadlock: .*rank 0, block 0, operation"):
        mscclpp.compile(waiting, SPEC, 0)
    assert list(cache.iterdir()) == []

    def nothing(spec):
        with CollectiveProgram.from_spec(spec) as program:
            pass
        return program

    mscclpp.compile(nothing, SPEC, 1)
    assert caplog.messages == []
    mscclpp.compile(nothing, SPEC, 0)
    assert any("wrong result" in m for m in caplog.messages)

    # Two sums into one chunk: the second says that it overwrites the first, and fusion adds all three.
    def overwritten(spec):
        with CollectiveProgram.from_spec(spec) as program:
            rank = Rank(0)
            data = rank.get_input_buffer()
            sums = Buffer(0, 1)
            for other in range(1, 3):
                rank.reduce(data[0:1], [data[other : other + 1]], 0, dst_chunk=sums[0:1])
            rank.copy(rank.get_output_buffer()[3:4], sums[0:1], 0)
        return program

    several = mscclpp.AlgoSpec("sums", AllReduce(2, 2, True), 2, 2, True, 1, "Simple")
    for sound in (False, True):
        caplog.clear()
        mscclpp.compile(overwritten, dataclasses.replace(several, sound=sound), 0)
        assert any("warning: fusion: chunk 3 of the input of rank 0" in m for m in caplog.messages) is not sound


@pytest.mark.parametrize("name", plan_programs.PROGRAMS)
def test_findings(name):
    """Of MSCCL++'s programs one has a finding, which may run: transfers are read when the kernel has ended."""
    found = plan.check(plan_programs.PROGRAMS[name]())
    assert [f for f in found if not f.warning] == []
    assert bool(found) == (name == "sendrecv_port")


def test_execution(threads):
    """An algorithm's plan runs, or its call is refused."""
    a, executor = compiled(), mscclpp.Executor(None)
    call = {"comm": None, "input_buffer": 0, "output_buffer": 0, "input_size": 64, "output_size": 64}
    with pytest.raises(_mscclpp.Error, match="Executor is null in DslAlgorithm::execute") as raised:
        a.execute(**call, dtype=mscclpp.DataType.float16)
    assert raised.value.args[0] == int(mscclpp.ErrorCode.InvalidUsage)
    with pytest.raises(_mscclpp.Error, match="an executor of None: give it a CommGroup's communicator"):
        a.execute(**call, dtype=mscclpp.DataType.float16, executor=executor, stream=0)
    executor.reset()
    with pytest.raises(weft.InvalidError, match="op is min, and the plan has sum; pass NOP"):
        a.execute(**call, dtype=mscclpp.DataType.float16, executor=executor, op=mscclpp.ReduceOp.MIN)
    with pytest.raises(weft.UnsupportedError, match="a plan has its own blocks"):
        a.execute(**call, dtype=mscclpp.DataType.float16, executor=executor, nblocks=3)
    plan = mscclpp.ExecutionPlan(a.execution_plan.path, 0)
    assert (plan.name, plan.collective, plan.min_message_size, plan.max_message_size) == (
        "sum",
        "allreduce",
        64,
        1 << 20,
    )


def test_plan_files(tmp_path):
    for text in ("{}", "[]", '{"name": "n", "collective": "c", "inplace": true, "gpus": [1]}'):
        (tmp_path / "p.json").write_text(text)
        with pytest.raises(weft.InvalidError, match="no plan"):
            mscclpp.ExecutionPlan(str(tmp_path / "p.json"), 0)
    with pytest.raises(FileNotFoundError):
        mscclpp.ExecutionPlan(str(tmp_path / "none.json"), 0)


def test_collections(caplog):
    mscclpp.AlgorithmCollectionBuilder.reset()
    builder = mscclpp.ext.AlgorithmCollectionBuilder()
    assert builder is mscclpp.AlgorithmCollectionBuilder()
    first, second = compiled(), compiled()
    with pytest.raises(ValueError, match="int is no algorithm"):
        builder.add_algorithm_builder(1)
    builder.add_algorithm_builder(first)
    builder.add_algorithm_builder(second)
    builder.set_algorithm_selector(lambda algorithms, _: algorithms["allreduce"]["sum"])
    builder.set_fallback_algorithm_selector(lambda *_: None)
    assert [m.split("its ")[1].split(";")[0] for m in caplog.messages] == ["selector", "fallback_selector"]
    made = builder.build()
    copy = mscclpp.AlgorithmCollection(made)
    copy.register_algorithm("allreduce", "other", first)
    assert (list(copy), len(mscclpp.AlgorithmCollection())) == ([second, first], 0)
    with pytest.raises(weft.UnsupportedError, match="a collection of native code, object"):
        mscclpp.AlgorithmCollection(object())
    assert list(made) == [made[0]] == made.get_by_collective("allreduce") == [second]
    assert len(made) == 1
    assert made.get_by_collective("allgather") == []
    assert builder.selector({"allreduce": {"sum": second}}, None) is second
    with pytest.raises(weft.UnsupportedError, match=r"use weft\.Group"):
        builder.build_default_algorithms(0, 1 << 20, 0)
    with pytest.raises(weft.UnsupportedError, match=r"weft\.OwnAlgorithm"):
        mscclpp.Algorithm("native", native_handle=object())
    builder.reset()
    assert len(mscclpp.AlgorithmCollectionBuilder().build()) == 0


def test_numbers():
    assert [int(v) for v in (mscclpp.DataType.uint8, mscclpp.ReduceOp.NOP, mscclpp.PacketType.LL16)] == [9, 255, 1]
    everything = {}
    exec("from mscclpp import *", everything)
    assert everything["compile"] is mscclpp.compile
    assert mscclpp.language.AlgoSpec is mscclpp.AlgoSpec
    assert mscclpp.version["version"] == weft.__version__


class AllGather:
    """What mpi4py's communicator is asked for, of one rank."""

    def allgather(self, mine):
        return [mine]

    def Get_rank(self):  # noqa: N802
        return 0

    def Get_size(self):  # noqa: N802
        return 1


def test_group_of_mpi():
    group = mscclpp.CommGroup(AllGather())
    assert (group.my_rank, group.nranks, group.nranks_per_node, group.ipc_domain_n_ranks) == (0, 1, 1, 1)
    assert isinstance(group.communicator, weft.Communicator)
    group.barrier()
    group.bootstrap.barrier()
    assert group.my_ib_device(7) == mscclpp.Transport.IB7
    with pytest.raises(AssertionError):
        group.my_ib_device(8)
    with pytest.raises(AttributeError, match=r"CommGroup\.make_switch .* use weft\.Group"):
        group.make_switch([], 0)
    assert group.make_connection([], mscclpp.Transport.CudaIpc) == {}
    del group  # and with it the communicator


def test_group_of_nothing():
    with pytest.raises(RuntimeError, match="Either the interface or mpi_group need to be specified"):
        mscclpp.CommGroup()
    with pytest.raises(RuntimeError, match="needs rank and size"):
        mscclpp.CommGroup(interfaceIpPortTrio="lo:127.0.0.1:1")


RANK = """
import sys, os
from mscclpp.comm import CommGroup
before = dict(os.environ)
group = CommGroup(interfaceIpPortTrio=sys.argv[1], rank=int(sys.argv[2]), size=2)
assert dict(os.environ) == before
group.barrier()
print(group.my_rank, group.nranks, group.communicator.ranks)
"""


@pytest.mark.parametrize("address", ["lo:127.0.0.1", "127.0.0.1"])
def test_group_of_an_address(address):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, f"{address}:{port}", str(r)],
            env=alone(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]
    for r, rank in enumerate(ranks):
        out, err = rank.communicate(timeout=60)
        assert (rank.returncode, out) == (0, f"{r} 2 2\n"), err


def test_buffer():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("checks the memory of a host")
    buffer = mscclpp.RawGpuBuffer(70)
    assert (buffer.nelems(), buffer.bytes(), buffer.device_id()) == (70, 70, -1)
    x = torch.utils.dlpack.from_dlpack(buffer.to_dlpack(data_type=str(torch.bfloat16)))
    assert (x.dtype, x.shape, x.data_ptr()) == (torch.bfloat16, (35,), buffer.data())
    x.fill_(1.5)
    y = torch.utils.dlpack.from_dlpack(buffer.to_dlpack("torch.float32", [2, 3], [6, 1]))
    assert (y.shape, y.stride(), y.dtype) == ((2, 3), (6, 1), torch.float32)
    assert torch.equal(y.view(torch.bfloat16)[0], torch.full((6,), 1.5, dtype=torch.bfloat16))
    z = torch.utils.dlpack.from_dlpack(buffer.to_dlpack("torch.uint8", [5, 14]))
    del buffer
    assert z.stride() == (14, 1)
    assert z[0, 0] == x.view(torch.uint8)[0]
    for bad in ("torch.int64", "double"):
        with pytest.raises(_mscclpp.Error, match=f"Unsupported type: {bad}"):
            mscclpp.RawGpuBuffer(8).to_dlpack(bad)
    with pytest.raises(weft.InvalidError, match=r"shape \(9,\)"):
        mscclpp.RawGpuBuffer(8).to_dlpack("torch.uint8", [9])
    with pytest.raises(weft.InvalidError, match="a buffer of 0 bytes"):
        mscclpp.RawGpuBuffer(0)


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("MSCCLPP_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    a = compiled()
    assert a.execution_plan.path == os.path.join(tmp_path, ".cache", "mscclpp", f"{a.id}.json")
