"""Weights that come after the routing: with a dispatch, or with a combine."""

from __future__ import annotations

import time

import numpy as np
import pytest
from model import Batch

import weft
from weft import ep


def handle(c, batch, **choices):
    return ep.Handle(
        c,
        experts=batch.experts,
        topk=batch.topk,
        hidden=batch.hidden,
        max_tokens=batch.max_tokens,
        payload="fp32",
        **choices,
    )


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("layout", [layout.name for layout in ep.Layout])
def test_with_a_dispatch(threads, layout, halves):
    batch = Batch(3, experts=6, topk=3, hidden=8, max_tokens=6, seed=21)

    def rank(c):
        r, x = c.rank, batch.rows[c.rank]
        weights = batch.weights[r] * np.float32(1.5) + np.float32(r)
        with handle(c, batch, layout=layout, live=3) as h:
            routing = h.prepare(batch.topks[r])
            plain = h.dispatch(x, routing=routing)
            if h.spec.weighting == ep.Weighting.weighted:
                with pytest.raises(weft.InvalidError, match="the routing has no weights"):
                    h.combine(plain.rows, plain)
            got = (
                h.send_dispatch(x, weights=weights, routing=routing).receive(timeout=20)
                if halves
                else h.dispatch(x, weights=weights, routing=routing, timeout=20)
            )
            assert got.routing is routing
            want = h.dispatch(x, batch.topks[r], weights)
            for part in ("row_weights", "row_selection_weights", "row_experts", "source_tokens", "source_ranks"):
                ours, theirs = getattr(routing, part), getattr(want.routing, part)
                assert (ours is None) == (theirs is None)
                assert ours is None or (ours == theirs).all()
            held = want.routing.source_tokens >= 0
            assert (got.rows.reshape(-1, 8)[held] == want.rows.reshape(-1, 8)[held]).all()
            assert (h.combine(want.rows.copy(), routing) == h.combine(want.rows, want)).all()

    threads(3, rank)


def test_with_a_combine(threads):
    """Sums at home go by weights of which no other rank needs to know."""
    batch = Batch(2, experts=4, topk=2, hidden=8, max_tokens=6, seed=22)

    def rank(c):
        r, x = c.rank, batch.rows[c.rank]
        with handle(c, batch) as h:
            got = h.dispatch(x, batch.topks[r])
            want = batch.combined(r, lambda _, row: row)
            assert (h.combine(got.rows, got, weights=batch.weights[r]) == want).all()
            assert (h.combine(got.rows, got) == want).all()
            assert (h.send_combine(got.rows, got, weights=2 * batch.weights[r]).wait(timeout=20) == 2 * want).all()
            with pytest.raises(weft.InvalidError, match="which sends them to no other"):
                h.combine_backward(x, got)
            h.dispatch(x, routing=got, weights=batch.weights[r])
            h.combine_backward(x, got)

    threads(2, rank)


def test_refusals(comm):
    with ep.Handle(comm, experts=2, topk=2, hidden=8, max_tokens=4, payload="fp32", reduction="partial") as h:
        x, topk, weights = np.ones((2, 8), np.float32), np.array([[0, 1], [1, 0]]), np.ones((2, 2), np.float32)
        got = h.dispatch(x, topk, weights)
        with pytest.raises(weft.UnsupportedError, match="at the experts' ranks"):
            h.combine(got.rows, got, weights=weights)
        with pytest.raises(weft.InvalidError, match="not by both"):
            h.dispatch(x, topk, routing=got)
        with pytest.raises(weft.InvalidError, match="weights are"):
            h.dispatch(x, weights=weights[:1], routing=got)
        h.combine(got.rows, got)


def test_a_tuning_is_for_gpus():
    tuned = {
        "experts": 8,
        "topk": 2,
        "hidden": 8,
        "max_tokens": 4,
        "dispatch_tuning": ep.KernelTuning(protocol="flags", threads=128),
    }
    ep.Spec(**tuned).check(2, "gpu")
    with pytest.raises(weft.UnsupportedError, match="only kernels of GPUs are tuned"):
        ep.Spec(**tuned).check(2)
    with pytest.raises(weft.InvalidError, match="want 64 to 512"):
        ep.Spec(**tuned | {"combine_tuning": ep.KernelTuning(threads=63)}).check(2, "gpu")
    with pytest.raises(weft.InvalidError, match="protocol 'words', want one of values, flags"):
        ep.Spec(**tuned | {"dispatch_tuning": ep.KernelTuning(protocol="words")}).check(2, "gpu")
    ep.Spec(**tuned | {"dispatch_tuning": ep.KernelTuning()}).check(2)  # Weft's choice


def test_a_counter_is_for_gpus(comm):
    with pytest.raises(weft.UnsupportedError, match="bound to no GPU"):
        ep.TokenCounter(comm, experts=4)


def gave_up(c):
    """Waits until another rank has given up, and says who."""
    while True:
        try:
            c.check()
        except weft.AbortedError as e:
            return e.rank
        time.sleep(0.001)


def test_timeouts(threads):
    """A call ends when its caller says so, and the others hear of it. All go on together."""

    def rank(c):
        with weft.Group(c) as group:
            group.barrier(timeout=20)
            if c.rank == 0:
                with pytest.raises(weft.DeadlineError, match="the 100 ms"):
                    group.barrier(timeout=0.1)
            else:
                assert gave_up(c) == 0
            c.set_mask(timeout=20)
            group.barrier()
            if c.rank == 0:
                with weft.timeout(20), weft.timeout(0.05), pytest.raises(weft.DeadlineError, match="the 50 ms"):
                    group.all_reduce(np.ones(3))
            else:
                assert gave_up(c) == 0
            c.set_mask()
            assert (group.all_reduce(np.ones(3)) == 2).all()
            c.wait(timeout=1)

    threads(2, rank)
    with pytest.raises(weft.InvalidError, match="a timeout of 0 seconds"):
        weft.timeout(0)
