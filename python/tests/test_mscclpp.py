"""MSCCL++'s interface of expert parallelism against what its documentation says, in plain tensors."""

from __future__ import annotations

import copy
import functools
import gc
import io
import pickle
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")

import original  # noqa: E402

import mscclpp  # noqa: E402
import mscclpp_ep_cpp  # noqa: E402
from mscclpp.ext import ep  # noqa: E402
from weft._buffer import traces  # noqa: E402

EXPERTS, TOPK, HIDDEN = 8, 3, 256


@functools.cache
def token_batch(rank, hidden=HIDDEN, experts=EXPERTS, topk=TOPK):
    """A rank's tokens, their experts with some missing, and weights; another number on each rank, and
    none on rank 2."""
    g = torch.Generator().manual_seed(100 + rank)
    tokens = 0 if rank == 2 else 17 + 4 * rank
    ids = (
        torch.stack([torch.randperm(experts, generator=g)[:topk] for _ in range(tokens)])
        if tokens
        else torch.empty((0, topk), dtype=torch.int64)
    )
    ids[torch.rand(ids.shape, generator=g) < 0.15] = -1
    if tokens:
        ids[tokens // 2] = -1  # a token that goes nowhere
    weights = torch.rand((tokens, topk), generator=g)
    return torch.randn((tokens, hidden), generator=g).bfloat16(), ids, weights


def buffers(threads, ranks, function):
    """Runs a function of a buffer on so many ranks."""

    def rank(c):
        return function(ep.Buffer.from_communicator(c))

    return threads(ranks, rank)


def dispatched(dispatch, layout, x, ids, weights):
    """What a raw call gives that sends rows without scales, and waits."""
    end = (0, None, None, 1, ep.Config(), None, False, False)
    return dispatch(x, None, ids, weights, layout[0], layout[3], layout[2], *end)


def quantised(x):
    """Rows in float8 and their scales, as the documentation has it."""
    blocks = x.float().view(x.shape[0], x.shape[1] // 128, 128)
    largest = blocks.abs().amax(2, keepdim=True).clamp(1e-4)
    multiplier = torch.full_like(largest, 448) / largest  # a number over a tensor is rounded twice
    return (blocks * multiplier).to(torch.float8_e4m3fn).view(x.shape), (largest / 448).squeeze(2)


def summed(rows_of, ids, weights, hidden):
    """The weighted sums: fp32 fused multiply-adds in the order of the selections, rounded once."""
    out = torch.zeros((ids.shape[0], hidden))
    for t in range(ids.shape[0]):
        for k in range(ids.shape[1]):
            if ids[t, k] >= 0:
                # float64 holds the product of a bfloat16 and a float32.
                out[t] = (out[t].double() + rows_of(int(ids[t, k]), t).double() * weights[t, k].double()).float()
    return out.bfloat16()


def expert_output(e, row):
    return (row.float() * (e % 5 + 1) / 4).bfloat16()


def given_tensors(local, places, ranks, hidden, fp8):
    """What a caller may give, filled with something else."""
    return (
        torch.full((local, places, hidden), 7, dtype=torch.float8_e4m3fn if fp8 else torch.bfloat16),
        torch.full((local, hidden // 128, places), 7.0).transpose(1, 2) if fp8 else None,
        torch.full((local, places), 77, dtype=torch.int32),
        torch.full((local, ranks), 77, dtype=torch.int64),
        torch.full((local,), 77, dtype=torch.int32),
    )


@pytest.mark.parametrize("how", ["plain", "async", "hook"])
@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_low_latency(threads, ranks, fp8, how):
    most, local = 40, EXPERTS // ranks

    def dispatch(b, x, ids, given):
        got = b.low_latency_dispatch(x, ids, most, EXPERTS, fp8, how == "async", how == "hook", *given)
        *tensors, event, hook = got
        if how == "hook":
            hook()
        else:
            assert hook is None
        if how == "async":
            event.current_stream_wait()
        else:
            assert event is None
        return tensors

    def rank(b):
        r, (x, ids, weights) = b.rank, token_batch(b.rank)
        mine = given_tensors(local, ranks * most, ranks, HIDDEN, fp8)
        # Results may be kept: both are looked at when both are there.
        for given, (rows, scales, counts, sources, ranges) in [
            (given, dispatch(b, x, ids, given)) for given in ((), mine)
        ]:
            if given:
                for got, own in zip((rows, scales, sources, ranges, counts), given, strict=True):
                    assert got is own
            assert (rows.shape, rows.dtype) == (
                (local, ranks * most, HIDDEN),
                torch.float8_e4m3fn if fp8 else torch.bfloat16,
            )
            assert (counts.shape, counts.dtype) == ((local,), torch.int32)
            assert (sources.shape, sources.dtype) == ((local, ranks * most), torch.int32)
            assert (ranges.shape, ranges.dtype) == ((local, ranks), torch.int64)
            if fp8:
                assert (scales.shape, scales.dtype, scales.stride(1)) == (
                    (local, ranks * most, HIDDEN // 128),
                    torch.float32,
                    1,
                )
            else:
                assert scales is None
            y = torch.full((local, ranks * most, HIDDEN), float("nan"), dtype=torch.bfloat16)
            for e in range(local):
                come = [
                    (s, t)
                    for s in range(ranks)
                    for t, row in enumerate(token_batch(s)[1])
                    if (row == r * local + e).any()
                ]
                assert int(counts[e]) == len(come)
                begin = 0
                for s in range(ranks):
                    n = sum(q == s for q, _ in come)
                    assert int(ranges[e, s]) == begin << 32 | n
                    begin += n
                assert sources[e, : len(come)].tolist() == [t for _, t in come]
                for i, (s, t) in enumerate(come):
                    theirs = token_batch(s)[0][t]
                    if fp8:
                        want, want_scales = quantised(theirs[None])
                        assert torch.equal(rows[e, i].view(torch.uint8), want[0].view(torch.uint8))
                        assert torch.equal(scales[e, i], want_scales[0])
                    else:
                        assert torch.equal(rows[e, i], theirs)
                    y[e, i] = expert_output(r * local + e, theirs)
            want = summed(lambda e, t: expert_output(e, x[t]), ids, weights, HIDDEN)
            for zero_copy in (False, True):
                if zero_copy:
                    b.get_next_low_latency_combine_buffer(most, HIDDEN, EXPERTS)[:] = y
                for out in (None, torch.full_like(x, float("nan"))):
                    passed = (sources, ranges, most, EXPERTS, zero_copy, how == "async", how == "hook")
                    home, event, hook = b.low_latency_combine(y, ids, weights, *passed, *([] if out is None else [out]))
                    assert (event is None, hook is None) == (how != "async", how != "hook")
                    if how == "hook":
                        hook()
                    assert out is None or home is out
                    assert torch.equal(home, want)

    buffers(threads, ranks, rank)


@pytest.mark.parametrize(
    ("ranks", "tokens", "hidden", "topk", "per_rank"),
    [(2, 64, 1024, 4, 4), (4, 64, 512, 4, 4), (2, 1, 256, 1, 1), (4, 33, 384, 9, 16), (1, 17, 7168, 2, 3)],
)
def test_as_the_original_tests(threads, ranks, tokens, hidden, topk, per_rank):
    """Rows that say whose they are, identity experts, sums against x * sum of weights, with the
    original's absolute bound."""
    buffers(threads, ranks, lambda b: original.low_latency(b, tokens, hidden, topk, per_rank))


def test_nothing_to_send(threads):
    """No rank has tokens, or none selects anything."""

    def rank(b):
        for x, ids in (
            (torch.empty((0, HIDDEN), dtype=torch.bfloat16), torch.empty((0, 2), dtype=torch.int64)),
            (torch.ones((5, HIDDEN), dtype=torch.bfloat16), torch.full((5, 2), -1)),
        ):
            weights = torch.ones(ids.shape)
            rows, _, counts, sources, ranges, _, _ = b.low_latency_dispatch(x, ids, 8, EXPERTS, False, False, False)
            assert counts.tolist() == [0] * (EXPERTS // 2)
            assert (ranges & 0xFFFFFFFF == 0).all()
            home, _, _ = b.low_latency_combine(rows, ids, weights, sources, ranges, 8, EXPERTS, False, False, False)
            assert torch.equal(home, torch.zeros_like(x))
            layout = b.get_dispatch_layout(ids, EXPERTS)
            got = dispatched(b.runtime.intranode_dispatch, layout, x, ids, weights)
            assert got[0].shape == (0, HIDDEN)
            assert got[4] == [0] * (EXPERTS // 2)
            home, _, _ = b.runtime.intranode_combine(
                got[0], got[3], got[8], got[5], got[7], got[9], ep.Config(), None, False, False
            )
            assert torch.equal(home, torch.zeros_like(x))

    buffers(threads, 2, rank)


def test_selections_left_out_of_the_combine(threads):
    """A combine whose topk_idx says -1 where the dispatch's did not leaves that expert out, and finds
    the other rows."""

    def rank(b):
        x, ids, weights = token_batch(b.rank)
        rows, _, _, sources, ranges, _, _ = b.low_latency_dispatch(x, ids, 40, EXPERTS, False, False, False)
        fewer = ids.clone()
        fewer[::2, 0] = -1
        home, _, _ = b.low_latency_combine(rows, fewer, weights, sources, ranges, 40, EXPERTS, False, False, False)
        assert torch.equal(home, summed(lambda _, t: x[t], fewer, weights, HIDDEN))
        turned, of_turned = fewer.flip(1).contiguous(), weights.flip(1).contiguous()
        again, _, _ = b.low_latency_combine(rows, turned, of_turned, sources, ranges, 40, EXPERTS, False, False, False)
        assert torch.equal(again, home)

    buffers(threads, 2, rank)


def test_a_hook_that_is_lost(threads):
    """The next exchange of its kind receives what it was to."""

    def rank(b):
        x, ids, weights = token_batch(b.rank)
        for _ in range(2):
            b.low_latency_dispatch(x, ids, 40, EXPERTS, False, False, True)
            rows, _, _, sources, ranges, _, receive = b.low_latency_dispatch(x, ids, 40, EXPERTS, False, False, True)
            receive()
            combining = rows, ids, weights, sources, ranges, 40, EXPERTS, False, False
            b.low_latency_combine(*combining, True)
            home, _, receive = b.low_latency_combine(*combining, True)
            receive()
            assert torch.equal(home, summed(lambda _, t: x[t], ids, weights, HIDDEN))

    buffers(threads, 2, rank)


LAYOUT_TYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn]


@pytest.mark.parametrize("with_topk", [True, False])
@pytest.mark.parametrize("dtype", LAYOUT_TYPES, ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_intranode(threads, ranks, dtype, with_topk):
    local, fp8 = EXPERTS // ranks, dtype == torch.float8_e4m3fn

    def sent(r):
        x = token_batch(r)[0]
        return quantised(x) if fp8 else (x.to(dtype), None)

    def visits(r):
        ids = token_batch(r)[1]
        return torch.stack([((ids >= 0) & (ids // local == q)).any(1) for q in range(ranks)], 1)

    def rank(b):
        r, (_, ids, weights) = b.rank, token_batch(b.rank)
        per_rank, per_node, per_expert, in_rank, event = b.runtime.get_dispatch_layout(ids, EXPERTS, None, False, False)
        assert (per_node, event) == (None, None)
        assert torch.equal(in_rank, visits(r))
        assert torch.equal(per_rank, in_rank.sum(0).int())
        assert torch.equal(per_expert, torch.stack([(ids == e).sum() for e in range(EXPERTS)]).int())
        come = [(s, t) for s in range(ranks) for t in visits(s)[:, r].nonzero().flatten().tolist()]
        rows, scales = sent(r)
        config = ep.Config(8, 8, 256)
        topk = (ids, weights) if with_topk else (None, None)
        got = b.runtime.intranode_dispatch(
            rows, scales, *topk, per_rank, in_rank, per_expert, 0, None, None, 4, config, None, True, False
        )
        (
            recv_x,
            recv_scales,
            recv_ids,
            recv_weights,
            counts,
            prefix,
            channel_prefix,
            recv_channel_prefix,
            sources,
            heads,
            event,
        ) = got
        event.current_stream_wait()
        assert recv_x.dtype == dtype
        assert recv_x.shape == (len(come), HIDDEN)
        for i, (s, t) in enumerate(come):
            theirs, their_scales = sent(s)
            assert torch.equal(recv_x[i].view(torch.uint8), theirs[t].view(torch.uint8))
            assert not fp8 or torch.equal(recv_scales[i], their_scales[t])
        assert fp8 or recv_scales is None
        selected = [sum(int((token_batch(s)[1] == r * local + e).sum()) for s in range(ranks)) for e in range(local)]
        assert counts == [-(-n // 4) * 4 for n in selected]
        assert torch.equal(prefix, torch.stack([visits(s).sum(0) for s in range(ranks)]).cumsum(0).int())
        assert (channel_prefix.shape, recv_channel_prefix.shape) == ((ranks, 4), (ranks, 4))
        assert torch.equal(channel_prefix[:, -1], per_rank)
        assert (recv_channel_prefix[:, 0] == 0).all()
        assert sources.tolist() == [t for _, t in come]
        assert torch.equal(heads >= 0, in_rank)
        assert all(m.dtype == torch.int32 for m in (prefix, channel_prefix, recv_channel_prefix, sources, heads))
        if with_topk:
            assert (recv_ids.dtype, recv_weights.dtype) == (torch.int64, torch.float32)
            for i, (s, t) in enumerate(come):
                _, theirs, their_weights = token_batch(s)
                here = (theirs[t] >= 0) & (theirs[t] // local == r)
                assert torch.equal(recv_ids[i], torch.where(here, theirs[t] - r * local, -1))
                assert torch.equal(recv_weights[i], torch.where(here, their_weights[t], 0))
        else:
            assert (recv_ids, recv_weights) == (None, None)
        # By the cached matrices, and then home, where every rank's row is added in fp32 and the sum
        # rounded once.
        cached = len(come), prefix, channel_prefix, 1, config, None, False, False
        again = b.runtime.intranode_dispatch(rows, scales, None, None, None, in_rank, None, *cached)
        assert torch.equal(again[0].view(torch.uint8), recv_x.view(torch.uint8))
        assert again[2:5] == (None, None, [])
        assert again[5] is prefix
        assert all(torch.equal(*pair) for pair in zip(again[6:10], got[6:10], strict=True))
        if fp8:
            with pytest.raises(RuntimeError, match="rows are summed"):
                b.runtime.intranode_combine(
                    recv_x, None, sources, prefix, recv_channel_prefix, heads, config, None, False, False
                )
        back = recv_x.to(torch.bfloat16) if fp8 else recv_x
        for handle in (got, again):
            home, home_weights, event = b.runtime.intranode_combine(
                back, recv_weights, handle[8], handle[5], handle[7], handle[9], config, None, False, False
            )
            assert event is None
            mine = rows.to(torch.bfloat16) if fp8 else rows
            assert torch.equal(home, (mine.float() * in_rank.sum(1, keepdim=True)).to(home.dtype))
            assert (
                home_weights is None if not with_topk else torch.equal(home_weights, torch.where(ids >= 0, weights, 0))
            )

    buffers(threads, ranks, rank)


def test_both_kinds_together(threads):
    """Exchanges of both kinds, and of several sizes, follow each other; a dispatch may be received
    before or after another of its kind."""

    def rank(b):
        x, ids, weights = token_batch(b.rank)
        layout = b.get_dispatch_layout(ids, EXPERTS)
        for most in (32, 40, 32):
            rows, _, _, sources, ranges, _, hook = b.low_latency_dispatch(x, ids, most, EXPERTS, False, False, True)
            b.clean_low_latency_buffer(most, HIDDEN, EXPERTS)
            got = dispatched(b.intranode_dispatch, layout, x, ids, weights)
            hook()
            home, _, hook = b.low_latency_combine(
                rows, ids, weights, sources, ranges, most, EXPERTS, False, False, True
            )
            plain, _, _ = b.intranode_combine(
                got[0], None, got[8], got[5], got[7], got[9], ep.Config(), None, False, False
            )
            hook()
            assert torch.equal(home, summed(lambda _, t: x[t], ids, weights, HIDDEN))
            assert torch.equal(plain, (x.float() * layout[3].sum(1, keepdim=True)).bfloat16())

    buffers(threads, 2, rank)


X, IDS, WEIGHTS = token_batch(0)
LOCAL_ROWS = (EXPERTS, 40, HIDDEN)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x": X.float()}, "x: type torch.float32, want torch.bfloat16"),
        ({"x": X.t().contiguous().t()}, "x: shape .* contiguous"),
        ({"x": X[0]}, "x: shape .* want 2 dimensions"),
        ({"x": X[:, :12].contiguous()}, "x: a row has 24 bytes, want a multiple of 16"),
        ({"x": X[:5]}, "x: 5 tokens, and topk_idx 17"),
        ({"topk_idx": IDS.int()}, "topk_idx: type torch.int32, want torch.int64"),
        ({"topk_idx": IDS[:, ::2]}, "topk_idx: shape .* contiguous"),
        ({"most": 3}, "17 tokens, and num_max_dispatch_tokens_per_rank is 3"),
        ({"async_finish": True, "hook": True}, "exclude each other"),
        ({"given": (torch.empty(LOCAL_ROWS),)}, "packed_recv_x as given: torch.float32"),
        (
            {"given": (torch.empty((EXPERTS, 39, HIDDEN), dtype=torch.bfloat16),)},
            "packed_recv_x as given: .* want .*40, 256",
        ),
        (
            {"given": (torch.empty((HIDDEN, 40, EXPERTS), dtype=torch.bfloat16).transpose(0, 2),)},
            "packed_recv_x as given: strides",
        ),
        ({"given": (None, torch.empty((EXPERTS, 2, 40))), "fp8": True}, "packed_recv_x_scales as given"),
        ({"given": (None, None, torch.empty((EXPERTS, 40)))}, "packed_recv_src_info as given"),
        (
            {"given": (None, None, None, torch.empty((EXPERTS, 2), dtype=torch.int64))},
            "packed_recv_layout_range as given",
        ),
        ({"given": (None, None, None, None, torch.empty(EXPERTS, dtype=torch.int64))}, "packed_recv_count as given"),
        (
            {"given": (torch.empty(LOCAL_ROWS, dtype=torch.bfloat16, device="meta"),)},
            "packed_recv_x as given: .* on meta",
        ),
    ],
)
def test_dispatches_that_are_refused(comm, changed, words):
    b = ep.Buffer.from_communicator(comm)

    def dispatch(x=X, topk_idx=IDS, most=40, fp8=False, async_finish=False, hook=False, given=()):
        return b.low_latency_dispatch(x, topk_idx, most, EXPERTS, fp8, async_finish, hook, *given)

    with pytest.raises(mscclpp_ep_cpp.ContractError, match=words):
        dispatch(**changed)
    dispatch()  # and goes on


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x": torch.zeros(LOCAL_ROWS)}, "x: type torch.float32, want torch.bfloat16"),
        ({"x": torch.zeros((EXPERTS, 41, HIDDEN), dtype=torch.bfloat16)}, "x of shape .*41.* want .*40"),
        ({"topk_idx": IDS[:3], "topk_weights": WEIGHTS[:3]}, "topk_idx of shape .* the dispatch's"),
        ({"topk_idx": torch.where(IDS == 1, 2, IDS)}, "selects other experts"),
        ({"topk_weights": WEIGHTS.double()}, "topk_weights: type torch.float64"),
        ({"topk_weights": WEIGHTS.t().contiguous().t()}, "topk_weights: shape .* contiguous"),
        ({"src_info": torch.zeros((EXPERTS, 40))}, "src_info: type"),
        ({"src_info": torch.zeros((EXPERTS, 4), dtype=torch.int32)}, "src_info of"),
        (
            {"layout_range": torch.zeros((EXPERTS, 1), dtype=torch.int64)},
            "layout_range was not returned by low_latency_dispatch",
        ),
        ({"most": 41}, "want .* for the dispatch's 40"),
        ({"experts": 2 * EXPERTS}, "16 experts, want"),
        ({"out": torch.zeros(17, HIDDEN)}, "out: type"),
        ({"out": torch.zeros((16, HIDDEN), dtype=torch.bfloat16)}, "out: shape"),
        ({"out": torch.zeros((HIDDEN, 17), dtype=torch.bfloat16).t()}, "out: shape .* contiguous"),
        ({"async_finish": True, "hook": True}, "exclude each other"),
    ],
)
def test_combines_that_are_refused(comm, changed, words):
    b = ep.Buffer.from_communicator(comm)
    rows, _, _, sources, ranges, _, _ = b.low_latency_dispatch(X, IDS, 40, EXPERTS, False, False, False)

    def combine(
        x=rows,
        topk_idx=IDS,
        topk_weights=WEIGHTS,
        src_info=sources,
        layout_range=ranges,
        most=40,
        experts=EXPERTS,
        async_finish=False,
        hook=False,
        out=None,
    ):
        return b.low_latency_combine(
            x, topk_idx, topk_weights, src_info, layout_range, most, experts, False, async_finish, hook, out
        )

    with pytest.raises(mscclpp_ep_cpp.ContractError, match=words):
        combine(**changed)
    assert torch.equal(combine()[0], summed(lambda _, t: X[t], IDS, WEIGHTS, HIDDEN))


def test_normal_exchanges_that_are_refused(comm):
    b = ep.Buffer.from_communicator(comm).runtime
    per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(IDS, EXPERTS, None, False, False)
    config = ep.Config(8)

    def dispatch(
        x=X,
        scales=None,
        ids=IDS,
        weights=WEIGHTS,
        rank=per_rank,
        there=in_rank,
        expert=per_expert,
        cached=(0, None, None),
        by=config,
        end=(None, False, False),
    ):
        return b.intranode_dispatch(x, scales, ids, weights, rank, there, expert, *cached, 1, by, *end)

    got = dispatch()
    n, prefix, channels = got[0].shape[0], got[5], got[6]
    for changed, words in (
        ({"x": X.double()}, "x: type torch.float64"),
        ({"x": X.t().contiguous().t()}, "want contiguous"),
        ({"weights": None}, "go together"),
        ({"weights": WEIGHTS.double()}, "topk_weights: type"),
        ({"ids": IDS.int()}, "topk_idx: type"),
        ({"there": in_rank.int()}, "is_token_in_rank: type"),
        ({"rank": None}, "get_dispatch_layout"),
        ({"by": ep.Config(7)}, "num_sms is 7"),
        ({"end": (None, False, True)}, "previous_event and async"),
        ({"cached": (n, prefix, channels)}, "takes no topk_idx"),
        (
            {"cached": (n, prefix.clone(), channels), "ids": None, "weights": None},
            "cached_rank_prefix_matrix was not returned by intranode_dispatch",
        ),
        ({"cached": (n + 1, prefix, channels), "ids": None, "weights": None}, "are to come by cached matrices"),
        (
            {"cached": (n, prefix, channels), "ids": None, "weights": None, "by": ep.Config(16)},
            "8 channels .* are of 4",
        ),
        ({"cached": (n, prefix, None), "ids": None, "weights": None}, "goes with"),
    ):
        with pytest.raises(RuntimeError, match=words):
            dispatch(**changed)

    def combine(x=got[0], weights=None, sources=got[8], by=prefix, received=got[7], heads=got[9], config=config):
        return b.intranode_combine(x, weights, sources, by, received, heads, config, None, False, False)

    for changed, words in (
        ({"x": got[0][:1]}, "x: 1 rows"),
        ({"sources": got[8].long()}, "src_idx: type"),
        ({"by": prefix.clone()}, "rank_prefix_matrix was not returned by intranode_dispatch"),
        ({"received": got[7][:, :1]}, "are not of the dispatch"),
        ({"heads": got[9][:1]}, "are not of the dispatch"),
        ({"config": ep.Config(16)}, "are not of the dispatch"),
        ({"weights": got[3].double()}, "topk_weights: type"),
    ):
        with pytest.raises(mscclpp_ep_cpp.ContractError, match=words):
            combine(**changed)
    assert torch.equal(combine()[0], (X.float() * in_rank.sum(1, keepdim=True)).bfloat16())


def test_what_is_not_there(comm):
    b = ep.Buffer.from_communicator(comm)
    with pytest.raises(RuntimeError, match="no NVSHMEM"):
        b.get_local_nvshmem_unique_id()
    with pytest.raises(AttributeError, match="in its place for the rest"):
        _ = mscclpp.SwitchChannel


def test_meeting_by_a_unique_id():
    """Ranks that meet as MSCCL++'s own Buffer makes them."""
    ranks, ids, results = 3, [], []
    made = threading.Event()

    def rank(r):
        b = mscclpp_ep_cpp.Buffer(r, ranks, 256, 0, True)
        assert not b.is_available()
        with pytest.raises(mscclpp_ep_cpp.ContractError, match="have not met"):
            b.low_latency_dispatch(X, IDS, 40, EXPERTS, False, False, False)
        with pytest.raises(mscclpp_ep_cpp.ContractError, match="no unique id"):
            b.sync([0] * ranks, [b.get_local_ipc_handle()] * ranks)
        if r == 0:
            ids.append(mscclpp_ep_cpp.UniqueId.from_bytes(b.create_unique_id()).bytes())
            made.set()
        made.wait(20)
        if r < 2:
            b.connect(ids[0])
            assert not b.is_available()
        with pytest.raises(mscclpp_ep_cpp.ContractError, match="3 ranks"):
            b.sync([0], [bytearray(64)])
        b.sync([0] * ranks, [bytearray(b.get_local_ipc_handle())] * ranks, bytearray(ids[0]))
        assert b.is_available()
        assert not b.is_internode_available()
        with pytest.raises(mscclpp_ep_cpp.ContractError, match="have met before"):
            b.connect(ids[0])
        x = torch.full((1, 128), float(r), dtype=torch.bfloat16)
        rows, _, counts, *_ = b.low_latency_dispatch(x, torch.tensor([[0]]), 1, ranks, False, False, False)
        results.append((r, counts.tolist(), rows[0, : int(counts[0]), 0].tolist()))
        end.wait()

    end = threading.Barrier(ranks, timeout=20)
    all_ranks = [threading.Thread(target=rank, args=(r,)) for r in range(ranks)]
    for t in all_ranks:
        t.start()
    for t in all_ranks:
        t.join(60)
    assert sorted(results) == [(0, [3], [0, 1, 2]), (1, [0], []), (2, [0], [])]


def test_sizes():
    """The formulas of the documentation; its own example is of 117.5 MB."""
    hint = ep.Buffer.get_low_latency_rdma_size_hint(64, 7168, 8, 32)
    assert hint == mscclpp_ep_cpp.get_low_latency_rdma_size_hint(64, 7168, 8, 32)
    dispatched, combined = 16 + 2 * 7168, 2 * 7168
    total = 2 * (max(64 * dispatched, 32 * 64 * combined) + 32 * 64 * dispatched + 8 * 32)
    assert hint == (total + 128) // 128 * 128
    assert round(hint / 1e6, 1) == 117.5
    with pytest.raises(RuntimeError, match="33 experts of 8 ranks"):
        ep.Buffer.get_low_latency_rdma_size_hint(64, 7168, 8, 33)
    config = ep.Config()
    assert (config.num_sms, config.num_max_nvl_chunked_send_tokens, config.num_max_nvl_chunked_recv_tokens) == (
        20,
        6,
        256,
    )
    assert (config.num_max_rdma_chunked_send_tokens, config.num_max_rdma_chunked_recv_tokens) == (6, 258)
    assert ep.Config(20, 8, 256, 16, 128).num_max_rdma_chunked_recv_tokens == 128
    assert config.get_nvl_buffer_size_hint(2048, 8) % 128 == 0
    assert config.get_rdma_buffer_size_hint(2048, 8) == 0
    with pytest.raises(RuntimeError, match="receive more"):
        ep.Config(20, 256, 256)


def test_a_buffer(comm):
    b = ep.Buffer.from_communicator(comm)
    assert ep.Buffer.num_sms == 20
    assert (
        b.rank,
        b.group_size,
        b.get_num_rdma_ranks(),
        b.get_rdma_rank(),
        b.get_root_rdma_rank(True),
        b.get_local_device_id(),
    ) == (0, 1, 1, 0, 0, 0)
    assert ep.EventHandle is mscclpp_ep_cpp.EventHandle
    assert ep.Config is mscclpp_ep_cpp.Config
    ep.EventHandle().current_stream_wait()
    *_, event = b.get_dispatch_layout(IDS, EXPERTS, ep.EventHandle(), True, True)
    event.current_stream_wait()
    with pytest.raises(RuntimeError, match="topk_idx: shape"):
        b.get_dispatch_layout(IDS[0], EXPERTS)
    made = mscclpp_ep_cpp.Buffer(0, 1, 1024, 256, False)
    made.use(comm)
    assert made.get_local_buffer_tensor(torch.bfloat16).shape == (512,)
    assert made.get_local_buffer_tensor(torch.int32, 64, True).shape == (48,)
    assert (
        made.get_local_buffer_tensor(torch.int32, 64).data_ptr()
        == made.get_local_buffer_tensor(torch.uint8).data_ptr() + 64
    )
    with pytest.raises(RuntimeError, match="byte 3 of 1024"):
        made.get_local_buffer_tensor(torch.int32, 3)
    with pytest.raises(RuntimeError, match="multiples of 128"):
        mscclpp_ep_cpp.Buffer(0, 1, 100, 0, False)
    with pytest.raises(RuntimeError, match="rank 2 of 2"):
        mscclpp_ep_cpp.Buffer(2, 2, 0, 0, False)
    with pytest.raises(ValueError, match="num_qps_per_rank is 0"):
        ep.Buffer(None, num_qps_per_rank=0)


def test_numbers_come_home_from_all_ranks(threads):
    """A slot's number at home is the sum of what all ranks that have the token sent for it, whoever owns the expert."""

    def rank(b):
        x, ids, weights = token_batch(b.rank)
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, EXPERTS)
        end = ep.Config(), None, False, False
        got = b.intranode_dispatch(x, None, ids, weights, per_rank, in_rank, per_expert, 0, None, None, 1, *end)
        sent = torch.full_like(got[3], float(b.rank + 1))
        _, numbers, _ = b.intranode_combine(got[0], sent, got[8], got[5], got[7], got[9], *end)
        assert torch.equal(
            numbers, (in_rank * (torch.arange(b.group_size) + 1)).sum(1, keepdim=True).expand_as(weights).float()
        )

    buffers(threads, 4, rank)


def test_what_is_returned_is_copied_and_stored(comm):
    """As plain tensors are; combines go by the tensors themselves."""
    b = ep.Buffer.from_communicator(comm)
    layout = b.get_dispatch_layout(IDS, EXPERTS)
    packed = b.low_latency_dispatch(X, IDS, 40, EXPERTS, False, False, False)
    moved = dispatched(b.intranode_dispatch, layout, X, IDS, WEIGHTS)
    for t in (packed[4], moved[5]):
        stored = io.BytesIO()
        torch.save(t, stored)
        stored.seek(0)
        for again in (copy.deepcopy(t), pickle.loads(pickle.dumps(t)), torch.load(stored, weights_only=True)):
            assert torch.equal(again, t)
        with pytest.raises(RuntimeError, match="pass that tensor itself"):
            b.intranode_combine(
                moved[0], None, moved[8], copy.deepcopy(moved[5]), moved[7], moved[9], ep.Config(), None, False, False
            )
    for prefix in (moved[5], moved[5].view_as(moved[5])):  # as autograd may give it back
        home, _, _ = b.intranode_combine(
            moved[0], None, moved[8], prefix, moved[7], moved[9], ep.Config(), None, False, False
        )
        assert home.shape == X.shape


def test_what_is_dropped_goes(comm):
    """What a dispatch leaves at its tensors is no cycle: all goes with the last reference, and the
    communicator with the buffer."""
    b = ep.Buffer.from_communicator(comm)
    layout = b.get_dispatch_layout(IDS, EXPERTS)
    gc.collect()
    before = len(traces._left)
    gc.disable()
    try:
        packed = b.low_latency_dispatch(X, IDS, 40, EXPERTS, False, False, False)
        moved = dispatched(b.intranode_dispatch, layout, X, IDS, WEIGHTS)
        alive = [weakref.ref(traces._left[t.data_ptr()][1]) for t in (packed[4], moved[5])]
        del packed, moved
        assert [ref() for ref in alive] == [None, None]
        assert len(traces._left) == before
    finally:
        gc.enable()
    del b
    gc.collect()
    assert comm.closed


def test_without_numpy(script):
    """PyTorch does without it, and so does this."""
    ended = script(
        "import sys; sys.modules['numpy'] = None\n"
        "import torch, weft\n"
        "from mscclpp.ext import ep\n"
        "b, x, ids, weights = ep.Buffer.from_communicator(weft.join()), torch.ones((2, 128)), "
        "torch.tensor([[0], [1]]), torch.ones((2, 1))\n"
        "per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(ids, 2)\n"
        "got = b.intranode_dispatch(x, None, ids, weights, per_rank, in_rank, per_expert, 0, None, None, 1, "
        "ep.Config(), None, False, False)\n"
        "home, _, _ = b.intranode_combine(got[0], None, got[8], got[5], got[7], got[9], ep.Config(), None, "
        "False, False)\n"
        "assert torch.equal(home, x)\n"
        "b.low_latency_dispatch(x.bfloat16(), ids, 2, 2, True, False, False)\n"
        "print('ok')\n"
    )
    assert (ended.code, ended.out) == (0, "ok\n"), ended.out


def test_process_group(torch_processes):
    for ended in torch_processes(4, "mscclpp_buffer"):
        assert (ended.code, ended.out) == (0, "ok\n"), ended.out
