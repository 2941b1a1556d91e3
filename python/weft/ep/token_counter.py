"""Where tokens go, counted on a GPU."""

from __future__ import annotations

from typing import Any

from .. import _abi, memory, streams
from ..call_args import ArgsPool, CallArgs
from ..communicator import Communicator
from ..dtypes import DType
from ..limits import timeout as limit
from ..operands import Slot
from ..resources import Made
from ..streams import StreamLike
from .token_counts import TokenCounts


class _CountArgs(CallArgs):
    def __init__(self, device: int) -> None:
        super().__init__(_abi.EpDeviceTokenCounts)
        self.topk = self.slot("topk", device)
        self.counts = [self.slot(name, device, written=True) for name in TokenCounts._fields]


class TokenCounter(Made):
    """Counts where tokens go on the GPU of a communicator, in the caller's stream;
    :func:`weft.ep.count` does so on the host.

    Experts are those of so many ranks in equal shares, and so many of the ranks a node, all by default.
    The communicator may have another number of ranks, and no other rank takes part. It is made where a
    handle would be.
    """

    _kind = "counter"
    _RELEASE = "ep_token_counter_destroy"

    def __init__(
        self, comm: Communicator, *, experts: int, ranks: int | None = None, ranks_per_node: int | None = None
    ) -> None:
        self._ranks = comm.ranks if ranks is None else ranks
        self._nodes = self._ranks // (ranks_per_node or self._ranks or 1)
        self._experts = experts
        super().__init__(comm, "ep_token_counter_create", experts, self._ranks, ranks_per_node or self._ranks)
        self._device = comm._device
        self._pool = ArgsPool(lambda: _CountArgs(self._device))

    def count(
        self,
        topk: Any,
        *,
        rank_tokens: Any = None,
        node_tokens: Any = None,
        expert_selections: Any = None,
        token_in_rank: Any = None,
        stream: StreamLike = None,
        timeout: float | None = None,
    ) -> TokenCounts:
        """Enqueues one kernel that counts: ``topk`` is int32 or int64 [tokens, top-k]; it ignores selections
        that are no expert.

        Returns the given arrays, or if none is given new ones for everything. It may be captured in a
        graph, which reads the same memory anew at each replay.
        """
        if timeout is not None:
            with limit(timeout):
                return self.count(
                    topk,
                    rank_tokens=rank_tokens,
                    node_tokens=node_tokens,
                    expert_selections=expert_selections,
                    token_in_rank=token_in_rank,
                    stream=stream,
                )
        self._open()
        on = streams.address(stream, self._device)
        args = self._pool.take()
        try:
            address = args.topk.fill(topk)
            out = TokenCounts(rank_tokens, node_tokens, expert_selections, token_in_rank)
            if all(array is None for array in out):
                out = self._made(args.topk)
            for i, (to, array) in enumerate(zip(args.counts, out, strict=True), 1):
                args.words[i] = to.fill(array)
            self._check(self._lib.ep_token_counter_count(self._handle, on, address, args.address))
            return out
        finally:
            self._pool.give(args)

    def _made(self, topk: Slot) -> TokenCounts:
        shapes = (
            ((self._ranks,), DType.int32),
            ((self._nodes,), DType.int32),
            ((self._experts,), DType.int32),
            ((topk.shape[0], self._ranks), DType.uint8),
        )
        return TokenCounts(*(memory.empty(topk.kind, shape, dtype, self._device) for shape, dtype in shapes))
