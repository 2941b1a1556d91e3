"""Low-latency exchanges: a place for every token of every rank at every expert, quantised on the way if asked for, in two halves if asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

import weft
from weft import ep

from .errors import require


@dataclasses.dataclass(frozen=True)
class Kind:
    """What decides about a handle."""

    tokens: int
    hidden: int
    experts: int
    topk: int
    payload: ep.Payload
    powers_of_two: bool


class LowLatencyHandle(tuple[Any, ...]):
    """What DeepEP's handles are, (src_info, layout_range, num_max_dispatch_tokens_per_rank, hidden, num_experts), and what was routed how."""

    kind: Kind
    topk: torch.Tensor


class LowLatency:
    """The low-latency exchanges of a buffer."""

    def __init__(self, comm: weft.Communicator) -> None:
        self._comm = comm
        self._handles: dict[Kind, ep.Handle] = {}
        self._next: dict[tuple[int, ...], torch.Tensor] = {}
        self._mask: set[int] = set()

    def _handle(self, kind: Kind) -> ep.Handle:
        if kind not in self._handles:
            fp8 = kind.payload != ep.Payload.bf16
            self._handles[kind] = ep.Handle(
                self._comm,
                experts=kind.experts,
                topk=kind.topk,
                hidden=kind.hidden,
                max_tokens=kind.tokens,
                payload=kind.payload,
                quantize="bfloat16" if fp8 else None,
                power_of_two_scales=kind.powers_of_two and kind.payload == ep.Payload.fp8,
                scale_order=ep.ScaleOrder.column_major if fp8 else ep.ScaleOrder.row_major,
            )
        return self._handles[kind]

    # Masks. DeepEP's are each rank's own; here the ranks that go on agree, when they next meet.

    def mask(self, rank: int, masked: bool) -> None:
        require(0 <= rank < self._comm.ranks, f"rank {rank} of {self._comm.ranks}")
        (self._mask.add if masked else self._mask.discard)(rank)

    def unmask(self) -> None:
        self._mask.clear()

    def masked(self) -> set[int]:
        return set(self._mask)

    def _settle_mask(self) -> None:
        if self._comm.mask != self._mask:
            self._comm.set_mask(self._mask)

    # Exchanges.

    def dispatch(
        self, x: torch.Tensor, topk: torch.Tensor, kind: Kind, stats: torch.Tensor | None, waits: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, LowLatencyHandle, Callable[[], None]]:
        """Sends; the last of what it returns receives, into the rest. Collective, as is that."""
        self._settle_mask()
        h, ranks = self._handle(kind), self._comm.ranks
        h.count_waits(dispatch=waits)
        pending = h.send_dispatch(x, topk, torch.ones(topk.shape, dtype=torch.float32))
        local, places = kind.experts // ranks, ranks * kind.tokens
        rows = torch.empty((local, places, kind.hidden), dtype=torch.bfloat16 if kind.payload == ep.Payload.bf16 else torch.float8_e4m3fn)
        scales = None
        if kind.payload != ep.Payload.bf16:
            packed = kind.payload == ep.Payload.fp8_ue8m0
            words = kind.hidden // (512 if packed else 128)
            scales = torch.empty((local, words, places), dtype=torch.int32 if packed else torch.float32)
        counts = torch.empty(local, dtype=torch.int32)
        sources, ranges = torch.empty((local, places), dtype=torch.int32), torch.empty((local, ranks), dtype=torch.int64)
        handle = LowLatencyHandle((sources, ranges, kind.tokens, kind.hidden, kind.experts))
        handle.kind, handle.topk = kind, topk.clone()

        def receive() -> None:
            with pending.receive() as got, got.routing as routing:
                counts.copy_(routing.expert_counts)
                ranges.copy_(routing.ranges)
                tokens = routing.source_tokens.view(local, places)
                arrived = got.rows
                arrived_scales = None if scales is None else got.scales.view(scales.dtype).view(scales.shape)
                for e, n in enumerate(counts.tolist()):
                    if n == 0:
                        continue
                    rows[e, :n] = arrived[e, :n]
                    sources[e, :n] = tokens[e, :n]
                    if scales is not None:
                        scales[e, :, :n] = arrived_scales[e, :, :n]
            if stats is not None:
                stats.add_(counts)

        # As they stand in memory, the same scale of consecutive rows is together.
        return rows, None if scales is None else scales.transpose(1, 2), counts, handle, receive

    def combine(
        self, x: torch.Tensor, topk: torch.Tensor, weights: torch.Tensor, handle: LowLatencyHandle, out: torch.Tensor, waits: torch.Tensor | None
    ) -> Callable[[], None]:
        """Sends; what it returns receives, into ``out``. Collective, as is that."""
        self._settle_mask()
        h = self._handle(handle.kind)
        h.count_waits(combine=waits)
        # Weights come with the combine, and a routing has them from its beginning: this one is where the dispatch went, with the weights of now.
        routing = h.prepare(handle.topk, torch.where(topk >= 0, weights, 0))
        pending = h.send_combine(x, routing, out=out)

        def receive() -> None:
            pending.wait()
            routing.release()

        return receive

    def next_buffer(self, handle: LowLatencyHandle) -> torch.Tensor:
        """Where the next zero-copy combine of such a handle finds its rows: bfloat16 [local experts, ranks * tokens, hidden]."""
        kind, ranks = handle.kind, self._comm.ranks
        shape = (kind.experts // ranks, ranks * kind.tokens, kind.hidden)
        if shape not in self._next:
            self._next[shape] = torch.empty(shape, dtype=torch.bfloat16)
        return self._next[shape]
