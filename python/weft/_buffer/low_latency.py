"""Low-latency exchanges: a place for every token of every rank at every expert, quantised on the way if
asked for, in two halves if asked for."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import weft
from weft import compiled, ep, memory
from weft.dtypes import DType
from weft.ep.routing import Columns

from .errors import ContractError
from .events import EventOverlap, nothing_to_wait_for
from .exchanges import SHOWN_BYTES, Era, Exchanges, Kept, where
from .lazy import Lazy
from .opaque import opaque
from .traces import leave

# Batches of rows that the library has memory for: two that the caller may keep, and the next.
_LIVE = 3

# The alignment of rows on GPUs.
_ALIGNMENT = 16


class Kind(NamedTuple):
    """The arguments that select a handle."""

    tokens: int
    hidden: int
    experts: int
    topk: int
    payload: ep.Payload
    powers_of_two: bool


class Given(NamedTuple):
    """The caller's tensors for the results of a dispatch, under MSCCL++'s names; None where the dispatch
    makes them."""

    packed_recv_x: Tensor | None = None
    """[local experts, ranks * tokens, hidden]"""
    packed_recv_x_scales: Tensor | None = None
    """[local experts, ranks * tokens, hidden / 128], or / 512 of packed ones"""
    packed_recv_src_info: Tensor | None = None
    """int32 [local experts, ranks * tokens]"""
    packed_recv_layout_range: Tensor | None = None
    """int64 [local experts, ranks]"""
    packed_recv_count: Tensor | None = None
    """int32 [local experts]"""


NOTHING = Given()

Arguments = tuple[int, int, bool, bool, bool]
"""Of a dispatch: the most tokens, experts, use_fp8, round_scale, use_ue8m0."""


class Selections:
    """The selections of a dispatch, for comparison with those of a combine, which may be in another order,
    with -1 for selections to leave out."""

    __slots__ = ("_kept", "_of", "_version", "shape")

    def __init__(self, topk: Tensor) -> None:
        self.shape, self._of = topk.shape, weakref.ref(topk)
        self._version = None if topk.is_inference() else topk._version
        self._kept = Kept(topk) if topk.is_cpu else None

    @classmethod
    def of(cls, routing: ep.Routing, topk: int) -> Selections:
        """Those that the compiled part has noted at a routing."""
        made, version, content = cls.__new__(cls), routing._version, routing._content
        made.shape, made._of = torch.Size((routing.tokens, topk)), routing._topk
        made._version = None if version < 0 else version
        made._kept = None if content is None else Kept.of(content, made.shape)
        return made

    def are(self, topk: Tensor) -> bool:
        """Whether they are this tensor, to which nothing was written since."""
        return self._version is not None and self._of() is topk and topk._version == self._version

    def check(self, topk: Tensor) -> None:
        """Refuses selections that a token had not; a GPU's numbers are not looked at."""
        if self._kept is None or self.are(topk):
            return
        if not bool((self._same(self._kept.tensor(), topk).any(1) | (topk < 0)).all()):
            raise ContractError("topk_idx selects other experts than the dispatch's did")

    def ordered(self, topk: Tensor, weights: Tensor) -> Tensor:
        """The weights of a combine's selections, in the order of the dispatch's; 0 for those that it leaves
        out, whose weights are not read.

        Where a GPU's tensor of the dispatch is no more, or may have been written to, selections are
        taken to be in its order.
        """
        if self.are(topk):
            return weights
        if self._kept is not None:
            mine: Tensor | None = self._kept.tensor()
        else:
            mine = self._of() if self._version is not None else None
            if mine is None or mine._version != self._version:
                return torch.where(topk >= 0, weights, 0)
        return torch.where(self._same(mine, topk), weights.unsqueeze(1), 0).sum(2)

    @staticmethod
    def _same(mine: Tensor, topk: Tensor) -> Tensor:
        """bool [tokens, topk, topk]: whether a token's selection is one of the other's."""
        return (mine.unsqueeze(2) == topk.unsqueeze(1)) & (mine >= 0).unsqueeze(2)


@dataclasses.dataclass
class Sent:
    """The state of a dispatch that its combine needs."""

    kind: Kind
    topk: Selections
    era: Era
    routing: ep.Routing | None = None
    """None until the rows are received."""


class LowLatencyHandle(Lazy):
    """DeepEP's handle (src_info, layout_range, num_max_dispatch_tokens_per_rank, hidden, num_experts), and
    the routing."""

    _length = 5
    _sent: Sent | None = None
    _parts: tuple[Tensor, Tensor] | None = None
    _quick: tuple[Any, ep.Handle, Kind, Era, ep.Routing] | None = None
    """What the compiled part's dispatches leave instead."""

    @classmethod
    def of(cls, sent: Sent, parts: tuple[Tensor, Tensor] | None = None) -> LowLatencyHandle:
        """The handle of a dispatch. Where its rows come from, [local experts, places], and their ranges are in
        ``parts``, else its routing has them."""
        made = cls()
        made._sent, made._parts = sent, parts
        return made

    @property
    def sent(self) -> Sent:
        """The state that the combine needs."""
        if self._sent is None and self._quick is not None:
            _, _, kind, era, routing = self._quick
            self._sent = Sent(kind, Selections.of(routing, kind.topk), era, routing)
        return self._sent  # type: ignore[return-value]

    def _make(self) -> tuple[Any, ...]:
        sent = self.sent
        kind, routing = sent.kind, sent.routing
        sources, ranges = self._parts or routing.parts("source_tokens", "ranges")  # type: ignore[union-attr]
        leave(ranges, sent)
        return sources.view(ranges.shape[0], -1), ranges, kind.tokens, kind.hidden, kind.experts


class Results(NamedTuple):
    """The results of a dispatch, in the order of :class:`Given`."""

    rows: Tensor
    scales: Tensor | None
    sources: Tensor
    ranges: Tensor
    counts: Tensor

    def handle(self, sent: Sent) -> LowLatencyHandle:
        return LowLatencyHandle.of(sent, (self.sources, self.ranges))


class Hook:
    """The hook that receives. If it is collected before it was called, the next exchange of its kind receives
    first, and the rows are lost."""

    __slots__ = ("__weakref__", "_receive")

    def __init__(self, receive: Callable[[], None]) -> None:
        self._receive = receive

    @opaque
    def __call__(self) -> None:
        self._receive()


class LowLatency:
    """The low-latency exchanges of a buffer."""

    def __init__(self, exchanges: Exchanges, sms: int = 0) -> None:
        """``sms``: multiprocessors that its kernels may fill, 0 for all that other buffers have left."""
        self._exchanges, self._comm, self._sms = exchanges, exchanges.comm, sms
        self._stream = exchanges.stream
        self._next: dict[tuple[int, ...], Tensor] = {}
        # The hooks of exchanges that were sent, by handle, and their actions.
        self._sent: dict[ep.Handle, tuple[weakref.ref[Hook], ep.PendingDispatch | ep.PendingCombine]] = {}
        self._waits: dict[ep.Handle, list[Tensor | None]] = {}
        # The compiled part's exchanges, by the caller's arguments, and what they need.
        self._plans: dict[Arguments, tuple[Any, ep.Handle, Kind]] = {}
        exchanges.of_handles += (self._sent, self._waits, self._plans)
        # What may have come between a dispatch and its combine; the streams of exchanges, and their ends.
        disturbing = self._sent, self._waits, exchanges.mask, exchanges, exchanges.comm
        self._watched = disturbing, self._stream.in_order, EventOverlap

    def _handle(self, kind: Kind) -> ep.Handle:
        found = self._exchanges.find(kind)
        if found is not None:
            return found
        fp8 = kind.payload != ep.Payload.bf16
        return self._exchanges.handle(
            kind,
            experts=kind.experts,
            topk=kind.topk,
            hidden=kind.hidden,
            max_tokens=kind.tokens,
            payload=kind.payload,
            quantize="bfloat16" if fp8 else None,
            power_of_two_scales=kind.powers_of_two and kind.payload == ep.Payload.fp8,
            scale_order=ep.ScaleOrder.column_major if fp8 else ep.ScaleOrder.row_major,
            live=_LIVE,
            sms=self._sms if self._sms and self._exchanges.on_gpu else self._exchanges.most_sms,
        )

    def _count_waits(self, h: ep.Handle, which: int, into: Tensor | None) -> None:
        """Has later dispatches (0) or combines (1) of a handle count their waits."""
        counted = self._waits.get(h)
        if counted is None:
            if into is None:
                return
            counted = self._waits[h] = [None, None]
        if counted[which] is not into:
            new = [into if i == which else t for i, t in enumerate(counted)]
            h.count_waits(*new)
            counted[:] = new

    # Exchanges.

    def dispatch(
        self, x: Tensor, topk: Tensor, kind: Kind, stats: Tensor | None, waits: Tensor | None, given: Given = NOTHING
    ) -> tuple[Tensor, Tensor | None, Tensor, LowLatencyHandle]:
        """Sends and receives: rows, scales, counts, the handle. Rows may stay where they have arrived,
        unless the caller has given tensors. Collective."""
        ranks, into = self._comm.ranks, None if given is NOTHING else _results(given, kind, self._comm.ranks, x.device)
        h = self._begin(kind, x, waits)
        sent = Sent(kind, Selections(topk), self._exchanges.era)
        if into is not None:
            self._fill(into, sent, h.dispatch(x, topk), stats)
            return into.rows, into.scales, into.counts, into.handle(sent)
        rows, scales, routing = self._exchanges.dispatch(h, x, None, topk, None, columns=_columns(kind, ranks))
        sent.routing = routing
        (counts,) = routing.parts("expert_counts")
        if stats is not None:
            stats.add_(counts)
        return rows, scales, counts, LowLatencyHandle.of(sent)

    def plan(self, arguments: Arguments, sent: Sent) -> None:
        """Has the compiled part make dispatches of these arguments, and their combines, from now on."""
        kind, on_gpu = sent.kind, self._exchanges.on_gpu
        h = self._exchanges.find(kind)
        known = self._plans.get(arguments)
        if h is None or h._calls is None or (known is not None and known[2] == kind) or not compiled.in_use():
            return
        device, ranks = self._comm._device, self._comm.ranks
        local, places = kind.experts // ranks, ranks * kind.tokens
        columns = _columns(kind, ranks)
        of_scales, (_, words, _) = (DType.float32, (0, 0, 0)) if columns is None else columns
        rows = DType.bfloat16 if columns is None else DType.float8_e4m3

        def sample(_: int) -> Tensor:
            like = torch.empty((local, words, places), dtype=memory.torch_dtype(of_scales), device="cpu")
            return like.transpose(1, 2)

        copies = local * places * (kind.hidden * rows.itemsize + 4 * words) <= SHOWN_BYTES and not on_gpu
        if not copies and not (compiled.NATIVE.shows(rows) and compiled.NATIVE.shows(of_scales)):
            return
        made = compiled.NATIVE.LowLatency(
            h._calls,
            self._exchanges.shown_of(h),
            memory.samples((local, places, kind.hidden), rows, device),
            sample,
            memory.samples((local,), DType.int32, device),
            copies,
            h.spec.live,
            0 if columns is None else int(of_scales),
            kind.tokens,
            kind.hidden,
            kind.topk,
            local,
            places,
            words,
        )
        self._plans[arguments] = made, h, kind

    def quick_dispatch(
        self, arguments: Arguments, x: Tensor, topk: Tensor, stats: Tensor | None
    ) -> tuple[Any, Tensor, LowLatencyHandle, EventOverlap, None] | None:
        """What deep_ep returns of a dispatch without a hook, in the current stream, by the compiled part; None where
        it declines. Collective."""
        found = self._plans.get(arguments)
        if found is None or self._sent or self._waits or not self._exchanges.mask.agreed:
            return None
        plan, h, kind = found
        if self._exchanges.in_streams and h in self._exchanges.captured:
            return None
        got = self._stream.run_quick(plan.dispatch, h, x, topk)
        if got is None:
            return None
        arrived, counts, routing = got
        if counts is None:
            (counts,) = routing.parts("expert_counts")
        if stats is not None:
            stats.add_(counts)
        made = LowLatencyHandle()
        made._quick = plan, h, kind, self._exchanges.era, routing
        return arrived, counts, made, nothing_to_wait_for(), None

    def quick_combine(
        self, x: Tensor, topk: Tensor, weights: Tensor, handle: LowLatencyHandle, out: Tensor | None
    ) -> tuple[Tensor, EventOverlap, None] | None:
        """The same of a combine, after a dispatch by the compiled part, with its selections. Collective."""
        quick = handle._quick
        return None if quick is None else quick[0].combine(*self._watched, quick, x, topk, weights, out)

    def send(
        self, x: Tensor, topk: Tensor, kind: Kind, stats: Tensor | None, waits: Tensor | None, given: Given = NOTHING
    ) -> tuple[Tensor, Tensor | None, Tensor, LowLatencyHandle, Callable[[], None]]:
        """Sends. The last of the returned values is a hook that receives into the others. Collective, as is
        that."""
        into = _results(given, kind, self._comm.ranks, x.device)
        h = self._begin(kind, x, waits)
        sent = Sent(kind, Selections(topk), self._exchanges.era)
        pending = self._stream.run_half(h.send_dispatch, x, x, topk)

        def receive() -> None:
            self._stream.run_half(lambda: self._fill(into, sent, pending.receive(), stats), x)
            self._sent.pop(h, None)

        hook = Hook(receive)
        self._sent[h] = weakref.ref(hook), pending
        return into.rows, into.scales, into.counts, into.handle(sent), hook

    def _finish(self, h: ep.Handle, like: Tensor) -> None:
        """Receives a handle's pending exchange if its hook was collected."""
        hook, pending = self._sent[h]
        if hook() is not None:
            return
        del self._sent[h]
        if pending.over:
            return
        # The hook has no caller, so it raises nothing: a lasting failure fails the next exchange, too.
        with contextlib.suppress(weft.WeftError):
            if isinstance(pending, ep.PendingDispatch):
                self._stream.run_half(lambda: pending.receive().release(), like)
            else:
                self._stream.run_half(pending.wait, like)

    def _fill(self, into: Results, sent: Sent, received: ep.Received, stats: Tensor | None) -> None:
        """Copies the received rows to their destinations: only rows that exist, on a GPU too. The rest of the
        destinations is not written."""
        with received as got:
            sent.routing = got.routing
            scales, order = _ordered(into.scales)
            got.copy_to(
                into.rows,
                scales,
                scale_order=order,
                source_tokens=into.sources.view(-1),
                expert_counts=into.counts,
                ranges=into.ranges,
            )
        if stats is not None:
            stats.add_(into.counts)

    def _begin(self, kind: Kind, like: Tensor, waits: Tensor | None) -> ep.Handle:
        if not self._exchanges.mask.agreed:
            self._exchanges.mask.agree()
        h = self._handle(kind)
        if h in self._sent:
            self._finish(h, like)
        self._count_waits(h, 0, waits)
        return h

    def combine(
        self, x: Tensor, topk: Tensor, weights: Tensor, sent: Sent, out: Tensor, waits: Tensor | None, later: bool
    ) -> Callable[[], None] | None:
        """Sends, and receives into ``out``. With a hook, calling the hook receives. Collective, as is
        that."""
        if sent.routing is None:
            raise ContractError("the hook of the dispatch was not called: call it before the rows are combined")
        if not self._exchanges.mask.agreed:
            self._exchanges.mask.agree()
        self._exchanges.check_era(sent.era)
        h = self._handle(sent.kind)
        if h in self._sent:
            self._finish(h, x)
        self._count_waits(h, 1, waits)
        weights = sent.topk.ordered(topk, weights)
        if not later:
            h.combine(x, sent.routing, weights=weights, out=out)
            return None
        pending = self._stream.run_half(lambda: h.send_combine(x, sent.routing, weights=weights, out=out), x)

        def receive() -> None:
            self._stream.run_half(pending.wait, x)
            self._sent.pop(h, None)

        hook = Hook(receive)
        self._sent[h] = weakref.ref(hook), pending
        return hook

    def next_buffer(self, tokens: int, hidden: int, experts: int) -> Tensor:
        """Where the next zero-copy combine of such sizes finds its rows: bfloat16 [local experts, ranks
        * tokens, hidden]."""
        ranks = self._comm.ranks
        shape = (experts // ranks, ranks * tokens, hidden)
        if shape not in self._next:
            with torch.inference_mode(False):  # it is written in any mode
                self._next[shape] = torch.empty(shape, dtype=torch.bfloat16, device=where(self._comm))
        return self._next[shape]


def _results(given: Given, kind: Kind, ranks: int, device: torch.device) -> Results:
    """The destinations of a dispatch: the caller's tensors, if they fit, and new ones."""
    local, places = kind.experts // ranks, ranks * kind.tokens
    plain, packed = kind.payload == ep.Payload.bf16, kind.payload == ep.Payload.fp8_ue8m0
    words = kind.hidden // (512 if packed else 128)
    x, scales, sources, ranges, counts = given
    if x is not None and x.is_cuda and x.data_ptr() % _ALIGNMENT:
        raise ContractError(
            f"packed_recv_x as given begins at {x.data_ptr():#x}, want a multiple of {_ALIGNMENT} bytes on a GPU"
        )
    return Results(
        _result(
            "packed_recv_x", x, (local, places, kind.hidden), torch.bfloat16 if plain else torch.float8_e4m3fn, device
        ),
        None if plain else _scales(scales, (local, places, words), torch.int32 if packed else torch.float32, device),
        _result("packed_recv_src_info", sources, (local, places), torch.int32, device),
        _result("packed_recv_layout_range", ranges, (local, ranks), torch.int64, device),
        _result("packed_recv_count", counts, (local,), torch.int32, device),
    )


def _result(
    name: str, given: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    if given is None:
        return torch.empty(shape, dtype=dtype, device=device)
    _check_given(name, given, shape, dtype, device)
    if not given.is_contiguous():
        raise ContractError(f"{name} as given: strides {given.stride()}, want a contiguous tensor")
    return given


def _scales(given: Tensor | None, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The same scale of consecutive rows is together in memory, as grouped products want them."""
    if given is None:
        return torch.empty((shape[0], shape[2], shape[1]), dtype=dtype, device=device).transpose(1, 2)
    _check_given("packed_recv_x_scales", given, shape, dtype, device)
    if not given.is_contiguous() and not given.transpose(1, 2).is_contiguous():
        raise ContractError(
            f"packed_recv_x_scales as given: strides {given.stride()}, want a contiguous tensor, or its last "
            f"two dimensions changed round"
        )
    return given


def _check_given(name: str, given: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    if given.shape != shape or given.dtype != dtype or given.device != device:
        raise ContractError(
            f"{name} as given: {given.dtype} of shape {tuple(given.shape)} on {given.device}, want {dtype} of "
            f"shape {shape} on {device}"
        )


def _ordered(scales: Tensor | None) -> tuple[Tensor | None, ep.ScaleOrder]:
    """Scales [local experts, places, words] as they stand in memory, and in which order."""
    if scales is None or scales.transpose(1, 2).is_contiguous():
        return None if scales is None else scales.transpose(1, 2), ep.ScaleOrder.column_major
    return scales.view(torch.uint8) if scales.dtype == torch.int32 else scales, ep.ScaleOrder.row_major


@functools.cache
def _columns(kind: Kind, ranks: int) -> Columns | None:
    """How scales [local experts, places, words] stand in memory: the same one of consecutive rows together."""
    if kind.payload == ep.Payload.bf16:
        return None
    packed = kind.payload == ep.Payload.fp8_ue8m0
    return DType.int32 if packed else DType.float32, (
        kind.experts // ranks,
        kind.hidden // (512 if packed else 128),
        ranks * kind.tokens,
    )
