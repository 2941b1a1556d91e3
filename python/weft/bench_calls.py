"""What the calls of Python and deep_ep cost the host: ``python -m weft.bench_calls [--device gpu]``.

One rank alone makes each call, and beside it the C calls that it consists of, with everything ready, in turns. Both
are medians of host time. Of the C calls, made through ctypes, the time of as many ctypes calls that do nothing is
taken off. Nothing else runs on a GPU meanwhile: it is waited for between turns.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from . import _abi, compiled, ep
from ._library import library
from .communicator import Communicator, join

Call = Callable[[], Any]


class Figure(NamedTuple):
    """A call, the calls in C that it consists of, and how many these are; and what is done before each turn, whose time
    is not taken."""

    name: str
    call: Call
    c: Call
    count: int
    before: Call = lambda: None


def medians(calls: Sequence[Call], turns: int = 1000, between: Call = lambda: None) -> list[float]:
    """The microseconds of calls that take turns."""
    each: list[list[float]] = [[] for _ in calls]
    for turn in range(-max(10, turns // 10), turns):
        for call, took in zip(calls, each, strict=True):
            since = time.perf_counter()
            call()
            if turn >= 0:
                took.append(time.perf_counter() - since)
            between()
    return [statistics.median(took) * 1e6 for took in each]


class Raw:
    """The calls of C's, with the arguments that handles of weft's have ready."""

    def __init__(self, comm: Communicator) -> None:
        self.lib, self._device = comm._lib, comm._device
        self._stream = 0
        if self._device >= 0:
            import torch

            self._stream = torch.cuda.current_stream(self._device).cuda_stream

    def dispatch(self, handle: ep.Handle, *arguments: Any, routing: int = 0, describes: Sequence[str] = ()) -> Call:
        """A dispatch of (topk, weights, rows), and giving back what it gave; with a description of its routing, of
        which a GPU's is the first array."""
        lib, on, args, number = self.lib, self._stream, handle._dispatches.take(), handle._handle
        args.arguments(routing, *arguments, None)
        on_host, tensor = self._device < 0, _abi.Tensor()
        described = handle._describing(tuple(describes), False).take() if describes and on_host else None
        arrays = None if described is None else described.arrays("plain", handle.capacity)
        part = _abi.Part[describes[0].upper()] if describes else 0
        kept, address, results, result = (
            (args, arguments, tensor, arrays),
            args.address,
            args.result_address,
            args.result,
        )

        def call(_kept: Any = kept) -> None:
            lib.ep_dispatch(number, on, address, results, 0)
            lib.received_release(result[1])
            if described is not None:
                lib.routing_describe(result[2], described.address)
            elif describes:
                lib.routing_tensor(result[2], part, tensor)
            if not routing:
                lib.routing_release(result[2])

        return call

    def combine(self, handle: ep.Handle, routing: int, rows: Any, out: Any, weights: Any = None) -> Call:
        """A combine."""
        args = handle._combines.take()
        args.arguments(routing, rows, out, None, weights)
        number, on, address, combine = handle._handle, self._stream, args.address, self.lib.ep_combine
        return lambda _kept=(args, rows, out, weights): combine(number, on, address, 0)

    def count(self, buffer: Any, topk: Any, experts: int) -> Call:
        """A count of where tokens go."""
        counting: Any
        if self._device < 0:
            counting = ep.token_counts._CountArgs()
            counting.topk.fill(topk)
            for i, n in enumerate((experts, 1, 1), 1):
                counting.words[i] = n
            arrays = [ctypes.create_string_buffer(8 * max(experts, topk.shape[0])) for _ in range(4)]
            for i, at in enumerate(arrays, 4):
                counting.words[i] = ctypes.addressof(at)
            return lambda _kept=arrays: self.lib.ep_count(counting.topk.address, counting.address)
        counter = buffer._exchanges._counters[experts]
        ranks, _, selections, within, _ = buffer.get_dispatch_layout(topk, experts)
        counting = counter._pool.take()
        at = counting.topk.fill(topk)
        for i, array in enumerate((ranks, None, selections, within.view(dtype=topk.new_empty(0).byte().dtype)), 1):
            counting.words[i] = counting.counts[i - 1].fill(array)
        count, number, on = self.lib.ep_token_counter_count, counter._handle, self._stream
        return lambda _kept=(ranks, selections, within): count(number, on, at, counting.address)


@contextlib.contextmanager
def of_handle(comm: Communicator, raw: Raw, x: Any, ids: Any, weights: Any, experts: int) -> Iterator[list[Figure]]:
    """The calls of a :class:`weft.ep.Handle` by a routing."""
    tokens, hidden = x.shape
    counts = "host" if comm._device < 0 else "device"
    with ep.Handle(
        comm, experts=experts, topk=ids.shape[1], hidden=hidden, max_tokens=tokens, live=3, counts=counts
    ) as handle:
        routing = handle.prepare(ids, weights)
        rows, out = handle.dispatch(x, routing=routing).rows.clone(), x.clone()
        yield [
            Figure(
                "Handle.dispatch by a routing, and its release",
                lambda: handle.dispatch(x, routing=routing),
                raw.dispatch(handle, None, None, x, routing=routing._number),
                2,
            ),
            Figure(
                "Handle.combine",
                lambda: handle.combine(rows, routing, out=out),
                raw.combine(handle, routing._number, rows, out),
                1,
            ),
        ]


@contextlib.contextmanager
def of_deep_ep(comm: Communicator, raw: Raw, x: Any, ids: Any, weights: Any, experts: int) -> Iterator[list[Figure]]:
    """The calls of deep_ep's Buffer. Of the last one the time of the GPU is printed."""
    import torch

    import deep_ep

    buffer = deep_ep.Buffer.from_communicator(comm)
    tokens, out = x.shape[0], torch.empty_like(x)
    options = {"topk_idx": ids, "topk_weights": weights}

    def lay_out() -> None:
        """As every layer of a model does before its dispatch."""
        layout = buffer.get_dispatch_layout(ids, experts)
        options.update(num_tokens_per_rank=layout[0], is_token_in_rank=layout[3], num_tokens_per_expert=layout[2])

    lay_out()
    rows, _, _, _, normal, _ = buffer.dispatch(x, **options)
    handle, routing = normal.route.by(ep.Payload.bf16)
    packed, _, low, *_ = buffer.low_latency_dispatch(x, ids, tokens, experts, use_fp8=False)
    buffer.low_latency_dispatch(x, ids, tokens, experts)
    low = buffer.low_latency_dispatch(x, ids, tokens, experts, use_fp8=False)[2]
    plain = buffer._low_latency._handle(low.sent.kind)
    quantising = buffer._low_latency._handle(low.sent.kind._replace(payload=ep.Payload.fp8))
    held, parts = plain.prepare(ids, weights), ("expert_counts",)
    packed, rows = packed.clone(), rows.clone()
    figures = [
        Figure(
            "get_dispatch_layout",
            lambda: buffer.get_dispatch_layout(ids, experts),
            raw.count(buffer, ids, experts),
            1,
        ),
        Figure(
            "low_latency_dispatch",
            lambda: buffer.low_latency_dispatch(x, ids, tokens, experts, use_fp8=False),
            raw.dispatch(plain, ids, None, x, describes=parts),
            4,
        ),
        Figure(
            "low_latency_dispatch, fp8",
            lambda: buffer.low_latency_dispatch(x, ids, tokens, experts),
            raw.dispatch(quantising, ids, None, x, describes=parts),
            4,
        ),
        Figure(
            "low_latency_combine",
            lambda: buffer.low_latency_combine(packed, ids, weights, low),
            raw.combine(plain, held._number, packed, out, weights),
            1,
        ),
        Figure(
            "low_latency_combine, with out",
            lambda: buffer.low_latency_combine(packed, ids, weights, low, out=out),
            raw.combine(plain, held._number, packed, out, weights),
            1,
        ),
        Figure(
            "dispatch by a handle",
            lambda: buffer.dispatch(x, handle=normal),
            raw.dispatch(handle, None, None, x, routing=routing._number),
            2,
        ),
        Figure("combine", lambda: buffer.combine(rows, normal), raw.combine(handle, routing._number, rows, out), 1),
    ]
    if comm._device < 0:
        _, _, gather = buffer._exchanges.gather_of(6 + 1)
        send = raw.dispatch(handle, ids, weights, x, describes=("row_experts", "row_selection_weights"))
        figures.append(Figure("dispatch", lambda: buffer.dispatch(x, **options), lambda: (gather(), send()), 5))
        figures += of_elastic(comm, raw, x, ids, weights, experts)
    else:
        send = raw.dispatch(handle, ids, weights, x, describes=("row_experts",))
        figures.append(Figure("dispatch, with its wait", lambda: buffer.dispatch(x, **options), send, 4, lay_out))
    yield figures
    if comm._device >= 0:
        work = gpu_time(lambda: buffer.dispatch(x, **options, num_worst_tokens=tokens * comm.ranks))
        print(f"the GPU's own time of `dispatch`, which does not wait with `num_worst_tokens`: {work:.1f} us")


def of_elastic(comm: Communicator, raw: Raw, x: Any, ids: Any, weights: Any, experts: int) -> list[Figure]:
    """The calls of deep_ep's ElasticBuffer on the host."""
    import deep_ep

    buffer, out = deep_ep.ElasticBuffer.from_communicator(comm, num_max_tokens_per_rank=x.shape[0]), x.clone()
    rows, *_, kept, _ = buffer.dispatch(x, ids, weights, num_experts=experts)
    handle, routing = next(iter(kept._route._routings.values()))
    return [
        Figure(
            "ElasticBuffer.dispatch",
            lambda: buffer.dispatch(x, ids, weights, num_experts=experts),
            raw.dispatch(handle, ids, weights, x, describes=("row_experts", "row_selection_weights")),
            4,
        ),
        Figure(
            "ElasticBuffer.dispatch by a handle",
            lambda: buffer.dispatch(x, handle=kept),
            raw.dispatch(handle, None, None, x, routing=routing._number),
            2,
        ),
        Figure(
            "ElasticBuffer.combine",
            lambda: buffer.combine(rows, kept),
            raw.combine(handle, routing._number, rows, out),
            1,
        ),
    ]


def gpu_time(call: Call) -> float:
    """The microseconds that a call's work takes a GPU which has it all before it begins."""
    import torch

    took = []
    for turn in range(30):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        if turn >= 10:
            took.append(first.elapsed_time(last) * 1e3)
    return statistics.median(took)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m weft.bench_calls", description=__doc__)
    parser.add_argument("--device", choices=("host", "gpu"), default="host", help="where the tensors are")
    parser.add_argument("--tokens", type=int, help="of the rank (host 4, gpu 128)")
    parser.add_argument("--hidden", type=int, help="numbers of a token (host 128, gpu 7168)")
    parser.add_argument("--experts", type=int, help="in all (host 4, gpu 256)")
    parser.add_argument("--topk", type=int, help="experts of a token (host 2, gpu 8)")
    parser.add_argument("--turns", type=int, default=1500, help="calls of each kind")
    parser.add_argument("--only", default="", help="part of the names of the calls to make")
    given = parser.parse_args(arguments)
    import torch

    on_gpu = given.device == "gpu"
    tokens, hidden, experts, topk = (
        n or default
        for n, default in zip(
            (given.tokens, given.hidden, given.experts, given.topk),
            (128, 7168, 256, 8) if on_gpu else (4, 128, 4, 2),
            strict=True,
        )
    )
    torch.set_num_threads(1)
    where = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    card = torch.cuda.get_device_name(0) if on_gpu else platform.machine()
    print(
        f"{datetime.date.today()}, Python {platform.python_version()}, PyTorch {torch.__version__}, {card}, "
        f"{'compiled' if compiled.in_use() else 'pure Python'}; {tokens} tokens of {hidden}, top-{topk} of "
        f"{experts}, median us of {given.turns}"
    )
    print("| call | us | C, us | more, us |\n|---|---|---|---|", flush=True)
    with join(engine="gpu", gpu=0, deadline=60) if on_gpu else join(deadline=60) as comm:
        x = torch.ones(tokens, hidden, dtype=torch.bfloat16, device=where)
        ids = (torch.arange(tokens, device=where).view(-1, 1) + torch.arange(topk, device=where)) % experts
        weights, raw = torch.ones(tokens, topk, device=where), Raw(comm)
        value = ctypes.c_int(1)
        name = library().status_name
        nothing = medians((lambda: name(value), lambda: None))
        makers = [of_handle]
        try:
            import deep_ep  # noqa: F401
        except ModuleNotFoundError:
            print("without deep_ep, whose package is not here")
        else:
            makers.append(of_deep_ep)
        for make in makers:
            with make(comm, raw, x, ids, weights, experts) as figures:
                for figure in figures:
                    if given.only not in figure.name:
                        continue

                    def between(before: Call = figure.before) -> None:
                        before()
                        if on_gpu:
                            torch.cuda.synchronize()

                    whole, c = medians((figure.call, figure.c), given.turns, between)
                    c -= figure.count * (nothing[0] - nothing[1])
                    print(f"| `{figure.name}` | {whole:.1f} | {c:.1f} | {whole - c:.1f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
