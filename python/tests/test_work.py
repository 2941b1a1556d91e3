"""Calls that go on while the program does, messages, and algorithms by name."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import numpy as np
import pytest
from conftest import EVERYTHING, at_once

import weft


@pytest.fixture
def pairs(threads):
    """Runs a function of a group on two ranks."""

    def run(function, ranks=2, **options):
        def rank(c):
            with weft.Group(c, **options) as g:
                return function(c, g)

        return threads(ranks, rank)

    return run


def finished(work):
    return work.wait() if isinstance(work, weft.Work) else work


def test_every_call(pairs):
    """What an asynchronous call returns is what the same call returns without."""

    def rank(c, g):
        r, n = c.rank, [2, 1, 3]
        x = np.arange(18.0).reshape(3, 6) + r
        rows = np.arange(12.0).reshape(6, 2) * (r + 1)
        calls = [
            lambda **how: g.all_reduce(x, **how),
            lambda **how: g.all_reduce(x, "premulsum", scalar=3, **how),
            lambda **how: g.all_reduce(x.T, "max", **how),
            lambda **how: g.reduce_scatter(x, **how),
            lambda **how: g.reduce_scatter(list(x), "avg", **how),
            lambda **how: g.reduce_scatter_v(rows, n, **how),
            lambda **how: g.reduce_scatter_v(rows, n, at=[0, 3, 3], **how),
            lambda **how: g.reduce(x, "min", 1, **how),
            lambda **how: g.all_gather(x, **how),
            lambda **how: np.stack(finished(g.all_gather(x, out=list(np.zeros((3, 3, 6))), **how))),
            lambda **how: g.all_gather_v(rows[: n[r]], n, **how),
            lambda **how: g.all_to_all(x, **how),
            lambda **how: g.all_to_all_v(rows, n, [n[r]] * 3, **how),
            lambda **how: g.broadcast(x.copy(), 2, **how),
            lambda **how: g.gather(x, 1, **how),
            lambda **how: g.scatter(x, 1, out=np.zeros(6), **how),
            lambda **how: g.barrier(**how),
        ]
        wants = [call() for call in calls]
        works = [call(async_op=True) for call in calls]
        for want, work in zip(wants, works, strict=True):
            got = finished(work)
            assert (got is None and want is None) or (got == want).all()
        for work in works:
            if isinstance(work, weft.Work):
                assert work.done()
                assert work.error() is None
                assert "/" in work.algorithm
        assert not g._started

    pairs(rank, 3)


def test_order(pairs):
    """Calls run in the order in which they begin, those that wait among them."""

    def rank(c, g):
        x, works = np.ones(5), []
        for i in range(20):
            works.append(g.all_reduce(x, out=x, async_op=True))
            if i == 10:
                assert (g.all_reduce(x) == 2.0**12).all()
        with works.pop() as last:
            pass
        assert last.done()
        assert (x == 2.0**20).all()
        assert [w.wait() is x for w in works] == [True] * 19

    pairs(rank)


def test_a_call_that_waits(pairs):
    ready = threading.Event()

    def rank(c, g):
        x = np.ones(3)
        if c.rank == 1:
            ready.wait(20)
            g.barrier()
            return g.all_reduce(x)
        barrier = g.barrier(async_op=True)
        total = g.all_reduce(x, async_op=True)
        assert not total.done()
        assert (total.error(), total.algorithm) == (None, "")
        with pytest.raises(weft.DeadlineError):
            total.wait(timeout=0.05)
        with pytest.raises(weft.UnsupportedError, match=r"the host has no streams; wait for it on the host$"):
            total.wait_on()
        got = []
        waiters = [threading.Thread(target=lambda: got.append(total.wait())) for _ in range(3)]
        for w in waiters:
            w.start()
        time.sleep(0.05)
        ready.set()
        for w in waiters:
            w.join(20)
        assert [out is got[0] for out in got] == [True] * 3
        assert barrier.wait() is None
        return got[0]

    for out in pairs(rank):
        assert out.tolist() == [2.0] * 3


def test_many_that_ask(comm):
    """Threads that wait for a call, and ask about it, all see its end, whichever of them gives its handle back."""
    rounds = 2000 if EVERYTHING else 200
    with weft.Group(comm) as g:
        for _ in range(rounds):
            x = np.arange(3.0)
            seen, work = [], g.all_reduce(x, async_op=True)

            def ask(what, work=work, seen=seen):
                if what == "wait":
                    seen.append(work.wait())
                while not work.done():
                    assert work.algorithm in ("", "all-reduce/eager")
                    assert work.error() is None
                assert (work.error(), work.algorithm) == (None, "all-reduce/eager")
                seen.append(work.wait())

            results = []
            at_once(lambda what, ask=ask, results=results: results.append(ask(what)), ["wait", "ask"] * 2)
            assert results == [None] * 4  # no thread has raised
            assert all(out is seen[0] and (out == x).all() for out in seen)
            assert not g._started


def test_await(pairs):
    def rank(c, g):
        async def program():
            works = [g.all_reduce(np.full(2, i), async_op=True) for i in range(5)]
            return [(await w).tolist() for w in works]

        return asyncio.run(program())

    assert pairs(rank) == [[[2 * i] * 2 for i in range(5)]] * 2


def test_what_is_dropped(pairs):
    """A call whose Work is gone keeps what it borrows, and gives it back when it has ended."""
    ready = threading.Event()

    def rank(c, g):
        if c.rank == 1:
            ready.wait(20)
            for _ in range(3):
                g.all_reduce(np.ones(100_000))
            g.barrier()
            return
        out = np.zeros(100_000)
        g.all_reduce(np.ones(100_000), out=out, async_op=True)
        g.all_reduce(np.ones(100_000), async_op=True).close()
        with pytest.raises(ZeroDivisionError), g.all_reduce(np.ones(100_000), async_op=True) as work:
            1 / 0  # noqa: B018
        assert work.done()
        with pytest.raises(weft.ClosedError, match="before its end was seen"):
            work.wait()
        gc.collect()
        assert len(g._started) == 3
        ready.set()
        g.barrier()
        assert (out == 2).all()
        g._begin()
        assert not g._started
        assert not g._abandoned

    pairs(rank)


def test_a_group_that_is_dropped(comm):
    """Its calls keep what they borrow until the next call that makes a group has closed it."""
    g = weft.Group(comm)
    work = g.all_reduce(np.ones(10), async_op=True)
    del work
    started = g._started
    with pytest.warns(ResourceWarning):  # noqa: PT031
        del g
        gc.collect()
    assert started
    watched = comm._garbage.found
    assert [w.keep is started for w in watched] == [True]
    weft.Group(comm).close()
    assert not comm._garbage.found


def test_a_closed_group(comm):
    g = weft.Group(comm)
    work, other, asked = (g.barrier(async_op=True) for _ in range(3))
    work.wait()
    g.close()
    assert not g._started
    assert work.wait() is None
    for _ in range(2):
        with pytest.raises(weft.ClosedError, match="this group of collectives was closed"):
            other.wait()
        assert other.done()
        assert isinstance(other.error(), weft.ClosedError)
        assert other.algorithm == ""
    assert asked.done()
    assert isinstance(asked.error(), weft.ClosedError)
    with pytest.raises(weft.ClosedError):
        g.barrier(async_op=True)


def test_errors(pairs):
    """What one rank refuses its peers hear of from their Works."""

    def rank(c, g):
        x = np.ones(4)
        if c.rank == 0:
            with pytest.raises(weft.OperandError, match="array: there is no array"):
                g.all_reduce(None, async_op=True)
        else:
            work = g.all_reduce(x, async_op=True)
            for _ in range(2):
                with pytest.raises(weft.InvalidError, match="there is no array"):
                    work.wait()
            assert isinstance(work.error(), weft.InvalidError)
        work = g.all_reduce(x[: 3 + c.rank], async_op=True)
        with pytest.raises(weft.MismatchError):
            work.wait()
        with pytest.raises(TypeError, match="sream"):
            g.barrier(sream=3)
        return g.all_reduce(x, async_op=True).wait().tolist()

    assert pairs(rank) == [[2.0] * 4] * 2


def test_messages(pairs):
    def rank(c, g):
        nxt, before = (c.rank + 1) % 3, (c.rank - 1) % 3
        for n in (0, 1, 7, 300_000):
            x = np.arange(n, dtype=np.int32) + c.rank
            got = np.zeros(n, np.int32)
            if c.rank == 0:
                assert g.send(x, nxt) is None
                assert g.recv(got, before) is got
            else:
                g.recv(got, before)
                g.send(x, nxt)
            assert (got == np.arange(n) + before).all()
            got[:] = 0
            calls = [lambda x=x: g.send(x, nxt, async_op=True), lambda got=got: g.recv(got, before, async_op=True)]
            works = [call() for call in (calls if c.rank == 0 else calls[::-1])]
            own = np.zeros(n, np.int32)
            g.batch((weft.Send(x, c.rank), weft.Recv(own, c.rank)))
            assert (own == x).all()
            assert [w.wait() is got for w in works] == [c.rank != 0, c.rank == 0]
            assert (got == np.arange(n) + before).all()
            everyone = [np.zeros((2, n), np.int32) for _ in range(3)]
            wide = np.stack([x, x]).T  # is copied
            work = g.batch(
                [weft.Recv(everyone[r], r) for r in range(3)] + [weft.Send(wide.T, r) for r in range(3)], async_op=True
            )
            assert work.wait() is None
            assert work.algorithm == ""
            for r in range(3):
                assert (everyone[r] == np.arange(n) + r).all()
        g.batch(())

    pairs(rank, 3)


def test_refused_messages(pairs):
    def rank(c, g):
        x, peer = np.ones(4), 1 - c.rank
        with pytest.raises(weft.InvalidError, match="send: rank 2 of 2"):
            g.send(x, 2)
        with pytest.raises(weft.InvalidError, match="messages have neither blocks"):
            g.send(x, c.rank, blocks=2)
        with pytest.raises(weft.UnsupportedError, match="the host engine has neither blocks"):
            g.barrier(blocks=2)
        with pytest.raises(weft.OperandError, match=r"recv: .* is not contiguous, and is written"):
            g.recv(np.ones((4, 2))[:, 0], c.rank)
        if c.rank == 0:
            with pytest.raises(weft.OperandError, match="send 1: there is no array"):
                g.batch([weft.Recv(x, peer), weft.Send(None, peer)])
            with pytest.raises(weft.MismatchError, match="it receives 3"):
                g.send(x, peer)
        else:
            with pytest.raises(weft.InvalidError, match="send 1: there is no array"):
                g.batch([weft.Send(x, peer), weft.Recv(x.copy(), peer)])
            with pytest.raises(weft.MismatchError, match="sends 4"):
                g.recv(np.zeros(3), peer)
        g.barrier()

    pairs(rank)


def test_lists_that_cannot_be_written(pairs):
    """They are refused before anything moves, on all ranks."""
    torch = pytest.importorskip("torch")
    read_only = np.broadcast_to(np.zeros(1), (2,))
    cases = [
        (np.ones(2), read_only, "out: part 1 is read-only"),
        (torch.ones(2), torch.zeros(1).expand(2), "out: part 1 is an expanded tensor"),
        (torch.ones(2), torch.zeros(2, device="meta"), "out: part 1 is on meta, and the result on cpu"),
    ]

    def rank(c, g):
        for x, part, words in cases:
            for how in ({}, {"async_op": True}):
                good, bad = [x * 0, x * 0], [x * 0, part]
                with pytest.raises(weft.InvalidError, match=words if c.rank else f"refused there: .*{words}"):
                    finished(g.all_gather(x, out=bad if c.rank else good, **how))
                assert not any(p.any() for p in good)
        for how in ({}, {"async_op": True}):
            leaves = [torch.zeros(2, requires_grad=True), torch.zeros(4)[::2]]
            assert finished(g.all_gather(torch.ones(2), out=leaves, **how)) is leaves
            assert [leaf.tolist() for leaf in leaves] == [[1, 1]] * 2
        assert not g._started

    pairs(rank)


def test_a_list_that_becomes_read_only(comm):
    """Whoever asks is told that the call has ended, and how."""
    with weft.Group(comm) as g:
        part = np.zeros(2)
        work = g.all_gather(np.ones(2), out=[part], async_op=True)
        part.flags.writeable = False
        while not work.done():
            pass
        assert isinstance(work.error(), weft.OperandError)
        assert work.algorithm == "all-gather/eager"
        for _ in range(2):
            with pytest.raises(weft.OperandError, match=r"out: the result could not be copied to it: .* is read-only"):
                work.wait()
        assert not g._started


@pytest.mark.parametrize(
    "wrong",
    [
        lambda send, recv: [weft.Send(np.ones(2, complex), send.peer), recv],
        lambda send, recv: [recv, weft.Send(None, send.peer)],
        lambda send, recv: [send, weft.Recv(np.ones((2, 2))[:, 0], recv.peer)],
        lambda send, recv: [("no message", 0), send, recv],
        lambda send, recv: [weft.Send(send.array, "0"), send, recv],
        lambda send, recv: [weft.Recv(recv.array, 3), send, recv],
    ],
)
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("how", [{}, {"async_op": True}])
def test_a_ring_with_a_refused_message(pairs, wrong, everywhere, how):
    """Every neighbour of a rank that refuses a message hears of it, wherever the message stands, and all go on."""

    def rank(c, g):
        messages = [weft.Send(np.ones(2), (c.rank + 1) % 3), weft.Recv(np.zeros(2), (c.rank - 1) % 3)]
        if c.rank == 1 or everywhere:
            with pytest.raises(weft.InvalidError) as refused:
                g.batch(wrong(*messages), **how)
            assert refused.value.rank is None
        else:
            with pytest.raises(weft.InvalidError, match=r"refused there: .*(send|recv|message)") as heard:
                finished(g.batch(messages, **how))
            assert heard.value.rank == 1
        return g.all_reduce(np.ones(1)).tolist()

    assert pairs(rank, 3) == [[3.0]] * 3


def test_messages_of_an_iterator(pairs):
    def rank(c, g):
        sent, got = np.full(3, c.rank), np.zeros(3, int)
        g.batch(m for m in (weft.Send(sent, 1 - c.rank), weft.Recv(got, np.int64(1 - c.rank))))
        with pytest.raises(weft.InvalidError, match="refused there: .*blocks is 'x'" if c.rank else "blocks is 'x'"):
            g.batch([weft.Send(sent, 1 - c.rank), weft.Recv(got, 1 - c.rank)], blocks=0 if c.rank else "x")
        with pytest.raises(TypeError, match="not iterable"):
            g.batch(None)
        return got.tolist(), g.broadcast(np.full(1, c.rank), np.int64(1)).tolist()

    assert pairs(rank) == [([1] * 3, [1]), ([0] * 3, [1])]


def test_algorithms(pairs):
    def rank(c, g):
        names = [a.name for a in g.algorithms() if a.collective == weft.Collective.all_reduce]
        x = np.arange(1000.0)
        assert "all-reduce/pipeline" in names
        assert g.algorithm == ""
        g.all_reduce(x)
        assert g.algorithm == "all-reduce/eager"
        assert (g.all_reduce(x, algorithm="all-reduce/pipeline") == 2 * x).all()
        assert g.algorithm == "all-reduce/pipeline"
        assert g.all_reduce(x, algorithm="all-reduce/pipeline", async_op=True).wait()[1] == 2
        with pytest.raises(weft.InvalidError, match="by-hand"):
            g.all_reduce(x, algorithm="by-hand")
        with pytest.raises(weft.MismatchError):
            g.all_reduce(x, algorithm=None if c.rank else "all-reduce/pipeline")
        with weft.Group(c, force=["all-reduce/two-shot"], dtypes=["float32"]) as forced:
            forced.all_reduce(x)
            assert forced.algorithm == "all-reduce/two-shot"
        with pytest.raises(weft.InvalidError, match="by-hand"):
            weft.Group(c, force=["by-hand"])
        with pytest.raises(weft.UnsupportedError, match="cannot be reduced"):
            weft.Group(c, dtypes=["ue8m0"])

    pairs(rank)


def test_exception(threads):
    """A rank that leaves its group by an exception, amid a call, waits for nothing, and its peers hear of it."""
    since = time.monotonic()

    def leave(c):
        with weft.Group(c) as g:
            g.barrier()
            g.all_reduce(np.ones(1000), async_op=True)
            raise ZeroDivisionError

    def stay(c, g):
        g.barrier()
        while time.monotonic() < since + 60:
            c.check()

    def rank(c):
        if c.rank == 0:
            with pytest.raises(ZeroDivisionError):
                leave(c)
            return
        with pytest.raises(weft.AbortedError) as e, weft.Group(c) as g:
            stay(c, g)
        assert e.value.rank == 0

    threads(2, rank, deadline=30)


def test_the_end(processes):
    """A process that ends with calls in progress does not wait for them, and its peers hear of it."""
    for ended in processes(2, "pending"):
        assert (ended.code, ended.out) == (0, "ok\n"), ended.out
