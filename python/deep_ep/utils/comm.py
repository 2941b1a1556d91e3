"""NCCL communicators of process groups, under DeepEP's names: PyTorch's, since exchanges here need none."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import weft


class NCCLCommHandle:
    """A communicator of NCCL's by its address."""

    managed = False
    """Whether the handle destroys it: PyTorch does."""

    def __init__(self, nccl_comm: int, managed: bool = False) -> None:
        if managed:
            raise weft.UnsupportedError(
                "NCCLCommHandle: communicators are PyTorch's, which destroys them: managed=False"
            )
        self.nccl_comm = nccl_comm

    def get(self) -> int:
        return self.nccl_comm


_known: dict[Any, NCCLCommHandle] = {}


def get_nccl_comm_handle(group: Any, force_new_comm: bool = False) -> NCCLCommHandle:
    """The communicator that PyTorch has for a group. Collective the first time: ranks whose group has none, and
    new communicators, are refused on all ranks."""
    if force_new_comm:
        raise weft.UnsupportedError(
            "get_nccl_comm_handle: force_new_comm=True makes a communicator of NCCL's, which exchanges here do not "
            "need: make one by torch.distributed.new_group"
        )
    found = _known.get(group)
    if found is None:
        mine = _address(group)
        everyone: list[Any] = [None] * group.size()
        dist.all_gather_object(everyone, mine != 0, group)
        if not all(everyone):
            raise weft.UnsupportedError(
                f"get_nccl_comm_handle: rank {everyone.index(False)} has no communicator of NCCL's for the group: make "
                "the group with backend nccl and its device_id, or call one of its collectives first"
            )
        found = _known[group] = NCCLCommHandle(mine)
    return found


def _address(group: Any) -> int:
    try:
        return int(group._get_backend(torch.device("cuda"))._comm_ptr())
    except (AttributeError, RuntimeError):  # another backend, or a PyTorch that does not tell
        return 0


def destroy_all_managed_nccl_comm() -> None:
    """Forgets the communicators, which PyTorch destroys with their groups."""
    _known.clear()
