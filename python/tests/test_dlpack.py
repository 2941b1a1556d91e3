"""Showing memory of a GPU by DLPack, to takers that fail, amid exceptions, in threads and under
interrupts. It is the host's here."""

from __future__ import annotations

import ctypes
import gc
import weakref

import pytest
from conftest import at_once

from weft import dlpack
from weft.dtypes import DType

torch = pytest.importorskip("torch")


class Keep:
    """What is kept."""


def shown(memory, keep=None):
    return dlpack.show(ctypes.addressof(memory), DType.float32, (4, 5), 0, keep)


def left():
    gc.collect()
    dlpack.sweep()
    return len(dlpack._shown)


def test_taken(of_host):
    """It is kept as long as the tensor, and till the sweep after that."""
    before, keep = left(), Keep()
    gone = weakref.ref(keep)
    t = torch.from_dlpack(shown(of_host, keep))
    of_host[7] = 3
    assert t.shape == (4, 5)
    assert t[1, 2] == 3
    part = t[1]
    del t, keep
    assert left() == before + 1
    assert gone() is not None
    del part
    assert left() == before
    assert gone() is None


def test_not_taken(of_host):
    before, keep = left(), Keep()
    capsule = shown(of_host, keep)
    assert left() == before + 1
    del capsule
    assert left() == before


def test_failures(of_host):
    """A view that goes amid an exception leaves that as it is."""
    before = left()

    def rows():
        return torch.from_dlpack(shown(of_host, Keep()))

    for call, error in (
        (lambda: torch.mm(rows(), torch.ones(4, 4)), RuntimeError),
        (lambda: rows() + torch.ones(3), RuntimeError),
        (lambda: rows()[9], IndexError),
        (lambda: rows().view(7), RuntimeError),
        (lambda: [rows(), 1 / 0], ZeroDivisionError),
        (lambda: [shown(of_host, Keep()), 1 / 0], ZeroDivisionError),
    ):
        for _ in range(20):
            with pytest.raises(error):
                call()
    assert left() == before


def test_blocks_are_used_again(of_host):
    """There are as many as were ever in use at once, whatever they said."""
    for n in range(100):
        t = torch.from_dlpack(dlpack.show(ctypes.addressof(of_host), DType.float32, (n % 4 + 1, n % 5), 0, Keep()))
        assert t.shape == (n % 4 + 1, n % 5)
        assert t.is_contiguous()
        del t
        dlpack.sweep()
    assert len(dlpack._free[2]) == 1
    many = [torch.from_dlpack(shown(of_host, Keep())) for _ in range(40)]
    assert len({t.data_ptr() for t in many}) == 1
    del many
    left()
    assert len(dlpack._free[2]) == 40


def test_threads(of_host):
    """Threads that show, take, sweep and let go do not take each other's."""
    before, wrong = left(), []
    memories = [(ctypes.c_float * 20)(*[n] * 20) for n in range(6)]

    def work(n):
        for _ in range(1500):
            t = torch.from_dlpack(shown(memories[n], Keep()))
            dlpack.sweep()
            if t[3, 4] != n:
                wrong.append(n)

    at_once(work, range(6))
    assert not wrong
    assert left() == before


INTERRUPTED = """
import faulthandler
faulthandler.enable()
import ctypes, gc, signal, torch
from weft import dlpack
from weft.dtypes import DType
dlpack.CUDA = 1
memory = (ctypes.c_float * 20)()
signal.signal(signal.SIGALRM, signal.default_int_handler)
torch.from_dlpack(dlpack.show(ctypes.addressof(memory), DType.float32, (4, 5), 0, None))
hit = 0
while hit < 300:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + hit % 7 * 0.0001)
        while True:
            torch.from_dlpack(dlpack.show(ctypes.addressof(memory), DType.float32, (4, 5), 0, object()))
            dlpack.sweep()
    except KeyboardInterrupt:
        hit += 1
signal.setitimer(signal.ITIMER_REAL, 0)
gc.collect()
dlpack.sweep()
print("left", len(dlpack._shown))
kept = torch.from_dlpack(dlpack.show(ctypes.addressof(memory), DType.float32, (4, 5), 0, None))
"""


def test_interrupts(torch_script):
    """Interrupts lose nothing, and an array may outlive the interpreter."""
    ended = torch_script(INTERRUPTED, timeout=120)
    assert (ended.code, ended.out) == (0, "left 0\n"), ended.out
