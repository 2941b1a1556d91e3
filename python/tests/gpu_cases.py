"""Expert parallelism and collectives on emulated GPUs: what comes is what comes on the host, bit by bit, and what goes
wrong has words. test_gpu.py runs these."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from emulated import Interface, OnGPU, fill, numpy_of, tensors_on_gpus
from model import Batch

import weft
from weft import ep, resources

LAYOUTS = ["expert_major", "expert_packed", "rank_major", "token_major"]


class OfHost:
    """How a test has arrays for a communicator's engine: on the host they are numpy's."""

    def __init__(self, c):
        self.c = c

    def give(self, array):
        return array

    def read(self, array):
        return array if array is None else array.copy()

    def fill(self, array, values):
        array[...] = values


class OfGPU(OfHost):
    """On a GPU they are a library's that has DLPack."""

    def give(self, array):
        return None if array is None else OnGPU(array, self.c._device)

    def read(self, array):
        self.c.wait()
        return numpy_of(array)

    def fill(self, array, values):
        fill(array, values)


@pytest.fixture
def gpus(threads):
    """Runs a function of a communicator on so many ranks, which are threads with a GPU each."""
    return lambda n, function, **options: threads(n, function, gpu=int, **options)


@pytest.fixture
def engines(threads):
    """What a function of a communicator, and of how it has arrays, returns on so many ranks on GPUs,
    and on the host."""

    def run(n, function):
        on_gpus = threads(n, lambda c: function(c, OfGPU(c)), gpu=int)
        return on_gpus, threads(n, lambda c: function(c, OfHost(c)))

    return run


def same(on_gpus, on_host):
    """Whether every rank has the same numbers on both engines."""
    assert len(on_gpus) == len(on_host)
    for rank, (gpu, host) in enumerate(zip(on_gpus, on_host, strict=True)):
        assert gpu.keys() == host.keys()
        for name, want in host.items():
            got = gpu[name]
            assert (got is None) == (want is None), f"rank {rank}: {name} is {got}, want {want}"
            if want is not None:
                assert got.dtype == want.dtype
                assert got.tobytes() == want.tobytes(), f"rank {rank}: {name} is\n{got}\nwant\n{want}"


def handle(c, batch, **choices):
    sizes = {
        "experts": batch.experts,
        "topk": batch.topk,
        "hidden": batch.hidden,
        "max_tokens": batch.max_tokens,
        "payload": "fp32",
    }
    return ep.Handle(c, **{**sizes, **choices})


def test_forgotten_handles(engines):
    """Handles that are dropped without a close do not keep the room that their kernels have, nor the
    work that is theirs from ending."""
    batch = Batch(2, experts=4, topk=2, hidden=8, max_tokens=3, seed=5)

    def rank(c, arrays):
        sums, rooms = np.zeros_like(batch.rows[c.rank]), set()
        out = arrays.give(sums)
        for _ in range(6):
            h = handle(c, batch, max_tokens=2048)
            rooms.add(h.sms)
            got = h.dispatch(*(arrays.give(a[c.rank]) for a in (batch.rows, batch.topks, batch.weights)))
            h.combine(got.rows, got, out=out)
            del h, got
        c.wait()
        assert len(rooms) == 1, rooms
        return {"sums": sums}

    same(*engines(2, rank))


def described(arrays, routing):
    """What a routing says, of the rows that hold a token alone."""
    sources = arrays.read(routing.source_ranks)
    held = sources >= 0
    return held, {
        "rows": np.array(
            [routing.rows, routing.received, routing.demand, routing.selections, routing.visits, routing.tokens]
        ),
        "held": held,
        "sources": sources[held],
        **{
            name: arrays.read(getattr(routing, name))
            for name in ("expert_counts", "expert_demand", "expert_offsets", "source_counts", "ranges", "row_demand")
        },
        **{
            name: None if found is None else found[held]
            for name in ("source_tokens", "row_weights", "row_experts", "row_selection_weights")
            for found in [arrays.read(getattr(routing, name))]
        },
    }


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_exchange(engines, layout, halves):
    """Prepare, dispatch and combine, whole and in halves, of a routing that is used twice and of one
    that is made on the way."""
    batch = Batch(2, experts=6, topk=3, hidden=32, max_tokens=7, seed=5)

    def rank(c, arrays):
        r, found = c.rank, {}
        x, topk, weights = (arrays.give(a[r]) for a in (batch.rows, batch.topks, batch.weights))
        with handle(c, batch, layout=layout) as h, h.prepare(topk, weights) as routing:
            held, about = described(arrays, routing)
            visits = {(t, e // 3) for t, experts in enumerate(batch.topks[r]) for e in experts if e >= 0}
            # A row crosses once for each other rank that has an expert of the token.
            assert routing.remote_rows == sum(to != r for _, to in visits)
            found |= about
            for i, by in enumerate((routing, routing, None)):
                selected = {"routing": by} if by else {"topk": topk, "weights": weights}
                got = h.send_dispatch(x, **selected).receive() if halves else h.dispatch(x, **selected)
                rows = arrays.read(got.rows)
                assert rows.shape == h.rows_shape(got)
                found[f"rows {i}"] = rows.reshape(-1, 32)[held]
                assert got.scales is None
                out, bias = np.full((len(batch.rows[r]), 32), np.nan, np.float32), np.full_like(batch.rows[r], i)
                arrays.fill(got.rows, rows * (r + 2))
                to, biases = arrays.give(out), (arrays.give(bias), arrays.give(bias))
                if halves:
                    assert h.send_combine(got.rows, got, out=to, bias=biases).wait() is to
                else:
                    assert h.combine(got.rows, got, out=to, bias=biases) is to
                c.wait()
                found[f"out {i}"] = out
                got.release()
                if by is None:
                    got.routing.release()
        return found

    same(*engines(2, rank))


def test_one_rank(engines):
    batch = Batch(1, experts=4, topk=2, hidden=32, max_tokens=5, seed=1)

    def rank(c, arrays):
        with handle(c, batch) as h:
            got = h.dispatch(
                arrays.give(batch.rows[0]), arrays.give(batch.topks[0].astype(np.int32)), arrays.give(batch.weights[0])
            )
            out = np.empty_like(batch.rows[0])
            h.combine(got.rows, got, out=arrays.give(out))
            c.wait()
            return {"out": out}

    same(*engines(1, rank))


@pytest.mark.parametrize("layout", ["expert_major", "token_major"])
def test_gradients(engines, layout):
    batch = Batch(2, experts=4, topk=2, hidden=32, max_tokens=5, seed=11)
    rng = np.random.default_rng(3)
    grads = [rng.integers(-3, 4, x.shape).astype(np.float32) for x in batch.rows]

    def rank(c, arrays):
        r = c.rank
        with handle(c, batch, layout=layout) as h:
            got = h.dispatch(arrays.give(batch.rows[r]), arrays.give(batch.topks[r]), arrays.give(batch.weights[r]))
            sources = arrays.read(got.routing.source_ranks)
            held = sources >= 0
            y = arrays.read(got.rows)
            y.reshape(-1, 32)[~held] = 0
            shape, tokens = h.rows_shape(got), len(batch.rows[r])
            grad_rows, grad_weights = np.zeros(shape, np.float32), np.zeros((tokens, 2), np.float32)
            weighted = h.spec.weighting == ep.Weighting.weighted
            y, to = (arrays.give(y), arrays.give(grad_weights)) if weighted else (None, None)
            h.combine_backward(arrays.give(grads[r]), got, y, grad_rows=arrays.give(grad_rows), grad_weights=to)
            c.wait()
            per_row = (held.size, 2) if h.spec.one_row_per_rank else (held.size,)
            row_weights = np.arange(np.prod(per_row), dtype=np.float32).reshape(per_row)
            grad_tokens, back, plain = (
                np.empty((tokens, 32), np.float32),
                np.zeros((tokens, 2), np.float32),
                np.empty((tokens, 32), np.float32),
            )
            h.dispatch_backward(
                arrays.give(grad_rows),
                got,
                arrays.give(row_weights),
                grad_tokens=arrays.give(grad_tokens),
                grad_weights=arrays.give(back),
            )
            h.dispatch_backward(arrays.give(grad_rows), got, grad_tokens=arrays.give(plain))
            c.wait()
            return {
                "rows": grad_rows.reshape(-1, 32)[held],
                "weights": grad_weights,
                "tokens": grad_tokens,
                "back": back,
                "plain": plain,
            }

    same(*engines(2, rank))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts(engines, layout):
    """Of arrays that are not PyTorch's, too: those that the layout has, and of rows the first so many."""
    batch = Batch(2, experts=6, topk=3, hidden=8, max_tokens=7, seed=5)
    by_rank = layout in ("rank_major", "token_major")
    names = ("source_ranks", "source_tokens", "row_experts" if by_rank else "row_weights")

    def rank(c, arrays):
        with handle(c, batch, layout=layout) as h:
            routing = h.prepare(arrays.give(batch.topks[c.rank]), arrays.give(batch.weights[c.rank]))
            sources, *found = (
                arrays.read(a) for a in routing.parts(*names, **({} if c.engine == "host" else {"rows": 3}))
            )
            for wrong in ("nonsense", "row_demand", "ranges" if by_rank else "row_experts"):
                with pytest.raises(weft.InvalidError, match="no part of a routing of this layout"):
                    routing.parts(wrong)
            held = sources[:3] >= 0
            return {"held": held} | {
                name: a[:3][held].astype(np.float64) for name, a in zip(names[1:], found, strict=True)
            }

    same(*engines(2, rank))


def test_fp8(engines):
    rng = np.random.default_rng(5)
    x = [rng.normal(size=(6, 256)).astype(np.float32) for _ in range(2)]
    topk, weights = np.array([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [1, 3]]), np.full((6, 2), 0.5, np.float32)

    def rank(c, arrays):
        with ep.Handle(
            c, experts=4, topk=2, hidden=256, max_tokens=6, payload="fp8", quantize="float32", output="float32"
        ) as h:
            got = h.dispatch(arrays.give(x[c.rank]), arrays.give(topk), arrays.give(weights))
            held = arrays.read(got.routing.source_ranks) >= 0
            rows, scales = arrays.read(got.rows), arrays.read(got.scales)
            assert scales.shape == (2, 12, 2)
            return {"rows": rows.reshape(-1, 256)[held], "scales": scales.reshape(-1, 2)[held]}

    same(*engines(2, rank))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies(engines, layout):
    """What has arrived in arrays of the caller's, whole: what no row came for is as it was."""
    batch = Batch(2, experts=6, topk=3, hidden=256, max_tokens=7, seed=6)

    def rank(c, arrays):
        r, found = c.rank, {}
        for order in ep.ScaleOrder:
            with handle(
                c,
                batch,
                layout=layout,
                payload="fp8",
                quantize="float32",
                output="float32",
                scale_order=order,
                counts="device",
            ) as h:
                got = h.dispatch(*(arrays.give(a[r]) for a in (batch.rows, batch.topks, batch.weights)))
                shape = h.rows_shape(got)
                places = int(np.prod(shape[:-1]))
                for to in ep.ScaleOrder:
                    across = (2, shape[-2]) if to == ep.ScaleOrder.column_major else (shape[-2], 2)
                    made = {
                        "rows": np.full(shape, 7, np.uint8),
                        "scales": np.full((*shape[:-2], *across), 7, np.float32),
                        "source_tokens": np.full(places, 7, np.int32),
                        "source_ranks": np.full(places, 7, np.int32),
                        "expert_counts": np.full(3, 7, np.int32),
                        "source_counts": np.full(2, 7, np.int32),
                    }
                    if h.spec.one_row_per_rank:
                        made |= {
                            "row_experts": np.full((places, 3), 7, np.int32),
                            "row_selection_weights": np.full((places, 3), 7, np.float32),
                        }
                    else:
                        made |= {"row_weights": np.full(places, 7, np.float32), "ranges": np.full((3, 2), 7, np.int64)}
                    got.copy_to(**{name: arrays.give(a) for name, a in made.items()}, scale_order=to)
                    c.wait()
                    sources = arrays.read(got.routing.source_ranks)
                    held = sources >= 0
                    assert (
                        made["rows"].reshape(-1, 256)[held]
                        == arrays.read(got.rows).view(np.uint8).reshape(-1, 256)[held]
                    ).all()
                    assert (made["rows"].reshape(-1, 256)[~held] == 7).all()
                    assert (made["source_ranks"] == np.where(held, sources, 7)).all()
                    found |= {f"{name}, {order.name} as {to.name}": a for name, a in made.items()}
        return found

    same(*engines(2, rank))


def test_device_counts(engines):
    """Arrays have the size of the capacity, and the number of rows stays on the GPU."""
    batch = Batch(2, experts=4, topk=2, hidden=32, max_tokens=5, seed=4)

    def rank(c, arrays):
        with handle(c, batch, layout="token_major", counts="device") as h:
            got = h.dispatch(
                arrays.give(batch.rows[c.rank]), arrays.give(batch.topks[c.rank]), arrays.give(batch.weights[c.rank])
            )
            assert got.rows.shape == (h.capacity, 32)
            n = len(batch.visitors(c.rank))
            assert got.routing.received == n
            if h.sms[0]:
                buffer = h.combine_buffer()
                assert buffer.shape == (h.capacity, 32)
                fill(buffer, arrays.read(got.rows))
                rows = buffer
            else:
                rows = got.rows
            out = np.empty_like(batch.rows[c.rank])
            h.combine(rows, got, out=arrays.give(out))
            c.wait()
            return {"rows": arrays.read(got.rows)[:n], "out": out, "demand": arrays.read(got.routing.row_demand)}

    same(*engines(2, rank))


@pytest.mark.parametrize("layout", ["expert_packed", "token_major"])
def test_first_rows(engines, layout):
    """With counts on the device, who knows how many rows have come combines those alone, from memory
    that has no more."""
    batch = Batch(2, experts=4, topk=2, hidden=32, max_tokens=5, seed=4)

    def rank(c, arrays):
        x, topk, weights = (arrays.give(a[c.rank]) for a in (batch.rows, batch.topks, batch.weights))
        with handle(c, batch, layout=layout, counts="device") as h:
            got = h.dispatch(x, topk, weights)
            come = got.routing.received
            first = arrays.read(got.rows)[:come] * 2
            outs, backs = (
                np.empty((3, *batch.rows[c.rank].shape), np.float32),
                np.zeros((2, *batch.topks[c.rank].shape), np.float32),
            )
            scalars = np.arange(come * (2 if layout == "token_major" else 1), dtype=np.float32)
            for i, n in enumerate((come, h.capacity)):
                rows, of_rows = np.zeros((n, 32), np.float32), np.zeros(scalars.size // come * n, np.float32)
                rows[:come], of_rows[: scalars.size] = first, scalars
                h.combine(arrays.give(rows), got, out=arrays.give(outs[i]))
                h.dispatch_backward(
                    arrays.give(rows),
                    got,
                    arrays.give(of_rows),
                    grad_tokens=arrays.give(outs[2]),
                    grad_weights=arrays.give(backs[i]),
                )
                c.wait()
            assert (outs[0] == outs[1]).all()
            assert (backs[0] == backs[1]).all()
            return {"out": outs[0], "tokens": outs[2], "weights": backs[0]}

    same(*engines(2, rank))


@pytest.mark.parametrize("layout", ["expert_packed", "token_major"])
def test_copies_of_the_first_rows(gpus, layout):
    """With counts on the device alone, a copy leaves out the rows that an array has no room for."""
    batch = Batch(2, experts=4, topk=2, hidden=32, max_tokens=5, seed=4)
    few = 3

    def rank(c):
        x, topk, weights = (OnGPU(a[c.rank], c._device) for a in (batch.rows, batch.topks, batch.weights))
        with handle(c, batch, layout=layout, counts="device") as h:
            got, n = h.dispatch(x, topk, weights), h.capacity

            def arrays():
                found = {"rows": np.full((n, 32), 77, np.float32), "source_tokens": np.full(n, 77, np.int32)}
                if layout == "expert_packed":
                    return found | {"row_weights": np.full(n, 77, np.float32)}
                return found | {
                    "row_experts": np.full((n, 2), 77, np.int64),
                    "row_selection_weights": np.full((n, 2), 77, np.float32),
                }

            all_rows, first = arrays(), arrays()
            got.copy_to(**{name: OnGPU(a, c._device) for name, a in all_rows.items()})
            got.copy_to(**{name: OnGPU(a[:few], c._device) for name, a in first.items()})
            c.wait()
            for name, a in first.items():
                assert (a[:few] == all_rows[name][:few]).all(), name
                assert (a[few:] == 77).all(), name
            if layout == "token_major":
                want = numpy_of(got.routing.row_experts)
                assert (all_rows["row_experts"][: got.routing.received] == want[: got.routing.received]).all()
            assert got.routing.received > few
            with pytest.raises(weft.InvalidError, match="source tokens are"):
                got.copy_to(source_tokens=OnGPU(first["source_tokens"][:few], c._device))

    gpus(2, rank)


def test_too_few_and_too_many_rows(engines):
    """More than the capacity is refused, and so are fewer than have come where the host knows how many."""

    def rank(c, arrays):
        with ep.Handle(
            c, experts=2, topk=1, hidden=32, max_tokens=4, payload="fp32", layout="token_major", counts="device"
        ) as h:
            got = h.dispatch(arrays.give(X), arrays.give(TOPK), arrays.give(WEIGHTS))
            for n in (got.routing.received - 1, h.capacity + 1):
                with pytest.raises(weft.InvalidError, match="rows are"):
                    h.combine(arrays.give(np.zeros((n, 32), np.float32)), got, out=arrays.give(np.empty_like(X)))
            return {}

    engines(2, rank)


def test_overflow(gpus):
    def rank(c):
        with ep.Handle(c, experts=2, topk=1, hidden=32, max_tokens=4, payload="fp32", capacity=4) as h:
            arrays = OfGPU(c)
            x, weights, out = np.ones((4, 32), np.float32), np.ones((4, 1), np.float32), np.empty((4, 32), np.float32)
            with pytest.raises(weft.CapacityError) as e:
                h.dispatch(arrays.give(x), arrays.give(np.zeros((4, 1), np.int32)), arrays.give(weights))
            assert e.value.rank == 0
            got = h.dispatch(arrays.give(x), arrays.give(np.full((4, 1), c.rank, np.int32)), arrays.give(weights))
            h.combine(got.rows, got, out=arrays.give(out))
            c.wait()
            assert (out == 1).all()

    gpus(2, rank)


X, TOPK, WEIGHTS = (
    np.arange(128, dtype=np.float32).reshape(4, 32),
    np.array([[0], [1], [0], [1]]),
    np.ones((4, 1), np.float32),
)
SPEC = ep.Spec(experts=2, topk=1, hidden=32, max_tokens=4, payload="fp32")


@pytest.fixture
def comm():
    with weft.join(engine="gpu", gpu=1, deadline=20) as c:
        yield c


def given(array):
    return OnGPU(array, 1)


def dispatched(h, x=X):
    return h.dispatch(given(x), given(TOPK), given(WEIGHTS))


def combined(h, got, rows=None):
    out = np.empty_like(X)
    h.combine(got.rows if rows is None else rows, got, out=given(out))
    h.comm.wait()
    return out


def test_what_is_not_on_the_gpu(comm):
    """Operands elsewhere are refused by name, and nothing has moved: the same handle goes on."""
    h = ep.Handle(comm, SPEC)
    for rows, where in (
        (X, "the host"),
        (OnGPU(X, 0), "GPU 0"),
        (OnGPU(X, 2), "GPU 2"),
        (memoryview(X), "the host"),
        (type("Pinned", (OnGPU,), {"__dlpack_device__": lambda _: (3, 0)})(X, 1), "the host"),
        (type("Other", (OnGPU,), {"__dlpack_device__": lambda _: (8, 1)})(X, 1), "no memory of CUDA's or the host's"),
    ):
        with pytest.raises(
            weft.OperandError, match=f"rows: it is on {where}, and the communicator works on GPU 1: move it there"
        ):
            h.dispatch(rows, given(TOPK), given(WEIGHTS))
    with pytest.raises(weft.OperandError, match="topk: it is on the host"):
        h.dispatch(given(X), TOPK, given(WEIGHTS))
    torch = pytest.importorskip("torch")
    with pytest.raises(weft.OperandError, match="rows: it is on cpu, and the communicator works on GPU 1"):
        h.dispatch(torch.from_numpy(X), given(TOPK), given(WEIGHTS))
    with pytest.raises(weft.OperandError, match="rows: it is on meta"):
        h.dispatch(torch.zeros(4, 32, device="meta"), given(TOPK), given(WEIGHTS))
    got = dispatched(h)
    with pytest.raises(weft.OperandError, match="out: it is on the host"):
        h.combine(got.rows, got, out=np.empty_like(X))
    assert (combined(h, got) == X).all()
    h.close()


def test_gpu_arrays_on_the_host():
    with weft.join() as c, ep.Handle(c, SPEC) as h:
        for rows in (OnGPU(X, 0), Interface(X)):
            with pytest.raises(
                weft.OperandError,
                match=r"rows: it is on (GPU 0|a GPU), and the communicator works on the host's memory: move it there",
            ):
                h.dispatch(rows, TOPK, WEIGHTS)


def test_operands(comm):
    """What other libraries' arrays may be, and what is wrong with others."""
    h = ep.Handle(comm, SPEC)
    got = h.dispatch(Interface(X), Interface(TOPK), Interface(WEIGHTS))
    assert isinstance(got.rows, weft.DeviceArray)
    out = np.empty_like(X)
    h.combine(Interface(numpy_of(got.rows)), got, out=Interface(out))
    comm.wait()
    assert (out == X).all()
    transposed = np.asfortranarray(X)
    for call, words in (
        (lambda: h.dispatch(Interface(X, typestr=">f4"), given(TOPK), given(WEIGHTS)), r"rows: type >f4"),
        (lambda: h.dispatch(Interface(X, typestr="<c8"), given(TOPK), given(WEIGHTS)), r"rows: type <c8"),
        (
            lambda: h.dispatch(Interface(transposed), given(TOPK), given(WEIGHTS)),
            r"rows: shape \(4, 32\) with strides \(4, 16\) is not contiguous: pass a",
        ),
        (
            lambda: h.dispatch(Interface(X, stream=7), given(TOPK), given(WEIGHTS)),
            r"rows: it is made in stream 7, .* call with stream=7",
        ),
        (
            lambda: h.combine(got.rows, got, out=Interface(transposed)),
            r"out: shape \(4, 32\) .* is not contiguous, and is written",
        ),
        (lambda: h.combine(got.rows, got, out=Interface(out, data=(out.ctypes.data, True))), r"out: it is read-only"),
        (lambda: h.combine(got.rows, got), r"out: on a GPU results are made where operands are PyTorch's: give out"),
        (lambda: h.dispatch_backward(got.rows, got), r"grad_tokens: on a GPU results are made"),
        (lambda: h.combine_backward(given(X), got), r"grad_rows: on a GPU results are made"),
        (
            lambda: h.combine_backward(given(X), got, got.rows, grad_rows=got.rows),
            r"grad_weights: on a GPU results are made",
        ),
    ):
        with pytest.raises(weft.InvalidError, match=words):
            call()
    for x in (X[:, :16].copy(), X.astype(np.float64), X[:2]):
        with pytest.raises(weft.InvalidError):
            dispatched(h, x)
    inside = np.empty(4 * 32 + 4, np.float32)
    at = inside.ctypes.data % 16 // 4
    with pytest.raises(weft.UnsupportedError, match="rows begin on multiples of 16 bytes"):
        dispatched(h, inside[1 - at + 4 * (at > 0) :][:128].reshape(4, 32))
    assert (combined(h, got) == X).all()  # nothing of all that has moved
    h.close()


def test_showing(comm):
    """What is received keeps its memory while anybody has it, in whatever form, and goes with it."""
    from weft import dlpack

    with ep.Handle(comm, SPEC) as h:
        got = dispatched(h)
        rows = got.rows
        assert (rows.shape, rows.dtype, rows.device, rows.__dlpack_device__()) == (
            (2, 4, 32),
            weft.DType.float32,
            1,
            (2, 1),
        )
        assert rows.__cuda_array_interface__ == {
            "shape": (2, 4, 32), "typestr": "<f4", "data": (rows.address, False), "version": 3,
            "strides": None, "stream": 1,
        }  # fmt: skip
        assert repr(rows) == "<weft.DeviceArray float32 [2, 4, 32] on GPU 1>"
        # A capsule that nobody takes over, and one that somebody does.
        dlpack.sweep()
        shown = len(dlpack._shown)
        capsule = rows.__dlpack__(stream=1)
        assert len(dlpack._shown) == shown + 1
        dlpack.sweep()
        assert len(dlpack._shown) == shown + 1
        del capsule
        dlpack.sweep()
        assert len(dlpack._shown) == shown
        with pytest.raises(BufferError, match="on GPU 1"):
            rows.__dlpack__(dl_device=(1, 0))
        with pytest.raises(BufferError):
            rows.__dlpack__(copy=True)
        # The batch goes with the last that has it: there are two.
        other = dispatched(h)
        with pytest.raises(weft.UnsupportedError, match=r"all memory for received rows is in use|whose turn it is"):
            dispatched(h)
        taken = rows.__dlpack__(stream=1)
        del rows, got
        with pytest.raises(weft.UnsupportedError):
            dispatched(h)
        del taken
        assert (combined(h, dispatched(h)) == X).all()
        del other


def test_streams(comm):
    """Streams in the forms that libraries give them, and what other libraries are told of them."""
    h = ep.Handle(comm, SPEC)
    x, topk, weights, out = given(X), given(TOPK), given(WEIGHTS), np.empty_like(X)

    class Named:
        def __init__(self, **named):
            self.__dict__.update(named)

    class Protocol:
        def __cuda_stream__(self):
            return 0, 0

    for stream, told in (
        (None, 1),
        (0, 1),
        (1, 1),
        (Named(cuda_stream=0), 1),
        (Named(ptr=1), 1),
        (Protocol(), 1),
        (weft.OWN, -1),
    ):
        with h.dispatch(x, topk, weights, stream=stream) as got, got.routing:
            assert x.streams[-1] == topk.streams[-1] == told
            out[:] = 0
            assert h.combine(got.rows, got, out=given(out), stream=stream).array is out
            comm.wait(stream)
            assert (out == X).all()
    with pytest.raises(TypeError, match="a str is no stream"):
        h.dispatch(x, topk, weights, stream="default")
    elsewhere = Named(cuda_stream=0, device=Named(index=0))
    with pytest.raises(weft.InvalidError, match="stream: it is GPU 0's, and the communicator works on GPU 1"):
        h.dispatch(x, topk, weights, stream=elsewhere)
    with h.send_dispatch(x, topk, weights, stream=weft.OWN).receive() as got:
        with pytest.raises(
            weft.OperandError, match="out: memory for a call on OWN is in no other stream's order: give out"
        ):
            h.combine(got.rows, got, stream=weft.OWN)
        h.send_combine(got.rows, got, out=given(out), stream=weft.OWN).wait()
    assert (out == X).all()
    h.close()


def test_windows(gpus):
    """Each rank's segment is on its GPU, and every rank sees every part by an array on its own."""
    meeting = threading.Barrier(2)

    def rank(c):
        w = weft.Window(c, 4096)
        mine = w.array((4, 8), "float32", offset=64)
        assert isinstance(mine, weft.DeviceArray)
        fill(mine, np.full((4, 8), c.rank + 1, np.float32))
        meeting.wait(20)
        other = w.array((4, 8), "float32", offset=64, rank=1 - c.rank)
        assert (mine.device, other.device) == (c.rank, c.rank)
        assert (numpy_of(other) == 2 - c.rank).all()
        meeting.wait(20)
        w.close()
        assert (numpy_of(mine) == c.rank + 1).all()  # arrays keep the memory
        with pytest.raises(weft.InvalidError):
            weft.Window.from_array(c, X)
        meeting.wait(20)

    gpus(2, rank)


def test_waits(gpus):
    def rank(c):
        arrays = OfGPU(c)
        with ep.Handle(c, SPEC) as h:
            waits = np.zeros(2, np.int64)
            h.count_waits(arrays.give(waits), arrays.give(waits))
            with pytest.raises(weft.OperandError, match="dispatch: it is on the host"):
                h.count_waits(waits)
            for _ in range(3):
                got = h.dispatch(arrays.give(X), arrays.give(TOPK), arrays.give(WEIGHTS))
                h.combine(got.rows, got, out=arrays.give(np.empty_like(X)))
                got.release()
            c.wait()
            h.count_waits()
            assert waits[c.rank] == 0
            return waits.sum()

    assert sum(gpus(2, rank)) > 0


def test_closing_beside_arrays():
    """Memory of a GPU goes with the next call that makes or closes something, not with who drops the
    last array: that may be the collector, in any thread."""
    c = weft.join(engine="gpu", gpu=1)
    h = ep.Handle(c, SPEC)
    got = dispatched(h)
    rows = got.rows
    h.close()
    with pytest.raises(weft.ClosedError):
        dispatched(h)
    assert (numpy_of(rows)[0, 0] == X[0]).all()
    del got
    dropping = threading.Thread(target=lambda kept: kept.clear(), args=([rows],))
    del rows
    dropping.start()
    dropping.join()
    gc.collect()
    assert resources._left == [h]
    other = ep.Handle(c, SPEC)
    assert resources._left == []
    rows = dispatched(other).rows
    c.close()
    assert (numpy_of(rows)[0, 0] == X[0]).all()
    del rows
    gc.collect()
    assert c in resources._left
    weft.join().close()
    assert resources._left == []


def test_threads(comm):
    """Threads that use one handle at a time get what is theirs, or are told that it is busy; batches
    are released by whoever has them."""
    counts, wrong = [], []
    with ep.Handle(comm, experts=2, topk=1, hidden=32, max_tokens=4, payload="fp32", live=16) as h:

        def work(n):
            done = busy = 0
            while done < 20:
                try:
                    got = dispatched(h, X * n)
                except weft.BusyError:
                    busy += 1
                    time.sleep(0.001)
                    continue
                if not (numpy_of(got.rows)[0, 0] == X[0] * n).all():
                    wrong.append(n)
                done += 1
            counts.append((done, busy))

        workers = [threading.Thread(target=work, args=(n,)) for n in range(1, 4)]
        for w in workers:
            w.start()
        for w in workers:
            w.join(60)
        assert len(counts) == 3
        assert not wrong


def test_late_errors(gpus):
    """A rank that stays away: the call itself returns, what it has met is told by wait, by check and by
    the next call, and after set_mask all goes on."""
    gone = threading.Barrier(3)

    def rank(c):
        with ep.Handle(c, experts=3, topk=1, hidden=32, max_tokens=4, payload="fp32") as h:
            arrays = OfGPU(c)
            x, topk, weights, out = arrays.give(X), arrays.give(TOPK), arrays.give(WEIGHTS), np.zeros_like(X)
            got = h.dispatch(x, topk, weights)
            h.combine(got.rows, got, out=arrays.give(out))
            got.release()
            c.wait()
            assert (out == X).all()
            gone.wait(20)
            if c.rank == 2:
                gone.wait(20)
                return

            def exchange():
                h.dispatch(x, topk, weights)
                c.wait()

            with pytest.raises((weft.DeadlineError, weft.AbortedError)) as e:
                exchange()
            assert e.value.rank is not None
            with pytest.raises((weft.DeadlineError, weft.AbortedError)):
                c.check()
            with pytest.raises((weft.DeadlineError, weft.AbortedError)):
                h.dispatch(x, topk, weights)
            c.set_mask([2])
            for _ in range(2):
                with h.dispatch(x, topk, weights) as got:
                    out[:] = 0
                    h.combine(got.rows, got, out=arrays.give(out))
                    c.wait()
                    assert (out == X).all()
            gone.wait(20)

    gpus(3, rank, deadline=2)


def test_a_rank_that_leaves(gpus):
    def rank(c):
        h = ep.Handle(c, SPEC)
        arrays = OfGPU(c)
        with h.dispatch(arrays.give(X), arrays.give(TOPK), arrays.give(WEIGHTS)) as got:
            h.combine(got.rows, got, out=arrays.give(np.empty_like(X)))
        c.wait()
        if c.rank:
            return

        def exchange():
            while True:
                h.dispatch(arrays.give(X), arrays.give(TOPK), arrays.give(WEIGHTS)).release()
                c.wait()

        with pytest.raises(weft.LeftError) as e:
            exchange()
        assert e.value.rank == 1

    gpus(2, rank, deadline=3)


def test_abort(gpus):
    def rank(c):
        h = ep.Handle(c, SPEC)
        arrays = OfGPU(c)

        def exchange():
            h.dispatch(arrays.give(X), arrays.give(TOPK), arrays.give(WEIGHTS))
            c.wait()

        if c.rank:
            time.sleep(0.5)
            c.abort()
            with pytest.raises(weft.AbortedError):
                c.check()
        else:
            with pytest.raises(weft.AbortedError) as e:
                exchange()
            assert e.value.rank == 1
        with pytest.raises(weft.AbortedError):
            h.dispatch(arrays.give(X), arrays.give(TOPK), arrays.give(WEIGHTS))

    gpus(2, rank)


def test_specs():
    good = {"experts": 4, "topk": 2, "hidden": 128, "max_tokens": 4}
    ep.Spec(**good).check(2, "gpu")
    with pytest.raises(weft.WeftError):
        ep.Spec(**good | {"hidden": 3}).check(2, "gpu")
    with pytest.raises(weft.WeftError):
        weft.join(engine="gpu", gpu=9)


# PyTorch, whose tensors of the host stand for such of GPUs.


@pytest.fixture
def torch(monkeypatch):
    torch = pytest.importorskip("torch")
    tensors_on_gpus(monkeypatch)
    return torch


@pytest.mark.parametrize("layout", ["expert_major", "token_major"])
def test_operators(torch, threads, layout):
    """A layer with gradients, uncompiled and compiled, gives what it gives on the host."""
    import weft.torch

    batch = Batch(2, experts=4, topk=2, hidden=32, max_tokens=5, seed=11)

    def rank(c):
        x, topk, weights = (torch.from_numpy(a[c.rank]) for a in (batch.rows, batch.topks, batch.weights))
        results = {}
        with handle(c, batch, layout=layout, live=4) as h:

            def layer(x, weights):
                rows, row_weights, routing = weft.torch.dispatch(h, x, topk, weights)
                if layout == "token_major":
                    return weft.torch.combine(h, torch.tanh(rows) * row_weights.sum(1, keepdim=True), routing)
                return weft.torch.combine(h, torch.tanh(rows), routing, weights)

            torch._dynamo.reset()
            for name, f in (("eager", layer), ("compiled", torch.compile(layer, fullgraph=True, backend="aot_eager"))):
                if name == "compiled" and c.ranks > 1:
                    continue  # ranks that are threads compile one after the other, and wait for each other
                got_x, got_w = x.clone().requires_grad_(), weights.clone().requires_grad_()
                out = f(got_x, got_w)
                out.square().sum().backward()
                results |= {
                    f"{name} {n}": t.detach().numpy().copy()
                    for n, t in (("out", out), ("x", got_x.grad), ("weights", got_w.grad))
                }
        return results

    same(threads(2, rank, gpu=int), threads(2, rank))
    batch = Batch(1, experts=4, topk=2, hidden=32, max_tokens=5, seed=11)
    same(threads(1, rank, gpu=int), threads(1, rank))


def test_tensors(torch, gpus):
    """Results are tensors where operands were, new ones where none are given; what is not contiguous is copied."""

    def rank(c):
        with ep.Handle(c, SPEC) as h:
            x = torch.from_numpy(X)
            got = h.dispatch(x.t().contiguous().t(), torch.from_numpy(TOPK).int(), torch.from_numpy(WEIGHTS))
            assert isinstance(got.rows, torch.Tensor)
            assert got.routing.expert_counts.tolist() == [4]
            out = h.combine(got.rows, got)
            c.wait()
            assert torch.equal(out, x)
            with pytest.raises(weft.OperandError, match=r"rows: shape .* nothing is copied for a call on OWN"):
                h.dispatch(x.t().contiguous().t(), torch.from_numpy(TOPK), torch.from_numpy(WEIGHTS), stream=weft.OWN)
            with pytest.raises(weft.OperandError, match="out: memory for a call on OWN"):
                h.combine(got.rows, got, stream=weft.OWN)
            assert torch.equal(h.combine(got.rows, got, out=out.zero_(), stream=weft.OWN), x)
            grad, none = h.dispatch_backward(got.rows, got)
            c.wait()
            assert none is None
            assert torch.equal(grad, x)
            rows, weights = h.combine_backward(x, got, got.rows)
            c.wait()
            assert rows.shape == got.rows.shape
            assert torch.equal(weights[:, 0], (x * x).sum(1))

    gpus(2, rank)


def test_deep_ep(torch, gpus):
    """DeepEP's first buffer: low-latency exchanges in every form, and normal ones."""
    import deep_ep

    def rank(c):
        b = deep_ep.Buffer.from_communicator(c, explicitly_destroy=True)
        g = torch.Generator().manual_seed(c.rank)
        x = torch.randint(-4, 5, (5 + c.rank, 256), generator=g).to(torch.bfloat16)
        ids = torch.stack([torch.randperm(8, generator=g)[:4] for _ in x])
        weights = torch.randint(1, 5, ids.shape, generator=g) / 2.0
        want = x.float() * weights.sum(1, keepdim=True)
        for fp8 in (False, True):
            for hook in (False, True):
                rows, counts, made, _, receive = b.low_latency_dispatch(
                    x, ids, 16, 8, use_fp8=fp8, return_recv_hook=hook
                )
                if hook:
                    receive()
                if fp8:
                    rows = (
                        (rows[0].float().unflatten(-1, (-1, 128)) * rows[1].unsqueeze(-1))
                        .flatten(-2)
                        .to(torch.bfloat16)
                    )
                out, _, receive = b.low_latency_combine(rows, ids, weights, made, return_recv_hook=hook)
                if hook:
                    receive()
                c.wait()
                torch.testing.assert_close(out.float(), want, rtol=0.08 if fp8 else 0.01, atol=0.1)
                assert 0 < int(counts.sum()) <= 11 * 4
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, 8)
        rows, _, of_rows, _, made, _ = b.dispatch(x, None, per_rank, None, in_rank, per_expert, ids, weights)
        home, home_weights, _ = b.combine(rows, made, topk_weights=of_rows)
        c.wait()
        assert torch.equal(home, x * in_rank.sum(1, keepdim=True))
        assert torch.equal(home_weights, weights)
        home, home_weights, _ = b.combine(rows, made, topk_weights=of_rows, bias=x)
        c.wait()
        assert torch.equal(home, x * (1 + in_rank.sum(1, keepdim=True)))
        assert torch.equal(home_weights, weights)
        b.destroy()

    gpus(2, rank)


@pytest.fixture
def apart(fabric, gpus, monkeypatch):
    """Runs a function of a communicator on so many ranks, each of which is a host of its own."""
    monkeypatch.setenv("WEFT_NO_PEER", "1")
    return gpus


def sent_tokens(torch, rank):
    """Tokens of a rank: rows whose sums are exact, experts, and weights."""
    g = torch.Generator().manual_seed(rank)
    x = torch.randint(-4, 5, (5 + rank, 256), generator=g).to(torch.bfloat16)
    ids = torch.stack([torch.randperm(8, generator=g)[:4] for _ in x])
    return x, ids, torch.randint(1, 5, ids.shape, generator=g) / 2.0


def test_deep_ep_between_hosts(torch, apart):
    """DeepEP's calls between hosts, its handle there, and low-latency ones, which go by port channels."""
    import deep_ep

    def rank(c):
        assert c.hosts == (0, 1)
        b = deep_ep.Buffer.from_communicator(c, explicitly_destroy=True)
        runtime = b.runtime
        assert (runtime.get_num_rdma_ranks(), runtime.get_rdma_rank()) == (2, c.rank)
        assert runtime.is_internode_available()
        x, ids, weights = sent_tokens(torch, c.rank)
        per_rank, per_host, per_expert, in_rank, _ = b.get_dispatch_layout(ids, 8)
        c.wait()
        assert per_host.tolist() == per_rank.tolist()
        layout = {
            "num_tokens_per_rank": per_rank,
            "num_tokens_per_rdma_rank": per_host,
            "is_token_in_rank": in_rank,
            "num_tokens_per_expert": per_expert,
        }
        rows, _, of_rows, counts, made, _ = b.internode_dispatch(x, topk_idx=ids, topk_weights=weights, **layout)
        assert len(made) == 10
        home, home_weights, _ = b.internode_combine(rows, made, topk_weights=of_rows)
        again = b.internode_dispatch(2 * x, made)[0]
        c.wait()
        assert len(rows) > 0
        assert torch.equal(again, 2 * rows)
        assert torch.equal(home, x * in_rank.sum(1, keepdim=True))
        assert torch.equal(home_weights, weights)
        everyone = [sent_tokens(torch, r)[1] for r in range(2)]
        local = range(4 * c.rank, 4 * c.rank + 4)
        assert counts == [sum(int((e == i).sum()) for e in everyone) for i in local]
        for fp8 in (False, True):
            rows, _, made, _, _ = b.low_latency_dispatch(x, ids, 16, 8, use_fp8=fp8)
            if fp8:
                rows = (rows[0].float().unflatten(-1, (-1, 128)) * rows[1].unsqueeze(-1)).flatten(-2).to(torch.bfloat16)
            out, _, _ = b.low_latency_combine(rows, ids, weights, made)
            c.wait()
            want = x.float() * weights.sum(1, keepdim=True)
            torch.testing.assert_close(out.float(), want, rtol=0.08 if fp8 else 0.01, atol=0.1)
        b.destroy()

    apart(2, rank)


def test_mscclpp_between_hosts(torch, apart):
    """MSCCL++'s raw calls between hosts."""
    from mscclpp.ext import ep as mscclpp_ep

    def rank(c):
        b = mscclpp_ep.Buffer.from_communicator(c)
        assert (b.get_num_rdma_ranks(), b.get_rdma_rank(), b.is_internode_available()) == (2, c.rank, True)
        x, ids, weights = sent_tokens(torch, c.rank)
        per_rank, per_host, per_expert, in_rank, _ = b.get_dispatch_layout(ids, 8)
        counts, end = (per_rank, per_host, in_rank, per_expert), (mscclpp_ep.Config(4, 8, 256), None, False, False)
        got = b.internode_dispatch(x, None, ids, weights, *counts, 0, 0, None, None, None, None, 1, *end)
        n, cached = got[0].shape[0], (got[5], got[8], got[6], got[10])
        again = b.internode_dispatch(2 * x, None, None, None, None, None, in_rank, None, n, n, *cached, 1, *end)
        handle = got[11], in_rank, got[7], got[8], got[9], got[12], got[13]
        home, home_weights, _ = b.internode_combine(got[0], got[3], *handle, *end)
        c.wait()
        assert n > 0
        assert torch.equal(again[0], 2 * got[0])
        assert torch.equal(home, x * in_rank.sum(1, keepdim=True))
        assert torch.equal(home_weights, weights)

    apart(2, rank)


@pytest.mark.parametrize("worst", [False, True])
@pytest.mark.parametrize("columns", [3, 4])
def test_numbers_at_home_of_deep_ep(torch, gpus, columns, worst):
    """Numbers of selections come home from all ranks that a token went to."""
    import intranode

    import deep_ep

    def rank(c):
        b = deep_ep.Buffer.from_communicator(c, explicitly_destroy=True)
        intranode.numbers_at_home(b, "cpu", columns, worst, c.wait)
        b.destroy()

    gpus(2, rank)


def test_low_latency_of_deep_ep(torch, gpus):
    """Hooks that are lost, selections in another order, and a rank that is left out and taken in again."""
    import deep_ep

    ids, weights = (
        torch.tensor([[0, 5], [1, 2], [3, -1], [4, 5], [2, 4]]),
        torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8], [9, 10]]),
    )

    def rank(c):
        b = deep_ep.Buffer.from_communicator(c, explicitly_destroy=True, enable_shrink=True)
        x = torch.full((5, 256), float(c.rank + 1), dtype=torch.bfloat16)

        def exchange(gone=-1):
            rows, _, made, _, _ = b.low_latency_dispatch(x, ids, 8, 6, use_fp8=False)
            rows = rows * torch.arange(2 * c.rank + 1, 2 * c.rank + 3).view(2, 1, 1)  # each expert's own number
            here = torch.where((ids >= 0) & (ids // 2 != gone), weights * (ids + 1), 0).sum(1) * (c.rank + 1)
            few = torch.where((ids >= 0) & (ids // 2 != gone), weights * (ids + 1), 0)[:, 1] * (c.rank + 1)
            second = torch.stack((ids[:, 1], torch.full((5,), -1)), 1)
            for of, by, want in (
                (ids, weights, here),
                (ids.flip(1), weights.flip(1), here),
                (second, weights.flip(1), few),
            ):
                home, _, _ = b.low_latency_combine(rows, of, by, made)
                c.wait()
                assert home[:, 0].tolist() == want.tolist()

        exchange()
        b.low_latency_dispatch(x, ids, 8, 6, use_fp8=False, return_recv_hook=True)
        exchange()
        all_home.wait()
        if c.rank != 2:
            b.low_latency_update_mask_buffer(2, True)
            exchange(2)
            c.wait()
        all_home.wait()
        b.low_latency_clean_mask_buffer()
        exchange()
        all_home.wait()
        b.destroy()

    all_home = threading.Barrier(3, timeout=30)
    gpus(3, rank)


def test_compiled_part(torch, gpus, monkeypatch):
    """The compiled part makes the calls of a buffer on a GPU, too, with what Python code has made of the first."""
    import deep_ep
    from weft import compiled

    if not compiled.in_use():
        pytest.skip("without the compiled part")
    rng = np.random.default_rng(4)

    def refuses():
        raise AssertionError("Python code makes the call")

    def rank(c):
        b = deep_ep.Buffer.from_communicator(c, explicitly_destroy=True)
        x = torch.from_numpy(rng.standard_normal((8, 512), np.float32)).bfloat16()
        ids = torch.from_numpy(rng.permuted(np.tile(np.arange(8), (8, 1)), axis=1)[:, :3].copy())
        weights = torch.from_numpy(rng.random((8, 3), np.float32))

        def exchanges():
            out = list(b.get_dispatch_layout(ids, 8)[2:4])
            for options in ({"use_fp8": False}, {}, {"round_scale": True, "use_ue8m0": True}):
                (got, counts, handle, *_), scales = b.low_latency_dispatch(x, ids, 8, 8, **options), None
                if isinstance(got, tuple):
                    got, scales = got
                sums, *_ = b.low_latency_combine(torch.ones(4, 16, 512).bfloat16(), ids, weights, handle)
                c.wait()
                n = counts.tolist()
                out += [torch.tensor(n), *(got[e, : n[e]].float() for e in range(4)), sums.float()]
                out += [] if scales is None else [scales[e, : n[e]].clone() for e in range(4)]
                out += [] if scales is None else [torch.tensor(scales.stride())]
            layout = b.get_dispatch_layout(ids, 8)
            by = {"num_tokens_per_rank": layout[0], "num_tokens_per_expert": layout[2], "is_token_in_rank": layout[3]}
            got, received, theirs, counts, handle, _ = b.dispatch(x, topk_idx=ids, topk_weights=weights, **by)
            again, *_ = b.dispatch(x + 1, handle=handle)
            sums, *_ = b.combine(got, handle)
            c.wait()
            return [*out, got.clone(), received, theirs, torch.tensor(counts), again.clone(), sums]

        first = exchanges()
        for h in b._exchanges._handles.values():
            monkeypatch.setattr(h._dispatches, "take", refuses)
            monkeypatch.setattr(h._combines, "take", refuses)
        for _ in range(3):  # more than there is memory for at once
            for got, want in zip(exchanges(), first, strict=True):
                assert got.equal(want), (got, want)
        b.destroy()

    gpus(2, rank)


@pytest.mark.parametrize(("ranks", "experts"), [(1, 3), (2, 8)])
def test_pieces_of_layouts(torch, gpus, ranks, experts):
    """Layouts are tensors of PyTorch's own, some of which share memory: what is written to one changes no other."""
    import deep_ep
    from weft import compiled

    if not compiled.in_use():
        pytest.skip("without the compiled part")

    def rank(c):
        b = deep_ep.Buffer.from_communicator(c, explicitly_destroy=True)
        ids = torch.arange(5).view(-1, 1) % experts
        layouts = [b.get_dispatch_layout(ids[:tokens], experts) for tokens in [5] * 70 + [4, 0, 3] + [5] * 3]
        kept = [(got, selections, within) for got, _, selections, within, _ in layouts]
        c.wait()
        for got, _, within in kept:
            want = torch.stack([(ids[: within.shape[0]] * ranks // experts == r).any(1) for r in range(ranks)], 1)
            assert within.equal(want)
            assert got.tolist() == want.sum(0).tolist()
        for part, aligned in zip(zip(*kept[1:70], strict=True), (4, 4, 16), strict=True):
            places = {t.data_ptr() for t in part}
            assert len(places) == 69
            assert all(place % aligned == 0 for place in places)
            assert len({t.untyped_storage().data_ptr() for t in part}) == 3
            assert all(t._version == 0 and not t._is_view() and t.is_contiguous() for t in part)
            part[0].fill_(1)
            assert part[0]._version == 1
            assert all(t._version == 0 and t.equal(part[-1]) for t in part[1:])
        with torch.inference_mode():
            assert all(t.is_inference() for t in b.get_dispatch_layout(ids, experts)[:4:2])
        assert not any(t.is_inference() for t in b.get_dispatch_layout(ids, experts)[:4:2])
        b.destroy()

    gpus(ranks, rank)


def test_masks_of_deep_ep(torch, gpus):
    """Normal exchanges go on without a rank, whatever it said before."""
    import deep_ep

    ids = torch.tensor([[0, 5], [1, 2], [3, -1], [4, 5], [2, 4]])

    def exchange(b, c, columns):
        x = torch.full((5, columns), float(c.rank + 1), dtype=torch.bfloat16)
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, 6)
        rows, _, of_rows, counts, made, _ = b.dispatch(
            x, None, per_rank, None, in_rank, per_expert, ids, torch.ones(ids.shape)
        )
        home, home_weights, _ = b.combine(rows, made, topk_weights=of_rows)
        c.wait()
        return rows[:, 0].tolist(), counts, home[:, 0].tolist(), home_weights.tolist()

    def rank(c):
        b = deep_ep.Buffer.from_communicator(c, explicitly_destroy=True, enable_shrink=True)
        got = exchange(b, c, 256)
        assert (len(got[0]), got[1]) == ((6, [3, 3]), (9, [6, 3]), (9, [6, 6]))[c.rank]
        all_home.wait()
        if c.rank == 2:
            all_gone.wait()
        else:
            b.low_latency_update_mask_buffer(2, True)
            for columns in (256, 128):
                rows, counts, home, weights = exchange(b, c, columns)
                of_each = (2, 3)[c.rank]
                assert (rows, counts) == ([1] * of_each + [2] * of_each, ([2, 2], [4, 2])[c.rank])
                assert home == [n * (c.rank + 1) for n in (1, 2, 1, 0, 1)]
                assert weights == [[1, 0], [1, 1], [1, 0], [0, 0], [1, 0]]
            all_gone.wait()
        b.low_latency_clean_mask_buffer()  # and a layout comes first
        for columns in (256, 512):
            assert exchange(b, c, columns) == got
        all_gone.wait()
        b.destroy()

    all_home, all_gone = (threading.Barrier(3, timeout=30) for _ in range(2))
    gpus(3, rank)


@pytest.fixture
def waits(torch, monkeypatch):
    """Waits of the calling thread for a GPU within ``with waits() as found``, by what would wait there:
    numbers that go to the host, or the library."""
    from torch.utils._python_dispatch import TorchDispatchMode

    here = threading.local()
    lib = weft._library.library()

    def count(name):
        if getattr(here, "found", None) is not None:
            here.found.append(name)

    class OfHost(torch.Tensor):
        """What was brought to the host: whoever reads it waits no more."""

    def counted(owner, name, what=lambda x: x):
        plain = getattr(owner, name)

        def call(*arguments):
            if not isinstance(arguments[0], OfHost):
                count(name)
            return what(plain(*arguments))

        monkeypatch.setattr(owner, name, call)

    counted(torch.Tensor, "cpu", lambda t: t.as_subclass(OfHost))
    for name in ("tolist", "numpy", "item", "__int__", "__bool__", "__float__", "__index__"):
        counted(torch.Tensor, name)
    for name in ("routing_get", "comm_wait"):
        counted(lib, name)
    made = ep.Handle.__init__

    def make(self, *arguments, **choices):
        made(self, *arguments, **choices)
        assert self._device < 0 or self.spec.counts == ep.Counts.device, (
            "operations of the handle wait for their counts"
        )

    monkeypatch.setattr(ep.Handle, "__init__", make)

    class Found(TorchDispatchMode):
        """PyTorch's operators whose results have a size that a GPU decides are waits, too."""

        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            sized = function.overloadpacket._qualified_op_name in (
                "aten::nonzero",
                "aten::masked_select",
                "aten::_unique2",
                "aten::repeat_interleave",
            )
            by_mask = function.overloadpacket._qualified_op_name == "aten::index" and any(
                i is not None and i.dtype == torch.bool for i in arguments[1]
            )
            if sized or by_mask:
                count(function.name())
            return function(*arguments, **(options or {}))

    @contextlib.contextmanager
    def within():
        here.found = []
        try:
            with Found():
                yield here.found
        finally:
            here.found = None

    return within


@pytest.fixture
def tensors(torch, threads):
    """Whether a function of a communicator returns the same on so many ranks on GPUs and on the host:
    tensors by name, bit by bit, lists, or None."""

    def raw(t):
        if isinstance(t, torch.Tensor):
            return t.contiguous().flatten().view(torch.uint8).numpy().copy()
        return None if t is None else np.array(t)

    def run(n, function):
        def rank(c):
            return {name: raw(t) for name, t in function(c).items()}

        same(threads(n, rank, gpu=int), threads(n, rank))

    return run


def selected(torch, rank, experts=8, topk=3, hidden=256, dtype=None):
    """A rank's tokens, another number on each, their selections, some of which are missing, and weights."""
    g = torch.Generator().manual_seed(rank)
    ids = torch.stack([torch.randperm(experts, generator=g)[:topk] for _ in range(9 + 4 * rank)])
    ids[torch.rand(ids.shape, generator=g) < 0.2] = -1
    ids[rank] = -1
    return (
        torch.randn((ids.shape[0], hidden), generator=g).to(dtype or torch.bfloat16),
        ids,
        torch.rand(ids.shape, generator=g),
    )


@pytest.mark.parametrize("how", ["plain", "async", "hook"])
@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
def test_mscclpp_low_latency(torch, tensors, fp8, how):
    """MSCCL++'s buffer, low latency: into new tensors and into the caller's, zero copy and plain, as
    its own test and benchmark go."""
    from mscclpp.ext import ep as mscclpp

    most, experts, hidden = 16, 8, 256
    options = fp8, how == "async", how == "hook"

    def rank(c):
        b, ranks, found = mscclpp.Buffer.from_communicator(c), c.ranks, {}
        (x, ids, weights), local = selected(torch, c.rank), experts // c.ranks
        packed = torch.empty((local, ranks * most, hidden), dtype=torch.float8_e4m3fn if fp8 else torch.bfloat16)
        scales = torch.empty((local, hidden // 128, ranks * most)).transpose(1, 2) if fp8 else None
        places = torch.empty((local, ranks * most), dtype=torch.int32)
        given = (
            packed,
            scales,
            places,
            torch.empty((local, ranks), dtype=torch.int64),
            torch.empty(local, dtype=torch.int32),
        )
        for n, into in enumerate(((), given, given)):
            rows, scales, counts, sources, ranges, event, hook = b.low_latency_dispatch(
                x, ids, most, experts, *options, *into
            )
            if hook is not None:
                hook()
            if event is not None:
                event.current_stream_wait()
            c.wait()
            if into:
                assert all(
                    got is mine for got, mine in zip((rows, scales, sources, ranges, counts), given, strict=True)
                )
            held = torch.arange(ranks * most) < counts[:, None]
            found |= {
                f"{n} rows": rows[held],
                f"{n} counts": counts,
                f"{n} sources": sources[held],
                f"{n} ranges": ranges,
            }
            found[f"{n} scales"] = None if scales is None else scales[held]
            y = torch.where(held[..., None], rows.float() * (torch.arange(local)[:, None, None] + 1) / 4, 0).bfloat16()
            for zero_copy in (False, True):
                if zero_copy:
                    b.get_next_low_latency_combine_buffer(most, hidden, experts)[:] = y
                for out in (None, torch.full_like(x, float("nan"))):
                    passed = y, ids, weights, sources, ranges, most, experts, zero_copy, *options[1:]
                    home, event, hook = b.low_latency_combine(*passed, *(() if out is None else (out,)))
                    if hook is not None:
                        hook()
                    if event is not None:
                        event.current_stream_wait()
                    c.wait()
                    assert out is None or home is out
                    found[f"{n} home {zero_copy} {out is None}"] = home
        # Dispatches, then combines of the last.
        last = [b.low_latency_dispatch(x, ids, most, experts, fp8, False, False, *given) for _ in range(4)][-1]
        for _ in range(4):
            found["home"], _, _ = b.low_latency_combine(
                y, ids, weights, last[3], last[4], most, experts, False, False, False
            )
        c.wait()
        return found

    tensors(2, rank)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float8_e4m3fn"])
def test_mscclpp_intranode(torch, tensors, dtype):
    """MSCCL++'s buffer, normal exchanges: with selections and without, once more by the matrices, and
    home, with weights and without."""
    from mscclpp.ext import ep as mscclpp

    dtype, experts = getattr(torch, dtype), 8

    def rank(c):
        b, config, found = mscclpp.Buffer.from_communicator(c), mscclpp.Config(8), {}
        x, ids, weights = selected(torch, c.rank)
        scales = (torch.arange(2 * x.shape[0]).view(-1, 2) + 1) / 8 if dtype == torch.float8_e4m3fn else None
        x, end = x.to(dtype), (None, False, False)
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, experts)
        found |= {"per rank": per_rank, "per expert": per_expert, "in rank": in_rank}
        for n, by in enumerate(((ids, weights), (None, None))):
            got = b.intranode_dispatch(x, scales, *by, per_rank, in_rank, per_expert, 0, None, None, 2, config, *end)
            rows, _, _, row_weights, _, prefix, channels, come, sources, heads, _ = got
            again = b.intranode_dispatch(
                x, scales, None, None, None, in_rank, None, rows.shape[0], prefix, channels, 2, config, *end
            )
            summed = rows.to(torch.bfloat16) if scales is not None else rows
            home, home_weights, _ = b.intranode_combine(summed, row_weights, sources, prefix, come, heads, config, *end)
            names = "rows", "scales", "ids", "weights", "counts", "prefix", "channels", "come", "sources", "heads"
            found |= {f"{n} {name}": t for name, t in zip(names, got[:-1], strict=True)}
            found |= {
                f"{n} rows again": again[0],
                f"{n} scales again": again[1],
                f"{n} home": home,
                f"{n} home weights": home_weights,
            }
        c.wait()
        return found

    tensors(2, rank)


@pytest.mark.parametrize("expected", [["comm_wait"], []], ids=["exact", "worst"])
@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
def test_waits_of_deep_ep(torch, tensors, waits, fp8, expected):
    """A normal dispatch of exactly the rows that come waits once, one of the worst case never, and
    neither does anything else; it gives what the host gives."""
    import deep_ep

    def rank(c):
        b, experts, found = deep_ep.Buffer.from_communicator(c, explicitly_destroy=True), 8, {}
        x, ids, weights = selected(torch, c.rank)
        scales = (torch.arange(2 * x.shape[0]).view(-1, 2) + 1) / 8
        sent = (x.to(torch.float8_e4m3fn), scales) if fp8 else x
        worst = 0 if expected else 40
        with waits() as none:
            per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, experts)
        layout = {"num_tokens_per_rank": per_rank, "is_token_in_rank": in_rank, "num_tokens_per_expert": per_expert}
        for n, by in enumerate(({"topk_idx": ids, "topk_weights": weights}, {"topk_idx": ids.int()}, {})):
            if worst and not by:
                continue
            with waits() as once:
                rows, got_ids, got_weights, counts, made, _ = b.dispatch(
                    sent, **layout, **by, num_worst_tokens=worst, expert_alignment=4
                )
            with waits() as after:
                again, *_ = b.dispatch(sent, handle=made)
                y = rows[0].bfloat16() if fp8 else rows
                home, home_weights, _ = b.combine(y, made, topk_weights=got_weights, bias=x)
                contents = list(made)
            assert c._device < 0 or (none, once, after) == ([], expected, [])
            come = made.received if expected else int((got_ids >= 0).any(1).sum())
            names = "prefix", "channels", "come", "sources", "in rank", "heads"
            found |= {
                f"{n} {name}": t[:come] if name == "sources" else t for name, t in zip(names, contents, strict=True)
            }
            for name, t in (("rows", rows), ("again", again)):
                found |= {f"{n} {name} {i}": part[:come] for i, part in enumerate(t if fp8 else (t,))}
            found |= {f"{n} ids": got_ids, f"{n} counts": counts, f"{n} home": home, f"{n} home weights": home_weights}
            found[f"{n} weights"] = None if got_weights is None else got_weights[:come]
        c.wait()
        b.destroy()
        return found

    tensors(2, rank)


def test_sizes_of_deep_ep(torch, tensors):
    """Dispatches of other sizes than the ones before, also of none, give what the host gives."""
    import deep_ep

    def rank(c):
        b, found = deep_ep.Buffer.from_communicator(c, explicitly_destroy=True), {}
        for n, tokens in enumerate((9, 12, 40, 33, 0, 0, 9)):
            g = torch.Generator().manual_seed(10 * n + c.rank)
            x = torch.randn((tokens * (c.rank + 1), 256), generator=g).bfloat16()
            ids = torch.rand((x.shape[0], 8), generator=g).argsort(1)[:, :3]
            weights = torch.rand(ids.shape, generator=g)
            per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, 8)
            layout = {
                "num_tokens_per_rank": per_rank,
                "is_token_in_rank": in_rank,
                "num_tokens_per_expert": per_expert,
            }
            rows, got_ids, got_weights, counts, made, _ = b.dispatch(x, **layout, topk_idx=ids, topk_weights=weights)
            home, home_weights, _ = b.combine(rows, made, topk_weights=got_weights)
            c.wait()
            parts = rows.clone(), got_ids, got_weights, counts, home, home_weights, *made
            found |= {f"{n} {i}": part for i, part in enumerate(parts)}
        b.destroy()
        return found

    tensors(2, rank)


@pytest.fixture
def calls(torch, monkeypatch):
    """The calls of the calling thread within ``with calls() as found``, in their order: PyTorch's operators, and
    the library's functions, whoever calls them."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from weft import compiled

    lib = weft._library.library()
    here = threading.local()
    originals = {name: getattr(lib, name) for name in vars(lib) if name in COUNTED}
    functions = [] if compiled.NATIVE is None else compiled.NATIVE.FUNCTIONS
    native = {name: getattr(lib, name.removeprefix("weft_")) for name in functions}

    def counted(name, function):
        def call(*arguments):
            if getattr(here, "found", None) is not None:
                here.found.append(name)
            return function(*arguments)

        return call

    for name, function in originals.items():
        monkeypatch.setattr(lib, name, counted(name, function))
    shims = {
        name: ctypes.CFUNCTYPE(function.restype, *function.argtypes)(counted(name.removeprefix("weft_"), function))
        for name, function in native.items()
    }
    SHIMS.append(shims)  # a rank of a failed test may still be in one
    compiled.bind(SimpleNamespace(**shims))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            here.found.append(function.name())
            return function(*arguments, **(options or {}))

    @contextlib.contextmanager
    def within():
        here.found = []
        try:
            with Operators():
                yield here.found
        finally:
            here.found = None

    yield within
    compiled.bind(SimpleNamespace(**native))


SHIMS = []
COUNTED = "all_gather", "ep_dispatch", "ep_copy_received", "routing_tensor", "comm_wait"

# What a dispatch calls before its wait and after it. One more, and each dispatch of a model takes longer.
BEFORE = ["aten::cat.out", "all_gather", "received_release", "routing_release", "aten::clone", "comm_wait"]
AFTER = ["ep_dispatch", "ep_copy_received"]
PURE = ["aten::cat.out", "all_gather", "comm_wait", *AFTER]  # tensors of the host's are kept as bytes


@pytest.mark.parametrize("counted", [False, True], ids=["counts of Python", "counts of C"])
@pytest.mark.parametrize("weighted", [True, False])
def test_calls_of_a_dispatch(torch, gpus, calls, weighted, counted):
    """All that needs no answer comes before the wait of a normal dispatch, and two launches come after it. Counts that
    the compiled part has made stand where a dispatch says them."""
    import deep_ep
    from weft import compiled

    def rank(c):
        b = deep_ep.Buffer.from_communicator(c, explicitly_destroy=True)
        x, ids, weights = selected(torch, c.rank)

        def layout():
            per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, 8)
            by = {"num_tokens_per_rank": per_rank, "num_tokens_per_expert": per_expert, "is_token_in_rank": in_rank}
            return by | {"topk_idx": ids, "topk_weights": weights if weighted else None}

        by = layout()
        want = [part if part is None or isinstance(part, list) else part.clone() for part in b.dispatch(x, **by)[:4]]
        came, same_as_before = [], True
        for _ in range(40 if counted else 3):  # with nothing kept there is memory for all
            if counted:
                by = layout()
            with calls() as found:
                got = b.dispatch(x, **by)[:4]
            came.append(found)
            same_as_before &= got[3] == want[3]
            same_as_before &= all(a.equal(b) for a, b in zip(got[:3], want[:3], strict=True) if b is not None)
            del got
        c.wait()
        b.destroy()
        return same_as_before, came

    for same_as_before, came in gpus(2, rank):
        assert same_as_before
        for found in came:
            if compiled.in_use():
                wait = found.index("comm_wait") + 1
                assert (found[:wait], found[wait:]) == (BEFORE[1:] if counted else BEFORE, AFTER)
            else:  # of which PyTorch makes views, too
                of_note = *COUNTED, "aten::cat.out", "aten::_to_copy", "aten::clone"
                assert [name for name in found if name in of_note] == PURE


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("expand", [False, True])
def test_calls_of_elastic(torch, gpus, calls, expand, sync):
    """A dispatch of the second buffer has the rows described by the library: PyTorch neither widens nor copies that."""
    import deep_ep

    def rank(c):
        b = deep_ep.ElasticBuffer.from_communicator(c, num_max_tokens_per_rank=16, explicitly_destroy=True)
        x, ids, weights = selected(torch, c.rank)
        came = []
        for _ in range(4):
            with calls() as found:
                got = b.dispatch(
                    x, ids, weights, num_experts=8, do_cpu_sync=sync, do_expand=expand, do_handle_copy=False
                )
            came.append(found)
            del got
        c.wait()
        b.destroy()
        return came

    for came in gpus(2, rank):
        for found in came:
            assert found.count("ep_copy_received") == found.count("ep_dispatch") == 1
            assert not {"aten::clone", "aten::long"} & set(found)
            assert found.count("aten::_to_copy") <= sync  # of the numbers that the host asks for


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("expand", [False, True])
def test_waits_of_elastic(torch, tensors, waits, expand, sync):
    """The same of the second buffer, whose dispatch waits once if the host is to know the counts."""
    import deep_ep

    def rank(c):
        b, experts, found = (
            deep_ep.ElasticBuffer.from_communicator(c, num_max_tokens_per_rank=16, explicitly_destroy=True),
            8,
            {},
        )
        x, ids, weights = selected(torch, c.rank)
        options = {"num_experts": experts, "expert_alignment": 4, "do_cpu_sync": sync, "do_expand": expand}
        for n, by in enumerate((weights, None)):
            with waits() as once:
                rows, got_ids, got_weights, made, _ = b.dispatch(x, ids, by, **options)
            with waits() as after:
                again, _, twice, _, _ = b.dispatch(x, handle=made, topk_weights=2 * weights, do_expand=expand)
                home, home_weights, _ = b.combine(rows, made, topk_weights=twice)
                names = (
                    "psum_num_recv_tokens_per_scaleup_rank",
                    "psum_num_recv_tokens_per_expert",
                    "recv_src_metadata",
                    "dst_buffer_slot_idx",
                )
                found |= {f"{n} {name}": getattr(made, name) for name in names}
            assert c._device < 0 or (once, after) == (["cpu"] if sync else [], [])
            found |= {
                f"{n} counts": made.num_recv_tokens_per_expert_list,
                f"{n} come": made.num_recv_tokens,
                f"{n} rows come": made.num_expanded_tokens,
            }
            metadata, held = made.recv_src_metadata, slice(None)
            if expand:  # pads, and what is not there, hold anything
                held = torch.zeros(rows.shape[0] + 1, dtype=torch.bool)
                held[metadata[:, 2:][metadata[:, :1].expand(-1, ids.shape[1]) >= 0].long()] = True
                held = held[:-1]
            elif not sync:
                held = metadata[:, 0] >= 0
            found |= {
                f"{n} rows": rows[held],
                f"{n} again": again[held],
                f"{n} twice": twice[held],
                f"{n} home": home,
                f"{n} home weights": home_weights,
            }
            found |= {f"{n} ids": got_ids, f"{n} weights": None if got_weights is None else got_weights[held]}
        c.wait()
        b.destroy()
        return found

    tensors(2, rank)


@pytest.mark.parametrize(("fp8", "room"), [(False, None), (True, 12), (False, 300)])
def test_waits_of_hybrid_ep(torch, tensors, waits, monkeypatch, fp8, room):
    """The same of the buffer of routing maps: it waits for the sizes of all ranks and for the rows that come, and with
    a number of rows for nothing, also where some are dropped."""
    import deep_ep
    from deep_ep.hybrid_ep_buffer import indices_to_map

    monkeypatch.setattr(deep_ep.hybrid_ep_buffer, "_FEWEST_ROWS", 8)

    def rank(c):
        experts, found = 8, {}
        x, ids, weights = selected(torch, c.rank)
        b = deep_ep.HybridEPBuffer.from_communicator(c, x.shape[1], 16, experts // 2)
        scales = (torch.arange(2 * x.shape[0]).view(-1, 2) + 1) / 8 if fp8 else None
        sent = x.to(torch.float8_e4m3fn).view(torch.uint8) if fp8 else x
        chosen, probs = indices_to_map(ids, weights, len(x), experts)
        by = {"routing_map": chosen, "probs": probs, "scaling_factor": scales}
        with waits() as first:
            rows, come, come_scales, counts, made = b.dispatch_with_permute(
                hidden=sent, **by, pad_multiple=4, num_permuted_tokens=room, non_blocking=room is not None
            )
        with waits() as after:
            again, twice, _, _, _ = b.dispatch_with_permute(
                hidden=sent, probs=2 * probs, scaling_factor=scales, handle=made, num_permuted_tokens=room
            )
            home, home_probs = b.combine_with_unpermute(
                hidden=(rows[:, :256] if fp8 else rows).bfloat16(), probs=twice, handle=made
            )
            contents = list(made)
        assert c._device < 0 or (first, after) == (["cpu", "cpu"] if room is None else [], [])
        n = int(counts.sum())
        found |= {
            f"permuted {name}": t[:n] for name, t in (("rows", rows), ("again", again), ("probs", come), ("2", twice))
        }
        found |= {"permuted scales": come_scales[:n] if fp8 else None, "counts": counts}
        found |= {"permuted home": home, "permuted probs at home": home_probs}
        found |= {f"permuted {i}": t for i, t in enumerate(contents) if isinstance(t, torch.Tensor)}
        with waits() as first:
            rows, come, _, made = b.dispatch(sent, scales, probs=probs, routing_map=chosen)
        with waits() as after:
            home, home_probs = b.combine(rows.bfloat16(), come, made)
            contents = list(made)
        assert c._device < 0 or (first, after) == (["cpu", "cpu"], [])
        found |= {"rows": rows, "probs": come, "home": home, "probs at home": home_probs}
        found |= {str(i): t for i, t in enumerate(contents) if isinstance(t, torch.Tensor)}
        c.wait()
        b.destroy()
        return found

    tensors(2, rank)


@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
def test_waits_of_low_latency(torch, gpus, waits, fp8):
    """Low-latency exchanges never wait."""
    import deep_ep

    def rank(c):
        b = deep_ep.Buffer.from_communicator(c, explicitly_destroy=True)
        x, ids, weights = selected(torch, c.rank)
        for hook in (False, True):
            with waits() as found:
                rows, _, made, _, receive = b.low_latency_dispatch(x, ids, 16, 8, use_fp8=fp8, return_recv_hook=hook)
                if hook:
                    receive()
                y = rows[0].bfloat16() if fp8 else rows
                _, _, receive = b.low_latency_combine(y, ids, weights, made, return_recv_hook=hook)
                if hook:
                    receive()
            assert found == []
        c.wait()
        b.destroy()


@pytest.mark.parametrize("hook", [False, True])
@pytest.mark.parametrize("fp8", [False, True])
def test_mscclpp_given(torch, gpus, fp8, hook):
    """MSCCL++'s low-latency dispatch into tensors of the caller's, whose scales stand in either order:
    places that no row came for hold what they did."""
    from mscclpp_ep_cpp import Buffer

    def rank(c):
        b = Buffer(c.rank, 2, 0, 0, True)
        b.use(c)
        g = torch.Generator().manual_seed(c.rank)
        x = torch.randint(-4, 5, (5 + c.rank, 256), generator=g).to(torch.bfloat16)
        ids = torch.stack([torch.randperm(8, generator=g)[:4] for _ in x])
        rows, scales, counts, sources, ranges, *_ = b.low_latency_dispatch(x, ids, 16, 8, fp8, False, False)
        for across in (False, True):
            mine = (
                torch.full((4, 32, 256), 7, dtype=rows.dtype),
                (torch.full((4, 2, 32), 7.0).transpose(1, 2) if across else torch.full((4, 32, 2), 7.0))
                if fp8
                else None,
                torch.full((4, 32), 77, dtype=torch.int32),
                torch.full((4, 2), 77, dtype=torch.int64),
                torch.full((4,), 77, dtype=torch.int32),
            )
            *got, _, receive = b.low_latency_dispatch(x, ids, 16, 8, fp8, False, hook, *mine)
            if hook:
                receive()
            c.wait()
            assert [a is m for a, m in zip(got, (mine[0], mine[1], mine[4], mine[2], mine[3]), strict=True)] == [
                True
            ] * 5
            assert torch.equal(mine[4], counts)
            assert torch.equal(mine[3], ranges)
            for e, n in enumerate(counts.tolist()):
                assert torch.equal(mine[0][e, :n].view(torch.uint8), rows[e, :n].view(torch.uint8))
                assert (mine[0][e, n:].float() == 7).all()
                assert torch.equal(mine[2][e, :n], sources[e, :n])
                assert (mine[2][e, n:] == 77).all()
                if fp8:
                    assert torch.equal(mine[1][e, :n], scales[e, :n])
                    assert (mine[1][e, n:] == 7).all()
        with pytest.raises(RuntimeError, match="packed_recv_x_scales as given: strides"):
            b.low_latency_dispatch(x, ids, 16, 8, True, False, hook, None, torch.empty((2, 4, 32)).permute(1, 2, 0))

    gpus(2, rank)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_collectives(gpus, ranks):
    """What stands in x[p] of a rank's array goes to rank p."""

    def rank(c):
        n, r, root = 37, c.rank, ranks - 1
        xs = np.random.default_rng(3).integers(0, 9, (ranks, ranks, n)).astype(np.float32)
        with weft.Group(c, staging=1 << 20, sms=4 * c.ranks) as g:

            def gives(want, call, *operands, dtype=None):
                out = OnGPU(np.full(want.shape, 77, want.dtype), c._device, dtype)
                assert call(*(OnGPU(x, c._device) for x in operands), out=out) is out
                c.wait()
                assert (out.array == want).all()

            total = xs.sum(0)
            gives(total, g.all_reduce, xs[r])
            gives(total[r], g.reduce_scatter, xs[r])
            gives(3 * total, lambda x, out: g.all_reduce(x, "premulsum", scalar=3, out=out), xs[r])
            three = OnGPU(np.full(1, 3, np.float32), c._device)
            gives(3 * total[r], lambda x, out: g.reduce_scatter(x, "premulsum", scalar=three, out=out), xs[r])
            gives(xs[:, 0], g.all_gather, xs[r][0])
            gives(xs[:, r], g.all_to_all, xs[r])
            gives(xs[root], lambda x, out: g.broadcast(x if r == root else None, root, out=out), xs[r])
            gives(xs[0][r], lambda x, out: g.scatter(x if r == 0 else None, out=out), xs[r])
            flags = xs > 4
            gives(flags[:, r], g.all_to_all, flags[r])
            if r == root:
                gives(xs.max(0), lambda x, out: g.reduce(x, "max", root, out=out), xs[r])
                gives(xs[:, 0], lambda x, out: g.gather(x, root, out=out), xs[r][0])
            else:
                assert g.reduce(OnGPU(xs[r], c._device), "max", root) is None
                assert g.gather(OnGPU(xs[r][0], c._device), root) is None
            x = OnGPU(xs[r].copy(), c._device)
            assert g.broadcast(x, root, stream=weft.OWN) is x
            assert (x.array == xs[root]).all()
            g.barrier(stream=weft.OWN)
            with pytest.raises(weft.OperandError, match="results on a GPU are made for operands of PyTorch's only"):
                g.all_reduce(x)
            with pytest.raises(weft.OperandError, match="array: it is on the host"):
                g.all_reduce(xs[r], out=x)

    gpus(ranks, rank)


def test_works(gpus):
    """Calls that are started, in several streams; counts in the GPU's memory; algorithms by name."""

    def rank(c):
        n, r, ranks = 5, c.rank, c.ranks

        def on_gpu(array):
            return OnGPU(np.ascontiguousarray(array), c._device)

        xs = np.random.default_rng(4).integers(0, 9, (ranks, ranks, n)).astype(np.float32)
        with weft.Group(c, staging=1 << 20, sms=4 * c.ranks, dtypes=["float32"]) as g:
            outs = [on_gpu(np.zeros((ranks, n), np.float32)) for _ in range(6)]
            works = [g.all_reduce(on_gpu(xs[r]), out=out, stream=weft.OWN, async_op=True) for out in outs]
            assert works[1].wait_on(weft.OWN) is outs[1]
            with g.all_reduce(on_gpu(xs[r]), out=outs[0], stream=weft.OWN, async_op=True, timeout=5) as last:
                pass
            assert [w.done() for w in works] == [True] * 6
            for work, out in zip([last, *works[1:]], outs, strict=True):
                assert work.wait() is out
                assert (out.array == xs.sum(0)).all()
                assert work.algorithm.startswith("all-reduce/")
            assert not g._started
            g.all_reduce(on_gpu(xs[r]), out=outs[0], stream=weft.OWN, algorithm="all-reduce/two-shot")
            assert g.algorithm == "all-reduce/two-shot"
            refused = weft.InvalidError, weft.UnsupportedError
            with pytest.raises(refused, match="by-hand"):
                g.all_reduce(on_gpu(xs[r]), out=outs[0], algorithm="by-hand")
            assert {a.name for a in g.algorithms()} >= {"all-reduce/two-shot", "barrier/flagged"}

            # The part of rank p is sent from row p, and received in row ranks - 1 - p.
            rows = np.arange(ranks)
            places = {
                "send": np.full(ranks, n),
                "recv": np.full(ranks, n),
                "send_at": n * rows,
                "recv_at": n * rows[::-1],
            }
            places = {name: on_gpu(x.astype(np.int64)) for name, x in places.items()}
            g.all_to_all_v(on_gpu(xs[r]), **places, out=outs[1], stream=weft.OWN)
            assert (outs[1].array[::-1] == xs[:, r]).all()
            with pytest.raises(weft.OperandError, match=r"recv: counts and positions on the GPU are four arrays"):
                g.all_to_all_v(on_gpu(xs[r]), **places | {"recv": on_gpu(np.zeros(7, np.int64))}, out=outs[1])
            with pytest.raises(weft.OperandError, match="out: a list is filled by copies"):
                g.all_gather(on_gpu(xs[r]), out=[outs[0], outs[1]], async_op=True)

            # What is dropped keeps what it borrows until it was seen to end.
            for _ in range(3):
                g.barrier(stream=weft.OWN, async_op=True)
            g.barrier(stream=weft.OWN)
            g._begin()
            assert not g._started

    gpus(2, rank)


def test_messages(gpus):
    """Round the ring of ranks, and to a rank itself."""

    def rank(c):
        r, nxt, before = c.rank, (c.rank + 1) % c.ranks, (c.rank - 1) % c.ranks
        with weft.Group(c, staging=1 << 20, sms=4 * c.ranks) as g:
            for n in (0, 1, 7, 3000):
                x, got, own = (OnGPU(np.full(n, 77 + i * r, np.int32), c._device) for i in range(3))
                if r == 0:
                    g.send(x, nxt, stream=weft.OWN)
                    g.recv(got, before, stream=weft.OWN)
                else:
                    assert g.recv(got, before, stream=weft.OWN) is got
                    g.send(x, nxt, stream=weft.OWN)
                assert (got.array == 77).all()
                y = OnGPU(np.arange(n, dtype=np.int32) + r, c._device)
                messages = weft.Send(y, nxt), weft.Send(y, r), weft.Recv(own, r), weft.Recv(got, before)
                work = g.batch(messages, stream=weft.OWN, async_op=True)
                work.wait(timeout=20)
                assert (own.array == y.array).all()
                assert (got.array == np.arange(n) + before).all()
            with pytest.raises(weft.OperandError, match="send: it is on the host"):
                g.send(np.zeros(3), nxt)

    gpus(2, rank)


def test_collectives_of_torch(gpus, monkeypatch):
    torch = pytest.importorskip("torch")
    tensors_on_gpus(monkeypatch)

    def rank(c):
        x = torch.arange(6, dtype=torch.bfloat16).view(2, 3) + c.rank
        with weft.Group(c, staging=1 << 20, sms=4 * c.ranks) as g:
            results = (
                g.all_reduce(x),
                g.reduce_scatter([x[0], x[1]]),
                torch.stack(g.all_to_all(list(x), out=list(torch.zeros_like(x)))),
                g.all_gather(x.T),  # a copy
            )
            c.wait()
            with pytest.raises(weft.OperandError, match=r"out: .* is not contiguous"):
                g.all_reduce(x, out=x.T)
            return [t.float().tolist() for t in results]

    first, second = gpus(2, rank)
    x = torch.arange(6).view(2, 3).float()
    assert first == [
        (2 * x + 1).tolist(),
        (2 * x + 1)[0].tolist(),
        [x[0].tolist(), (x[0] + 1).tolist()],
        [x.T.tolist(), (x.T + 1).tolist()],
    ]
    assert second[1] == (2 * x + 1)[1].tolist()
