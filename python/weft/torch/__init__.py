"""Expert parallelism and collectives for training with PyTorch: with gradients, as operators that torch.compile
knows.

    rows, row_weights, routing = weft.torch.dispatch(handle, x, topk, weights)
    rows = experts(rows)
    out = weft.torch.combine(handle, rows, routing, weights)
    total = weft.torch.all_reduce(group, out)

dispatch and combine take the handles of :mod:`weft.ep` whose rows have one floating-point type on the way and home;
the collectives take a :class:`weft.Group`, and return new tensors. Gradients are exchanges, too: every rank runs the
backward pass of every exchange, in the same order. Where no gradients are wanted the methods of handles and groups
cost less.
"""

from __future__ import annotations

from .collectives import all_gather, all_reduce, all_to_all, broadcast, reduce_scatter
from .operators import Dispatched, combine, dispatch, routing_of

__all__ = [
    "Dispatched",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "combine",
    "dispatch",
    "reduce_scatter",
    "routing_of",
]
