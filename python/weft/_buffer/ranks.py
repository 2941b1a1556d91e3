"""How the ranks of a buffer meet and part, and where their tokens go."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

import weft
from weft import ep


def join(group: Any, host_seconds: float, gpu_seconds: float, comm: Any = None) -> weft.Communicator:
    """The ranks of a process group of PyTorch's, or of an mpi4py communicator, on GPUs where PyTorch sees one. Collective."""
    options = _options(host_seconds, gpu_seconds)
    if group is not None:
        return weft.Communicator.from_process_group(group, **options)
    return weft.Communicator.from_mpi(comm, **options)


def connect(unique_id: str, rank: int, ranks: int, host_seconds: float, gpu_seconds: float) -> weft.Communicator:
    """The ranks that know an id, on GPUs where PyTorch sees one. Collective."""
    return weft.Communicator.from_unique_id(unique_id, rank, ranks, **_options(host_seconds, gpu_seconds))


def _options(host_seconds: float, gpu_seconds: float) -> dict[str, Any]:
    if torch.cuda.is_available():
        return {"deadline": float(gpu_seconds), "engine": "gpu", "gpu": torch.cuda.current_device()}
    return {"deadline": float(host_seconds)}


def close(comm: weft.Communicator) -> None:
    """Leaves, whatever there is to say of it."""
    with contextlib.suppress(weft.WeftError):
        comm.close()


def layout(topk: Tensor, experts: int, ranks: int) -> tuple[Tensor, None, Tensor, Tensor]:
    """Counts where tokens go, where their selections are: int32 [ranks], None (there is one node), int32 [experts], bool [tokens, ranks]. Local."""
    if topk.is_cuda:
        return _count_where_it_is(topk, experts, ranks)
    counted = ep.count(topk, experts=experts, ranks=ranks)
    return counted.rank_tokens, None, counted.expert_selections, counted.token_in_rank.view(torch.bool)


def _count_where_it_is(topk: Tensor, experts: int, ranks: int) -> tuple[Tensor, None, Tensor, Tensor]:
    """The layout of selections on a GPU, in its stream."""
    chosen = torch.zeros((topk.shape[0], experts + 1), dtype=torch.int32, device=topk.device)
    chosen.scatter_(1, torch.where(topk >= 0, topk, experts).long(), 1)
    chosen = chosen[:, :experts]
    in_rank = chosen.view(topk.shape[0], ranks, -1).any(2)
    return in_rank.sum(0, dtype=torch.int32), None, chosen.sum(0, dtype=torch.int32), in_rank
