"""How ranks meet, fail and part."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from datetime import timedelta

import numpy as np
import pytest

import weft
from weft import errors


def test_alone():
    with weft.join(deadline=5) as c:
        assert (c.rank, c.ranks, c.local_ranks, c.engine, c.deadline) == (0, 1, 1, "host", 5)
        assert c.mask == frozenset()
        c.check()
        c.wait()
        assert repr(c) == "<weft.Communicator rank 0 of 1, host>"
    assert c.closed
    c.close()
    with pytest.raises(weft.ClosedError, match="this communicator was closed"):
        c.check()


@pytest.mark.parametrize("options", [{"engine": "tpu"}, {"deadline": 0}, {"deadline": -1}])
def test_options(options):
    with pytest.raises(weft.InvalidError):
        weft.join(**options)


def test_unique_id(threads):
    assert sorted(threads(4, lambda c: (c.rank, c.ranks))) == [(r, 4) for r in range(4)]
    unused = weft.UniqueId.create("lo")
    assert str(unused) not in repr(unused)
    unused.release()
    with pytest.raises(weft.InvalidError):
        weft.Communicator.from_unique_id("nonsense", 0, 1)


class Meeting:
    """An all-gather between threads."""

    def __init__(self, ranks):
        self.parts = [b""] * ranks
        self.barrier = threading.Barrier(ranks, timeout=20)

    def of(self, rank):
        def all_gather(mine):
            self.parts[rank] = mine
            self.barrier.wait()
            got = list(self.parts)
            self.barrier.wait()
            return got

        return all_gather


def in_threads(n, function):
    results = [None] * n

    def rank(r):
        results[r] = function(r)

    started = [threading.Thread(target=rank, args=(r,)) for r in range(n)]
    for t in started:
        t.start()
    for t in started:
        t.join(60)
    return results


def joined(c):
    with c, weft.Group(c) as g:
        return g.all_gather(np.array([c.rank])).ravel().tolist()


def test_all_gather():
    meeting = Meeting(3)
    got = in_threads(3, lambda r: joined(weft.Communicator.from_all_gather(meeting.of(r), r, 3)))
    assert got == [[0, 1, 2]] * 3


class Store:
    """A store as torch.distributed has them."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def set(self, key, value):
        with self.changed:
            self.values[key] = bytes(value)
            self.changed.notify_all()

    def get(self, key):
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.values, 20), key
            return self.values[key]

    def add(self, key, n):
        with self.changed:
            self.values[key] = self.values.get(key, 0) + n
            return self.values[key]


def test_store():
    store = Store()
    for _ in range(2):  # keys of the first are not found by the second
        assert in_threads(2, lambda r: joined(weft.Communicator.from_store(store, r, 2))) == [[0, 1]] * 2


def test_store_without_a_rank():
    class Asked(Store):
        timeout = timedelta(seconds=0.2)

        def check(self, keys):
            return all(key in self.values for key in keys)

    words = r"rank 1 has not come to the store: rank 0 waited 0.1 s, which deadline="
    with pytest.raises(weft.DeadlineError, match=words):
        weft.Communicator.from_store(Asked(), 0, 2, deadline=0.1)
    with pytest.raises(weft.DeadlineError, match=r"waited 0.2 s, which the store sets"):
        weft.Communicator.from_store(Asked(), 0, 2)


def test_exceptions_of_an_all_gather():
    def breaks(mine):
        raise ZeroDivisionError("in the callback")

    with pytest.raises(ZeroDivisionError, match="in the callback"):
        weft.Communicator.from_all_gather(breaks, 0, 2)
    with pytest.raises(weft.InvalidError, match=r"returned \[1\] bytes, want"):
        weft.Communicator.from_all_gather(lambda mine: [b"x"], 0, 2)
    with pytest.raises(weft.MismatchError, match="ranks' order"):
        weft.Communicator.from_all_gather(lambda mine: [bytes(len(mine)), mine], 0, 2)

    def interrupted(mine):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        weft.Communicator.from_all_gather(interrupted, 0, 2)


def test_environment(processes):
    for ended in processes(3, "collectives"):
        assert (ended.code, ended.out) == (0, "ok\n")


def test_log(caplog):
    lines = []
    with weft.join(log=lines.append) as c, weft.Group(c) as g:
        g.all_reduce(np.ones(3))
        g.all_reduce(np.ones(4), async_op=True).wait()
    assert len([line for line in lines if "msg=joined" in line]) == 1, lines
    assert len([line for line in lines if "name=all-reduce/eager" in line]) == 1, lines
    caplog.set_level(logging.INFO)
    weft.join(log=logging.getLogger("weft")).close()
    assert caplog.records


def test_dead_rank(processes):
    *alive, dead = processes(3, "death")
    assert dead.code < 0
    for ended in alive:
        assert (ended.code, ended.out) == (0, "ok\n")


def test_absent_rank(processes):
    for ended in processes(3, "absence", 1):
        assert (ended.code, ended.out) == (0, "ok\n")


def test_exception(processes):
    for ended in processes(3, "exception"):
        assert (ended.code, ended.out) == (0, "ok\n")


def test_interrupt(processes):
    for ended in processes(2, "interrupt"):
        assert (ended.code, ended.out) == (0, "ok\n"), ended.out


def test_abort(threads):
    def rank(c):
        g = weft.Group(c)
        if c.rank == 0:
            threading.Timer(0.2, c.abort).start()
            with pytest.raises(weft.AbortedError):
                g.barrier()
        else:
            time.sleep(0.5)
            with pytest.raises(weft.AbortedError) as e:
                g.barrier()
            assert e.value.rank == 0
        c.set_mask()
        g.barrier()
        return c.generation

    assert len(set(threads(2, rank))) == 1


def test_circle(threads):
    """Ranks that use groups in other orders wait for each other, and none is to blame."""

    def rank(c):
        groups = [weft.Group(c), weft.Group(c)]
        with pytest.raises(weft.DeadlineError, match="rank 1 for rank 0 in barrier of group 2") as e:
            groups[c.rank].barrier()
        c.set_mask()
        groups[0].barrier()
        return e.value.rank

    assert threads(2, rank, deadline=0.5) == [None, None]


def test_busy(threads):
    """A second thread is refused, not queued, and close waits for no call."""
    topk, weights, ready = np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32), threading.Event()

    def rank(c):
        h = weft.ep.Handle(c, experts=2, topk=1, hidden=4, max_tokens=1, payload="fp32")
        if c.rank == 0:

            def prepare():
                while True:
                    with contextlib.suppress(weft.BusyError):  # of the question below, which is a call on h too
                        return h.prepare(topk, weights)

            waiting = threading.Thread(target=prepare)
            waiting.start()
            until = time.monotonic() + 10
            while c._lib.ep_get(h._handle, weft._abi.EpInfo()) != weft.BusyError.status:
                assert time.monotonic() < until
            with pytest.raises(weft.BusyError):
                h.prepare(topk, weights)
            with pytest.raises(weft.BusyError):
                h.close()
            assert not h.closed
            with pytest.raises(weft.BusyError, match="; abort ends it"):
                c.close()
            assert not c.closed
            ready.set()
            waiting.join(20)
            assert not waiting.is_alive()
        else:
            assert ready.wait(20)
            h.prepare(topk, weights)
        return h.prepare(topk, weights).tokens

    assert threads(2, rank) == [1, 1]


def test_split(threads):
    """Communicators of the ranks of another one, and groups of both by turns."""

    split = threading.Barrier(3)

    def rank(c):
        x = np.full(3, c.rank, np.int64)
        seen = []
        with weft.Group(c) as g, c.duplicate() as twin, weft.Group(twin) as h:
            seen.append([int(g.all_reduce(x)[0]), int(h.all_reduce(x)[0]), twin.rank])
        part = c.split(None if c.rank == 1 else 0, -c.rank)
        if part is not None:
            with part, weft.Group(part) as g:
                seen.append([part.rank, part.ranks, int(g.all_reduce(x)[0])])
        with pytest.raises(weft.InvalidError, match="color -7"):
            c.split(-7 if c.rank == 2 else 0)
        split.wait(20)
        if c.rank:
            c.set_mask([0])
            with pytest.raises(weft.UnsupportedError, match="shrink"):
                c.duplicate()
            with c.shrink() as less:
                seen.append([less.rank, less.ranks, less.engine, less.deadline == c.deadline])
        return seen

    assert threads(3, rank) == [
        [[3, 3, 0], [1, 2, 2]],
        [[3, 3, 1], [0, 2, "host", True]],
        [[3, 3, 2], [0, 2, 2], [1, 2, "host", True]],
    ]


def test_what_one_rank_cannot_make_none_makes(threads):
    """Whoever finds an argument wrong, the others hear of it in the same call, and all go on together."""

    def rank(c):
        g = weft.Group(c)
        spec = {"experts": 2, "topk": 1, "hidden": 4, "max_tokens": 2, "payload": "fp32"}
        for words, good, bad in (
            ("color is 'a', want a whole number", lambda: c.split(0), lambda: c.split("a")),
            ("key is 1.5, want a whole number", lambda: c.split(0), lambda: c.split(0, 1.5)),
            ("color is 11805.*24, want", lambda: c.split(0), lambda: c.split(1 << 70)),
            ("key is 11805.*24, want", lambda: c.split(None), lambda: c.split(0, 1 << 70)),
            ("color -2", lambda: c.split(None), lambda: c.split(-2)),
            ("a timeout of -1 seconds", lambda: c.split(0), lambda: c.split(0, timeout=-1)),
            ("a timeout of 'a' seconds", lambda: c.duplicate(), lambda: c.duplicate(timeout="a")),
            ("a timeout of nan seconds", lambda: c.shrink(), lambda: c.shrink(timeout=float("nan"))),
            ("scratch is 'a'", lambda: weft.Group(c), lambda: weft.Group(c, scratch="a")),
            ("no type 'float99' here", lambda: weft.Group(c), lambda: weft.Group(c, dtypes=["float99"])),
            ("expected str", lambda: weft.Group(c), lambda: weft.Group(c, force=[3])),
            ("has no attribute 'name'", lambda: weft.Group(c), lambda: weft.Group(c, algorithms=[3])),
            ("a window of 'a' bytes", lambda: weft.Window(c, 8), lambda: weft.Window(c, "a")),
            ("a window of -8 bytes", lambda: weft.Window(c, 8), lambda: weft.Window(c, -8)),
            (
                "window: there is no array",
                lambda: weft.Window.from_array(c, np.ones(3)),
                lambda: weft.Window.from_array(c, None),
            ),
            (
                "descriptor is 'a'",
                lambda: weft.Window.from_file(c, -1, 8),
                lambda: weft.Window.from_file(c, "a", 8),
            ),
            ("no argument 'top'", lambda: weft.ep.Handle(c, **spec), lambda: weft.ep.Handle(c, top=3, **spec)),
            ("payload", lambda: weft.ep.Handle(c, **spec), lambda: weft.ep.Handle(c, **spec | {"payload": "fp33"})),
        ):
            for wrong in range(2):
                own = words if c.rank == wrong else f"rank {wrong}: .*refused there: .*{words}"
                if words.startswith("descriptor") and c.rank != wrong:
                    own = "descriptor -1"  # whoever has a reason of its own
                with pytest.raises((ValueError, TypeError, AttributeError, weft.WeftError), match=own):
                    (bad if c.rank == wrong else good)()
                assert g.all_reduce(np.ones(1)).tolist() == [2]
        with c.split(np.int64(1 << 40), -(1 << 40) * c.rank) as part:
            return part.rank

    assert threads(2, rank) == [1, 0]


def test_stream_on_the_host(threads):
    """A rank that names a stream is refused, and its peers are with it."""

    def rank(c):
        with weft.Group(c) as g:
            with pytest.raises(weft.UnsupportedError, match="no streams"):
                g.all_reduce(np.ones(2), **({"stream": 3} if c.rank else {}))
            with pytest.raises(weft.InvalidError, match="which has none"):
                c.wait(3)
            return float(g.all_reduce(np.ones(2))[0])

    assert threads(2, rank) == [2, 2]


def test_mask_of_ranks_that_are_not(comm):
    with pytest.raises(weft.InvalidError, match="rank 1 of 1"):
        comm.set_mask([1])


def test_every_status_has_a_class():
    for status in errors.Status:
        if status:
            e = errors.of_status(status, "words", 3)
            assert isinstance(e, weft.WeftError)
            assert (type(e).status, str(e), e.rank) == (status, "words", 3)
            copy = pickle.loads(pickle.dumps(e))
            assert (type(copy), str(copy), copy.rank) == (type(e), "words", 3)
    assert issubclass(weft.DeadlineError, TimeoutError)
    assert issubclass(weft.UnsupportedError, NotImplementedError)


def test_unclosed(script):
    ended = script(
        "import weft\nc = weft.join()\ndel c\n",
        "-W",
        "always::ResourceWarning",
        PYTHONWARNINGS="always::ResourceWarning",
    )
    assert ended.code == 0
    assert "was never closed" in ended.out, ended.out


def test_numbers_out_of_range(comm):
    """None is taken for another one."""
    for deadline in (0, -1, float("nan"), float("inf"), 1e300, 1 << 70, 2**64 / 1000 + 5, "x"):
        with pytest.raises(weft.InvalidError, match="a deadline of"):
            weft.join(deadline=deadline)
        with pytest.raises(weft.InvalidError, match="a timeout of"):
            weft.timeout(deadline)
    some = weft.UniqueId.create("lo")
    for rank, ranks in ((1 << 33, (1 << 33) + 1), (-1, 2), (2, 2), (0, 1025), (0, 0)):
        with pytest.raises(weft.InvalidError, match=f"rank {rank} of {ranks}"):
            weft.Communicator.from_unique_id(some, rank, ranks)
    for size in (-1, 1 << 63, 1 << 70):
        with pytest.raises(weft.InvalidError, match="a window of"):
            weft.Window(comm, size)
    for choices in (
        {"experts": (1 << 64) + 4},
        {"experts": (1 << 32) + 4},
        {"hidden": 1 << 70},
        {"max_tokens": 1 << 40},
    ):
        name, value = next(iter(choices.items()))
        with pytest.raises(weft.WeftError, match=f"{value}|{name}"):
            weft.ep.Handle(comm, **{"experts": 4, "topk": 1, "hidden": 8, "max_tokens": 1} | choices)
    for value in (3.7, 4.0, "4", True, None):
        with pytest.raises(weft.InvalidError, match=r"experts is .*, want a whole number"):
            weft.ep.Spec(experts=value, topk=1, hidden=8, max_tokens=1)
        with pytest.raises(weft.InvalidError, match=r"threads is .*, want a whole number"):
            weft.ep.Handle(
                comm, experts=4, topk=1, hidden=8, max_tokens=1, dispatch_tuning=weft.ep.KernelTuning(threads=value)
            )


def test_close_while_memory_goes():
    """The last array of a closed handle goes in another thread as its communicator is closed: nobody is inside a
    call."""

    def drop(together, arrays):
        together.wait()
        arrays.clear()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            with weft.join(deadline=20) as c:
                with weft.ep.Handle(c, experts=4, topk=2, hidden=8, max_tokens=3, payload="fp32") as h:
                    topk, weights = np.array([[0, 1]] * 3), np.ones((3, 2), np.float32)
                    arrays = [h.dispatch(np.ones((3, 8), np.float32), topk, weights).rows]
                together = threading.Barrier(2, timeout=20)
                other = threading.Thread(target=drop, args=(together, arrays))
                other.start()
                together.wait()
            other.join()
    finally:
        sys.setswitchinterval(interval)


def test_a_timeout_is_said_once():
    once = r"rank 1 has not joined at .* in 0\.\d+ s, which weft\.timeout sets$"
    with pytest.raises(weft.DeadlineError, match=once), weft.timeout(0.2):
        weft.Communicator.from_unique_id(weft.UniqueId.create("lo"), 0, 2)


@pytest.mark.parametrize("value", ["no", "2"])
def test_variable_of_the_compiled_part(value):
    environment = os.environ | {"WEFT_COMPILED": value}
    ended = subprocess.run([sys.executable, "-c", "import weft"], env=environment, capture_output=True, text=True)
    assert ended.returncode == 1
    assert f"weft.errors.InvalidError: WEFT_COMPILED={value}: it is 1, 0 or empty" in ended.stderr
