"""Weft's exceptions: a class for each status of the C library.

Every error has ``status``, the number of the C library's status, and ``rank``, the rank to blame, or None.
"""

from __future__ import annotations

import re
from typing import ClassVar

from ._abi import Status


class WeftError(RuntimeError):
    """The family of all errors of Weft."""

    status: ClassVar[int] = -1

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.rank)


class InvalidError(WeftError, ValueError):
    """The arguments contradict each other or the contract; nothing has moved."""

    status = Status.ERROR_INVALID


class OperandError(InvalidError, TypeError):
    """An array that cannot be used as it is: its type, shape, strides or device. The message names it,
    and the way out."""


class UnsupportedError(WeftError, NotImplementedError):
    """It cannot be done here; nothing has moved, and the message names the way out."""

    status = Status.ERROR_UNSUPPORTED


class DeadlineError(WeftError, TimeoutError):
    """A rank did not answer before the deadline, or ranks wait for each other: ``rank`` is None then,
    and the message lists them."""

    status = Status.ERROR_TIMEOUT


class AbortedError(WeftError):
    """A rank gave the operation up."""

    status = Status.ERROR_ABORTED


class DiedError(WeftError):
    """A rank's process ended."""

    status = Status.ERROR_DIED


class LeftError(WeftError):
    """A rank closed its communicator."""

    status = Status.ERROR_LEFT


class MismatchError(WeftError):
    """Ranks made different calls, or with arguments that had to agree and did not."""

    status = Status.ERROR_MISMATCH


class MaskedError(WeftError):
    """This rank, or the one asked for, is masked."""

    status = Status.ERROR_MASKED


class ClosedError(WeftError):
    """This rank has closed an object that the call needs."""

    status = Status.ERROR_CLOSED


class CapacityError(WeftError):
    """More rows were routed than the capacity; nothing has moved."""

    status = Status.ERROR_OVERFLOW


class HandleError(WeftError):
    """A handle of the library is not one, or is one no longer."""

    status = Status.ERROR_HANDLE


class BusyError(WeftError):
    """Another thread is inside a call on the same object."""

    status = Status.ERROR_BUSY


class ForkedError(WeftError):
    """The process was forked after the library was loaded, and has none of its threads."""

    status = Status.ERROR_FORKED


class PlatformError(WeftError):
    """The operating system, the network or the GPU's driver failed; the message has its words."""

    status = Status.ERROR_SYSTEM


class InternalError(WeftError):
    """A defect of the library; the message says where."""

    status = Status.ERROR_INTERNAL


class LibraryError(WeftError, ImportError):
    """The C library is not there, or is another version's."""


_CLASSES: dict[int, type[WeftError]] = {
    c.status: c
    for c in (
        InvalidError,
        UnsupportedError,
        DeadlineError,
        AbortedError,
        DiedError,
        LeftError,
        MismatchError,
        MaskedError,
        ClosedError,
        CapacityError,
        HandleError,
        BusyError,
        ForkedError,
        PlatformError,
        InternalError,
    )
}


def told(why: Exception) -> bytes:
    """What all ranks are told of an exception of one of them, in C's form."""
    words = str(why) if isinstance(why, WeftError) else f"{type(why).__name__}: {why}"
    return words.replace("\0", "").encode(errors="replace")


_WORDS = {
    "weft_comm_set_mask": "set_mask",
    "weft_comm_abort": "abort",
    "weft_comm_shrink": "shrink",
    "weft_work_wait": "wait",
    "weft_timeout_set": "weft.timeout",
    "deadline_ms": "deadline=",
}
"""What the library's messages call by C's names."""

_C = re.compile("|".join(_WORDS))


def of_status(status: int, message: str, rank: int) -> WeftError:
    """The exception of a status, with the library's words."""
    message = _C.sub(lambda found: _WORDS[found[0]], message)
    return _CLASSES.get(status, InternalError)(message, None if rank < 0 else rank)
