"""DeepEP's first interface against what its documentation says, in plain tensors."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import math
import os
import pickle
import threading

import pytest

torch = pytest.importorskip("torch")

import deep_ep_utils  # noqa: E402
import intranode  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import deep_ep  # noqa: E402
import weft  # noqa: E402
from deep_ep.utils.math import calc_diff, hash_tensor, per_token_cast_back, per_token_cast_to_fp8  # noqa: E402
from weft._buffer import traces  # noqa: E402

HIDDEN, EXPERTS, TOPK = 256, 12, 3


@functools.cache
def token_batch(rank, hidden=HIDDEN, experts=EXPERTS, topk=TOPK):
    """A rank's tokens, their experts with some missing, and weights; another number on each rank."""
    g = torch.Generator().manual_seed(100 + rank)
    tokens = 23 + 5 * rank
    ids = torch.stack([torch.randperm(experts, generator=g)[:topk] for _ in range(tokens)])
    ids[torch.rand(ids.shape, generator=g) < 0.15] = -1
    weights = torch.rand((tokens, topk), generator=g)
    return torch.randn((tokens, hidden), generator=g).bfloat16(), ids, weights


def buffers(threads, ranks, function, **options):
    """Runs a function of a buffer on so many ranks."""

    def rank(c):
        return function(deep_ep.Buffer.from_communicator(c, **options))

    return threads(ranks, rank)


def arrivals(rank, ranks):
    """The (rank, token) that come to a rank, in order."""
    local = EXPERTS // ranks
    return [
        (r, t)
        for r in range(ranks)
        for t, row in enumerate(token_batch(r)[1])
        if ((row >= 0) & (row // local == rank)).any()
    ]


def layout_of(ids, ranks):
    local = EXPERTS // ranks
    in_rank = torch.stack([((ids >= 0) & (ids // local == r)).any(1) for r in range(ranks)], 1)
    return in_rank.sum(0), torch.stack([(ids == e).sum() for e in range(EXPERTS)]), in_rank


def test_layout(threads):
    def rank(b):
        ids = token_batch(b.rank)[1]
        per_rank, per_node, per_expert, in_rank, event = b.get_dispatch_layout(ids, EXPERTS, async_finish=True)
        want = layout_of(ids, b.group_size)
        assert per_node is None
        assert in_rank.dtype == torch.bool
        assert (per_rank.dtype, per_expert.dtype) == (torch.int32, torch.int32)
        for got, expected in zip((per_rank, per_expert, in_rank), want, strict=True):
            assert torch.equal(got.long(), expected.long())
        event.current_stream_wait()

    buffers(threads, 3, rank)


@pytest.mark.parametrize("with_topk", [True, False])
@pytest.mark.parametrize("kind", ["bf16", "fp8", "packed"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_normal(threads, ranks, kind, with_topk):
    def sent(r):
        x = token_batch(r, 512)[0]
        if kind == "bf16":
            return x
        rows, scales = per_token_cast_to_fp8(x)
        if kind == "packed":
            powers = torch.randint(
                120, 130, scales.shape, generator=torch.Generator().manual_seed(r), dtype=torch.uint8
            )
            return rows, powers.view(torch.int32)
        return rows, scales.t().contiguous().t()  # column-major, as grouped products want them

    def rank(b):
        r, (x, ids, weights) = b.rank, token_batch(b.rank, 512)
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, EXPERTS)
        options = {"topk_idx": ids, "topk_weights": weights} if with_topk else {}
        config = deep_ep.Config(8, 8, 256)
        got, got_ids, got_weights, counts, handle, event = b.dispatch(
            sent(r),
            num_tokens_per_rank=per_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            expert_alignment=4,
            config=config,
            async_finish=True,
            **options,
        )
        with event:
            pass
        come = arrivals(r, ranks)
        n = len(come)
        rows, scales = got if isinstance(got, tuple) else (got, None)
        assert rows.shape == (n, 512)
        for i, (s, t) in enumerate(come):
            theirs = sent(s)
            theirs, their_scales = theirs if isinstance(theirs, tuple) else (theirs, None)
            assert torch.equal(rows[i].view(torch.uint8), theirs[t].view(torch.uint8))
            if scales is not None:
                assert torch.equal(scales[i], their_scales[t])
        if kind == "fp8":
            assert scales.stride(0) == 1
        # The handle's matrices, as DeepEP's tests read them.
        prefix, channel_prefix, recv_channel_prefix, sources, handle_in_rank, heads = handle
        assert prefix.shape == (ranks, ranks)
        assert [s for s, _ in come] == [
            s for s in range(ranks) for _ in range(int(prefix[s, r]) - (int(prefix[s - 1, r]) if s else 0))
        ]
        assert sources.tolist() == [t for _, t in come]
        assert torch.equal(channel_prefix[:, -1], per_rank)
        assert channel_prefix.shape == recv_channel_prefix.shape == (ranks, 4)
        assert torch.equal(handle_in_rank, in_rank)
        assert torch.equal(heads >= 0, in_rank)
        local = EXPERTS // ranks
        selected = [sum(int((token_batch(s)[1] == r * local + e).sum()) for s in range(ranks)) for e in range(local)]
        assert counts == [-(-n // 4) * 4 for n in selected]
        if with_topk:
            for i, (s, t) in enumerate(come):
                _, theirs, their_weights = token_batch(s, 512)
                here = (theirs[t] >= 0) & (theirs[t] // local == r)
                assert torch.equal(got_ids[i], torch.where(here, theirs[t] - r * local, -1))
                assert torch.equal(got_weights[i], torch.where(here, their_weights[t], 0))
            assert got_ids.dtype == deep_ep.topk_idx_t
        else:
            assert got_ids is None
            assert got_weights is None
        # The same rows again, and rows of another type the same way.
        again, *nothing, _ = b.dispatch(sent(r), handle=handle)
        assert nothing == [None] * 4
        again = again[0] if isinstance(again, tuple) else again
        assert torch.equal(again.view(torch.uint8), rows.view(torch.uint8))
        back, *_ = b.dispatch(x, handle=handle)
        # Home: every rank that has a token adds its row, in fp32, after the bias.
        bias = tuple(torch.full_like(x, v) for v in (0.5, 0.25))
        home, home_weights, _ = b.combine(back, handle, topk_weights=got_weights)
        visits = in_rank.sum(1, keepdim=True)
        assert calc_diff(home, (x.float() * visits).bfloat16()) < 5e-6
        biased, _, _ = b.combine(back, handle, bias=bias)
        assert calc_diff(biased, (x.float() * visits + 0.75).bfloat16()) < 5e-6
        single, _, _ = b.combine(back, handle, bias=bias[0])
        assert calc_diff(single, (x.float() * visits + 0.5).bfloat16()) < 5e-6
        if with_topk:
            assert torch.equal(home_weights, torch.where(ids >= 0, weights, 0))
        else:
            assert home_weights is None
        for _ in range(2):
            both, both_weights, _ = b.combine(back, handle, topk_weights=got_weights, bias=bias)
            assert torch.equal(both, biased)
            assert both_weights is None if home_weights is None else torch.equal(both_weights, home_weights)

    buffers(threads, ranks, rank)


def test_worst_case(threads):
    def rank(b):
        x, ids, weights = token_batch(b.rank)
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, EXPERTS)
        layout = {
            "num_tokens_per_rank": per_rank,
            "is_token_in_rank": in_rank,
            "num_tokens_per_expert": per_expert,
            "topk_idx": ids,
            "topk_weights": weights,
        }
        exact, exact_ids, exact_weights, _, _, _ = b.dispatch(x, **layout)
        got, got_ids, got_weights, counts, handle, _ = b.dispatch(x, **layout, num_worst_tokens=200)
        n = exact.shape[0]
        assert got.shape == (200, HIDDEN)
        assert counts == []
        assert torch.equal(got[:n], exact)
        assert torch.equal(got_ids[:n], exact_ids)
        assert torch.equal(got_weights[:n], exact_weights)
        assert (got_ids[n:] == -1).all()
        home, home_weights, _ = b.combine(got, handle, topk_weights=got_weights)
        assert calc_diff(home, (x.float() * in_rank.sum(1, keepdim=True)).bfloat16()) < 5e-6
        assert torch.equal(home_weights, torch.where(ids >= 0, weights, 0))
        with pytest.raises(AssertionError, match="num_worst_tokens is 3"):
            b.dispatch(x, **layout, num_worst_tokens=3)
        with pytest.raises(AssertionError, match="num_worst_tokens is 3"):
            b.dispatch(x, handle, num_worst_tokens=3)

    buffers(threads, 2, rank)


@pytest.mark.parametrize("columns", [True, False])
def test_worst_case_of_scales(threads, columns):
    """However many rows are asked for, scales are in the order of those that were sent."""

    def rank(b):
        _, ids, weights = token_batch(b.rank)
        x, scales = per_token_cast_to_fp8(token_batch(b.rank, 512)[0])
        if columns:
            scales = scales.t().contiguous().t()
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, EXPERTS)
        layout = {
            "num_tokens_per_rank": per_rank,
            "is_token_in_rank": in_rank,
            "num_tokens_per_expert": per_expert,
            "topk_idx": ids,
            "topk_weights": weights,
        }
        (_, exact), *_, handle, _ = b.dispatch((x, scales), **layout)
        n = exact.shape[0]
        for most in (200, 201):
            for (rows, got), *_ in (
                b.dispatch((x, scales), **layout, num_worst_tokens=most),
                b.dispatch((x, scales), handle, num_worst_tokens=most),
            ):
                assert (rows.shape[0], got.shape[0]) == (most, most)
                assert got.stride() == ((1, most) if columns else (4, 1))
                assert torch.equal(got[:n], exact)

    buffers(threads, 2, rank)


@pytest.mark.parametrize("ranks", [2, 4])
def test_intranode(threads, ranks):
    """DeepEP's own test of normal exchanges."""
    buffers(threads, ranks, lambda b: intranode.replay(b, "cpu"))


@pytest.mark.parametrize("worst", [False, True])
@pytest.mark.parametrize("columns", [1, 4, 7])
@pytest.mark.parametrize("ranks", [1, 3])
def test_numbers_at_home(threads, ranks, columns, worst):
    buffers(threads, ranks, lambda b: intranode.numbers_at_home(b, "cpu", columns, worst))


def expert_output(e, row):
    return (row.float() * (e % 5 + 1) / 4).bfloat16()


@pytest.mark.parametrize("hook", [False, True])
@pytest.mark.parametrize(
    ("fp8", "rounded", "ue8m0"),
    [(False, False, False), (True, False, False), (True, True, False), (True, True, True)],
    ids=["bf16", "fp8", "rounded", "ue8m0"],
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_low_latency(threads, ranks, fp8, rounded, ue8m0, hook):
    most, hidden = 40, 512
    local = EXPERTS // ranks

    def rank(b):
        r, (x, ids, weights) = b.rank, token_batch(b.rank, hidden)
        stats, waits = torch.zeros(local, dtype=torch.int32), torch.zeros(ranks, dtype=torch.int64)
        results = []
        for _ in range(4):  # results may be kept
            got, counts, handle, event, receive = b.low_latency_dispatch(
                x,
                ids,
                most,
                EXPERTS,
                stats,
                waits,
                use_fp8=fp8,
                round_scale=rounded,
                use_ue8m0=ue8m0,
                async_finish=not hook,
                return_recv_hook=hook,
            )
            if hook:
                receive()
            else:
                assert receive is None
                event.current_stream_wait()
            results.append((got, counts, handle))
        for got, counts, handle in results:
            rows, scales = got if fp8 else (got, None)
            assert rows.shape == (local, ranks * most, hidden)
            sources, ranges, *shape = handle
            assert shape == [most, hidden, EXPERTS]
            y = torch.full((local, ranks * most, hidden), float("nan"), dtype=torch.bfloat16)
            for e in range(local):
                come = [
                    (s, t)
                    for s in range(ranks)
                    for t, row in enumerate(token_batch(s)[1])
                    if (row == r * local + e).any()
                ]
                n = int(counts[e])
                assert n == len(come) == int((ranges[e] & 0xFFFFFFFF).sum())
                for s in range(ranks):
                    begin, count = int(ranges[e, s]) >> 32, int(ranges[e, s]) & 0xFFFFFFFF
                    assert sources[e, begin : begin + count].tolist() == [t for q, t in come if q == s]
                for i, (s, t) in enumerate(come):
                    theirs = token_batch(s, hidden)[0][t]
                    if not fp8:
                        assert torch.equal(rows[e, i], theirs)
                    else:
                        assert (
                            calc_diff(per_token_cast_back(rows[e, i : i + 1], scales[e, i : i + 1])[0], theirs) < 2e-3
                        )
                    y[e, i] = expert_output(r * local + e, theirs)
            if fp8:
                assert scales.shape == (local, ranks * most, hidden // (512 if ue8m0 else 128))
                assert scales.stride(1) == 1 or scales.shape[2] == 1
                if rounded and not ue8m0:
                    valid = scales[0, : int(counts[0])]
                    assert torch.equal(valid, 2.0 ** valid.log2().round())
        assert torch.equal(stats, 4 * counts)
        # Emulated GPUs take turns, and may find that all is there when they look.
        assert ranks == 1 or "WEFT_EMULATED" in os.environ or waits.sum() > 0
        # Home: fp32 fused multiply-adds in the order of the selections, rounded once.
        want = torch.zeros(x.shape, dtype=torch.float64)
        for t in range(x.shape[0]):
            for k in range(TOPK):
                if ids[t, k] >= 0:
                    want[t] += weights[t, k].double() * expert_output(int(ids[t, k]), x[t]).double()
        for zero_copy in (False, True):
            if zero_copy:
                b.get_next_low_latency_combine_buffer(handle)[:] = y
            out = torch.empty_like(x)
            costs = torch.zeros(ranks, dtype=torch.int64)
            home, _, receive = b.low_latency_combine(
                y,
                ids,
                weights,
                handle,
                zero_copy=zero_copy,
                return_recv_hook=hook,
                out=out,
                combine_wait_recv_cost_stats=costs,
            )
            if hook:
                receive()
            assert home is out
            assert not home.isnan().any()
            assert calc_diff(home, want) < 1e-5
        # What is not selected has no weight, and a combine may leave out more.
        fewer = ids.clone()
        fewer[0] = -1
        for topk, left in ((ids, out), (fewer, torch.cat((torch.zeros_like(out[:1]), out[1:])))):
            home, _, receive = b.low_latency_combine(
                y, topk, weights.masked_fill(topk < 0, float("nan")), handle, return_recv_hook=hook
            )
            if hook:
                receive()
            assert torch.equal(home, left)

    buffers(threads, ranks, rank)


def test_many_dispatches_then_combines(threads):
    def rank(b):
        x, ids, weights = token_batch(b.rank)
        for _ in range(20):
            rows, _, handle, _, _ = b.low_latency_dispatch(x, ids, 64, EXPERTS, use_fp8=False)
        outs = [b.low_latency_combine(rows, ids, weights, handle)[0] for _ in range(20)]
        assert all(hash_tensor(o) == hash_tensor(outs[0]) for o in outs)
        total = torch.where(ids >= 0, weights, 0).sum(1, keepdim=True)
        assert calc_diff(outs[0], (x.float() * total).bfloat16()) < 1e-5

    buffers(threads, 2, rank)


def normal(b, x):
    """A normal exchange and back, whose ranks are all those that are not masked."""
    _, ids, weights = token_batch(b.rank)
    local = EXPERTS // b.group_size
    gone = b._exchanges.mask.ranks()
    per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, EXPERTS)
    rows, _, of_rows, counts, handle, _ = b.dispatch(x, None, per_rank, None, in_rank, per_expert, ids, weights)
    come, selected = 0, [0] * local
    for r in set(range(b.group_size)) - gone:
        here = token_batch(r)[1] - local * b.rank
        come += int(((here >= 0) & (here < local)).any(1).sum())
        selected = [n + int((here == e).sum()) for e, n in enumerate(selected)]
    assert (rows.shape[0], counts) == (come, selected)
    home, home_weights, _ = b.combine(rows, handle, topk_weights=of_rows)
    reached = in_rank.clone()
    reached[:, list(gone)] = False
    assert calc_diff(home, (x.float() * reached.sum(1, keepdim=True)).bfloat16()) < 5e-6
    assert torch.equal(
        home_weights,
        torch.where((ids >= 0) & ~torch.isin(ids // local, torch.tensor(list(gone), device="cpu")), weights, 0),
    )
    sent = [
        [((theirs // local == d) & (theirs >= 0)).any(1).sum() for d in range(b.group_size)]
        for theirs in (token_batch(r)[1] for r in range(b.group_size))
    ]
    ends = torch.tensor(sent, device="cpu")
    ends[list(gone)] = 0
    assert torch.equal(handle[0], ends.cumsum(0).int())


def test_masks(threads):
    """Ranks go on without one that takes no part; what its experts would give is left out."""

    def rank(b):
        x, ids, weights = token_batch(b.rank)
        status = torch.empty(3, dtype=torch.int32)
        b.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 0, 0]
        first = b.low_latency_dispatch(x, ids, 64, EXPERTS, use_fp8=False)
        b.low_latency_combine(first[0], ids, weights, first[2])
        all_home.wait()  # before, rank 1 would be told that it is masked
        if b.rank == 1:
            return
        b.low_latency_update_mask_buffer(1, True)
        b.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 1, 0]
        rows, _, handle, _, _ = b.low_latency_dispatch(x, ids, 64, EXPERTS, use_fp8=False)
        home, _, _ = b.low_latency_combine(rows, ids, weights, handle)
        there = (ids >= 0) & (ids // 4 != 1)
        total = torch.where(there, weights, 0).sum(1, keepdim=True)
        assert calc_diff(home, (x.float() * total).bfloat16()) < 1e-5
        assert (handle[1][:, 1] & 0xFFFFFFFF == 0).all()
        normal(b, x)  # of another size than before

    all_home = threading.Barrier(3, timeout=20)
    buffers(threads, 3, rank, enable_shrink=True)

    def normal_alone(before, b):
        """Masks are for normal exchanges, too, and nothing that rank 1 said before matters."""
        x = token_batch(b.rank)[0]
        if before:
            normal(b, x[:, :128].contiguous())
        all_home.wait()
        if b.rank == 1:
            return
        b.low_latency_update_mask_buffer(1, True)
        for columns in (256, 128):
            normal(b, x[:, :columns].contiguous())

    for before in (False, True):
        buffers(threads, 3, functools.partial(normal_alone, before), enable_shrink=True)


def test_masks_end(threads):
    """A rank that was left out is taken in again, by the same calls on all, and whatever was made
    without it or before."""

    def rank(b):
        def exchange(hidden):
            x, ids, weights = token_batch(b.rank, hidden)
            normal(b, x)
            rows, _, handle, _, _ = b.low_latency_dispatch(x, ids, 64, EXPERTS, use_fp8=False)
            home, _, _ = b.low_latency_combine(rows, ids, weights, handle)
            there = (ids >= 0) & ~torch.isin(ids // 4, torch.tensor(list(b._exchanges.mask.ranks())))
            assert calc_diff(home, (x.float() * torch.where(there, weights, 0).sum(1, keepdim=True)).bfloat16()) < 1e-5

        for clean in (b.low_latency_clean_mask_buffer, lambda: b.low_latency_update_mask_buffer(1, False)):
            exchange(256)
            together.wait()
            if b.rank != 1:
                b.low_latency_update_mask_buffer(1, True)
                exchange(256)
                exchange(128)
            together.wait()
            clean()
            for hidden in (128, 512, 256):
                exchange(hidden)

    together = threading.Barrier(3, timeout=30)
    buffers(threads, 3, rank, enable_shrink=True)


def test_handles_from_before_a_mask(threads):
    """What was dispatched goes on among those that are left; what was made with a rank that has come
    back does not, and each says so."""

    def rank(b):
        x, ids, weights = token_batch(b.rank)
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, EXPERTS)
        rows, _, of_rows, _, handle, _ = b.dispatch(x, None, per_rank, None, in_rank, per_expert, ids, weights)
        mine, sources = rows.clone(), handle[3].clone()
        low, _, low_handle, _, _ = b.low_latency_dispatch(x, ids, 64, EXPERTS, use_fp8=False)
        low = low.clone()
        together.wait()
        if b.rank != 1:
            b.low_latency_update_mask_buffer(1, True)
            again = b.dispatch(x, handle=handle)[0]
            assert torch.equal(torch.where((mine != again).any(1, keepdim=True), 0, mine), again)  # nothing of rank 1's
            home, _, _ = b.combine(mine, handle)
            reached = in_rank[:, [0, 2]].sum(1, keepdim=True)
            assert calc_diff(home, (x.float() * reached).bfloat16()) < 5e-6
            home, _, _ = b.low_latency_combine(low, ids, weights, low_handle)
            there = (ids >= 0) & (ids // 4 != 1)
            assert calc_diff(home, (x.float() * torch.where(there, weights, 0).sum(1, keepdim=True)).bfloat16()) < 1e-5
            with pytest.raises(AssertionError, match="before ranks were masked"):
                b.dispatch(x.half(), handle=handle)
        together.wait()
        b.low_latency_clean_mask_buffer()
        for call in (
            lambda: b.dispatch(x, handle=handle),
            lambda: b.combine(mine, handle),
            lambda: b.combine(mine, handle, topk_weights=of_rows, bias=x),
            lambda: b.low_latency_combine(low, ids, weights, low_handle),
        ):
            with pytest.raises(AssertionError, match="before a rank was taken in again: dispatch without it first"):
                call()
        assert torch.equal(handle[3], sources)
        normal(b, x)

    together = threading.Barrier(3, timeout=30)
    buffers(threads, 3, rank, enable_shrink=True)


def test_modes(threads):
    """What a mode of PyTorch's sees of one exchange is kept for no other, and its default device is for
    the caller's tensors."""

    def rank(b):
        x, ids, _ = token_batch(b.rank)
        with torch.device("meta"):
            normal(b, x)
        with FakeTensorMode(), contextlib.suppress(Exception):
            b.get_dispatch_layout(ids, EXPERTS + 8)
        assert b.get_dispatch_layout(ids, EXPERTS + 8)[2].tolist() == [
            int((ids == e).sum()) for e in range(EXPERTS + 8)
        ]
        normal(b, x)

    buffers(threads, 2, rank)


def test_a_failure_that_is_nobodys_end(threads):
    """After one that no rank has died of, all go on when they have said so."""

    def rank(b):
        x, ids, weights = token_batch(b.rank)
        b.low_latency_dispatch(x, ids, 64, EXPERTS)
        if b.rank == 0:
            with pytest.raises(weft.DeadlineError), weft.timeout(0.3):
                b.low_latency_dispatch(x, ids, 64, EXPERTS)
        late.wait()
        with pytest.raises(weft.WeftError, match="rank 0"):  # which has given up
            b.low_latency_dispatch(x, ids, 64, EXPERTS)
        late.wait()
        b.low_latency_clean_mask_buffer()
        rows, _, handle, _, _ = b.low_latency_dispatch(x, ids, 64, EXPERTS, use_fp8=False)
        home, _, _ = b.low_latency_combine(rows, ids, weights, handle)
        assert calc_diff(home, (x.float() * torch.where(ids >= 0, weights, 0).sum(1, keepdim=True)).bfloat16()) < 1e-5
        normal(b, x)

    late = threading.Barrier(2, timeout=30)
    buffers(threads, 2, rank, enable_shrink=True)


@pytest.mark.parametrize("half", ["dispatch", "combine"])
def test_a_hook_that_is_lost(threads, half):
    """The next exchange of its kind receives what it was to."""

    def rank(b):
        x, ids, weights = token_batch(b.rank)
        for _ in range(3):
            sent = b.low_latency_dispatch(x, ids, 64, EXPERTS, use_fp8=False, return_recv_hook=True)
            with pytest.raises(weft.InvalidError, match="receive it first"):
                b.low_latency_dispatch(x, ids, 64, EXPERTS, use_fp8=False)
            if half == "dispatch":
                del sent
            else:
                sent[4]()
                b.low_latency_combine(sent[0], ids, weights, sent[2], return_recv_hook=True)
            rows, _, handle, _, receive = b.low_latency_dispatch(
                x, ids, 64, EXPERTS, use_fp8=False, return_recv_hook=half == "dispatch"
            )
            if receive:
                receive()
                with pytest.raises(weft.ClosedError, match="called before"):
                    receive()
            home, _, _ = b.low_latency_combine(rows, ids, weights, handle)
            assert (
                calc_diff(home, (x.float() * torch.where(ids >= 0, weights, 0).sum(1, keepdim=True)).bfloat16()) < 1e-5
            )

    buffers(threads, 2, rank)


def test_hooks_that_are_lost_over_a_mask(threads):
    """What was sent before fails for nobody."""

    def rank(b):
        x, ids, weights = token_batch(b.rank)
        b.low_latency_dispatch(x, ids, 64, EXPERTS)
        hook = b.low_latency_dispatch(x, ids, 64, EXPERTS, return_recv_hook=True)[-1]
        all_sent.wait()
        if b.rank == 1:
            return
        b.low_latency_update_mask_buffer(1, True)
        if b.rank == 2:
            b._exchanges.mask.agree()
            with pytest.raises(weft.AbortedError, match="masked after it was sent"):
                hook()
        del hook
        rows, _, handle, _, _ = b.low_latency_dispatch(x, ids, 64, EXPERTS, use_fp8=True)
        assert len(b._low_latency._sent) == 0
        b.low_latency_combine(rows[0].bfloat16(), ids, weights, handle)
        normal(b, x)

    all_sent = threading.Barrier(3, timeout=20)
    buffers(threads, 3, rank, enable_shrink=True)


def test_selections_in_another_order(threads):
    """A combine takes a dispatch's selections in any order, with their weights, and -1 for some; others are refused."""

    def rank(b):
        x, ids, weights = token_batch(b.rank)
        rows, _, handle, _, _ = b.low_latency_dispatch(x, ids, 64, EXPERTS, use_fp8=False)
        local = rows.shape[0]
        rows = rows * (torch.arange(local) + b.rank * local + 1).view(-1, 1, 1)
        want, _, _ = b.low_latency_combine(rows, ids, weights, handle)
        for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
            nan = torch.where(ids >= 0, weights, float("nan"))
            got, _, _ = b.low_latency_combine(rows, ids[:, order].contiguous(), nan[:, order].contiguous(), handle)
            assert torch.equal(got, want)
        few, _, _ = b.low_latency_combine(
            rows, ids.index_fill(1, torch.tensor([1]), -1).flip(1), weights.flip(1), handle
        )
        same, _, _ = b.low_latency_combine(rows, ids, weights * torch.tensor([1, 0, 1]), handle)
        assert torch.equal(few, same)
        for wrong, words in (
            (torch.where(ids >= 0, (ids + 5) % EXPERTS, -1), "other experts"),
            (ids.float(), "type torch.float32"),
            (ids[:-1], "shape"),
        ):
            with pytest.raises(AssertionError, match=words):
                b.low_latency_combine(rows, wrong, weights[: len(wrong)], handle)

    buffers(threads, 2, rank)


def test_compiled(comm):
    """PyTorch's compiler breaks its graphs at exchanges, and what it returns is what they return."""
    b = deep_ep.Buffer.from_communicator(comm)
    elastic = deep_ep.ElasticBuffer.from_communicator(weft.join(deadline=20), num_max_tokens_per_rank=40)
    x, ids, weights = token_batch(0)
    per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, EXPERTS)

    def normal(x):
        rows, _, _, _, handle, _ = b.dispatch(x * 1, None, per_rank, None, in_rank, per_expert, ids, weights)
        _, _, _, sources, *_ = handle
        return b.combine(rows * 1, handle)[0] + sources.sum() + handle[0].sum() + len(handle)

    def low_latency(x):
        rows, _, handle, _, _ = b.low_latency_dispatch(x * 1, ids, 64, EXPERTS, use_fp8=False)
        return b.low_latency_combine(rows * 1, ids, weights, handle)[0] + handle[2]

    def halves(x):
        rows, _, handle, _, receive = b.low_latency_dispatch(
            x * 1, ids, 64, EXPERTS, use_fp8=False, return_recv_hook=True
        )
        receive()
        out, _, receive = b.low_latency_combine(rows * 1, ids, weights, handle, return_recv_hook=True)
        receive()
        return out + 1

    def of_elastic(x):
        rows, _, _, handle, _ = elastic.dispatch(x * 1, ids, weights, num_experts=EXPERTS)
        return elastic.combine(rows * 1, handle)[0] + handle.num_recv_tokens

    for f in (normal, low_latency, halves, of_elastic):
        torch._dynamo.reset()
        compiled, want = torch.compile(f, backend="eager"), f(x)
        for _ in range(3):
            assert torch.equal(compiled(x), want)
    elastic._comm.close()


def test_handles_as_operands(comm):
    b = deep_ep.Buffer.from_communicator(comm)
    x, ids, weights = token_batch(0)
    rows, _, handle, _, _ = b.low_latency_dispatch(x, ids, 64, EXPERTS, use_fp8=False)
    plain = tuple(handle)
    assert isinstance(handle, tuple)
    assert (len(handle), handle[2:], handle[-1]) == (5, (64, HIDDEN, EXPERTS), EXPERTS)
    for made, want in (
        (handle + (1,), (*plain, 1)),  # noqa: RUF005
        ((1,) + handle, (1, *plain)),  # noqa: RUF005
        (handle * 2, plain * 2),
        (2 * handle, plain * 2),
    ):
        assert [id(t) for t in made] == [id(t) for t in want]
    assert handle.index(plain[0]) == 0
    b.low_latency_combine(rows, ids, weights, copy.copy(handle))


def test_refusals(threads):
    def rank(b):
        x, ids, weights = token_batch(b.rank)
        layout = b.get_dispatch_layout(ids, EXPERTS)
        with pytest.raises(AssertionError, match="get_dispatch_layout"):
            b.dispatch(x)
        with pytest.raises(AssertionError, match="previous_event"):
            b.get_dispatch_layout(ids, EXPERTS, allocate_on_comm_stream=True)
        with pytest.raises(AssertionError, match="want contiguous"):
            b.dispatch(
                x.t(), num_tokens_per_rank=layout[0], is_token_in_rank=layout[3], num_tokens_per_expert=layout[2]
            )
        with pytest.raises(AssertionError, match="get_dispatch_layout"):
            b.internode_dispatch(x, None)
        with pytest.raises(AssertionError, match="handle: a NoneType"):
            b.internode_combine(x, None)
        two = torch.zeros((2, EXPERTS // b.group_size), dtype=torch.int32)
        for stats in (two, two[0].float(), two[0].long(), two[0, 1:], two[0, :1], two.view(-1)[::2]):
            with pytest.raises(AssertionError, match="cumulative_local_expert_recv_stats"):
                b.low_latency_dispatch(x, ids, 64, EXPERTS, stats, use_fp8=False)
        with pytest.raises(AssertionError, match="exclude each other"):
            b.low_latency_dispatch(x, ids, 64, EXPERTS, async_finish=True, return_recv_hook=True)
        with pytest.raises(AssertionError, match="powers of two"):
            b.low_latency_dispatch(x, ids, 64, EXPERTS, use_ue8m0=True)
        with pytest.raises(AssertionError, match="at most 3 tokens"):
            b.low_latency_dispatch(x, ids, 3, EXPERTS)
        with pytest.raises(AssertionError, match="enable_shrink"):
            b.low_latency_clean_mask_buffer()
        rows, _, handle, _, _ = b.low_latency_dispatch(x, ids, 64, EXPERTS, use_fp8=False)
        early = b.low_latency_dispatch(x, ids, 64, EXPERTS, use_fp8=False, return_recv_hook=True)
        with pytest.raises(AssertionError, match="hook of the dispatch was not called"):
            b.low_latency_combine(early[0], ids, weights, early[2])
        early[4]()
        with pytest.raises(weft.UnsupportedError, match="use_logfmt"):
            b.low_latency_combine(rows, ids, weights, handle, use_logfmt=True)
        with pytest.raises(AssertionError, match="explicitly_destroy"):
            b.destroy()
        given = dict(
            zip(("num_tokens_per_rank", "_", "num_tokens_per_expert", "is_token_in_rank"), layout[:4], strict=True)
        )
        given = {"topk_idx": ids, "topk_weights": weights} | {k: v for k, v in given.items() if k != "_"}
        _, _, _, _, normal, _ = b.dispatch(x, **given)
        for words, call in (
            *(
                ("not copies", functools.partial(b.combine, x, of))
                for of in (None, (), (1, 2, 3), handle, tuple(handle), copy.deepcopy(tuple(normal)))
            ),
            ("not copies", lambda: b.dispatch(x, handle=(1, 2, 3))),
            ("not copies", lambda: b.dispatch(x, handle=handle)),
            *(
                ("not copies", functools.partial(b.low_latency_combine, rows, ids, weights, of))
                for of in (normal, tuple(normal), copy.deepcopy(tuple(handle)))
            ),
            ("topk_weights: shape", lambda: b.combine(x, normal, topk_weights=weights[0])),
            ("topk_weights: shape", lambda: b.combine(x, normal, topk_weights=weights[:-1])),
            ("want 2 dimensions", lambda: b.low_latency_dispatch(x[0], ids, 64, EXPERTS)),
            ("want 2 dimensions", lambda: b.low_latency_dispatch(x[None], ids, 64, EXPERTS)),
            ("want 3 dimensions", lambda: b.low_latency_combine(x, ids, weights, handle)),
            ("expert_alignment is 0", lambda: b.dispatch(x, **given, expert_alignment=0)),
            ("expert_alignment is -3", lambda: b.dispatch(x, **given, expert_alignment=-3)),
            ("3 biases", lambda: b.combine(x, normal, bias=(x, x, x))),
            ("a pair of", lambda: b.dispatch((x, x, x), **given)),
            ("a pair of", lambda: b.dispatch(3, **given)),
            ("config: a int", lambda: b.dispatch(x, **given, config=5)),
            ("topk_weights", lambda: b.dispatch(x, normal, topk_weights=weights)),
            ("want a whole number", lambda: b.low_latency_dispatch(x, ids, None, EXPERTS)),
            ("from byte 0", lambda: b.get_local_buffer_tensor(torch.bfloat16, torch.Size([4]))),
            ("is_token_in_rank: shape", lambda: b.dispatch(x, **given | {"is_token_in_rank": layout[3][:2]})),
        ):
            with pytest.raises(AssertionError, match=words):
                call()
        assert b.combine(x, normal)[0].shape == x.shape

    def of_masks(b):
        for status in (torch.zeros(4, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), torch.zeros(1)):
            with pytest.raises(AssertionError, match="mask_status"):
                b.low_latency_query_mask_buffer(status)

    buffers(threads, 1, of_masks, enable_shrink=True)
    buffers(threads, 1, rank)
    with pytest.raises(ValueError, match="neither a group nor a comm"):
        deep_ep.Buffer(None)
    with pytest.raises(ValueError, match="there is no event"):
        deep_ep.EventOverlap().current_stream_wait()


def test_sizes_and_tables():
    assert 2.0e9 < deep_ep.Buffer.get_low_latency_rdma_size_hint(128, 7168, 8, 288) < 2.2e9
    config = deep_ep.Buffer.get_dispatch_config(8)
    assert (config.num_sms, config.num_max_nvl_chunked_send_tokens, config.num_max_nvl_chunked_recv_tokens) == (
        20,
        6,
        256,
    )
    assert config.get_nvl_buffer_size_hint(7168 * 2, 8) % 128 == 0
    assert config.get_rdma_buffer_size_hint(7168 * 2, 8) == 0
    assert config.get_rdma_buffer_size_hint(7168 * 2, 16) > 0
    assert deep_ep.Buffer.get_combine_config(4).num_max_nvl_chunked_send_tokens == 9
    assert deep_ep.Config(20, 6, 256, 6, 128).num_max_rdma_chunked_recv_tokens == 132
    with pytest.raises(AssertionError, match="3 ranks"):
        deep_ep.Buffer.get_combine_config(3)
    with pytest.raises(AssertionError, match="even"):
        deep_ep.Buffer.set_num_sms(7)
    with pytest.raises(AssertionError):
        deep_ep.Config(20, 256, 256)


def test_names():
    from deep_ep.buffer import Buffer
    from deep_ep.utils import EventHandle, EventOverlap

    assert Buffer is deep_ep.Buffer
    assert EventOverlap is deep_ep.EventOverlap
    seen = []
    with EventOverlap(EventHandle()) as event:
        event.register_hook_after_wait(lambda: seen.append(1))
    assert seen == [1]
    assert isinstance(Buffer.capture(), EventOverlap)


def test_helpers():
    deep_ep_utils.check("cpu")


def test_timing(capfd):
    from deep_ep.utils.testing import bench, empty_suppress, suppress_stdout_stderr

    calls = []
    mean, least, most = bench(lambda: calls.append(1), num_warmups=3, num_tests=5)
    assert len(calls) == 8
    assert 0 <= least <= mean <= most
    with suppress_stdout_stderr(), empty_suppress():
        os.write(1, b"unseen")
    os.write(1, b"seen")
    assert capfd.readouterr().out == "seen"


def test_kernel_names():
    """What tests of DeepEP's ask a profiler for is found under the names that kernels have here."""
    from deep_ep.utils.testing import _of_kernel, bench_kineto

    direct = [("row_map(weft::Place)", 1.0), ("dispatch(weft::Push)", 2.0), ("combine(weft::Pull)", 4.0)]
    kernels = [("weft::direct::" + name, seconds) for name, seconds in direct] * 3 + [("elementwise", 9.0)]
    assert _of_kernel(kernels, "dispatch", 1) == _of_kernel(kernels, "dispatch_impl", 1) == 2
    assert _of_kernel(kernels, "combine", 1) == 4
    assert _of_kernel(kernels, "notify", 1) == 1
    assert math.isnan(_of_kernel(kernels, "dispatch_copy_epilogue_impl", 1))
    halves = [("weft::slots::dispatch(weft::Dispatch)", 1.0), ("weft::slots::dispatch(weft::Dispatch)", 3.0)] * 4
    assert _of_kernel(halves, "dispatch", 2) == [1, 3]
    with pytest.raises(ValueError, match="no periods of 3"):
        _of_kernel(halves, "dispatch", 3)
    calls = []
    assert bench_kineto(lambda: calls.append(1), "dispatch", num_tests=4) >= 0
    assert (
        len(bench_kineto(lambda: calls.append(1), ("dispatch", "combine"), num_tests=4, num_kernels_per_period=2)) == 2
    )
    assert len(calls) == 10


def test_large_results_show_memory_of_the_library(threads):
    """As long as there is some; then they are copies, and all of them stay what they are."""

    def rank(b):
        x, ids = (
            torch.randn((64, 2048), generator=torch.Generator().manual_seed(b.rank)).bfloat16(),
            torch.tensor([[0, 1]]).expand(64, 2).contiguous(),
        )
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, 2)
        _, *_, handle, _ = b.dispatch(
            x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, topk_idx=ids
        )
        kept = [b.dispatch(x + i, handle=handle)[0] for i in range(12)]
        wanted = [b.dispatch(x + i, handle=handle)[0].clone() for i in range(12)]
        assert len({k.data_ptr() for k in kept}) == 12
        for got, want in zip(kept, wanted, strict=True):
            assert torch.equal(got, want)
        low = [b.low_latency_dispatch(x, ids, 64, 2, use_fp8=False) for _ in range(6)]
        for rows, counts, *_ in low:
            assert torch.equal(rows[0, : counts[0]], low[0][0][0, : counts[0]])
        b.low_latency_combine(low[0][0], ids, torch.ones(64, 2), low[0][2])
        return kept[0], wanted[0]

    # They outlive the buffer.
    for kept, wanted in buffers(threads, 2, rank):
        assert torch.equal(kept, wanted)


def test_handles_are_tuples(threads):
    def rank(b):
        x, ids, _ = token_batch(0)
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, EXPERTS)
        handle = b.dispatch(
            x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, topk_idx=ids
        )[4]
        assert isinstance(handle, tuple)
        assert len(handle) == len(tuple(handle)) == len([*handle]) == 6
        prefix, *_, in_rank_again, heads = handle
        assert prefix is handle[0]
        assert in_rank_again is handle[-2]
        assert heads is handle[5]
        assert len(pickle.loads(pickle.dumps(handle))) == 6
        low = b.low_latency_dispatch(x, ids, 64, EXPERTS)[2]
        assert low[2:] == (64, HIDDEN, EXPERTS)
        assert low[0].shape == (EXPERTS, 64)

    buffers(threads, 1, rank)


class Layer(torch.autograd.Function):
    """An exchange whose handle autograd keeps, for the gradient that goes the same way."""

    @staticmethod
    def forward(ctx, x, ids, weights, b, way):
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, EXPERTS)
        layout = {"num_tokens_per_rank": per_rank, "is_token_in_rank": in_rank, "num_tokens_per_expert": per_expert}
        rows, _, of_rows, _, handle, _ = b.dispatch(x, **layout, topk_idx=ids, topk_weights=weights)
        ctx.b, ctx.way = b, way
        ctx.save_for_backward(*handle)
        if way == "dispatch":
            return rows, of_rows
        return b.combine(rows, handle)[0], weights

    @staticmethod
    def backward(ctx, grad, grad_weights):
        if ctx.way == "dispatch":
            home, home_weights, _ = ctx.b.combine(grad, ctx.saved_tensors, topk_weights=grad_weights)
            return home, None, home_weights, None, None
        rows, *_ = ctx.b.dispatch(grad, handle=ctx.saved_tensors)
        return ctx.b.combine(rows, list(ctx.saved_tensors))[0], None, grad_weights, None, None


def test_saved_handles(threads):
    """The tuple of a handle's contents is as good as the handle, also when autograd has saved it, and
    when the same memory is another tensor's."""

    def rank(b):
        x, ids, weights = token_batch(b.rank)
        visits = layout_of(ids, b.group_size)[2].sum(1, keepdim=True)
        for way in ("dispatch", "combine"):
            mine, my_weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
            out, out_weights = Layer.apply(mine, ids, my_weights, b, way)
            gc.collect()
            torch.autograd.backward((out, out_weights), (torch.ones_like(out), torch.ones_like(out_weights)))
            assert torch.equal(mine.grad, visits.expand_as(x).bfloat16())
            assert torch.equal(
                my_weights.grad, (visits if way == "dispatch" else torch.ones_like(visits)).expand_as(weights).float()
            )
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, EXPERTS)
        rows, _, _, _, handle, _ = b.dispatch(x, None, per_rank, None, in_rank, per_expert, ids, weights)
        packed, _, low, *_ = b.low_latency_dispatch(x, ids, 64, EXPERTS, use_fp8=False)
        want, low_want = b.combine(rows, handle)[0], b.low_latency_combine(packed, ids, weights, low)[0]
        others, low_others = ([t.view_as(t) if isinstance(t, torch.Tensor) else t for t in of] for of in (handle, low))
        del handle, low
        gc.collect()
        for _ in range(2):
            assert torch.equal(b.combine(rows, others)[0], want)
            assert torch.equal(b.dispatch(x, handle=others)[0], rows)
            assert torch.equal(b.low_latency_combine(packed, ids, weights, tuple(low_others))[0], low_want)

    gc.collect()
    before = len(traces._left)
    buffers(threads, 2, rank)
    gc.collect()
    assert len(traces._left) == before


def test_process_group(torch_processes):
    for ended in torch_processes(2, "deep_ep_buffer"):
        assert (ended.code, ended.out) == (0, "ok\n"), ended.out


def test_the_extension():
    import deep_ep_cpp
    from deep_ep import _C

    for module in (deep_ep_cpp, _C):
        assert module.Config is deep_ep.Config
        assert module.EventHandle is deep_ep.EventHandle
        assert module.topk_idx_t is deep_ep.topk_idx_t
        assert module.is_sm90_compiled()
        assert module.get_low_latency_rdma_size_hint(64, 256, 2, 8) == deep_ep.Buffer.get_low_latency_rdma_size_hint(
            64, 256, 2, 8
        )
        with pytest.raises(AttributeError, match=r"use deep_ep\.Buffer"):
            _ = module.Buffer
