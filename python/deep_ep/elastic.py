"""DeepEP's ElasticBuffer, for ranks that reach each other's memory: its methods, arguments, returned
tuples and layouts, over Weft."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

import weft
from weft import compiled, ep
from weft._buffer.errors import ContractError, require
from weft._buffer.events import Before, EventHandle, EventOverlap, nothing_to_wait_for
from weft._buffer.exchanges import Exchanges, where
from weft._buffer.opaque import opaque
from weft._buffer.ranks import close, join

from . import _files  # noqa: F401 - it refuses a mixture
from .buffer import check_stats, rows_and_scales
from .routes import Route, Sent, Shape
from .utils.envs import get_logical_domain_size, get_nvlink_gbs
from .utils.math import align

_MOST_TOPK = 32
_BIASES = 2
_MATRIX = 2  # dimensions
_SCALE_BYTES = 4
_NOTHING = None, 0, 0
_SMS_WITHOUT_GPU = 132  # an H200's, for code that computes with the number


class EPHandle:
    """Where the tokens of a dispatch went, with the members of DeepEP's handles. Members that need computing
    are computed when they are read.

    ``psum_num_recv_tokens_per_scaleup_rank``: int32 [ranks], the tokens of this source rank and those
    before. ``num_unaligned_recv_tokens_per_expert``: int32 [local experts].
    ``psum_num_recv_tokens_per_expert``: the same summed up, aligned; of an expanded dispatch where each
    expert's rows end, pads left out. ``recv_src_metadata``: int32 [tokens, 2 + topk]: source rank *
    num_max_tokens_per_rank + token, source rank * topk + the last selection here, and each selection's
    row, -1 for none. ``dst_buffer_slot_idx``: int32 [tokens, topk]: this rank * num_max_tokens_per_rank
    + which of this rank's tokens for the destination it is, at the last selection there, elsewhere -1.
    """

    def __init__(
        self,
        do_expand: bool,
        num_experts: int,
        expert_alignment: int,
        num_max_tokens_per_rank: int,
        num_sms: int,
        topk_idx: Tensor,
        num_recv_tokens: int,
        num_expanded_tokens: int,
        num_recv_tokens_per_expert_list: list[int],
        psum_num_recv_tokens_per_scaleup_rank: Tensor,
        psum_num_recv_tokens_per_expert: Tensor,
        num_unaligned_recv_tokens_per_expert: Tensor,
        recv_src_metadata: Tensor,
        dst_buffer_slot_idx: Tensor,
        token_metadata_at_forward: Tensor | None,
        channel_linked_list: Tensor | None,
    ) -> None:
        """A handle of these contents. The first exchange with it reads ``topk_idx``, and prepares anew."""
        vars(self).update({name: value for name, value in locals().items() if name != "self"}, _route=None)

    _sent: Sent | None = None
    """What the compiled part's exchanges follow, if they may."""
    _exchanges: Exchanges
    token_metadata_at_forward = channel_linked_list = None

    @classmethod
    def _of(
        cls, route: Route, num_sms: int, num_expanded_tokens: int, num_recv_tokens_per_expert_list: list[int]
    ) -> EPHandle:
        made = cls.__new__(cls)
        made._route, made.num_sms = route, num_sms
        made.num_expanded_tokens, made.num_recv_tokens_per_expert_list = (
            num_expanded_tokens,
            num_recv_tokens_per_expert_list,
        )
        return made

    @functools.cached_property
    def _route(self) -> Route | None:
        return None if self._sent is None else self._sent.route(self._exchanges)

    def __copy__(self) -> EPHandle:
        made = type(self).__new__(type(self))
        vars(made).update(vars(self))  # which goes the same way
        return made

    def __reduce__(self) -> Any:
        return EPHandle, tuple(getattr(self, name) for name in inspect.signature(EPHandle).parameters)

    # Members that were assigned, by the constructor or later, come before these.

    @functools.cached_property
    def do_expand(self) -> bool:
        return self._route.shape.expand

    @functools.cached_property
    def num_experts(self) -> int:
        return self._route.shape.experts

    @functools.cached_property
    def expert_alignment(self) -> int:
        return self._route.shape.alignment

    @functools.cached_property
    def num_max_tokens_per_rank(self) -> int:
        return self._route.shape.tokens

    @functools.cached_property
    def num_recv_tokens(self) -> int:
        return self._route.received

    @functools.cached_property
    def topk_idx(self) -> Tensor:
        return self._route.topk

    @functools.cached_property
    def psum_num_recv_tokens_per_scaleup_rank(self) -> Tensor:
        return self._route.tokens_of_ranks()

    @functools.cached_property
    def num_unaligned_recv_tokens_per_expert(self) -> Tensor:
        return self._route.expert_counts()

    @functools.cached_property
    def psum_num_recv_tokens_per_expert(self) -> Tensor:
        return self._route.ends_of_experts()

    @functools.cached_property
    def recv_src_metadata(self) -> Tensor:
        return self._route.sources()

    @functools.cached_property
    def dst_buffer_slot_idx(self) -> Tensor:
        return self._route.destinations()

    def deterministic_sort(
        self,
        do_cpu_sync: bool,
        is_cached_dispatch: bool,
        recv_x: Tensor,
        recv_sf: Tensor | None,
        recv_topk_idx: Tensor,
        recv_topk_weights: Tensor,
        channel_linked_list: Tensor | None,
    ) -> None:
        """Nothing: rows come by source rank, then token, always."""


class ElasticBuffer:
    """Expert-parallel exchanges of a process group, by DeepEP's second interface.

    Sizes in bytes, queue pairs and service levels are accepted and say nothing: memory is taken when
    shapes are first seen, on all ranks alike. Results are tensors of the caller's, which may be kept.
    Everything that DeepEP asserts is a :class:`ContractError`, an AssertionError with words.
    """

    def __init__(
        self,
        group: Any,
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
    ) -> None:
        """Joins the ranks of a process group of PyTorch's. Collective. Either ``num_bytes``, or the
        shapes that it follows from."""
        require(group is not None, "there is no group to join the ranks of")
        require(
            num_bytes is not None or (num_max_tokens_per_rank > 0 and hidden > 0),
            "give num_bytes, or num_max_tokens_per_rank and hidden, from which it follows",
        )
        comm = join(group, num_cpu_timeout_secs, num_gpu_timeout_secs)
        if num_bytes is None:
            num_bytes = _size_hint(
                comm.ranks, num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch, allow_multiple_reduction
            )
        self._open(
            comm,
            group,
            num_bytes,
            num_max_tokens_per_rank,
            allow_hybrid_mode,
            allow_multiple_reduction,
            prefer_overlap_with_compute,
            num_allocated_qps,
            explicitly_destroy,
            deterministic,
        )

    @classmethod
    def from_communicator(
        cls,
        comm: weft.Communicator,
        *,
        num_max_tokens_per_rank: int = 0,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        explicitly_destroy: bool = False,
    ) -> ElasticBuffer:
        """A buffer of a communicator of Weft's, which it closes. Collective. DeepEP has no such method."""
        made = cls.__new__(cls)
        made._open(
            comm,
            None,
            0,
            num_max_tokens_per_rank,
            allow_hybrid_mode,
            allow_multiple_reduction,
            prefer_overlap_with_compute,
            0,
            explicitly_destroy,
        )
        return made

    def _open(
        self,
        comm: weft.Communicator,
        group: Any,
        num_bytes: int,
        tokens: int,
        hybrid: bool,
        multiple: bool,
        overlap: bool,
        qps: int,
        explicitly_destroy: bool,
        deterministic: bool = False,
    ) -> None:
        self._comm, self.group = comm, group
        self.rank_idx, self.num_ranks, self.num_bytes, self.num_max_tokens_per_rank = (
            comm.rank,
            comm.ranks,
            num_bytes,
            tokens,
        )
        self.num_scaleout_ranks, self.num_scaleup_ranks, self.scaleout_rank_idx, self.scaleup_rank_idx = (
            1,
            comm.ranks,
            0,
            comm.rank,
        )
        self.allow_hybrid_mode, self.allow_multiple_reduction, self.prefer_overlap_with_compute = (
            hybrid,
            multiple,
            overlap,
        )
        self.explicitly_destroy, self.deterministic = explicitly_destroy, deterministic
        self.num_allocated_qps = qps or (65 if overlap else 129 if hybrid else 17)
        self._sms: dict[Any, int] = {}
        self._plans: dict[Any, tuple[Sent, int, int]] = {}
        self.runtime: Any = weakref.proxy(self)
        self.nccl_comm_handle = None
        self._exchanges = Exchanges(comm, describes_again=True, max_tokens="num_max_tokens_per_rank")
        self.num_rdma_ranks, self.num_nvlink_ranks = self._exchanges.hosts.count, comm.local_ranks
        self._exchanges.of_handles.append(self._plans)
        self._stream = self._exchanges.stream
        self._end = weakref.finalize(self, close, comm)

    # The buffer's properties, for debugging.

    def destroy(self) -> None:
        """Leaves. Only buffers that were made to be destroyed explicitly are; others go with their last reference."""
        require(self.explicitly_destroy, "destroy is for buffers that were made with explicitly_destroy=True")
        self._end.detach()
        self.runtime = None
        self._comm.close()

    @staticmethod
    def get_buffer_size_hint(
        group: Any,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """Bytes that DeepEP's buffer needs. Weft chooses its own resources."""
        return _size_hint(
            group.size(), num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch, allow_multiple_reduction
        )

    @staticmethod
    def capture() -> EventHandle:
        """An event at the end of the work that is enqueued in the current stream now."""
        return EventHandle()

    def get_comm_stream(self) -> Any:
        """The stream of exchanges; on the host PyTorch's only one, on which they have happened when they return."""
        return self._stream.stream()

    def get_physical_domain_size(self) -> tuple[int, int]:
        """How many hosts there are, and ranks of this one, which reach each other's memory."""
        return self.num_rdma_ranks, self.num_nvlink_ranks

    def get_logical_domain_size(self) -> tuple[int, int]:
        """One domain of all ranks: exchanges cross hosts by themselves."""
        return (
            (1, self.num_ranks) if self.group is None else get_logical_domain_size(self.group, self.allow_hybrid_mode)
        )

    @opaque
    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Returns when every rank has come; on a GPU the stream goes on then, and ``with_cpu_sync`` has
        this call wait for it. Collective."""
        like = self._anything()
        if use_comm_stream:
            self._stream.run(self._exchanges.barrier, like, None, False)
        else:
            self._exchanges.barrier()
        if with_cpu_sync and like.is_cuda:
            self._comm.wait()

    def _anything(self) -> Tensor:
        return torch.empty(0, device=where(self._comm))

    def _theoretical_num_sms(
        self, experts: int, topk: int, nvlink_gbs: float, read_gbs: float, write_gbs: float
    ) -> int:
        on_gpu = self._exchanges.on_gpu and torch.cuda.is_available()
        sms = torch.cuda.get_device_properties(self._comm._device).multi_processor_count if on_gpu else _SMS_WITHOUT_GPU
        need = float(sms)
        if self.num_ranks > 1:
            # A row is read once for all the ranks that it goes to, written once for each, and
            # crosses unless it stays here.
            per_rank = experts // self.num_ranks
            visited = self.num_ranks * (1 - math.comb(experts - per_rank, topk) / math.comb(experts, topk))
            rate = nvlink_gbs / (1 - 1 / self.num_ranks)
            need = 1.25 * max(rate / visited / read_gbs, rate / write_gbs)
        need = align(max(4, math.ceil(need)), 2)
        return min(need if self.prefer_overlap_with_compute else max(need, 64), sms)

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 200,
        sm_write_gbs: float = 50,
    ) -> int:
        """How many multiprocessors keep the links busy if tokens select experts evenly, by DeepEP's model.
        Weft's kernels choose from measurements."""
        if num_scaleout_topk:
            raise ContractError("num_scaleout_topk is for several nodes: leave it 0")
        key = num_experts, num_topk, nvlink_gbs, sm_read_gbs, sm_write_gbs
        found = self._sms.get(key)
        if found is None:
            require(
                num_experts % self.num_ranks == 0,
                f"{num_experts} experts on {self.num_ranks} ranks: want a multiple of the ranks",
            )
            found = self._sms[key] = self._theoretical_num_sms(
                num_experts, num_topk, nvlink_gbs or get_nvlink_gbs(), sm_read_gbs, sm_write_gbs
            )
        return found

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """How many queue pairs DeepEP would use. There is no network card to have them."""
        return min(self.num_allocated_qps, 16 * num_sms + 1 if self.allow_hybrid_mode else min(num_sms, 9))

    # Exchanges.

    @opaque
    def dispatch(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Before = None,
        previous_event_before_epilogue: Before = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> tuple[Tensor | tuple[Tensor, Tensor], Tensor | None, Tensor | None, EPHandle, EventOverlap]:
        """Sends tokens to the ranks of their experts: recv_x, recv_topk_idx, recv_topk_weights, handle,
        event. Collective.

        ``x``: bfloat16 [tokens, hidden], or float8_e4m3fn and its scales, 4 bytes each, [tokens, n].
        Rows come by source rank, then token, with int64 recv_topk_idx [rows, topk] of local experts, -1
        for those elsewhere, and their weights. With ``do_expand`` a row comes for every selection,
        expert by expert, each expert's rows padded with zeros to the alignment, with a weight each and
        no recv_topk_idx. Without ``do_cpu_sync`` nothing waits for the host, and the tensors are of the
        most rows that can come: the handle says which there are. With a ``handle`` rows go where they
        went then.
        """
        plain = (
            cumulative_local_expert_recv_stats is None
            and previous_event is None
            and previous_event_before_epilogue is None
            and not async_with_compute_stream
            and (do_expand or not do_zero_padding)
        )
        choices = num_experts, num_max_tokens_per_rank, expert_alignment, do_cpu_sync, do_expand
        if plain and type(x) is Tensor:
            quick = (
                self._quick_dispatch(x, topk_idx, topk_weights, choices, num_sms, do_handle_copy)
                if handle is None
                else self._quick_again(x, choices, handle)
                if topk_idx is None and topk_weights is None
                else None
            )
            if quick is not None:
                return quick
        rows, scales = rows_and_scales(x)
        _check_events(previous_event, allocate_on_comm_stream)
        _check_rows(rows, scales)
        if do_zero_padding and not do_expand:
            raise ContractError("do_zero_padding is for do_expand=True: other rows have no pads")
        if handle is None:
            route, sync = self._new_route(
                rows,
                topk_idx,
                topk_weights,
                num_experts,
                num_max_tokens_per_rank,
                expert_alignment,
                do_handle_copy,
                do_cpu_sync,
                do_expand,
                num_sms,
            )
        else:
            route, sync = self._route_of(handle), False
            given = num_experts, num_max_tokens_per_rank, expert_alignment
            has = handle.num_experts, handle.num_max_tokens_per_rank, handle.expert_alignment
            require(topk_idx is None, "a dispatch by a handle takes no topk_idx: the handle has it")
            require(not do_cpu_sync, "a dispatch by a handle knows its counts: leave do_cpu_sync out")
            if not all(g in (None, h) for g, h in zip(given, has, strict=True)):
                raise ContractError(f"experts, most tokens and alignment {given}, and the handle has {has}")
            if do_expand != handle.do_expand:
                raise ContractError(f"do_expand is {do_expand}, and the handle's dispatch had {handle.do_expand}")
            if rows.shape[0] != route.tokens:
                raise ContractError(f"x: {rows.shape[0]} tokens, and the handle has {route.tokens}")
            require(
                topk_weights is None or topk_weights.shape == (route.tokens, route.shape.topk),
                "topk_weights: want [tokens, topk] of the handle's tokens",
            )
        check_stats(cumulative_local_expert_recv_stats, route.shape.experts // self.num_ranks, rows)
        if previous_event_before_epilogue is not None:
            _wait(previous_event_before_epilogue)
        (got, experts, weights, handle), event = self._stream.run(
            self._dispatch,
            rows,
            previous_event,
            async_with_compute_stream,
            rows,
            scales,
            topk_weights,
            route,
            handle,
            sync,
            num_sms,
            use_tma_aligned_col_major_sf,
            cumulative_local_expert_recv_stats,
        )
        if scales is None:
            self._plan(choices, handle, topk_idx, rows.shape[1])
        return got, experts, weights, handle, event

    def _key(self, x: Tensor, topk: Tensor, choices: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a plan depends on."""
        return (
            choices,
            self.num_max_tokens_per_rank,
            self.allow_multiple_reduction,
            x.dtype,
            x.shape[1],
            topk.dtype,
            topk.shape[1],
        )

    def _plan(self, choices: tuple[Any, ...], handle: EPHandle, topk: Tensor | None, hidden: int) -> None:
        """Has the compiled part make what follows from a dispatch, and dispatches that are like it, from now on."""
        sent = handle._route.sent(hidden) if handle._route is not None else None
        if sent is None:
            return
        handle._sent, handle._exchanges = sent, self._exchanges
        if topk is not None and topk.dtype == torch.int64:
            sms = self.get_theoretical_num_sms(sent.shape.experts, sent.shape.topk)
            most = handle._route.most_expanded()  # type: ignore[union-attr]
            self._plans[self._key(hidden, topk, choices)] = sent, sms, most

    def _key(self, hidden: int, topk: Tensor, choices: tuple[Any, ...]) -> tuple[Any, ...]:
        return hidden, topk.shape[1], choices, self.num_max_tokens_per_rank, self.allow_multiple_reduction

    def _quick_dispatch(
        self,
        x: Tensor,
        topk: Tensor | None,
        weights: Tensor | None,
        choices: tuple[Any, ...],
        num_sms: int,
        copy: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, EPHandle, EventOverlap] | None:
        """A dispatch on the host by the compiled part; None where it declines. Collective."""
        if type(topk) is not Tensor or x.dtype != torch.bfloat16 or topk.dtype != torch.int64:
            return None
        shape, selections = x.shape, topk.shape
        if len(shape) != _MATRIX or len(selections) != _MATRIX or selections[0] != shape[0]:
            return None
        like, sms, most = self._plans.get(self._key(shape[1], topk, choices), _NOTHING)
        if like is None or shape[0] > like.shape.tokens:
            return None
        if weights is not None and (weights.dtype != torch.float32 or weights.shape != selections):
            return None
        got = like.by.dispatch(like.handle, x, None, topk, weights, None, None, False)
        if got is None:
            return None
        rows, _, routing, ids, given, demand = got
        made, padded = EPHandle.__new__(EPHandle), like.shape.aligned(demand) if like.exact else []
        made.num_sms = num_sms or sms
        made.num_expanded_tokens = sum(padded) if like.exact else most
        made.num_recv_tokens_per_expert_list = padded
        kept, exchanges = compiled.NATIVE.content(topk) if copy else None, self._exchanges
        sent = like.by, like.handle, routing, like.shape, like.exact, topk, kept, exchanges.era
        made._sent = tuple.__new__(Sent, sent)  # in a third of the time that its own takes
        made._exchanges = exchanges
        return rows, ids, given, made, nothing_to_wait_for()

    def _quick_again(
        self, x: Tensor, choices: tuple[Any, ...], handle: EPHandle
    ) -> tuple[Tensor, Tensor | None, Tensor | None, EPHandle, EventOverlap] | None:
        """The same by a handle. Collective."""
        sent = self._followed(handle, x)
        if sent is None or choices != (None, None, None, None, sent.shape.expand) or x.shape[0] != sent.routing.tokens:
            return None
        got = sent.by.dispatch(sent.handle, x, None, None, None, sent.routing, None, False)
        if got is None:
            return None
        ids = got[3]
        if ids is not None and ids.dtype != sent.topk.dtype:
            ids = ids.to(sent.topk.dtype)
        return got[0], ids, None, handle, nothing_to_wait_for()

    def _followed(self, handle: Any, x: Tensor) -> Sent | None:
        """What a dispatch has left at a handle, if rows are of the kind that went there."""
        sent = handle._sent if type(handle) is EPHandle else None
        if sent is None or x.dtype != torch.bfloat16 or len(x.shape) != _MATRIX:
            return None
        follows = (
            x.shape[1] == sent.handle.spec.hidden
            and handle._exchanges is self._exchanges
            and sent.era == self._exchanges.era
        )
        return sent if follows else None

    def _new_route(
        self,
        rows: Tensor,
        topk: Tensor | None,
        weights: Tensor | None,
        experts: int | None,
        most: int | None,
        alignment: int | None,
        copy: bool,
        sync: bool | None,
        expand: bool,
        sms: int,
    ) -> tuple[Route, bool]:
        if topk is None or experts is None:
            raise ContractError("a dispatch without a handle takes topk_idx and num_experts")
        most = self.num_max_tokens_per_rank if most is None else most
        if most <= 0:
            raise ContractError("say num_max_tokens_per_rank here or when the buffer is made")
        tokens, selections = rows.shape[0], topk.shape
        if len(selections) != _MATRIX or selections[0] != tokens or tokens > most:
            raise ContractError(
                f"{tokens} tokens and topk_idx of shape {tuple(selections)}, want [tokens, topk] and at most "
                f"{most} tokens, num_max_tokens_per_rank"
            )
        if topk.dtype not in (torch.int64, torch.int32):
            raise ContractError(f"topk_idx: type {topk.dtype}, want torch.int64")
        if selections[1] > _MOST_TOPK:
            raise ContractError(f"{selections[1]} selections a token, want at most {_MOST_TOPK}")
        if weights is not None and weights.shape != selections:
            raise ContractError("topk_weights is not of the shape of topk_idx")
        if experts % self.num_ranks:
            raise ContractError(f"{experts} experts on {self.num_ranks} ranks: want a multiple of the ranks")
        alignment = 1 if alignment is None else alignment
        if alignment < 1 or (expand and alignment & (alignment - 1)):
            raise ContractError(f"expert_alignment is {alignment}, want 1 or more, with do_expand=True a power of two")
        sync = sync is None or sync
        shape = self._shape(experts, selections[1], most, alignment, expand, sms)
        return Route(self._exchanges, shape, topk, sync, copy), sync

    def _shape(self, experts: int, topk: int, most: int, alignment: int, expand: bool, sms: int) -> Shape:
        reduction = (
            ep.Reduction.exact if expand and not self.allow_multiple_reduction else ep.Reduction.partial_by_selection
        )
        # The multiprocessors for handles: as many as are asked for, or as are of use. The host has
        # none.
        sms = (sms or self.get_theoretical_num_sms(experts, topk)) if self._exchanges.on_gpu else 0
        # Numbers of tokens other than the buffer's are rounded up, so that there are few handles.
        room = most if most == self.num_max_tokens_per_rank else 1 << (most - 1).bit_length()
        return Shape(experts, topk, room, expand, reduction, sms, alignment, most)

    def _route_of(self, handle: EPHandle) -> Route:
        if not isinstance(handle, EPHandle):
            raise ContractError(f"handle: a {type(handle).__name__}, want an EPHandle, as dispatch returns it")
        if handle._route is None:
            topk = handle.topk_idx
            shape = self._shape(
                handle.num_experts,
                topk.shape[1],
                handle.num_max_tokens_per_rank,
                handle.expert_alignment,
                handle.do_expand,
                handle.num_sms,
            )
            handle._route = Route(self._exchanges, shape, topk, exact=bool(handle.num_recv_tokens_per_expert_list))
        return handle._route

    def _dispatch(
        self,
        rows: Tensor,
        scales: Tensor | None,
        weights: Tensor | None,
        route: Route,
        handle: EPHandle | None,
        sync: bool,
        sms: int,
        columns: bool,
        stats: Tensor | None,
    ) -> tuple[Any, Tensor | None, Tensor | None, EPHandle]:
        if weights is not None and weights.dtype != torch.float32:
            weights = weights.float()
        arrived, arrived_scales, routing, described = route.dispatch(rows, scales, weights)
        if arrived_scales is not None:
            arrived_scales = _tma_aligned(arrived_scales) if columns else arrived_scales.contiguous()
        experts, given, padded = route.selections(routing, weights is not None, sync, described)
        if stats is not None:
            stats.add_(route.selections_of_experts)
        if handle is None:
            sms = sms or self.get_theoretical_num_sms(route.shape.experts, route.shape.topk)
            handle = EPHandle._of(route, sms, sum(padded) if sync else route.most_expanded(), padded)
        return arrived if arrived_scales is None else (arrived, arrived_scales), experts, given, handle

    @opaque
    def combine(
        self,
        x: Tensor,
        handle: EPHandle,
        topk_weights: Tensor | None = None,
        bias: Tensor | tuple[Tensor, Tensor] | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Before = None,
        previous_event_before_epilogue: Before = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:
        """Sums the rows of each token, without weights, after the biases: combined_x,
        combined_topk_weights, event. Collective.

        ``x``: bfloat16 as dispatch gave it: a row for each token, which this rank has summed, or for each
        selection, then of an expanded dispatch. The rows of one rank are summed in fp32 and rounded, unless
        the buffer was made without multiple reductions. The ranks' sums are added in fp32, in the order of
        each rank's last selection, and rounded once. ``topk_weights``, as dispatch gave them, come back to
        their selections.
        """
        if (
            topk_weights is None
            and bias is None
            and previous_event is None
            and previous_event_before_epilogue is None
            and not async_with_compute_stream
            and type(x) is Tensor
        ):
            sent = self._followed(handle, x)
            if sent is not None and x.shape[0] == sent.routing.rows:
                sums = sent.handle._calls.combine(sent.handle, x, sent.routing, None, None, None)
                if sums is not None:
                    return sums, None, nothing_to_wait_for()
        _check_events(previous_event, allocate_on_comm_stream)
        route = self._route_of(handle)
        biases = () if bias is None else tuple(bias) if isinstance(bias, (tuple, list)) else (bias,)
        if len(biases) > _BIASES:
            raise ContractError(f"{len(biases)} biases, want at most {_BIASES}")
        if x.dtype != torch.bfloat16:
            raise ContractError(f"x: type {x.dtype}, want torch.bfloat16")
        if x.dim() != _MATRIX or not x.is_contiguous():
            raise ContractError(f"x: shape {tuple(x.shape)} with strides {x.stride()}, want contiguous [rows, hidden]")
        for b in biases:
            if b is not None and (b.dtype != torch.bfloat16 or b.shape != (route.tokens, x.shape[1])):
                raise ContractError(
                    f"bias: {b.dtype} {tuple(b.shape)}, want torch.bfloat16 {(route.tokens, x.shape[1])}"
                )
        of_row = () if route.shape.expand else (route.shape.topk,)
        if topk_weights is not None and (topk_weights.shape[:1] != x.shape[:1] or topk_weights.shape[1:] != of_row):
            raise ContractError(f"topk_weights: shape {tuple(topk_weights.shape)}, want {(x.shape[0], *of_row)}")
        selections = route.shape.expand and not self.allow_multiple_reduction
        require(
            not selections or topk_weights is None,
            "weights of expanded rows come home with allow_multiple_reduction=True: make the buffer so, or "
            "leave topk_weights out",
        )
        if previous_event_before_epilogue is not None:
            _wait(previous_event_before_epilogue)
        (out, weights), event = self._stream.run(
            Route.combine, x, previous_event, async_with_compute_stream, route, x, topk_weights, biases
        )
        return out, weights, event

    # Features that Weft does not have.

    @staticmethod
    def get_engram_storage_size_hint(
        num_entries: int, hidden: int, num_max_tokens_per_rank: int, dtype: torch.dtype = torch.bfloat16
    ) -> tuple[int, int]:
        """Refused."""
        _refuse("get_engram_storage_size_hint", _ENGRAM)

    @staticmethod
    def get_pp_buffer_size_hint(num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> int:
        """Refused."""
        _refuse("get_pp_buffer_size_hint", _PIPELINE)

    @staticmethod
    def get_agrs_num_max_session_bytes(group: Any, shapes: Any, dtype: torch.dtype) -> int:
        """Refused."""
        _refuse("get_agrs_num_max_session_bytes", _SESSIONS)

    @staticmethod
    def get_agrs_buffer_size_hint(group: Any, num_max_session_bytes: int) -> int:
        """Refused."""
        _refuse("get_agrs_buffer_size_hint", _SESSIONS)

    def engram_write(self, storage: Tensor, sf: Tensor | None = None) -> None:
        """Refused."""
        _refuse("engram_write", _ENGRAM)

    def engram_fetch(
        self, indices: Tensor, num_qps: int = 0, use_tma_aligned_col_major_sf: bool = False
    ) -> Callable[[], Any]:
        """Refused."""
        _refuse("engram_fetch", _ENGRAM)

    def pp_set_config(self, num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> None:
        """Refused."""
        _refuse("pp_set_config", _PIPELINE)

    def pp_send(self, t: Tensor, dst_rank_idx: int, num_sms: int = 0) -> None:
        """Refused."""
        _refuse("pp_send", _PIPELINE)

    def pp_recv(self, t: Tensor, src_rank_idx: int, num_sms: int = 0) -> None:
        """Refused."""
        _refuse("pp_recv", _PIPELINE)

    def create_agrs_session(self) -> None:
        """Refused."""
        _refuse("create_agrs_session", _SESSIONS)

    def destroy_agrs_session(self) -> None:
        """Refused."""
        _refuse("destroy_agrs_session", _SESSIONS)

    @contextlib.contextmanager
    def agrs_new_session(self, enabled: bool = True) -> Iterator[None]:
        """Nothing unless it is enabled, else refused."""
        if enabled:
            _refuse("agrs_new_session", _SESSIONS)
        yield

    def agrs_set_config(self, num_max_session_bytes: int, num_max_all_gathers_per_session: int) -> None:
        """Refused."""
        _refuse("agrs_set_config", _SESSIONS)

    def agrs_get_inplace_tensor(self, shapes: Any, dtype: torch.dtype) -> Any:
        """Refused."""
        _refuse("agrs_get_inplace_tensor", _SESSIONS)

    def all_gather(self, t: Tensor | Sequence[Tensor]) -> Any:
        """Refused."""
        _refuse("all_gather", _SESSIONS)


_ENGRAM = "tables of entries are not served; keep the table where it is read, or use DeepEP for it"
_PIPELINE = "pipelines are not served; send by torch.distributed"
_SESSIONS = "sessions of all-gathers are not served; use weft.Group.all_gather on the host, or torch.distributed"


def _refuse(name: str, why: str) -> NoReturn:
    raise weft.UnsupportedError(f"{name}: {why}")


def _size_hint(ranks: int, tokens: int, hidden: int, topk: int, fp8: bool, multiple: bool) -> int:
    """Bytes of DeepEP's buffer: tokens on the way out and on the way home, each with its metadata, in slots
    of a multiple of 32 bytes."""
    topk = topk or _MOST_TOPK
    described = topk * 8 + (1 + topk) * 4
    sent = align(hidden * (1 if fp8 else 2), 32) + align((-(-hidden // 32) * 4 if fp8 else 0) + described, 32)
    home = align(hidden * 2, 32) + align(topk * 4, 32)
    return align(max(ranks * tokens * sent, (min(ranks, topk) if multiple else topk) * tokens * home), 2 << 20)


def _check_events(previous: Before, on_comm_stream: bool) -> None:
    if previous is not None and not on_comm_stream:
        raise ContractError("previous_event needs allocate_on_comm_stream=True")


def _wait(event: Before) -> None:
    """There is no second kernel that it could precede: the whole exchange comes after it."""
    if event is not None and not (isinstance(event, EventOverlap) and event.event is None):
        event.current_stream_wait()


def _check_rows(rows: Tensor, scales: Tensor | None) -> None:
    if rows.dim() != _MATRIX or not rows.is_contiguous():
        raise ContractError(
            f"x: shape {tuple(rows.shape)} with strides {rows.stride()}, want contiguous [tokens, hidden]"
        )
    if scales is None:
        if rows.dtype != torch.bfloat16:
            raise ContractError(f"x: type {rows.dtype}, want torch.bfloat16, or torch.float8_e4m3fn with scales")
    elif rows.dtype != torch.float8_e4m3fn:
        raise ContractError(f"x: type {rows.dtype} with scales, want torch.float8_e4m3fn")
    elif scales.dim() != _MATRIX or scales.shape[0] != rows.shape[0] or scales.itemsize != _SCALE_BYTES:
        raise ContractError(
            f"scales of shape {tuple(scales.shape)} and type {scales.dtype}, want [tokens, n] of {_SCALE_BYTES} "
            f"bytes each"
        )
    if rows.shape[1] * rows.itemsize % 16:
        raise ContractError(f"x: a row has {rows.shape[1] * rows.itemsize} bytes, want a multiple of 16")


def _tma_aligned(scales: Tensor) -> Tensor:
    """Scales with the same one of consecutive rows together, such columns beginning on multiples of 16 bytes."""
    n, words = scales.shape
    columns = torch.empty((words, align(n, 4)), dtype=scales.dtype, device=scales.device)[:, :n]
    columns.copy_(scales.t())
    return columns.t()
