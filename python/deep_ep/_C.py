"""The names that code imports from DeepEP's extension module; older versions call it deep_ep_cpp."""

from __future__ import annotations

from typing import Any

from weft._buffer.config import Config
from weft._buffer.events import EventHandle

from . import _files  # noqa: F401 - it refuses a mixture
from .buffer import Buffer as _Buffer
from .buffer import topk_idx_t

__all__ = ["Config", "EventHandle", "get_low_latency_rdma_size_hint", "is_sm90_compiled", "topk_idx_t"]

is_sm90_compiled = _Buffer.is_sm90_compiled
get_low_latency_rdma_size_hint = _Buffer.get_low_latency_rdma_size_hint


def __getattr__(name: str) -> Any:
    if name == "Buffer":
        raise AttributeError(
            "the extension's Buffer, under deep_ep.Buffer, is not there: use deep_ep.Buffer, whose runtime has "
            "the queries"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
