"""What routing alone says, without any exchange."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from .. import _abi, memory
from .._library import library
from ..dtypes import DType
from ..operands import Slot


class Census(NamedTuple):
    """Where one rank's tokens want to go."""

    rank_tokens: Any
    """int32 [ranks]: tokens with an expert there"""
    node_tokens: Any
    """int32 [ranks / ranks_per_node]"""
    expert_selections: Any
    """int32 [experts]"""
    token_in_rank: Any
    """uint8 [tokens, ranks]: 1 or 0"""


def count(topk: Any, *, experts: int, ranks: int, ranks_per_node: int | None = None) -> Census:
    """Counts where tokens go: ``topk`` is int32 or int64 [tokens, top-k] on the host, -1 for none.

    Several selections of one token on the same rank, or node, count once there. Local: it needs no communicator.
    """
    lib = library()
    slot = Slot("topk", -1)
    address = slot.fill(topk)
    per_node = ranks_per_node or ranks
    tokens = slot.shape[0] if address and len(slot.shape) == 2 else 0
    nodes = -(-max(ranks, 0) // max(per_node, 1))
    out = Census(
        *(
            memory.empty(slot.kind, shape, dtype, -1)
            for shape, dtype in (
                ((max(ranks, 0),), DType.int32),
                ((nodes,), DType.int32),
                ((max(experts, 0),), DType.int32),
                ((tokens, max(ranks, 0)), DType.uint8),
            )
        )
    )
    layout = _abi.EpLayout(experts=experts, ranks=ranks, ranks_per_node=per_node)
    for name, array in zip(Census._fields, out, strict=True):
        to = Slot(name, -1, written=True)
        to.fill(array)
        setattr(layout, name, _abi.Tensor.from_address(to.address).data or None)
    if status := lib.ep_count(address, ctypes.byref(layout)):
        lib.fail(status)
    return out
