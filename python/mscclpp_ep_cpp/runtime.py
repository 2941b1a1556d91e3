"""The buffer of MSCCL++'s extension: arguments by position and returned tuples, over Weft."""

from __future__ import annotations

import dataclasses
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

import weft
from weft import ep
from weft._buffer.config import Config
from weft._buffer.errors import ContractError, require
from weft._buffer.events import EventHandle
from weft._buffer.exchanges import Exchanges, where
from weft._buffer.hosts import Hosts
from weft._buffer.internode import InternodeHandle
from weft._buffer.low_latency import NOTHING, Given, Kind, LowLatency, LowLatencyHandle, Sent
from weft._buffer.normal import Normal, Route
from weft._buffer.opaque import opaque
from weft._buffer.ranks import close, connect, join
from weft._buffer.traces import leave, recall

T = TypeVar("T")

_DEADLINE = 100.0  # seconds, as MSCCL++'s


class UniqueId:
    """The bytes that ranks of a new communicator share. They have a secret in them."""

    def __init__(self, data: bytes) -> None:
        self._data = bytes(data)

    @staticmethod
    def from_bytes(data: bytes) -> UniqueId:
        return UniqueId(data)

    def bytes(self) -> bytes:
        return self._data


@dataclasses.dataclass
class _Moved:
    """The routing of a normal dispatch, found by its rank_prefix_matrix."""

    route: Route
    received: int
    channels: int
    recv_channel_prefix_matrix: Tensor
    recv_src_idx: Tensor
    send_head: Tensor


@dataclasses.dataclass
class _Crossed:
    """The routing of a dispatch between hosts, found by its recv_rdma_rank_prefix_sum."""

    route: Route
    received: int
    channels: int
    heads: torch.Size


class Buffer:
    """Expert-parallel exchanges of so many ranks.

    Sizes in bytes are accepted and say nothing: memory is taken when shapes are first seen, on all ranks
    alike. Where MSCCL++ asserts, this raises :class:`ContractError`, a RuntimeError with a message.

    A combine uses the routing of the dispatch whose ``layout_range``, ``rank_prefix_matrix`` or
    ``recv_rdma_rank_prefix_sum`` it is given:
    that tensor itself, or as autograd saves it, not a copy.
    """

    def __init__(
        self, rank: int, num_ranks: int, num_nvl_bytes: int, num_rdma_bytes: int, low_latency_mode: bool
    ) -> None:
        require(0 <= rank < num_ranks, f"rank {rank} of {num_ranks}")
        require(
            num_nvl_bytes % 128 == 0 and num_rdma_bytes % 128 == 0,
            f"{num_nvl_bytes} and {num_rdma_bytes} bytes, want multiples of 128",
        )
        self.rank, self.num_ranks = rank, num_ranks
        self.num_nvl_bytes, self.num_rdma_bytes, self.low_latency_mode = num_nvl_bytes, num_rdma_bytes, low_latency_mode
        self._joined: weft.Communicator | None = None
        self._available = False
        self._hosts = Hosts((0,) * num_ranks, 0)
        self._local: dict[bool, Tensor] = {}

    # How ranks meet.

    def create_unique_id(self) -> bytes:
        """Makes the id with which the other ranks connect, on rank 0."""
        return str(weft.UniqueId.create()).encode()

    def connect(self, unique_id: bytes | bytearray | UniqueId) -> None:
        """Joins the ranks of an id. Collective."""
        data = unique_id.bytes() if isinstance(unique_id, UniqueId) else bytes(unique_id)
        self._use(connect(data.decode(), self.rank, self.num_ranks, _DEADLINE, _DEADLINE))

    def sync(
        self,
        device_ids: Sequence[int | None],
        all_gathered_handles: Sequence[Any],
        root_unique_id_opt: bytes | bytearray | UniqueId | None = None,
    ) -> None:
        """Ends the exchange of addresses, of which Weft needs :meth:`connect` only. Collective if that was
        not called."""
        require(
            len(device_ids) == len(all_gathered_handles) == self.num_ranks,
            f"sync: {len(device_ids)} devices and {len(all_gathered_handles)} handles of {self.num_ranks} ranks",
        )
        if self._joined is None:
            if root_unique_id_opt is None:
                raise ContractError("sync: there is no unique id to connect by: call connect before, or pass it")
            self.connect(root_unique_id_opt)
        self._available = True

    def join(self, group: Any) -> None:
        """Does all of this for the ranks of a process group. Collective. MSCCL++ has no such method."""
        self.use(join(group, _DEADLINE, _DEADLINE))

    def use(self, comm: weft.Communicator) -> None:
        """Takes a communicator of Weft's over. MSCCL++ has no such method."""
        self._use(comm)
        self._available = True

    def _use(self, comm: weft.Communicator) -> None:
        require(self._joined is None, "the ranks of this buffer have met before: make another buffer")
        self._joined = comm
        exchanges = Exchanges(comm)
        self._stream, self._normal, self._low_latency = exchanges.stream, Normal(exchanges), LowLatency(exchanges)
        self._layout, self._hosts = exchanges.layout, exchanges.hosts
        if comm.engine == "host":
            _say_who_moves(self._hosts)
        # Closing waits for no other rank; if the collector closes a buffer, its peers do not need it any
        # more.
        weakref.finalize(self, close, comm)

    # The runtime's properties, for debugging.

    def is_available(self) -> bool:
        return self._available and self._joined is not None and not self._joined.closed

    def is_internode_available(self) -> bool:
        """Whether ranks are on several hosts."""
        return self.is_available() and self._hosts.count > 1

    def get_num_rdma_ranks(self) -> int:
        """The number of hosts, on each of which ranks share memory: 1 until they have met, and found out."""
        return self._hosts.count

    def get_rdma_rank(self) -> int:
        """This rank's host."""
        return self._hosts.own

    def get_root_rdma_rank(self, _global: bool) -> int:
        return self._hosts.root(_global)

    def get_local_device_id(self) -> int:
        return torch.cuda.current_device() if torch.cuda.is_available() else 0

    def get_local_ipc_handle(self) -> bytes:
        """Something to gather: ranks share their memory when they connect."""
        return bytes(64)

    def get_local_nvshmem_unique_id(self) -> bytes:
        """Refused, as by MSCCL++."""
        raise weft.UnsupportedError(
            "get_local_nvshmem_unique_id: there is no NVSHMEM; ranks connect by create_unique_id"
        )

    def get_local_buffer_tensor(self, dtype: torch.dtype, offset: int = 0, use_rdma_buffer: bool = False) -> Tensor:
        """Memory of as many bytes as the buffer was asked to have, from an offset in bytes. Exchanges do not use it."""
        size = self.num_rdma_bytes if use_rdma_buffer else self.num_nvl_bytes
        require(
            0 <= offset <= size and offset % dtype.itemsize == 0,
            f"byte {offset} of {size}, for numbers of {dtype.itemsize} bytes",
        )
        if use_rdma_buffer not in self._local:
            self._open()
            self._local[use_rdma_buffer] = torch.empty(size, dtype=torch.uint8, device=where(self._joined))
        rest = self._local[use_rdma_buffer][offset:]
        return rest[: rest.numel() // dtype.itemsize * dtype.itemsize].view(dtype)

    # Normal exchanges.

    @opaque
    def get_dispatch_layout(
        self,
        topk_idx: Tensor,
        num_experts: int,
        previous_event: EventHandle | None,
        async_finish: bool,
        allocate_on_comm_stream: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor, EventHandle | None]:
        """Counts where this rank's tokens go: int32 [ranks], int32 [hosts] or None where there is one, int32 [experts],
        bool [tokens, ranks], event. Local."""
        self._open()
        _check_events(previous_event, async_finish, allocate_on_comm_stream)
        _check("topk_idx", topk_idx, torch.int64, 2)
        counted, end = self._stream.run_soon(
            self._layout, topk_idx, previous_event, async_finish, topk_idx, num_experts
        )
        return *counted, end.event

    @opaque
    def intranode_dispatch(
        self,
        x: Tensor,
        x_scales: Tensor | None,
        topk_idx: Tensor | None,
        topk_weights: Tensor | None,
        num_tokens_per_rank: Tensor | None,
        is_token_in_rank: Tensor,
        num_tokens_per_expert: Tensor | None,
        cached_num_recv_tokens: int,
        cached_rank_prefix_matrix: Tensor | None,
        cached_channel_prefix_matrix: Tensor | None,
        expert_alignment: int,
        config: Config,
        previous_event: EventHandle | None,
        async_finish: bool,
        allocate_on_comm_stream: bool,
    ) -> tuple[
        Tensor,
        Tensor | None,
        Tensor | None,
        Tensor | None,
        list[int],
        Tensor,
        Tensor,
        Tensor,
        Tensor,
        Tensor,
        EventHandle | None,
    ]:
        """Sends tokens to the ranks of their experts. Collective.

        ``x``: [tokens, hidden], of float8 with ``x_scales``, float32 [tokens, hidden / 128]. Returns
        recv_x, recv_x_scales, recv_topk_idx, recv_topk_weights, num_recv_tokens_per_expert_list,
        rank_prefix_matrix, channel_prefix_matrix, recv_channel_prefix_matrix, recv_src_idx, send_head,
        event. Rows come by source rank, then token. With the cached matrices of an earlier dispatch
        they go where they went then, without selections.
        """
        self._open()
        _check_events(previous_event, async_finish, allocate_on_comm_stream)
        self._normal.check(x)
        if x_scales is not None:
            _check("x_scales", x_scales, torch.float32, 2)
        require((topk_idx is None) == (topk_weights is None), "topk_idx and topk_weights go together")
        channels = _channels(config)
        require(expert_alignment >= 1, f"expert_alignment is {expert_alignment}, want 1 or more")
        if cached_rank_prefix_matrix is not None:
            require(topk_idx is None, "a dispatch by cached matrices takes no topk_idx: it goes where the tokens went")
            moved = _recall(cached_rank_prefix_matrix, _Moved, "cached_rank_prefix_matrix", "intranode_dispatch")
            require(
                cached_channel_prefix_matrix is not None,
                "cached_channel_prefix_matrix goes with cached_rank_prefix_matrix",
            )
            require(
                (channels, cached_num_recv_tokens) == (moved.channels, moved.received),
                f"{channels} channels and {cached_num_recv_tokens} tokens are to come by cached matrices, which "
                f"are of {moved.channels} and {moved.received}",
            )
            (rows, scales), end = self._stream.run(
                self._normal.again, x, previous_event, async_finish, x, x_scales, moved.route
            )
            matrices = (
                cached_rank_prefix_matrix,
                cached_channel_prefix_matrix,
                moved.recv_channel_prefix_matrix,
                moved.recv_src_idx,
                moved.send_head,
            )
            return rows, scales, None, None, [], *matrices, end.event
        moving = self._anew(
            x,
            x_scales,
            is_token_in_rank,
            num_tokens_per_rank,
            num_tokens_per_expert,
            topk_idx,
            topk_weights,
            expert_alignment,
            channels,
        )
        result, end = self._stream.run(self._move, x, previous_event, async_finish, *moving)
        return *result, end.event

    def _anew(
        self,
        x: Tensor,
        x_scales: Tensor | None,
        is_token_in_rank: Tensor,
        num_tokens_per_rank: Tensor | None,
        num_tokens_per_expert: Tensor | None,
        topk_idx: Tensor | None,
        topk_weights: Tensor | None,
        expert_alignment: int,
        channels: int,
    ) -> tuple[Any, ...]:
        """The arguments of a dispatch without cached matrices, checked."""
        if num_tokens_per_rank is None or num_tokens_per_expert is None:
            raise ContractError("a dispatch without cached matrices takes the results of get_dispatch_layout")
        _check("is_token_in_rank", is_token_in_rank, torch.bool, 2)
        want = x.shape[0], self.num_ranks
        require(is_token_in_rank.shape == want, f"is_token_in_rank: shape {tuple(is_token_in_rank.shape)}, want {want}")
        if topk_idx is not None and topk_weights is not None:
            _check("topk_idx", topk_idx, torch.int64, 2)
            _check("topk_weights", topk_weights, torch.float32, 2)
        return (
            x,
            x_scales,
            is_token_in_rank,
            num_tokens_per_rank,
            num_tokens_per_expert,
            topk_idx,
            topk_weights,
            expert_alignment,
            channels,
        )

    def _move(self, *arguments: Any) -> tuple[Any, ...]:
        """A normal dispatch: all that it returns but the event."""
        *received, handle = self._normal.dispatch(*arguments, 0)
        if received[2] is not None:
            received[2] = received[2].long()
        rank_prefix, channel_prefix, recv_channel_prefix, sources, _, heads = handle.contents()
        leave(rank_prefix, _Moved(handle.route, handle.received, arguments[-1], recv_channel_prefix, sources, heads))
        return *received, rank_prefix, channel_prefix, recv_channel_prefix, sources, heads

    @opaque
    def intranode_combine(
        self,
        x: Tensor,
        topk_weights: Tensor | None,
        src_idx: Tensor,
        rank_prefix_matrix: Tensor,
        recv_channel_prefix_matrix: Tensor,
        send_head: Tensor,
        config: Config,
        previous_event: EventHandle | None,
        async_finish: bool,
        allocate_on_comm_stream: bool,
    ) -> tuple[Tensor, Tensor | None, EventHandle | None]:
        """Sums the ranks' rows of each token, without weights: recv_x, recv_topk_weights, event. Collective."""
        self._open()
        _check_events(previous_event, async_finish, allocate_on_comm_stream)
        self._normal.check(x)
        require(x.dtype != torch.float8_e4m3fn, "x: type torch.float8_e4m3fn, and rows are summed: pass torch.bfloat16")
        moved = _recall(rank_prefix_matrix, _Moved, "rank_prefix_matrix", "intranode_dispatch")
        _check("src_idx", src_idx, torch.int32, 1)
        _check("recv_channel_prefix_matrix", recv_channel_prefix_matrix, torch.int32, 2)
        _check("send_head", send_head, torch.int32, 2)
        require(
            x.shape[0] == src_idx.shape[0] == moved.received,
            f"x: {x.shape[0]} rows, and src_idx {src_idx.shape[0]}, want the {moved.received} that came",
        )
        shapes = (self.num_ranks, moved.channels), (moved.send_head.shape[0], self.num_ranks)
        require(
            _channels(config) == moved.channels and (recv_channel_prefix_matrix.shape, send_head.shape) == shapes,
            "recv_channel_prefix_matrix, send_head or config are not of the dispatch whose rank_prefix_matrix is given",
        )
        if topk_weights is not None:
            _check("topk_weights", topk_weights, torch.float32, 2)
        (out, weights), end = self._stream.run(
            self._normal.combine, x, previous_event, async_finish, x, topk_weights, (), moved
        )
        return out, weights, end.event

    @opaque
    def internode_dispatch(
        self,
        x: Tensor,
        x_scales: Tensor | None,
        topk_idx: Tensor | None,
        topk_weights: Tensor | None,
        num_tokens_per_rank: Tensor | None,
        num_tokens_per_rdma_rank: Tensor | None,
        is_token_in_rank: Tensor,
        num_tokens_per_expert: Tensor | None,
        cached_num_recv_tokens: int,
        cached_num_rdma_recv_tokens: int,
        cached_rdma_channel_prefix_matrix: Tensor | None,
        cached_recv_rdma_rank_prefix_sum: Tensor | None,
        cached_gbl_channel_prefix_matrix: Tensor | None,
        cached_recv_gbl_rank_prefix_sum: Tensor | None,
        expert_alignment: int,
        config: Config,
        previous_event: EventHandle | None,
        async_finish: bool,
        allocate_on_comm_stream: bool,
    ) -> tuple[Any, ...]:
        """Sends tokens to the ranks of their experts, on several hosts or on one. Collective.

        Arguments as those of :meth:`intranode_dispatch`. Returns recv_x, recv_x_scales, recv_topk_idx,
        recv_topk_weights, num_recv_tokens_per_expert_list, rdma_channel_prefix_matrix, gbl_channel_prefix_matrix,
        recv_rdma_channel_prefix_matrix, recv_rdma_rank_prefix_sum, recv_gbl_channel_prefix_matrix,
        recv_gbl_rank_prefix_sum, recv_src_meta, send_rdma_head, send_nvl_head, event. With cached matrices tokens go
        where they went, and what MSCCL++ does not return then is None.
        """
        self._open()
        _check_events(previous_event, async_finish, allocate_on_comm_stream)
        self._normal.check(x)
        if x_scales is not None:
            _check("x_scales", x_scales, torch.float32, 2)
        require((topk_idx is None) == (topk_weights is None), "topk_idx and topk_weights go together")
        channels = _channels(config)
        require(expert_alignment >= 1, f"expert_alignment is {expert_alignment}, want 1 or more")
        cached = cached_rdma_channel_prefix_matrix
        if cached is not None:
            require(topk_idx is None, "a dispatch by cached matrices takes no topk_idx: it goes where the tokens went")
            crossed = _recall(
                cached_recv_rdma_rank_prefix_sum, _Crossed, "cached_recv_rdma_rank_prefix_sum", "internode_dispatch"
            )
            given = channels, cached_num_recv_tokens, cached_num_rdma_recv_tokens
            want = crossed.channels, crossed.received, crossed.received
            require(
                cached_gbl_channel_prefix_matrix is not None and cached_recv_gbl_rank_prefix_sum is not None,
                "cached_gbl_channel_prefix_matrix and cached_recv_gbl_rank_prefix_sum go with the others",
            )
            require(
                given == want,
                f"{given[0]} channels and {given[1]} tokens, {given[2]} of them between hosts, are to come by cached "
                f"matrices, which are of {want[0]}, {want[1]} and {want[2]}",
            )
            (rows, scales), end = self._stream.run(
                self._normal.again, x, previous_event, async_finish, x, x_scales, crossed.route
            )
            prefixes = cached, cached_gbl_channel_prefix_matrix, None, cached_recv_rdma_rank_prefix_sum
            sums = None, cached_recv_gbl_rank_prefix_sum, None, None, None
            return rows, scales, None, None, [], *prefixes, *sums, end.event
        hosts = self._hosts
        if hosts.count > 1:
            counted = num_tokens_per_rdma_rank
            require(
                counted is not None and counted.shape == (hosts.count,),
                f"num_tokens_per_rdma_rank is not of the {hosts.count} hosts: pass get_dispatch_layout's",
            )
        moving = self._anew(
            x,
            x_scales,
            is_token_in_rank,
            num_tokens_per_rank,
            num_tokens_per_expert,
            topk_idx,
            topk_weights,
            expert_alignment,
            channels,
        )
        result, end = self._stream.run(self._cross, x, previous_event, async_finish, *moving)
        return *result, end.event

    def _cross(self, *arguments: Any) -> tuple[Any, ...]:
        """A dispatch between hosts: all that it returns but the event."""
        *received, handle = self._normal.dispatch(*arguments, 0)
        if received[2] is not None:
            received[2] = received[2].long()
        contents = InternodeHandle.of(handle, self._hosts).contents()
        leave(contents[4], _Crossed(handle.route, handle.received, arguments[-1], contents[8].shape))
        return *received, *contents[1:]

    @opaque
    def internode_combine(
        self,
        x: Tensor,
        topk_weights: Tensor | None,
        src_meta: Tensor,
        is_combined_token_in_rank: Tensor,
        rdma_channel_prefix_matrix: Tensor,
        rdma_rank_prefix_sum: Tensor,
        gbl_channel_prefix_matrix: Tensor,
        combined_rdma_head: Tensor,
        combined_nvl_head: Tensor,
        config: Config,
        previous_event: EventHandle | None,
        async_finish: bool,
        allocate_on_comm_stream: bool,
    ) -> tuple[Tensor, Tensor | None, EventHandle | None]:
        """Sums the ranks' rows of each token, without weights: recv_x, recv_topk_weights, event. Collective.

        ``rdma_channel_prefix_matrix``, ``rdma_rank_prefix_sum`` and ``gbl_channel_prefix_matrix`` are those that the
        dispatch has returned of what was received.
        """
        self._open()
        _check_events(previous_event, async_finish, allocate_on_comm_stream)
        self._normal.check(x)
        require(x.dtype != torch.float8_e4m3fn, "x: type torch.float8_e4m3fn, and rows are summed: pass torch.bfloat16")
        crossed = _recall(rdma_rank_prefix_sum, _Crossed, "rdma_rank_prefix_sum", "internode_dispatch")
        _check("src_meta", src_meta, torch.uint8, 2)
        _check("is_combined_token_in_rank", is_combined_token_in_rank, torch.bool, 2)
        for name, matrix in (
            ("rdma_channel_prefix_matrix", rdma_channel_prefix_matrix),
            ("gbl_channel_prefix_matrix", gbl_channel_prefix_matrix),
            ("combined_rdma_head", combined_rdma_head),
            ("combined_nvl_head", combined_nvl_head),
        ):
            _check(name, matrix, torch.int32, 2)
        require(
            x.shape[0] == src_meta.shape[0] == combined_nvl_head.shape[0] == crossed.received,
            f"x: {x.shape[0]} rows, and src_meta {src_meta.shape[0]}, want the {crossed.received} that came",
        )
        hosts, ranks, channels = self._hosts.count, self.num_ranks, crossed.channels
        require(
            _channels(config) == channels
            and rdma_channel_prefix_matrix.shape == (hosts, channels)
            and gbl_channel_prefix_matrix.shape == (ranks, channels)
            and combined_rdma_head.shape == crossed.heads
            and is_combined_token_in_rank.shape == (crossed.heads[0], ranks),
            "a matrix, combined_rdma_head, is_combined_token_in_rank or config is not of the dispatch whose "
            "rdma_rank_prefix_sum is given",
        )
        if topk_weights is not None:
            _check("topk_weights", topk_weights, torch.float32, 2)
        (out, weights), end = self._stream.run(
            self._normal.combine, x, previous_event, async_finish, x, topk_weights, (), crossed
        )
        return out, weights, end.event

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
        use_fp8: bool,
        async_finish: bool,
        return_recv_hook: bool,
        out_packed_recv_x: Tensor | None = None,
        out_packed_recv_x_scales: Tensor | None = None,
        out_packed_recv_src_info: Tensor | None = None,
        out_packed_recv_layout_range: Tensor | None = None,
        out_packed_recv_count: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor, EventHandle | None, Callable[[], None] | None]:
        """Sends tokens to their experts. Collective, as is the hook.

        ``x``: bfloat16 [tokens, hidden]. Returns packed_recv_x [local experts, ranks *
        num_max_dispatch_tokens_per_rank, hidden], in float8 with packed_recv_x_scales [.., hidden / 128];
        packed_recv_count, int32 [local experts], of an expert's valid rows, the first ones;
        packed_recv_src_info, int32 [local experts, ranks * ..], of tokens' indices at their sources;
        packed_recv_layout_range, int64 [local experts, ranks], of begin << 32 | count; event; hook. Those
        that are given are the returned ones. With ``return_recv_hook`` rows are valid when the hook has
        returned.
        """
        self._open()
        tokens = self._check_low_latency(
            x, 2, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, async_finish, return_recv_hook
        )
        require(x.shape[0] == tokens, f"x: {x.shape[0]} tokens, and topk_idx {tokens}")
        kind = Kind(
            num_max_dispatch_tokens_per_rank,
            x.shape[1],
            num_experts,
            topk_idx.shape[1],
            ep.Payload.fp8 if use_fp8 else ep.Payload.bf16,
            False,
        )
        given = Given(
            out_packed_recv_x,
            out_packed_recv_x_scales,
            out_packed_recv_src_info,
            out_packed_recv_layout_range,
            out_packed_recv_count,
        )
        if all(tensor is None for tensor in given):
            given = NOTHING
        if return_recv_hook:  # both halves in the current stream, and nothing runs between
            rows, scales, counts, handle, receive = self._low_latency.send(x, topk_idx, kind, None, None, given)
            return *_arrived(rows, scales, counts, handle, given), None, receive
        result, end = self._stream.run_soon(self._dispatch, x, None, async_finish, x, topk_idx, kind, given)
        return *result, end.event, None

    def _dispatch(self, x: Tensor, topk: Tensor, kind: Kind, given: Given) -> tuple[Any, ...]:
        """A low-latency dispatch: all that it returns but the event and the hook."""
        return _arrived(*self._low_latency.dispatch(x, topk, kind, None, None, given), given)

    @opaque
    def low_latency_combine(
        self,
        x: Tensor,
        topk_idx: Tensor,
        topk_weights: Tensor,
        src_info: Tensor,
        layout_range: Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        zero_copy: bool,
        async_finish: bool,
        return_recv_hook: bool,
        out: Tensor | None = None,
    ) -> tuple[Tensor, EventHandle | None, Callable[[], None] | None]:
        """Sums the experts' rows by the weights, in fp32 and in the order of the selections:
        combined_x, event, hook. Collective, as is the hook.

        ``x``: bfloat16, of the shape of packed_recv_x. With ``zero_copy`` the rows are in
        :meth:`get_next_low_latency_combine_buffer`. ``topk_idx`` are those of the dispatch, in any order,
        with -1 for selections to leave out.
        """
        self._open()
        tokens = self._check_low_latency(
            x, 3, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, async_finish, return_recv_hook
        )
        _check("topk_weights", topk_weights, torch.float32, 2)
        _check("src_info", src_info, torch.int32, 2)
        _check("layout_range", layout_range, torch.int64, 2)
        sent = _recall(layout_range, Sent, "layout_range", "low_latency_dispatch")
        kind = sent.kind
        places = kind.experts // self.num_ranks, self.num_ranks * kind.tokens
        require(
            (num_max_dispatch_tokens_per_rank, num_experts) == (kind.tokens, kind.experts)
            and x.shape == (*places, kind.hidden)
            and src_info.shape == places,
            f"x of shape {tuple(x.shape)} and src_info of {tuple(src_info.shape)} for "
            f"{num_max_dispatch_tokens_per_rank} tokens and {num_experts} experts, "
            f"want {(*places, kind.hidden)} and {places} for the dispatch's {kind.tokens} and {kind.experts}",
        )
        require(
            topk_idx.shape == topk_weights.shape == sent.topk.shape,
            f"topk_idx of shape {tuple(topk_idx.shape)} and topk_weights of {tuple(topk_weights.shape)}, want "
            f"the dispatch's {tuple(sent.topk.shape)}",
        )
        sent.topk.check(topk_idx)
        if out is None:
            out = torch.empty((tokens, kind.hidden), dtype=torch.bfloat16, device=x.device)
        else:
            _check("out", out, torch.bfloat16, 2)
            require(out.shape == (tokens, kind.hidden), f"out: shape {tuple(out.shape)}, want {(tokens, kind.hidden)}")
        rows = self._low_latency.next_buffer(kind.tokens, kind.hidden, kind.experts) if zero_copy else x
        combining = rows, topk_idx, topk_weights, sent, out, None, return_recv_hook
        if return_recv_hook:
            return out, None, self._low_latency.combine(*combining)
        _, end = self._stream.run_soon(self._low_latency.combine, x, None, async_finish, *combining)
        return out, end.event, None

    @opaque
    def get_next_low_latency_combine_buffer(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> Tensor:
        """Where the next combine with zero_copy finds its rows: bfloat16 [local experts, ranks * tokens, hidden]."""
        self._open()
        return self._low_latency.next_buffer(num_max_dispatch_tokens_per_rank, hidden, num_experts)

    def _check_low_latency(
        self,
        x: Tensor,
        dims: int,
        topk_idx: Tensor,
        most: int,
        experts: int,
        async_finish: bool,
        return_recv_hook: bool,
    ) -> int:
        """The check that dispatches and combines share; returns the number of tokens."""
        require(not (async_finish and return_recv_hook), "async and return_recv_hook exclude each other")
        _check("x", x, torch.bfloat16, dims)
        require(x.shape[-1] % 8 == 0, f"x: a row has {2 * x.shape[-1]} bytes, want a multiple of 16")
        _check("topk_idx", topk_idx, torch.int64, 2)
        require(
            topk_idx.shape[0] <= most,
            f"topk_idx: {topk_idx.shape[0]} tokens, and num_max_dispatch_tokens_per_rank is {most}",
        )
        require(experts % self.num_ranks == 0, f"{experts} experts of {self.num_ranks} ranks, want as many on each")
        return topk_idx.shape[0]

    def _open(self) -> None:
        require(self.is_available(), "the ranks of this buffer have not met yet: call connect and sync before")


def _arrived(
    rows: Tensor, scales: Tensor | None, counts: Tensor, handle: LowLatencyHandle, given: Given
) -> tuple[Any, ...]:
    """The results of a low-latency dispatch."""
    sources, ranges, *_ = handle
    if given.packed_recv_src_info is not None:
        sources = given.packed_recv_src_info
    return rows, scales, counts, sources, ranges


def _say_who_moves(hosts: Hosts) -> None:
    """A line in the log where a program on the host asks for kernels that drive network cards."""
    if hosts.count > 1 and hosts.rank == 0 and os.environ.get("MSCCLPP_EP_USE_IBGDA", "") not in ("", "0"):
        logging.getLogger("mscclpp").warning(
            "MSCCLPP_EP_USE_IBGDA: kernels drive no network card; the host moves the bytes"
        )


def _check_events(previous: EventHandle | None, async_finish: bool, on_comm_stream: bool) -> None:
    require(
        not on_comm_stream or (previous is not None and async_finish),
        "allocate_on_comm_stream needs previous_event and async",
    )


def _check(name: str, tensor: Tensor | None, dtype: torch.dtype, dims: int) -> None:
    if not isinstance(tensor, Tensor):
        raise ContractError(f"{name}: a {type(tensor).__name__}, want a tensor")
    require(tensor.dtype == dtype, f"{name}: type {tensor.dtype}, want {dtype}")
    require(
        tensor.dim() == dims and tensor.is_contiguous(),
        f"{name}: shape {tuple(tensor.shape)} with strides {tensor.stride()}, want {dims} dimensions, contiguous",
    )


def _channels(config: Config) -> int:
    require(isinstance(config, Config), "config: want a Config")
    require(config.num_sms % 2 == 0, f"num_sms is {config.num_sms}, want an even number: two a channel")
    return config.channels


def _recall(tensor: Tensor, kind: type[T], name: str, call: str) -> T:
    """The routing that a dispatch attached to a tensor that it returned."""
    found = recall(tensor, kind)
    if found is None:
        raise ContractError(
            f"{name} was not returned by {call}: pass that tensor itself, because a copy does not say where "
            f"its tokens went"
        )
    return found
