"""Collectives against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import weft


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 1, 1000, 300_000])
def test_all(threads, ranks, n):
    inputs = [np.random.default_rng(r).integers(-9, 10, n).astype(np.float32) for r in range(ranks)]
    whole = np.stack(inputs)

    def rank(c):
        x = inputs[c.rank].copy()
        with weft.Group(c, scratch=1 << 20) as g:
            for op, want in (("sum", whole.sum(0)), (weft.Op.max, whole.max(0)), ("min", whole.min(0))):
                assert (g.all_reduce(x, op) == want).all()
            assert (g.all_gather(x) == whole).all()
            out = np.zeros_like(whole)
            out[c.rank] = x
            g.all_gather(out[c.rank], out=out)
            assert (out == whole).all()
            root = ranks - 1
            assert (g.broadcast(x, root) == inputs[root]).all()
            g.barrier()
        with pytest.raises(weft.ClosedError, match="this group of collectives was closed"):
            g.barrier()

    threads(ranks, rank)


def test_ops(threads):
    def rank(c):
        with weft.Group(c) as g:
            x = np.array([c.rank + 1.0, -2.0])
            return g.all_reduce(x, "prod").tolist(), g.all_reduce(x, "avg").tolist()

    assert threads(3, rank) == [([6.0, -8.0], [2.0, -2.0])] * 3


def test_mismatch(threads):
    def rank(c):
        with weft.Group(c) as g:
            with pytest.raises(weft.MismatchError):
                g.all_reduce(np.zeros(3 + c.rank))
            with pytest.raises(weft.MismatchError):
                g.all_reduce(np.zeros(3)) if c.rank else g.barrier()
            return g.all_reduce(np.ones(2)).tolist()

    assert threads(2, rank) == [[2.0, 2.0]] * 2


def test_windows(threads):
    def rank(c):
        with weft.Window(c, 4096) as w, weft.Group(c) as g:
            mine = w.array((4, 8), "float32")
            assert not mine.any()
            mine[:] = c.rank + 1
            g.barrier()
            nxt = (c.rank + 1) % c.ranks
            assert (w.array((8,), "float32", offset=64, rank=nxt) == nxt + 1).all()
            total = g.all_reduce(mine)
            g.barrier()
            assert (total == 6).all()
            with pytest.raises(weft.InvalidError, match="4100 bytes"):
                w.array((1025,), "float32")
            with pytest.raises(weft.InvalidError, match="rank 3 of 3"):
                w.array((1,), "uint8", rank=3)
        with pytest.raises(weft.ClosedError):
            w.array((1,), "uint8")
        assert (mine == c.rank + 1).all()  # it keeps its memory
        own = np.full(100, c.rank, np.uint8)
        with weft.Window.from_array(c, own) as w, weft.Group(c) as g:
            assert (w.array((100,), "uint8", rank=0) == 0).all()
            g.barrier()
        return w.id

    assert len(set(threads(3, rank))) == 1


def test_window_of_a_file(comm):
    import fcntl
    import os

    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 8192)
    fcntl.fcntl(fd, 1033, 2)  # F_ADD_SEALS, F_SEAL_SHRINK
    os.pwrite(fd, b"\x07", 5)
    with weft.Window.from_file(comm, fd, 8192) as w:
        os.close(fd)
        assert w.array((8,), "uint8")[5] == 7
    with pytest.raises(weft.InvalidError):
        weft.Window.from_file(comm, 99, 8)


def test_repeated_all_gather(threads):
    def rank(c):
        with weft.Group(c) as g:
            mine, everyone = np.zeros(3, np.int32), np.empty((2, 3), np.int32)
            gather = g.repeated_all_gather(mine, everyone)
            for i in range(50):
                mine[:] = i + c.rank
                gather()
                assert (everyone == np.array([[i] * 3, [i + 1] * 3])).all()
                g.barrier()  # before this rank's numbers are other ones
        with pytest.raises(weft.ClosedError):
            gather()

    threads(2, rank)
