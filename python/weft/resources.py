"""Closing: the library's objects, and their memory that arrays show.

Closing is explicit, and arrays may outlive it: memory that an array still shows is given back when the last
such array has gone. Nothing here makes a collective call, and garbage collection makes no call that waits.
Objects with memory of a GPU, which is released when the GPU is idle, are closed by the next call that makes
or closes one.

A later call of its communicator closes an object that was deleted without a close. That is local: ranks
delete at different times, and peers may still read the memory, because their mappings keep it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import time
import warnings
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from . import compiled, errors, views
from ._abi import Status
from ._library import Library

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from .communicator import Communicator
    from .work import Begun


class Forgotten(weakref.ref):  # type: ignore[type-arg]
    """A handle of the library's to be given back when its holder is collected. It then calls no Python code,
    which an interrupt could break off."""

    __slots__ = ("keep", "number", "release")

    release: str
    number: int
    keep: dict[int, Begun]
    """Calls that were started, whose arguments the library uses until the handle was given back."""


_NONE: dict[int, Begun] = {}


class Garbage:
    """Handles whose holders were collected, for a later call to release.

    It is no call of the collector's: that runs in any thread, at any time, also inside another call and amid a capture.
    """

    __slots__ = ("_lib", "found", "watched")

    def __init__(self, lib: Library) -> None:
        self._lib = lib
        self.found: list[Forgotten] = []
        self.watched: dict[int, Forgotten] = {}

    def watch(self, holder: Any, release: str, number: int) -> None:
        """Has a handle given back, by that function, when its holder was collected."""
        watched = self.watched[number] = Forgotten(holder, self.found.append)
        watched.release, watched.number, watched.keep = release, number, _NONE

    def pending(self) -> bool:
        """Whether calls that were started have not ended."""
        kept = [watched.keep for watched in list(self.watched.values())]
        return any(not begun.over(self._lib) for started in kept for begun in list(started.values()))

    def collect(self) -> None:
        """Releases the handles that were found."""
        for forgotten in list(self.found):
            if getattr(self._lib, forgotten.release)(forgotten.number) in _AGAIN:
                return
            # Not earlier: after an interrupt in between the next call tries again, and is told that the
            # handle was released.
            self.watched.pop(forgotten.number, None)
            try:  # noqa: SIM105 (suppress costs as much as all the rest)
                self.found.remove(forgotten)
            except ValueError:  # another thread was quicker
                pass


_AGAIN = frozenset((int(Status.ERROR_BUSY), int(Status.ERROR_TIMEOUT)))
"""The result of a call that released nothing, and is to be made again."""


class Resource:
    """An object of the library's, known by its handle."""

    _kind = "object"
    _RELEASE = ""  # the library's function that destroys it
    _face: errors.Words | None = None  # of the interface that it serves, if that is another one

    def __init__(self, lib: Library, handle: int, parent: Resource | None = None) -> None:
        self._lib = lib
        self._handle = handle
        self._parent = parent
        self._process = os.getpid()
        self._leases: set[Any] = set()
        self._endings: list[Any] = []
        self._closed = False
        sweep()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether this object, or the object that it was made from, was closed."""
        return self._closed or (self._parent is not None and self._parent.closed)

    def close(self) -> None:
        """Closes the object on this rank. It is no collective call. Further calls do nothing, as do calls in
        a child of fork."""
        if self.closed or self._process != os.getpid():
            self._closed = True
            return
        sweep()
        if self._leases:
            self._closed = True
            # From here on every array that goes may be the last.
            self._endings = [
                weakref.ref(lease, self._returned)
                for lease in (ref() for ref in list(self._leases))
                if lease is not None
            ]
            self._returned()
            return
        status = self._destroy()
        # Those may be closed again; after other failures it is gone all the same.
        self._closed = status not in _AGAIN
        self._check(status)

    def _open(self) -> None:
        """Refuses a call on a closed object, whose memory may still exist for arrays that show it."""
        if self.closed:
            raise errors.ClosedError(f"this {self._kind} was closed")

    def _destroy(self) -> int:
        return int(getattr(self._lib, self._RELEASE)(self._handle))

    def _returned(self, _: object = None) -> None:
        """Destroys a closed object, when no array shows its memory any more."""
        if not _ending and self._process == os.getpid() and all(ref() is None for ref in list(self._leases)):
            self._endings.clear()
            if self._rests():
                _left.append(self)
                return
            global _last_ending
            _ending_now.append(self)
            try:
                self._destroy()
            finally:
                _last_ending = object()
                _ending_now.remove(self)

    def _rests(self) -> bool:
        """Whether destroying it waits until a GPU has come to rest."""
        return self._parent is not None and self._parent._rests()

    def _refuse(self, why: Exception, create: str, *arguments: Any) -> NoReturn:
        """Has all ranks refuse a call that makes something, for a reason that this one has found, and raises it: else
        the others would wait for this one. The arguments are any that C takes."""
        out = ctypes.c_uint64()
        self._refuse_call(why, lambda: getattr(self._lib, create)(self._handle, *arguments, ctypes.addressof(out)))

    def _refuse_call(self, why: Exception, call: Callable[[], int]) -> NoReturn:
        """The same of a call of the library's."""
        try:
            if not self._lib.refuse(errors.told(why)):
                call()
        finally:  # after an interrupt
            self._lib.refuse(None)
        raise why

    def _check(self, status: int) -> None:
        if status:
            raise self._failure(status)

    def _failure(self, status: int) -> errors.WeftError:
        """The last failure of this thread, after a call that returned so."""
        if status == Status.ERROR_HANDLE and self.closed:
            return errors.ClosedError(f"this {self._kind} was closed")
        failure = self._lib.failure(status)
        if self._face is not None:
            self._face.say(failure)
        return failure


class Made(Resource):
    """A resource that its communicator closes if the caller does not. Peers need it only in operations, and
    this rank takes part in no more of them."""

    def __new__(cls, comm: Any, *_arguments: Any, **_choices: Any) -> Self:
        # Before __init__ of a class, which tells the communicator of what is wrong.
        if not isinstance(getattr(comm, "_garbage", None), Garbage):
            raise errors.InvalidError(
                f"{cls.__name__}: the communicator is of type {type(comm).__name__}, want what weft.join returned"
            )
        return super().__new__(cls)

    def __init__(self, comm: Communicator, create: str, *arguments: Any) -> None:
        self._forgotten = comm._garbage
        self._forgotten.collect()  # first: it has files and memory that this may need
        number = ctypes.c_uint64()
        comm._check(getattr(comm._lib, create)(comm._handle, *arguments, ctypes.addressof(number)))
        super().__init__(comm._lib, number.value, comm)
        self._forgotten.watch(self, self._RELEASE, number.value)

    def close(self) -> None:
        super().close()
        if self._closed:
            self._forgotten.watched.pop(self._handle, None)

    def __del__(self) -> None:
        # Without a source: recorded warnings would keep the object, and its memory, alive.
        if _ending is False and not getattr(self, "_closed", True) and not self.closed and self._process == os.getpid():
            warnings.warn(f"a {self._kind} was never closed: use with, or call close()", ResourceWarning, stacklevel=2)


class Lease:
    """Memory of resources' that arrays show; ``keep`` stays alive as long as they do.

    Resources know their leases by weak references that take themselves out: nothing of Python's runs
    when an array goes, so an interrupt cannot get lost there.
    """

    __slots__ = ("__weakref__", "_keep", "_owners")

    def __init__(self, owner: Resource, keep: Any = None) -> None:
        self._keep = keep
        self._owners = []
        resource: Resource | None = owner
        while resource is not None:
            self._owners.append(resource)
            resource._leases.add(weakref.ref(self, resource._leases.discard))
            resource = resource._parent


def _lease_of(owner: weakref.ref[Resource]) -> Lease | None:
    """The lease of a handle's memory that tensors show; none if the handle is being collected."""
    resource = owner()
    return None if resource is None else Lease(resource)


_ending_now: list[Resource] = []
"""Closed objects that are being destroyed by a thread in which their last array went."""

_last_ending = object()  # another one after each of these


def undisturbed(call: Callable[[], int]) -> int:
    """The status of a call that closes something. It is made again if it was refused while the collector destroyed
    an object in another thread, which takes a moment and is no call of the program's."""
    while True:
        last = _last_ending
        status = call()
        if status != Status.ERROR_BUSY or (_last_ending is last and not _ending_now):
            return status
        time.sleep(0)


_left: list[Resource] = []
"""Closed objects without arrays that show them. The code that drops the last array does not destroy the
object: it may be the collector, during a capture."""


def sweep() -> None:
    """Destroys the remaining objects."""
    views.sweep()
    compiled.sweep(_lease_of)
    while _left:
        try:
            resource = _left.pop()
        except IndexError:  # another thread was quicker
            return
        if resource._process == os.getpid() and resource._destroy() in _AGAIN:
            _left.append(resource)
            return


_ending = False
_communicators: dict[int, tuple[Library, int, set[Any], Garbage]] = {}


def opened(communicator: Communicator) -> None:
    """Registers a communicator, to leave it when the interpreter ends: peers see that at once, and the
    library's threads call no more."""
    of = communicator._lib, communicator._process, communicator._leases, communicator._garbage
    _communicators[communicator._handle] = of


def gone(communicator: Resource) -> None:
    """Forgets a communicator that was destroyed."""
    _communicators.pop(communicator._handle, None)


@atexit.register
def _leave_all() -> None:
    global _ending
    _ending = True
    compiled.sweep(_lease_of)
    for handle, (lib, process, leases, garbage) in list(_communicators.items()):
        if process == os.getpid():
            if garbage.pending():
                lib.comm_abort(handle)  # calls that were started would be waited for
            # A thread that is inside a call keeps its communicator; peers then see the end of the process.
            (lib.comm_leave if leases else lib.comm_destroy)(handle)
