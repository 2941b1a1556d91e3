"""HybridEPBuffer of DeepEP's branch hybrid-ep, for one NVLink domain: rows expert by expert, by routing maps."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import torch
from torch import Tensor

import weft
from weft import ep
from weft._buffer.errors import ContractError, require
from weft._buffer.exchanges import Exchanges
from weft._buffer.lazy import Lazy
from weft._buffer.opaque import opaque
from weft._buffer.ranks import close, join
from weft._buffer.traces import leave, recall

from . import _files  # noqa: F401 - it refuses a mixture
from .routes import Route, Shape

_DEADLINE = 100.0  # seconds
_MATRIX = 2  # dimensions
_MOST_TOPK = 32
_FEWEST_TOKENS = 512  # of a rank, that a buffer has room for
_FEWEST_ROWS = 256  # that the library is asked to have room for
_BLOCK = 128  # numbers that have a scale
_KNOWN = 3  # which of a handle's contents, none of the others always has memory


def indices_to_map(
    topk_idx: Tensor, topk_weights: Tensor | None, num_of_tokens: int, num_of_experts: int
) -> tuple[Tensor, Tensor | None]:
    """Selections as maps: which experts a token selects, bool [tokens, experts], and their weights, float32
    [tokens, experts] or None. Selections that are -1 are none."""
    if topk_idx.shape[:1] != (num_of_tokens,):
        raise ContractError(f"topk_idx: shape {tuple(topk_idx.shape)}, want [tokens, topk] of {num_of_tokens} tokens")
    weights = None if topk_weights is None else _spread(topk_idx, topk_weights.float(), num_of_experts)
    return _spread(topk_idx, torch.ones_like(topk_idx, dtype=torch.bool), num_of_experts), weights


@dataclasses.dataclass
class BufferConfig:
    """The sizes of a buffer, which callers read to find out whether it is large enough."""

    hidden_dim: int
    max_num_of_tokens_per_rank: int
    num_of_experts_per_rank: int
    num_of_ranks_per_node: int
    num_of_nodes: int = 1
    num_of_blocks_dispatch_api: int = 0
    num_of_blocks_combine_api: int = 0


@dataclasses.dataclass(eq=False)
class Went:
    """Where the rows of a dispatch went."""

    route: Route
    rows: int
    """The rows of the tensors that the caller has."""
    permuted: bool
    fused: bool
    config: BufferConfig


class HybridEPHandle(Lazy):
    """The branch's handle, and the routing.

    That is (sparse_to_dense_map, rdma_to_attn_map, attn_to_rdma_map, num_dispatched_tokens_tensor,
    local_expert_routing_map, num_of_tokens_per_rank, config), made when it is read. With permuted rows
    row_id_map is sixth and overflow_flag last. Where the dispatch was asked to be fused, three tensors
    are there for row_id_map: dense_chunk_layout, dense_to_expert_map, tokens_per_expert.
    """

    went: Went

    @classmethod
    def of(cls, went: Went) -> HybridEPHandle:
        made = cls()
        made.went, made._length = went, 7 if not went.permuted else 11 if went.fused else 9
        return made

    def _make(self) -> tuple[Any, ...]:
        made = _contents(self.went)
        leave(made[_KNOWN], self.went)  # by which the tuple of the contents is known
        return made


class HybridEPBuffer:
    """Exchanges whose rows come expert by expert, each expert's padded to a multiple.

    Whatever the sizes that a buffer is made with, memory is taken when shapes are first seen, on all
    ranks alike. Blocks, stages and the domains of NVLink are accepted and say nothing: all ranks are of
    one domain. Errors in arguments are a :class:`ContractError`, which is an AssertionError.
    """

    def __init__(
        self,
        group: Any,
        hidden_dim: int,
        max_num_of_tokens_per_rank: int,
        num_local_experts: int,
        use_fp8: bool = False,
        num_sms_dispatch_api: int | None = None,
        num_sms_combine_api: int | None = None,
        num_sms_preprocessing_api: int | None = None,
        num_sms_permute_api: int | None = None,
        num_of_ranks_per_nvlink_domain: int | None = None,
        use_mnnvl: bool | None = None,
        *,
        num_blocks_permute: int | None = None,
        num_blocks_unpermute: int | None = None,
        nvlink_domain_size: int | None = None,
        load_cached_kernels: bool = False,
        use_shared_buffer: bool = True,
        enable_custom_allgather: bool = True,
    ) -> None:
        """Joins the ranks of a process group of PyTorch's. Collective."""
        require(group is not None, "there is no group to join the ranks of")
        self._open(
            join(group, _DEADLINE, _DEADLINE),
            group,
            hidden_dim,
            max_num_of_tokens_per_rank,
            num_local_experts,
            use_fp8,
            num_sms_dispatch_api,
            num_sms_combine_api,
        )

    @classmethod
    def from_communicator(
        cls,
        comm: weft.Communicator,
        hidden_dim: int,
        max_num_of_tokens_per_rank: int,
        num_local_experts: int,
        use_fp8: bool = False,
    ) -> HybridEPBuffer:
        """A buffer of a communicator of Weft's, which it closes. Collective. DeepEP has no such method."""
        made = cls.__new__(cls)
        made._open(comm, None, hidden_dim, max_num_of_tokens_per_rank, num_local_experts, use_fp8, None, None)
        return made

    def _open(
        self,
        comm: weft.Communicator,
        group: Any,
        hidden: int,
        tokens: int,
        local: int,
        fp8: bool,
        dispatch_sms: int | None,
        combine_sms: int | None,
    ) -> None:
        self._comm, self.group = comm, group
        self.rank, self.group_size, self.use_fp8 = comm.rank, comm.ranks, fp8
        self.local_rank, self.node_rank, self.num_of_nodes = comm.rank, 0, 1
        self.num_sms_dispatch_api, self.num_sms_combine_api = dispatch_sms or 0, combine_sms or 0
        self.config = BufferConfig(
            hidden,
            max(tokens, _FEWEST_TOKENS),
            local,
            comm.ranks,
            num_of_blocks_dispatch_api=dispatch_sms or 0,
            num_of_blocks_combine_api=combine_sms or 0,
        )
        self._exchanges = Exchanges(comm, describes_again=True, max_tokens="max_num_of_tokens_per_rank")
        self._stream = self._exchanges.stream
        self.runtime: Any = weakref.proxy(self)
        self._end = weakref.finalize(self, close, comm)

    def destroy(self) -> None:
        """Leaves, before the last reference goes. DeepEP has no such method."""
        self._end.detach()
        self.runtime = None
        self._comm.close()

    def empty_jit_cache(self) -> None:
        """Nothing: no kernel is compiled for a buffer."""

    def update_template_config(
        self,
        hidden_dim: int | None = None,
        max_num_of_tokens_per_rank: int | None = None,
        num_local_experts: int | None = None,
        use_fp8: bool | None = None,
    ) -> BufferConfig:
        """The sizes of the buffer, which has room for so many tokens from now on."""
        if max_num_of_tokens_per_rank is not None:
            self.config.max_num_of_tokens_per_rank = max(
                max_num_of_tokens_per_rank, self.config.max_num_of_tokens_per_rank
            )
        return self.config

    # Rows of tokens.

    @opaque
    def dispatch(
        self,
        hidden: Tensor,
        scaling_factor: Tensor | None = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        num_of_experts: int | None = None,
        probs: Tensor | None = None,
        routing_map: Tensor | None = None,
        num_dispatched_tokens_tensor: Tensor | None = None,
        num_dispatched_tokens: int | None = None,
        handle: Any = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, HybridEPHandle]:
        """Sends each token once to the ranks of its experts: rows, probs, scaling_factor, handle. Collective.

        Rows come by source rank, then token. ``probs``: float32 [tokens, experts], come as [rows,
        experts] with numbers in the columns of this rank's experts.
        """
        rows, scales = _rows(hidden, scaling_factor)
        went = None if handle is None else _went(handle, False)
        weights: Tensor | None = None
        if went is None:
            topk, topk_weights, experts, room = self._selections(
                rows, topk_idx, topk_weights, num_of_experts, probs, routing_map, waits=True
            )
            went = Went(self._route(topk, experts, room, expand=False), -1, False, False, self.config)
            weights = topk_weights
        else:
            weights = _weights_of(went.route, rows, probs, topk_weights)
        (got, scales, dense), _ = self._stream.run(self._dispatch, rows, None, False, rows, scales, weights, went)
        return _as_sent(got, hidden), dense, scales, HybridEPHandle.of(went)

    def _dispatch(
        self, rows: Tensor, scales: Tensor | None, weights: Tensor | None, went: Went
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        got, got_scales, routing, described = went.route.dispatch(rows, scales, weights)
        went.rows = got.shape[0]
        if weights is None:
            return got, got_scales, None
        ids, come, _ = went.route.selections(routing, True, False, described)
        return got, got_scales, _spread(self._global(ids), come, went.route.shape.experts)

    @opaque
    def combine(self, hidden: Tensor, probs: Tensor | None = None, handle: Any = None) -> tuple[Tensor, Tensor | None]:
        """Sums the ranks' rows of each token, in fp32 and in rank order: rows, and with ``probs``, float32 [rows,
        experts], those of each token, [tokens, experts]. Collective."""
        went = _went(handle, False)
        hidden = _combined_rows(hidden, went)
        experts = went.route.shape.experts
        if probs is not None and probs.shape != (hidden.shape[0], experts):
            raise ContractError(f"probs: shape {tuple(probs.shape)}, want {(hidden.shape[0], experts)}")
        (out, dense), _ = self._stream.run(self._combine, hidden, None, False, hidden, probs, went)
        return out, dense

    def _combine(self, x: Tensor, probs: Tensor | None, went: Went) -> tuple[Tensor, Tensor | None]:
        route = went.route
        if probs is None:
            return route.combine(x, None, ())
        ids = self._global(route.selections(route._by(x)[1], False, False)[0])
        weights = probs[: len(ids)].float().gather(1, ids.clamp(0)).masked_fill(ids < 0, 0)
        out, home = route.combine(x, weights, ())
        return out, _spread(route.topk, home, route.shape.experts)

    def _global(self, ids: Any) -> Tensor:
        """Local experts among all; -1 stays."""
        return torch.where(ids >= 0, ids.long() + self.rank * self.config.num_of_experts_per_rank, -1)

    # Rows of selections.

    @opaque
    def dispatch_with_permute(
        self,
        *,
        hidden: Tensor,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        num_of_experts_per_rank: int | None = None,
        num_of_experts: int | None = None,
        use_fp8: bool | None = None,
        routing_map: Tensor | None = None,
        probs: Tensor | None = None,
        scaling_factor: Tensor | None = None,
        num_dispatched_tokens: int | None = None,
        num_permuted_tokens: int | None = None,
        pad_multiple: int | None = None,
        handle: Any = None,
        non_blocking: bool = False,
        fuse_permute_dispatch: bool = False,
        use_host_meta: bool = True,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, HybridEPHandle]:
        """Sends a row to each expert of a token: rows, probs, scaling_factor, tokens_per_expert, handle. Collective.

        Rows come expert by expert, by source rank, then token, each expert's padded with zeros to
        ``pad_multiple``, a power of two; ``probs`` as float32 [rows]. ``tokens_per_expert``, int64 [local
        experts], has the pads. With ``num_permuted_tokens``, the same on all ranks, nothing waits for
        the host: the tensors have that many rows, those beyond are dropped, and counts stay on the device. On a GPU
        nobody looks at a ``routing_map`` then, so of a token only its 32 lowest experts are seen; on the host more are
        refused. With the ``handle`` of an earlier dispatch rows go where they went then.
        """
        rows, scales = _rows(hidden, scaling_factor)
        room_for = None if num_permuted_tokens is None or num_permuted_tokens < 0 else num_permuted_tokens
        require(not non_blocking or room_for is not None, "non_blocking=True needs num_permuted_tokens")
        if num_of_experts_per_rank not in (None, self.config.num_of_experts_per_rank):
            raise ContractError(
                f"num_of_experts_per_rank is {num_of_experts_per_rank}, and the buffer's num_local_experts "
                f"{self.config.num_of_experts_per_rank}"
            )
        weights: Tensor | None = None
        went = None if handle is None else _went(handle, True)
        if went is None:
            topk, weights, experts, room = self._selections(
                rows, topk_idx, topk_weights, num_of_experts, probs, routing_map, waits=room_for is None
            )
            route = self._route(topk, experts, room, True, _alignment(pad_multiple), room_for)
            went = Went(route, -1 if room_for is None else room_for, True, fuse_permute_dispatch, self.config)
        else:
            _check_pads(pad_multiple, went)
            if room_for is not None and room_for < went.rows:
                raise ContractError(f"num_permuted_tokens is {room_for}, and the handle's rows are {went.rows}")
            weights = _weights_of(went.route, rows, probs, topk_weights)
        (got, scales, come, counts), _ = self._stream.run(
            self._permuted, rows, None, False, rows, scales, weights, went, room_for
        )
        return _as_sent(got, hidden), come, scales, counts, HybridEPHandle.of(went)

    def _permuted(
        self, rows: Tensor, scales: Tensor | None, weights: Tensor | None, went: Went, room_for: int | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
        got, got_scales, routing, described = went.route.dispatch(rows, scales, weights)
        if went.rows < 0:
            went.rows = got.shape[0]
        waited = went.route.exact
        _, come, counts = went.route.selections(routing, weights is not None, waited, described)
        rows_now = went.rows if room_for is None else room_for
        return (
            _sized(got, rows_now),
            None if got_scales is None else _sized(got_scales, rows_now),
            None if come is None else _sized(come, rows_now),
            torch.tensor(counts, dtype=torch.int64, device="cpu") if waited else _zones(went)[1],
        )

    @opaque
    def combine_with_unpermute(
        self,
        *,
        hidden: Tensor,
        probs: Tensor | None = None,
        handle: Any = None,
        pad_multiple: int | None = None,
        num_dispatched_tokens: int | None = None,
        fuse_unpermute_combine: bool = False,
        non_blocking: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Sums the rows of each token, those of a rank first, in fp32 and in rank order: rows, and with
        ``probs``, float32 [rows], those of each token, [tokens, experts]. Collective."""
        went = _went(handle, True)
        _check_pads(pad_multiple, went)
        hidden = _combined_rows(hidden, went)
        if probs is not None and probs.shape != hidden.shape[:1]:
            raise ContractError(f"probs: shape {tuple(probs.shape)}, want {tuple(hidden.shape[:1])}")
        (out, dense), _ = self._stream.run(self._unpermuted, hidden, None, False, hidden, probs, went)
        return out, dense

    def _unpermuted(self, x: Tensor, probs: Tensor | None, went: Went) -> tuple[Tensor, Tensor | None]:
        route = went.route
        n = route._rows_by(route._by(x)[1])
        if x.shape[0] < n:  # what was dropped is nothing
            x, probs = _sized(x, n), None if probs is None else _sized(probs, n)
        out, home = route.combine(x, probs, ())
        return out, None if home is None else _spread(route.topk, home, route.shape.experts)

    # Where rows go.

    def _selections(
        self,
        rows: Tensor,
        topk: Tensor | None,
        weights: Tensor | None,
        experts: int | None,
        probs: Tensor | None,
        routing_map: Tensor | None,
        waits: bool,
    ) -> tuple[Tensor, Tensor | None, int, int]:
        """The selections of tokens [tokens, topk], their weights, the experts, and the most tokens of a rank."""
        tokens, local = rows.shape[0], self.config.num_of_experts_per_rank
        if routing_map is not None:
            if routing_map.dtype != torch.bool or routing_map.dim() != _MATRIX or routing_map.shape[0] != tokens:
                raise ContractError(
                    f"routing_map: {routing_map.dtype} {tuple(routing_map.shape)}, want torch.bool [tokens, experts] "
                    f"of {tokens} tokens"
                )
            experts = routing_map.shape[1]
        elif topk is None or experts is None:
            raise ContractError("a dispatch without a handle takes routing_map, or topk_idx and num_of_experts")
        elif topk.dim() != _MATRIX or topk.shape[0] != tokens:
            raise ContractError(f"topk_idx: shape {tuple(topk.shape)}, want [tokens, topk] of {tokens} tokens")
        elif weights is not None and weights.shape != topk.shape:
            raise ContractError("topk_weights is not of the shape of topk_idx")
        if experts != self.group_size * local:
            raise ContractError(f"{experts} experts, and {self.group_size} ranks of {local} local experts")
        if probs is not None:
            _check_probs(probs, tokens, experts)
        room = tokens
        if topk is None or routing_map is not None:  # the map goes before selections
            room, columns = self._most(routing_map) if waits else (tokens, min(experts, _MOST_TOPK))
            if not waits and not self._exchanges.on_gpu and tokens:
                columns = min(experts, max(columns, int(routing_map.sum(1).max())))  # there it can be looked at
            topk, weights = _chosen(routing_map, columns), None
        if weights is None and probs is not None:
            weights = _weights(probs, topk)
        if topk.shape[1] > _MOST_TOPK:
            raise weft.UnsupportedError(
                f"a token selects {topk.shape[1]} experts, at most {_MOST_TOPK}: select fewer a token"
            )
        if room > self.config.max_num_of_tokens_per_rank:
            self.config.max_num_of_tokens_per_rank = 1 << (room - 1).bit_length()
        return topk, weights, experts, self.config.max_num_of_tokens_per_rank

    def _most(self, routing_map: Any) -> tuple[int, int]:
        """The most tokens of a rank, and the most experts of a token of any rank. Collective."""
        tokens = routing_map.shape[0]
        most = routing_map.sum(1).max() if tokens else torch.zeros((), dtype=torch.int64, device=routing_map.device)
        if self._exchanges.on_gpu:
            mine = torch.stack((torch.full_like(most, tokens), most)).int()
            everyone = self._exchanges.on_host(self._exchanges.all_gather(mine))
        else:
            own, everyone, gather = self._exchanges.gather_of(2)
            own[0], own[1] = tokens, most
            gather()
            if left_out := self._comm._left_out:
                everyone = everyone.clone()
                everyone[list(left_out)] = 0
        room, columns = everyone.amax(0).tolist()
        return room, max(columns, 1)

    def _route(
        self,
        topk: Tensor,
        experts: int,
        room: int,
        expand: bool,
        alignment: int = 1,
        room_for: int | None = None,
    ) -> Route:
        sms = max(self.num_sms_dispatch_api, self.num_sms_combine_api) if self._exchanges.on_gpu else 0
        shape = Shape(experts, topk.shape[1], room, expand, ep.Reduction.partial, sms, alignment, room)
        route = Route(self._exchanges, shape, topk, exact=room_for is None, keep=True)
        if room_for is None:
            return route
        # Numbers of rows are rounded up, so that there are few handles.
        capacity = max(_FEWEST_ROWS, alignment, 1 << max(room_for - 1, 0).bit_length())
        if capacity < route.most_expanded():
            route.shape = shape._replace(capacity=capacity)
        return route


def _rows(hidden: Tensor, scales: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Rows as they travel, bytes as float8, and their scales."""
    if hidden.dim() != _MATRIX:
        raise ContractError(f"hidden: shape {tuple(hidden.shape)}, want [tokens, hidden]")
    hidden = hidden.contiguous()
    if hidden.dtype == torch.bfloat16:
        return hidden, None  # the branch's tests pass scales with such rows, too
    if hidden.dtype not in (torch.uint8, torch.float8_e4m3fn):
        raise ContractError(f"hidden: type {hidden.dtype}, want torch.bfloat16, or bytes of float8 with scaling_factor")
    want = hidden.shape[0], hidden.shape[1] // _BLOCK
    if scales is None or scales.dtype != torch.float32 or scales.shape != want or hidden.shape[1] % _BLOCK:
        given = "none" if scales is None else f"{scales.dtype} {tuple(scales.shape)}"
        raise ContractError(f"scaling_factor: {given}, want torch.float32 {want}, a number for each {_BLOCK} of a row")
    return hidden.view(torch.float8_e4m3fn), scales


def _as_sent(rows: Tensor, sent: Tensor) -> Tensor:
    return rows if rows.dtype == sent.dtype else rows.view(sent.dtype)


def _combined_rows(hidden: Tensor, went: Went) -> Tensor:
    if hidden.dtype != torch.bfloat16:
        raise ContractError(f"hidden: type {hidden.dtype}, want torch.bfloat16: sums are of that type")
    if hidden.dim() != _MATRIX or hidden.shape[0] < went.rows:
        raise ContractError(f"hidden: shape {tuple(hidden.shape)}, want [rows, hidden] of {went.rows} rows")
    return hidden.contiguous()


def _alignment(pad_multiple: int | None) -> int:
    multiple = pad_multiple or 1
    if multiple < 1 or multiple & (multiple - 1):
        raise ContractError(f"pad_multiple is {pad_multiple}, want a power of two, or None")
    return multiple


def _check_pads(pad_multiple: int | None, went: Went) -> None:
    if pad_multiple is not None and _alignment(pad_multiple) != went.route.shape.alignment:
        raise ContractError(
            f"pad_multiple is {pad_multiple}, and the handle's dispatch had {went.route.shape.alignment}"
        )


def _chosen(routing_map: Any, columns: int) -> Tensor:
    """The experts of each token, in ascending order, int64 [tokens, columns], and -1 behind."""
    experts = routing_map.shape[1]
    numbers = torch.arange(experts, device=routing_map.device)
    found = torch.where(routing_map, numbers, experts).sort(1).values[:, :columns]
    return torch.where(found < experts, found, -1).contiguous()


def _check_probs(probs: Tensor, tokens: int, experts: int) -> None:
    if probs.shape != (tokens, experts):
        raise ContractError(f"probs: shape {tuple(probs.shape)}, want {(tokens, experts)}")


def _weights(probs: Tensor, topk: Tensor) -> Tensor:
    """The weights of selections, of the numbers of all experts."""
    return probs.float().gather(1, topk.long().clamp(0))


def _weights_of(route: Route, rows: Tensor, probs: Tensor | None, weights: Tensor | None) -> Tensor | None:
    """The weights of a handle's selections, if any are given with its tokens."""
    if rows.shape[0] != route.tokens:
        raise ContractError(f"hidden: {rows.shape[0]} tokens, and the handle has {route.tokens}")
    if probs is not None:
        _check_probs(probs, route.tokens, route.shape.experts)
        return _weights(probs, route.topk)
    if weights is not None and weights.shape != route.topk.shape:
        raise ContractError("topk_weights is not of the shape of the handle's selections: give probs")
    return weights


def _spread(ids: Tensor, values: Tensor, columns: int) -> Tensor:
    """Values [rows, n] in the columns that numbers say, -1 for none, of [rows, columns]; the others are 0."""
    wide = torch.zeros((ids.shape[0], columns + 1), dtype=values.dtype, device=ids.device)
    return wide.scatter(1, torch.where(ids < 0, columns, ids).long(), values)[:, :columns].contiguous()


def _sized(t: Tensor, rows: int) -> Tensor:
    """The first so many rows, and zeros for those that there are not."""
    if t.shape[0] >= rows:
        return t[:rows]
    out = t.new_zeros((rows, *t.shape[1:]))
    out[: t.shape[0]] = t
    return out


def _went(handle: Any, permuted: bool) -> Went:
    """The state of a dispatch, found by its handle or by the tuple of its contents."""
    if isinstance(handle, HybridEPHandle):
        went: Went | None = handle.went
    else:
        went = recall(handle[_KNOWN], Went) if isinstance(handle, (tuple, list)) and len(handle) > _KNOWN else None
    if went is None or went.permuted != permuted:
        of = "dispatch_with_permute" if permuted else "dispatch"
        raise ContractError(
            f"handle: {'another' if went else 'a ' + type(handle).__name__}, want the handle that {of} returned, or "
            "the tuple of its contents, not copies of them"
        )
    return went


def _zones(went: Went) -> tuple[Tensor, Tensor]:
    """int64 [local experts]: where the rows of each expert begin, and how many there are with pads, of those that the
    caller has."""
    a = went.route.shape.alignment
    padded = (went.route.selections_of_experts.long() + (a - 1)) // a * a
    begins = padded.cumsum(0) - padded
    return begins, torch.minimum(padded, (went.rows - begins).clamp(0))


def _contents(went: Went) -> tuple[Any, ...]:
    route = went.route
    ranks, experts = route._exchanges.ranks, route.shape.experts
    local = experts // ranks
    topk = route.topk
    to = torch.zeros((topk.shape[0], ranks + 1), dtype=torch.bool, device=topk.device)
    to.scatter_(1, torch.where(topk >= 0, topk // local, ranks).long(), True)
    there = to[:, :ranks]
    sparse = torch.where(there, there.cumsum(0) - 1, -1).int()
    came = route.tokens_of_ranks()[-1:].clone()
    row_ids = _row_ids(went, local) if went.permuted else None
    here = _selected_here(route, local) if row_ids is None else row_ids >= 0
    head = sparse, there.any(1, keepdim=True), there[:, :0], came, here
    tail = topk.shape[0], went.config
    if row_ids is None:
        return *head, *tail
    begins, counts = _zones(went)
    overflow = (_demand(went) > went.rows).int().view(1)
    if not went.fused:
        return *head, row_ids, *tail, overflow
    return *head, begins.int(), row_ids, counts.int(), *tail, overflow


def _demand(went: Went) -> Tensor:
    """The rows that were to come, pads included."""
    a = went.route.shape.alignment
    return ((went.route.selections_of_experts.long() + (a - 1)) // a * a).sum()


def _selected_here(route: Route, local: int) -> Tensor:
    """bool [tokens, local experts]: which experts here each received token selects."""
    ids = route._part("row_experts")[: route.received]
    found = torch.zeros((ids.shape[0], local + 1), dtype=torch.bool, device=ids.device)
    return found.scatter_(1, torch.where(ids >= 0, ids, local).long(), True)[:, :local]


def _row_ids(went: Went, local: int) -> Tensor:
    """int32 [received tokens, local experts]: the row of each token for each expert, -1 for none."""
    slots = went.route._expanded_sources()[1]
    begins, counts = _zones(went)
    of = torch.bucketize(slots, begins, right=True) - 1  # empty zones begin where the next one does
    of = torch.where((slots >= 0) & (slots < (begins + counts)[of.clamp(0)]), of, local)
    found = torch.full((slots.shape[0], local + 1), -1, dtype=torch.int32, device=slots.device)
    return found.scatter_(1, of, slots.int())[:, :local]
