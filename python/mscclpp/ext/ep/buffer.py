"""MSCCL++'s Buffer: the extension's, with the ranks of a process group."""

from __future__ import annotations

from typing import Any

import torch

import mscclpp_ep_cpp
import weft
from mscclpp_ep_cpp import Config, EventHandle

__all__ = ["Buffer", "Config", "EventHandle"]


class Buffer:
    """Expert-parallel exchanges of a process group. Methods pass their arguments, in their order, to
    :attr:`runtime`, which documents them."""

    num_sms: int = 20

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 12,
    ) -> None:
        """Joins the ranks of a process group of PyTorch's. Collective."""
        if num_qps_per_rank <= 0:
            raise ValueError(f"num_qps_per_rank is {num_qps_per_rank}, want more than 0")
        runtime = mscclpp_ep_cpp.Buffer(group.rank(), group.size(), num_nvl_bytes, num_rdma_bytes, low_latency_mode)
        runtime.join(group)
        self._open(runtime, group, num_qps_per_rank)

    @classmethod
    def from_communicator(cls, comm: weft.Communicator) -> Buffer:
        """A buffer of a communicator of Weft's, which it closes when it is collected. MSCCL++ has no such method."""
        runtime = mscclpp_ep_cpp.Buffer(comm.rank, comm.ranks, 0, 0, True)
        runtime.use(comm)
        made = cls.__new__(cls)
        made._open(runtime, None, 12)
        return made

    def _open(self, runtime: mscclpp_ep_cpp.Buffer, group: Any, num_qps_per_rank: int) -> None:
        self.runtime, self.group = runtime, group
        self.rank, self.group_size = runtime.rank, runtime.num_ranks
        self.num_nvl_bytes, self.num_rdma_bytes = runtime.num_nvl_bytes, runtime.num_rdma_bytes
        self.low_latency_mode, self.num_qps_per_rank = runtime.low_latency_mode, num_qps_per_rank

    # The buffer's properties, for debugging.

    def is_available(self) -> bool:
        return self.runtime.is_available()

    def is_internode_available(self) -> bool:
        return self.runtime.is_internode_available()

    def get_local_device_id(self) -> int:
        return self.runtime.get_local_device_id()

    def get_num_rdma_ranks(self) -> int:
        return self.runtime.get_num_rdma_ranks()

    def get_rdma_rank(self) -> int:
        return self.runtime.get_rdma_rank()

    def get_root_rdma_rank(self, global_: bool) -> int:
        return self.runtime.get_root_rdma_rank(global_)

    def get_local_ipc_handle(self) -> bytes:
        return self.runtime.get_local_ipc_handle()

    def get_local_nvshmem_unique_id(self) -> bytes:
        return self.runtime.get_local_nvshmem_unique_id()

    def get_local_buffer_tensor(
        self, dtype: torch.dtype, offset: int = 0, use_rdma_buffer: bool = False
    ) -> torch.Tensor:
        return self.runtime.get_local_buffer_tensor(dtype, offset, use_rdma_buffer)

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes that MSCCL++'s buffer needs for low-latency exchanges. Weft chooses its own resources."""
        return mscclpp_ep_cpp.get_low_latency_rdma_size_hint(
            num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts
        )

    # Exchanges.

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: EventHandle | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, EventHandle | None]:
        return self.runtime.get_dispatch_layout(
            topk_idx, num_experts, previous_event, async_finish, allocate_on_comm_stream
        )

    def intranode_dispatch(self, *arguments: Any, **options: Any) -> tuple[Any, ...]:
        return self.runtime.intranode_dispatch(*arguments, **options)

    def intranode_combine(self, *arguments: Any, **options: Any) -> tuple[Any, ...]:
        return self.runtime.intranode_combine(*arguments, **options)

    def internode_dispatch(self, *arguments: Any, **options: Any) -> Any:
        return self.runtime.internode_dispatch(*arguments, **options)

    def internode_combine(self, *arguments: Any, **options: Any) -> Any:
        return self.runtime.internode_combine(*arguments, **options)

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        self.runtime.clean_low_latency_buffer(num_max_dispatch_tokens_per_rank, hidden, num_experts)

    def low_latency_dispatch(self, *arguments: Any, **options: Any) -> tuple[Any, ...]:
        return self.runtime.low_latency_dispatch(*arguments, **options)

    def low_latency_combine(self, *arguments: Any, **options: Any) -> tuple[Any, ...]:
        return self.runtime.low_latency_combine(*arguments, **options)

    def get_next_low_latency_combine_buffer(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> torch.Tensor:
        return self.runtime.get_next_low_latency_combine_buffer(num_max_dispatch_tokens_per_rank, hidden, num_experts)
