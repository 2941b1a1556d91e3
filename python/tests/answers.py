"""A program that prints what calls return or raise: with the compiled part and without it the same."""

from __future__ import annotations

import hashlib
import inspect

import torch

import deep_ep
import weft
from weft import compiled, ep


def text(x):
    if isinstance(x, torch.Tensor):
        content = x.contiguous().view(torch.uint8).numpy().tobytes() if x.numel() else b""
        content = hashlib.sha256(content).hexdigest()
        return f"{x.dtype} {tuple(x.shape)} {x.stride()} {content} {x.requires_grad} {x.is_leaf}"
    if isinstance(x, (tuple, list)):
        return f"{type(x).__name__}({', '.join(map(text, x))})"
    return repr(x) if isinstance(x, (int, float, str, type(None))) else type(x).__name__


def say(name, call, *arguments, **options):
    for _ in range(2):  # the first of a kind is Python code's
        try:
            print(name, text(call(*arguments, **options)))
        except Exception as e:  # noqa: PERF203
            print(name, type(e).__mro__, e, getattr(e, "rank", None))


def received(h, *arguments, **options):
    with h.dispatch(*arguments, **options) as got:
        return [got.rows.clone(), got.scales, got.routing.tokens, got.routing.rows, repr(got), repr(got.routing)]


def main(comm):
    torch.manual_seed(1)
    x, w = torch.randn(5, 128).bfloat16(), torch.rand(5, 2)
    ids = torch.tensor([[0, 1], [1, 2], [2, -1], [3, 0], [-1, -1]])
    bad = {
        "type": (x.to(torch.cfloat), ids, w),
        "dims": (x.view(1, 1, 1, 5, 128), ids, w),
        "hidden": (x[:, :64], ids, w),
        "strides": (x.repeat(1, 2)[:, ::2], ids, w),
        "numpy": (x.float().numpy(), ids, w),
        "many": (x.repeat(9, 1), ids, w),
        "topk": (x, ids.float(), w),
        "twice": (x, torch.zeros_like(ids), w),
        "meta": (x.to("meta"), ids, w),
        "sparse": (x.float().to_sparse(), ids, w),
        "none": (x, None, None),
        "list": (x.tolist(), ids, w),
        "negated": (x, ids, torch._neg_view(w)),
        "gradient": (x.clone().requires_grad_(), ids, w),
        "parameter": (torch.nn.Parameter(x), ids, w),
        "empty": (x[:0], ids[:0], w[:0]),
        "int32": (x, ids.int(), w),
        "scalar": (x, torch.tensor(1), w),
    }
    for layout in ("expert_major", "token_major", "expert_packed", "rank_major"):
        h = ep.Handle(comm, experts=4, topk=2, hidden=128, max_tokens=5, layout=layout)
        say("dispatch " + layout, received, h, x, ids, w)
        for name, arguments in bad.items():
            say(f"dispatch {layout} {name}", received, h, *arguments)
        got = h.dispatch(x, ids, w)
        rows = got.rows.clone()
        for name, arguments in {
            "whole": (rows, got),
            "by a routing": (rows, got.routing),
            "wrong rows": (rows[:1], got),
            "no routing": (rows, 5),
            "type": (rows.float(), got),
            "numpy": (rows.float().numpy(), got),
        }.items():
            say(f"combine {layout} {name}", h.combine, *arguments)
        say("bias", h.combine, rows, got, bias=x)
        say("biases", h.combine, rows, got, bias=[x, x])
        say("three", h.combine, rows, got, bias=(x, x, x))
        say("weights", h.combine, rows, got, weights=w)
        say("out", h.combine, rows, got, out=torch.empty(5, 128))
        say("out", h.combine, rows, got, out=x.T)
        got.release()
        say("released", h.combine, rows, got)
        say("routing", received, h, x, routing=got.routing)
        got.routing.release()
        say("released routing", h.combine, rows, got.routing)
        del got
        h.close()
        say("closed", received, h, x, ids, w)
    b = deep_ep.Buffer.from_communicator(comm)
    for name, t in {"layout": ids, "int32": ids.int(), "float": w, "flat": ids.view(-1), "empty": ids[:0]}.items():
        say(name, b.get_dispatch_layout, t, 4)
    say("experts", b.get_dispatch_layout, ids, 5)
    stats = torch.zeros(4, dtype=torch.int32)
    for options in ({}, {"use_fp8": False}, {"round_scale": True}, {"round_scale": True, "use_ue8m0": True}):
        wide = x.repeat(1, 4) if "use_ue8m0" in options else x
        say(f"low latency {options}", b.low_latency_dispatch, wide, ids, 8, 4, stats, **options)
        for name, arguments in bad.items():
            say(f"low latency {options} {name}", b.low_latency_dispatch, *arguments[:2], 8, 4, **options)
        say("tokens", b.low_latency_dispatch, wide, ids, 4, 4, **options)
        say("stats", b.low_latency_dispatch, wide, ids, 8, 4, w, **options)
        for _ in range(2):
            low = b.low_latency_dispatch(wide, ids, 8, 4, **options)[2]
        rows = torch.randn(4, 8, wide.shape[1]).bfloat16()
        for name, (r, i, v) in {
            "": (rows, ids, w),
            "order": (rows, ids.flip(1), w.flip(1)),
            "copy": (rows, ids.clone(), w),
            "other": (rows, ids + 1, w),
            "rows": (rows[:1], ids, w),
            "int32": (rows, ids.int(), w),
            "weights": (rows, ids, w[:1]),
            "type": (rows.float(), ids, w),
            "half": (rows, ids, w.bfloat16()),
        }.items():
            say(f"low latency combine {options} {name}", b.low_latency_combine, r, i, v, low)
        say("out", b.low_latency_combine, rows, ids, w, low, out=torch.empty(5, wide.shape[1]))
        say("contents", b.low_latency_combine, rows, ids, w, tuple(low))
        say("handle", list, low)
    print(stats.tolist())
    say("refused", b.low_latency_dispatch, x, ids, 8.0, 4)
    tokens, _, experts, within, _ = b.get_dispatch_layout(ids, 4)
    of = {"num_tokens_per_rank": tokens, "is_token_in_rank": within, "num_tokens_per_expert": experts}
    selected = {"topk_idx": ids}
    for options in (selected | {"topk_weights": w}, selected, {}, selected | {"expert_alignment": 4}):
        for rows in (x, x.float(), (x.to(torch.float8_e4m3fn), torch.rand(5, 1)), x.repeat(1, 999)):
            say(f"normal {list(options)}", b.dispatch, rows, **of, **options)
    for _ in range(2):
        rows, _, weights, _, kept, _ = b.dispatch(x, topk_idx=ids, topk_weights=w, **of)
    say("again", b.dispatch, x + 1, kept)
    say("home", b.combine, rows, kept)
    say("sums", b.combine, rows, kept, weights)
    say("short", b.combine, rows[:1], kept)
    say("contents", list, kept)
    say("worst", b.dispatch, x, topk_idx=ids, topk_weights=w, num_worst_tokens=9, **of)
    say("types", b.dispatch, x, topk_idx=ids.int(), topk_weights=w, **of)
    elastic(x, ids, w, bad)
    hybrid(x, ids, w)


MEMBERS = tuple(inspect.signature(deep_ep.EPHandle).parameters)


def elastic(x, ids, w, bad):
    """The calls of DeepEP's second buffer."""

    def dispatched(*arguments, **options):
        rows, experts, weights, handle, event = b.dispatch(*arguments, **options)
        return rows, experts, weights, [getattr(handle, name) for name in MEMBERS], event

    for multiple in (True, False):
        b = deep_ep.ElasticBuffer.from_communicator(
            weft.join(), num_max_tokens_per_rank=6, allow_multiple_reduction=multiple
        )
        fp8 = x.to(torch.float8_e4m3fn), torch.rand(5, 1)
        for options in (
            {},
            {"do_expand": True},
            {"do_expand": True, "expert_alignment": 4, "do_zero_padding": True},
            {"expert_alignment": 4, "num_sms": 6},
            {"do_cpu_sync": False},
            {"do_cpu_sync": False, "do_expand": True},
            {"do_handle_copy": False},
            {"num_max_tokens_per_rank": 5, "do_cpu_sync": False},
        ):
            name, options = f"elastic {multiple} {options}", {"num_experts": 4, **options}
            for _ in range(2):
                rows, _, given, kept, _ = b.dispatch(x, ids, w, **options)
            say(name, dispatched, x, ids, w, **options)
            say(name + " without weights", dispatched, x, ids, **options)
            say(name + " fp8", dispatched, fp8, ids, w, **options)
            for wrong, arguments in bad.items():
                say(f"{name} {wrong}", dispatched, *arguments, **options)
            expand = {"do_expand": options.get("do_expand", False)}
            for again in (x + 1, fp8, x[:3], x.float(), x[:, :64].contiguous()):
                say(name + " again", dispatched, again, handle=kept, **expand)
            say(name + " weights again", dispatched, x, None, w, handle=kept, **expand)
            say(name + " otherwise", dispatched, x, handle=kept, do_expand=not expand["do_expand"])
            say(name + " more", dispatched, x, handle=kept, num_experts=8, **expand)
            copied = deep_ep.EPHandle(*(getattr(kept, name) for name in MEMBERS))
            for home in (rows, rows[:1], rows.float(), rows.numpy, rows[:, :64].contiguous(), rows.repeat(2, 1)):
                say(name + " home", b.combine, home, kept)
            say(name + " home by a copy", b.combine, rows, copied)
            say(name + " biased", b.combine, rows, kept, bias=x)
            say(name + " weighted", b.combine, rows, kept, given)
    selections, h = ids.clone(), None
    for _ in range(2):
        h = b.dispatch(x, selections, w, num_experts=4)[3]
    selections.zero_()
    say("changed", lambda: (h.topk_idx, b.dispatch(x, handle=h)[0]))
    say("changed weights", dispatched, x, ids, w, num_experts=4)


def hybrid(x, ids, w):
    """Those of the branch hybrid-ep."""
    b = deep_ep.HybridEPBuffer.from_communicator(weft.join(), 128, 5, 4)
    chosen = {"topk_idx": ids, "topk_weights": w, "num_of_experts": 4}
    for _ in range(2):
        rows, probs, _, handle = b.dispatch(x, **chosen)
    say("hybrid", lambda: b.dispatch(x, **chosen)[:3])
    say("hybrid again", lambda: b.dispatch(x, handle=handle)[:3])
    say("hybrid home", b.combine, rows, probs, handle)
    for options in ({}, {"pad_multiple": 4}, {"num_permuted_tokens": 16}):
        for _ in range(2):
            rows, probs, _, counts, handle = b.dispatch_with_permute(hidden=x, **chosen, **options)
        say(f"permuted {options}", lambda o=options: b.dispatch_with_permute(hidden=x, **chosen, **o)[:4])
        say(f"unpermuted {options}", b.combine_with_unpermute, hidden=rows, probs=probs, handle=handle, **options)
        say("counts", lambda of=counts: of)


if __name__ == "__main__":
    with weft.join() as of_one:
        main(of_one)
    print(compiled.in_use())
