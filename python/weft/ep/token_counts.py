"""Where one rank's tokens go, counted on the host without any exchange."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from .. import _abi, memory
from .._library import library
from ..dtypes import DType
from ..operands import Slot


class TokenCounts(NamedTuple):
    """Where one rank's tokens go."""

    rank_tokens: Any
    """int32 [ranks]: tokens with an expert there"""
    node_tokens: Any
    """int32 [ranks / ranks_per_node]"""
    expert_selections: Any
    """int32 [experts]"""
    token_in_rank: Any
    """uint8 [tokens, ranks]: 1 or 0"""


class _CountArgs:
    """The arguments of a call in C, kept for the next one."""

    def __init__(self) -> None:
        self.topk = Slot("topk", -1)
        self._counts = _abi.EpTokenCounts()
        self.words = memoryview(self._counts).cast("B").cast("Q")
        self.address = ctypes.addressof(self._counts)


_spare: list[_CountArgs] = []
_ARRAYS = 4  # the word at which the addresses of arrays begin
_WORD = 2**64 - 1


def count(topk: Any, *, experts: int, ranks: int, ranks_per_node: int | None = None) -> TokenCounts:
    """Counts where tokens go: ``topk`` is int32 or int64 [tokens, top-k] on the host, -1 for none.

    Several selections of one token on the same rank, or node, count once there. Local: it needs no communicator.
    """
    lib = library()
    args = _spare.pop() if _spare else _CountArgs()
    words, per_node = args.words, ranks_per_node or ranks
    try:
        address = args.topk.fill(topk)
        shape = args.topk.shape if address else ()
        words[1], words[2], words[3] = experts & _WORD, ranks & _WORD, per_node & _WORD
        kind, some = args.topk.kind, max(ranks, 0)
        out = TokenCounts(
            memory.empty(kind, (some,), DType.int32, -1),
            memory.empty(kind, (-(-some // max(per_node, 1)),), DType.int32, -1),
            memory.empty(kind, (max(experts, 0),), DType.int32, -1),
            memory.empty(kind, (shape[0] if len(shape) == 2 else 0, some), DType.uint8, -1),
        )
        for i, array in enumerate(out, _ARRAYS):
            words[i] = memory.address_of(kind, array)
        if status := lib.ep_count(address, args.address):
            lib.fail(status)
        return out
    finally:
        words[_ARRAYS], words[_ARRAYS + 1], words[_ARRAYS + 2], words[_ARRAYS + 3] = 0, 0, 0, 0
        args.topk.held.clear()
        _spare.append(args)
