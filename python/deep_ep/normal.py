"""Normal exchanges: a row for each token and rank, as many as there are, and back."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

import weft
from weft import ep

from .errors import require

_PAYLOADS = {
    torch.bfloat16: ep.Payload.bf16,
    torch.float16: ep.Payload.fp16,
    torch.float32: ep.Payload.fp32,
    torch.float8_e4m3fn: ep.Payload.fp8,
}


@dataclasses.dataclass(frozen=True)
class Shape:
    """What all ranks have in common in an exchange."""

    hidden: int
    experts: int
    topk: int
    tokens: int  # the most of any rank, rounded up, so that there are few handles


class Route:
    """Where tokens went. Exchanges of other types go the same way, by routings of their own."""

    def __init__(self, normal: Normal, shape: Shape, topk: torch.Tensor, weights: torch.Tensor) -> None:
        self._normal, self.shape = normal, shape
        self._topk, self._weights = topk, weights
        self._routings: dict[ep.Payload, tuple[ep.Handle, ep.Routing]] = {}

    def by(self, payload: ep.Payload) -> tuple[ep.Handle, ep.Routing]:
        """The handle and the routing for rows of a type. Collective."""
        if payload not in self._routings:
            handle = self._normal.handle(self.shape, payload)
            self._routings[payload] = handle, handle.prepare(self._topk, self._weights)
        return self._routings[payload]


class DispatchHandle(tuple[Any, ...]):
    """What DeepEP's handles are, and the route.

    That is (rank_prefix_matrix, channel_prefix_matrix, recv_channel_prefix_matrix, recv_src_idx, is_token_in_rank, send_head).
    """

    route: Route
    received: int


class Normal:
    """The normal exchanges of a buffer."""

    def __init__(self, comm: weft.Communicator) -> None:
        self._comm, self._group = comm, weft.Group(comm)
        self._handles: dict[tuple[Shape, ep.Payload], ep.Handle] = {}

    def handle(self, shape: Shape, payload: ep.Payload) -> ep.Handle:
        """The handle of a shape and a type. Collective."""
        key = shape, payload
        if key not in self._handles:
            self._handles[key] = ep.Handle(
                self._comm, experts=shape.experts, topk=shape.topk, hidden=shape.hidden, max_tokens=shape.tokens, layout=ep.Layout.token_major, payload=payload
            )
        return self._handles[key]

    def dispatch(
        self,
        x: torch.Tensor,
        scales: torch.Tensor | None,
        in_rank: torch.Tensor,
        expert_tokens: torch.Tensor,
        topk: torch.Tensor | None,
        weights: torch.Tensor | None,
        channels: int,
    ) -> tuple[torch.Tensor, torch.Tensor | None, ep.Routing, DispatchHandle]:
        """Sends rows by routing of their own: the rows that arrive, their scales, the routing, the handle. Collective."""
        comm = self._comm
        sent = _channel_counts(in_rank, channels)
        experts = expert_tokens.shape[0]
        if topk is None:
            # Ranks are all that is known: each is an expert.
            experts, topk = comm.ranks, torch.where(in_rank, torch.arange(comm.ranks), -1)
        header = torch.tensor([x.shape[0], x.shape[1], experts, topk.shape[1], list(_PAYLOADS).index(x.dtype), channels])
        everyone = self._group.all_gather(torch.cat((header, sent.flatten())))
        headers = everyone[:, :6].tolist()
        for rank, theirs in enumerate(headers):
            if theirs[1:] != headers[comm.rank][1:]:
                raise weft.MismatchError(
                    f"dispatch: rank {rank} has hidden, experts, top-k, type and channels {theirs[1:]}, this one {headers[comm.rank][1:]}", rank
                )
        tokens = max(16, 1 << (max(theirs[0] for theirs in headers) - 1).bit_length())
        if weights is None:
            weights = torch.ones(topk.shape, dtype=torch.float32)
        route = Route(self, Shape(x.shape[1], experts, topk.shape[1], tokens), topk.clone(), weights.clone())
        rows, got_scales, routing = self.again(x, scales, route)
        counts = everyone[:, 6:].view(comm.ranks, comm.ranks, channels).cumsum(2)
        handle = DispatchHandle(
            (
                counts[:, :, -1].cumsum(0).int(),
                sent.cumsum(1).int(),
                torch.nn.functional.pad(counts[:, comm.rank, :-1], (1, 0)).int(),
                routing.source_tokens,
                in_rank,
                _heads(in_rank, channels),
            )
        )
        handle.route, handle.received = route, rows.shape[0]
        return rows, got_scales, routing, handle

    def again(self, x: torch.Tensor, scales: torch.Tensor | None, route: Route) -> tuple[torch.Tensor, torch.Tensor | None, ep.Routing]:
        """Sends rows by a route that is known: those that arrive, in memory of their own. Collective."""
        payload = _PAYLOADS[x.dtype]
        packed = scales is not None and scales.dtype == torch.int32
        if packed:
            payload = ep.Payload.fp8_ue8m0
            scales = scales.clone(memory_format=torch.contiguous_format).view(torch.float8_e8m0fnu)
        handle, routing = route.by(payload)
        with handle.dispatch(x, routing=routing, scales=scales) as got:
            rows, arrived = got.rows.clone(), got.scales
            if arrived is not None:
                arrived = arrived.clone().view(torch.int32) if packed else arrived.clone()
        return rows, arrived, routing

    def combine(
        self, x: torch.Tensor, weights: torch.Tensor | None, bias: tuple[torch.Tensor, ...], handle: DispatchHandle
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Brings rows home and sums them; weights come back to their selections. Collective."""
        by, routing = handle.route.by(_PAYLOADS[x.dtype])
        rows = x[: handle.received]
        if weights is None:
            return by.combine(rows, routing, bias=bias or None), None
        # The gradient of dispatch is that sum, and takes numbers of selections home beside it.
        summed, home = by.dispatch_backward(rows, routing, weights[: handle.received])
        return by.combine(rows, routing, bias=bias) if bias else summed, home

    def check(self, x: torch.Tensor) -> None:
        require(x.dim() == 2 and x.is_contiguous(), f"x: shape {tuple(x.shape)} with strides {x.stride()}, want contiguous [tokens, hidden]")
        require(x.dtype in _PAYLOADS, f"x: type {x.dtype}, want one of {', '.join(map(str, _PAYLOADS))}")
        require(x.shape[1] * x.element_size() % 16 == 0, f"x: a row has {x.shape[1] * x.element_size()} bytes, want a multiple of 16")


def _per_channel(tokens: int, channels: int) -> int:
    return max(1, -(-tokens // channels))


def _channel_counts(in_rank: torch.Tensor, channels: int) -> torch.Tensor:
    """int64 [ranks, channels]: the tokens for each rank in each channel, which has consecutive tokens."""
    per = _per_channel(in_rank.shape[0], channels)
    padded = torch.nn.functional.pad(in_rank.long(), (0, 0, 0, per * channels - in_rank.shape[0]))
    return padded.view(channels, per, -1).sum(1).t().contiguous()


def _heads(in_rank: torch.Tensor, channels: int) -> torch.Tensor:
    """int32 [tokens, ranks]: which of its channel's tokens for a rank each one is; -1 for none."""
    per = _per_channel(in_rank.shape[0], channels)
    padded = torch.nn.functional.pad(in_rank.long(), (0, 0, 0, per * channels - in_rank.shape[0]))
    places = padded.view(channels, per, -1).cumsum(1).view(per * channels, -1)[: in_rank.shape[0]] - 1
    return torch.where(in_rank, places, -1).int()
