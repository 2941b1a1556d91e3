"""Plans of programs, run on ranks of the host."""

from __future__ import annotations

import json

import numpy
import plan_programs
import pytest

import mscclpp
import weft
import weft.plan
from mscclpp import _mscclpp
from mscclpp.language import AllReduce, CollectiveProgram, MemoryChannel, Rank


def operands(plan, rank, chunk):
    """Where a rank's input and output are in one array, which is as long."""
    gpu = plan["gpus"][rank]
    ins, outs = gpu["input_chunks"] * chunk, gpu["output_chunks"] * chunk
    placed = {
        "allreduce": (0, 0),
        "alltoall": (0, 0),
        "allgather": (rank * ins, 0),
        "reducescatter": (0, rank * outs),
    }
    at_in, at_out = placed.get(plan["collective"], (0, ins)) if plan["inplace"] else (0, ins)
    return slice(at_in, at_in + ins), slice(at_out, at_out + outs), max(at_in + ins, at_out + outs)


def inputs(plan, chunk):
    """The inputs of all ranks."""
    return [
        numpy.arange(gpu["input_chunks"] * chunk, dtype=numpy.int32) * (gpu["id"] + 1) % 1009 + 7 * gpu["id"]
        for gpu in plan["gpus"]
    ]


def wanted(plan, rank, given):
    """What a collective leaves in the output of a rank, if it says so."""
    n = len(given)
    if plan["collective"] == "allreduce":
        return sum(given)
    if plan["collective"] == "allgather":
        return numpy.concatenate(given)
    if plan["collective"] == "reducescatter":
        return numpy.split(sum(given), n)[rank]
    if plan["collective"] == "alltoall":
        return numpy.concatenate([numpy.split(x, n)[rank] for x in given])
    return None


def launched(threads, text, chunks=(4, 1024)):
    """Runs a plan, on chunks of so many elements."""
    plan = json.loads(text)

    def rank(comm):
        with weft.plan.Executor(comm) as executor:
            loaded = executor.load(text)
            for chunk in chunks:
                given = inputs(plan, chunk)
                source, to, size = operands(plan, comm.rank, chunk)
                memory = numpy.zeros(size, numpy.int32)
                memory[source] = given[comm.rank]
                out = loaded.execute(memory[source], memory[to])
                want = wanted(plan, comm.rank, given)
                assert want is None or (out == want).all()

    threads(len(plan["gpus"]), rank)


@pytest.mark.parametrize("name", plan_programs.PROGRAMS)
def test_programs(threads, name):
    text = plan_programs.PROGRAMS[name]()
    plan = json.loads(text)
    least = max(4, plan["min_message_size"] // plan["gpus"][0]["input_chunks"] // 4)
    launched(threads, text, (least + -least % 4, 2 * (least + -least % 4)))


@pytest.mark.parametrize("instances", [1, 2, 3, 4])
def test_instances(threads, instances):
    def two_shot():
        with CollectiveProgram("two-shot", AllReduce(2, 1, True), 2, instances=instances) as program:
            for me in range(2):
                peer = 1 - me
                ch = MemoryChannel(peer, me)
                mine, theirs = Rank(me).get_input_buffer(), Rank(peer).get_input_buffer()
                own = mine[me : me + 1]
                ch.signal(tb=0, relaxed=True)
                ch.wait(tb=0, relaxed=True)
                ch.reduce(own, [theirs[me : me + 1]], tb=0)
                ch.put(theirs[me : me + 1], own, tb=0)
                ch.signal(tb=0)
                ch.wait(tb=0)
            return program.to_json()

    launched(threads, two_shot())


def test_refusals(threads):
    """What is wrong on one rank is refused on all, and the executor goes on."""
    text = plan_programs.PROGRAMS["allgather"]()

    def rank(comm):
        executor = weft.plan.Executor(comm)
        with pytest.raises(weft.InvalidError):
            executor.load("{")
        with pytest.raises(weft.MismatchError):
            executor.load(text if comm.rank else text.replace('"allgather"', '"custom"', 1))
        with pytest.raises(weft.InvalidError, match="a plan of type int, want its text"):
            executor.load(5 if comm.rank else text)
        loaded = executor.load(text)
        assert loaded._number == executor.load(text)._number
        memory = numpy.zeros(64, numpy.int32)
        half = slice(32 * comm.rank, 32 * comm.rank + 32)
        with pytest.raises(weft.WeftError, match=r"takes a multiple of 16|rank 0"):
            loaded.execute(memory[:5] if comm.rank == 0 else memory[half], memory)
        for wrong in ({"array": [1, 2]}, {"out": "x"}, {"stream": "s"}):
            operands = {"array": memory[half], "out": memory, **(wrong if comm.rank else {})}
            with pytest.raises(weft.WeftError, match=r"no array|no stream"):
                loaded.execute(**operands)
        memory[half] = comm.rank + 1
        loaded.execute(memory[half], memory)
        assert (memory == [1] * 32 + [2] * 32).all()
        executor.reset()
        with pytest.raises(weft.InvalidError, match="this executor has loaded 0"):
            loaded.execute(memory[half], memory)
        executor.close()

    threads(2, rank)


def test_mscclpp(threads, tmp_path):
    """The executor of MSCCL++'s package, by addresses and sizes."""
    text = plan_programs.PROGRAMS["allreduce_packet"]()
    (tmp_path / "plan.json").write_text(text)
    (tmp_path / "any.json").write_text(json.dumps(json.loads(text) | {"min_message_size": 0}))

    def rank(comm):
        plan = mscclpp.ExecutionPlan(str(tmp_path / "plan.json"), comm.rank)
        executor = mscclpp.Executor(comm)
        x = numpy.full(1024, comm.rank + 1, numpy.float32)

        def run(size, dtype=mscclpp.DataType.float32, rank=comm.rank):
            executor.execute(rank, x.ctypes.data, x.ctypes.data, size, size, dtype, plan, 0, mscclpp.PacketType.LL8)

        run(4096)
        assert (x == 10).all()
        with pytest.raises(_mscclpp.Error, match="ExecutorError"):
            run(40)
        with pytest.raises(_mscclpp.Error, match="GPU rank does not match"):
            run(4096, rank=5)
        with pytest.raises(weft.UnsupportedError, match="float8_e4m3fnuz"):
            run(4096, mscclpp.DataType.float8_e4m3fnuz)
        with pytest.raises(_mscclpp.Error, match="recv_buff of -4096 bytes"):
            run(-4096)
        executor.reset()
        a = mscclpp.Algorithm(id="a", execution_plan=plan)
        at, alone = x.ctypes.data, comm.rank == 1

        def execute(op=mscclpp.ReduceOp.SUM, at=at, size=4096, dtype=3, **kwargs):
            return a.execute(comm, at, at, size, size, dtype, op, executor=executor, **kwargs)

        assert execute() == 0
        assert (x == 40).all()
        for bad, words in (
            ({"op": mscclpp.ReduceOp.MIN}, "op is min, and the plan has sum"),
            ({"op": 77}, "77"),
            ({"nblocks": 8}, "a plan has its own blocks"),
            ({"accum_dtype": mscclpp.DataType.float16}, "sums are in float32"),
            ({"at": 0}, "4096 bytes at NULL"),
            ({"size": 4097}, "no number of elements"),
            ({"dtype": mscclpp.DataType.float8_e4m3fnuz}, "float8_e4m3fnuz"),
            ({"stream": 5}, "no streams"),
        ):  # on one rank alone: all are told, and the next call is the same one on each
            with pytest.raises(Exception, match=words if alone else f"rank 1.*{words}"):
                execute(**(bad if alone else {}))
        assert (x == 40).all()
        execute()
        assert (x == 160).all()
        x[:] = comm.rank
        executor.close()
        a = mscclpp.Algorithm(id="any", execution_plan=mscclpp.ExecutionPlan(str(tmp_path / "any.json"), comm.rank))
        assert execute(size=0) == execute(at=0, size=0) == 0
        assert (x == comm.rank).all()
        executor.close()
        executor.close()

    threads(4, rank)
