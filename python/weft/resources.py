"""What is closed: objects of the library's, and the memory of theirs that arrays show.

Closing is explicit, and arrays may outlive it: memory that an array still shows is given back when the last such array has gone. Nothing here
makes a collective call, and garbage collection makes no call that waits.
"""

from __future__ import annotations

import atexit
import os
from types import TracebackType
from typing import Any, TypeVar

from . import errors
from ._abi import Status
from ._library import Library

Self = TypeVar("Self", bound="Resource")


class Resource:
    """An object of the library's, known by its handle."""

    _kind = "object"

    def __init__(self, lib: Library, handle: int, parent: Resource | None = None) -> None:
        self._lib = lib
        self._handle = handle
        self._parent = parent
        self._process = os.getpid()
        self._leases: set[int] = set()
        self._closed = False

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether this object, or what it was made from, was closed."""
        return self._closed or (self._parent is not None and self._parent.closed)

    def close(self) -> None:
        """Gives the object up on this rank. It is no collective call. Further calls do nothing, as do calls in a child of fork."""
        if self.closed or self._process != os.getpid():
            self._closed = True
            return
        if not self._leases:
            self._check(self._destroy())
        self._closed = True

    def _open(self) -> None:
        """Refuses a call on what was closed, whose memory may still be there for arrays that show it."""
        if self.closed:
            raise errors.ClosedError(f"this {self._kind} was closed")

    def _destroy(self) -> int:
        raise NotImplementedError

    def _returned(self, lease: int) -> None:
        """Memory is shown by one array less. Whoever closes while there are some leaves the destruction to the last."""
        self._leases.discard(lease)
        if self._closed and not self._leases and not _ending and self._process == os.getpid():
            self._destroy()

    def _check(self, status: int) -> None:
        if status:
            raise self._failure(status)

    def _failure(self, status: int) -> errors.WeftError:
        """The last failure of this thread, after a call that returned so."""
        if status == Status.ERROR_HANDLE and self.closed:
            return errors.ClosedError(f"this {self._kind} was closed")
        return self._lib.failure(status)


class Lease:
    """Memory of resources' that arrays show; ``keep`` stays alive as long as they do."""

    __slots__ = ("_keep", "_owners")

    def __init__(self, owner: Resource, keep: Any = None) -> None:
        owners = []
        resource: Resource | None = owner
        while resource is not None:
            owners.append(resource)
            resource = resource._parent
        self._owners = owners
        self._keep = keep
        for o in owners:
            o._leases.add(id(self))

    def __del__(self) -> None:
        self._keep = None  # what it holds goes before its owners
        for o in self._owners:
            o._returned(id(self))


_ending = False
_communicators: dict[int, Resource] = {}


def opened(communicator: Resource) -> None:
    """Remembers a communicator, to leave it when the interpreter ends: peers hear of it at once, and the library's threads call no more."""
    _communicators[communicator._handle] = communicator


def gone(communicator: Resource) -> None:
    """Forgets a communicator that was destroyed."""
    _communicators.pop(communicator._handle, None)


@atexit.register
def _leave_all() -> None:
    global _ending
    _ending = True
    for handle, c in list(_communicators.items()):
        if c._process == os.getpid():
            # A thread that is inside a call keeps its communicator; the end of the process is what tells its peers.
            (c._lib.comm_leave if c._leases else c._lib.comm_destroy)(handle)
