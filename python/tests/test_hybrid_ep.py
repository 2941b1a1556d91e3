"""HybridEPBuffer against what DeepEP's branch hybrid-ep does, in plain tensors."""

from __future__ import annotations

import functools
import gc

import pytest

torch = pytest.importorskip("torch")

import deep_ep  # noqa: E402
import weft  # noqa: E402
from deep_ep.hybrid_ep_buffer import indices_to_map  # noqa: E402
from deep_ep.utils.math import per_token_cast_to_fp8  # noqa: E402

HIDDEN, EXPERTS, TOPK = 256, 12, 3


@functools.cache
def token_batch(rank):
    """A rank's tokens, their experts with some missing, and weights; on rank 2 there is no token."""
    g = torch.Generator().manual_seed(400 + rank)
    tokens = 0 if rank == 2 else 17 + 4 * rank
    ids = torch.rand((tokens, EXPERTS), generator=g).argsort(1)[:, :TOPK]
    ids[torch.rand(ids.shape, generator=g) < 0.2] = -1
    return torch.randn((tokens, HIDDEN), generator=g).bfloat16(), ids, torch.rand((tokens, TOPK), generator=g)


def maps(rank):
    _, ids, weights = token_batch(rank)
    return indices_to_map(ids, weights, len(ids), EXPERTS)


def buffers(threads, ranks, function, most=64, **options):
    return threads(
        ranks,
        lambda c: function(deep_ep.HybridEPBuffer.from_communicator(c, HIDDEN, most, EXPERTS // ranks, **options)),
    )


def arrivals(rank, ranks, pad=1):
    """The (rank, token, expert) of the rows that come to a rank, expert by expert, None for pads, and the counts."""
    local, rows, counts = EXPERTS // ranks, [], []
    for e in range(rank * local, (rank + 1) * local):
        of = [(r, t, e) for r in range(ranks) for t in range(len(token_batch(r)[0])) if maps(r)[0][t, e]]
        of += [None] * (-len(of) % pad)
        rows += of
        counts.append(len(of))
    return rows, counts


def visits(rank, ranks):
    """The experts of each token, and the ranks that it goes to."""
    chosen = maps(rank)[0]
    return chosen.sum(1), chosen.view(len(chosen), ranks, EXPERTS // ranks).any(2).sum(1)


def test_maps():
    ids, weights = torch.tensor([[2, -1], [0, 3]]), torch.tensor([[0.5, 0.25], [1.0, 2.0]], requires_grad=True)
    chosen, probs = indices_to_map(ids, weights, 2, 4)
    assert chosen.tolist() == [[False, False, True, False], [True, False, False, True]]
    assert probs.tolist() == [[0, 0, 0.5, 0], [1, 0, 0, 2]]
    probs.square().sum().backward()
    assert weights.grad.tolist() == [[1, 0], [2, 4]]
    assert indices_to_map(ids.int(), None, 2, 4)[1] is None
    with pytest.raises(AssertionError, match="of 3 tokens"):
        indices_to_map(ids, None, 3, 4)


@pytest.mark.parametrize("pad", [None, 8])
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_rows_of_experts(threads, ranks, pad):
    """Rows, weights and counts of every expert, the sums at home, and the same by handle and by selections."""

    def rank(b):
        x, ids, weights = token_batch(b.rank)
        chosen, probs = maps(b.rank)
        want, counts = arrivals(b.rank, ranks, pad or 1)
        rows, come, scales, of_experts, handle = b.dispatch_with_permute(
            hidden=x, routing_map=chosen, probs=probs, scaling_factor=None, pad_multiple=pad
        )
        assert (scales, of_experts.tolist(), of_experts.dtype) == (None, counts, torch.int64)
        assert rows.shape == (len(want), HIDDEN)
        for i, of in enumerate(want):
            row = torch.zeros(HIDDEN).bfloat16() if of is None else token_batch(of[0])[0][of[1]]
            assert torch.equal(rows[i], row)
            assert float(come[i]) == (0.0 if of is None else float(maps(of[0])[1][of[1], of[2]]))
        home, home_probs = b.combine_with_unpermute(hidden=rows, probs=come, handle=handle, pad_multiple=pad)
        assert torch.allclose(home, x * visits(b.rank, ranks)[0][:, None], rtol=1e-2)
        assert torch.equal(home_probs, probs)
        assert b.combine_with_unpermute(hidden=rows, handle=handle)[1] is None
        again = b.dispatch_with_permute(hidden=x * 2, probs=probs * 2, handle=handle, pad_multiple=pad)
        assert torch.equal(again[0], rows * 2)
        assert torch.equal(again[1], come * 2)
        assert again[3].tolist() == counts
        longer = b.dispatch_with_permute(hidden=x, handle=handle, num_permuted_tokens=len(want) + 3)
        assert torch.equal(longer[0][: len(want)], rows)
        assert not longer[0][len(want) :].any()
        assert longer[1] is None
        by_ids = b.dispatch_with_permute(
            hidden=x,
            topk_idx=ids,
            topk_weights=weights,
            num_of_experts=EXPERTS,
            pad_multiple=pad,
            fuse_permute_dispatch=True,
        )
        assert torch.equal(by_ids[0], rows)
        assert torch.equal(by_ids[1], come)
        assert torch.equal(
            b.combine_with_unpermute(hidden=rows, handle=by_ids[4], fuse_unpermute_combine=True)[0], home
        )
        # The handle's contents.
        tokens = sorted({of[:2] for of in want if of is not None})
        _, _, _, n, here, row_ids, own, config, overflow = handle
        assert (n.tolist(), own, config, overflow.tolist()) == ([len(tokens)], len(x), b.config, [0])
        mine = slice(b.rank * EXPERTS // ranks, (b.rank + 1) * EXPERTS // ranks)
        assert here.tolist() == [maps(r)[0][t, mine].tolist() for r, t in tokens]
        places = {of: i for i, of in enumerate(want) if of is not None}
        assert row_ids.tolist() == [
            [places.get((r, t, e), -1) for e in range(mine.start, mine.stop)] for r, t in tokens
        ]
        assert len(by_ids[4]) == 11
        assert torch.equal(by_ids[4][6], row_ids)
        assert by_ids[4][7].tolist() == counts

    buffers(threads, ranks, rank)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_rows_of_tokens(threads, ranks, fp8):
    def sent(r):
        x = token_batch(r)[0]
        if not fp8:
            return x, None
        rows, scales = per_token_cast_to_fp8(x)
        return rows.view(torch.uint8), scales

    def rank(b):
        x, scales = sent(b.rank)
        chosen, probs = maps(b.rank)
        local = EXPERTS // ranks
        mine = slice(b.rank * local, (b.rank + 1) * local)
        want = [(r, t) for r in range(ranks) for t, row in enumerate(maps(r)[0]) if row[mine].any()]
        rows, come, come_scales, handle = b.dispatch(x, scales, probs=probs, routing_map=chosen)
        assert (rows.dtype, rows.shape, come.shape) == (x.dtype, (len(want), HIDDEN), (len(want), EXPERTS))
        for i, (r, t) in enumerate(want):
            assert torch.equal(rows[i], sent(r)[0][t])
            assert torch.equal(come[i, mine], maps(r)[1][t, mine])
            assert not fp8 or torch.equal(come_scales[i], sent(r)[1][t])
        _, _, _, n, here, own, _ = handle
        assert (n.tolist(), own) == ([len(want)], len(x))
        assert here.tolist() == [maps(r)[0][t, mine].tolist() for r, t in want]
        back = torch.stack([token_batch(r)[0][t] for r, t in want]) if want else torch.empty(0, HIDDEN).bfloat16()
        home, home_probs = b.combine(back, come, handle)
        assert torch.allclose(home, token_batch(b.rank)[0] * visits(b.rank, ranks)[1][:, None], rtol=1e-2)
        assert torch.equal(home_probs, probs)
        assert torch.equal(b.dispatch(x, scales, handle=handle)[0], rows)
        _, ids, weights = token_batch(b.rank)
        by_ids = b.dispatch(x, scales, topk_idx=ids, topk_weights=weights, num_of_experts=EXPERTS)
        assert torch.equal(by_ids[0], rows)
        assert torch.equal(by_ids[1], come)
        by_ids = b.dispatch(x, scales, topk_idx=ids, probs=probs, num_of_experts=EXPERTS)
        assert torch.equal(by_ids[1], come)
        assert b.combine(back, None, tuple(handle))[1] is None

    buffers(threads, ranks, rank)


@pytest.mark.parametrize(("room", "fewest"), [(0, 1), (1, 256), (16, 1), (40, 1), (40, 256), (2000, 256)])
def test_numbers_of_rows_that_are_given(threads, monkeypatch, room, fewest):
    """Nothing waits, rows beyond the number are dropped, by the library where it has no room for them, and the sums
    at home lack them."""
    pad = 4
    monkeypatch.setattr(deep_ep.hybrid_ep_buffer, "_FEWEST_ROWS", fewest)

    def rank(b):
        x, _, _ = token_batch(b.rank)
        chosen, probs = maps(b.rank)
        rows, come, _, counts, handle = b.dispatch_with_permute(
            hidden=x, routing_map=chosen, probs=probs, pad_multiple=pad, num_permuted_tokens=room, non_blocking=True
        )
        want, all_counts = arrivals(b.rank, 2, pad)
        assert rows.shape == (room, HIDDEN)
        assert come.shape == (room,)
        begins = [sum(all_counts[:e]) for e in range(len(all_counts))]
        assert counts.tolist() == [min(n, max(0, room - at)) for n, at in zip(all_counts, begins, strict=True)]
        for i, of in enumerate(want[:room]):
            row = torch.zeros(HIDDEN).bfloat16() if of is None else token_batch(of[0])[0][of[1]]
            assert torch.equal(rows[i], row)
        home, home_probs = b.combine_with_unpermute(
            hidden=rows, probs=come, handle=handle, pad_multiple=pad, non_blocking=True
        )
        kept = torch.zeros_like(probs)
        for of in [of for r in range(2) for of in arrivals(r, 2, pad)[0][:room]]:
            if of is not None and of[0] == b.rank:
                kept[of[1], of[2]] = 1
        assert torch.equal(home_probs, probs * kept)
        assert torch.allclose(home, x * kept.sum(1, keepdim=True).bfloat16(), rtol=1e-2)
        assert handle[-1].tolist() == [int(len(want) > room)]
        assert torch.equal(b.dispatch_with_permute(hidden=x, handle=handle, num_permuted_tokens=room)[0], rows)

    buffers(threads, 2, rank)


class Dispatch(torch.autograd.Function):
    """As Megatron-LM's HybridEPDispatch."""

    @staticmethod
    def forward(ctx, x, routing_map, probs, buffer, pad, permuted):
        ctx.buffer, ctx.pad = buffer, pad
        rows, come, scales, counts, ctx.handle = buffer.dispatch_with_permute(
            hidden=x,
            routing_map=routing_map,
            probs=probs,
            scaling_factor=None,
            num_of_experts_per_rank=EXPERTS // buffer.group_size,
            pad_multiple=pad,
            num_permuted_tokens=permuted,
            non_blocking=permuted is not None,
        )
        return rows, come, scales, counts, ctx.handle

    @staticmethod
    def backward(ctx, grad_x, grad_probs, *_):
        x, probs = ctx.buffer.combine_with_unpermute(
            hidden=grad_x, probs=grad_probs, handle=ctx.handle, pad_multiple=ctx.pad
        )
        return x, None, probs, None, None, None


class Combine(torch.autograd.Function):
    """As its HybridEPCombine; the handle is the tuple of its contents, as autograd keeps it."""

    @staticmethod
    def forward(ctx, x, handle, buffer, permuted, pad):
        ctx.buffer, ctx.permuted, ctx.pad = buffer, permuted, pad
        ctx.save_for_backward(*handle[:6])
        return buffer.combine_with_unpermute(hidden=x, handle=handle, pad_multiple=pad)[0]

    @staticmethod
    def backward(ctx, grad):
        rows, *_ = ctx.buffer.dispatch_with_permute(
            hidden=grad,
            scaling_factor=None,
            handle=ctx.saved_tensors,
            pad_multiple=ctx.pad,
            num_permuted_tokens=ctx.permuted,
        )
        return rows, None, None, None, None


@pytest.mark.parametrize("permuted", [None, 500])
def test_gradients(threads, permuted):
    """A layer whose expert e multiplies by e + 1, and by the weights."""

    def rank(b):
        x, _, _ = token_batch(b.rank)
        chosen, probs = maps(b.rank)
        factors = torch.arange(1.0, EXPERTS + 1)
        mine, weights = x.clone().requires_grad_(), probs.clone().requires_grad_()
        rows, come, _, counts, handle = Dispatch.apply(mine, chosen, weights, b, 4, permuted)
        local = EXPERTS // b.group_size
        of_rows = torch.zeros(len(rows))
        of_rows[: int(counts.sum())] = factors[b.rank * local :][:local].repeat_interleave(counts)
        made = (rows.float() * (of_rows * come)[:, None])[: int(counts.sum())].bfloat16()
        made = torch.nn.functional.pad(made, (0, 0, 0, len(rows) - len(made)))
        gc.collect()
        out = Combine.apply(made, handle, b, len(rows), 4)
        of_tokens = (probs * factors).sum(1, keepdim=True)
        assert torch.allclose(out.float(), x.float() * of_tokens, rtol=3e-2, atol=3e-2)
        out.float().sum().backward()
        assert torch.allclose(mine.grad.float(), of_tokens.expand_as(x), rtol=3e-2, atol=3e-2)
        want = x.float().sum(1, keepdim=True) * factors * chosen
        assert torch.allclose(weights.grad, want, rtol=3e-2, atol=1.5)

    buffers(threads, 3, rank)


def test_more_tokens_than_there_was_room_for(threads):
    def rank(b):
        x = torch.randn(600, HIDDEN).bfloat16()
        chosen = torch.zeros(600, EXPERTS, dtype=torch.bool)
        chosen[:, 0] = True
        rows, _, _, counts, handle = b.dispatch_with_permute(hidden=x, routing_map=chosen)
        assert int(counts.sum()) == len(rows) == (1200 if b.rank == 0 else 0)
        assert torch.equal(b.combine_with_unpermute(hidden=rows, handle=handle)[0], x)
        assert b.config.max_num_of_tokens_per_rank == 1024
        assert b.update_template_config(max_num_of_tokens_per_rank=2000).max_num_of_tokens_per_rank == 2000

    buffers(threads, 2, rank, most=8)


def test_refusals(comm):
    b = deep_ep.HybridEPBuffer.from_communicator(comm, HIDDEN, 64, EXPERTS)
    x, ids, weights = token_batch(0)
    chosen, probs = maps(0)
    permuted, rows = b.dispatch_with_permute, {"hidden": x, "routing_map": chosen}
    handle, plain = permuted(**rows)[4], b.dispatch(x, routing_map=chosen)[3]
    for call, words in (
        (lambda: permuted(**rows, pad_multiple=3), "power of two"),
        (lambda: permuted(**rows, non_blocking=True), "needs num_permuted_tokens"),
        (lambda: permuted(**rows, num_of_experts_per_rank=3), "num_local_experts 12"),
        (lambda: permuted(**rows, probs=probs[:, 1:]), "probs: shape"),
        (lambda: permuted(hidden=x, routing_map=chosen.int()), "want torch.bool"),
        (lambda: permuted(hidden=x[1:], routing_map=chosen), "of 16 tokens"),
        (lambda: permuted(hidden=x, routing_map=chosen[:, 1:]), "11 experts"),
        (lambda: permuted(hidden=x), "takes routing_map"),
        (lambda: permuted(hidden=x, topk_idx=ids), "and num_of_experts"),
        (lambda: permuted(hidden=x, topk_idx=ids[1:], num_of_experts=EXPERTS), "topk_idx: shape"),
        (lambda: permuted(hidden=x, topk_idx=ids, topk_weights=weights[1:], num_of_experts=EXPERTS), "topk_weights"),
        (lambda: permuted(hidden=x.float(), routing_map=chosen), "want torch.bfloat16"),
        (lambda: permuted(hidden=x.view(torch.uint8), routing_map=chosen), "scaling_factor: none"),
        (lambda: permuted(hidden=x[0], routing_map=chosen), r"want \[tokens, hidden\]"),
        (lambda: permuted(hidden=x, handle=plain), "that dispatch_with_permute returned"),
        (lambda: permuted(hidden=x, handle=tuple(t.clone() for t in handle[:4])), "not copies"),
        (lambda: permuted(hidden=x[1:], handle=handle), "the handle has 17"),
        (lambda: permuted(hidden=x, handle=handle, pad_multiple=4), "dispatch had 1"),
        (lambda: permuted(hidden=x, handle=handle, num_permuted_tokens=1), "num_permuted_tokens is 1"),
        (lambda: b.combine_with_unpermute(hidden=x[:1], handle=handle), "want .rows, hidden. of"),
        (lambda: b.combine_with_unpermute(hidden=x.float(), handle=handle), "sums are of that type"),
        (lambda: b.combine(x, handle=handle), "that dispatch returned"),
        (lambda: b.combine(x, handle=None), "handle: a NoneType"),
        (lambda: b.combine(x, probs[:, 1:], plain), "probs: shape"),
        (lambda: deep_ep.HybridEPBuffer(None, HIDDEN, 64, 3), "no group"),
    ):
        with pytest.raises(AssertionError, match=words):
            pytest.fail(f"{words}: {call()}")
    many = deep_ep.HybridEPBuffer.from_communicator(weft.join(deadline=20), 8, 8, 40)
    with pytest.raises(weft.UnsupportedError, match="selects 33 experts, at most 32"):
        many.dispatch(torch.zeros(1, 8).bfloat16(), routing_map=torch.arange(40)[None] < 33)
    with pytest.raises(weft.UnsupportedError, match="selects 33 experts, at most 32"):  # where nobody waits, too
        many.dispatch_with_permute(
            hidden=torch.zeros(1, 8).bfloat16(), routing_map=torch.arange(40)[None] < 33, num_permuted_tokens=64
        )
    many.destroy()
    assert many.runtime is None
    b.empty_jit_cache()
