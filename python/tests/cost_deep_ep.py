"""A program that prints what deep_ep's methods cost over the calls of C's that they make.

The argument is how many turns it measures, 1000 without.
"""

from __future__ import annotations

import ctypes
import math
import statistics
import sys
import time

import weft


def medians(calls, turns):
    """The microseconds of calls that take turns."""
    each = [[] for _ in calls]
    for turn in range(-min(100, turns), turns):
        for call, took in zip(calls, each, strict=True):
            since = time.perf_counter()
            call()
            if turn >= 0:
                took.append(time.perf_counter() - since)
    return [statistics.median(took) * 1e6 for took in each]


class Raw:
    """The calls of C's, with the arguments that handles of weft's have ready."""

    def __init__(self, lib):
        self.lib = lib

    def dispatch(self, handle, *arguments, scales=None, routing=0, describes=()):
        """A dispatch, and giving back what it gave."""
        lib, args = self.lib, handle._dispatches.take()
        args.arguments(routing, *arguments, scales)
        into, kept = self._description(handle, describes)

        def call():
            lib.ep_dispatch(handle._handle, 0, args.address, args.result_address, 0)
            lib.received_release(args.result[1])
            if into is not None:
                lib.routing_describe(args.result[2], into.address)
            if not routing:
                lib.routing_release(args.result[2])

        call.kept = kept
        return call

    def _description(self, handle, names):
        if not names:
            return None, None
        args, kept = handle._describing(tuple(names), False).take(), []
        for word, shape, dtype in args.parts:
            rows = shape if shape[0] >= 0 else (handle.capacity, *shape[1:])
            kept.append(ctypes.create_string_buffer(max(1, dtype.itemsize * math.prod(rows))))
            args.words[word] = ctypes.addressof(kept[-1])
        return args, kept

    def combine(self, handle, routing, rows, out):
        args = handle._combines.take()
        args.arguments(routing, rows, out, None)
        return lambda: self.lib.ep_combine(handle._handle, 0, args.address, 0)


def measure(comm, turns):
    import torch

    import deep_ep

    torch.set_num_threads(1)
    b = deep_ep.Buffer.from_communicator(comm)
    raw = Raw(comm._lib)
    x, ids, weights = (
        torch.zeros(4, 128, dtype=torch.bfloat16),
        torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0]]),
        torch.ones(4, 2),
    )
    out = torch.empty_like(x)
    layout = b.get_dispatch_layout(ids, 4)
    options = {
        "num_tokens_per_rank": layout[0],
        "is_token_in_rank": layout[3],
        "num_tokens_per_expert": layout[2],
        "topk_idx": ids,
        "topk_weights": weights,
    }
    rows, _, _, _, handle, _ = b.dispatch(x, **options)
    normal, routing = handle.route.by(weft.ep.Payload.bf16)
    _, _, gather = b._exchanges.gather_of(6 + 1)
    packed, _, low, *_ = b.low_latency_dispatch(x, ids, 4, 4, use_fp8=False)
    b.low_latency_dispatch(x, ids, 4, 4)
    latency = b._low_latency._handle(low.sent.kind)
    quantising = b._low_latency._handle(low.sent.kind._replace(payload=weft.ep.Payload.fp8))
    parts = "expert_counts", "ranges", "source_tokens"
    send = raw.dispatch(normal, ids, weights, x, describes=("row_experts", "row_selection_weights"))
    again, home = (
        raw.dispatch(normal, None, None, x, routing=routing._number),
        raw.combine(normal, routing._number, rows, out),
    )
    held = latency.prepare(ids, weights)
    low_home = raw.combine(latency, held._number, packed, out)
    counting = weft.ep.token_counts._CountArgs()
    counting.topk.fill(ids)
    counting.words[1:4] = memoryview((ctypes.c_uint64 * 3)(4, 1, 1)).cast("B").cast("Q")
    counts = [ctypes.create_string_buffer(64) for _ in range(4)]
    for i, at in enumerate(counts, 4):
        counting.words[i] = ctypes.addressof(at)
    elastic = deep_ep.ElasticBuffer.from_communicator(comm, num_max_tokens_per_rank=4)
    elastic_rows, *_, kept, _ = elastic.dispatch(x, ids, weights, num_experts=4)
    elastic_handle, elastic_routing = next(iter(kept._route._routings.values()))
    elastic_send = raw.dispatch(elastic_handle, ids, weights, x, describes=("row_experts", "row_selection_weights"))
    elastic_again = raw.dispatch(elastic_handle, None, None, x, routing=elastic_routing._number)
    elastic_home = raw.combine(elastic_handle, elastic_routing._number, elastic_rows, out)
    figures = (
        (
            "get_dispatch_layout",
            lambda: b.get_dispatch_layout(ids, 4),
            lambda: raw.lib.ep_count(counting.topk.address, counting.address),
        ),
        ("dispatch", lambda: b.dispatch(x, **options), lambda: (gather(), send())),
        ("dispatch by a handle", lambda: b.dispatch(x, handle=handle), again),
        ("combine", lambda: b.combine(rows, handle), home),
        (
            "low_latency_dispatch",
            lambda: b.low_latency_dispatch(x, ids, 4, 4, use_fp8=False),
            raw.dispatch(latency, ids, weights, x, describes=parts),
        ),
        (
            "low_latency_dispatch, float8",
            lambda: b.low_latency_dispatch(x, ids, 4, 4),
            raw.dispatch(quantising, ids, weights, x, describes=parts),
        ),
        ("low_latency_combine", lambda: b.low_latency_combine(packed, ids, weights, low), low_home),
        ("ElasticBuffer.dispatch", lambda: elastic.dispatch(x, ids, weights, num_experts=4), elastic_send),
        ("ElasticBuffer.dispatch by a handle", lambda: elastic.dispatch(x, handle=kept), elastic_again),
        ("ElasticBuffer.combine", lambda: elastic.combine(elastic_rows, kept), elastic_home),
    )
    for name, call, c in figures:
        whole, core, tensor = medians((call, c, lambda: torch.empty(4)), turns)
        print(
            f"| `{name}` | {whole:.1f} | {core:.1f} | {whole - core:.1f} | {(whole - core) / tensor:.0f} |", flush=True
        )


if __name__ == "__main__":
    with weft.join() as comm:
        measure(comm, int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
