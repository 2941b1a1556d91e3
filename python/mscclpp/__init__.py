"""MSCCL++'s names over Weft: its language of communication plans, what compiles and collects them, and expert
parallelism, ``mscclpp.ext.ep``. Change no line, and install this package.

docs/guides/mscclpp.md lists what is the same and what differs.
"""

from __future__ import annotations

import importlib
from typing import Any

from weft import __version__

from .algorithms import Algorithm, AlgorithmCollection, AlgorithmCollectionBuilder
from .comm import CommGroup
from .compiler import compile  # noqa: A004
from .executor import ExecutionPlan, Executor
from .language.utils import AlgoSpec
from .memory import RawGpuBuffer
from .types import DataType, ErrorCode, PacketType, ReduceOp

version = {"version": __version__, "git_commit": ""}

__all__ = [
    "AlgoSpec",
    "Algorithm",
    "AlgorithmCollection",
    "AlgorithmCollectionBuilder",
    "CommGroup",
    "DataType",
    "ErrorCode",
    "ExecutionPlan",
    "Executor",
    "PacketType",
    "RawGpuBuffer",
    "ReduceOp",
    "compile",
    "version",
]


def __getattr__(name: str) -> Any:
    if name in ("ext", "language"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(
        f"mscclpp.{name}: the package weft-mscclpp has mscclpp.language, mscclpp.compile and what they need, and "
        f"mscclpp.ext.ep, of MSCCL++; install MSCCL++ in its place for the rest"
    )
