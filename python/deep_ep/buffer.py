"""DeepEP's Buffer: its methods, arguments, returned tuples and layouts, over Weft."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

import weft
from weft import ep
from weft._buffer import config as configs
from weft._buffer.config import Config
from weft._buffer.errors import ContractError, require
from weft._buffer.events import Before, EventHandle, EventOverlap, nothing_to_wait_for
from weft._buffer.exchanges import Exchanges, where
from weft._buffer.internode import InternodeHandle
from weft._buffer.low_latency import Kind, LowLatency, LowLatencyHandle, Sent
from weft._buffer.normal import DispatchHandle, Moved, Normal, Went
from weft._buffer.opaque import opaque
from weft._buffer.ranks import close, join
from weft._buffer.traces import recall
from weft.limits import whole

from .forks import refuse_forks_of_dispatch, refuse_overlap

T = TypeVar("T")

topk_idx_t = torch.int64

_BF16 = ep.Payload.bf16
_SELECTIONS = torch.int64, torch.int32
_BIASES = 2
_PAIR = 2

_DEADLINE = 100.0  # seconds, as DeepEP's


class Buffer:
    """Expert-parallel exchanges of a process group.

    Sizes in bytes are accepted and say nothing: memory is taken when shapes are first seen, on all
    ranks alike. Results are tensors of their own, which may be kept. Everything that DeepEP asserts is
    a :class:`ContractError`, an AssertionError with words.
    """

    num_sms: int = 20
    low_latency_sms: int = 0
    """How many multiprocessors low-latency exchanges may fill, of buffers that are made from now on; 0:
    all that others have left. DeepEP has none."""

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
        *,
        use_fabric: bool = False,
        allow_nvlink_for_normal_mode: bool = True,
    ) -> None:
        """Joins the ranks of a process group of PyTorch's, or of an mpi4py communicator. Collective.

        The last two arguments are forks', which put them at different places: they have no position here.
        """
        if not allow_nvlink_for_normal_mode:
            raise weft.UnsupportedError(
                "allow_nvlink_for_normal_mode=False is the hybrid-ep branch's, for normal exchanges by network "
                "cards alone, and ranks of a host share its memory here: leave it True"
            )
        if group is None and comm is None:
            raise ValueError("there is neither a group nor a comm to join the ranks of")
        require(
            num_nvl_bytes % 128 == 0 and num_rdma_bytes % 128 == 0,
            f"{num_nvl_bytes} and {num_rdma_bytes} bytes, want multiples of 128",
        )
        self._open(
            join(group, _DEADLINE, _DEADLINE, comm),
            group,
            num_nvl_bytes,
            num_rdma_bytes,
            low_latency_mode,
            explicitly_destroy,
            enable_shrink,
        )

    @classmethod
    def from_communicator(
        cls, comm: weft.Communicator, *, explicitly_destroy: bool = False, enable_shrink: bool = False
    ) -> Buffer:
        """A buffer of a communicator of Weft's, which it closes. Collective. DeepEP has no such method."""
        made = cls.__new__(cls)
        made._open(comm, None, 0, 0, True, explicitly_destroy, enable_shrink)
        return made

    def _open(
        self,
        comm: weft.Communicator,
        group: Any,
        nvl: int,
        rdma: int,
        low_latency: bool,
        explicitly_destroy: bool,
        enable_shrink: bool,
    ) -> None:
        self._comm, self.group = comm, group
        self.rank, self.group_size = comm.rank, comm.ranks
        self.num_nvl_bytes, self.num_rdma_bytes = nvl, rdma
        self.low_latency_mode, self.explicitly_destroy, self.enable_shrink = (
            low_latency,
            explicitly_destroy,
            enable_shrink,
        )
        self._exchanges = Exchanges(comm)
        self._stream = self._exchanges.stream
        self._normal, self._low_latency = Normal(self._exchanges), LowLatency(self._exchanges, self.low_latency_sms)
        self._local: dict[bool, Tensor] = {}
        self.runtime: Runtime | None = Runtime(self)
        # Closing waits for no other rank; if the collector closes a buffer, its peers do not need it any
        # more.
        self._end = weakref.finalize(self, close, comm)

    # The buffer's properties, for debugging.

    def destroy(self) -> None:
        """Leaves. Only buffers that were made to be destroyed explicitly are; others go with their last reference."""
        require(self.explicitly_destroy, "destroy is for buffers that were made with explicitly_destroy=True")
        self._end.detach()
        self.runtime = None
        self._comm.close()

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether kernels use the features of compute capability 9.0: they are compiled for the GPU that they
        run on."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Says how many multiprocessors kernels may fill, and how many channels handles count by: two a channel."""
        require(new_num_sms % 2 == 0, f"num_sms is {new_num_sms}, want an even number")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """An event at the end of the work that is enqueued in the current stream now."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes that DeepEP's buffer needs for low-latency exchanges. Weft chooses its own resources."""
        return configs.low_latency_size(num_max_dispatch_tokens_per_rank, hidden, num_experts)

    def get_comm_stream(self) -> Any:
        """The stream of exchanges; on the host PyTorch's only one, on which they have happened when they return."""
        return self._stream.stream()

    def get_local_buffer_tensor(
        self, dtype: torch.dtype, size: torch.Size | None = None, offset: int = 0, use_rdma_buffer: bool = False
    ) -> Tensor:
        """Memory of as many bytes as the buffer was asked to have. Exchanges do not use it."""
        if use_rdma_buffer not in self._local:
            with torch.inference_mode(False):  # it is written in any mode
                length = self.num_rdma_bytes if use_rdma_buffer else self.num_nvl_bytes
                self._local[use_rdma_buffer] = torch.empty(length, dtype=torch.uint8, device=where(self._comm))
        whole = self._local[use_rdma_buffer][offset:]
        flat = whole[: whole.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        if size is not None and size.numel() > flat.numel():
            raise ContractError(
                f"size {tuple(size)} of {dtype} from byte {offset}: the buffer was asked to have "
                f"{whole.numel() + offset} bytes"
            )
        return flat if size is None else flat[: size.numel()].view(size)

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """DeepEP's chunks of dispatches by the number of ranks."""
        return configs.chunks(configs.DISPATCH, num_ranks, Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """DeepEP's chunks of combines by the number of ranks."""
        return configs.chunks(configs.COMBINE, num_ranks, Buffer.num_sms)

    # Normal exchanges.

    @opaque
    def get_dispatch_layout(
        self,
        topk_idx: Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor, EventOverlap]:
        """Counts where this rank's tokens go: int32 [ranks], int32 [hosts] or None where there is one, int32 [experts],
        bool [tokens, ranks]. Local."""
        _check_events(previous_event, async_finish, allocate_on_comm_stream)
        if previous_event is None and not async_finish:
            quick = self._exchanges.quick_layout(topk_idx, num_experts)
            if quick is not None:
                return *quick, nothing_to_wait_for()  # type: ignore[return-value]
        counted, event = self._stream.run_soon(
            self._exchanges.layout, topk_idx, previous_event, async_finish, topk_idx, num_experts
        )
        return *counted, event

    @opaque
    def dispatch(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        handle: tuple[Any, ...] | None = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[
        Tensor | tuple[Tensor, Tensor],
        Tensor | None,
        Tensor | None,
        list[int] | None,
        DispatchHandle | None,
        EventOverlap,
    ]:
        """Sends tokens to the ranks of their experts: recv_x, recv_topk_idx, recv_topk_weights,
        num_recv_tokens_per_expert_list, handle, event. Collective.

        ``x``: [tokens, hidden], or float8 and its scales [tokens, hidden / 128]. Rows come by source
        rank, then token. With the ``handle`` of an earlier dispatch they go where they went then, and
        only ``recv_x`` and the event come back.
        """
        _check_events(previous_event, async_finish, allocate_on_comm_stream)
        if (
            handle is not None
            and topk_idx is None
            and topk_weights is None
            and previous_event is None
            and not async_finish
            and not num_worst_tokens
            and expert_alignment == 1
        ):
            quick = self._normal.quick_again(x, handle)  # type: ignore[arg-type]
            if quick is not None:
                return quick, None, None, None, None, nothing_to_wait_for()
        if (
            handle is None
            and isinstance(x, Tensor)
            and num_tokens_per_rank is not None
            and is_token_in_rank is not None
            and num_tokens_per_expert is not None
            and topk_idx is not None
            and previous_event is None
            and not async_finish
            and not num_worst_tokens
            and expert_alignment >= 1
            and (config is None or isinstance(config, Config))
        ):
            found = self._normal.quick_dispatch(
                x,
                is_token_in_rank,
                num_tokens_per_rank,
                num_tokens_per_expert,
                topk_idx,
                topk_weights,
                expert_alignment,
                self.num_sms // 2 if config is None else config.channels,
            )
            if found is not None:
                if self._exchanges.hosts.count == 1:
                    return *found, nothing_to_wait_for()
                *results, made = found
                return *results, self._between(made), nothing_to_wait_for()
        rows, scales = rows_and_scales(x)
        self._normal.check(rows)
        if expert_alignment < 1:
            raise ContractError(f"expert_alignment is {expert_alignment}, want 1 or more")
        if handle is not None:
            moved = _moved(handle)
            require(
                topk_idx is None and topk_weights is None,
                "a dispatch by a handle takes no topk_idx and no topk_weights: the handle has the selections",
            )
            if 0 < num_worst_tokens < moved.received:
                raise ContractError(
                    f"num_worst_tokens is {num_worst_tokens}, and the handle's rows are {moved.received}"
                )
            (got, got_scales), event = self._stream.run_soon(
                self._normal.again, rows, previous_event, async_finish, rows, scales, moved.route
            )
            return (
                _pair(_padded(got, num_worst_tokens), _padded_scales(got_scales, scales, num_worst_tokens)),
                None,
                None,
                None,
                None,
                event,
            )
        if num_tokens_per_rank is None or is_token_in_rank is None or num_tokens_per_expert is None:
            raise ContractError("a dispatch without a handle takes the results of get_dispatch_layout")
        if num_worst_tokens and topk_idx is None:
            raise ContractError("num_worst_tokens needs topk_idx, whose -1 tell which rows there are")
        if config is not None and not isinstance(config, Config):
            raise ContractError(f"config: a {type(config).__name__}, want a Config")
        channels = self.num_sms // 2 if config is None else config.channels
        in_rank = is_token_in_rank if is_token_in_rank.dtype == torch.bool else is_token_in_rank.bool()
        if in_rank.shape != (rows.shape[0], self.group_size):
            raise ContractError(
                f"is_token_in_rank: shape {tuple(in_rank.shape)}, want {(rows.shape[0], self.group_size)}"
            )
        result, event = self._stream.run_soon(
            self._normal.dispatch,
            rows,
            previous_event,
            async_finish,
            rows,
            scales,
            in_rank,
            num_tokens_per_rank,
            num_tokens_per_expert,
            topk_idx,
            topk_weights,
            expert_alignment,
            channels,
            num_worst_tokens,
        )
        got, got_scales, ids, weights, counts, made = result
        if ids is not None and ids.dtype != topk_idx.dtype:
            ids = ids.to(topk_idx.dtype)
        if num_worst_tokens and num_worst_tokens > got.shape[0]:  # which the number of ranks does not divide
            got, got_scales = _padded(got, num_worst_tokens), _padded_scales(got_scales, scales, num_worst_tokens)
            ids, weights = _padded(ids, num_worst_tokens, -1), _padded(weights, num_worst_tokens, 0)
        return _pair(got, got_scales), ids, weights, counts, self._between(made), event

    def _between(self, made: DispatchHandle) -> DispatchHandle:
        """The handle as DeepEP has it: another where ranks are on several hosts."""
        hosts = self._exchanges.hosts
        return made if hosts.count == 1 else InternodeHandle.of(made, hosts)

    @opaque
    def combine(
        self,
        x: Tensor,
        handle: tuple[Any, ...],
        topk_weights: Tensor | None = None,
        bias: Tensor | tuple[Tensor, Tensor] | None = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:
        """Sums the ranks' rows of each token, without weights, after the bias: combined_x,
        combined_topk_weights, event. Collective.

        ``topk_weights``: float32 [rows, topk]. Each slot of a token comes home as the fp32 sum, in rank
        order, of the rows that its ranks have in that slot.
        """
        _check_events(previous_event, async_finish, allocate_on_comm_stream)
        if topk_weights is None and bias is None and previous_event is None and not async_finish:
            sums = self._normal.quick_combine(x, handle)
            if sums is not None:
                return sums, None, nothing_to_wait_for()
        moved = _moved(handle)
        self._normal.check(x)
        biases = () if bias is None else tuple(bias) if isinstance(bias, (tuple, list)) else (bias,)
        if len(biases) > _BIASES:
            raise ContractError(f"{len(biases)} biases, want at most {_BIASES}")
        (out, weights), event = self._stream.run_soon(
            self._normal.combine, x, previous_event, async_finish, x, topk_weights, biases, moved
        )
        return out, weights, event

    def internode_dispatch(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        handle: tuple[Any, ...] | None = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[
        Tensor | tuple[Tensor, Tensor],
        Tensor | None,
        Tensor | None,
        list[int] | None,
        DispatchHandle | None,
        EventOverlap,
    ]:
        """What :meth:`dispatch` does on ranks of several hosts, and its handle, which has ten members. Collective.

        ``num_tokens_per_rdma_rank`` is the result of :meth:`get_dispatch_layout`, as are the other counts.
        """
        *results, made, event = self.dispatch(
            x,
            handle,
            num_tokens_per_rank,
            num_tokens_per_rdma_rank,
            is_token_in_rank,
            num_tokens_per_expert,
            topk_idx,
            topk_weights,
            expert_alignment,
            num_worst_tokens,
            config,
            previous_event,
            async_finish,
            allocate_on_comm_stream,
        )
        return *results, None if made is None else InternodeHandle.of(made, self._exchanges.hosts), event

    def internode_combine(
        self,
        x: Tensor,
        handle: tuple[Any, ...],
        topk_weights: Tensor | None = None,
        bias: Tensor | tuple[Tensor, Tensor] | None = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:
        """:meth:`combine`. Collective."""
        return self.combine(
            x, handle, topk_weights, bias, config, previous_event, async_finish, allocate_on_comm_stream
        )

    # Low-latency exchanges.

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Nothing: counters only grow, and exchanges of all kinds may follow each other."""

    @opaque
    def low_latency_dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        dispatch_wait_recv_cost_stats: Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        *,
        topk_weights: Tensor | None = None,
        x_global_scale: Tensor | None = None,
        use_nvfp4: bool = False,
    ) -> tuple[Tensor | tuple[Tensor, Tensor], Tensor, LowLatencyHandle, EventOverlap, Callable[[], None] | None]:
        """Sends tokens to their experts: recv_x, count, handle, event, hook. Collective, as is the hook.

        ``x``: bfloat16 [tokens, hidden]. recv_x is [local experts, ranks * num_max_dispatch_tokens_per_rank,
        hidden], in float8 with the scales [.., hidden / 128], or [.., hidden / 512] of four powers of two
        each; the first ``count`` rows of an expert are valid. With ``return_recv_hook`` they are valid when
        the hook has returned. The last three arguments are forks', and refused.
        """
        if topk_weights is not None or x_global_scale is not None or use_nvfp4:
            refuse_forks_of_dispatch(topk_weights, use_nvfp4)
        key = num_max_dispatch_tokens_per_rank, num_experts, use_fp8, round_scale, use_ue8m0
        if (
            not (async_finish or return_recv_hook)
            and dispatch_wait_recv_cost_stats is None
            and type(key[0]) is int
            and _are_stats(cumulative_local_expert_recv_stats, num_experts // self.group_size, x)
        ):
            quick = self._low_latency.quick_dispatch(key, x, topk_idx, cumulative_local_expert_recv_stats)
            if quick is not None:
                return quick
        self._check_low_latency(x, 2, async_finish, return_recv_hook)
        require(
            not use_ue8m0 or (use_fp8 and round_scale),
            "use_ue8m0 is for float8 with round_scale=True: its scales are powers of two",
        )
        tokens, hidden = x.shape
        most = num_max_dispatch_tokens_per_rank
        if type(most) is not int:
            most = whole("num_max_dispatch_tokens_per_rank", most, ContractError)
        if topk_idx.dim() != 2 or topk_idx.shape[0] != tokens or tokens > most:
            raise ContractError(
                f"{tokens} tokens and topk_idx of shape {tuple(topk_idx.shape)}, want [tokens, topk] and at "
                f"most {most} tokens, num_max_dispatch_tokens_per_rank"
            )
        check_stats(cumulative_local_expert_recv_stats, num_experts // self.group_size, x)
        payload = _BF16 if not use_fp8 else ep.Payload.fp8_ue8m0 if use_ue8m0 else ep.Payload.fp8
        kind = Kind(most, hidden, num_experts, topk_idx.shape[1], payload, round_scale)
        arguments = x, topk_idx, kind, cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats
        if return_recv_hook:  # both halves in the current stream, and nothing runs between
            rows, scales, counts, handle, receive = self._low_latency.send(*arguments)
            return _pair(rows, scales), counts, handle, EventOverlap(), receive
        (rows, scales, counts, handle), event = self._stream.run_soon(
            self._low_latency.dispatch, x, None, async_finish, *arguments
        )
        self._low_latency.plan(key, handle.sent)
        return _pair(rows, scales), counts, handle, event, None

    @opaque
    def low_latency_combine(
        self,
        x: Tensor,
        topk_idx: Tensor,
        topk_weights: Tensor,
        handle: tuple[Any, ...],
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Tensor | None = None,
        combine_wait_recv_cost_stats: Tensor | None = None,
        *,
        overlap: bool = False,
        src_signals: Tensor | None = None,
        src_signal_expect_value: int = 0,
        packed_recv_count: Tensor | None = None,
        comp_signal: Tensor | None = None,
        block_m: int | None = None,
        threshold: int | None = None,
        num_sms: int | None = None,
    ) -> tuple[Tensor, EventOverlap, Callable[[], None] | None]:
        """Sums the experts' rows by the weights, in fp32 and in the order of the selections:
        combined_x, event, hook. Collective, as is the hook.

        ``x``: bfloat16, of the shape of recv_x. With ``zero_copy`` the rows are in
        :meth:`get_next_low_latency_combine_buffer`. ``topk_idx``: those of the dispatch, in whose order rows
        are summed. They may come in another order, with their weights, and with -1 for selections to leave
        out. The arguments after ``combine_wait_recv_cost_stats`` are a fork's, and refused.
        """
        if (
            overlap
            or src_signals is not None
            or src_signal_expect_value
            or packed_recv_count is not None
            or comp_signal is not None
            or block_m is not None
            or threshold is not None
            or num_sms is not None
        ):
            refuse_overlap(
                (
                    overlap,
                    src_signals,
                    src_signal_expect_value,
                    packed_recv_count,
                    comp_signal,
                    block_m,
                    threshold,
                    num_sms,
                )
            )
        if (
            type(handle) is LowLatencyHandle
            and not (use_logfmt or zero_copy or async_finish or return_recv_hook)
            and combine_wait_recv_cost_stats is None
        ):
            quick = self._low_latency.quick_combine(x, topk_idx, topk_weights, handle, out)
            if quick is not None:
                return quick
        self._check_low_latency(x, 3, async_finish, return_recv_hook)
        sent = _sent(handle)
        if use_logfmt:
            raise weft.UnsupportedError(
                "use_logfmt: rows come home as bfloat16, which NVLink has room for; leave it out"
            )
        kind = sent.kind
        rows = self._low_latency.next_buffer(*handle[2:]) if zero_copy else x
        want, selections = (
            (kind.experts // self.group_size, self.group_size * kind.tokens, kind.hidden),
            sent.topk.shape,
        )
        if rows.shape != want:
            raise ContractError(f"x: shape {tuple(x.shape)}, want {want}")
        if topk_idx.shape != selections or topk_weights.shape != selections:
            raise ContractError("topk_idx and topk_weights are not of the dispatch's shape")
        if topk_idx.dtype not in _SELECTIONS:
            raise ContractError(f"topk_idx: type {topk_idx.dtype}, want torch.int64")
        sent.topk.check(topk_idx)
        if out is None:
            out = torch.empty((selections[0], kind.hidden), dtype=torch.bfloat16, device=x.device)
        elif out.shape != (selections[0], kind.hidden) or not out.is_contiguous():
            raise ContractError("out is not contiguous, or not [tokens, hidden]")
        arguments = rows, topk_idx, topk_weights, sent, out, combine_wait_recv_cost_stats, return_recv_hook
        if return_recv_hook:
            return out, EventOverlap(), self._low_latency.combine(*arguments)
        _, event = self._stream.run_soon(self._low_latency.combine, x, None, async_finish, *arguments)
        return out, event, None

    @opaque
    def get_next_low_latency_combine_buffer(self, handle: tuple[Any, ...]) -> Tensor:
        """Where the next combine with zero_copy finds its rows: bfloat16 [local experts, ranks * tokens, hidden]."""
        return self._low_latency.next_buffer(*handle[2:])

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Leaves a rank out of the exchanges that follow, or takes it in again. All ranks that go on
        do, before their next exchange."""
        self._check_shrink()
        self._exchanges.mask.put(rank_to_mask, mask)

    def low_latency_query_mask_buffer(self, mask_status: Tensor) -> None:
        """Writes which ranks are left out: int32 [ranks], 1 or 0."""
        self._check_shrink()
        if mask_status.shape != (self.group_size,) or mask_status.dtype != torch.int32:
            raise ContractError(
                f"mask_status: {mask_status.dtype} {tuple(mask_status.shape)}, want torch.int32 {(self.group_size,)}"
            )
        masked = self._exchanges.mask.ranks()
        mask_status.copy_(
            torch.tensor([int(r in masked) for r in range(self.group_size)], dtype=mask_status.dtype, device="cpu")
        )

    def low_latency_clean_mask_buffer(self) -> None:
        """Takes all ranks in again."""
        self._check_shrink()
        self._exchanges.mask.clear()

    def _check_shrink(self) -> None:
        require(self.enable_shrink, "masks are for buffers that were made with enable_shrink=True")

    @staticmethod
    def _check_low_latency(x: Tensor, dims: int, async_finish: bool, return_recv_hook: bool) -> None:
        if async_finish and return_recv_hook:
            raise ContractError("async_finish and return_recv_hook exclude each other")
        if x.dtype != torch.bfloat16:
            raise ContractError(f"x: type {x.dtype}, want torch.bfloat16")
        if x.dim() != dims or not x.is_contiguous() or x.shape[-1] % 8:
            raise ContractError(
                f"x: shape {tuple(x.shape)} with strides {x.stride()}, want {dims} dimensions, contiguous, of "
                f"rows of whole 16 bytes"
            )


class Runtime:
    """Attributes of DeepEP's extension object that code reads."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = weakref.proxy(buffer)
        self._hosts = buffer._exchanges.hosts

    def is_available(self) -> bool:
        return not self._buffer._comm.closed

    def is_internode_available(self) -> bool:
        """Whether ranks are on several hosts."""
        return self.is_available() and self._hosts.count > 1

    def get_num_rdma_ranks(self) -> int:
        """The number of hosts."""
        return self._hosts.count

    def get_rdma_rank(self) -> int:
        """This rank's host."""
        return self._hosts.own

    def get_root_rdma_rank(self, _global: bool) -> int:
        return self._hosts.root(_global)

    def get_local_device_id(self) -> int:
        return max(self._buffer._comm._device, 0)

    def get_comm_stream(self) -> Any:
        return self._buffer.get_comm_stream()

    def destroy(self) -> None:
        self._buffer.destroy()


def _check_events(previous: Before, async_finish: bool, on_comm_stream: bool) -> None:
    if on_comm_stream and (previous is None or not async_finish):
        raise ContractError("allocate_on_comm_stream needs previous_event and async_finish")


def _moved(handle: Any) -> Moved:
    """The state of a normal dispatch, found by its handle."""
    if isinstance(handle, DispatchHandle):
        return handle
    between = isinstance(handle, (tuple, list)) and len(handle) == InternodeHandle._length
    return _recalled(handle, 4 if between else 0, Went, "dispatch")


def _sent(handle: Any) -> Sent:
    """The state of a low-latency dispatch, found by its handle."""
    return handle.sent if isinstance(handle, LowLatencyHandle) else _recalled(handle, 1, Sent, "low_latency_dispatch")


def _recalled(handle: Any, place: int, kind: type[T], of: str) -> T:
    """The same, found by the tuple of a handle's contents: one of them identifies it."""
    found = recall(handle[place], kind) if isinstance(handle, (tuple, list)) and len(handle) > place else None
    if found is None:
        raise ContractError(
            f"handle: a {type(handle).__name__}, want the handle that {of} returned, or the tuple of its contents, not "
            f"copies of them"
        )
    return found


def _are_stats(stats: Tensor | None, local: int, like: Tensor) -> bool:
    return stats is None or (
        stats.dtype == torch.int32 and stats.shape == (local,) and stats.is_contiguous() and stats.device == like.device
    )


def check_stats(stats: Tensor | None, local: int, like: Tensor) -> None:
    """Refuses a counter tensor to which counts of experts cannot be added."""
    if stats is None or _are_stats(stats, local, like):
        return
    raise ContractError(
        f"cumulative_local_expert_recv_stats: {stats.dtype} {tuple(stats.shape)} on {stats.device}, want "
        f"torch.int32 {(local,)} on {like.device}, contiguous"
    )


def rows_and_scales(x: Any) -> tuple[Tensor, Tensor | None]:
    """Rows, or a pair of rows and scales."""
    if isinstance(x, Tensor):
        return x, None
    if not isinstance(x, (tuple, list)) or len(x) != _PAIR or not all(isinstance(t, Tensor) for t in x):
        raise ContractError("x: want a tensor, or a pair of float8 rows and their scales")
    return x[0], x[1]


def _pair(rows: Any, scales: Any) -> Any:
    return rows if scales is None else (rows, scales)


def _padded(t: Tensor | None, rows: int, fill: int | None = None) -> Any:
    """A tensor of the given number of rows that begins with these; the rows themselves for 0 or if they are
    as many."""
    if t is None or rows in (0, t.shape[0]):
        return t
    out = t.new_empty((rows, *t.shape[1:])) if fill is None else t.new_full((rows, *t.shape[1:]), fill)
    out[: t.shape[0]] = t
    return out


def _padded_scales(t: Tensor | None, sent: Tensor | None, rows: int) -> Tensor | None:
    """The same of scales, in the order in memory of those that were sent."""
    if t is None or sent is None or rows in (0, t.shape[0]):
        return t
    if sent.stride(-1) == 1:
        return _padded(t, rows)
    out = t.new_empty((t.shape[1], rows)).t()
    out[: t.shape[0]] = t
    return out
