"""What may be passed, and what is refused in words that name the operand and the way out."""

from __future__ import annotations

import array
import ctypes
import gc

import numpy as np
import pytest

import weft


@pytest.fixture
def group(comm):
    with weft.Group(comm) as g:
        yield g


class OnlyDLPack:
    """An array of some library that has DLPack and nothing else."""

    def __init__(self, a):
        self.a = a

    def __dlpack__(self, **options):
        return self.a.__dlpack__()

    def __dlpack_device__(self):
        return self.a.__dlpack_device__()


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
)
def test_numpy(group, dtype):
    x = np.arange(7).astype(dtype)
    got = group.all_reduce(x)
    assert got.dtype == x.dtype
    assert (got == x).all()
    assert group.all_reduce(x, out=x) is x


@pytest.mark.parametrize(
    "shape", [(), (0,), (3,), (2, 3), (2, 1, 3), (2, 3, 1, 2), (2, 1, 3, 1, 2), (1, 2) * 5, (2, 0) * 3]
)
def test_shapes(group, shape):
    x = np.random.default_rng(0).random(shape)
    got = group.all_gather(x)
    assert got.shape == (1, *shape)
    assert (got[0] == x).all()


def test_many_dimensions(threads):
    """Collectives take any number of dimensions; arrays of handles have theirs."""
    shape = (2, 3, 1, 2, 2, 1)

    def rank(c):
        x = np.arange(24.0).reshape(shape) + c.rank
        want = [np.arange(24.0).reshape(shape) + r for r in range(2)]
        total = want[0] + want[1]
        with weft.Group(c) as g:
            assert (g.all_reduce(x) == total).all()
            assert (g.all_reduce(x.transpose(5, 4, 3, 2, 1, 0)) == total.transpose(5, 4, 3, 2, 1, 0)).all()
            assert g.all_reduce(x, out=np.zeros(shape)).shape == shape
            assert (g.broadcast(x.copy(), 1) == want[1]).all()
            for gathered in (g.all_gather(x), g.all_gather(x, out=np.zeros((2, *shape)))):
                assert (gathered == np.stack(want)).all()
            assert (g.reduce_scatter(x) == total[c.rank]).all()
            assert (g.all_to_all(x) == np.stack([w[c.rank] for w in want])).all()
            assert (g.all_to_all([x, x]) == np.stack(want)).all()
            assert (g.all_gather_v(x, [2, 2]) == np.concatenate(want)).all()
            rows = g.all_to_all_v(x[: 2 - 2 * c.rank], [1 - c.rank] * 2, [1, 0])
            assert (rows == want[0][c.rank : c.rank + 1]).all()
            got = np.zeros(shape)
            g.batch([weft.Send(x, 1 - c.rank), weft.Recv(got, 1 - c.rank)])
            assert (got == want[1 - c.rank]).all()
        h = weft.ep.Handle(c, experts=2, topk=1, hidden=4, max_tokens=2, payload="fp32")
        with h, pytest.raises(weft.InvalidError, match="topk: 6 dimensions, want at most 4"):
            h.prepare(x.astype(np.int64))

    threads(2, rank)


def test_ml_dtypes(group):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(5).astype(ml_dtypes.bfloat16)
    got = group.all_reduce(x)
    assert got.dtype == x.dtype
    assert (got == x).all()


def test_buffers(group):
    x = array.array("d", [1, 2, 3])
    assert list(group.all_reduce(x)) == [1, 2, 3]
    out = array.array("d", [0, 0, 0])
    assert group.all_reduce(x, out=out) is out
    assert list(out) == [1, 2, 3]
    assert list(group.all_reduce(b"abc")) == [97, 98, 99]  # read-only, and read
    assert list(group.all_reduce(memoryview(bytes(range(6)))[::2])) == [0, 2, 4]
    with pytest.raises(weft.OperandError, match="out: it is read-only"):
        group.all_reduce(b"abc", out=b"abc")
    with pytest.raises(weft.OperandError, match=r"out: .* is not contiguous"):
        group.all_reduce(b"abc", out=memoryview(bytearray(6))[::2])
    assert group.all_gather(memoryview(bytearray([1, 0, 1])).cast("?")).tolist() == [[True, False, True]]
    with pytest.raises(weft.OperandError, match="buffer format '<P'"):
        group.all_reduce((ctypes.c_void_p * 2)())


def test_dlpack(group):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (group.all_reduce(OnlyDLPack(x)) == x).all()
    out = np.zeros_like(x)
    wrapped = OnlyDLPack(out)
    assert group.all_reduce(x, out=wrapped) is wrapped
    assert (out == x).all()
    with pytest.raises(weft.OperandError, match="is not contiguous"):
        group.all_reduce(OnlyDLPack(x.T))
    with pytest.raises(weft.OperandError, match="DLPack type 5 of 64 bits"):
        group.all_reduce(OnlyDLPack(x.astype(np.complex64)))


def test_a_layer_of_dlpack(comm):
    """Arrays of a library that nobody here knows go all the way."""
    with weft.ep.Handle(comm, experts=2, topk=1, hidden=4, max_tokens=3, payload="fp32") as h:
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        got = h.dispatch(OnlyDLPack(x), OnlyDLPack(np.zeros((3, 1), np.int64)), OnlyDLPack(np.ones((3, 1), np.float32)))
        assert got.routing.tokens == 3
        assert (h.combine(OnlyDLPack(got.rows), got) == x).all()
        sums = array.array("f", bytes(48))
        h.combine(memoryview(got.rows), got, out=memoryview(sums).cast("B").cast("f", (3, 4)))
        assert list(sums) == x.ravel().tolist()


def test_without_numpy(script):
    """Where there is neither numpy nor PyTorch results are memoryviews."""
    ended = script("""
import array, sys
sys.modules["numpy"] = None
import weft
with weft.join() as c, weft.Group(c) as g:
    got = g.all_gather(array.array("i", [1, 2, 3]))
    assert (type(got), got.format, got.shape, got.tolist()) == (memoryview, "i", (1, 3), [[1, 2, 3]])
    assert g.all_reduce(array.array("d")).shape == (0,)
    h = weft.ep.Handle(c, experts=2, topk=1, hidden=4, max_tokens=2, payload="fp32")
    x = memoryview(array.array("f", range(8))).cast("B").cast("f", (2, 4))
    topk = memoryview(array.array("q", [0, 1])).cast("B").cast("q", (2, 1))
    weights = memoryview(array.array("f", [1, 2])).cast("B").cast("f", (2, 1))
    got = h.dispatch(x, topk, weights)
    rows = got.rows
    assert rows.shape == (2, 2, 4) and rows[1, 0, 3] == 7
    assert h.combine(rows, got).tolist() == [[0, 1, 2, 3], [8, 10, 12, 14]]
    c.close()
    assert rows[0, 0, 1] == 1
assert not {"numpy", "torch"} & {m for m in sys.modules if sys.modules[m]}
""")
    assert (ended.code, ended.out) == (0, "")


def test_strides(group):
    x = np.arange(12.0).reshape(3, 4)
    for view in (x.T, x[:, ::2], x[::-1], np.broadcast_to(x[0], (5, 4))):
        assert (group.all_reduce(view) == view).all()
    with pytest.raises(
        weft.OperandError, match=r"out: shape \(4, 3\) with strides .* is not contiguous, and is written"
    ):
        group.all_reduce(x.T, out=np.zeros((3, 4)).T)


def test_no_communicator(group):
    for made, name in (
        (lambda c: weft.Group(c), "Group"),
        (lambda c: weft.ep.Handle(c, experts=2, topk=1, hidden=4, max_tokens=1), "Handle"),
        (lambda c: weft.plan.Executor(c), "Executor"),
    ):
        for wrong in (None, 3, group):
            of = f"^{name}: the communicator is of type {type(wrong).__name__}, want what weft.join returned$"
            with pytest.raises(weft.InvalidError, match=of):
                made(wrong)


def test_refusals(group):
    x = np.zeros(3)
    with pytest.raises(weft.OperandError, match="array: type complex128"):
        group.all_reduce(x.astype(complex))
    with pytest.raises(weft.OperandError, match="byte order"):
        group.all_reduce(x.astype(">f8"))
    with pytest.raises(weft.OperandError, match=r"^array: a builtins\.list is no array"):
        group.all_reduce([1.0])
    with pytest.raises(weft.OperandError, match="array: there is no array"):
        group.all_reduce(None)
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    group.all_reduce(read_only)
    with pytest.raises(weft.OperandError, match="out: it is read-only"):
        group.all_reduce(x, out=read_only)
    with pytest.raises(weft.InvalidError):
        group.all_reduce(x, out=np.zeros(4))
    with pytest.raises(weft.InvalidError):
        group.all_reduce(x, out=np.zeros(3, np.float32))
    with pytest.raises(weft.InvalidError, match="op: 'median'"):
        group.all_reduce(x, "median")
    # It is a TypeError and a ValueError, too, and the group goes on.
    with pytest.raises(TypeError):
        group.all_reduce("text")
    with pytest.raises(ValueError, match="array"):
        group.all_reduce(x.astype(complex))
    assert (group.all_reduce(x) == x).all()


def test_a_refusal_reaches_the_others(threads):
    """A rank that passes what cannot be used tells the others, instead of leaving them to wait."""

    def rank(c):
        with weft.Group(c) as g:
            with pytest.raises(weft.WeftError) as e:
                g.all_reduce(np.zeros(3, complex if c.rank == 1 else float))
            return e.value, g.all_reduce(np.ones(3)).tolist()

    errors, sums = zip(*threads(3, rank), strict=True)
    assert [isinstance(e, weft.OperandError) for e in errors] == [False, True, False]
    assert [e.rank for e in errors] == [1, None, 1]
    assert sums == ([3.0] * 3,) * 3


def test_streams_on_the_host(group):
    with pytest.raises(weft.UnsupportedError, match="no streams"):
        group.barrier(stream=7)
    with pytest.raises(TypeError, match="is no stream"):
        group.barrier(stream="main")


def test_negated_view(group):
    """What PyTorch negates when it is read is read so, and not written."""
    torch = pytest.importorskip("torch")
    x = torch.arange(4.0)
    assert torch.equal(group.all_reduce(torch._neg_view(x)), -x)
    with pytest.raises(weft.OperandError, match="negates when it is read, and is written"):
        group.all_reduce(x, out=torch._neg_view(x.clone()))


def without_memory(h, call):
    """A call of a handle's that finds none for its result."""

    def refuse(*_):
        raise ValueError("no more")

    h._made = refuse
    try:
        call()
    finally:
        del h._made


def test_what_one_rank_is_refused_all_are(threads):
    """Whoever refuses an operand, the others hear of it in the same call, and all go on together."""

    class Bad:
        def __dlpack__(self, **_):
            raise ValueError("not today")

        def __dlpack_device__(self):
            return (1, 0)

    def rank(c):
        g, x = weft.Group(c), np.ones(4, np.float32)
        h = weft.ep.Handle(c, experts=2, topk=1, hidden=4, max_tokens=2, payload="fp32")
        token, topk, weights = np.ones((1, 4), np.float32), np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32)
        got = h.dispatch(token, topk, weights)
        gone = h.dispatch(token, routing=got)
        gone.release()
        for words, call in (
            ("not today", lambda bad: g.all_reduce(Bad() if bad else x)),
            ("not today", lambda bad: g.all_reduce(x, out=Bad() if bad else None)),
            ("'mean', want one of sum", lambda bad: g.all_reduce(x, "mean" if bad else "sum")),
            ("root 1099511627776 of 2", lambda bad: g.broadcast(x, 1 << 40 if bad else 0)),
            ("not today", lambda bad: h.prepare(Bad() if bad else topk)),
            ("not today", lambda bad: h.dispatch(Bad() if bad else token, topk, weights)),
            ("not today", lambda bad: h.dispatch(token, topk, Bad() if bad else weights)),
            (
                "rows: type complex64",
                lambda bad: h.dispatch(token.astype(np.complex64) if bad else token, topk, weights),
            ),
            ("rows: type complex64", lambda bad: h.dispatch(token.astype(np.complex64) if bad else token, routing=got)),
            (
                "weights: type complex64",
                lambda bad: h.dispatch(token, None, weights.astype(np.complex64) if bad else weights, routing=got),
            ),
            ("not today", lambda bad: h.combine(Bad() if bad else got.rows, got)),
            ("rows were released before", lambda bad: h.combine(got.rows, gone if bad else got)),
            ("rows were released before", lambda bad: h.dispatch_backward(got.rows, gone if bad else got)),
            ("rows were released before", lambda bad: h.combine_backward(token, gone if bad else got)),
            ("is no array", lambda bad: h.combine(3 if bad else got.rows, got)),
            ("is no array", lambda bad: h.send_combine(3, got) if bad else h.send_combine(got.rows, got).wait()),
            ("is no array", lambda bad: h.dispatch_backward(object() if bad else got.rows, got)),
            ("not today", lambda bad: h.combine_backward(Bad() if bad else token, got)),
            ("root 1.0 of 2", lambda bad: g.broadcast(x, 1.0 if bad else 0)),
            (
                r"array: part 1 is of shape \(4,\) and type float64, and part 0 of \(4,\) and float32",
                lambda bad: g.all_to_all([x, x.astype(float) if bad else x]),
            ),
            (
                r"array: part 1 is of shape \(3,\) and type float32, and part 0 of \(4,\)",
                lambda bad: g.reduce_scatter((x, x[1:] if bad else x)),
            ),
            (
                r"counts: \[2, 0, 1\], want a number of rows for each of 2 ranks",
                lambda bad: g.all_gather_v(x, np.array([2, 0, 1]) if bad else [4, 4]),
            ),
            ("counts: None, want", lambda bad: g.reduce_scatter_v(x, None if bad else [2, 2])),
            (r"counts: \[2\], want", lambda bad: g.reduce_scatter_v(x, [2] if bad else [2, 2])),
            (r"counts: \[4, -4\], want", lambda bad: g.all_gather_v(x, [4, -4] if bad else [4, 4])),
            (r"recv: \[2, 2.5\], want", lambda bad: g.all_to_all_v(x, [2, 2], [2, 2.5] if bad else [2, 2])),
            (r"send: 'ab', want", lambda bad: g.all_to_all_v(x, "ab" if bad else [2, 2], [2, 2])),
            ("algorithm: 3, want the name", lambda bad: g.all_reduce(x, algorithm=3 if bad else None)),
            ("extras: a list, want arrays by", lambda bad: g.all_reduce(x, extras=[1] if bad else None)),
            (
                "all-gather/eager is an algorithm of all-gather",
                lambda bad: g.all_reduce(x, algorithm="all-gather/eager" if bad else None),
            ),
            ("root None of 2", lambda bad: g.broadcast(x, None if bad else 0)),
            ("a timeout of -1 seconds", lambda bad: g.all_reduce(x, timeout=-1 if bad else 9)),
            ("a timeout of 'a' seconds", lambda bad: g.barrier(timeout="a" if bad else None)),
            (
                "a timeout of nan seconds",
                lambda bad: g.all_gather(x, timeout=np.nan if bad else 9, async_op=True).wait(),
            ),
            ("a str is no stream", lambda bad: g.all_reduce(x, stream="main" if bad else None)),
            ("stream: -1 is no CUstream", lambda bad: g.barrier(stream=-1 if bad else None)),
            ("a object is no stream", lambda bad: g.barrier(stream=object() if bad else None)),
            (
                "no more",
                lambda bad: without_memory(h, lambda: h.combine(got.rows, got)) if bad else h.combine(got.rows, got),
            ),
            (
                "no more",
                lambda bad: (
                    without_memory(h, lambda: h.combine_backward(token, got)) if bad else h.combine_backward(token, got)
                ),
            ),
            (
                "no more",
                lambda bad: (
                    without_memory(h, lambda: h.dispatch_backward(got.rows, got, x))
                    if bad
                    else h.dispatch_backward(got.rows, got, x)
                ),
            ),
            (
                "second bias: type",
                lambda bad: h.combine(
                    got.rows, got, bias=(token, token.astype(np.complex64)) if bad else (token, token)
                ),
            ),
        ):
            for bad in range(2):
                with pytest.raises(
                    (ValueError, weft.WeftError),
                    match=words if c.rank == bad else f"rank {bad}: refused there: .*{words}",
                ):
                    call(c.rank == bad)
                assert g.all_reduce(x).tolist() == [2] * 4

    threads(2, rank)


def test_arrays_of_ctypes(group):
    x = (ctypes.c_float * 3)(1, 2, 3)
    out = (ctypes.c_float * 3)()
    group.all_reduce(x, out=out)
    assert list(out) == [1, 2, 3]
    assert group.all_gather((ctypes.c_int64 * 2)(5, 6)).tolist() == [[5, 6]]


def test_a_refusal_keeps_nothing(comm):
    """What callers have is given back with its last name, though an exception has been there."""
    h = weft.ep.Handle(comm, experts=2, topk=1, hidden=4, max_tokens=2, payload="fp32")
    token, topk, weights = np.ones((1, 4), np.float32), np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32)
    gc.disable()
    try:
        for _ in range(10):  # there is memory for two
            got = h.dispatch(token, topk, weights)
            for call in (
                lambda got: h.combine(3, got),
                lambda got: h.combine(np.ones((1, 4)), got),
                lambda got: h.send_combine(got.rows, got, bias=3),
                lambda got: h.dispatch_backward(3, got),
                lambda got: h.combine_backward(token, got, 3),
                lambda got: h.dispatch(got.rows, 3, weights),
                lambda got: h.dispatch(3, routing=got.routing),
                lambda got: weft.Group(comm).all_reduce(got.rows, out=3),
                lambda got: weft.Group(comm).all_reduce(got.rows, "mean"),
            ):
                with pytest.raises(weft.WeftError):
                    call(got)
            del got
    finally:
        gc.enable()
