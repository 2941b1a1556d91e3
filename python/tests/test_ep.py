"""Expert parallelism against a plain model in numpy, in every layout, forwards, backwards and cut in two."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from model import Batch

import weft
from weft import ep

BY_EXPERT = ["expert_major", "expert_packed"]
BY_RANK = ["rank_major", "token_major"]


def handle(c, batch, **choices):
    sizes = {
        "experts": batch.experts,
        "topk": batch.topk,
        "hidden": batch.hidden,
        "max_tokens": batch.max_tokens,
        "payload": "fp32",
    }
    return ep.Handle(c, **{**sizes, **choices})


def factor(e):
    return e % 4 + 1


def expert_rows(got, batch, rank, e):
    """The rows of a local expert, and which they are."""
    zone = batch.zone(rank * batch.local + e)
    if got.rows.ndim == 3:
        return got.rows[e, : len(zone)], zone
    first = got.routing.expert_offsets[e]
    return got.rows[first : first + len(zone)], zone


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("layout", BY_EXPERT)
@pytest.mark.parametrize("ranks", [1, 3])
def test_by_expert(threads, ranks, layout, halves):
    batch = Batch(ranks, experts=3 * ranks, topk=3, hidden=8, max_tokens=7, seed=ranks)
    alignment = 4 if layout == "expert_packed" else 0

    def rank(c):
        r, x = c.rank, batch.rows[c.rank]
        with handle(c, batch, layout=layout, alignment=alignment) as h:
            assert (h.spec.layout.name, h.spec.reduction.name) == (layout, "exact")
            routing = h.prepare(batch.topks[r], batch.weights[r])
            for _ in range(3):
                got = h.send_dispatch(x, routing=routing).receive() if halves else h.dispatch(x, routing=routing)
                assert got.routing is routing
                for e in range(batch.local):
                    rows, zone = expert_rows(got, batch, r, e)
                    assert routing.expert_counts[e] == len(zone) == routing.expert_demand[e]
                    for row, (source, token, _) in zip(rows, zone, strict=True):
                        assert (row == batch.rows[source][token]).all()
                    rows *= factor(r * batch.local + e)
                bias = np.full_like(x, 2)
                kept = h.rows_shape(routing)
                assert kept == got.rows.shape
                out = (
                    h.send_combine(got.rows, got, bias=bias).wait()
                    if halves
                    else h.combine(got.rows, got, bias=(bias, bias))
                )
                want = batch.combined(r, lambda e, row: row * factor(e)) + (2 if halves else 4)
                assert (out == want).all()
                got.release()
            assert routing.tokens == len(x)
            assert routing.selections == (batch.topks[r] >= 0).sum()
            zones = [batch.zone(r * batch.local + e) for e in range(batch.local)]
            weights = routing.row_weights.reshape(got_shape) if (got_shape := kept[:-1]) else None
            for e, zone in enumerate(zones):
                first = int(routing.expert_offsets[e])
                of = weights[e] if weights.ndim == 2 else weights[first:]
                assert of[: len(zone)].tolist() == [batch.weights[s][t, k] for s, t, k in zone]
                counts = [sum(s == source for s, _, _ in zone) for source in range(ranks)]
                assert (routing.ranges[e] & 0xFFFFFFFF).tolist() == counts
            assert routing.row_experts is None
            assert routing.row_demand.tolist() == [routing.demand]
            if alignment:
                assert routing.padded_counts.tolist() == [-(-len(z) // 4) * 4 for z in zones]
            routing.release()
            with pytest.raises(weft.ClosedError, match="this routing was released"):
                h.dispatch(x, routing=routing)

    threads(ranks, rank)


@pytest.mark.parametrize("layout", BY_RANK)
@pytest.mark.parametrize("ranks", [1, 3])
def test_by_rank(threads, ranks, layout):
    batch = Batch(ranks, experts=2 * ranks, topk=2, hidden=8, max_tokens=6, seed=7 + ranks)

    def rank(c):
        r = c.rank
        with handle(c, batch, layout=layout) as h:
            assert (h.spec.reduction.name, h.spec.weighting.name) == ("partial", "plain")
            got = h.dispatch(batch.rows[r], batch.topks[r], batch.weights[r])
            by = got.routing
            visitors = batch.visitors(r)
            places = [s * batch.max_tokens + t for s, t in visitors] if layout == "rank_major" else range(len(visitors))
            assert by.row_weights is None
            sums = np.zeros_like(got.rows)
            for place, (s, t) in zip(places, visitors, strict=True):
                assert (by.source_ranks[place], by.source_tokens[place]) == (s, t)
                assert (got.rows[place] == batch.rows[s][t]).all()
                local = [e - r * batch.local if e // batch.local == r and e >= 0 else -1 for e in batch.topks[s][t]]
                assert by.row_experts[place].tolist() == local
                for k, e in enumerate(local):
                    if e >= 0:
                        sums[place] += (
                            by.row_selection_weights[place, k] * factor(r * batch.local + e) * got.rows[place]
                        )
            assert by.source_counts.tolist() == [sum(s == source for s, _ in visitors) for source in range(ranks)]
            got.rows[:] = sums
            assert (h.combine(got.rows, got) == batch.combined(r, lambda e, row: row * factor(e))).all()

    threads(ranks, rank)


@pytest.mark.parametrize("layout", BY_EXPERT)
def test_gradients(threads, layout):
    """The gradients are those of the model: what each row and weight contributes to a weighted sum of outputs."""
    batch = Batch(2, experts=4, topk=2, hidden=8, max_tokens=5, seed=11)
    grads = [np.random.default_rng(r).integers(-3, 4, x.shape).astype(np.float32) for r, x in enumerate(batch.rows)]

    def rank(c):
        r = c.rank
        with handle(c, batch, layout=layout) as h:
            got = h.dispatch(batch.rows[r], batch.topks[r], batch.weights[r])
            y = got.rows.copy()
            for e in range(batch.local):
                rows, zone = expert_rows(got, batch, r, e)
                rows *= factor(r * batch.local + e)
            y[...] = got.rows
            grad_rows, grad_weights = h.combine_backward(grads[r], got, y)
            for e in range(batch.local):
                zone = batch.zone(r * batch.local + e)
                first = got.routing.expert_offsets[e]
                of = grad_rows[e] if grad_rows.ndim == 3 else grad_rows[first:]
                for row, (s, t, k) in zip(of, zone, strict=False):
                    assert (row == batch.weights[s][t, k] * grads[s][t]).all()
                of[: len(zone)] *= factor(r * batch.local + e)
            for t, experts in enumerate(batch.topks[r]):
                for k, e in enumerate(experts):
                    want = (grads[r][t] * batch.rows[r][t] * factor(e)).sum() if e >= 0 else 0
                    assert grad_weights[t, k] == want
            weights = np.arange(np.prod(grad_rows.shape[:-1]), dtype=np.float32)
            grad_tokens, back = h.dispatch_backward(grad_rows, got, weights)
            want = np.zeros_like(grads[r])
            for t, experts in enumerate(batch.topks[r]):
                for k, e in enumerate(experts):
                    want[t] += batch.weights[r][t, k] * factor(e) * grads[r][t] if e >= 0 else 0
                    assert (back[t, k] != 0) <= (e >= 0)
            assert (grad_tokens == want).all()
            plain, none = h.dispatch_backward(grad_rows, got)
            assert none is None
            assert (plain == want).all()

    threads(2, rank)


@pytest.mark.parametrize("scale_order", ["row_major", "column_major"])
@pytest.mark.parametrize("payload", ["fp8", "fp8_ue8m0"])
def test_fp8(threads, payload, scale_order):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(5)
    x = [rng.normal(size=(6, 512)).astype(np.float32) for _ in range(2)]
    topk = np.array([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [1, 3]])
    weights = np.full((6, 2), 0.5, np.float32)

    def rank(c):
        quantised = {"quantize": "float32", "payload": payload, "scale_order": scale_order}
        with ep.Handle(c, experts=4, topk=2, hidden=512, max_tokens=6, output="float32", **quantised) as h:
            got = h.dispatch(x[c.rank], topk, weights)
            assert (got.rows.dtype.name, got.rows.shape) == ("float8_e4m3fn", (2, 12, 512))
            scales = got.scales
            if payload == "fp8_ue8m0" and scale_order == "column_major":  # words of four scales
                scales = scales.view(ml_dtypes.float8_e8m0fnu).reshape(2, 1, 12, 4).swapaxes(1, 2).reshape(2, 12, 4)
            elif scale_order == "column_major":
                scales = scales.swapaxes(1, 2)
            scales = scales.astype(np.float32)
            rows = (got.rows.astype(np.float32).reshape(2, 12, 4, 128) * scales[..., None]).reshape(2, 12, 512)
            out = h.combine(rows, got)
            assert np.abs(out - x[c.rank]).max() < 0.2

    threads(2, rank)


def test_quantised_rows_and_opaque_ones(threads):
    def rank(c):
        rng = np.random.default_rng(c.rank)
        topk = np.array([[(c.rank + 1) % 2], [-1], [c.rank]])
        fp8 = rng.integers(0, 100, (3, 128)).astype(np.uint8)  # bits: numpy has no float8
        scales = rng.random((3, 1)).astype(np.float32)
        with ep.Handle(c, experts=2, topk=1, hidden=128, max_tokens=3, payload="fp8") as h:
            got = h.dispatch(fp8, topk, np.ones((3, 1), np.float32), scales=scales)
            other = np.random.default_rng(1 - c.rank)
            theirs, their_scales = (
                other.integers(0, 100, (3, 128)).astype(np.uint8),
                other.random((3, 1)).astype(np.float32),
            )
            places = [0, 1] if c.rank else [1, 0]
            assert (got.rows.view(np.uint8)[0, places[0]] == theirs[0]).all()
            assert (got.rows.view(np.uint8)[0, places[1]] == fp8[2]).all()
            assert got.scales[0, places[0], 0] == their_scales[0, 0]
        with ep.Handle(
            c, experts=2, topk=1, hidden=0, max_tokens=3, payload="opaque", row_bytes=32, scale_bytes=16
        ) as h:
            got = h.dispatch(fp8[:, :32].copy(), topk, np.ones((3, 1), np.float32), scales=fp8[:, :16].copy())
            assert (got.rows[0, places[0]] == theirs[0, :32]).all()
            assert (got.scales[0, places[0]] == theirs[0, :16]).all()

    threads(2, rank)


def test_half_types(threads):
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def rank(c):
        for payload, dtype in (("bf16", ml_dtypes.bfloat16), ("fp16", np.float16)):
            batch = Batch(2, experts=4, topk=2, hidden=8, max_tokens=5, seed=2, dtype=dtype)
            with handle(c, batch, payload=payload) as h:
                got = h.dispatch(batch.rows[c.rank], batch.topks[c.rank], batch.weights[c.rank])
                assert got.rows.dtype == dtype
                assert (h.combine(got.rows, got).astype(np.float32) == batch.combined(c.rank, lambda e, row: row)).all()
                # Bits will do, where the library of the arrays has no such type.
                got.release()
                bits = h.dispatch(
                    batch.rows[c.rank].view(np.uint16) if payload == "bf16" else batch.rows[c.rank],
                    batch.topks[c.rank],
                    batch.weights[c.rank],
                )
                assert bits.rows.dtype == dtype

    threads(2, rank)


def test_processes(processes):
    for ended in processes(4, "layer"):
        assert (ended.code, ended.out) == (0, "ok\n")


def test_dead_rank(processes):
    *alive, dead = processes(3, "layer_death")
    assert dead.code < 0
    for ended in alive:
        assert (ended.code, ended.out) == (0, "ok\n"), ended.out


def test_device_counts(threads):
    batch = Batch(2, experts=4, topk=2, hidden=8, max_tokens=5, seed=4)

    def rank(c):
        with handle(c, batch, layout="token_major", counts="device") as h:
            got = h.dispatch(batch.rows[c.rank], batch.topks[c.rank], batch.weights[c.rank])
            assert got.rows.shape == (h.capacity, 8)
            assert got.routing.received == len(batch.visitors(c.rank))
            assert h.combine_buffer() is None
            assert h.gradient_buffer() is None
            assert h.memory_bytes > 0
            assert h.sms == (0, 0, 0)

    threads(2, rank)


@pytest.mark.parametrize("layout", ["expert_major", "expert_packed", "rank_major", "token_major"])
def test_copies(threads, layout):
    """What has arrived goes to arrays of the caller's, and what no row came for stays as it was; what
    does not fit is refused by name."""
    batch = Batch(2, experts=6, topk=3, hidden=32, max_tokens=7, seed=6)

    def rank(c):
        with ep.Handle(
            c, experts=6, topk=3, hidden=32, max_tokens=7, payload="fp32", layout=layout, counts="device"
        ) as h:
            got = h.dispatch(batch.rows[c.rank], batch.topks[c.rank], batch.weights[c.rank])
            routing, rows = got.routing, np.full(h.rows_shape(got), 7, np.float32)
            tokens, counts = np.full(rows.size // 32, 7, np.int32), np.empty(3, np.int32)
            assert got.copy_to(rows, source_tokens=tokens, expert_counts=counts) is None
            held = routing.source_ranks >= 0
            flat = rows.reshape(-1, 32)
            assert (flat[held] == got.rows.reshape(-1, 32)[held]).all()
            assert (flat[~held] == 7).all()
            assert (tokens == np.where(held, routing.source_tokens, 7)).all()
            assert (counts == routing.expert_counts).all()
            with pytest.raises(weft.InvalidError, match="rows are"):
                got.copy_to(rows.astype(np.float16))
            with pytest.raises(weft.OperandError, match=r"rows: shape .* not contiguous, and is written"):
                got.copy_to(np.empty((*rows.shape[:-1], 64), np.float32)[..., ::2])
            with pytest.raises(weft.InvalidError, match="scales are given"):
                got.copy_to(scales=np.empty((1, 1), np.float32))
            with pytest.raises(weft.InvalidError, match="overlap the received batch"):
                got.copy_to(got.rows)
            with pytest.raises(weft.InvalidError, match="scaleorder 'none'"):
                got.copy_to(rows, scale_order="none")
            got.release()
            with pytest.raises(weft.ClosedError, match="released before"):
                got.copy_to(rows)

    threads(2, rank)


def test_overflow(threads):
    def rank(c):
        with ep.Handle(c, experts=2, topk=1, hidden=4, max_tokens=4, payload="fp32", capacity=4) as h:
            x, weights = np.ones((4, 4), np.float32), np.ones((4, 1), np.float32)
            with pytest.raises(weft.CapacityError) as e:
                h.dispatch(x, np.zeros((4, 1), np.int32), weights)
            assert e.value.rank == 0
            got = h.dispatch(x, np.full((4, 1), c.rank, np.int32), weights)
            assert (h.combine(got.rows, got) == 1).all()

    threads(2, rank)


def test_rows_of_another_batch(comm):
    """What is combined by what was received is of that batch, and that is not released."""
    x, topk, weights = (
        np.ones((3, 4), np.float32),
        np.array([[0, 1], [1, 0], [0, -1]], np.int32),
        np.ones((3, 2), np.float32),
    )
    spec = ep.Spec(experts=2, topk=2, hidden=4, max_tokens=3, payload="fp32", live=1)
    with ep.Handle(comm, spec) as h:
        routing = h.prepare(topk, weights)
        first = h.dispatch(x, routing=routing)
        rows, per_row = first.rows, np.zeros(first.rows.shape[:-1], np.float32).reshape(-1)
        first.release()
        second = h.dispatch(2 * x, routing=routing)
        grads = np.zeros_like(rows)
        by_first = (
            lambda: h.combine(rows, first),
            lambda: h.send_combine(rows, first),
            lambda: h.dispatch_backward(rows, first, per_row),
            lambda: h.combine_backward(x, first, rows, grad_rows=grads),
        )
        for call in by_first:
            with pytest.raises(weft.ClosedError, match="received rows were released"):
                call()
        # Memory of one's own goes by the routing, also after calls that had a batch.
        own = rows.copy()
        want = h.combine(rows, second)
        h.combine_backward(x, second, rows, grad_rows=grads)
        h.dispatch_backward(rows, second)
        second.release()
        third = h.dispatch(3 * x, routing=routing)
        assert (h.combine(own, routing) == want).all()
        assert (h.combine(rows, routing) == 1.5 * want).all()
        h.combine_backward(x, routing, rows, grad_rows=grads)
        h.dispatch_backward(rows, routing)
        third.release()
    with ep.Handle(comm, dataclasses.replace(spec, live=2)) as h:
        routing = h.prepare(topk, weights)
        one, two = h.dispatch(x, routing=routing), h.dispatch(2 * x, routing=routing)
        for call in (
            lambda: h.combine(one.rows, two),
            lambda: h.dispatch_backward(one.rows, two),
            lambda: h.combine_backward(x, two, one.rows, grad_rows=grads),
        ):
            with pytest.raises(weft.InvalidError, match="holds another batch of the routing"):
                call()
        assert (h.combine(one.rows, one) * 2 == h.combine(two.rows, two)).all()
        with ep.Handle(comm, spec) as other:
            theirs = other.dispatch(x, topk, weights)
            with pytest.raises(weft.InvalidError, match="holds another handle's batch"):
                h.combine(theirs.rows, routing)
            theirs.release()


def test_waits(threads):
    def rank(c):
        with ep.Handle(c, experts=2, topk=1, hidden=4, max_tokens=1, payload="fp32") as h:
            waits = np.zeros(2, np.int64)
            h.count_waits(waits, waits)
            for _ in range(20):
                got = h.dispatch(np.ones((1, 4), np.float32), np.zeros((1, 1), np.int32), np.ones((1, 1), np.float32))
                h.combine(got.rows, got)
                got.release()
            h.count_waits()
            assert waits[c.rank] == 0
            return waits.sum()

    assert sum(threads(2, rank)) > 0


def test_count():
    batch = Batch(4, experts=8, topk=3, hidden=1, max_tokens=30, seed=9)
    topk = batch.topks[int(np.argmax(batch.tokens))]
    got = ep.count(topk, experts=8, ranks=4, ranks_per_node=2)
    per = [{e // 2 for e in row if e >= 0} for row in topk]
    assert got.rank_tokens.tolist() == [sum(r in ranks for ranks in per) for r in range(4)]
    assert got.node_tokens.tolist() == [sum(bool({2 * n, 2 * n + 1} & ranks) for ranks in per) for n in range(2)]
    assert got.expert_selections.tolist() == [(topk == e).sum() for e in range(8)]
    assert got.token_in_rank.tolist() == [[int(r in ranks) for r in range(4)] for ranks in per]
    with pytest.raises(weft.InvalidError):
        ep.count(topk, experts=7, ranks=4)
    with pytest.raises(weft.InvalidError):
        ep.count(topk.astype(np.float32), experts=8, ranks=4)


def test_specs():
    good = {"experts": 4, "topk": 2, "hidden": 128, "max_tokens": 4}
    ep.Spec(**good).check(2)
    ep.Spec(**good, layout=ep.Layout.token_major, payload="fp8", quantize="bfloat16").check(4, "gpu")
    with pytest.raises(weft.UnsupportedError, match="use a partial reduction"):
        ep.Spec(**good, layout="token_major", reduction="exact").check(2)
    with pytest.raises(weft.InvalidError):
        ep.Spec(**good).check(3)
    with pytest.raises(weft.InvalidError, match=r"payload 'int8', want one of bf16, .* or a type: bfloat16, .*float32"):
        ep.Spec(experts=2, topk=1, hidden=4, max_tokens=1, payload="int8")
    for of_type in ("float32", np.float32, np.dtype("float32"), weft.DType.float32, "fp32"):
        assert ep.Spec(**good, payload=of_type).payload == ep.Payload.fp32
    assert ep.Spec(**good, payload="float8_e4m3fn").payload == ep.Payload.fp8
    with pytest.raises(weft.InvalidError, match="layout 'sideways', want one of expert_major"):
        ep.Spec(**good, layout="sideways")
    for name, of_type in (("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32"), ("fp64", "float64")):
        assert ep.Spec(**good, output=name).output == ep.Spec(**good, output=of_type).output == weft.DType[of_type]
        assert ep.Spec(**good, quantize=name).quantize == weft.DType[of_type]
    with pytest.raises(weft.OperandError, match="no type 'fp3'"):
        ep.Spec(**good, output="fp3")


def test_misuse(comm):
    spec = ep.Spec(experts=4, topk=2, hidden=4, max_tokens=4, payload="fp32")
    x, topk, weights = np.ones((3, 4), np.float32), np.array([[0, 1]] * 3), np.ones((3, 2), np.float32)
    with pytest.raises(TypeError, match="not both"):
        ep.Handle(comm, spec, experts=4)
    h = ep.Handle(comm, spec)
    for rows, t, w in (
        (x[:, :2].copy(), topk, weights),
        (x, topk[:2], weights),
        (x, topk * 4, weights),
        (x, topk, weights[:, :1].copy()),
    ):
        with pytest.raises(weft.InvalidError):
            h.dispatch(rows, t, w)
    with pytest.raises(weft.OperandError, match="rows: type complex64"):
        h.dispatch(x.astype(np.complex64), topk, weights)
    with pytest.raises(weft.InvalidError):
        h.dispatch(x.astype(np.float64), topk, weights)
    with pytest.raises(weft.InvalidError):
        h.dispatch(x)
    with pytest.raises(weft.InvalidError):
        h.dispatch(x, topk[:, [0, 0]], weights)  # twice the same
    got = h.dispatch(x, topk, weights)
    with pytest.raises(weft.InvalidError, match="not by both"):
        h.dispatch(x, topk, weights, routing=got)
    with pytest.raises(weft.OperandError, match=r"out: shape \(3, 4\) .* is not contiguous"):
        h.combine(got.rows, got, out=np.zeros((4, 3), np.float32).T)
    with pytest.raises(weft.InvalidError):
        h.combine(got.rows, got, out=np.zeros((2, 4), np.float32))
    with pytest.raises(weft.InvalidError):
        h.combine(got.rows[:1], got)
    # Rows that are not contiguous are copied.
    assert (h.combine(np.asfortranarray(got.rows), got) == 2).all()
    other = ep.Handle(comm, spec)
    with pytest.raises(weft.InvalidError, match="another handle's"):
        other.combine(got.rows, got)
    got.release()
    got.release()
    with pytest.raises(weft.ClosedError, match="received rows were released"):
        got.rows  # noqa: B018
    h.close()
    h.close()
    for call in (
        lambda: h.dispatch(x, topk, weights),
        lambda: h.combine(x, got),
        lambda: h.prepare(topk, weights),
        h.combine_buffer,
        h.gradient_buffer,
    ):
        with pytest.raises(weft.ClosedError):
            call()
    sent = other.send_dispatch(x, topk, weights)
    with pytest.raises(weft.InvalidError, match="receive it first"):
        other.prepare(topk, weights)
    sent.receive()
    with pytest.raises(weft.ClosedError, match="second half was called before"):
        sent.receive()


@pytest.mark.parametrize("layout", BY_EXPERT + BY_RANK)
def test_parts(threads, layout):
    """Several at once are what they are one by one."""
    batch = Batch(2, experts=6, topk=3, hidden=8, max_tokens=7, seed=5)
    names = [
        "expert_counts",
        "expert_demand",
        "padded_counts",
        "expert_offsets",
        "source_counts",
        "source_ranks",
        "source_tokens",
    ]
    names += ["ranges", "row_weights"] if layout in BY_EXPERT else ["row_experts", "row_selection_weights"]

    def rank(c):
        with handle(c, batch, layout=layout) as h:
            routing = h.prepare(batch.topks[c.rank], batch.weights[c.rank])
            for _ in range(2):
                *found, demand = routing.parts(*names, demand=True)
                for name, array in zip(names, found, strict=True):
                    want = getattr(routing, name)
                    assert array.dtype == (np.int64 if name == "row_experts" else want.dtype), name
                    assert (array == want).all(), name
                assert demand == routing.expert_demand.tolist()
            assert routing.parts() == ()
            with pytest.raises(weft.InvalidError, match="no part of a routing of this layout"):
                routing.parts("row_demand")
            with pytest.raises(weft.InvalidError, match="'expert_counts' is asked for twice"):
                routing.parts("expert_counts", "source_ranks", "expert_counts")
            routing.release()
            with pytest.raises(weft.ClosedError):
                routing.parts("expert_counts")

    threads(2, rank)


@pytest.mark.parametrize("layout", BY_EXPERT + BY_RANK)
def test_copied(threads, layout):
    """Small results are copies, and hold nothing of the handle's; large ones are what dispatch returns."""
    batch = Batch(2, experts=6, topk=3, hidden=8, max_tokens=7, seed=6)

    def rank(c):
        r = c.rank
        with handle(c, batch, layout=layout, live=1) as h:
            with h.dispatch(batch.rows[r], batch.topks[r], batch.weights[r]) as got:
                want, at = got.rows.copy(), got.routing.source_tokens
            copies = []
            for _ in range(5):
                rows, scales, routing, large = h.dispatch_copied(
                    batch.rows[r], batch.topks[r], batch.weights[r], most=1 << 20
                )
                assert scales is None
                assert large is None
                assert (routing.source_tokens == at).all()
                copies.append(rows)
            rows, _, routing, large = h.dispatch_copied(batch.rows[r], routing=routing, most=0)
            assert (rows is None) == (large is not None)
            if large is not None:
                copies.append(large.rows.copy())
                large.release()
            stands = at >= 0
            for rows in copies:
                assert rows.shape == want.shape
                assert (rows.reshape(-1, 8)[stands] == want.reshape(-1, 8)[stands]).all()
            with pytest.raises(weft.InvalidError):
                h.dispatch_copied(batch.rows[r][:, :4], routing=routing, most=0)

    threads(2, rank)


def test_names(comm):
    """What is printed is short, and what is wrong is named."""
    with weft.ep.Handle(comm, experts=4, topk=2, hidden=8, max_tokens=3, payload="fp32") as h:
        assert repr(h) == "<weft.ep.Handle of 4 experts, topk 2, hidden 8, expert_major, fp32, rank 0 of 1>"
        rows, topk = np.ones((3, 8), np.float32), np.array([[0, 1]] * 3)
        weights = np.ones((3, 2), np.float32)
        routing = h.prepare(topk, weights)
        assert repr(routing) == "<weft.ep.Routing of 3 tokens>"
        got = h.dispatch(rows, routing=routing)
        assert repr(got) == "<weft.ep.Received float32[4, 3, 8]>"
        for call in (
            lambda: h.combine(got.rows, None),
            lambda: h.combine(got.rows, rows),
            lambda: h.dispatch_backward(got.rows, None),
            lambda: h.combine_backward(rows, None),
        ):
            with pytest.raises(weft.InvalidError, match=r"the routing is of type .*, want the Routing or the Received"):
                call()
        assert (h.combine(got.rows, routing) == 2).all()
        got.release()
        assert repr(got) == "<weft.ep.Received float32[4, 3, 8], released>"
    assert repr(h).endswith(", closed>")
    with pytest.raises(TypeError, match=r"8 is no weft\.ep\.Spec: give one, or its arguments by name"):
        weft.ep.Handle(comm, 8)
    with pytest.raises(TypeError, match=r"no argument 'top_k'; it has experts, topk, hidden"):
        weft.ep.Handle(comm, experts=4, top_k=2, hidden=8, max_tokens=3)
