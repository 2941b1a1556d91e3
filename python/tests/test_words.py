"""The words of errors: those of the interface that was called, with each name once, and the same on all ranks."""

from __future__ import annotations

import re
import threading

import pytest

import weft
from weft import ep

torch = pytest.importorskip("torch")

import deep_ep  # noqa: E402
import weft.torch  # noqa: E402

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
            held = weft.torch.dispatch(h, x, ids, torch.ones(4, 2))

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
                lambda: weft.torch.combine(h, rows, wrong(held.routing, None)),
                lambda: weft.torch.dispatch(h, wrong(x, None), ids),
            ):
                with pytest.raises(weft.InvalidError) as caught:
                    call()
                said.append(str(caught.value))
            assert h.combine(rows, routing).equal(2 * x)
        return said

    for theirs, own in zip(*threads(2, rank), strict=True):
        assert re.fullmatch(rf"\w+: rank 1: refused there: (rows: )?{re.escape(own)}", theirs), (theirs, own)


def test_all_ranks_hear_of_unknown_keywords(threads):
    """Python itself refuses them where a call has none to spare, and then the other ranks would wait."""

    def rank(c):
        said, x, ids = [], torch.ones(4, 8), torch.tensor([[0, 1]] * 4)
        more = {"bogus": 1} if c.rank == 1 else {}
        with ep.Handle(c, experts=4, topk=2, hidden=8, max_tokens=4, payload="fp32") as h, weft.Group(c) as g:
            routing = h.prepare(ids, torch.ones(4, 2))
            rows = h.dispatch(x, routing=routing).rows.clone()
            for call in (
                lambda: h.prepare(ids, **more),
                lambda: h.dispatch(x, ids, **more),
                lambda: h.send_dispatch(x, ids, **more).receive(),
                lambda: h.combine(rows, routing, **more),
                lambda: h.send_combine(rows, routing, **more).wait(),
                lambda: h.dispatch_backward(rows, routing, **more),
                lambda: h.combine_backward(x, routing, **more),
                lambda: g.all_reduce(x, **more),
                lambda: g.all_gather_v(x, [4, 4], **more),
                lambda: g.barrier(**more),
            ):
                with pytest.raises(TypeError if more else weft.InvalidError) as caught:
                    call()
                said.append(str(caught.value))
            assert g.all_reduce(x).equal(2 * torch.ones(4, 8))
            assert h.combine(rows, routing).equal(2 * x)
        return said

    for theirs, own in zip(*threads(2, rank), strict=True):
        assert re.fullmatch(r"\w+ has no argument 'bogus'; by name it takes \w+(, \w+)*", own), own
        assert re.fullmatch(rf"[\w-]+: rank 1: refused there: TypeError: {re.escape(own)}", theirs), theirs


def test_what_weft_torch_says(comm):
    """An argument of another type is named."""
    x, ids = torch.ones(4, 8), torch.tensor([[0, 1]] * 4)
    with ep.Handle(comm, experts=4, topk=2, hidden=8, max_tokens=4, payload="fp32") as h, weft.Group(comm) as g:
        for words, call in {
            "handle is of type NoneType, want a weft.ep.Handle": lambda: weft.torch.dispatch(None, x, ids),
            "handle is of type Group": lambda: weft.torch.combine(g, x, ids),
            "routing is of type NoneType, want a tensor": lambda: weft.torch.combine(h, x, None, x),
            "topk is of type list": lambda: weft.torch.dispatch(h, x, [[0, 1]]),
            "group is of type NoneType, want a weft.Group": lambda: weft.torch.all_reduce(None, x),
            "group is of type Handle": lambda: weft.torch.broadcast(h, x),
            "x is of type NoneType, want a tensor": lambda: weft.torch.all_gather(g, None),
        }.items():
            with pytest.raises(weft.InvalidError) as caught:
                call()
            assert words in str(caught.value)


def test_disagreements_in_words(threads):
    """What ranks make is named, and of counts which one, and both numbers."""
    together = threading.Barrier(3, timeout=30)

    def rank(c):
        said, odd = [], c.rank == 2
        with weft.Group(c) as g:
            for call in (
                lambda: g.all_gather_v(torch.ones(3 if odd else 2), [2, 2, 3 if odd else 2]),
                lambda: ep.Handle(c, experts=3, topk=1, hidden=8, max_tokens=4) if odd else weft.Window(c, 4096),
                lambda: weft.Group(c) if odd else ep.Handle(c, experts=3, topk=1, hidden=8, max_tokens=4),
            ):
                with pytest.raises(weft.MismatchError) as caught:
                    call()
                said.append(str(caught.value).partition(": ")[2])
        for wrong in ([1], "x", [7], 3):
            together.wait()  # a rank that is refused waits for nobody
            with pytest.raises(weft.WeftError) as caught:
                c.set_mask(wrong if odd else [])
            said.append(str(caught.value))
        together.wait()
        c.set_mask()
        c.check()
        return said

    same = "; make the same calls in the same order on every rank"
    want = [
        "ranks disagree on the count of rank 2, in elements: 3 on rank 2, 2 on ranks 0-1",
        f"ranks disagree: rank 2 calls Handle, ranks 0-1 Window{same}",
        f"ranks disagree: rank 2 calls Group, ranks 0-1 Handle{same}",
        "set_mask: ranks disagree on the ranks to leave out: [1] on rank 2, none on ranks 0-1",
    ]
    refused = [
        "'x', want the numbers of ranks, such as [3]",
        "rank 7 of 3",
        "3, want the numbers of ranks, such as [3]",
    ]
    for r, said in enumerate(threads(3, rank)):
        there = "" if r == 2 else "rank 2: refused there: "
        assert said == want + [f"set_mask: {there}{words}" for words in refused]


def test_top_k_of_deep_ep(threads):
    """It is no argument of a buffer's: topk_idx has it as its width."""

    def rank(c):
        b, ids = deep_ep.Buffer.from_communicator(c), IDS[:, : c.rank + 1].contiguous()
        said = []
        tokens, _, experts, within, _ = b.get_dispatch_layout(ids, 4)
        of = {"num_tokens_per_rank": tokens, "is_token_in_rank": within, "num_tokens_per_expert": experts}
        e = deep_ep.ElasticBuffer.from_communicator(c, num_max_tokens_per_rank=8)
        for call in (
            lambda: b.dispatch(X, topk_idx=ids, topk_weights=torch.rand(5, c.rank + 1), **of),
            lambda: b.low_latency_dispatch(X, ids, 8, 4),
            lambda: e.dispatch(X, ids, torch.rand(5, c.rank + 1), num_experts=4),
        ):
            with pytest.raises(weft.MismatchError) as caught:
                call()
            said.append(str(caught.value))
        return said

    for said in threads(2, rank):
        for words in said:
            assert re.search(r"ranks disagree on top-k, the width of topk_idx: \d on rank \d, \d on rank \d$", words), (
                words
            )


def test_reprs(comm):
    """Objects print what they are."""
    with weft.Group(comm) as g, weft.Window(comm, 4096) as window:
        work = g.all_reduce(torch.ones(4), async_op=True)
        assert re.fullmatch(r"<weft\.Work all-reduce, rank 0 of 1, (running|done)>", repr(work))
        work.wait()
        assert repr(work) == "<weft.Work all-reduce, rank 0 of 1, done>"
        dropped = g.barrier(async_op=True)
        dropped.close()
        assert repr(dropped) == "<weft.Work barrier, rank 0 of 1, failed: ClosedError>"
        assert repr(window) == "<weft.Window of 4096 bytes a rank, rank 0 of 1>"
    assert repr(window) == "<weft.Window of 4096 bytes a rank, rank 0 of 1, closed>"
