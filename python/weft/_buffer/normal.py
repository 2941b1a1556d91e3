"""Normal exchanges: a row for each token and rank, as many as there are, and back."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

import weft
from weft import compiled, ep

from .errors import HIDDEN, TOP_K, ContractError
from .events import CommStream
from .exchanges import Era, Exchanges, Kept
from .lazy import Lazy
from .traces import leave

_PAYLOADS = {
    torch.bfloat16: ep.Payload.bf16,
    torch.float16: ep.Payload.fp16,
    torch.float32: ep.Payload.fp32,
    torch.float8_e4m3fn: ep.Payload.fp8,
}
_TYPES = {dtype: i for i, dtype in enumerate(_PAYLOADS)}

_SELECTIONS = ("row_experts",)
_WEIGHTED = "row_experts", "row_selection_weights"

_PUT_HEAD = struct.Struct("=6i").pack_into
_HEADS = 1024
_HEAD = 6  # numbers of a rank's announcement before those of its tokens for each rank


_WORDS = 4  # fp32 numbers of a row's unit: rows are multiples of 16 bytes
_MATRIX = 2  # dimensions

_FEWEST = 16  # tokens for which there is a handle

_BF16, _FP32 = ep.Payload.bf16, ep.Payload.fp32
_HOST, _DEVICE = ep.Counts.host, ep.Counts.device

Shape = tuple[int, int, int, int, ep.Counts, int]
"""The arguments that all ranks share in an exchange: hidden, experts, top-k, the most tokens of any rank,
rounded up so that there are few handles, counts, SMs."""


class Route:
    """The route of a dispatch. Exchanges of other payloads follow it with routings of their own."""

    __slots__ = ("_era", "_exchanges", "_numbers", "_routings", "_topk", "received", "shape")

    def __init__(
        self, exchanges: Exchanges, shape: Shape, topk: Kept, received: int | None, era: Era | None = None
    ) -> None:
        self._exchanges, self.shape, self._topk, self._era = exchanges, shape, topk, era or exchanges.era
        self.received = received
        """The number of received rows, if the routings do not have it."""
        self._routings: dict[ep.Payload, tuple[ep.Handle, ep.Routing]] = {}
        self._numbers: dict[int, tuple[ep.Handle, ep.Routing]] = {}

    def handle(self, payload: ep.Payload) -> ep.Handle:
        """The handle for rows of a type. Collective when it is the first time."""
        return self._handle_of(self.shape, payload)

    def _handle_of(self, shape: Shape, payload: ep.Payload) -> ep.Handle:
        key = shape, payload
        found = self._exchanges.find(key)
        if found is not None:
            return found
        hidden, experts, topk, tokens, counts, sms = shape
        return self._exchanges.handle(
            key,
            experts=experts,
            topk=topk,
            hidden=hidden,
            max_tokens=tokens,
            layout=ep.Layout.token_major,
            payload=payload,
            counts=counts,
            sms=sms,
        )

    def first(self, payload: ep.Payload, handle: ep.Handle, routing: ep.Routing) -> None:
        """Makes rows of a type use a routing."""
        self._routings[payload] = handle, routing

    def by(self, payload: ep.Payload) -> tuple[ep.Handle, ep.Routing]:
        """The handle and the routing for rows of a type. Collective."""
        found = self._routings.get(payload)
        self._exchanges.check_era(self._era, anew=found is None)
        if found is None:
            handle = self.handle(payload)
            found = self._routings[payload] = handle, handle.prepare(self._topk.tensor())
        return found

    def numbers(self, columns: int) -> tuple[ep.Handle, ep.Routing]:
        """Those for sums of so many fp32 numbers a row, which go home beside the rows. Collective."""
        found = self._numbers.get(columns)
        self._exchanges.check_era(self._era, anew=found is None)
        if found is None:
            handle = self._handle_of((columns, *self.shape[1:]), _FP32)
            found = self._numbers[columns] = handle, handle.prepare(self._topk.tensor())
        return found

    def home(self, dtype: torch.dtype) -> tuple[ep.Handle, ep.Routing]:
        """Those for sums of rows of a type: FP8's come home as bfloat16."""
        payload = _PAYLOADS[dtype]
        if payload == _BF16 and payload not in self._routings:
            for quantised in (ep.Payload.fp8, ep.Payload.fp8_ue8m0):
                if quantised in self._routings:
                    return self.by(quantised)
        return self.by(payload)


class Moved(Protocol):
    """The state of a dispatch that its combine needs."""

    route: Route
    received: int


class Went(NamedTuple):
    """The same, kept beside the handle's members."""

    route: Route
    received: int


class DispatchHandle(Lazy):
    """DeepEP's handle, and the routing.

    That is (rank_prefix_matrix, channel_prefix_matrix, recv_channel_prefix_matrix, recv_src_idx,
    is_token_in_rank, send_head), made when it is read.
    """

    received: int
    _of: tuple[Any, Tensor, ep.Routing, int, int | None, CommStream]
    _length = 6
    _route: Route | None = None
    _quick: tuple[Exchanges, Shape, bytes | Tensor, int, ep.Payload, ep.Handle, Era, int | None]
    """What the compiled part's dispatches leave instead."""

    @property
    def route(self) -> Route:
        """The route of the rows."""
        if self._route is None:
            exchanges, shape, content, tokens, payload, handle, era, received = self._quick
            self._route = Route(exchanges, shape, Kept.of(content, torch.Size((tokens, shape[2]))), received, era)
            self._route.first(payload, handle, self._of[2])
        return self._route

    def _make(self) -> tuple[Tensor, ...]:
        made = _matrices(*self._of)
        leave(made[0], Went(self.route, self.received))
        return made


class Normal:
    """The normal exchanges of a buffer."""

    def __init__(self, exchanges: Exchanges) -> None:
        self._exchanges = exchanges
        self._heads: dict[Any, Tensor] = {}
        # The compiled part's dispatches with their meeting, by the type of rows.
        self._met: dict[torch.dtype, tuple[Any, ep.Handle, Shape, ep.Payload]] = {}
        exchanges.of_handles.append(self._met)

    def dispatch(
        self,
        x: Tensor,
        scales: Tensor | None,
        in_rank: Tensor,
        rank_tokens: Tensor,
        expert_tokens: Tensor,
        topk: Tensor | None,
        weights: Tensor | None,
        alignment: int,
        channels: int,
        worst: int,
        said: bytes | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, list[int], DispatchHandle]:
        """Sends rows by routing of their own: the rows that arrive, scales, selections, weights,
        counts, the handle. ``said``: what ranks have said already. Collective."""
        self._agree()
        exchanges, selected, experts = self._exchanges, topk is not None, expert_tokens.shape[0]
        if topk is not None and (len(topk.shape) != _MATRIX or topk.shape[0] != x.shape[0]):
            raise ContractError(f"topk_idx: shape {tuple(topk.shape)}, want [{x.shape[0]}, top-k]")
        if topk is None:
            # Ranks are all that is known: each is an expert.
            experts, topk = (
                exchanges.ranks,
                torch.where(in_rank, torch.arange(exchanges.ranks, device=in_rank.device), -1),
            )
        everyone, most, received, counts, kept = self._announce(
            x, rank_tokens, expert_tokens, experts, topk, channels, worst, said
        )
        sms = 2 * channels if exchanges.on_gpu else 0
        route = Route(
            exchanges,
            (x.shape[1], experts, topk.shape[1], most, _DEVICE if worst else _HOST, sms),
            kept,
            received,
        )
        payload, sent = _as_payload(x, scales)
        handle = route.handle(payload)
        rows, arrived, routing, ids, sums, demand = exchanges.dispatch_described(
            handle, x, sent, topk, weights, None, received, selected
        )
        route.first(payload, handle, routing)
        if not selected:
            ids = sums = None
        elif ids is not None:
            # With a worst case the counts stay where they are: reading them would wait for a GPU.
            counts = demand if counts is None else counts
        else:
            ids, *more = routing.parts(*(_SELECTIONS if weights is None else _WEIGHTED), demand=counts is None)
            if counts is None:
                counts = more.pop()
            sums = more[0] if more else None
        if counts is None:
            counts = exchanges.all_gather(expert_tokens.int())[:, self._mine(expert_tokens)].sum(0).tolist()
        if alignment != 1:
            counts = [-(-n // alignment) * alignment for n in counts]

        if selected and scales is None and not worst:
            self._meet_quickly(x, handle, route.shape, expert_tokens.shape[0])
        made = DispatchHandle()
        made._route, made.received, made._of = (
            route,
            rows.shape[0],
            (everyone, in_rank, routing, channels, received, exchanges.stream),
        )
        return rows, None if arrived is None else _like_sent(scales, arrived), ids, sums, counts, made

    def _meet_quickly(self, x: Tensor, handle: ep.Handle, shape: Shape, experts: int) -> None:
        """Has the compiled part make dispatches of such rows from now on, with the meeting before."""
        exchanges = self._exchanges
        by, met = exchanges.compiled(handle), self._met.get(x.dtype)
        if by is None or (met is not None and met[0] is by):
            return
        group, put, wait = exchanges.group, None, None
        if exchanges.on_gpu:
            mine, numbers, _ = exchanges.gather_of(_HEAD + exchanges.ranks + experts)
            own, everyone, wait = mine.data_ptr(), numbers.data_ptr(), exchanges.waiter()
            same = *shape[:3], _TYPES[x.dtype]
            put = functools.partial(_put, self._heads, mine, same)
            exchanges.says[:] = [functools.partial(_write, self._heads, (*same, shape[5] // 2))]
        else:
            _, own, _, everyone, *_ = exchanges.meeting
        by.meet(group, group._handle, own, everyone, exchanges.ranks, exchanges.rank, _TYPES[x.dtype], put, wait)
        self._met[x.dtype] = by, handle, shape, _PAYLOADS[x.dtype]

    def quick_dispatch(
        self,
        x: Tensor,
        in_rank: Tensor,
        rank_tokens: Tensor,
        expert_tokens: Tensor,
        topk: Tensor,
        weights: Tensor | None,
        alignment: int,
        channels: int,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, list[int], DispatchHandle] | None:
        """:meth:`dispatch` of rows without scales by the compiled part, on a GPU in the current stream; None where it
        declines. Collective."""
        found, exchanges = self._met.get(x.dtype) if type(x) is Tensor else None, self._exchanges
        if found is None or not exchanges.mask.agreed or exchanges.comm._left_out:
            return None
        by, handle, shape, payload = found
        counting = exchanges.counting(expert_tokens.shape[0])
        arguments: tuple[Any, ...] = handle, channels, x, in_rank, rank_tokens, expert_tokens, topk, weights, counting
        on_gpu = exchanges.on_gpu
        if not on_gpu:
            got = by.exchange(*arguments)
        elif 2 * channels != shape[5] or handle in exchanges.captured:
            return None
        else:
            got = exchanges.stream.run_quick(by.exchange, *arguments)
        if got is None:
            return None
        said, results, content = got
        if results is None:
            arguments = x, None, in_rank, rank_tokens, expert_tokens, topk, weights, alignment, channels, 0, said
            (rows, _, ids, sums, counts, made), _ = exchanges.stream.run_soon(self.dispatch, x, None, False, *arguments)
            return rows, ids, sums, counts, made
        rows, _, routing, ids, sums, counts = results
        received = rows.shape[0] if on_gpu else None
        if alignment != 1:
            counts = [-(-n // alignment) * alignment for n in counts]
        made = DispatchHandle()
        made.received = routing._rows if received is None else received
        made._quick = exchanges, shape, content, routing._tokens, payload, handle, exchanges.era, received
        made._of = said, in_rank, routing, channels, received, exchanges.stream
        return rows, ids, sums, counts, made

    def _agree(self) -> None:
        if not self._exchanges.mask.agreed:
            self._exchanges.mask.agree()

    def _mine(self, of_experts: Tensor) -> slice:
        """Where this rank's experts are among all."""
        ranks, experts = self._exchanges.ranks, of_experts.shape[0]
        return slice(self._exchanges.rank * experts // ranks, (self._exchanges.rank + 1) * experts // ranks)

    def _announce(
        self,
        x: Tensor,
        rank_tokens: Tensor,
        expert_tokens: Tensor,
        experts: int,
        topk: Tensor,
        channels: int,
        worst: int,
        said: bytes | None,
    ) -> tuple[Any, int, int | None, list[int] | None, Kept]:
        """Exchanges announcements. Returns every rank's header (its first number is the rank's tokens, then
        its tokens for each rank) and the most tokens of any rank. Unless the routing or the worst case makes
        them unnecessary it also returns the rows that this rank receives and the selections of each of its
        experts. The last result is the content of the selections. Collective.

        On a GPU this is the only wait of a dispatch, and all that the host learns of it; the selections are
        copied meanwhile. With a worst case the host reads nothing: the bound is the same on every rank.
        """
        tokens, hidden = x.shape
        same = [hidden, experts, topk.shape[1], _TYPES[x.dtype], channels]
        ranks, most = self._exchanges.ranks, _FEWEST
        if worst:
            most = worst // ranks
            if tokens > most:
                raise ContractError(
                    f"{tokens} tokens, and num_worst_tokens is {worst}, which has room for {most} of each rank: "
                    f"ranks * tokens is always enough"
                )
        received = counts = None
        if self._exchanges.on_gpu:
            where, of_ranks, of_experts = rank_tokens.device, rank_tokens.int(), expert_tokens.int()
            if of_ranks.shape != (ranks,) or of_experts.dim() != 1:
                raise ContractError(
                    f"num_tokens_per_rank and num_tokens_per_expert: shapes {tuple(rank_tokens.shape)} and "
                    f"{tuple(expert_tokens.shape)}, want ({ranks},) and (experts,)"
                )
            if worst:
                head = torch.full((1,), tokens, dtype=torch.int32, device=where), _head(self._heads, tuple(same), where)
                return self._exchanges.all_gather(torch.cat((*head, of_ranks, of_experts))), most, None, [], Kept(topk)
            mine, numbers, gather = self._exchanges.gather_of(_HEAD + ranks + of_experts.shape[0])
            if said is None:
                _put(self._heads, mine, same[:4], tokens, channels, of_ranks, of_experts)
                gather()
            kept = Kept(topk)
            if said is None:
                self._exchanges.wait()
            for rank in self._exchanges.comm._left_out:
                numbers[rank] = 0
            address = numbers.data_ptr()
            everyone: Any = ctypes.string_at(address, numbers.nbytes)
            known = self._heard(address, numbers.shape[1], expert_tokens.shape[0], same)
            if known is not None:
                return everyone, _rounded(known[1]), known[2], known[3], kept
            heads, received = numbers[:, :_HEAD].tolist(), int(numbers[:, _HEAD + self._exchanges.rank].sum())
            counts = numbers[:, _HEAD + ranks :][:, self._mine(expert_tokens)].sum(0).tolist()
        else:
            kept = Kept(topk)
            if said is None:
                address, heard = self._gather((tokens, *same), rank_tokens)
                known = None if worst else self._heard(address, _HEAD + ranks, 0, same)
                if known is not None:
                    return bytes(heard), _rounded(known[1]), None, None, kept
            else:
                heard = memoryview(said).cast("i", (ranks, _HEAD + ranks))
            heads = everyone = heard.tolist()
            for rank in self._exchanges.comm._left_out:
                everyone[rank] = [0] * len(everyone[rank])
        for rank, theirs in enumerate(heads):
            if theirs[1:_HEAD] != same and rank not in self._exchanges.comm._left_out:
                raise weft.MismatchError(
                    f"dispatch: ranks disagree on {_differing(rank, theirs[1:_HEAD], self._exchanges.rank, same)}",
                    rank,
                )
            if not worst:
                most = max(most, theirs[0])
        return everyone, most if worst else _rounded(most), received, [] if worst else counts, kept

    def _heard(
        self, address: int, width: int, experts: int, same: list[int]
    ) -> tuple[int, int, int, list[int] | None] | None:
        """What the compiled part finds in announcements; None without it, and where ranks differ or are left out."""
        if compiled.NATIVE is None or self._exchanges.comm._left_out:
            return None
        ranks = self._exchanges.ranks
        found: tuple[int, int, int, list[int] | None] = compiled.NATIVE.heads(
            address, ranks, width, self._exchanges.rank, experts // ranks, tuple(same)
        )
        return found if found[0] < 0 else None

    def _gather(self, head: tuple[int, ...], rank_tokens: Tensor) -> tuple[int, memoryview]:
        """Gathers every rank's announcement, on the host: where they are, and as an array of numbers."""
        if self._exchanges.meeting is None:
            mine, everyone, gather = self._exchanges.gather_of(_HEAD + self._exchanges.ranks)
            self._exchanges.meeting = (
                _memory(mine),
                mine.data_ptr(),
                mine.numel(),
                everyone.data_ptr(),
                _memory(everyone).cast("i", tuple(everyone.shape)),
                gather,
            )
        own, address, n, at, said, gather = self._exchanges.meeting
        if rank_tokens.dtype != torch.int32 or rank_tokens.numel() != n - _HEAD or not rank_tokens.is_contiguous():
            raise ContractError(
                f"num_tokens_per_rank: {rank_tokens.dtype} {tuple(rank_tokens.shape)}, want torch.int32 "
                f"({n - _HEAD},), contiguous"
            )
        _PUT_HEAD(own, 0, *head)
        ctypes.memmove(address + 4 * _HEAD, rank_tokens.data_ptr(), 4 * (n - _HEAD))
        gather()
        return at, said

    def again(self, x: Tensor, scales: Tensor | None, route: Route) -> tuple[Tensor, Tensor | None]:
        """Sends rows by a route that is known: those that arrive. Collective."""
        self._agree()
        payload, sent = _as_payload(x, scales)
        handle, routing = route.by(payload)
        rows, arrived, *_ = self._exchanges.dispatch_described(handle, x, sent, None, None, routing, route.received)
        return rows, _like_sent(scales, arrived)

    def combine(
        self, x: Tensor, weights: Tensor | None, bias: tuple[Tensor, ...], handle: Moved
    ) -> tuple[Tensor, Tensor | None]:
        """Brings rows home and sums them, and numbers of selections, each over all ranks that have its
        token. Collective."""
        self._agree()
        by, routing = handle.route.home(x.dtype)
        n, received = x.shape[0], handle.received
        if n < received:
            raise ContractError(f"x: {n} rows, and {received} have come")
        rows = x if n == received else x[:received]
        if weights is None:
            return by.combine(rows, routing, bias=bias or None), None
        if weights.dim() != _MATRIX or weights.shape[0] < received or not weights.shape[1]:
            raise ContractError(
                f"topk_weights: shape {tuple(weights.shape)}, want [rows, topk] of the {received} rows that have come"
            )
        if weights.dtype != torch.float32:
            raise ContractError(f"topk_weights: type {weights.dtype}, want torch.float32")
        columns = weights.shape[1]
        numbers = (
            torch.nn.functional.pad(weights[:received], (0, -columns % _WORDS))
            if columns % _WORDS
            else weights[:received]
        )
        beside, of_numbers = handle.route.numbers(numbers.shape[1])
        home = beside.combine(numbers, of_numbers)  # first: a refusal comes before rows move
        return by.combine(rows, routing, bias=bias or None), home if home.shape[1] == columns else home[
            :, :columns
        ].contiguous()

    def quick_again(self, x: Tensor, handle: Any) -> Tensor | None:
        """The rows of a dispatch by a handle, in the current stream, by the compiled part; None where it declines.
        Collective."""
        found = self._quick(x, handle)
        if found is None:
            return None
        by, routing = found.by(_PAYLOADS[x.dtype])
        compiled_by = self._exchanges.compiled(by)
        if compiled_by is None or (self._exchanges.in_streams and by in self._exchanges.captured):
            return None
        got = self._exchanges.stream.run_quick(
            compiled_by.dispatch, by, x, None, None, None, routing, found.received, False
        )
        return None if got is None else got[0]

    def quick_combine(self, x: Tensor, handle: Any) -> Tensor | None:
        """The same of the sums of a combine without weights and biases. Collective."""
        found = self._quick(x, handle)
        if found is None or x.shape[0] != handle.received:
            return None
        by, routing = found.home(x.dtype)
        if by._calls is None:
            return None
        return self._exchanges.stream.run_quick(  # type: ignore[no-any-return]
            by._calls.combine, by, x, routing, None, None, None
        )

    def _quick(self, x: Tensor, handle: Any) -> Route | None:
        """The route of a handle, if rows are of a kind that the compiled part takes along it."""
        if not isinstance(handle, DispatchHandle) or type(x) is not Tensor or not self._exchanges.mask.agreed:
            return None
        route, shape = handle.route, x.shape
        fits = len(shape) == _MATRIX and shape[1] == route.shape[0] and x.dtype in _PAYLOADS
        return route if fits and compiled.NATIVE is not None else None

    def check(self, x: Tensor) -> None:
        shape = x.shape
        if len(shape) != 2 or not x.is_contiguous():
            raise ContractError(f"x: shape {tuple(shape)} with strides {x.stride()}, want contiguous [tokens, hidden]")
        if x.dtype not in _PAYLOADS:
            raise ContractError(f"x: type {x.dtype}, want one of {', '.join(map(str, _PAYLOADS))}")
        if shape[1] * x.itemsize % 16:
            raise ContractError(f"x: a row has {x.shape[1] * x.itemsize} bytes, want a multiple of 16")


def _head(heads: dict[Any, Tensor], numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Numbers of the host's on a GPU, kept: a capture cannot take them there, and to do so waits."""
    key = numbers, device
    found = heads.get(key)
    if found is None:
        if len(heads) >= _HEADS:
            heads.clear()
        found = heads[key] = torch.tensor(numbers, dtype=torch.int32, device=device)
    return found


def _put(
    heads: dict[Any, Tensor],
    mine: Tensor,
    same: Sequence[int],
    tokens: int,
    channels: int,
    of_ranks: Tensor,
    of_experts: Tensor,
) -> None:
    """Writes a rank's announcement, on a GPU."""
    torch.cat((_head(heads, (tokens, *same, channels), mine.device), of_ranks, of_experts), out=mine)


def _write(heads: dict[Any, Tensor], same: Sequence[int], memory: Tensor, tokens: int) -> tuple[int, ...]:
    """Writes the head of an announcement before each row of memory, on a GPU, and returns its numbers."""
    numbers = tokens, *same
    memory[:, : len(numbers)] = _head(heads, numbers, memory.device)
    return numbers


_SAME = HIDDEN, "num_experts", TOP_K, "the type of x", "the channels of config or num_sms"


def _differing(rank: int, theirs: list[int], own: int, ours: list[int]) -> str:
    """What two ranks say differently in their announcements."""
    types = [str(dtype) for dtype in _TYPES]

    def said(i: int, number: int) -> object:
        return types[number] if _SAME[i] == "the type of x" and 0 <= number < len(types) else number

    pairs = enumerate(zip(theirs, ours, strict=True))
    return "; ".join(
        f"{_SAME[i]}: {said(i, a)} on rank {rank}, {said(i, b)} on rank {own}" for i, (a, b) in pairs if a != b
    )


def _rounded(tokens: int) -> int:
    """The most tokens of a handle for so many."""
    return 1 << (max(tokens, _FEWEST) - 1).bit_length()


def _memory(t: Tensor) -> memoryview:
    """The bytes of a host tensor, which the caller keeps alive."""
    return memoryview((ctypes.c_ubyte * t.nbytes).from_address(t.data_ptr())).cast("B")


def _as_payload(x: Tensor, scales: Tensor | None) -> tuple[ep.Payload, Tensor | None]:
    """Rows and scales, as the library takes them. Words of int32 hold four powers of two."""
    if scales is None or scales.dtype != torch.int32:
        return _PAYLOADS[x.dtype], scales
    return ep.Payload.fp8_ue8m0, scales.contiguous().view(torch.float8_e8m0fnu)


def _like_sent(sent: Tensor | None, scales: Tensor | None) -> Tensor | None:
    """Scales of the type and in the order in memory of those that were sent."""
    if sent is None or scales is None:
        return None
    if sent.dtype == torch.int32:
        scales = scales.view(torch.int32)
    return scales if sent.stride(-1) == 1 else scales.t().contiguous().t()


def arrivals(
    gathered: Any, in_rank: Tensor, routing: ep.Routing, channels: int, received: int | None, stream: CommStream
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What handles say of received rows: how many tokens each rank has and sends to each, int32 [ranks, 1 + ranks]; the
    rows' source ranks, -1 for none, and tokens there; and the rows of each source and channel."""
    if isinstance(gathered, bytes):
        gathered = torch.frombuffer(bytearray(gathered), dtype=torch.int32).view(in_rank.shape[1], -1)
        if in_rank.is_cuda:  # from pinned memory, as a capture wants it
            gathered = gathered.pin_memory().to(in_rank.device, non_blocking=True)
    everyone = torch.as_tensor(gathered, dtype=torch.int32, device=in_rank.device)
    ranks = everyone.shape[0]
    everyone = torch.cat((everyone[:, :1], everyone[:, _HEAD : _HEAD + ranks]), 1)
    sources, tokens = routing.parts("source_ranks", "source_tokens", rows=received)
    stream.catch_up()
    # The channels of a rank have consecutive tokens each, and the first ones of all.
    per_channel = ((everyone[:, 0] + (channels - 1)) // channels).clamp(1).long()
    exists = sources >= 0
    of = torch.where(exists, sources, 0).long()
    which = torch.where(exists, of * channels + torch.where(exists, tokens, 0) // per_channel[of], ranks * channels)
    arrived = (
        torch.zeros(ranks * channels + 1, dtype=torch.int32, device=sources.device)
        .index_add_(0, which, torch.ones_like(sources))[:-1]
        .view(ranks, channels)
    )
    return everyone, sources, tokens, arrived


def departures(within: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """What handles say of sent tokens, of bool [tokens, places]: those for each place by channel, and all channels
    before, int32 [places, channels]; and the number of each among those of its channel for a place, -1 for none."""
    sent = _by_channel(within, channels)
    numbers = sent.cumsum(1).view(-1, within.shape[1])[: within.shape[0]] - 1
    return sent.sum(1).t().cumsum(1).int(), torch.where(within, numbers, -1).int()


def _matrices(gathered: Any, in_rank: Tensor, *of: Any) -> tuple[Tensor, ...]:
    """The parts of handles for all ranks' tokens and for each rank's."""
    everyone, _, tokens, arrived = arrivals(gathered, in_rank, *of)
    prefix, numbers = departures(in_rank, of[1])
    return (
        everyone[:, 1:].cumsum(0).int(),
        prefix,
        (arrived.cumsum(1) - arrived).int(),
        tokens,
        in_rank,
        numbers,
    )


def _by_channel(in_rank: Tensor, channels: int) -> Tensor:
    """int64 [channels, tokens of each, ranks]: 1 for those of each channel's tokens that go to each rank."""
    per = max(1, -(-in_rank.shape[0] // channels))
    return torch.nn.functional.pad(in_rank.long(), (0, 0, 0, per * channels - in_rank.shape[0])).view(channels, per, -1)
