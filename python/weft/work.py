"""Calls of a group that go on while the program does."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _abi, streams
from .errors import ClosedError, DeadlineError, OperandError, WeftError
from .limits import timeout as limit

if TYPE_CHECKING:
    from typing import Self

    from ._library import Library
    from .collectives import Group, _CollectiveArgs


class Begun(weakref.ref):  # type: ignore[type-arg]
    """A call whose end was not seen yet, and its arguments. It refers to the call's Work."""

    __slots__ = ("args", "number")

    number: int
    args: _CollectiveArgs

    def ask(self, group: Group) -> bool:
        """Whether the call has ended; it is asked anew. The caller has the lock of the group's ends, under which
        handles and arguments are given back: these are still the call's."""
        if status := group._lib.work_get(self.number, self.args.info_address):
            raise group._failure(status)
        return bool(self.args.info[2] & 0xFFFFFFFF)

    def over(self, lib: Library) -> bool:
        """Whether the call has ended or was captured, or there is none any more."""
        info = _abi.WorkInfo()  # another thread may ask with the call's own
        return lib.work_get(self.number, ctypes.addressof(info)) != 0 or bool(info.done or info.captured)

    @property
    def captured(self) -> bool:
        return bool(self.args.info[2] >> 32)

    @property
    def algorithm(self) -> str:
        name = self.args.info[1]
        return ctypes.string_at(name).decode() if name else ""


_LOOK = 0.1
"""Seconds after which a thread that waits for an event loop looks whether it is still wanted."""


class Work:
    """A call of a :class:`weft.Group` with ``async_op=True``, which may not have ended. If its group is closed before
    its end was seen, its error is a :class:`weft.ClosedError`.

    Arrays, counts and scalars are the call's until it has ended: they must neither be written nor, results, read.
    They are kept alive until then, also if the Work is dropped. Calls of a group run in the order in which they
    begin. Any thread may ask a Work.

    In a ``with`` block the end waits for the call, unless the block is left by an exception. ``await work`` waits in
    a thread of the event loop's, which a cancelled task leaves while the call goes on.
    """

    __slots__ = ("__weakref__", "_algorithm", "_begun", "_error", "_finish", "_group", "_name", "_result")

    def __init__(
        self, group: Group, name: str, number: int, args: Any, result: Any, finish: Callable[[], None] | None = None
    ) -> None:
        self._group, self._name, self._result, self._finish = group, name, result, finish
        self._error: WeftError | None = None
        self._algorithm = ""
        begun = Begun(self, group._abandoned.append)
        begun.number, begun.args = number, args
        group._started[number] = begun
        self._begun: Begun | None = begun  # None: the call has ended, or was closed

    def __repr__(self) -> str:
        comm = self._group._comm
        return f"<weft.Work {self._name}, rank {comm.rank} of {comm.ranks}, {self._state()}>"

    def _state(self) -> str:
        """What became of the call so far. Its end is not seen by this."""
        begun = self._begun
        if begun is None:
            return "done" if self._error is None else f"failed: {type(self._error).__name__}"
        info = _abi.WorkInfo()  # another thread may ask with the call's own
        if self._group._lib.work_get(begun.number, ctypes.addressof(info)):
            return "over"  # the group has given it up
        return "captured" if info.captured else "done" if info.done else "running"

    def done(self) -> bool:
        """Whether the call has ended, well or not. It does not wait. A call that a CUDA graph has captured is never
        done: the graph is what runs."""
        with self._group._ending:
            return self._seen() is None

    def wait(self, *, timeout: float | None = None) -> Any:
        """Waits until the call has ended, raises its error or returns its result, every time alike.

        ``timeout``: seconds that bound the wait, after which the call goes on and may be waited for again. On GPUs
        the host waits; :meth:`wait_on` has a stream wait.
        """
        begun = self._begun
        if begun is not None:
            if timeout is not None:
                with limit(timeout):
                    return self.wait()
            group = self._group
            status = group._lib.work_wait(begun.number)
            failure = group._failure(status) if status else None
            try:
                with group._ending:
                    if self._seen(well=not status) is not None and failure is not None:
                        raise failure
            finally:
                del failure  # its traceback has this frame, which would keep the Work
        if self._error is not None:
            raise self._error
        return self._result

    def wait_on(self, stream: streams.StreamLike = None) -> Any:
        """Has a stream of the GPU wait for the call, and returns the result, which that stream may use. The host
        does not wait. None is the current stream. If the call fails the stream goes on: :meth:`error` says so."""
        group = self._group
        on = streams.address(stream, group._comm._device)
        with group._ending:
            if (begun := self._begun) is not None and (status := group._lib.work_wait_on(begun.number, on)):
                raise group._failure(status)
        streams.borrow(self._result, stream, group._comm._device)
        return self._result

    def error(self) -> WeftError | None:
        """The error of a call that has ended; of one that has not, the communicator's. It does not wait."""
        group = self._group
        with group._ending:
            if (begun := self._seen()) is None:
                return self._error
            status = group._lib.work_error(begun.number)
            return group._failure(status) if status else None

    @property
    def algorithm(self) -> str:
        """The name of the algorithm: on the host once the call has ended, before that "". Messages have none."""
        with self._group._ending:
            begun = self._seen()
            return self._algorithm if begun is None else begun.algorithm

    def close(self) -> None:
        """Gives the Work up. The call goes on if it has not ended, and what it borrows stays borrowed."""
        with self._group._ending:
            begun, self._begun = self._begun, None
            if begun is not None:
                self._error = ClosedError("this work was closed before its end was seen")
                self._group._abandoned.append(begun)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.wait()
        else:
            self.close()

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio

        left = threading.Event()

        def waited() -> Any:
            # Nothing interrupts that thread, and the loop's end waits for it: it looks whether it is still wanted.
            while True:
                try:
                    return self.wait(timeout=_LOOK)
                except DeadlineError:  # noqa: PERF203
                    if self._begun is None or left.is_set():
                        raise

        try:
            return (yield from asyncio.get_running_loop().run_in_executor(None, waited).__await__())
        finally:
            left.set()

    def _seen(self, *, well: bool = False) -> Begun | None:
        """The call, if it has not ended. If it has, its end is seen now: ``well`` says that it is known to be a good
        one. Threads ask one after the other, under the lock of ends: the first that sees the end gives back the
        handle, and what the call has borrowed."""
        group, begun = self._group, self._begun
        try:
            if begun is None or not (begun.ask(group) or well):
                return begun
        except ClosedError as closed:  # the group has waited for the call, and given it up
            self._error, self._finish, self._begun = closed, None, None
            return None
        status = 0 if well else group._lib.work_error(begun.number)
        self._algorithm = begun.algorithm
        if status:
            self._error = group._failure(status)
        elif self._finish is not None:
            try:
                self._finish()
            except Exception as e:  # the call has ended all the same, and gives back what it has borrowed
                self._error = OperandError(f"out: the result could not be copied to it: {e}")
                self._error.__cause__ = e
        self._finish = self._begun = None
        group._over(begun)
        return None
