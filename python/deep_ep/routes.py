"""Where the tokens of a dispatch of the second interface go, and the sums that come home."""

from __future__ import annotations

import copy
import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft import ep
from weft._buffer.errors import ContractError, require
from weft._buffer.exchanges import Exchanges


class Shape(NamedTuple):
    """What all ranks have in common in an exchange."""

    experts: int
    topk: int
    tokens: int  # the most of a rank
    alignment: int
    expand: bool
    sms: int  # of a GPU, that exchanges may fill


_BF16, _OPAQUE = ep.Payload.bf16, ep.Payload.opaque


class Rows:
    """Rows as the library takes them: their payload, and scales as it knows them."""

    def __init__(self, rows: Tensor, scales: Tensor | None) -> None:
        self.rows, self.given = rows, scales
        self.hidden = rows.shape[1]
        self.payload, self.scales, self.scale_bytes = _BF16, None, 0
        if scales is None:
            return
        if scales.dtype == torch.float32 and scales.shape[1] * 128 == self.hidden:
            self.payload, self.scales = ep.Payload.fp8, scales.contiguous()
            return
        # Of whatever they are for, whole 16 bytes of them.
        words = -(-scales.shape[1] // 4) * 4
        self.payload, self.scale_bytes = _OPAQUE, 4 * words
        self.rows = rows.view(torch.uint8)
        self.scales = torch.nn.functional.pad(scales.contiguous().view(torch.int32), (0, words - scales.shape[1])).view(torch.uint8)

    @property
    def key(self) -> tuple[Any, ...]:
        return self.payload, self.hidden, self.scale_bytes

    @property
    def spec(self) -> dict[str, Any]:
        if self.payload != _OPAQUE:
            return {"payload": self.payload, "hidden": self.hidden}
        return {"payload": self.payload, "hidden": self.hidden, "row_bytes": self.hidden, "scale_bytes": self.scale_bytes, "output": "bfloat16"}

    def restored(self, rows: Tensor, scales: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What has arrived, of the types that were sent."""
        if self.payload != _OPAQUE:
            return rows, scales
        return rows.view(torch.float8_e4m3fn), scales.view(self.given.dtype)[:, : self.given.shape[1]]


class Route:
    """Where tokens went. Exchanges of other types go the same way, by routings of their own.

    Rows travel by handles whose experts are the ranks: a token selects the ranks of its experts, in the order of its last selections there, and sums in the
    order of selections are then DeepEP's. What describes the rows, and their weights, travels by a handle of its own, whose rows are the weights.
    """

    def __init__(self, exchanges: Exchanges, shape: Shape, topk: Tensor, weights: Tensor | None, exact: bool) -> None:
        self._exchanges, self.shape, self.topk, self._exact = exchanges, shape, topk, exact
        self._counts = ep.Counts.host if exact and not exchanges.on_gpu else ep.Counts.device
        self._routings: dict[Any, tuple[ep.Handle, ep.Routing]] = {}
        self._visits: Tensor | None = None
        self._sums: Route | None = None
        self._describe(weights)

    # What there is to know.

    def _describe(self, weights: Tensor | None) -> None:
        s = self.shape
        key = "describing", s.experts, s.topk, s.tokens, self._counts, s.sms
        self._lanes = -(-s.topk // 4) * 4
        self._describing = self._exchanges.find(key) or self._exchanges.handle(
            key,
            experts=s.experts,
            topk=s.topk,
            hidden=self._lanes,
            max_tokens=s.tokens,
            layout=ep.Layout.token_major,
            payload=ep.Payload.fp32,
            counts=self._counts,
            sms=s.sms,
        )
        # Weights are those of the first dispatch, and the same on every rank or none.
        self._routing = self._describing.prepare(self.topk, weights)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What exchanges read of it."""
        return (self.topk,)

    @functools.cached_property
    def _told(self) -> list[int] | None:
        """On a GPU, where routings do not say it: the tokens that come of each rank, then the selections of each expert here.

        Asking waits for them, and it is all that a dispatch waits for. None if the host is not to know, or does.
        """
        if not (self._exact and self._exchanges.on_gpu):
            return None
        return self._exchanges.told(torch.cat(self._routing.parts("source_counts", "expert_demand"))).tolist()  # type: ignore[no-any-return]

    @functools.cached_property
    def _come(self) -> int | None:
        """The tokens that come, where routings do not say it."""
        return None if self._told is None else sum(self._told[: self._exchanges.ranks])

    @functools.cached_property
    def received(self) -> int:
        """How many tokens have come; how many may have, if the host was not told."""
        if self._come is not None:
            return self._come
        return self._routing.rows if self._exact else self._describing.capacity

    @property
    def _rows(self) -> int | None:
        """The rows that a dispatch brings, pads included, likewise."""
        if self._told is None or not self.shape.expand:
            return self._come
        return sum(self._aligned(self._told[self._exchanges.ranks :]))

    def _rows_by(self, routing: ep.Routing) -> int:
        return routing.rows if self._rows is None else self._rows

    def _aligned(self, counts: list[int]) -> list[int]:
        a = self.shape.alignment
        return counts if a == 1 else [-(-n // a) * a for n in counts]

    @functools.cached_property
    def _experts(self) -> Tensor:
        """int64 [rows, topk]: local experts, -1 for those elsewhere."""
        return self._routing.parts("row_experts", rows=self._come)[0]  # type: ignore[no-any-return]

    def selections(self, weighted: bool, sync: bool) -> tuple[Tensor | None, Tensor | None, list[int]]:
        """What the caller is told: of tokens the local experts, and weights, int64 and float32 [rows, topk]; expanded the weights of rows.

        And the rows of each local expert, pads included, if the host is to know.
        """
        s = self.shape
        names = ((), ("row_selection_weights",)) if s.expand else (("row_experts",), ("row_experts", "row_selection_weights"))
        told = self._told
        found = list(self._routing.parts(*names[weighted], demand=sync and told is None, rows=self._come))
        demand = [] if not sync else found.pop() if told is None else told[self._exchanges.ranks :]
        demand = self._aligned(demand)
        weights = found.pop() if weighted else None
        if weights is not None:
            weights = self._expanded(weights) if s.expand else weights.clone() if self._exchanges.on_gpu else weights
        return found[0] if found else None, weights, demand

    @functools.cached_property
    def _expert_counts(self) -> Tensor:
        return self._routing.parts("expert_demand")[0]  # type: ignore[no-any-return]

    def expert_counts(self) -> Tensor:
        """int32 [local experts]."""
        return self._expert_counts

    def tokens_of_ranks(self) -> Tensor:
        """int32 [ranks]: the tokens of each source rank and those before."""
        (counts,) = self._routing.parts("source_counts")
        return counts.cumsum(0, dtype=torch.int32)

    def _padded(self) -> Tensor:
        a = self.shape.alignment
        return (self._expert_counts + (a - 1)) // a * a

    def ends_of_experts(self) -> Tensor:
        """int32 [local experts]: where each expert's rows end; those of an expanded dispatch without their pads."""
        ends = self._padded().cumsum(0, dtype=torch.int32)
        return ends - self._padded() + self._expert_counts if self.shape.expand else ends

    def most_expanded(self) -> int:
        """The most rows that can come expanded, pads included."""
        s, ranks = self.shape, self._exchanges.ranks
        local = s.experts // ranks
        return -(-(ranks * s.tokens * min(s.topk, local) + (s.alignment - 1) * local) // s.alignment) * s.alignment

    def _slots(self) -> Tensor:
        """int64 [rows, topk]: the expanded row of each selection here, -1 for those elsewhere: an expert's are in the order of tokens."""
        here = self._experts >= 0
        local = self.shape.experts // self._exchanges.ranks
        which = torch.where(here, self._experts, local)
        chosen = torch.zeros((self.received, local + 1), dtype=torch.int32, device=which.device).scatter_(1, which, 1)
        starts = torch.nn.functional.pad(self._padded().cumsum(0)[:-1], (1, 1))
        return torch.where(here, starts[which] + chosen.cumsum(0).gather(1, which) - 1, -1)

    def sources(self) -> Tensor:
        """What DeepEP calls recv_src_metadata."""
        ranks, tokens = self._routing.parts("source_ranks", "source_tokens", rows=self._come)
        lanes = torch.arange(self.shape.topk, device=ranks.device)
        master = torch.where(self._experts >= 0, lanes, -1).amax(1)
        slots = self._slots() if self.shape.expand else torch.full_like(self._experts, -1)
        head = torch.stack((ranks * self.shape.tokens + tokens, ranks * self.shape.topk + master), 1)
        return torch.cat((torch.where(ranks[:, None] >= 0, head, -1), slots), 1).int()

    def _last_selections(self) -> Tensor:
        """int64 [tokens, ranks]: the last selection of each token on each rank, topk for none."""
        k, ranks = self.shape.topk, self._exchanges.ranks
        owners = torch.where(self.topk >= 0, self.topk // (self.shape.experts // ranks), ranks).long()
        lanes = torch.arange(k, device=owners.device).expand_as(owners)
        last = torch.full((owners.shape[0], ranks + 1), -1, device=owners.device).scatter_reduce_(1, owners, lanes, "amax")[:, :ranks]
        return torch.where(last < 0, k, last)

    def destinations(self) -> Tensor:
        """What DeepEP calls dst_buffer_slot_idx."""
        last, k = self._last_selections(), self.shape.topk
        there = last < k
        slots = torch.where(there, there.cumsum(0) - 1 + self._exchanges.rank * self.shape.tokens, -1)
        out = torch.full((last.shape[0], k + 1), -1, device=last.device).scatter_(1, last, slots)
        return out[:, :k].int()

    def visits(self) -> Tensor:
        """int64 [tokens, at most ranks]: the ranks that each token goes to, in the order of the last selections there, then -1."""
        if self._visits is None:
            if self.topk.is_cpu:
                self._visits = ep.visits(self.topk, experts=self.shape.experts, ranks=self._exchanges.ranks)
            else:
                last, ranks = self._last_selections().sort(1)
                most = min(self.shape.topk, self._exchanges.ranks)
                self._visits = torch.where(last < self.shape.topk, ranks, -1)[:, :most].contiguous()
        return self._visits

    # Exchanges.

    def _handle(self, rows: Rows) -> ep.Handle:
        s = self.shape
        if s.expand:
            experts, topk, alignment = s.experts, s.topk, s.alignment
        else:
            experts, topk, alignment = self._exchanges.ranks, min(s.topk, self._exchanges.ranks), 1
        key = "moving", experts, topk, s.tokens, alignment, self._counts, s.sms, rows.key
        return self._exchanges.find(key) or self._exchanges.handle(
            key,
            experts=experts,
            topk=topk,
            max_tokens=s.tokens,
            layout=ep.Layout.expert_packed,
            wire=ep.Wire.per_rank,
            reduction=ep.Reduction.exact,
            weighting=ep.Weighting.plain,
            alignment=alignment,
            counts=self._counts,
            sms=s.sms,
            **rows.spec,
        )

    def dispatch(self, rows: Tensor, scales: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Sends rows: those that arrive, and their scales."""
        given = Rows(rows, scales)
        h = self._handle(given)
        known = self._routings.get(given.key)
        if known is None:
            topk = self.topk if self.shape.expand else self.visits()
            arrived, arrived_scales, routing = self._exchanges.dispatch(h, given.rows, given.scales, topk, None, come=self._rows)
            self._routings[given.key] = h, routing
        else:
            arrived, arrived_scales, _ = self._exchanges.dispatch(h, given.rows, given.scales, None, None, known[1], self._rows)
        return given.restored(arrived, arrived_scales)

    def send_weights(self, weights: Tensor) -> Tensor:
        """Sends other weights to the rows: the same of those."""
        padded = torch.nn.functional.pad(weights.float(), (0, self._lanes - self.shape.topk))
        with self._describing.dispatch(padded, routing=self._routing) as got:
            arrived = torch.where(self._experts >= 0, got.rows[: self.received, : self.shape.topk], 0)
        return self._expanded(arrived) if self.shape.expand else arrived

    def _expanded(self, weights: Tensor) -> Tensor:
        _, routing = next(iter(self._routings.values()))
        rows = self._rows_by(routing)
        slots = self._slots()
        # What is elsewhere goes to a row behind the last.
        out = torch.zeros(rows + 1, dtype=torch.float32, device=weights.device)
        out.scatter_(0, torch.where(slots >= 0, slots, rows).flatten(), weights.flatten())
        return out[:rows]

    def combine(self, x: Tensor, weights: Tensor | None, bias: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
        """Brings a row for each token home, and weights."""
        if self.shape.expand:
            x, weights = self._folded(x, weights)
        h, routing = (self._visiting() if self.shape.expand else self)._by(x)
        n = self.received
        if x.shape[0] < n:
            raise ContractError(f"x: {x.shape[0]} rows, and {n} have come")
        out = h.combine(x if x.shape[0] == n else x[:n], routing, bias=bias or None)
        return out, None if weights is None else self._weights_home(weights)

    def combine_selections(self, x: Tensor, weights: None, bias: tuple[Tensor, ...]) -> tuple[Tensor, None]:  # noqa: ARG002
        """Brings a row for each selection home."""
        h, routing = self._by(x)
        n = self._rows_by(routing)
        require(x.shape[0] == n, f"x: {x.shape[0]} rows, and {n} have come")
        return h.combine(x, routing, bias=bias or None), None

    def _by(self, x: Tensor) -> tuple[ep.Handle, ep.Routing]:
        """What a sum of rows goes by: that of a dispatch, of whatever type, whose rows were as long."""
        for h, routing in self._routings.values():
            if h.spec.hidden == x.shape[1]:
                return h, routing
        given = Rows(x, None)
        h = self._handle(given)
        self._routings[given.key] = h, h.prepare(self.topk if self.shape.expand else self.visits())
        return self._routings[given.key]

    def _visiting(self) -> Route:
        """Where the sums of expanded rows come from: the same way, with a row for each token."""
        if self._sums is None:
            self._sums = copy.copy(self)
            self._sums.shape, self._sums._routings = self.shape._replace(expand=False, alignment=1), {}
        return self._sums

    def _folded(self, x: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The sums of each token's rows here, in the order of its selections, rounded; and the weights of its selections."""
        slots = self._slots()
        here, safe = slots >= 0, slots.clamp(0)
        require(x.shape[0] > 0 or slots.shape[0] == 0, f"x: {x.shape[0]} rows, and {slots.shape[0]} tokens have come")
        total = torch.zeros((slots.shape[0], x.shape[1]), dtype=torch.float32, device=x.device)
        for k in range(slots.shape[1]):
            total += torch.where(here[:, k, None], x[safe[:, k]].float(), 0)
        return total.to(x.dtype), None if weights is None else torch.where(here, weights[safe], 0)

    def _weights_home(self, weights: Tensor) -> Tensor:
        here = torch.where(self._experts >= 0, weights[: self.received].float(), 0)
        padded = torch.nn.functional.pad(here, (0, self._lanes - self.shape.topk))
        return self._describing.combine(padded, self._routing)[:, : self.shape.topk].contiguous()
