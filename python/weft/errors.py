"""Weft's exceptions: a class for each status of the C library.

Every error has ``status``, the number of the C library's status, and ``rank``, the rank to blame, or None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
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


def unexpected(call: str, unknown: Iterable[str], known: Iterable[str]) -> TypeError:
    """The error of a call with arguments by names that it does not have."""
    return TypeError(f"{call} has no argument {min(unknown)!r}; by name it takes {', '.join(known)}")


class Words:
    """What an interface calls by another one's names: pairs of a pattern and what stands in its place, in order."""

    def __init__(self, *pairs: tuple[str, str]) -> None:
        self._pairs = [(re.compile(pattern), instead) for pattern, instead in pairs]

    def of(self, text: str) -> str:
        """A text in the interface's words."""
        for pattern, instead in self._pairs:
            text = pattern.sub(instead, text)
        return text

    def say(self, error: Exception) -> None:
        """Puts an error of the library's or of an operand's into the interface's words."""
        if isinstance(error, WeftError) and error.args:
            error.args = (self.of(str(error)), *error.args[1:])


_OURS = Words(
    ("weft_comm_set_mask", "set_mask"),
    ("weft_comm_abort", "abort"),
    ("weft_comm_shrink", "shrink"),
    ("weft_work_wait", "wait"),
    ("weft_timeout_set", "weft.timeout"),
    ("deadline_ms", "deadline="),
    (
        "WEFT_SUM, WEFT_PROD, WEFT_MIN, WEFT_MAX, WEFT_AVG, WEFT_PREMULSUM",
        "sum, prod, min, max, avg, premulsum",
    ),
    (r"\bweft_routing is another weft_ep's", "routing is another handle's"),
    (r"\bweft_received is another weft_ep's", "received batch is another handle's"),
    # An operand that a rank could not pass: its own words say more. Other operations are refused by a prepare.
    (r"\bprepare: topk is none \((.*)\), want [^()]*$", r"\1"),
    (r"\b[a-z][a-z ]* (?:is|are) none \((\w+: .*)\), want [^()]*$", r"\1"),
    (r"\b([a-z][a-z ]*) (?:is|are) none \((.*)\), want [^()]*$", r"\1: \2"),
    (r"\bprepare dispatch\b", "dispatch"),
    (r"\b(dispatch|combine) backward\b", r"\1_backward"),
    (r"\bcopy received(?=: )", "copy_to"),
    (r"\bcount routing(?=: )", "count"),
    (r"\bcount waits(?=: )", "count_waits"),
    (r'"new handle"', "Handle"),
    (r'"new group"', "Group"),
    (r'"new executor"', "Executor"),
    (r'"new counter"', "TokenCounter"),
    (r'"(?:alloc|register) window"', "Window"),
    (r"(?<!a )\bnew handle(?=: )", "Handle"),
    (r"(?<!a )\bnew group(?=: )", "Group"),
    (r"(?<!a )\bnew executor(?=: )", "Executor"),
    (r"(?<!a )\bnew counter(?=: )", "TokenCounter"),
    (r"\b(?:alloc|register) window(?=: )", "Window"),
    (r"\bset mask: (rank \d+: refused there: )set_mask: ", r"set_mask: \1"),
    (r"\bset mask(?=: )", "set_mask"),
    (r"\bfp(16|32|64)(?= ?\[)", r"float\1"),
    (r"\bbf16(?= ?\[)", "bfloat16"),
    (r"\b(e4m3|e5m2)(?= ?\[)", r"float8_\1"),
)
"""Python's names for what the library's messages call by those of C and Go."""


def of_status(status: int, message: str, rank: int) -> WeftError:
    """The exception of a status, with the library's words."""
    return _CLASSES.get(status, InternalError)(_OURS.of(message), None if rank < 0 else rank)
