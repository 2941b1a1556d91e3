"""Weft: tensors between the ranks of a machine-learning job.

    import weft

    with weft.join() as comm:  # this rank and its peers, from weft run, torchrun, Slurm, MPI or Kubernetes
        group = weft.Group(comm)
        total = group.all_reduce(array)

Communicators, windows, collectives and expert parallelism (:mod:`weft.ep`) over arrays of numpy, of PyTorch,
and of every library with DLPack or the buffer protocol. PyTorch is optional: :mod:`weft.torch` has autograd
functions and operators for torch.compile.
"""

from __future__ import annotations

from . import ep, plan, port
from ._abi import RELEASE, Collective
from .collectives import Algorithm, Group, How, Op, Recv, Send
from .communicator import Communicator, UniqueId, join
from .dtypes import DType
from .errors import (
    AbortedError,
    BusyError,
    CapacityError,
    ClosedError,
    DeadlineError,
    DiedError,
    ForkedError,
    HandleError,
    InternalError,
    InvalidError,
    LeftError,
    LibraryError,
    MaskedError,
    MismatchError,
    OperandError,
    PlatformError,
    UnsupportedError,
    WeftError,
)
from .limits import timeout
from .memory import DeviceArray
from .own import OwnAlgorithm, OwnContext, Request, get_include
from .streams import OWN
from .windows import Window
from .work import Work

__version__ = RELEASE

__all__ = [
    "OWN",
    "AbortedError",
    "Algorithm",
    "BusyError",
    "CapacityError",
    "ClosedError",
    "Collective",
    "Communicator",
    "DType",
    "DeadlineError",
    "DeviceArray",
    "DiedError",
    "ForkedError",
    "Group",
    "HandleError",
    "How",
    "InternalError",
    "InvalidError",
    "LeftError",
    "LibraryError",
    "MaskedError",
    "MismatchError",
    "Op",
    "OperandError",
    "OwnAlgorithm",
    "OwnContext",
    "PlatformError",
    "Recv",
    "Request",
    "Send",
    "UniqueId",
    "UnsupportedError",
    "WeftError",
    "Window",
    "Work",
    "ep",
    "get_include",
    "join",
    "plan",
    "port",
    "timeout",
]
