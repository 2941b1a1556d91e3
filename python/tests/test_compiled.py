"""The compiled part: it makes the ordinary calls, with the results and errors of Python code, and leaves nothing."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

import pytest
from conftest import EVERYTHING, HERE, SOURCE, at_once

import weft
from weft import compiled, ep

torch = pytest.importorskip("torch")
if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    pytest.skip("this PyTorch has no exchange of tensors in C", allow_module_level=True)
if compiled.NATIVE is None:
    pytest.skip("without the compiled part", allow_module_level=True)

import deep_ep  # noqa: E402

X = torch.arange(4 * 128, dtype=torch.bfloat16).view(4, 128)
IDS = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0]])
WEIGHTS = torch.full((4, 2), 0.5)


@pytest.fixture
def handle(comm):
    with ep.Handle(comm, experts=4, topk=2, hidden=128, max_tokens=4) as h:
        yield h


@pytest.fixture
def buffer(comm):
    b = deep_ep.Buffer.from_communicator(comm)
    b.get_dispatch_layout(IDS, 4)
    for fp8 in (False, True):
        b.low_latency_dispatch(X, IDS, 4, 4, use_fp8=fp8)
    return b


def refuses(*_):
    raise AssertionError("Python code makes the call")


def test_it_makes_the_calls(handle, buffer, monkeypatch):
    """None of these gets to the Python code."""
    routing = handle.prepare(IDS, WEIGHTS)
    layout = buffer.get_dispatch_layout(IDS, 4)
    options = dict(zip(("num_tokens_per_rank", "_", "num_tokens_per_expert", "is_token_in_rank"), layout, strict=False))
    del options["_"]
    buffer.dispatch(X, topk_idx=IDS, topk_weights=WEIGHTS, **options)
    for kind in (handle, *buffer._exchanges._handles.values()):
        monkeypatch.setattr(kind._dispatches, "take", refuses)
        monkeypatch.setattr(kind._combines, "take", refuses)
    monkeypatch.setattr(ep, "count", refuses)
    for got in (handle.dispatch(X, IDS, WEIGHTS), handle.dispatch(X, routing=routing)):
        assert handle.combine(got.rows, got).equal(X)
        assert handle.combine(got.rows, got.routing, out=torch.empty_like(X), bias=(X, X)).equal(3 * X)
    buffer.get_dispatch_layout(IDS, 4)
    for fp8 in (False, True):
        _, counts, low, *_ = buffer.low_latency_dispatch(X, IDS, 4, 4, use_fp8=fp8)
        assert counts.tolist() == [2] * 4
        ones, given = torch.ones(4, 4, 128, dtype=torch.bfloat16), torch.empty_like(X)
        out, event, _ = buffer.low_latency_combine(ones, IDS, WEIGHTS, low)
        assert (out == 1).all()
        assert type(event) is type(buffer.capture())
        event.extra_tensors = (out,)
        assert (vars(event), event.event) == ({"extra_tensors": (out,)}, None)
        assert buffer.low_latency_combine(ones, IDS, WEIGHTS, low, out=given)[0] is given
        assert (given == 1).all()
    rows, ids, weights, counts, kept, _ = buffer.dispatch(X, topk_idx=IDS, topk_weights=WEIGHTS, **options)
    assert rows.equal(X)
    assert ids.equal(IDS)
    assert weights.equal(WEIGHTS)
    assert counts == [2] * 4
    assert buffer.dispatch(X + 1, handle=kept)[0].equal(X + 1)
    assert buffer.combine(rows, kept)[0].equal(X)


@pytest.mark.parametrize("expand", [False, True])
def test_it_makes_the_calls_of_elastic(comm, monkeypatch, expand):
    """Nor do these of the second buffer, and the route of a handle is made when it is asked for."""
    b, options = deep_ep.ElasticBuffer.from_communicator(comm, num_max_tokens_per_rank=4), {"do_expand": expand}
    b.dispatch(X, IDS, WEIGHTS, num_experts=4, **options)
    with monkeypatch.context() as until:
        for kind in b._exchanges._handles.values():
            until.setattr(kind._dispatches, "take", refuses)
            until.setattr(kind._combines, "take", refuses)
            until.setattr(kind, "_descriptions", None)
        until.setattr(deep_ep.routes, "Route", refuses)
        rows, ids, weights, handle, _ = b.dispatch(X, IDS, WEIGHTS, num_experts=4, **options)
        again, *_ = b.dispatch(X + 1, handle=handle, **options)
        sums, *_ = b.combine(rows, handle)
    order = torch.tensor([0, 3, 0, 1, 1, 2, 2, 3]) if expand else torch.arange(4)
    assert rows.equal(X[order])
    assert again.equal((X + 1)[order])
    assert sums.equal((2 if expand else 1) * X)
    assert (weights == 0.5).all()
    assert ids is None if expand else ids.equal(IDS)
    assert handle.num_recv_tokens_per_expert_list == [2] * 4
    assert handle.topk_idx.equal(IDS)
    assert handle.num_unaligned_recv_tokens_per_expert.tolist() == [2] * 4


def test_both_ways_say_the_same(torch_program):
    """answers.py prints as much with the compiled part as without it, and which of them it was."""

    def answers(used):
        ended = torch_program(HERE / "answers.py", timeout=240, WEFT_COMPILED=used)
        assert ended.code == 0, ended.out
        *said, compiled_part = ended.out.splitlines()
        return said, compiled_part

    (ours, yes), (theirs, no) = answers("1"), answers("0")
    assert (yes, no) == ("True", "False")
    assert len(ours) == len(theirs) > 300
    for got, want in zip(ours, theirs, strict=True):
        assert got == want


def test_the_tests_of_exchanges_without_it(torch_program):
    files = ["test_ep.py", *(("test_deep_ep.py", "test_elastic.py", "test_hybrid_ep.py") if EVERYTHING else ())]
    program = "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", *(HERE / file for file in files)
    ended = torch_program(*program, timeout=600, WEFT_COMPILED="0")
    assert ended.code == 0, ended.out


def test_nothing_is_left(handle, buffer):
    """References, tensors and the library's handles are as many after many calls as after a few."""
    weights, ids = WEIGHTS.clone(), IDS.clone()
    rows = torch.ones(4, 4, 128, dtype=torch.bfloat16)
    layout = buffer.get_dispatch_layout(ids, 4)
    options = {"num_tokens_per_rank": layout[0], "num_tokens_per_expert": layout[2], "is_token_in_rank": layout[3]}

    def calls(n):
        for _ in range(n):
            got = handle.dispatch(X, ids, weights)
            handle.combine(got.rows, got)
            del got
            low = buffer.low_latency_dispatch(X, ids, 4, 4, use_fp8=False)[2]
            buffer.low_latency_combine(rows, ids, weights, low)
            del low
            buffer.get_dispatch_layout(ids, 4)
            kept = buffer.dispatch(X, topk_idx=ids, topk_weights=weights, **options)[4]
            buffer.dispatch(X, handle=kept)
            del kept

    watched = [handle, handle._calls, ids, weights, rows, ep.Routing, ep.Received, ids.dtype, None, "torch"]
    of_handles = [h for h in (handle, *buffer._exchanges._handles.values()) if h._calls is not None]

    def counted():
        gc.collect()
        compiled.drained()
        return (
            [sys.getrefcount(thing) for thing in watched[:8]],
            len(gc.get_objects()),
            [(h._calls.shown, h._calls.batches, min(h._calls.pending, 4), len(h._watched)) for h in of_handles],
        )

    calls(1000)
    before, memory = counted(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    calls(20_000)  # 10^5 calls and more
    after = counted()
    for was, now in zip(before[0], after[0], strict=True):
        assert abs(now - was) <= 3, (before, after)
    assert abs(after[1] - before[1]) < 100
    assert after[2] == before[2]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 20_000  # KiB


def test_arrays_outlive_what_they_show():
    c = weft.join()
    h = ep.Handle(c, experts=4, topk=2, hidden=128, max_tokens=4)
    got = h.dispatch(X, IDS, WEIGHTS)
    rows, part = got.rows, got.rows[0, 0]
    h.close()
    c.close()
    del got, h
    gc.collect()
    assert rows[0, 0].equal(X[0])
    rows[:] = 5
    del rows
    assert (part == 5).all()
    before = mapped()
    del part
    weft.join().close()  # whatever makes or closes something gives back what has gone
    assert mapped() < before


def mapped():
    """The bytes of windows that this process has mapped."""
    return sum(
        int(end, 16) - int(begin, 16)
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "memfd:" in line
        for begin, end in [line.split()[0].split("-")]
    )


def test_large_results_are_shown(comm):
    """A few stay where they have arrived; more are copied, and all keep their content."""
    x, b = torch.randn(64, 2048).bfloat16(), deep_ep.Buffer.from_communicator(comm)
    ids = torch.arange(128).view(64, 2) % 4
    kept = [b.low_latency_dispatch(x + i, ids, 64, 4, use_fp8=False)[:3] for i in range(6)]
    layout = b.get_dispatch_layout(ids, 4)
    options = {"num_tokens_per_rank": layout[0], "num_tokens_per_expert": layout[2], "is_token_in_rank": layout[3]}
    normal = [b.dispatch(x + i, topk_idx=ids, **options)[0] for i in range(12)]
    for i, (rows, counts, _) in enumerate(kept):
        assert counts.tolist() == [32] * 4
        assert rows[0, :32].equal((x + i)[::2])
    for i, rows in enumerate(normal):
        assert rows.equal(x + i)
    del kept, normal, rows
    assert all(h._calls.batches == 0 for h in b._exchanges._handles.values() if compiled.drained() >= 0)


def test_threads(threads):
    """Ranks that are threads, and tensors that others drop meanwhile, also where no lock of the interpreter is held."""

    def rank(c):
        b = deep_ep.Buffer.from_communicator(c)
        x, ids = torch.randn(16, 4096).bfloat16(), torch.arange(32).view(16, 2) % 4
        dropped = []

        def drop(_):
            for _ in range(2000):
                if dropped:
                    dropped.pop()

        dropper = threading.Thread(target=at_once, args=(drop, range(2)))
        dropper.start()
        for _ in range(200):
            rows, _, low, *_ = b.low_latency_dispatch(x, ids, 16, 4, use_fp8=False)
            out, *_ = b.low_latency_combine(rows, ids, torch.full((16, 2), 0.5), low)
            assert out.equal(x)
            dropped.append(rows)
        # Autograd's thread drops what it has saved.
        leaf = torch.ones(1, requires_grad=True)
        (rows.float() * leaf).sum().backward()
        dropper.join()
        return True

    assert threads(2, rank) == [True, True]


def test_interrupts(threads):
    """A signal ends a wait within the compiled part, and the next exchange works."""
    ids, ready = weft.UniqueId.create("lo"), threading.Barrier(2, timeout=60)
    others, failed = [], []

    def exchange(h):
        with h.dispatch(X, IDS, WEIGHTS) as got:
            return h.combine(got.rows, got)

    def other():
        try:
            with weft.Communicator.from_unique_id(ids, 1, 2, deadline=60) as c:
                h = ep.Handle(c, experts=4, topk=2, hidden=128, max_tokens=4)
                exchange(h)
                ready.wait()
                ready.wait()
                c.set_mask()
                others.append(exchange(h))
                ready.wait()
                h.close()
        except BaseException as e:
            failed.append(e)

    thread = threading.Thread(target=other)
    thread.start()
    with weft.Communicator.from_unique_id(ids, 0, 2, deadline=60) as c:
        h = ep.Handle(c, experts=4, topk=2, hidden=128, max_tokens=4)
        exchange(h)
        ready.wait()

        def send():
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)

        sender = threading.Thread(target=send)
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            h.dispatch(X, IDS, WEIGHTS)
        sender.join()
        ready.wait()
        c.set_mask()
        assert exchange(h).equal(X)
        ready.wait()
        h.close()
        thread.join(60)
    assert not failed, failed
    assert others[0].equal(X)


def test_inference_and_modes(buffer, handle):
    with torch.inference_mode():
        ids = IDS.clone()
        got = handle.dispatch(X, ids, WEIGHTS)
        assert handle.combine(got.rows, got).equal(X)
        rows, _, low, *_ = buffer.low_latency_dispatch(X, ids, 4, 4, use_fp8=False)
        assert buffer.low_latency_combine(rows, ids, WEIGHTS, low)[0].equal(X)

    class Counts(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Counts():
        got = handle.dispatch(X, IDS, WEIGHTS)
        assert handle.combine(got.rows, got).equal(X)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_declarations():
    """What the sources say of CPython is what its headers say."""
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists() or not (SOURCE / "native").is_dir():
        pytest.skip("no headers of this Python")
    command = ["cc", "-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-DPy_LIMITED_API=0x030A0000"]
    command += ["-include", "Python.h", "-include", "structmember.h"]
    for source in sorted((SOURCE / "native").glob("*.c")):
        p = subprocess.run(
            [*command, f"-I{headers}", f"-I{SOURCE.parent / 'clib'}", source],
            capture_output=True,
            text=True,
            check=False,
        )
        assert p.returncode == 0, p.stderr


def test_exchanges_in_the_current_stream():
    """They record their end once another stream is to wait for it, also when they fail, and decline where the last
    exchange was in another stream."""
    recorded = []

    def refused():
        raise AssertionError("CUDA captures no work of stream 0")

    compiled.NATIVE.emulate(True)  # the current stream is 0
    try:
        streams = compiled.NATIVE.Streams(
            0, refused, refused, lambda device: f"stream of {device}", lambda *what: recorded.append(what), "mark"
        )
        assert (streams.end, streams.last) == (None, 0)
        for _ in range(3):
            assert streams.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            streams.run(divmod, 7, 0)
        assert (streams.end, streams.last, recorded) == ("mark", 0, [])
        for _ in range(2):  # of one end once
            streams.settle()
            assert recorded == [("mark", "stream of 0")]
        assert streams.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            streams.run(divmod, 7, 0)
        assert len(recorded) == 3
        streams.end, streams.last = "another", 5
        assert streams.run(divmod, 7, 2) is None
        streams.settle()  # it is recorded
        streams.end = None
        assert len(recorded) == 3
        assert streams.run(divmod, 9, 2) == (4, 1)
        assert (len(recorded), streams.end) == (4, "mark")
    finally:
        compiled.NATIVE.emulate(False)
    assert compiled.NATIVE.Streams(-1, None, None, None, None, None).run(divmod, 7, 2) == (3, 1)


def test_an_end_that_cannot_be_recorded():
    """It is owed until it is, and whoever would wait for it hears why it is not."""

    def record(*_):
        if broken:
            raise RuntimeError("no event")

    broken = [True]
    compiled.NATIVE.emulate(True)
    try:
        streams = compiled.NATIVE.Streams(0, None, None, str, record, "mark")
        assert streams.run(divmod, 7, 2) == (3, 1)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no event"):
                streams.settle()
        with pytest.raises(RuntimeError, match="no event"):
            streams.run(divmod, 7, 2)
        broken.clear()
        streams.settle()
        assert streams.run(divmod, 9, 2) == (4, 1)
    finally:
        compiled.NATIVE.emulate(False)
