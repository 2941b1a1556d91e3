"""DeepEP's interfaces over Weft: change no line, install this package, and exchanges are Weft's.

docs/guides/deep_ep.md lists what is the same and what differs.
"""

from __future__ import annotations

import weft
from weft._buffer.config import Config
from weft._buffer.events import EventHandle, EventOverlap

from . import _files  # noqa: F401 - it refuses a mixture, before others are imported
from .buffer import Buffer, topk_idx_t
from .elastic import ElasticBuffer, EPHandle
from .hybrid_ep_buffer import HybridEPBuffer
from .utils.envs import get_logical_domain_size, get_physical_domain_size

# The version of DeepEP whose interface this is, and that of Weft.
__version__ = f"2.1.0+weft.{weft.__version__}"

__all__ = [
    "Buffer",
    "Config",
    "EPHandle",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "HybridEPBuffer",
    "get_logical_domain_size",
    "get_physical_domain_size",
    "topk_idx_t",
]
