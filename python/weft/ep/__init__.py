"""Expert parallelism: tokens of a mixture-of-experts layer to the ranks that hold their experts, and
the experts' outputs home.

A :class:`Handle` is made once for a :class:`Spec`. Then, for every batch, ``dispatch`` moves the
tokens' rows to their experts, and ``combine`` brings the experts' rows home and sums them; for training
there are ``dispatch_backward`` and ``combine_backward``.
"""

from __future__ import annotations

from .handle import Handle
from .routing import Received, Routing
from .spec import Counts, KernelTuning, Layout, Overflow, Payload, Reduction, ScaleOrder, Spec, Weighting
from .token_counter import TokenCounter
from .token_counts import TokenCounts, count
from .work import PendingCombine, PendingDispatch

__all__ = [
    "Counts",
    "Handle",
    "KernelTuning",
    "Layout",
    "Overflow",
    "Payload",
    "PendingCombine",
    "PendingDispatch",
    "Received",
    "Reduction",
    "Routing",
    "ScaleOrder",
    "Spec",
    "TokenCounter",
    "TokenCounts",
    "Weighting",
    "count",
]
