"""The names of MSCCL++'s extension module for expert parallelism, over Weft. It is no C++: the library
below is called from Python."""

from __future__ import annotations

from weft._buffer.config import Config
from weft._buffer.config import low_latency_size_of_mscclpp as _size
from weft._buffer.errors import ContractError
from weft._buffer.events import EventHandle

from .runtime import Buffer, UniqueId

__all__ = ["Buffer", "Config", "ContractError", "EventHandle", "UniqueId", "get_low_latency_rdma_size_hint"]


def get_low_latency_rdma_size_hint(
    num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
) -> int:
    """Bytes that MSCCL++'s buffer needs for low-latency exchanges. Weft chooses its own resources."""
    if num_ranks <= 0 or num_experts % num_ranks:
        raise ContractError(f"{num_experts} experts of {num_ranks} ranks, want as many on each")
    return _size(num_max_dispatch_tokens_per_rank, hidden, num_experts)
