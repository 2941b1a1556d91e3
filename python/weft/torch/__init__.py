"""Expert parallelism for training with PyTorch: dispatch and combine with gradients, as operators that
torch.compile knows.

    rows, row_weights, routing = weft.torch.dispatch(handle, x, topk, weights)
    rows = experts(rows)
    out = weft.torch.combine(handle, rows, routing, weights)

The functions take the handles of :mod:`weft.ep` whose rows have one floating-point type on the way and home.
Gradients are exchanges, too: every rank runs the backward pass of every exchange, in the same order. Where no
gradients are wanted the handle's own methods cost less.
"""

from __future__ import annotations

from .operators import Dispatched, combine, dispatch, routing_of

__all__ = ["Dispatched", "combine", "dispatch", "routing_of"]
