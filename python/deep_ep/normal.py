"""Normal exchanges: a row for each token and rank, as many as there are, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import weft
from weft import ep

from .errors import require
from .exchanges import Exchanges, scales_like

_PAYLOADS = {
    torch.bfloat16: ep.Payload.bf16,
    torch.float16: ep.Payload.fp16,
    torch.float32: ep.Payload.fp32,
    torch.float8_e4m3fn: ep.Payload.fp8,
}
_TYPES = {dtype: i for i, dtype in enumerate(_PAYLOADS)}

_HEAD = 6  # numbers of a rank's announcement before those of its tokens for each rank


@dataclasses.dataclass(frozen=True)
class Shape:
    """What all ranks have in common in an exchange."""

    hidden: int
    experts: int
    topk: int
    tokens: int  # the most of any rank, rounded up, so that there are few handles
    counts: ep.Counts


class Route:
    """Where tokens went. Exchanges of other types go the same way, by routings of their own."""

    def __init__(self, exchanges: Exchanges, shape: Shape, topk: Tensor) -> None:
        self._exchanges, self.shape, self.topk = exchanges, shape, topk
        self._routings: dict[ep.Payload, tuple[ep.Handle, ep.Routing]] = {}

    def handle(self, payload: ep.Payload) -> ep.Handle:
        """The handle for rows of a type. Collective."""
        shape = self.shape
        return self._exchanges.find(("normal", shape, payload)) or self._exchanges.handle(
            ("normal", shape, payload),
            experts=shape.experts,
            topk=shape.topk,
            hidden=shape.hidden,
            max_tokens=shape.tokens,
            layout=ep.Layout.token_major,
            payload=payload,
            counts=shape.counts,
        )

    def first(self, payload: ep.Payload, routing: ep.Routing) -> None:
        """Has rows of a type go by a routing."""
        self._routings[payload] = self.handle(payload), routing

    def by(self, payload: ep.Payload) -> tuple[ep.Handle, ep.Routing]:
        """The handle and the routing for rows of a type. Collective."""
        found = self._routings.get(payload)
        if found is None:
            handle = self.handle(payload)
            found = self._routings[payload] = handle, handle.prepare(self.topk)
        return found

    def home(self, dtype: torch.dtype) -> tuple[ep.Handle, ep.Routing]:
        """Those for sums of rows of a type: FP8's come home as bfloat16."""
        payload = _PAYLOADS[dtype]
        if payload == ep.Payload.bf16 and payload not in self._routings:
            for quantised in (ep.Payload.fp8, ep.Payload.fp8_ue8m0):
                if quantised in self._routings:
                    return self._routings[quantised]
        return self.by(payload)


class DispatchHandle(tuple[Any, ...]):
    """What DeepEP's handles are, and the route.

    That is (rank_prefix_matrix, channel_prefix_matrix, recv_channel_prefix_matrix, recv_src_idx, is_token_in_rank, send_head), made when it is read.
    """

    route: Route
    received: int
    _make: Callable[[], tuple[Tensor, ...]]
    _made: tuple[Tensor, ...] | None

    @classmethod
    def of(cls, route: Route, received: int, make: Callable[[], tuple[Tensor, ...]]) -> DispatchHandle:
        made = cls()
        made.route, made.received, made._make, made._made = route, received, make, None
        return made

    def contents(self) -> tuple[Tensor, ...]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.contents())

    def __getitem__(self, i: Any) -> Any:
        return self.contents()[i]

    def __len__(self) -> int:
        return 6

    def __repr__(self) -> str:
        return f"DispatchHandle{self.contents()}"


class Normal:
    """The normal exchanges of a buffer."""

    def __init__(self, exchanges: Exchanges) -> None:
        self._exchanges = exchanges
        self._announcement = torch.empty(0, dtype=torch.int32)
        self._numbers: Any = None

    def dispatch(
        self,
        x: Tensor,
        scales: Tensor | None,
        in_rank: Tensor,
        rank_tokens: Tensor,
        experts: int,
        topk: Tensor | None,
        weights: Tensor | None,
        alignment: int,
        channels: int,
        worst: int,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, list[int], DispatchHandle]:
        """Sends rows by routing of their own: the rows that arrive, scales, selections, weights, counts, the handle. Collective."""
        exchanges, selected = self._exchanges, topk is not None
        if topk is None:
            # Ranks are all that is known: each is an expert.
            experts, topk = exchanges.ranks, torch.where(in_rank, torch.arange(exchanges.ranks, device=in_rank.device), -1)
        everyone, tokens = self._announce(x, rank_tokens, experts, topk, channels, worst)
        shape = Shape(x.shape[1], experts, topk.shape[1], tokens, ep.Counts.device if worst else ep.Counts.host)
        route = Route(exchanges, shape, topk.clone())
        payload, sent = _as_payload(x, scales)
        handle = route.handle(payload)
        got = handle.dispatch(x, topk, weights, scales=sent)
        routing = got.routing
        route.first(payload, routing)
        rows, arrived = self._take(handle, got, scales)
        ids = sums = None
        counts: list[int] = []
        if selected:
            parts = ("row_experts", "row_selection_weights", "expert_demand")[slice(None, None, 1 if weights is not None else 2)]
            found = routing.parts(*parts)
            ids, demand = found[0], found[-1]
            sums = found[1] if weights is not None else None
            if not worst:
                counts = demand.tolist() if alignment == 1 else [-(-n // alignment) * alignment for n in demand.tolist()]
            if exchanges.on_gpu:  # where it shows the memory of the routing
                sums = None if sums is None else sums.clone()

        def contents() -> tuple[Tensor, ...]:
            return _matrices(everyone, in_rank, routing, channels)

        return rows, arrived, ids, sums, counts, DispatchHandle.of(route, rows.shape[0], contents)

    def _announce(self, x: Tensor, rank_tokens: Tensor, experts: int, topk: Tensor, channels: int, worst: int) -> tuple[Tensor, int]:
        """Everyone's tokens and those for each rank, int32 [ranks, 1 + ranks], and the most of any rank. Collective.

        With a worst case nothing is read here of what others say: it is the same on every rank, and says the most.
        """
        mine = (x.shape[0], x.shape[1], experts, topk.shape[1], _TYPES[x.dtype], channels)
        everyone = self._exchanges.all_gather(self._announced(mine, rank_tokens))
        kept = torch.cat((everyone[:, :1], everyone[:, _HEAD:]), 1)
        if worst:
            most = worst // self._exchanges.ranks
            require(
                x.shape[0] <= most,
                f"{x.shape[0]} tokens, and num_worst_tokens is {worst}, which has room for {most} of each rank: ranks * tokens is always enough",
            )
            return kept, most
        said = everyone[:, :_HEAD].tolist()
        most = 16
        for rank, theirs in enumerate(said):
            if theirs[1:] != list(mine[1:]):
                raise weft.MismatchError(f"dispatch: rank {rank} has hidden, experts, top-k, type and channels {theirs[1:]}, this one {list(mine[1:])}", rank)
            most = max(most, theirs[0])
        return kept, 1 << (most - 1).bit_length()

    def _announced(self, mine: tuple[int, ...], rank_tokens: Tensor) -> Tensor:
        if rank_tokens.is_cuda:
            return torch.cat((torch.tensor(mine, dtype=torch.int32, device=rank_tokens.device), rank_tokens.int()))
        announcement = self._announcement
        if announcement.shape[0] != _HEAD + rank_tokens.shape[0]:
            announcement = self._announcement = torch.empty(_HEAD + rank_tokens.shape[0], dtype=torch.int32)
            self._numbers = memoryview(announcement.numpy()), announcement[_HEAD:]
        numbers, behind = self._numbers
        for i, n in enumerate(mine):
            numbers[i] = n
        behind.copy_(rank_tokens)
        return announcement

    def again(self, x: Tensor, scales: Tensor | None, route: Route) -> tuple[Tensor, Tensor | None]:
        """Sends rows by a route that is known: those that arrive. Collective."""
        payload, sent = _as_payload(x, scales)
        handle, routing = route.by(payload)
        return self._take(handle, handle.dispatch(x, routing=routing, scales=sent), scales)

    def _take(self, handle: ep.Handle, got: ep.Received, sent: Tensor | None) -> tuple[Tensor, Tensor | None]:
        rows, scales = self._exchanges.take(handle, got)
        if sent is None or scales is None:
            return rows, None
        return rows, scales_like(sent, scales.view(torch.int32) if sent.dtype == torch.int32 else scales)

    def combine(self, x: Tensor, weights: Tensor | None, bias: tuple[Tensor, ...], handle: DispatchHandle) -> tuple[Tensor, Tensor | None]:
        """Brings rows home and sums them; weights come back to their selections. Collective."""
        by, routing = handle.route.home(x.dtype)
        require(x.shape[0] >= handle.received, f"x: {x.shape[0]} rows, and {handle.received} have come")
        rows = x if x.shape[0] == handle.received else x[: handle.received]
        if weights is None:
            return by.combine(rows, routing, bias=bias or None), None
        # The gradient of dispatch is that sum, and takes numbers of selections home beside it.
        summed, home = by.dispatch_backward(rows, routing, weights[: handle.received])
        return by.combine(rows, routing, bias=bias) if bias else summed, home

    def check(self, x: Tensor) -> None:
        require(x.dim() == 2 and x.is_contiguous(), f"x: shape {tuple(x.shape)} with strides {x.stride()}, want contiguous [tokens, hidden]")
        require(x.dtype in _PAYLOADS, f"x: type {x.dtype}, want one of {', '.join(map(str, _PAYLOADS))}")
        require(x.shape[1] * x.element_size() % 16 == 0, f"x: a row has {x.shape[1] * x.element_size()} bytes, want a multiple of 16")


def _as_payload(x: Tensor, scales: Tensor | None) -> tuple[ep.Payload, Tensor | None]:
    """What rows and scales are to the library. Words of int32 hold four powers of two."""
    if scales is None or scales.dtype != torch.int32:
        return _PAYLOADS[x.dtype], scales
    return ep.Payload.fp8_ue8m0, scales.contiguous().view(torch.float8_e8m0fnu)


def _matrices(everyone: Tensor, in_rank: Tensor, routing: ep.Routing, channels: int) -> tuple[Tensor, ...]:
    """What handles hold, of everyone's tokens and those for each rank."""
    ranks = everyone.shape[0]
    sources, tokens = routing.parts("source_ranks", "source_tokens")
    # The channels of a rank have consecutive tokens each, and the first ones of all.
    per_channel = ((everyone[:, 0] + (channels - 1)) // channels).clamp(1).long()
    come = sources >= 0
    of = torch.where(come, sources, 0).long()
    which = torch.where(come, of * channels + torch.where(come, tokens, 0) // per_channel[of], ranks * channels)
    arrived = (
        torch.zeros(ranks * channels + 1, dtype=torch.int32, device=sources.device).index_add_(0, which, torch.ones_like(sources))[:-1].view(ranks, channels)
    )
    sent = _by_channel(in_rank, channels)
    places = sent.cumsum(1).view(-1, ranks)[: in_rank.shape[0]] - 1
    return (
        everyone[:, 1:].cumsum(0).int(),
        sent.sum(1).t().cumsum(1).int(),
        (arrived.cumsum(1) - arrived).int(),
        tokens,
        in_rank,
        torch.where(in_rank, places, -1).int(),
    )


def _by_channel(in_rank: Tensor, channels: int) -> Tensor:
    """int64 [channels, tokens of each, ranks]: 1 for those of each channel's tokens that go to each rank."""
    per = max(1, -(-in_rank.shape[0] // channels))
    return torch.nn.functional.pad(in_rank.long(), (0, 0, 0, per * channels - in_rank.shape[0])).view(channels, per, -1)
