"""DeepEP's second interface against what its documentation says, in plain tensors. What is compared is
compared to the bit."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import pickle
import threading

import pytest
from conftest import EVERYTHING

torch = pytest.importorskip("torch")

import deep_ep_utils  # noqa: E402

import deep_ep  # noqa: E402
import weft  # noqa: E402
from deep_ep.utils.math import align, per_token_cast_to_fp8  # noqa: E402

HIDDEN, EXPERTS, TOPK, MOST = 256, 12, 5, 40


@functools.cache
def token_batch(rank, hidden=HIDDEN, topk=TOPK):
    """A rank's tokens, their experts with some missing, and weights; another number on each rank, on rank 2 none."""
    g = torch.Generator().manual_seed(200 + rank)
    tokens = 0 if rank == 2 else 31 + 3 * rank
    ids = (
        torch.stack([torch.randperm(EXPERTS, generator=g)[:topk] for _ in range(tokens)])
        if tokens
        else torch.empty((0, topk), dtype=torch.int64)
    )
    ids[torch.rand(ids.shape, generator=g) < 0.2] = -1
    if tokens:
        ids[-1] = -1  # one that goes nowhere
    weights = torch.where(ids >= 0, torch.rand((tokens, topk), generator=g), 0)
    return torch.randn((tokens, hidden), generator=g).bfloat16(), ids, weights


def buffers(threads, ranks, function, **options):
    options = {"num_max_tokens_per_rank": MOST, **options}
    return threads(ranks, lambda c: function(deep_ep.ElasticBuffer.from_communicator(c, **options)))


def arrivals(rank, ranks):
    """The (rank, token) that come to a rank, in order."""
    local = EXPERTS // ranks
    return [
        (r, t)
        for r in range(ranks)
        for t, row in enumerate(token_batch(r)[1])
        if ((row >= 0) & (row // local == rank)).any()
    ]


def output(rank, tokens, topk=TOPK):
    """What the expert of each selection makes of a rank's token: [tokens, topk, hidden], such that the
    order of additions shows."""
    g = torch.Generator().manual_seed(300 + rank)
    scales = 10.0 ** torch.randint(-3, 4, (64, topk, 1), generator=g)
    return (torch.randn((64, topk, HIDDEN), generator=g) * scales).bfloat16()[:tokens]


def ordered(rows):
    """The sum of [n, hidden] in fp32, one after the other."""
    total = torch.zeros(rows.shape[1:])
    for row in rows:
        total = total + row.float()
    return total


def combined(rank, ranks, bias, multiple=True):
    """What comes home: those of one rank rounded before, unless it is not so; ranks in the order of
    their last selections; after the biases."""
    x, ids, _ = token_batch(rank)
    y, out = output(rank, len(x)), torch.empty_like(x)
    for t, row in enumerate(ids):
        total = functools.reduce(torch.add, (b[t].float() for b in bias), torch.zeros(HIDDEN))
        if multiple:
            last = {int(e) // (EXPERTS // ranks): k for k, e in enumerate(row) if e >= 0}
            for r, _k in sorted(last.items(), key=lambda item: item[1]):
                lanes = [k for k, e in enumerate(row) if e >= 0 and e // (EXPERTS // ranks) == r]
                total = total + ordered(y[t, lanes]).bfloat16().float()
        else:
            for k, e in enumerate(row):
                if e >= 0:
                    total = total + y[t, k].float()
        out[t] = total.bfloat16()
    return out


def same_bytes(a, b):
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def sent(rank, kind):
    x = token_batch(rank)[0]
    if kind == "bf16":
        return x
    rows, scales = per_token_cast_to_fp8(x) if len(x) else (x.to(torch.float8_e4m3fn), torch.empty((0, HIDDEN // 128)))
    if kind == "fp8":
        return rows, scales
    g = torch.Generator().manual_seed(rank)  # four powers of two a word, for 32 numbers each
    return rows, torch.randint(1 << 30, (len(x), HIDDEN // 128), generator=g, dtype=torch.int32)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("kind", ["bf16", "fp8", "packed"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_dispatch(threads, ranks, kind, sync):
    def rank(b):
        r, (x, ids, weights) = b.rank_idx, token_batch(b.rank_idx)
        local = EXPERTS // ranks
        come = arrivals(r, ranks)
        n = len(come)
        options = {
            "topk_idx": ids,
            "topk_weights": weights,
            "num_experts": EXPERTS,
            "expert_alignment": 8,
            "do_cpu_sync": sync,
        }
        stats = torch.zeros(local, dtype=torch.int32)
        later = {"previous_event": b.capture(), "allocate_on_comm_stream": True, "async_with_compute_stream": True}
        got, got_ids, got_weights, handle, event = b.dispatch(
            sent(r, kind), **options, cumulative_local_expert_recv_stats=stats, **later
        )
        event.current_stream_wait()
        most = n if sync else ranks * MOST
        check_rows(got, come, kind, most)
        assert (got_ids.shape, got_ids.dtype, got_weights.dtype) == ((most, TOPK), deep_ep.topk_idx_t, torch.float32)
        for i, (s, t) in enumerate(come):
            _, theirs, their_weights = token_batch(s)
            here = (theirs[t] >= 0) & (theirs[t] // local == r)
            assert torch.equal(got_ids[i], torch.where(here, theirs[t] - r * local, -1))
            assert torch.equal(got_weights[i], torch.where(here, their_weights[t], 0))
        assert (got_ids[n:] == -1).all()
        counts = [int((got_ids == e).sum()) for e in range(local)]
        check_handle(handle, r, come, counts, sync)
        assert stats.tolist() == counts
        # By the handle, and other weights than before.
        again, again_ids, nothing, same, _ = b.dispatch(
            sent(r, kind), handle=handle, cumulative_local_expert_recv_stats=stats
        )
        assert nothing is None
        assert same is handle
        assert torch.equal(again_ids, got_ids)
        assert stats.tolist() == [2 * c for c in counts]
        check_rows(again, come, kind, most)
        _, _, twice, _, _ = b.dispatch(sent(r, kind), handle=handle, topk_weights=2 * weights)
        assert torch.equal(twice[:n], 2 * got_weights[:n])
        # Another type by the same handle, and home.
        back, *_ = b.dispatch(x, handle=handle)
        check_rows(back, come, "bf16", most)

    buffers(threads, ranks, rank)


def check_rows(got, come, kind, most):
    rows, scales = got if isinstance(got, tuple) else (got, None)
    assert rows.shape == (most, HIDDEN)
    for i, (s, t) in enumerate(come):
        theirs = sent(s, kind)
        theirs, their_scales = theirs if isinstance(theirs, tuple) else (theirs, None)
        assert same_bytes(rows[i], theirs[t])
        if scales is not None:
            assert same_bytes(scales[i], their_scales[t])


def check_handle(handle, rank, come, counts, sync, expand=False):
    ids, local = token_batch(rank)[1], len(counts)
    ranks = EXPERTS // local
    aligned = [align(c, 8) for c in counts]
    n = len(come)
    assert (handle.num_experts, handle.expert_alignment, handle.num_max_tokens_per_rank, handle.do_expand) == (
        EXPERTS,
        8,
        MOST,
        expand,
    )
    assert handle.num_sms >= 4
    assert torch.equal(handle.topk_idx, ids)
    assert handle.num_recv_tokens == (n if sync else ranks * MOST)
    assert handle.num_recv_tokens_per_expert_list == (aligned if sync else [])
    assert handle.num_expanded_tokens == (
        sum(aligned) if sync else align(ranks * MOST * min(TOPK, len(counts)) + 7 * len(counts), 8)
    )
    assert handle.num_unaligned_recv_tokens_per_expert.tolist() == counts
    before = [0, *itertools.accumulate(aligned)]
    ends = [before[e] + c for e, c in enumerate(counts)] if expand else before[1:]
    assert handle.psum_num_recv_tokens_per_expert.tolist() == ends
    assert handle.psum_num_recv_tokens_per_scaleup_rank.tolist() == [sum(s <= q for s, _ in come) for q in range(ranks)]
    metadata = handle.recv_src_metadata
    assert (metadata.dtype, metadata.shape[1]) == (torch.int32, 2 + TOPK)
    assert metadata[:n, 0].tolist() == [s * MOST + t for s, t in come]
    assert (metadata[n:] == -1).all()
    last = [max(k for k, e in enumerate(token_batch(s)[1][t]) if e >= 0 and e // local == rank) for s, t in come]
    assert metadata[:n, 1].tolist() == [s * TOPK + k for (s, _), k in zip(come, last, strict=True)]
    slots, seen = handle.dst_buffer_slot_idx, [0] * ranks
    assert (slots.dtype, slots.shape) == (torch.int32, ids.shape)
    for t, row in enumerate(ids.tolist()):
        want = [-1] * TOPK
        for to, k in {e // local: k for k, e in enumerate(row) if e >= 0}.items():
            want[k] = rank * MOST + seen[to]
            seen[to] += 1
        assert slots[t].tolist() == want
    assert handle.token_metadata_at_forward is None
    assert handle.channel_linked_list is None


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("kind", ["bf16", "fp8", "packed"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_expanded_dispatch(threads, ranks, kind, sync):
    def rank(b):
        r, (_, ids, weights) = b.rank_idx, token_batch(b.rank_idx)
        local = EXPERTS // ranks
        come = arrivals(r, ranks)
        options = {
            "topk_idx": ids,
            "topk_weights": weights,
            "num_experts": EXPERTS,
            "expert_alignment": 8,
            "do_cpu_sync": sync,
        }
        got, got_ids, got_weights, handle, _ = b.dispatch(
            sent(r, kind), **options, do_expand=True, do_zero_padding=True, use_tma_aligned_col_major_sf=True
        )
        assert got_ids is None
        counts = [sum(int((token_batch(s)[1][t] == r * local + e).any()) for s, t in come) for e in range(local)]
        check_handle(handle, r, come, counts, sync, expand=True)
        rows, scales = got if isinstance(got, tuple) else (got, None)
        assert rows.shape[0] == handle.num_expanded_tokens
        assert got_weights.shape == (rows.shape[0],)
        if scales is not None:
            assert scales.shape[0] == rows.shape[0]
            assert scales.stride(0) == 1
            assert scales.stride(1) % 4 == 0
            assert scales.data_ptr() % 16 == 0
        seen = set()
        for i, (s, t) in enumerate(come):
            theirs, (_, their_ids, their_weights) = sent(s, kind), token_batch(s)
            theirs, their_scales = theirs if isinstance(theirs, tuple) else (theirs, None)
            for k, slot in enumerate(handle.recv_src_metadata[i, 2:].tolist()):
                e = int(their_ids[t, k])
                assert (slot >= 0) == (e >= 0 and e // local == r)
                if slot < 0:
                    continue
                end = int(handle.psum_num_recv_tokens_per_expert[e - r * local])
                assert end - counts[e - r * local] <= slot < end
                assert same_bytes(rows[slot], theirs[t])
                assert got_weights[slot] == their_weights[t, k]
                assert scales is None or same_bytes(scales[slot], their_scales[t])
                seen.add(slot)
        assert len(seen) == sum(counts)
        for e, end in enumerate(handle.psum_num_recv_tokens_per_expert.tolist()):
            assert (rows[end : align(end, 8)].float() == 0).all(), e
            assert (got_weights[end : align(end, 8)] == 0).all()
        again, _, twice, _, _ = b.dispatch(
            sent(r, kind),
            handle=handle,
            topk_weights=2 * weights,
            do_expand=True,
            do_zero_padding=True,
            use_tma_aligned_col_major_sf=True,
        )
        valid = sorted(seen)
        assert same_bytes((again[0] if kind != "bf16" else again)[valid], rows[valid])
        assert torch.equal(twice[valid], 2 * got_weights[valid])

    buffers(threads, ranks, rank)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("biases", [0, 1, 2])
@pytest.mark.parametrize("multiple", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_combine(threads, ranks, multiple, biases, sync):
    def rank(b):
        r, (x, ids, weights) = b.rank_idx, token_batch(b.rank_idx)
        local = EXPERTS // ranks
        bias = tuple(
            torch.randn(x.shape, generator=torch.Generator().manual_seed(i)).bfloat16() * 10 for i in range(biases)
        )
        given = None if biases == 0 else bias[0] if biases == 1 else bias
        come = arrivals(r, ranks)
        for expand in (False, True):
            _, _, got_weights, handle, _ = b.dispatch(
                x, ids, weights, num_experts=EXPERTS, do_expand=expand, do_cpu_sync=sync, expert_alignment=4
            )
            if expand:
                y = torch.full((handle.num_expanded_tokens, HIDDEN), float("nan")).bfloat16()
                for i, (s, t) in enumerate(come):
                    for k, slot in enumerate(handle.recv_src_metadata[i, 2:].tolist()):
                        if slot >= 0:
                            y[slot] = output(s, 64)[t, k]
            else:
                y = torch.full((handle.num_recv_tokens, HIDDEN), float("nan")).bfloat16()
                for i, (s, t) in enumerate(come):
                    lanes = [k for k, e in enumerate(token_batch(s)[1][t]) if e >= 0 and e // local == r]
                    y[i] = ordered(output(s, 64)[t, lanes]).bfloat16()
            several = multiple or not expand
            home, home_weights, _ = b.combine(y, handle, got_weights if several else None, given)
            assert home.dtype == torch.bfloat16
            assert torch.equal(home, combined(r, ranks, bias, several)), (expand, multiple)
            if several:
                assert torch.equal(home_weights, weights)
            else:
                assert home_weights is None
                with pytest.raises(AssertionError, match="allow_multiple_reduction"):
                    b.combine(y, handle, got_weights)
            # Twice is the same, and so it is by a handle made of what another one has.
            made = deep_ep.EPHandle(*(getattr(handle, name) for name in inspect.signature(deep_ep.EPHandle).parameters))
            for by in (handle, made, copy.copy(handle)):
                assert torch.equal(b.combine(y, by, bias=given)[0], home)

    buffers(threads, ranks, rank, allow_multiple_reduction=multiple)


def test_fp8_there_and_bf16_home(threads):
    def rank(b):
        r, (x, ids, weights) = b.rank_idx, token_batch(b.rank_idx)
        (rows, scales), _, got_weights, handle, _ = b.dispatch(sent(r, "fp8"), ids, weights, num_experts=EXPERTS)
        assert scales.dtype == torch.float32
        y = torch.ones((rows.shape[0], HIDDEN), dtype=torch.bfloat16)
        home, home_weights, _ = b.combine(y, handle, topk_weights=got_weights)
        visits = torch.stack([((ids >= 0) & (ids // 6 == q)).any(1) for q in range(2)]).sum(0)
        assert torch.equal(home, visits[:, None].expand_as(x).bfloat16())
        assert torch.equal(home_weights, weights)

    buffers(threads, 2, rank)


def test_inference(threads):
    """In inference mode, with another default type, and out of it again."""

    def rank(b):
        x, ids, weights = token_batch(b.rank_idx)
        first = deep_ep.Buffer.from_communicator(b._comm)
        for inference in (True, False, True):
            with torch.inference_mode(inference):
                for expand in (False, True):
                    got, _, got_weights, handle, _ = b.dispatch(x, ids, weights, num_experts=EXPERTS, do_expand=expand)
                    home, home_weights, _ = b.combine(got, handle, got_weights)
                    assert home.dtype == torch.bfloat16
                    assert torch.equal(home_weights, weights)
                    assert handle.recv_src_metadata.dtype == torch.int32
                per_rank, _, per_expert, in_rank, _ = first.get_dispatch_layout(ids, EXPERTS)
                rows, _, got_weights, _, handle, _ = first.dispatch(
                    x, None, per_rank, None, in_rank, per_expert, ids, weights
                )
                home, home_weights, _ = first.combine(rows, handle, got_weights)
                assert torch.equal(home_weights, weights)
                assert len(list(handle)) == 6
                rows, _, handle, _, _ = first.low_latency_dispatch(x, ids, MOST, EXPERTS, use_fp8=False)
                first.get_next_low_latency_combine_buffer(handle)[:] = rows
                first.low_latency_combine(rows, ids, weights, handle, zero_copy=True)
                # Not one is a tensor of another mode.
                assert {t.is_inference() for t in (got, got_weights, home, rows)} == {inference}

    token_batch(0), token_batch(1)
    torch.set_default_dtype(torch.bfloat16)
    try:
        buffers(threads, 2, rank)
    finally:
        torch.set_default_dtype(torch.float32)


def test_handles_keep_their_topk_idx(threads):
    def rank(b):
        x, ids, _ = token_batch(b.rank_idx)
        ids = ids.clone()
        kept = b.dispatch(x, ids, num_experts=EXPERTS)[3]
        shown = b.dispatch(x, ids, num_experts=EXPERTS, do_handle_copy=False)[3]
        assert kept.topk_idx.data_ptr() != ids.data_ptr()
        assert shown.topk_idx.data_ptr() == ids.data_ptr()

    buffers(threads, 1, rank)


def test_no_tokens_at_all(threads):
    def rank(b):
        x, ids, weights = (
            torch.empty((0, HIDDEN), dtype=torch.bfloat16),
            torch.empty((0, TOPK), dtype=torch.int64),
            torch.empty((0, TOPK)),
        )
        for expand in (False, True):
            got, _, got_weights, handle, _ = b.dispatch(
                x, ids, weights, num_experts=EXPERTS, do_expand=expand, expert_alignment=16
            )
            assert got.shape == (0, HIDDEN)
            assert handle.recv_src_metadata.shape == (0, 2 + TOPK)
            home, home_weights, _ = b.combine(got, handle, got_weights)
            assert home.shape == (0, HIDDEN)
            assert home_weights.shape == (0, TOPK)

    buffers(threads, 2, rank)


def test_results_may_be_kept(threads):
    """Large ones show the library's memory, until it is used up."""

    def rank(b):
        x = torch.randn((64, 2048), generator=torch.Generator().manual_seed(b.rank_idx)).bfloat16()
        ids = torch.tensor([[0, 1]]).expand(64, 2).contiguous()
        first, *_, handle, _ = b.dispatch(x, ids, num_experts=2)
        want = [first.clone() + i for i in range(20)]
        kept = [b.dispatch(x + i, handle=handle)[0] for i in range(20)]
        for got, expected in zip(kept, want, strict=True):
            assert got.shape == expected.shape
        b.barrier()
        assert torch.equal(kept[0], first)
        assert len({k.data_ptr() for k in kept}) == 20
        exact = [b.dispatch(x + i, handle=handle)[0].clone() for i in range(20)]
        for got, expected in zip(kept, exact, strict=True):
            assert torch.equal(got, expected)
        del kept, got
        for _ in range(20):
            again = b.dispatch(x, handle=handle)[0]
        assert torch.equal(again, first)

    buffers(threads, 2, rank, num_max_tokens_per_rank=64)


def test_hammering(threads):
    """Many exchanges of changing shapes and modes, with refusals between, end as they should."""

    def rank(b):
        r = b.rank_idx
        for i in range(60):
            g = torch.Generator().manual_seed(1000 * i + r)
            tokens = int(torch.randint(0, MOST + 1, (1,), generator=g))
            k = 1 + i % 4
            ids = (
                torch.stack([torch.randperm(EXPERTS, generator=g)[:k] for _ in range(tokens)])
                if tokens
                else torch.empty((0, k), dtype=torch.int64)
            )
            x = torch.randint(-8, 9, (tokens, HIDDEN), generator=g).bfloat16()
            with pytest.raises(AssertionError):
                b.dispatch(x.float(), ids, num_experts=EXPERTS)
            got, _, _, handle, _ = b.dispatch(x, ids, num_experts=EXPERTS, do_expand=i % 3 == 0, do_cpu_sync=i % 2 == 0)
            home, _, _ = b.combine(got.clone(), handle)
            visits = (
                torch.stack([(ids // 6 == q).any(1) for q in range(2)]).sum(0) if i % 3 else torch.full((tokens,), k)
            )
            assert torch.equal(home, (x.float() * visits[:, None]).bfloat16())

    buffers(threads, 2, rank)


def test_a_dead_rank_is_named(threads):
    def rank(b):
        x, ids, _ = token_batch(b.rank_idx)
        _, _, _, handle, _ = b.dispatch(x, ids, num_experts=EXPERTS)
        if b.rank_idx == 1:
            b.destroy()
            gone.set()
            return
        gone.wait(20)
        with pytest.raises(weft.WeftError) as e:
            b.dispatch(x, handle=handle)
        assert e.value.rank == 1

    gone = threading.Event()
    buffers(threads, 2, rank, explicitly_destroy=True)


def test_refusals(threads):
    def rank(b):
        x, ids, weights = token_batch(b.rank_idx)
        ok = {"topk_idx": ids, "num_experts": EXPERTS}
        handle = b.dispatch(x, **ok)[3]
        for words, call in (
            ("takes topk_idx and num_experts", lambda: b.dispatch(x)),
            ("allocate_on_comm_stream", lambda: b.dispatch(x, **ok, previous_event=b.capture())),
            ("want torch.bfloat16", lambda: b.dispatch(x.float(), **ok)),
            ("want torch.float8_e4m3fn", lambda: b.dispatch((x, torch.ones(x.shape[0], 2)), **ok)),
            ("4 bytes each", lambda: b.dispatch((x.to(torch.float8_e4m3fn), torch.ones(x.shape[0], 2).half()), **ok)),
            ("want contiguous", lambda: b.dispatch(x.t(), **ok)),
            ("at most 3 tokens", lambda: b.dispatch(x, **ok, num_max_tokens_per_rank=3)),
            ("not of the shape", lambda: b.dispatch(x, **ok, topk_weights=weights[:, :2])),
            ("do_zero_padding", lambda: b.dispatch(x, **ok, do_zero_padding=True)),
            ("takes no topk_idx", lambda: b.dispatch(x, ids, handle=handle)),
            ("leave do_cpu_sync out", lambda: b.dispatch(x, handle=handle, do_cpu_sync=True)),
            ("the handle has", lambda: b.dispatch(x, handle=handle, num_experts=24)),
            ("do_expand is True", lambda: b.dispatch(x, handle=handle, do_expand=True)),
            ("3 tokens, and the handle has", lambda: b.dispatch(x[:3], handle=handle)),
            ("of the handle's tokens", lambda: b.dispatch(x, handle=handle, topk_weights=weights[:3])),
            ("want 1 or more", lambda: b.dispatch(x, **ok, expert_alignment=0)),
            ("power of two", lambda: b.dispatch(x, **ok, expert_alignment=48, do_expand=True)),
            (
                "recv_stats",
                lambda: b.dispatch(x, **ok, cumulative_local_expert_recv_stats=torch.zeros(4, dtype=torch.int32)),
            ),
            (
                "recv_stats",
                lambda: b.dispatch(x, handle=handle, cumulative_local_expert_recv_stats=torch.zeros(EXPERTS)),
            ),
            ("bias: ", lambda: b.combine(x, handle, bias=x.float())),
            ("bias: ", lambda: b.combine(x, handle, bias=(x, x[:2]))),
            ("topk_weights: ", lambda: b.combine(x, handle, topk_weights=weights[:2])),
            ("2 rows, and", lambda: b.combine(x[:2], handle)),
            ("want torch.bfloat16", lambda: b.combine(x.float(), handle)),
            ("want an EPHandle", lambda: b.combine(x, None)),
            ("want an EPHandle", lambda: b.dispatch(x, handle=(1, 2))),
            ("a pair of", lambda: b.dispatch((x, x, x), **ok)),
            ("at most 2", lambda: b.combine(x, handle, bias=(x, x, x))),
            ("explicitly_destroy", b.destroy),
            ("several nodes", lambda: b.get_theoretical_num_sms(EXPERTS, 2, num_scaleout_topk=1)),
        ):
            with pytest.raises(AssertionError, match=words):
                call()
        for name, arguments in (
            ("engram_write", (x,)),
            ("engram_fetch", (ids,)),
            ("get_engram_storage_size_hint", (1, 2, 3)),
            ("pp_set_config", (1, 2)),
            ("pp_send", (x, 0)),
            ("pp_recv", (x, 0)),
            ("get_pp_buffer_size_hint", (1, 2)),
            ("create_agrs_session", ()),
            ("destroy_agrs_session", ()),
            ("agrs_set_config", (1, 2)),
            ("agrs_get_inplace_tensor", ((1, 2), torch.bfloat16)),
            ("all_gather", (x,)),
            ("get_agrs_num_max_session_bytes", (None, (1, 2), torch.bfloat16)),
            ("get_agrs_buffer_size_hint", (None, 1)),
        ):
            with pytest.raises(weft.UnsupportedError, match=f"{name}: "):
                getattr(b, name)(*arguments)
        with pytest.raises(weft.UnsupportedError, match="agrs_new_session"), b.agrs_new_session():
            pass
        with b.agrs_new_session(enabled=False):
            pass
        # After all that exchanges go on.
        assert b.dispatch(x, **ok)[0].shape == (len(arrivals(0, 1)), HIDDEN)

    buffers(threads, 1, rank)
    with pytest.raises(AssertionError, match="no group"):
        deep_ep.ElasticBuffer(None)


def test_numbers(threads):
    def rank(b):
        assert b.get_physical_domain_size() == b.get_logical_domain_size() == (1, 2)
        assert (b.num_scaleout_ranks, b.num_scaleup_ranks, b.scaleout_rank_idx, b.scaleup_rank_idx) == (
            1,
            2,
            0,
            b.rank_idx,
        )
        # Half of what 2 ranks send crosses: 405 GB/s of links are 810 of rows, which 50 GB/s a
        # multiprocessor write.
        assert b.get_theoretical_num_sms(256, 6, nvlink_gbs=405) == align(-(-405 * 2 * 1.25 // 50), 2)
        assert b.get_theoretical_num_sms(256, 6, nvlink_gbs=1) == 4
        assert b.get_theoretical_num_qps(4) == min(65, b.num_allocated_qps)
        b.barrier()
        b.barrier(use_comm_stream=False, with_cpu_sync=True, sequential=False)

    buffers(threads, 2, rank)

    class Group:
        def size(self):
            return 8

    hint = deep_ep.ElasticBuffer.get_buffer_size_hint
    assert hint(Group(), 4096, 7168, 6) % (2 << 20) == 0
    assert hint(Group(), 4096, 7168, 6) >= 8 * 4096 * (2 * 7168 + 6 * 12)
    assert hint(Group(), 4096, 7168, 6, allow_multiple_reduction=False) >= 6 * 4096 * 2 * 7168
    assert hint(Group(), 4096, 7168, 6, use_fp8_dispatch=True) < hint(Group(), 4096, 7168, 6)


def test_names():
    from deep_ep.buffers.elastic import ElasticBuffer, EPHandle
    from deep_ep.buffers.legacy import Buffer

    assert (ElasticBuffer, EPHandle, Buffer) == (deep_ep.ElasticBuffer, deep_ep.EPHandle, deep_ep.Buffer)


def test_process_group(torch_processes):
    for ended in torch_processes(2, "deep_ep_elastic"):
        assert (ended.code, ended.out) == (0, "ok\n"), ended.out


@pytest.mark.parametrize("ranks", [2, 4] if EVERYTHING else [2])
def test_references(torch_processes, ranks):
    for ended in torch_processes(ranks, "deep_ep_references"):
        assert (ended.code, ended.out) == (0, "ok\n"), ended.out


def test_sums_of_domains():
    """Sums of a rank's selections, then of a domain's, each rounded where the last of them is, and then
    all in order."""
    from deep_ep.utils import refs

    y = torch.tensor([256.0, 1.0, 1.0, 1.0, 3.0, 0.5]).bfloat16().view(1, 6, 1)
    ids = torch.tensor([[0, 4, 1, 2, 6, -1]])  # of 8 experts on 4 ranks, two a domain
    y[:, 5] = 0
    # Ranks: 0 has 256 + 1 (256 in bfloat16), 1 has 1, 2 has 1, 3 has 3; domains: 256 + 1 (256), 1 +
    # 3.
    assert refs.combine(y, ids, 2, 2, 8, None, True, True).item() == 260
    assert refs.combine(y, ids, 2, 2, 8, None, True, False).item() == 260  # 261
    assert refs.combine(y, ids, 2, 2, 8, torch.ones(1, 1).bfloat16(), False, False).item() == 264  # 263


@pytest.mark.parametrize("ratio", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_gate(ranks, ratio):
    from deep_ep.utils.gate import get_unbalanced_scores

    torch.manual_seed(1)
    for local, topk, precise in itertools.product((1, 4, 8), (1, 2, 6, 8), (True, False)):
        if topk > local * ranks:
            continue
        if precise and max(1, -(-topk // local)) > min(topk, ranks, int((ranks - 1) / ratio) + 1):
            with pytest.raises(ValueError, match="smaller ratio"):
                get_unbalanced_scores(4, local * ranks, ranks, topk, ratio, True)
            continue
        assert get_unbalanced_scores(0, local * ranks, ranks, topk, ratio, precise).shape == (0, local * ranks)
        assert (get_unbalanced_scores(9, local * ranks, ranks, topk, ratio, precise) >= 0).all()
        total = torch.tensor(deep_ep_utils.gate(1000, local, ranks, topk, ratio, precise, 4)[1])
        if precise:
            assert abs(total[0] / total[1:].mean() / ratio - 1) < 0.02, (local, topk)
            assert total[1:].max() <= 1.02 * total[1:].min(), (local, topk)
        elif ratio == 1:
            assert total.max() < 1.6 * total.min()
        elif topk == 1:  # more selections may not leave so much room
            assert abs(total[0] / total[1:].mean() / ratio - 1) < 0.2, (local, topk)


@pytest.mark.parametrize("precise", [True, False])
def test_gate_waits_for_nothing(precise):
    """Scores on a GPU are made without a number of its that the host waits for."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from deep_ep.utils.gate import get_unbalanced_scores

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            assert function.overloadpacket._qualified_op_name not in (
                "aten::_local_scalar_dense",
                "aten::nonzero",
                "aten::equal",
            )
            return function(*arguments, **(options or {}))

    with Calls():
        assert get_unbalanced_scores(64, 32, 8, 3, 2.0, precise).shape == (64, 32)


def test_handles_are_their_owners(threads):
    """What a caller does to the tensors of a handle is nobody else's affair, and a handle may be
    copied, with its contents or without."""

    def rank(b):
        x, ids, weights = token_batch(b.rank_idx)
        for expand in (False, True):
            got, _, _, handle, _ = b.dispatch(x, ids, weights, num_experts=EXPERTS, do_expand=expand)
            counts = handle.num_unaligned_recv_tokens_per_expert.tolist()
            handle.num_unaligned_recv_tokens_per_expert.zero_()
            stats = torch.zeros(len(counts), dtype=torch.int32)
            b.dispatch(x, handle=handle, do_expand=expand, cumulative_local_expert_recv_stats=stats)
            assert stats.tolist() == counts
            assert handle.psum_num_recv_tokens_per_expert.tolist() == list(itertools.accumulate(counts))
            home = b.combine(got, handle)[0]
            for other in (copy.copy(handle), copy.deepcopy(handle), pickle.loads(pickle.dumps(handle))):
                assert torch.equal(other.recv_src_metadata, handle.recv_src_metadata)
                assert torch.equal(b.combine(got, other)[0], home)

    buffers(threads, 2, rank)


@pytest.mark.parametrize("sync", [True, False])
def test_few_handles(threads, sync):
    """Other numbers of tokens than the buffer's, and other alignments, share handles; arrays are of
    what was asked for."""

    def rank(b):
        x, ids, weights = token_batch(b.rank_idx)
        for expand in (False, True):
            for most in (*range(34, 49), MOST):
                alignment = 1 if expand else 1 + most % 3
                got, got_ids, got_weights, handle, _ = b.dispatch(
                    x,
                    ids,
                    weights,
                    num_experts=EXPERTS,
                    num_max_tokens_per_rank=most,
                    expert_alignment=alignment,
                    do_expand=expand,
                    do_cpu_sync=sync,
                )
                rows = handle.num_expanded_tokens if expand else handle.num_recv_tokens
                assert rows == (len(got) if sync else 2 * most * min(TOPK, EXPERTS // 2) if expand else 2 * most)
                assert got_weights.shape[0] == len(got) == rows
                assert expand or len(got_ids) == rows
                assert handle.recv_src_metadata.shape == (handle.num_recv_tokens, 2 + TOPK)
                if expand:
                    got[got_weights == 0] = 0  # what is not there holds anything
                home, home_weights, _ = b.combine(got, handle, got_weights)
                assert torch.equal(home_weights, weights)
                times = (
                    (ids >= 0).sum(1)
                    if expand
                    else torch.stack([((ids >= 0) & (ids // 6 == q)).any(1) for q in range(2)]).sum(0)
                )
                torch.testing.assert_close(home.float(), x.float() * times[:, None], rtol=0.02, atol=0.02)
        assert len(b._exchanges._handles) == 4

    token_batch(0), token_batch(1)
    buffers(threads, 2, rank)


def test_types(threads):
    def rank(b):
        x, ids, weights = token_batch(b.rank_idx)
        got_ids = b.dispatch(x, ids.int(), weights, num_experts=EXPERTS)[1]
        assert got_ids.dtype == torch.int32
        rows = x.to(torch.float8_e4m3fn), torch.ones((len(x), 6), dtype=torch.int32)  # six words a token
        for expand in (False, True):
            (_, scales), *_ = b.dispatch(rows, ids, weights, num_experts=EXPERTS, do_expand=expand)
            assert scales.is_contiguous()

    buffers(threads, 2, rank)
