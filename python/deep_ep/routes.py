"""Routes of the elastic interface: where the tokens of a dispatch go, and their combined sums."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft import ep
from weft._buffer.errors import ContractError
from weft._buffer.exchanges import Era, Exchanges, Kept


class Shape(NamedTuple):
    """The arguments that all ranks share in an exchange."""

    experts: int
    topk: int
    room: int  # for tokens of a rank
    expand: bool
    reduction: ep.Reduction  # of combines
    sms: int  # of a GPU, that exchanges may fill
    alignment: int  # of the rows of experts; others are aligned to nothing
    tokens: int  # the most of a rank, which is no affair of handles
    capacity: int = 0  # of a rank, for rows that are expanded; 0: what can come at most

    @property
    def of_handle(self) -> tuple[Any, ...]:
        """The arguments of a handle."""
        return (*self[:7], self.capacity) if self.expand else self[:6]

    def aligned(self, counts: list[int]) -> list[int]:
        """Rows of experts, with those that align them."""
        a = self.alignment
        return counts if a == 1 else [-(-n // a) * a for n in counts]


_LEAST = 8  # bfloat16 numbers of the shortest possible row

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
        # Any content, in whole units of 16 bytes.
        words = -(-scales.shape[1] // 4) * 4
        self.payload, self.scale_bytes = _OPAQUE, 4 * words
        self.rows = rows.view(torch.uint8)
        self.scales = torch.nn.functional.pad(scales.contiguous().view(torch.int32), (0, words - scales.shape[1])).view(
            torch.uint8
        )

    @property
    def key(self) -> tuple[Any, ...]:
        return self.payload, self.hidden, self.scale_bytes

    @property
    def spec(self) -> dict[str, Any]:
        if self.payload != _OPAQUE:
            return {"payload": self.payload, "hidden": self.hidden}
        return {
            "payload": self.payload,
            "hidden": self.hidden,
            "row_bytes": self.hidden,
            "scale_bytes": self.scale_bytes,
            "output": "bfloat16",
        }

    def restored(self, rows: Tensor, scales: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The received rows, of the types that were sent."""
        if self.payload != _OPAQUE:
            return rows, scales
        return rows.view(torch.float8_e4m3fn), scales.view(self.given.dtype)[:, : self.given.shape[1]]


Described = Sequence[Any]
"""Of the rows of a dispatch: the received selections; their weights, or the rows'; the demand of each expert. None for
what is still to be asked for."""

_NOT_DESCRIBED: Described = (None, None, None)


class Route:
    """Where tokens went. Exchanges of other types go the same way, by routings of their own.

    A token's rows come home as sums of its ranks, which are added in the order of its last selections
    there, as DeepEP's are.
    """

    def __init__(
        self,
        exchanges: Exchanges,
        shape: Shape,
        topk: Tensor,
        exact: bool,
        keep: bool | Kept | None = False,
        era: Era | None = None,
    ) -> None:
        """The first exchange reads ``topk``, and so do later ones; with ``keep`` they use its content of
        now, or that which is given."""
        self._exchanges, self.shape, self._given, self.exact, self._era = (
            exchanges,
            shape,
            topk,
            exact,
            era or exchanges.era,
        )
        self._kept = Kept(topk) if keep is True else keep or None
        self._counts = ep.Counts.host if exact and not exchanges.on_gpu else ep.Counts.device
        self._routings: dict[Any, tuple[ep.Handle, ep.Routing]] = {}
        self._received_counts: list[int] | None = None
        self._whole = exact or shape.room == shape.tokens  # arrays have no rows but those that there can be

    @property
    def tokens(self) -> int:
        """How many this rank has."""
        return self._given.shape[0]

    @property
    def topk(self) -> Tensor:
        """The selections of tokens."""
        return self._given if self._kept is None else self._kept.tensor()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The parts of it that exchanges on a GPU read."""
        return (self._given, self.topk) if self._given.is_cuda else ()

    # Exchanges.

    def _handle(self, rows: Rows) -> ep.Handle:
        s = self.shape
        key = s.of_handle, self._counts, rows.key
        return self._exchanges.find(key) or self._exchanges.handle(
            key,
            experts=s.experts,
            topk=s.topk,
            max_tokens=s.room,
            layout=ep.Layout.expert_packed if s.expand else ep.Layout.token_major,
            reduction=s.reduction,
            weighting=ep.Weighting.plain,
            alignment=s.alignment if s.expand else 1,
            capacity=s.capacity,
            overflow=ep.Overflow.drop if s.capacity else ep.Overflow.refuse,
            counts=self._counts,
            sms=s.sms,
            **rows.spec,
        )

    def dispatch(
        self, rows: Tensor, scales: Tensor | None, weights: Tensor | None
    ) -> tuple[Tensor, Tensor | None, ep.Routing, Described]:
        """Sends rows and the weights of their selections; returns the rows that arrive, their scales, their
        routing, and what :meth:`selections` takes of them."""
        given = Rows(rows, scales)
        h = self._handle(given)
        known = self._routings.get(given.key)
        self._exchanges.check_era(self._era, anew=known is None)
        topk, by = None, None
        if known is not None:
            by = known[1]
        else:
            topk = self.topk if self._routings else self._given
        find = self._received_rows if self.exact and self._exchanges.on_gpu else None
        arrived, arrived_scales, routing, *described = self._exchanges.dispatch_described(
            h, given.rows, given.scales, topk, weights, by, find, True
        )
        self._routings[given.key] = h, routing
        arrived, arrived_scales = given.restored(arrived, arrived_scales)
        if not self._whole:
            arrived, arrived_scales = (
                arrived[: self._most],
                None if arrived_scales is None else arrived_scales[: self._most],
            )
        return arrived, arrived_scales, routing, described

    def combine(self, x: Tensor, weights: Tensor | None, bias: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
        """Brings rows home and sums them, and weights."""
        h, routing = self._by(x)
        n = self._rows_by(routing)
        if x.shape[0] < n:
            raise ContractError(f"x: {x.shape[0]} rows, and {n} have come")
        rows = x if x.shape[0] == n else x[:n]
        if weights is None:
            return h.combine(rows, routing, bias=bias or None), None
        # The gradient of dispatch is that sum, without biases, and takes numbers of selections home
        # beside it.
        if not bias:
            return h.dispatch_backward(rows, routing, weights[:n].float())  # type: ignore[no-any-return]
        least = torch.zeros((n, _LEAST), dtype=x.dtype, device=x.device)  # so that the rows themselves come home once
        for_least = self._by(least)  # before anything is moved, for it may be refused
        out = h.combine(rows, routing, bias=bias)
        return out, for_least[0].dispatch_backward(least, for_least[1], weights[:n].float())[1]

    def _by(self, x: Tensor) -> tuple[ep.Handle, ep.Routing]:
        """The routing for a sum of rows: that of a dispatch of any type whose rows had the same length."""
        self._exchanges.check_era(self._era)
        for h, routing in self._routings.values():
            if h.spec.hidden == x.shape[1]:
                return h, routing
        self._exchanges.check_era(self._era, anew=True)
        given = Rows(x, None)
        h = self._handle(given)
        self._routings[given.key] = h, h.prepare(self.topk)
        return self._routings[given.key]

    def sent(self, hidden: int) -> Sent | None:
        """The exchange of plain rows, if the compiled part may make others like it: on the host, where arrays have no
        rows but those that there can be."""
        found = self._routings.get((_BF16, hidden, 0))
        if found is None or self._exchanges.on_gpu or not self._whole:
            return None
        by = self._exchanges.compiled(found[0])
        return None if by is None else Sent(by, *found, self.shape, self.exact, self._given, self._kept, self._era)

    # Received rows and tokens.

    def _received_rows(self, routing: ep.Routing) -> int | None:
        """On a GPU, the number of received rows, pads included; None if the host does not need it, or on
        the host, where the arrays have it.

        Copies the tokens of each rank and the selections of each local expert to the host. This is the
        only wait of a dispatch.
        """
        if not (self.exact and self._exchanges.on_gpu):
            return None
        if self._received_counts is None:
            self._received_counts = self._exchanges.on_host(
                torch.cat(routing.parts("source_counts", "expert_demand"))
            ).tolist()
        return (
            sum(self.shape.aligned(self._received_counts[self._exchanges.ranks :]))
            if self.shape.expand
            else self.received
        )

    def _rows_by(self, routing: ep.Routing) -> int:
        count = self._received_rows(routing)
        return count if count is not None else routing.rows if self.exact else self._most

    @functools.cached_property
    def received(self) -> int:
        """The number of received tokens; the capacity, if the host has no counts."""
        if self._received_counts is not None:
            return sum(self._received_counts[: self._exchanges.ranks])
        if not self.exact:
            return self._exchanges.ranks * self.shape.tokens
        return sum(self._part("source_counts").tolist()) if self.shape.expand else self._routing.rows

    @property
    def _most(self) -> int:
        return self.most_expanded() if self.shape.expand else self.received

    def most_expanded(self) -> int:
        """Upper bound on received rows after expansion, pads included."""
        if self.shape.capacity:
            return self.shape.capacity
        s, ranks = self.shape, self._exchanges.ranks
        local = s.experts // ranks
        return -(-(ranks * s.tokens * min(s.topk, local) + (s.alignment - 1) * local) // s.alignment) * s.alignment

    def selections(
        self, routing: ep.Routing, weighted: bool, sync: bool, described: Described = _NOT_DESCRIBED
    ) -> tuple[Tensor | None, Tensor | None, list[int]]:
        """The caller's received selections: of tokens the local experts and weights, int64 and float32 [rows,
        topk]; expanded, the weights of rows.

        And the rows of each local expert, pads included, if the host is to know. ``described``: what their dispatch
        has said of them.
        """
        experts, weights, counts = described
        wanted = [*(() if self.shape.expand else (experts,)), *((weights,) if weighted else ())]
        asks = sync and counts is None and self._received_counts is None
        told = counts is not None or (not asks and wanted and all(part is not None for part in wanted))
        if told:
            found = [of_rows for of_rows in (experts, weights) if of_rows is not None]
        else:
            names = _OF_ROWS[weighted] if self.shape.expand else _OF_TOKENS[weighted]
            found = list(routing.parts(*names, demand=asks, rows=self._received_rows(routing))) if names or asks else []
        if not sync:
            demand = []
        elif counts is None:
            demand = found.pop() if asks else self._received_counts[self._exchanges.ranks :]  # type: ignore[index]
        else:
            demand = counts
        if not self._whole:
            found = [of_rows[: self._most] for of_rows in found]
        weights = found.pop() if weighted else None
        if weights is not None and self._exchanges.on_gpu and not told:
            weights = weights.clone()  # there it shows the memory of the routing
        experts = found[0] if found else None
        if experts is not None and experts.dtype != self._given.dtype:
            experts = experts.to(self._given.dtype)
        return experts, weights, self.shape.aligned(demand)

    # The handle's properties, for debugging.

    @property
    def _routing(self) -> ep.Routing:
        """That of the first exchange: all say the same."""
        return next(iter(self._routings.values()))[1]

    def _part(self, *names: str) -> Any:
        """Metadata of rows: the tuple's content, or its only member."""
        routing, stream = self._routing, self._exchanges.stream
        if "row_experts" in names and self._exchanges.on_gpu:
            routing.row_experts  # noqa: B018 # it is enqueued that they are written, and PyTorch widens them behind that
            stream.catch_up()
        found = routing.parts(*names, rows=self._received_rows(routing))
        stream.catch_up()
        return found if len(names) > 1 else found[0]

    @functools.cached_property
    def selections_of_experts(self) -> Tensor:
        """int32 [local experts]; the caller must not change it."""
        return self._part("expert_demand")  # type: ignore[no-any-return]

    def expert_counts(self) -> Tensor:
        """int32 [local experts]."""
        return self.selections_of_experts.clone()

    def tokens_of_ranks(self) -> Tensor:
        """int32 [ranks]: the tokens of each source rank and those before."""
        return self._part("source_counts").cumsum(0, dtype=torch.int32)  # type: ignore[no-any-return]

    def ends_of_experts(self) -> Tensor:
        """int32 [local experts]: where each expert's rows end; those of an expanded dispatch without their pads."""
        a = self.shape.alignment
        padded = (self.selections_of_experts + (a - 1)) // a * a
        ends = padded.cumsum(0, dtype=torch.int32)
        return ends - padded + self.selections_of_experts if self.shape.expand else ends

    def sources(self) -> Tensor:
        """DeepEP's recv_src_metadata."""
        came, slots = self._expanded_sources() if self.shape.expand else self._sources()
        lanes = torch.arange(self.shape.topk, device=slots.device)
        master = torch.where(slots >= 0, lanes, -1).amax(1)
        head = torch.stack((came, came // self.shape.tokens * self.shape.topk + master), 1)
        if not self.shape.expand:
            slots = torch.full_like(slots, -1)
        return torch.cat((torch.where(came[:, None] >= 0, head, -1), slots), 1).int()

    def _sources(self) -> tuple[Tensor, Tensor]:
        """int64 [tokens]: each token's index among all ranks', -1 for none; and int64 [tokens, topk],
        which is not -1 where a selection is one here."""
        ranks, tokens, experts = (
            of_rows[: self.received] for of_rows in self._part("source_ranks", "source_tokens", "row_experts")
        )
        return torch.where(ranks >= 0, ranks.long() * self.shape.tokens + tokens, -1), experts

    def _expanded_sources(self) -> tuple[Tensor, Tensor]:
        """The same, of rows that are selections': int64 [tokens, topk] is the row of each here, -1 for
        those elsewhere."""
        ranks, tokens, selections = self._part("source_ranks", "source_tokens", "source_selections")
        most, n = self._exchanges.ranks * self.shape.tokens, self.received
        holds = ranks >= 0
        # selections of other ranks go behind the last
        of = torch.where(holds, ranks.long() * self.shape.tokens + tokens, most)
        came = torch.zeros(most + 1, dtype=torch.int64, device=of.device).scatter_(0, of, 1)
        came[most] = 0
        place = torch.where(came > 0, came.cumsum(0) - 1, n)
        slots = torch.full(((n + 1) * self.shape.topk,), -1, dtype=torch.int64, device=of.device)
        at = torch.where(holds, place[of] * self.shape.topk + selections, n * self.shape.topk)
        slots.scatter_(0, at, torch.where(holds, torch.arange(of.shape[0], device=of.device), -1))
        sources = torch.full((n + 1,), -1, dtype=torch.int64, device=of.device).scatter_(
            0, place, torch.arange(most + 1, device=of.device)
        )
        return sources[:n], slots.view(-1, self.shape.topk)[:n]

    def destinations(self) -> Tensor:
        """DeepEP's dst_buffer_slot_idx."""
        k, ranks = self.shape.topk, self._exchanges.ranks
        owners = torch.where(self.topk >= 0, self.topk // (self.shape.experts // ranks), ranks).long()
        lanes = torch.arange(k, device=owners.device).expand_as(owners)
        # The last selection of each token on each rank.
        last = torch.full((owners.shape[0], ranks + 1), -1, device=owners.device).scatter_reduce_(
            1, owners, lanes, "amax"
        )[:, :ranks]
        there = last >= 0
        slots = torch.where(there, there.cumsum(0) - 1 + self._exchanges.rank * self.shape.tokens, -1)
        out = torch.full((last.shape[0], k + 1), -1, device=last.device).scatter_(1, torch.where(there, last, k), slots)
        return out[:, :k].int()


class Sent(NamedTuple):
    """Where the plain rows of a dispatch on the host went, in the words of the compiled part's exchanges."""

    by: Any
    handle: ep.Handle
    routing: ep.Routing
    shape: Shape
    exact: bool
    topk: Tensor
    kept: Kept | bytes | None
    era: Era

    def route(self, exchanges: Exchanges) -> Route:
        """The same as a route."""
        kept = Kept.of(self.kept, self.topk.shape) if isinstance(self.kept, bytes) else self.kept
        made = Route(exchanges, self.shape, self.topk, self.exact, kept, self.era)
        made._routings[_BF16, self.handle.spec.hidden, 0] = self.handle, self.routing
        return made


# The parts of a routing that are read, without weights and with them.
_OF_TOKENS: tuple[tuple[str, ...], ...] = ("row_experts",), ("row_experts", "row_selection_weights")
_OF_ROWS: tuple[tuple[str, ...], ...] = (), ("row_weights",)
