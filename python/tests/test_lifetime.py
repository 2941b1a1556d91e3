"""What outlives what: arrays, handles, threads, forks, and the interpreter."""

from __future__ import annotations

import dataclasses
import gc
import queue
import threading

import numpy as np
import pytest

import weft
from weft import ep

SPEC = ep.Spec(experts=2, topk=1, hidden=4, max_tokens=4, payload="fp32")
X, TOPK, WEIGHTS = (
    np.arange(16, dtype=np.float32).reshape(4, 4),
    np.array([[0], [1], [0], [1]]),
    np.ones((4, 1), np.float32),
)

PROGRAM = """
import numpy as np, weft
comm = weft.join(deadline=10)
h = weft.ep.Handle(comm, experts=2, topk=1, hidden=4, max_tokens=4, payload="fp32")
x, topk, weights = np.ones((4, 4), np.float32), np.array([[0], [1], [0], [1]]), np.ones((4, 1), np.float32)
got = h.dispatch(x, topk, weights)
rows = got.rows
def works():
    return (h.combine(rows, got) == 1).all()
"""


@pytest.mark.parametrize("order", ["handle", "communicator", "both", "release"])
def test_arrays_outlive_what_they_show(order):
    c = weft.join()
    h = ep.Handle(c, SPEC)
    got = h.dispatch(X, TOPK, WEIGHTS)
    rows, part = got.rows, got.rows[0, 1:]
    if order == "release":
        got.release()
    if order in ("handle", "both", "release"):
        h.close()
    if order in ("communicator", "both"):
        c.close()
    del got
    gc.collect()
    assert rows[0, 0].tolist() == [0, 1, 2, 3]
    rows[:] = 5
    del rows
    assert (part == 5).all()
    before = mapped()
    del part
    if order == "communicator":
        del h
    gc.collect()
    assert mapped() < before  # and with the last of them it is given back
    c.close()


def mapped():
    with open("/proc/self/maps") as maps:
        return sum("weft" in line for line in maps)


def test_forgotten_handles_and_groups(script):
    """What is dropped without a close is said once each, and given back by later calls of its rank,
    whatever the other rank still has."""
    ended = script(
        """
import gc, os, threading, weft
from weft import ep

ids, laps, kept, most = weft.UniqueId.create("lo"), 150, 6, [0, 0, 0]

def held():
    with open("/proc/self/maps") as maps, open("/proc/self/status") as status:
        memory = next(int(line.split()[1]) >> 10 for line in status if line.startswith("RssShmem"))
        return len(os.listdir("/proc/self/fd")), sum("weft" in line for line in maps), memory

def rank(r):
    with weft.Communicator.from_unique_id(ids, r, 2, deadline=20) as c, weft.Group(c) as meet:
        meet.barrier()
        before, mine = held(), []
        meet.barrier()
        for lap in range(laps):
            g = weft.Group(c, scratch=1 << 20)
            h = ep.Handle(c, experts=2, topk=1, hidden=256, max_tokens=64, payload="fp32")
            g.barrier()
            if r == 1 and lap % 4 == 0:
                g.itself = g  # collected later
            if lap % 20 == 0:
                gc.collect()
            if lap >= laps - kept and r == 0:
                mine += g, h  # while the other has dropped theirs
            del g, h
            now = held()
            most[:] = (max(m, n - b) for m, n, b in zip(most, now, before))
        gc.collect()
        assert not any(made.closed for made in mine)
        del mine
        for _ in range(2):
            meet.barrier()  # what was dropped goes with any call
        left = [n - b for n, b in zip(held(), before)]
        meet.barrier()
        print("left", r, left)
        assert left[1] <= 0 and left[2] <= 1, left

ranks = [threading.Thread(target=rank, args=(r,)) for r in range(2)]
for t in ranks:
    t.start()
for t in ranks:
    t.join()
print("most", most)
assert most[0] < 100 and most[1] < 100 and most[2] < 40, most
""",
        PYTHONWARNINGS="always::ResourceWarning",
    )
    assert (ended.code, ended.out.count("Traceback")) == (0, 0), ended.out
    assert (
        ended.out.count("a handle was never closed"),
        ended.out.count("a group of collectives was never closed"),
    ) == (300, 300), ended.out
    assert ended.out.count("ResourceWarning:") == 600, ended.out


def test_rows_that_nobody_releases(comm):
    """There is memory for two batches; batches that are simply forgotten do not use it up."""
    with ep.Handle(comm, SPEC) as h:
        for i in range(20):
            got = h.dispatch(X + i, TOPK, WEIGHTS)
            assert (h.combine(got.rows, got) == X + i).all()
        rows = got.rows
        del got
        for _ in range(5):
            h.dispatch(X, TOPK, WEIGHTS)
        assert rows[0, 0, 0] == 19  # an array that lives keeps its batch
        held = [h.dispatch(X, TOPK, WEIGHTS)]
        with pytest.raises(weft.WeftError):
            h.dispatch(X, TOPK, WEIGHTS)
        del held
        h.dispatch(X, TOPK, WEIGHTS)


def test_garbage_of_other_threads(comm):
    """Batches are collected by another thread while this one is inside calls."""
    with ep.Handle(comm, dataclasses.replace(SPEC, live=8)) as h:
        old = queue.SimpleQueue()

        def collect():
            while old.get() is not None:
                taken.release()

        taken = threading.Semaphore(6)
        t = threading.Thread(target=collect)
        t.start()
        try:
            for _ in range(2000):
                assert taken.acquire(timeout=20)
                got = h.dispatch(X, TOPK, WEIGHTS)
                h.combine(got.rows, got)
                old.put(got)
                del got
        finally:
            old.put(None)
            t.join()


def test_threads_on_one_handle(comm):
    """Threads that use one handle at a time get what is theirs, or are told that it is busy."""
    with ep.Handle(comm, dataclasses.replace(SPEC, live=32)) as h:
        counts, wrong = [], []

        def work(n):
            done = busy = 0
            while done < 100:
                try:
                    got = h.dispatch(X * n, TOPK, WEIGHTS)
                except weft.BusyError:
                    busy += 1
                    continue
                rows = got.rows
                if not (rows[0, 0] == X[0] * n).all() or not (rows[1, 1] == X[3] * n).all():
                    wrong.append(n)
                got.release()
                done += 1
            counts.append((done, busy))

        workers = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
        for t in workers:
            t.start()
        for t in workers:
            t.join(60)
        assert len(counts) == 8
        assert not wrong


def test_exit_with_everything_open(script):
    ended = script(PROGRAM + "assert works()\nlines = []\nother = weft.join(log=lines.append)\n")
    assert (ended.code, ended.out) == (0, "")


def test_exit_inside_calls(script):
    """Threads are inside calls, and the library calls back, when the interpreter ends."""
    ended = script("""
import threading, time, weft
ids = weft.UniqueId.create("lo")
inside = threading.Barrier(3)
def rank(r):
    c = weft.Communicator.from_unique_id(ids, r, 2, deadline=30, log=lambda line: None)
    g = weft.Group(c)
    g.barrier()
    inside.wait()
    try:
        g.barrier() if r == 0 else time.sleep(30)
    except weft.LeftError:
        pass
for r in range(2):
    threading.Thread(target=rank, args=(r,), daemon=True).start()
inside.wait()
time.sleep(0.2)
""")
    assert (ended.code, ended.out) == (0, "")


def test_fork(script):
    """A child is refused in words, leaves its parent's objects alone, and ends; the parent goes on."""
    ended = script(
        PROGRAM
        + """
import os
child = os.fork()
if child == 0:
    for call in (works, comm.check, weft.join, lambda: weft.Group(comm)):
        try:
            call()
            os._exit(1)
        except weft.ForkedError as e:
            assert "forked after libweft.so was loaded" in str(e)
    del got
    comm.close()
    h.close()
    raise SystemExit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert works()
comm.close()
"""
    )
    assert (ended.code, ended.out) == (0, "")


def test_fork_before_the_library_is_loaded(script):
    ended = script("""
import os, weft
child = os.fork()
with weft.join() as c:
    c.check()
if child:
    assert os.waitpid(child, 0)[1] == 0
""")
    assert (ended.code, ended.out) == (0, "")


def test_multiprocessing(script):
    """Workers that are forked do their work beside a parent with a communicator, and those that are
    spawned may have their own."""
    ended = script(
        PROGRAM
        + """
import multiprocessing as mp
if __name__ == "__main__":
    with mp.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]
    assert works()
"""
    )
    assert (ended.code, ended.out) == (0, "")


@pytest.mark.parametrize("when", ["before", "after"])
def test_faulthandler(script, when):
    enable = "import faulthandler; faulthandler.enable()\n"
    ended = script(
        (enable if when == "before" else "")
        + PROGRAM
        + (enable if when == "after" else "")
        + """
import gc
for _ in range(200):
    assert works()
    gc.collect()
"""
    )
    assert (ended.code, ended.out) == (0, "")


def test_interrupts_lose_nothing(script):
    """An interrupt between any two steps of a call leaves the handle as it was: no batch is lost with it."""
    ended = script("""
import numpy as np, signal, weft
comm = weft.join(deadline=10)
h = weft.ep.Handle(comm, experts=2, topk=1, hidden=4, max_tokens=4, payload="fp32")
x, topk, weights = np.ones((4, 4), np.float32), np.array([[0], [1], [0], [1]]), np.ones((4, 1), np.float32)
armed = False
class Now(Exception): pass
def interrupt(*_):
    global armed
    if armed:
        armed = False
        raise Now
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.00097)
seen = 0
while seen < 500:
    try:
        armed = True
        for _ in range(100):
            got = h.dispatch(x, topk, weights)
            assert (h.combine(got.rows, got) == 1).all()
            got = None
    except Now:
        got = None
        seen += 1
    armed = False
signal.setitimer(signal.ITIMER_REAL, 0)
comm.close()
""")
    assert (ended.code, ended.out) == (0, "")


def test_threads_with_ranks_of_their_own(threads):
    """Eight ranks in one process: the interpreter's lock is free while they wait for each other."""

    def rank(c):
        with weft.Group(c) as g, ep.Handle(c, experts=8, topk=2, hidden=8, max_tokens=3, payload="fp32") as h:
            x, topk = np.full((3, 8), c.rank, np.float32), np.array([[0, 7], [3, 4], [c.rank, (c.rank + 1) % 8]])
            for _ in range(20):
                with h.dispatch(x, topk, np.full((3, 2), 0.5, np.float32)) as got:
                    assert (h.combine(got.rows, got) == x).all()
            return g.all_reduce(np.ones(1))[0]

    assert threads(8, rank) == [8.0] * 8
