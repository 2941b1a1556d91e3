"""Extensions of MSCCL++'s: expert parallelism, which needs PyTorch, and collections of algorithms."""

from __future__ import annotations

import importlib
from typing import Any

from ..algorithms import AlgorithmCollectionBuilder

__all__ = ["AlgorithmCollectionBuilder", "ep"]


def __getattr__(name: str) -> Any:
    if name == "ep":
        return importlib.import_module(".ep", __name__)
    raise AttributeError(f"mscclpp.ext.{name}: weft-mscclpp has ep and AlgorithmCollectionBuilder")
