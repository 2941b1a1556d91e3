"""The words of errors: those of the interface that was called, with each name once, and the same on all ranks."""

from __future__ import annotations

import re

import pytest

import weft
from weft import ep

torch = pytest.importorskip("torch")

import deep_ep  # noqa: E402

X, W = torch.randn(5, 128).bfloat16(), torch.rand(5, 2)
IDS = torch.tensor([[0, 1], [1, 2], [2, -1], [3, 0], [-1, -1]])
FP8 = X.to(torch.float8_e4m3fn)


def calls(b, e):
    """Wrong calls of deep_ep's buffers, and what errors say of them."""
    tokens, _, experts, within, _ = b.get_dispatch_layout(IDS, 4)
    of = {"num_tokens_per_rank": tokens, "is_token_in_rank": within, "num_tokens_per_expert": experts}
    rows, _, weights, _, kept, _ = b.dispatch(X, topk_idx=IDS, topk_weights=W, **of)
    low, _, low_kept, *_ = b.low_latency_dispatch(X, IDS, 8, 4, use_fp8=False)
    out = torch.empty(5, 128)

    def dispatch(x=X, topk_idx=IDS, topk_weights=W):
        return b.dispatch(x, topk_idx=topk_idx, topk_weights=topk_weights, **of)

    return {
        "get_dispatch_layout: topk_idx is float32[5 2]": lambda: b.get_dispatch_layout(W, 4),
        "topk_idx is float32[5 2]": lambda: dispatch(topk_idx=W),
        "topk_idx: shape (10,)": lambda: dispatch(topk_idx=IDS.view(-1)),
        "topk_idx: it is on meta": lambda: dispatch(topk_idx=IDS.to("meta")),
        "topk_weights are float64[5 2]": lambda: dispatch(topk_weights=W.double()),
        "x has no scales": lambda: dispatch(FP8),
        "x is a pair": lambda: dispatch((X, W[:, :1])),
        "the scales of x are float16[5 1]": lambda: dispatch((FP8, W[:, :1].half())),
        "top-k is 65": lambda: dispatch(topk_idx=torch.zeros(5, 65, dtype=torch.int64), topk_weights=None),
        "x is bfloat16[3 128]": lambda: b.dispatch(X[:3], handle=kept),
        "x is bfloat16[4 64]": lambda: b.combine(rows[:, :64].contiguous(), kept),
        "topk_weights: type": lambda: b.combine(rows, kept, weights.double()),
        "bias is float32[5 128]": lambda: b.combine(rows, kept, bias=X.float()),
        "num_experts is 0": lambda: b.low_latency_dispatch(X, IDS, 8, 0),
        "num_experts is 4.5": lambda: b.low_latency_dispatch(X, IDS, 8, 4.5),
        "num_max_dispatch_tokens_per_rank is 0": lambda: b.low_latency_dispatch(X[:0], IDS[:0], 0, 4),
        "want int32 or int64": lambda: b.low_latency_dispatch(X, W, 8, 4),
        "topk_weights are float16[5 2]": lambda: b.low_latency_combine(low, IDS, W.half(), low_kept),
        "out is float32[5 128]": lambda: b.low_latency_combine(low, IDS, W, low_kept, out=out),
        "num_experts is -1": lambda: e.dispatch(X, IDS, W, num_experts=-1),
    }


FOREIGN = re.compile(
    r"\b(topk|max_tokens|fp\d+|bf16|e4m3|prepare|new handle|weft_\w+|experts (is|on)|(?<!_)weights (is|are)|rows are)\b"
)


def test_words_of_deep_ep(comm):
    """None says a name of weft's, and neither does the compiled part, which makes later calls."""
    b, e = (
        deep_ep.Buffer.from_communicator(comm),
        deep_ep.ElasticBuffer.from_communicator(comm, num_max_tokens_per_rank=8),
    )
    for _ in range(2):
        for words, call in calls(b, e).items():
            with pytest.raises(weft.WeftError) as caught:
                call()
            assert words in str(caught.value)
            assert not FOREIGN.search(str(caught.value)), caught.value


def test_disagreements_of_deep_ep(threads):
    """A rank hears what differs, and nothing else."""

    def rank(c):
        b, mine = deep_ep.Buffer.from_communicator(c), c.rank == 1
        tokens, _, experts, within, _ = b.get_dispatch_layout(IDS, 4)
        of = {"num_tokens_per_rank": tokens, "is_token_in_rank": within, "num_tokens_per_expert": experts}
        x = torch.zeros(5, 64 if mine else 128).to(torch.float32 if mine else torch.bfloat16)
        said = []
        for call in (
            lambda: b.dispatch(x, topk_idx=IDS, topk_weights=W, **of),
            lambda: b.low_latency_dispatch(X, IDS, 16 if mine else 8, 4),
        ):
            with pytest.raises(weft.MismatchError) as caught:
                call()
            said.append(str(caught.value))
        return said

    for normal, low in threads(2, rank):
        assert "the hidden size of x: " in normal
        assert "the type of x: torch." in normal
        assert "top-k" not in normal
        assert "ranks disagree on num_max_dispatch_tokens_per_rank: 8 on rank 0, 16 on rank 1" in low


def test_all_ranks_hear_of_wrong_arguments(threads):
    """Also of those that are wrong before there are operands: nobody waits for the deadline."""

    def rank(c):
        said, x, ids = [], torch.ones(4, 8), torch.tensor([[0, 1]] * 4)
        with ep.Handle(c, experts=4, topk=2, hidden=8, max_tokens=4, payload="fp32") as h:
            routing = h.prepare(ids, torch.ones(4, 2))
            rows = h.dispatch(x, routing=routing).rows.clone()

            def wrong(good, bad):
                return bad if c.rank == 1 else good

            for call in (
                lambda: h.dispatch(x, routing=wrong(routing, 3)),
                lambda: h.combine(rows, wrong(routing, None)),
                lambda: h.combine(rows, routing, bias=wrong(x, (x, x, x))),
                lambda: h.dispatch(x, routing=routing, stream=wrong(None, "x")),
                lambda: h.dispatch(x, ids, timeout=wrong(None, -1)),
                lambda: h.dispatch_backward(rows, wrong(routing, 7)),
                lambda: h.combine_backward(x, wrong(routing, 7)),
                lambda: h.dispatch(wrong(x, [1]), ids),
            ):
                with pytest.raises(weft.InvalidError) as caught:
                    call()
                said.append(str(caught.value))
            assert h.combine(rows, routing).equal(2 * x)
        return said

    for theirs, own in zip(*threads(2, rank), strict=True):
        assert re.fullmatch(rf"\w+: rank 1: refused there: (rows: )?{re.escape(own)}", theirs), (theirs, own)
