"""MSCCL++'s names over Weft: its language of communication plans, what compiles and collects them, channels between
ranks, and expert parallelism, ``mscclpp.ext.ep``. Change no line, and install this package.

docs/guides/mscclpp.md lists what is the same and what differs.
"""

from __future__ import annotations

import importlib
from typing import Any

import weft
from weft import __version__

from .algorithms import Algorithm, AlgorithmCollection, AlgorithmCollectionBuilder
from .bootstrap import TcpBootstrap
from .channels import (
    Connection,
    Host2DeviceSemaphore,
    Host2HostSemaphore,
    MemoryChannel,
    PortChannel,
    ProxyService,
    RegisteredMemory,
    Semaphore,
)
from .comm import CommGroup
from .communicator import Communicator
from .compiler import compile  # noqa: A004
from .executor import ExecutionPlan, Executor
from .language.utils import AlgoSpec
from .memory import RawGpuBuffer
from .types import (
    DataType,
    Device,
    DeviceType,
    EndpointConfig,
    ErrorCode,
    PacketType,
    ReduceOp,
    Transport,
    TransportFlags,
)

version = {"version": __version__, "git_commit": ""}

__all__ = [
    "AlgoSpec",
    "Algorithm",
    "AlgorithmCollection",
    "AlgorithmCollectionBuilder",
    "CommGroup",
    "Communicator",
    "Connection",
    "DataType",
    "Device",
    "DeviceType",
    "EndpointConfig",
    "ErrorCode",
    "ExecutionPlan",
    "Executor",
    "Host2DeviceSemaphore",
    "Host2HostSemaphore",
    "MemoryChannel",
    "PacketType",
    "PortChannel",
    "ProxyService",
    "RawGpuBuffer",
    "ReduceOp",
    "RegisteredMemory",
    "Semaphore",
    "TcpBootstrap",
    "Transport",
    "TransportFlags",
    "compile",
    "get_include",
    "version",
]


def get_include() -> str:
    """The folder of Weft's device headers: port.cuh has the channel that ``device_handle().raw`` is."""
    return weft.get_include()


def __getattr__(name: str) -> Any:
    if name in ("ext", "language"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(
        f"mscclpp.{name}: the package weft-mscclpp has mscclpp.language, mscclpp.compile and what they need, "
        f"connections and port channels, and mscclpp.ext.ep, of MSCCL++; install MSCCL++ in its place for the rest"
    )
