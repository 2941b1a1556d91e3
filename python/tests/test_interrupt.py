"""Ctrl-C: the main thread's waits end, with the handler's exception, and what is left can be used or says why not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import alone

import weft

LIMIT = 30  # seconds from the signal to the exception: half of what waits here last by themselves


def interrupted(call, *arguments, error=KeyboardInterrupt, **options):
    """Has a call of this, the main thread, interrupted."""
    sent = []

    def send():
        time.sleep(0.15)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(error):
        call(*arguments, **options)
    took = time.monotonic() - sent[0]
    sender.join()
    assert took < LIMIT
    return took


@pytest.fixture
def pair():
    """Two ranks of this thread's and another's, and what runs a function on both at once."""
    ids, comms = weft.UniqueId.create("lo"), [None, None]

    def both(function, others=None):
        results, errors = [None, None], []

        def other():
            try:
                results[1] = (others or function)(1)
            except BaseException as e:
                errors.append(e)

        thread = threading.Thread(target=other)
        thread.start()
        results[0] = function(0)
        thread.join()
        assert not errors, errors
        return results

    def join(rank):
        comms[rank] = weft.Communicator.from_unique_id(ids, rank, 2, deadline=60)

    both(join)
    yield comms, both
    for c in comms:
        c.close()


def test_join():
    for rank in (0, 1):
        ids = weft.UniqueId.create("lo")
        interrupted(weft.Communicator.from_unique_id, ids, rank, 2)
        ids.release()
    with weft.join() as c, weft.Group(c) as g:  # nothing is left of them
        g.barrier()


def test_join_of_many():
    """Peers that have joined rank 0 learn why there is no job."""
    ids, errors = weft.UniqueId.create("lo"), []

    def other():
        try:
            weft.Communicator.from_unique_id(ids, 1, 3)
        except weft.WeftError as e:
            errors.append(e)

    thread = threading.Thread(target=other)
    thread.start()
    interrupted(weft.Communicator.from_unique_id, ids, 0, 3)
    thread.join()
    assert isinstance(errors[0], weft.AbortedError)
    assert errors[0].rank == 0


def test_all_gather_of_the_callers():
    """Its function is still called by the thread that joins, and an exception there ends the join."""
    threads = []

    def gather(mine):
        threads.append(threading.current_thread())
        return [mine]

    weft.Communicator.from_all_gather(gather, 0, 1).close()
    assert set(threads) == {threading.main_thread()}
    interrupted(weft.Communicator.from_all_gather, lambda mine: time.sleep(60), 0, 2)


def test_no_moment_of_a_join_loses_an_interrupt(monkeypatch):
    """A signal that comes while C runs is raised where its function begins, of which ctypes would only print it."""
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: printed.append(str(what.exc_value)))

    def join_amid(sender):
        sender.start()
        with weft.Communicator.from_all_gather(lambda mine: [mine], 0, 1):
            sender.join()
            time.sleep(1)

    for turn in range(40):
        sender = threading.Thread(target=lambda turn=turn: (time.sleep(turn / 10000), os.kill(os.getpid(), 2)))
        with pytest.raises(KeyboardInterrupt):
            join_amid(sender)
        sender.join()
    assert not printed


CALLS = {
    "group": lambda c: weft.Group(c),
    "window": lambda c: weft.Window(c, 4096),
    "handle": lambda c: weft.ep.Handle(c, experts=4, topk=2, hidden=8, max_tokens=4, payload="fp32"),
    "mask": lambda c: c.set_mask(),
}


@pytest.mark.parametrize("name", CALLS)
def test_set_up(pair, name):
    (own, other), both = pair
    interrupted(CALLS[name], own)
    for c in (own, other):
        with pytest.raises(weft.AbortedError, match=r"interrupted.*set_mask") as e:
            c.check()
        assert e.value.rank == 0
    both(lambda r: (own, other)[r].set_mask())
    made = both(lambda r: CALLS[name]((own, other)[r]))
    for m in made:
        if m is not None:
            m.close()


def test_collectives(pair):
    comms, both = pair
    groups = both(lambda r: weft.Group(comms[r]))
    x = np.ones(1000, np.float32)
    interrupted(groups[0].all_reduce, x)
    for g in groups:
        with pytest.raises(weft.AbortedError):
            g.all_reduce(x)
    both(lambda r: comms[r].set_mask())
    assert (both(lambda r: groups[r].all_reduce(x))[1] == 2).all()

    # A call that was started goes on.
    work = groups[0].all_reduce(x, async_op=True)
    interrupted(work.wait)
    interrupted(work.wait, timeout=60)
    groups[1].all_reduce(x)
    assert (work.wait() == 2).all()
    for g in groups:
        g.close()


def test_exchanges(pair):
    comms, both = pair
    handles = both(lambda r: CALLS["handle"](comms[r]))
    x, topk = np.ones((3, 8), np.float32), np.array([[0, 3], [1, 2], [-1, 0]])
    weights = np.full((3, 2), 0.5, np.float32)
    calls = [
        lambda: handles[0].prepare(topk, weights),
        lambda: handles[0].dispatch(x, topk, weights),
    ]
    for call in calls:
        interrupted(call)
        with pytest.raises(weft.AbortedError):
            handles[1].prepare(topk, weights)
        both(lambda r: comms[r].set_mask())
    got = both(lambda r: handles[r].dispatch(x, topk, weights))
    interrupted(lambda: handles[0].combine(got[0].rows, got[0]))
    both(lambda r: comms[r].set_mask())

    def layer(r):
        with handles[r].dispatch(x, topk, weights) as rows:
            return handles[r].combine(rows.rows, rows)

    for rows in got:
        rows.release()
    assert (both(layer)[0][:2] == 1).all()
    for h in handles:
        h.close()


def test_handlers(pair):
    """Any handler of Python's runs meanwhile. One that raises nothing ends nothing, and another exception arrives as
    it is."""
    comms, both = pair
    groups, heard = both(lambda r: weft.Group(comms[r])), []
    before = signal.signal(signal.SIGALRM, lambda number, frame: heard.append(time.monotonic()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)

        def late(_):
            time.sleep(0.5)
            groups[1].barrier()

        both(lambda r: groups[r].barrier(), late)
        assert len(heard) == 1

        def fails(number, frame):
            raise ZeroDivisionError("in the handler")

        signal.signal(signal.SIGINT, fails)
        interrupted(groups[0].barrier, error=ZeroDivisionError)
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for g in groups:
        g.close()


def test_dispositions():
    """The library leaves the program's handlers, and the signals that it ignores, as they are."""
    program = """
import os, signal, weft
signal.signal(signal.SIGINT, signal.SIG_IGN)
c = weft.join()
os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.SIG_DFL)
weft.join().close()
c.close()
assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
print("alive", flush=True)
os.kill(os.getpid(), signal.SIGINT)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], env=alone(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (-signal.SIGINT, "alive\n"), ended.stderr


@pytest.mark.parametrize("closes", ["group", "communicator"])
def test_closing_beside_a_started_call(pair, closes):
    """Closing waits for calls that were started, and that wait ends, too; the calls fail."""
    (own, other), both = pair
    groups = both(lambda r: weft.Group((own, other)[r]))
    work = groups[0].all_reduce(np.ones(4), async_op=True)
    interrupted(groups[0].close if closes == "group" else own.close)
    assert groups[0].closed
    with pytest.raises(weft.WeftError):
        work.wait()
    with pytest.raises(weft.WeftError) as e:
        groups[1].barrier()
    assert e.value.rank == 0


def test_awaiting(pair):
    """A loop that is interrupted leaves an awaited call, whose thread it would wait for; the call goes on."""
    (own, other), both = pair
    groups = both(lambda r: weft.Group((own, other)[r]))
    works = []

    async def main():
        works.append(groups[0].all_reduce(np.ones(4), async_op=True))
        await works[0]

    interrupted(asyncio.run, main())
    assert not works[0].done()
    groups[1].all_reduce(np.ones(4))
    assert works[0].wait().tolist() == [2] * 4

    async def fails():
        await works[1]

    works.append(groups[0].all_reduce(np.ones(4), async_op=True))
    other.abort()
    with pytest.raises(weft.AbortedError):
        asyncio.run(fails())
