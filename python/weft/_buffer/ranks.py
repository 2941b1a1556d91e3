"""How the ranks of a buffer meet and part."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

import weft


def join(group: Any, host_seconds: float, gpu_seconds: float, comm: Any = None) -> weft.Communicator:
    """The ranks of a process group of PyTorch's, or of an mpi4py communicator, on GPUs where PyTorch
    sees one. Collective."""
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
    """Leaves, and ignores errors."""
    with contextlib.suppress(weft.WeftError):
        comm.close()
