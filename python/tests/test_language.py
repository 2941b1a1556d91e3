"""mscclpp.language: programs give the plans that MSCCL++'s package gives, and misuse what it raises."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import plan_programs
import pytest
from conftest import alone

import weft
from mscclpp.language import *  # noqa: F403
from mscclpp.language.channel import *  # noqa: F403
from mscclpp.language.collectives import *  # noqa: F403
from mscclpp.language.general import *  # noqa: F403
from mscclpp.language.loop import *  # noqa: F403
from mscclpp.language.program import *  # noqa: F403
from mscclpp.language.rank import *  # noqa: F403

# ruff: noqa: F405

# The SHA-256 of what MSCCL++'s package writes of a program, with a newline behind it.
TEXTS = {
    "allgather": "3aa326875ba725fb33d331e712e4a9c98356326122540d18e966e2182b4c26fa",
    "allgather_groups_port": "c596269694254e03c0960779204cf4fb6841195c4c585421663314dbf868f36e",
    "allgather_packet_forward": "f75bf1556fa616055260cdeb5fc647a426a4e867ad35b8e40c49e8360df72434",
    "allgather_switch_packet": "13753f5e59f9f80a0ccdde6134105916899449bc31ca73d8f3687cb3d8ee992e",
    "allreduce_fused": "7814a69c07ad1d688a840dd468c2ea9022bd34178ed31c2dafe85cf7e358d55d",
    "allreduce_hierarchical": "1484bc8da9578395cccf4a6dde04f2aa89034c381f722f7f076569c128823558",
    "allreduce_packet": "d641472e3844c3c00403af238fca648ac360f576f9f583fd3e24721fd34de651",
    "allreduce_pipeline_switch": "9daca84b9c109972cfe76a3b8f3dffd50f711ace154ecaf624afddd3d61923f7",
    "allreduce_switch": "869299dfc79bbcce5310ed8501d2cfe933a27fe3bc6971b9641d0c574bb9fa89",
    "alltoall_pipeline": "9666946e8fd3567db6e78f8d1867fd4d8c5fbd13a42b816081b99a663bf543fd",
    "reducescatter_packet_port": "56954f21bd3d42879134c04718ff8079fd7d7a243b68f58731fbed21c5fb5105",
    "sendrecv_port": "9feee983693d07b647ff6ca20e3672b65de451ae4d4e3f73d2088ff9cd8c37b5",
}


@pytest.mark.parametrize("name", plan_programs.PROGRAMS)
def test_texts(name):
    """The exact bytes. WEFT_PLANS names a folder that may have the texts, to see where they differ."""
    text = plan_programs.PROGRAMS[name]() + "\n"
    if (folder := os.environ.get("WEFT_PLANS")) and (file := Path(folder, f"{name}.json")).exists():
        assert text == file.read_text()
    assert hashlib.sha256(text.encode()).hexdigest() == TEXTS[name]


@pytest.mark.parametrize("name", plan_programs.PROGRAMS)
def test_json(name):
    """A text is JSON as Python writes it, and a sound one is a plan, too."""
    text = plan_programs.PROGRAMS[name]()
    assert json.dumps(json.loads(text), indent=2) == text


SIZES = {"input": 4, "output": 4, "scratch": 16}


class Two:
    """Two ranks with channels of each type to each other, of 4 chunks, and of 16 of scratch."""

    def __init__(self):
        self.rank = Rank(0), Rank(1)
        self.memory = [MemoryChannel(1, 0) for _ in range(12)]
        self.port = [PortChannel(1, 0) for _ in range(2)]
        self.switch = {b: SwitchChannel([0, 1], b) for b in BufferType if b is not BufferType.scratch}
        self.scratch = Buffer(0, 16), Buffer(1, 16)
        self.switch[BufferType.scratch] = SwitchChannel([0, 1], BufferType.scratch)
        self.input = [r.get_input_buffer() for r in self.rank]
        self.output = [r.get_output_buffer() for r in self.rank]
        self.semaphore = Semaphore(0, 0), Semaphore(0, 2)

    def i(self, at, n=1, rank=0):
        return self.input[rank][at : at + n]

    def o(self, at, n=1, rank=0):
        return self.output[rank][at : at + n]

    def s(self, at, n=1, rank=0):
        return self.scratch[rank][at : at + n]


def plan_of(record, **options):
    """What a function records, as a plan."""
    with CollectiveProgram("p", TestCollective(2, 4, 4), 2, **options) as program:
        record(Two())
    program.register_signal = program.register_wait = None
    program.validate_signal_wait_pairing = lambda: None
    return json.loads(program.to_json())


def place(p, block, via, rank):
    """A place in a word: its buffer, where it begins, and how far it goes, as i0, 1o2-4, w3."""
    if "switch_channel_id" in p:
        text = "w"
    elif "buffer_id" in p:
        refs = next(r for r in block["remote_buffer_refs"] if r["access_channel_type"] == via)
        remote = rank["remote_buffers"][refs["remote_buffer_ids"][p["buffer_id"]]]
        text = f"{remote['rank']}{remote['type']}"
    else:
        text = p["type"]
    return f"{text}{p['index']}" + (f"-{p['index'] + p['size']}" if p["size"] != 1 else "")


def words(plan, rank=0, block=0):
    """The operations of a block, each in a word."""
    rank = plan["gpus"][rank]
    block = rank["threadblocks"][block]

    def word(op):
        if op["name"] == "pipeline":
            context = op["iter_context"]
            inner = " ".join(map(word, op["ops"]))
            return f"{context['unit_size']}x{context['num_chunks']}[{inner}]"
        ids = op.get("channel_ids", op.get("semaphore_ids"))
        text = op["name"] + ("" if ids is None else ",".join(map(str, ids)))
        if "buffer_type" in op:
            text += f"(w{op['buffer_offset']}>{place(op['dst_chunk'], block, None, rank)})"
        elif "dst_buff" in op:
            sides = [
                ",".join(place(p, block, op.get("channel_type"), rank) for p in op[k]) for k in ("src_buff", "dst_buff")
            ]
            text += f"({sides[0]}>{sides[1]})"
        if "tbg_info" in op:
            text += f"/{op['tbg_info']['tb_id']}of{op['tbg_info']['tbg_size']}"
        if op.get("reduce_op", "sum") != "sum":
            text += f":{op['reduce_op']}"
        return text

    return " ".join(map(word, block["ops"]))


NONE, BEFORE, AFTER = SyncType.none, SyncType.before, SyncType.after
GROUP = ThreadBlockGroup([0, 3])


def chain(*calls):
    """One record of several."""
    return lambda p: [call(p) for call in calls]


def looped(unit, chunks, *calls):
    def record(p):
        with LoopIterationContext(unit, chunks):
            chain(*calls)(p)

    return record


# Programs of block 0 of rank 0, and what it has then; with sound=True, where that differs.
SMALL = {
    "nop": (lambda p: p.rank[0].barrier([0]), "nop"),
    "barrier": (lambda p: p.rank[0].barrier([0, 1]), "barrier"),
    "acquire": (lambda p: p.semaphore[1].acquire(0, AFTER), "sem_acquire1 nop"),
    "release": (lambda p: p.semaphore[0].release(0), "nop sem_release0 nop"),
    "signal": (lambda p: p.memory[0].signal(0, NONE), "signal0"),
    "wait": (lambda p: p.memory[0].wait(0, BEFORE), "nop wait0"),
    "relaxed": (
        chain(lambda p: p.memory[1].signal(0, NONE, relaxed=True), lambda p: p.memory[0].wait(0, NONE, True)),
        "rlxsignal0 rlxwait1",
    ),
    "port": (chain(lambda p: p.port[0].signal(0), lambda p: p.port[0].wait(0)), "nop signal0 nop wait0 nop"),
    "flush": (lambda p: p.port[1].flush(0, NONE), "flush0"),
    "copy": (lambda p: p.rank[0].copy(p.o(1, 2), p.i(0, 2), tb=0), "copy(i0-2>o1-3)"),
    "copy of a group": (lambda p: p.rank[0].copy(p.o(1), p.i(0), tb_group=GROUP), "copy(i0>o1)/0of2"),
    "one block of a group": (lambda p: p.rank[0].copy(p.o(1), p.i(0), tb=0, tb_group=GROUP), "copy(i0>o1)/0of2"),
    "packets": (
        chain(
            lambda p: p.rank[0].copy_packets(p.s(1), p.i(0), 0), lambda p: p.rank[0].unpack_packets(p.o(0), p.s(1), 0)
        ),
        "cpkt(i0>s1) upkt(s1>o0)",
    ),
    "put": (lambda p: p.memory[0].put(p.o(1, rank=1), p.i(0), 0), "put(i0>1o1)"),
    "put of a group": (lambda p: p.memory[0].put(p.o(1, rank=1), p.i(0), tb_group=GROUP), "put(i0>1o1)/0of2"),
    "puts": (
        chain(*(lambda p, k=k: p.memory[k].put(p.o(k, rank=1), p.i(k), 0) for k in range(3))),
        "put(i0,i1,i2>1o0,1o1,1o2)",
    ),
    "puts of two buffers": (
        chain(
            lambda p: p.memory[0].put(p.o(0, rank=1), p.i(0), 0), lambda p: p.memory[0].put(p.o(1, rank=1), p.o(1), 0)
        ),
        "put(i0,o1>1o0,1o1)",
        "put(i0>1o0) put(o1>1o1)",
    ),
    "puts through ports": (
        chain(lambda p: p.port[1].put(p.o(0, rank=1), p.i(0), 0), lambda p: p.port[0].put(p.o(1, rank=1), p.i(0), 0)),
        "put0,1(i0,i0>1o0,1o1)",
    ),
    "put with signal": (lambda p: p.port[0].put_with_signal(p.i(0, rank=1), p.o(0), 0), "pws0(o0>1i0)"),
    "put with signal and flush": (
        lambda p: p.port[0].put_with_signal_and_flush(p.i(0, rank=1), p.o(0), 0),
        "pwsf0(o0>1i0)",
    ),
    "put packets": (lambda p: p.memory[0].put_packets(p.s(3, rank=1), p.i(0), 0), "ppkt(i0>1s3)"),
    "port put packets": (lambda p: p.port[0].put_packets(p.s(3, rank=1), p.s(0), 0), "ppkt0(s0>1s3)"),
    "read put packets": (
        chain(*(lambda p, k=k: p.memory[k].read_put_packets(p.s(k, rank=1), p.s(0), 0) for k in range(2))),
        "rppkt(s0>1s0,1s1)",
    ),
    "port read put packets": (
        lambda p: p.port[0].read_put_packets(p.s(3, rank=1), p.s(0), tb_group=GROUP),
        "rppkt0(s0>1s3)/0of2",
    ),
    "get": (
        chain(*(lambda p, k=k: p.memory[2 * k].get(p.o(k), p.i(k, rank=1), 0) for k in range(2))),
        "get0,1(1i0,1i1>o0,o1)",
    ),
    "get of a group": (lambda p: p.memory[0].get(p.o(0), p.i(0, rank=1), tb_group=GROUP), "get0(1i0>o0)/0of2"),
    "reduce": (lambda p: p.rank[0].reduce(p.i(0), [p.s(0), p.s(1)], 0), "re(i0,s0,s1>i0)"),
    "reduce min": (
        lambda p: p.rank[0].reduce(p.i(0), [p.s(0)], 0, dst_chunk=p.o(0), reduce_op=ReduceOperationType.min),
        "re(i0,s0>o0):min",
    ),
    "reduce of one chunk": (
        lambda p: p.rank[0].reduce(p.i(0), p.s(0), tb=0, op=ReduceOperationType.max),
        "re(i0,s0>i0):max",
    ),
    "reductions": (
        chain(*(lambda p, k=k: p.rank[0].reduce(p.i(0), [p.s(k)], 0, dst_chunk=p.o(0)) for k in range(2))),
        "re(i0,s0,s1>o0)",
        "re(i0,s0>o0) nop re(i0,s1>o0)",
    ),
    "reduce and put": (
        chain(lambda p: p.rank[0].reduce(p.i(0), [p.s(0)], 0), lambda p: p.memory[0].put(p.i(0, rank=1), p.i(0), 0)),
        "res(i0,s0>i0,1i0)",
    ),
    "read reduce": (
        lambda p: p.memory[0].reduce(p.i(0), [p.i(0, rank=1), p.s(1, rank=1)], 0, local_dst_chunk=p.o(0)),
        "rre(i0,1i0,1s1>o0)",
    ),
    "read reduce and puts": (
        chain(
            lambda p: p.memory[0].reduce(p.i(0), [p.i(0, rank=1)], 0),
            lambda p: p.memory[1].put(p.i(0, rank=1), p.i(0), 0),
            lambda p: p.memory[2].put(p.o(0, rank=1), p.i(0), 0),
        ),
        "rres(i0,1i0>i0,1i0,1o0)",
    ),
    "reduce packets": (lambda p: p.rank[0].reduce(p.i(0), [p.s(0), p.s(2)], 0, packet=True), "repkt(i0,s0,s2>i0)"),
    "reduce packets and put": (
        chain(
            lambda p: p.rank[0].reduce(p.i(0), [p.s(0)], 0, packet=True),
            lambda p: p.memory[0].put_packets(p.s(1, rank=1), p.i(0), 0),
        ),
        "respkt(i0,s0>i0,1s1)",
    ),
    "reduce packets and copy": (
        chain(
            lambda p: p.rank[0].reduce(p.i(0), [p.s(0)], 0, packet=True),
            lambda p: p.rank[0].copy_packets(p.s(4), p.i(0), 0),
        ),
        "recpkt(i0,s0>i0,s4)",
    ),
    "reduce packets, copy and put": (
        chain(
            lambda p: p.rank[0].reduce(p.i(0), [p.s(0)], 0, packet=True),
            lambda p: p.rank[0].copy_packets(p.s(4), p.i(0), 0),
            lambda p: p.memory[0].read_put_packets(p.s(1, rank=1), p.s(4), 0),
            lambda p: p.memory[0].put_packets(p.s(2, rank=1), p.i(0), 0),
        ),
        "recspkt(i0,s0>i0,s4,1s1,1s2)",
    ),
    "switch reduce": (
        lambda p: p.switch[BufferType.input].at_rank(0).reduce(1, 2, p.o(0, 2), 0),
        "glre0(w1>o0-2)",
    ),
    "switch broadcast": (
        lambda p: p.switch[BufferType.output].broadcast(0, p.i(1), 2, 1, 0),
        "gstore(i1>w2)",
    ),
    "switch packets": (
        lambda p: p.switch[BufferType.scratch].at_rank(0).broadcast_packets(p.s(1), 2, 1, 0),
        "gstorepkt(s1>w2)",
    ),
    "switch in place": (
        chain(
            lambda p: p.switch[BufferType.input].at_rank(0).reduce(1, 1, p.i(1), 0),
            lambda p: p.switch[BufferType.input].at_rank(0).broadcast(p.i(1), 1, 1, 0),
        ),
        "glres(w1>w1)",
    ),
    "switch elsewhere": (
        chain(
            lambda p: p.switch[BufferType.input].at_rank(0).reduce(1, 1, p.o(0), 0),
            lambda p: p.switch[BufferType.input].at_rank(0).broadcast(p.o(0), 3, 1, 0),
        ),
        "glres(w1>w1)",
        "glre0(w1>o0) nop gstore(o0>w3)",
    ),
    "pipeline": (
        looped(64, 2, lambda p: p.rank[0].copy(p.s(0, 2), p.i(0, 2), 0), lambda p: p.semaphore[0].release(0)),
        "64x2[copy(i0-2>s0-2) nop sem_release0 nop]",
    ),
    "pipelines": (
        chain(
            looped(64, 1, lambda p: p.memory[0].wait(0, AFTER)),
            looped(64, 1, lambda p: p.memory[0].signal(0, BEFORE)),
            lambda p: p.rank[0].barrier([0]),
        ),
        "64x1[wait0 nop] 64x1[nop signal0] nop",
    ),
    "pipeline that ends in a barrier": (
        chain(
            lambda p: p.memory[0].wait(0, AFTER),
            looped(64, 1, lambda p: p.rank[0].copy(p.s(0), p.i(0), 0), lambda p: p.rank[0].barrier([0, 1])),
        ),
        "wait0 64x1[copy(i0>s0) barrier]",
        "wait0 nop 64x1[copy(i0>s0) barrier]",
    ),
    "hazards": (
        chain(
            lambda p: p.rank[0].copy(p.s(0), p.i(0), 0),
            lambda p: p.rank[0].copy(p.o(0), p.s(0), 0),
            lambda p: p.rank[0].copy(p.o(1), p.i(0), 0),
        ),
        "copy(i0>s0) nop copy(s0>o0) copy(i0>o1)",
    ),
    "the data of packets": (
        chain(
            lambda p: p.rank[0].copy(p.i(0), p.o(0), 0),
            lambda p: p.rank[0].reduce(p.i(0), [p.s(0)], 0, packet=True),
        ),
        "copy(o0>i0) nop repkt(i0,s0>i0)",
    ),
    "the data of packets elsewhere": (
        chain(
            lambda p: p.rank[0].copy(p.i(0), p.o(0), 0),
            lambda p: p.rank[0].reduce(p.i(0), [p.s(0)], 0, dst_chunk=p.o(1), packet=True),
        ),
        "copy(o0>i0) repkt(i0,s0>o1)",
        "copy(o0>i0) nop repkt(i0,s0>o1)",
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_small(name):
    record, want, *sound = SMALL[name]
    assert words(plan_of(record)) == want
    assert words(plan_of(record, sound=True)) == (sound[0] if sound else want)


@pytest.mark.parametrize("name", SMALL)
def test_options(name):
    """Without fusion each call is an operation; without auto_sync no barrier is there but those asked for."""
    record, want, *_ = SMALL[name]
    counted = []

    class Counting(CollectiveProgram):
        def add_operation(self, rank, tb, operation):
            super().add_operation(rank, tb, operation)
            counted.append((rank, tb, type(operation)))

    with Counting("p", TestCollective(2, 4, 4), 2, instr_fusion=False, auto_sync=False) as program:
        record(Two())
    program.validate_signal_wait_pairing = lambda: None
    apart = re.sub(r"\d+x\d+\[|\]", "", words(json.loads(program.to_json())))
    calls = [kind for rank, tb, kind in counted if (rank, tb) == (0, 0) and kind is not SyncOperation]
    assert len([w for w in apart.split() if not w.startswith("nop")]) == len(calls)
    loose = words(plan_of(record, auto_sync=False))
    assert loose.replace(" nop", "") == want.replace(" nop", "")


@pytest.mark.parametrize("instances", [1, 2, 3, 4])
@pytest.mark.parametrize("name", SMALL)
def test_instances(name, instances):
    """Instance i of n has the ranges that begin n times as far, and i lengths further; numbers likewise."""
    record, *_ = SMALL[name]
    once, often = plan_of(record), plan_of(record, instances=instances)
    for key in ("input_chunks", "output_chunks", "scratch_chunks"):
        assert often["gpus"][0][key] == instances * once["gpus"][0][key]
    for k, block in enumerate(once["gpus"][0]["threadblocks"]):
        for i in range(instances):
            got = often["gpus"][0]["threadblocks"][k * instances + i]
            assert got["id"] == k * instances + i
            assert got["ops"] == shifted(block["ops"], instances, i)
            assert got["remote_buffer_refs"] == block["remote_buffer_refs"]
            for of, to in zip(block["channels"], got["channels"], strict=True):
                assert to["channel_ids"] == [v * instances + i for v in of["channel_ids"]]


def shifted(value, n, i):
    """What an instance has of operations."""
    if isinstance(value, list):
        return [shifted(v, n, i) for v in value]
    if not isinstance(value, dict):
        return value
    new = {k: shifted(v, n, i) for k, v in value.items()}
    for at in ("index", "buffer_offset"):
        if at in new:
            new[at] = value[at] * n + i * value["size"]
    if "semaphore_ids" in new:
        new["semaphore_ids"] = [v * n + i for v in value["semaphore_ids"]]
    if "barrier_id" in new:
        new["barrier_id"] = value["barrier_id"] * n + i
    return new


def test_merged_channels():
    """Channels of one wait are in the order that a set of the interpreter has."""
    chosen = random.Random(7)
    for _ in range(40):
        ids = chosen.sample(range(60), chosen.randint(1, 24))
        with CollectiveProgram("p", TestCollective(2, 4, 4), 2) as program:
            channels = [MemoryChannel(1, 0) for _ in range(60)]
            # The block's own numbers are those of the rank.
            for ch in channels:
                ch.put(Rank(1).get_input_buffer()[0:1], Rank(0).get_input_buffer()[0:1], 0)
            for k in ids:
                channels[k].wait(0, SyncType.none)
        merged = set()
        for k in ids:
            merged = set({k}) if not merged else set(merged | {k})
        program.validate_signal_wait_pairing = lambda: None
        got = json.loads(program.to_json())["gpus"][0]["threadblocks"][0]["ops"][-1]
        assert got == {"name": "wait", "channel_ids": list(merged), "channel_type": "memory"}


def test_header():
    plan = plan_of(
        lambda _: None,
        protocol="LL",
        reuse_resources=True,
        num_threads_per_block=64,
        use_double_scratch_buffer=True,
        buffer_alignment=32,
        min_message_size=5,
        max_message_size=7,
    )
    gpus = plan.pop("gpus")
    assert plan == {
        "name": "p",
        "collective": "test",
        "protocol": "LL",
        "inplace": False,
        "reuse_resources": True,
        "num_threads_per_block": 64,
        "use_double_scratch_buffer": True,
        "buffer_alignment": 32,
        "min_message_size": 5,
        "max_message_size": 7,
    }
    assert [g["scratch_chunks"] for g in gpus] == [16, 16]
    assert gpus[0]["semaphores"] == [{"init_value": 0}, {"init_value": 2}]
    assert gpus[0]["channels"][:2] == [
        {"channel_type": "memory", "connected_to": [1] * 12},
        {"channel_type": "port", "connected_to": [1] * 2},
    ]
    assert [c["buffer_type"] for c in gpus[1]["channels"]] == ["i", "o", "s"]


def test_text_as_asked():
    with CollectiveProgram("né", AllReduce(2, 1), 2, instances=2) as program:
        text = JSON()
        Rank(0).copy(Rank(0).get_output_buffer()[:], Rank(0).get_input_buffer()[:], 0)
    assert program.to_json() == program.to_json() != text
    assert program.to_json(indent=None, separators=(",", ":"), ensure_ascii=False).startswith('{"name":"né","coll')
    assert '\n    "name": "n\\u00e9",' in program.to_json(indent=4)
    assert json.loads(program.to_json(sort_keys=True)) == json.loads(program.to_json())
    assert json.loads(text)["gpus"][0]["threadblocks"] == []


class Own(Collective):
    name = "mine"

    def init_buffers(self):
        return [
            {
                BufferType.input: BaseBuffer(r, BufferType.input, 0, 3),
                BufferType.output: BaseBuffer(r, BufferType.output, 0, 1),
            }
            for r in range(self.num_ranks)
        ]


@pytest.mark.parametrize(
    ("collective", "chunks", "name"),
    [
        (AllReduce(4, 2, True), (8, 8), "allreduce"),
        (AllToAll(4, 2, False), (8, 8), "alltoall"),
        (AllGather(4, 2, True), (2, 8), "allgather"),
        (ReduceScatter(4, 2, True), (8, 2), "reducescatter"),
        (SendRecv(4, 2, False), (2, 2), "sendrecv"),
        (TestCollective(4, 0, 0), (0, 0), "test"),
        (Own(4, 1, True), (3, 1), "mine"),
    ],
)
def test_collectives(collective, chunks, name):
    with CollectiveProgram("p", collective, 4) as program:
        pass
    plan = json.loads(program.to_json())
    assert plan["collective"] == name
    assert plan["inplace"] is collective.inplace
    assert [(g["input_chunks"], g["output_chunks"]) for g in plan["gpus"]] == [chunks] * 4


def in_program(call, **options):
    def run():
        with CollectiveProgram("p", TestCollective(2, 4, 4), 2, **options):
            call(Two())

    return run


def finished(record, **options):
    def run():
        with CollectiveProgram("p", TestCollective(2, 4, 4), 2, **options) as program:
            record(Two())
        program.to_json()

    return run


BLOCK = "Either 'tb' (thread block ID) or 'tb_group' (ThreadBlockGroup) must be provided, but both are None."
MISUSE = [
    (lambda: Rank(0), RuntimeError, "No Program in context"),
    (lambda: MemoryChannel(1, 0), RuntimeError, "No Program in context"),
    (JSON, RuntimeError, "No Program in context"),
    (in_program(lambda _: None, protocol="X"), AssertionError, "Given protocol: X. Must be either Simple, LL"),
    (lambda: CollectiveProgram("p", AllReduce(2, 1), 3), IndexError, "list index out of range"),
    (in_program(lambda _: MemoryChannel(2, 3)), RuntimeError, "Source rank 3 is out of bounds. Number of ranks: 2"),
    (in_program(lambda _: PortChannel(2, 0)), RuntimeError, "Destination rank 2 is out of bounds. Number of ranks: 2"),
    (in_program(lambda _: Semaphore(2, 0)), RuntimeError, "Source rank 2 is out of bounds. Number of ranks: 2"),
    (in_program(lambda _: MemoryChannel(1, -1)), RuntimeError, "Source rank -1 is out of bounds. Number of ranks: 2"),
    (
        in_program(lambda _: MemoryChannel(1, 1)),
        RuntimeError,
        "Channel from rank 1 to itself; the two ranks must differ.",
    ),
    (in_program(lambda _: Rank(2)), RuntimeError, "Rank 2 is out of bounds. Number of ranks: 2"),
    (in_program(lambda _: Buffer(2, 1)), RuntimeError, "Rank 2 is out of bounds. Number of ranks: 2"),
    (
        in_program(lambda _: SwitchChannel([0, 2], BufferType.input)),
        RuntimeError,
        "One or more ranks in [0, 2] are out of bounds. Number of ranks: 2",
    ),
    (
        in_program(lambda p: p.switch[BufferType.input].at_rank(3)),
        RuntimeError,
        "Rank 3 is not part of this SwitchChannel's rank group.",
    ),
    (
        in_program(lambda p: p.memory[0].put(p.o(0, rank=1), p.i(0, rank=1), 0)),
        RuntimeError,
        "Source chunk rank 1 does not match current channel source rank 0.",
    ),
    (
        in_program(lambda p: p.port[0].put(p.o(0), p.i(0), 0)),
        RuntimeError,
        "Dst chunk rank 0 does not match current channel dst rank 1.",
    ),
    (
        in_program(lambda p: p.memory[0].get(p.o(0, rank=1), p.i(0, rank=1), 0)),
        RuntimeError,
        "Source chunk rank 1 does not match current channel source rank 0.",
    ),
    (
        in_program(lambda p: p.memory[0].get(p.o(0), p.i(0), 0)),
        RuntimeError,
        "Dst chunk rank 0 does not match current channel dst rank 1.",
    ),
    (
        in_program(lambda p: p.memory[0].reduce(p.i(0, rank=1), [p.i(0, rank=1)], 0)),
        RuntimeError,
        "Destination chunk rank 1 does not match current channel source rank 0.",
    ),
    (
        in_program(lambda p: p.memory[0].reduce(p.i(0), [p.i(1)], 0)),
        RuntimeError,
        "Source chunk rank 0 does not match current channel dst rank 1.",
    ),
    (
        in_program(lambda p: p.memory[0].reduce(p.i(0), [p.i(1, 2, rank=1)], 0)),
        RuntimeError,
        "Source chunk size 2 does not match local source chunk size 1.",
    ),
    (
        in_program(lambda p: p.memory[0].put(p.o(0, 2, rank=1), p.i(0), 0)),
        RuntimeError,
        "Destination chunk size 2 does not match source chunk size 1.",
    ),
    (
        in_program(lambda p: p.memory[0].get(p.o(0, 2), p.i(0, rank=1), 0)),
        RuntimeError,
        "Destination chunk size 2 does not match source chunk size 1.",
    ),
    (
        in_program(lambda p: p.memory[0].put_packets(p.o(0, rank=1), p.i(0), 0)),
        RuntimeError,
        "Destination chunk must be of type scratch.",
    ),
    (
        in_program(lambda p: p.port[0].read_put_packets(p.s(0, rank=1), p.i(0), 0)),
        RuntimeError,
        "Source chunk must be of type scratch.",
    ),
    (
        in_program(lambda p: p.rank[0].copy(p.o(0, rank=1), p.i(0), 0)),
        RuntimeError,
        "Inconsistent ranks: dst 1, src 0, self 0. They must match.",
    ),
    (
        in_program(lambda p: p.rank[0].copy(p.o(0, 2), p.i(0), 0)),
        RuntimeError,
        "Inconsistent chunk sizes: dst 2, src 1. They must match.",
    ),
    (
        in_program(lambda p: p.rank[0].copy_packets(p.o(0), p.i(0), 0)),
        RuntimeError,
        "Destination chunk must be of type scratch.",
    ),
    (
        in_program(lambda p: p.rank[0].unpack_packets(p.o(0), p.i(0), 0)),
        RuntimeError,
        "Source chunk must be of type scratch.",
    ),
    (in_program(lambda p: p.rank[0].reduce(p.i(0), [], 0)), RuntimeError, "Other chunk empty."),
    (
        in_program(lambda p: p.rank[0].reduce(p.i(0), [p.i(0, rank=1)], 0)),
        RuntimeError,
        "Other chunk rank 1 does not match current rank 0.",
    ),
    (
        in_program(lambda p: p.rank[0].reduce(p.i(0), [p.i(0, 2)], 0)),
        RuntimeError,
        "Inconsistent chunk sizes: other 2, src 1. They must match.",
    ),
    (
        in_program(lambda p: p.rank[0].reduce(p.i(0), [p.i(1)], 0, packet=True)),
        RuntimeError,
        "Other chunk must be of type scratch.",
    ),
    (in_program(lambda p: p.rank[0].copy(p.o(0), p.i(0))), RuntimeError, BLOCK),
    (in_program(lambda p: p.memory[0].put(p.o(0, rank=1), p.i(0))), RuntimeError, BLOCK),
    (in_program(lambda p: p.memory[0].read_put_packets(p.s(0, rank=1), p.s(0))), ValueError, BLOCK),
    (in_program(lambda p: p.port[0].read_put_packets(p.s(0, rank=1), p.s(0))), ValueError, BLOCK),
    (
        in_program(lambda p: p.port[0].put(p.o(0, rank=1), p.i(0))),
        TypeError,
        "PortChannel.put() missing 1 required positional argument: 'tb'",
    ),
    (in_program(lambda p: p.rank[0].copy(p.o(0), p.i(0), -1)), RuntimeError, "Thread block -1 is negative."),
    (in_program(lambda p: p.input[0][0]), TypeError, "Buffer indices must be slices, not int"),
    (in_program(lambda p: p.input[0][0:4:2]), ValueError, "Buffer slicing does not support step != 1 (got step=2)"),
    (
        in_program(lambda p: p.input[0][-1:2]),
        ValueError,
        "Buffer slicing does not support negative indices (got start=-1, stop=2)",
    ),
    (in_program(lambda p: p.input[0][2:1]), ValueError, "Buffer slice start (2) must be <= stop (1)"),
    (
        in_program(lambda p: p.input[0][0:5]),
        RuntimeError,
        "Index range from 0 - 5 is out of bounds for buffer i. Buffer size: 4",
    ),
    (
        in_program(lambda _: Buffer(0, 2)[1:3]),
        RuntimeError,
        "Index range from 17 - 19 is out of bounds for buffer s. Buffer size: 18",
    ),
    (
        in_program(lambda p: p.switch[BufferType.input].reduce(0, 0, 1, p.o(0, 2), 0)),
        RuntimeError,
        "Destination chunk size 2 does not match the required size 1.",
    ),
    (
        in_program(lambda p: p.switch[BufferType.input].reduce(0, 3, 2, p.o(0, 2), 0)),
        RuntimeError,
        "Buffer size 4 is smaller than required size 5 for rank 0.",
    ),
    (
        in_program(lambda p: p.switch[BufferType.input].reduce(0, 0, 1, Chunk(2, BufferType.input, 0, 1), 0)),
        RuntimeError,
        "Destination chunk rank 2 is not part of the rank group [0, 1].",
    ),
    (
        in_program(lambda p: p.switch[BufferType.input].reduce(0, 0, 1, p.o(0, rank=1), 0)),
        RuntimeError,
        "Destination chunk rank 1 does not match the rank 0 that uses it.",
    ),
    (
        in_program(lambda p: p.switch[BufferType.scratch].broadcast_packets(0, p.i(0), 0, 1, 0)),
        RuntimeError,
        "Source chunk must be of type scratch for the packet broadcast.",
    ),
    (lambda: ThreadBlockGroup([0, 1, 0]), ValueError, "Duplicate thread block found at index 2: 0"),
    (
        in_program(lambda p: p.rank[0].copy(p.o(0), p.i(0), tb=5, tb_group=GROUP)),
        ValueError,
        "Thread block 5 not found in thread block group",
    ),
    (in_program(lambda p: p.rank[0].barrier([])), RuntimeError, "Barrier requires at least thread block."),
    (
        in_program(lambda p: p.rank[0].barrier([0, 0])),
        RuntimeError,
        "Barrier of thread blocks [0, 0]: one that is there twice would wait for itself.",
    ),
    (in_program(looped(1, 1, looped(1, 1))), RuntimeError, "Nested Pipelines are not Supported."),
    (
        finished(lambda p: p.memory[0].signal(0)),
        RuntimeError,
        "Signal/Wait mismatch on memory: rank 0 issues 1 signal(s) to rank 1, but rank 1 performs 0 wait(s) for rank "
        "0. Every signal must be matched by a corresponding wait on the peer rank over a channel of the same type.",
    ),
    (
        finished(lambda p: p.port[0].put_with_signal(p.o(0, rank=1), p.i(0), 0)),
        RuntimeError,
        "Signal/Wait mismatch on port: rank 0 issues 1 signal(s) to rank 1, but rank 1 performs 0 wait(s) for rank 0. "
        "Every signal must be matched by a corresponding wait on the peer rank over a channel of the same type.",
    ),
    (
        finished(lambda _: None, replication_policy=ReplicationPolicy.none),
        TypeError,
        "replication_policy none: instances that share their chunks would all do the same; use "
        "ReplicationPolicy.interleaved",
    ),
    (finished(lambda _: None, instances=0), weft.InvalidError, None),
]


@pytest.mark.parametrize("case", range(len(MISUSE)))
def test_misuse(case):
    call, error, text = MISUSE[case]
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error
    if text is not None:
        assert str(raised.value) == text
    with pytest.raises(RuntimeError, match="No Program in context"):
        Rank(0)  # a program that failed has ended, too


def test_program_in_program():
    with CollectiveProgram("p", AllReduce(2, 1), 2):
        with CollectiveProgram("q", AllReduce(2, 1), 2):
            assert MemoryChannel(1, 0).channel_id == 0
        with pytest.raises(RuntimeError, match="No Program in context"):
            Rank(0)


def test_numbers_begin_anew():
    for _ in range(2):
        with CollectiveProgram("p", AllReduce(3, 1), 3):
            assert [MemoryChannel(1, 0).channel_id, MemoryChannel(2, 0).channel_id] == [0, 1]
            assert [PortChannel(1, 0).channel_id, MemoryChannel(0, 1).channel_id] == [0, 0]
            assert SwitchChannel([1, 2], BufferType.input).channel_ids == {1: 0, 2: 0}
            assert SwitchChannel([0, 1], BufferType.input).channel_ids == {0: 0, 1: 1}
            assert [Semaphore(0, 1).id, Semaphore(0, 1).id, Semaphore(1, 1).id] == [0, 1, 0]


def test_barriers_of_a_program():
    """Each list of blocks, in its order, has a number of its own on its rank, and other programs have none of them."""

    def record(p):
        for blocks in ([0, 1], [1, 0], [0, 1], [0, 1, 2]):
            p.rank[0].barrier(blocks)
        p.rank[1].barrier([0, 1])

    for _ in range(2):
        gpus = plan_of(record)["gpus"]
        assert [o["barrier_id"] for o in gpus[0]["threadblocks"][0]["ops"]] == [0, 1, 0, 2]
        assert [o["num_threadblocks"] for o in gpus[0]["threadblocks"][0]["ops"]] == [2, 2, 2, 3]
        assert gpus[1]["threadblocks"][0]["ops"][0]["barrier_id"] == 0


def test_operations_by_hand():
    """What channels call on a program may be called by others."""

    def record(p):
        program = get_program()
        buffer = RemoteBuffer(0, 1, BufferType.output, ChannelType.memory)
        to = program.setup_remote_chunk(0, 0, buffer, ChannelType.memory)
        ids = program.setup_channel(0, p.memory[3])
        chunk = RemoteChunk(BufferType.output, 1, 1, to)
        op = PutOperation(Instruction.put, [LocalChunk(BufferType.input, 0, 1)], [chunk], ids, ChannelType.memory)
        program.add_operation(0, 0, op)

    plan = plan_of(record)
    assert words(plan) == "put(i0>1o1)"
    assert plan["gpus"][0]["threadblocks"][0]["channels"] == [{"channel_type": "memory", "channel_ids": [3]}]


def test_aliases():
    assert MSCCLPPProgram is CollectiveProgram
    assert MemoryChannel.put_packet is MemoryChannel.put_packets
    assert PortChannel.read_put_packet is PortChannel.read_put_packets
    assert Rank.unpack_packet is Rank.unpack_packets
    assert Rank.copy_packet is Rank.copy_packets
    assert BufferType.input.value == "i"
    assert (SyncType.before | SyncType.after) is SyncType.both
    assert (SyncType.both & SyncType.before) is SyncType.before
    assert (SyncType.both ^ SyncType.before) is SyncType.after


def test_specification():
    spec = AlgoSpec("s", AllReduce(2, 1), 2, 2, True, 1, "Simple")
    assert spec.tags == {}
    assert spec.max_message_size == 2**64 - 1
    with pytest.raises(TypeError):
        hash(spec)
    with pytest.raises(AttributeError):
        spec.name = "t"
    program = CollectiveProgram.from_spec(spec)
    assert (program.name, program.num_ranks, program.protocol) == ("s", 2, "Simple")


# A program as it is written for MSCCL++, run as such programs are run.
PROGRAM = """
import argparse
from mscclpp.language import *

parser = argparse.ArgumentParser()
parser.add_argument("--name", type=str)
args = parser.parse_args()
with CollectiveProgram(args.name, AllGather(2, 1, True), 2, protocol="LL"):
    for me in range(2):
        chan = MemoryChannel(1 - me, me)
        scratch = [Buffer(r, 2) for r in range(2)]
        chan.put_packets(scratch[1 - me][0:1], Rank(me).get_output_buffer()[me : me + 1], tb=0)
    print(JSON())
"""


def test_a_program_by_itself(tmp_path):
    """The language needs neither PyTorch nor NumPy."""
    file = tmp_path / "program.py"
    file.write_text("import sys\nsys.modules['torch'] = sys.modules['numpy'] = None\n" + PROGRAM)
    ran = subprocess.run(
        [sys.executable, str(file), "--name", "x"], env=alone(), capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["name"] == "x"


def test_pairs_of_operations():
    """Any two operations in a row become a plan, and none is lost or made up."""

    def count(record):
        return len(words(plan_of(record, instr_fusion=False, auto_sync=False)).split())

    kinds = {record: count(record) for record, *_ in SMALL.values()}
    for a, b in itertools.product(list(kinds)[::9], kinds):
        assert count(chain(a, b)) == kinds[a] + kinds[b]
