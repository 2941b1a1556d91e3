"""Streams of GPUs, as callers name them."""

from __future__ import annotations

import sys
from typing import Any

from ._abi import STREAM_OWN

OWN = STREAM_OWN
"""The communicator's own stream, ordered with nothing but itself."""

StreamLike = Any


def address(stream: StreamLike, device: int) -> int:
    """What C takes for a stream.

    On the host there are none: it is None. On a GPU None is PyTorch's current stream if PyTorch is in use, else the legacy default one; else a
    ``torch.cuda.Stream``, whatever has ``__cuda_stream__``, a CUstream's number, or :data:`OWN`.
    """
    if stream is None:
        if device < 0:
            return 0
        torch = sys.modules.get("torch")
        return 0 if torch is None else torch.cuda.current_stream(device).cuda_stream
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr"):
        number = getattr(stream, name, None)
        if isinstance(number, int):
            return number
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise TypeError(f"a {type(stream).__qualname__} is no stream: pass None, a torch.cuda.Stream, or a CUstream's number")
