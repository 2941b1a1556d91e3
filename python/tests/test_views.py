"""Tensors over memory of a GPU, in whatever way they are used and dropped. It is the host's here."""

from __future__ import annotations

import copy
import ctypes
import gc
import itertools
import weakref

import pytest
from conftest import EVERYTHING, at_once

from weft import dlpack, memory, views
from weft.dtypes import DType

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(not hasattr(torch._C, "_storage_Use_Count"), reason="this PyTorch does not count")


class Keep:
    """What is kept."""


def show(floats, keep=None, shape=(4, 5)):
    return views.show(ctypes.addressof(floats), DType.float32, shape, 0, keep)


def spare(floats):
    """How many tensors are kept that nobody has."""
    return sum(len(kept) for (place, _), kept in views._spare.items() if place[0] == ctypes.addressof(floats))


def left():
    gc.collect()
    views.sweep()
    return len(views._shown)


@pytest.mark.parametrize(
    "use",
    [
        lambda t: t,
        lambda t: t[1:, 2],
        lambda t: t.view(torch.uint8),
        lambda t: t.numpy(),
        lambda t: t.untyped_storage(),
        lambda t: torch.utils.dlpack.to_dlpack(t),
        lambda t: torch.nn.Parameter(t),
        lambda t: copy.copy(t),
        lambda t: (t * torch.ones(5, requires_grad=True)).grad_fn,
        lambda t: t.mul_(torch.ones(5, requires_grad=True)),
        lambda t: memoryview(t.numpy()),
        lambda t: [t.data],
    ],
)
def test_uses(of_host, use):
    """What is kept stays for as long as anything uses the memory, and until the sweep after that; the
    next tensor there knows nothing of it."""
    for _ in range(3):
        before, keep = left(), Keep()
        gone = weakref.ref(keep)
        of_host[7] = 3
        t = show(of_host, keep)
        assert (t.shape, t.dtype, t.requires_grad, t.is_leaf) == ((4, 5), torch.float32, False, True)
        assert (t.grad_fn, t[1, 2].item(), t.data_ptr()) == (None, 3, ctypes.addressof(of_host))
        used = use(t)
        del t, keep
        assert left() == before + 1
        assert gone() is not None
        del used
        assert left() == before
        assert gone() is None
    assert spare(of_host) == 1


@pytest.mark.parametrize("dtype", list(DType))
def test_types(of_host, dtype):
    shape = (2, 3)
    want = bytes(range(6 * dtype.itemsize))
    ctypes.memmove(of_host, want, len(want))
    for _ in range(2):
        t = views.show(ctypes.addressof(of_host), dtype, shape, 0, None)
        assert (t.dtype, t.shape) == (memory.torch_dtype(dtype), shape)
        assert bytes(t.view(torch.uint8).flatten().tolist()) == want


def test_pairs(of_host):
    """Two tensors keep what they keep until both are gone, and are what they were when they are shown again."""
    at, storages = ctypes.addressof(of_host), set()
    for first in (0, 1, 0):
        before, keep = left(), Keep()
        gone = weakref.ref(keep)
        of_host[:] = range(20)
        pair = list(
            views.show_pair((at, DType.float32, (2, 5), 0, False), (at + 40, DType.int32, (2, 5), 0, True), keep)
        )
        del keep
        assert pair[0].tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        assert (pair[1].shape, pair[1].stride(), pair[1].is_leaf) == ((5, 2), (1, 5), True)
        assert pair[1].t().contiguous().view(torch.float32).tolist() == [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]
        storages.add(tuple(t.untyped_storage()._cdata for t in pair))
        pair[first] = None
        assert left() == before + 1
        assert gone() is not None
        pair.clear()
        assert left() == before
        assert gone() is None
    assert len(storages) == 1


def test_half_of_a_pair_moved(of_host):
    at = ctypes.addressof(of_host)
    places = (at, DType.float32, (5,), 0, False), (at + 20, DType.float32, (5,), 0, False)
    views.show_pair(*places, None)[1].share_memory_()
    left()
    of_host[7] = 8
    a, b = views.show_pair(*places, None)
    assert (a.data_ptr(), b.data_ptr(), b[2].item()) == (at, at + 20, 8)


def test_one_place_shown_twice(of_host):
    """Each view has its own end."""
    before = left()
    kept = [Keep(), Keep()]
    gone = [weakref.ref(k) for k in kept]
    a, b = (show(of_host, k) for k in kept)
    del kept
    a[0, 0] = 5
    assert b[0, 0] == 5
    del a
    assert left() == before + 1
    assert [g() is None for g in gone] == [True, False]
    del b
    assert left() == before
    assert spare(of_host) == 2


def test_changes_of_its_shape(of_host):
    """They are the caller's tensor's alone."""
    for change in (
        lambda t: t.t_(),
        lambda t: t.unsqueeze_(0),
        lambda t: t.requires_grad_(),
        lambda t: t.resize_(2),
        lambda t: t.set_(torch.zeros(3)),
    ):
        change(show(of_host))
        views.sweep()
        t = show(of_host)
        assert (t.shape, t.requires_grad, t.data_ptr()) == ((4, 5), False, ctypes.addressof(of_host))
        del t
        views.sweep()


def test_memory_that_was_moved(of_host):
    show(of_host).share_memory_()
    left()
    of_host[3] = 8
    t = show(of_host)
    assert (t.data_ptr(), t[0, 3].item()) == (ctypes.addressof(of_host), 8)


def test_modes(of_host):
    """A tensor that was first shown in inference mode is one for gradients afterwards, and the other way round."""
    other = (ctypes.c_float * 20)()
    for floats, first in ((of_host, True), (other, False)):
        for inference in (first, not first, first):
            with torch.inference_mode(inference):
                t = show(floats)
                t += 1
            w = torch.ones(5, requires_grad=True)
            (t * w).sum().backward()
            assert w.grad is not None
            del t, w
            views.sweep()
        assert list(floats) == [3] * 20


def test_no_more_than_so_many_are_kept(of_host, monkeypatch):
    """Those used last are, and the blocks of others are used again."""
    monkeypatch.setattr(views, "_MOST", 4)
    before = len(dlpack._shown)
    for n in range(1, 21):
        assert show(of_host, shape=(n,)).shape == (n,)
        assert show(of_host, shape=(1,)).shape == (1,)
        views.sweep()
    assert [place[2] for place, _ in views._spare] == [(18,), (19,), (20,), (1,)]
    assert len(dlpack._shown) == before
    assert len(dlpack._free[1]) <= 4


def test_a_torch_that_does_not_count(of_host, monkeypatch):
    monkeypatch.setattr(views, "_uses", lambda: None)
    before, keep = len(dlpack._shown), Keep()
    gone = weakref.ref(keep)
    part = show(of_host, keep)[1]
    del keep
    views.sweep()
    assert gone() is not None
    assert len(dlpack._shown) == before + 1
    del part
    views.sweep()
    assert gone() is None
    assert len(dlpack._shown) == before


def test_threads(of_host):
    """Threads that show, sweep and let go do not take each other's."""
    before, wrong = left(), []
    floats = [(ctypes.c_float * 20)(*[n] * 20) for n in range(3)]

    def work(n):
        for _ in range(3000):
            keep = Keep()
            gone = weakref.ref(keep)
            t = show(floats[n], keep)
            del keep
            views.sweep()
            if t[3, 4] != n or gone() is None:
                wrong.append(n)
            del t
            views.sweep()

    at_once(work, (0, 0, 1, 1, 2, 2))
    assert not wrong
    assert left() == before
    assert all(spare(f) <= 2 for f in floats)


def test_fork(of_host, torch_script):
    """A child of a fork sweeps, whatever other threads were at."""
    ended = torch_script(
        """
import os, signal, threading
from weft import views
def work():
    while not over.is_set():
        views.sweep()
over = threading.Event()
threads = [threading.Thread(target=work) for _ in range(3)]
for t in threads:
    t.start()
for _ in range(COUNT):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        views.sweep()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
over.set()
""".replace("COUNT", "300" if EVERYTHING else "100")
    )
    assert (ended.code, ended.out) == (0, "")


def test_what_goes_may_sweep(of_host):
    class Sweeper:
        def __del__(self):
            views.sweep()
            gone.append(show(other).sum())

    gone, other = [], (ctypes.c_float * 20)()
    before = left()
    for _ in range(5):
        show(of_host, Sweeper())
        views.sweep()
    assert len(gone) == 5
    assert left() == before


INTERRUPTED = """
import faulthandler
faulthandler.enable()
import ctypes, gc, signal, torch
from weft import dlpack, views
from weft.dtypes import DType
dlpack.CUDA = 1
memory = (ctypes.c_float * 20)()
def show(n):
    return views.show(ctypes.addressof(memory), DType.float32, (n % 5, 4), 0, object())
signal.signal(signal.SIGALRM, signal.default_int_handler)
show(1)
hit = n = 0
while hit < 300:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + hit % 7 * 0.0001)
        while True:
            n += 1
            t = show(n)
            assert t.shape == (n % 5, 4) and t.data_ptr() in (0, ctypes.addressof(memory))
            del t
            views.sweep()
    except KeyboardInterrupt:
        hit += 1
signal.setitimer(signal.ITIMER_REAL, 0)
t = None
gc.collect()
views.sweep()
print("left", len(views._shown), len(dlpack._shown))
kept = show(3)
"""


def test_interrupts(torch_script):
    """Interrupts lose nothing, and a tensor may outlive the interpreter."""
    ended = torch_script(INTERRUPTED, timeout=120)
    assert (ended.code, ended.out) == (0, "left 0 0\n"), ended.out


def test_cost(of_host):
    """An alias is what is made, not another storage."""
    storages = set()
    for _ in itertools.repeat(None, 10):
        t = show(of_host)
        storages.add(t.untyped_storage()._cdata)
        del t
        views.sweep()
    assert len(storages) == 1


@pytest.mark.parametrize("dtype", [DType.float8_e4m3, DType.float32, DType.uint16])
@pytest.mark.parametrize("kind", ["dispatch", "function"])
def test_what_modes_keep(of_host, dtype, kind):
    """A mode that keeps what it sees keeps the memory, and does not make what comes later look as if nobody had it."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    kept = []

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, f, types, args=(), kwargs=None):
            kept.append((args, f(*args, **(kwargs or {}))))
            return kept[-1][1]

    class Function(TorchFunctionMode):
        def __torch_function__(self, f, types, args=(), kwargs=None):
            kept.append((args, f(*args, **(kwargs or {}))))
            return kept[-1][1]

    def shown(keep):
        return views.show(ctypes.addressof(of_host), dtype, (4, 2), 0, keep)

    before = left()
    with Dispatch() if kind == "dispatch" else Function():
        shown(None).view(torch.uint8).sum()
    for _ in range(3):
        keep = Keep()
        gone = weakref.ref(keep)
        t = shown(keep)
        del keep
        kept.clear()
        views.sweep()
        assert gone() is not None
        with Dispatch() if kind == "dispatch" else Function():
            t.view(torch.uint8).sum()
            u = shown(None)
        del t, u
        kept.clear()
        assert left() == before
        assert gone() is None
