"""Collectives against numpy."""

from __future__ import annotations

import re

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
            assert re.fullmatch(r"<weft.Group rank \d of \d>", repr(g))
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


def flat(parts, counts):
    """The first so many rows of each part, one after the other."""
    return np.concatenate([part[:n] for part, n in zip(parts, counts, strict=True)])


# Calls of rank r whose array is xs[r], a part for each rank, and what they return: what stands in xs[r][p] goes
# from rank r to rank p. A root is the last rank, and the counts of rows are different.
CALLS = {
    "reduce-scatter": (lambda g, r, xs, _: g.reduce_scatter(xs[r]), lambda r, xs, _: xs.sum(0)[r]),
    "reduce-scatter of a list": (
        lambda g, r, xs, _: g.reduce_scatter(list(xs[r]), "min"),
        lambda r, xs, _: xs.min(0)[r],
    ),
    "reduce-scatter in place": (
        lambda g, r, xs, _: g.reduce_scatter(xs[r], out=xs[r][r]),
        lambda r, xs, _: xs.sum(0)[r],
    ),
    "reduce-scatter of rows": (
        lambda g, r, xs, n: g.reduce_scatter_v(flat(xs[r], n), n),
        lambda r, xs, n: xs.sum(0)[r][: n[r]],
    ),
    "reduce": (
        lambda g, r, xs, _: g.reduce(xs[r], "max", len(xs) - 1),
        lambda r, xs, _: xs.max(0) if r == len(xs) - 1 else None,
    ),
    "reduce in place": (
        lambda g, r, xs, _: g.reduce(xs[r], "sum", 0, out=xs[r]),
        lambda r, xs, _: None if r else xs.sum(0),
    ),
    "premulsum of a number": (
        lambda g, r, xs, _: g.all_reduce(xs[r], "premulsum", scalar=3),
        lambda r, xs, _: 3 * xs.sum(0),
    ),
    "premulsum of an array": (
        lambda g, r, xs, _: g.all_reduce(
            xs[r], "premulsum", scalar=np.full(1, 3, np.float32 if xs.dtype == np.float16 else xs.dtype)
        ),
        lambda r, xs, _: 3 * xs.sum(0),
    ),
    "premulsum of parts": (
        lambda g, r, xs, _: g.reduce_scatter(xs[r], weft.Op.premulsum, scalar=-1),
        lambda r, xs, _: -xs.sum(0)[r],
    ),
    "bool": (lambda g, r, xs, _: g.all_reduce(xs[r] > 1, "prod"), lambda r, xs, _: (xs > 1).all(0)),
    "all-gather of rows": (
        lambda g, r, xs, n: g.all_gather_v(xs[r][0][: n[r]], n),
        lambda r, xs, n: flat(xs[:, 0], n),
    ),
    "all-gather of rows to positions": (
        lambda g, r, xs, n: g.all_gather_v(
            xs[r][0][: n[r]], n, [sum(n[p + 1 :]) for p in range(len(n))], out=flat(xs[r], n)
        ),
        lambda r, xs, n: flat(xs[::-1, 0], n[::-1]),
    ),
    "all-to-all": (lambda g, r, xs, _: g.all_to_all(xs[r]), lambda r, xs, _: xs[:, r]),
    "all-to-all in place": (lambda g, r, xs, _: g.all_to_all(xs[r], out=xs[r]), lambda r, xs, _: xs[:, r]),
    "all-to-all of lists": (
        lambda g, r, xs, _: np.stack(g.all_to_all(list(xs[r]), out=list(np.zeros_like(xs[r])))),
        lambda r, xs, _: xs[:, r],
    ),
    "all-to-all of rows": (
        lambda g, r, xs, n: g.all_to_all_v(flat(xs[r], n), n, [n[r]] * len(n)),
        lambda r, xs, n: flat(xs[:, r], [n[r]] * len(n)),
    ),
    "gather": (
        lambda g, r, xs, _: g.gather(xs[r][0], len(xs) - 1),
        lambda r, xs, _: xs[:, 0] if r == len(xs) - 1 else None,
    ),
    "scatter": (
        lambda g, r, xs, _: g.scatter(None if r else xs[r], out=np.empty_like(xs[r][r])),
        lambda r, xs, _: xs[0][r],
    ),
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("n", [3, 1000])
def test_every_call(threads, ranks, name, n):
    call, want = CALLS[name]
    counts = [n - r for r in range(ranks)]

    def rank(c):
        rng = np.random.default_rng(7)
        xs = [rng.integers(0, 5, (ranks, ranks, n, 2)).astype(t) for t in (np.float32, np.int64, np.float16)]
        with weft.Group(c) as g:
            for x in xs:
                expected = want(c.rank, x.copy(), counts)
                got = call(g, c.rank, x.copy(), counts)
                assert (got is None) == (expected is None)
                assert got is None or ((got == expected).all() and got.shape == expected.shape)

    threads(ranks, rank)


def test_out_of_place(threads):
    def rank(c):
        x = np.arange(6.0).reshape(2, 3) + c.rank
        with weft.Group(c) as g:
            out = np.zeros((2, 3))
            assert g.broadcast(x if c.rank == 1 else None, 1, out=out) is out
            assert (out == np.arange(6.0).reshape(2, 3) + 1).all()
            parts = [np.zeros((2, 3)) for _ in range(c.ranks)]
            assert g.all_gather(x, out=parts) is parts
            assert all((part == np.arange(6.0).reshape(2, 3) + r).all() for r, part in enumerate(parts))
            seen = g.all_gather(np.array([c.rank == 1, True]))
            assert seen.dtype == bool
            assert seen.tolist() == [[r == 1, True] for r in range(c.ranks)]

    threads(3, rank)


def test_refused_calls(threads):
    """Every rank hears of what one refuses, and the group goes on."""

    def rank(c):
        x = np.ones((c.ranks, 2))
        with weft.Group(c) as g:
            for call, words in (
                (
                    lambda: g.reduce_scatter(np.ones((5, 2))),
                    r"array: shape \(5, 2\), want \[2, \.\.\.\], a part for each rank",
                ),
                (
                    lambda: g.scatter(x if c.rank == 0 else None),
                    "scatter: rank 1|out: there is no array, and only root",
                ),
                (lambda: g.reduce(x, root=2), "reduce: root 2 of 2 ranks"),
                (lambda: g.all_reduce(x, "premulsum"), "takes a scalar: one element of fp64"),
                (lambda: g.all_reduce(x, scalar=2), "scalar: sum takes none"),
                (lambda: g.all_reduce(x.astype(int), "premulsum", scalar=0.5), "scalar: 0.5 is no int64"),
                (lambda: g.all_gather_v(x, [2]), r"counts: \[2\], want a number of rows for each of 2 ranks"),
                (lambda: g.all_gather_v(x, [2, 2], [2, 0]), "out: there is no array, and parts that have positions"),
                (lambda: g.all_to_all_v(x, [1, -1], [1, 1]), r"send: \[1, -1\]"),
                (lambda: g.all_to_all([x]), "array: a list of 1 arrays"),
                (lambda: g.all_to_all([1, 2]), "array: a list of int"),
                (lambda: g.all_gather(x, out=[x, x.astype(np.float32)]), "out: part 1 is of shape"),
                (lambda: g.all_to_all(x, out=np.ones((2, 4))[:, ::2]), "out: .* is not contiguous"),
            ):
                with pytest.raises(weft.WeftError, match=words):
                    call()
            with pytest.raises(weft.WeftError, match=r"(array|rank 0: .*array): shape \(1, 2\)"):
                g.reduce_scatter(x if c.rank else x[:1])
            return g.all_reduce(x).tolist()

    assert threads(2, rank) == [[[2.0, 2.0]] * 2] * 2


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
            other = np.zeros((2, 3), np.int32)
            gather(other)
            assert (other == everyone).all()
            assert other.any()
            with pytest.raises(weft.InvalidError, match="no array"):
                gather([1] if c.rank else other)
            gather(other)
            with pytest.raises(weft.InvalidError, match="no array"):
                g.repeated_all_gather([1] if c.rank else mine, everyone)()
        with pytest.raises(weft.ClosedError):
            gather()

    threads(2, rank)
