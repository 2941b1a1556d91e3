"""Collectives between ranks on the host. Results are the same bits on every rank and in every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _abi, memory, streams
from ._abi import Op
from .communicator import Communicator
from .errors import InvalidError
from .limits import timeout as limit
from .operands import Slot
from .resources import Made


class Group(Made):
    """Collectives of a communicator, and the memory that they need.

    Making one is collective. ``scratch`` bytes stage operands that lie in no window; 0 is 4 MiB.
    ``timeout=`` bounds a call's waits, in seconds, as :class:`weft.timeout` does.
    """

    _kind = "group of collectives"
    _RELEASE = "group_destroy"

    def __init__(self, comm: Communicator, *, scratch: int = 0) -> None:
        super().__init__(comm, "group_create", _abi.GroupOptions(scratch=scratch))
        self._comm = comm
        self._slots: list[tuple[Slot, Slot]] = []

    def barrier(self, *, stream: streams.StreamLike = None, timeout: float | None = None) -> None:
        """Returns when every rank has entered it. Collective."""
        if timeout is not None:
            with limit(timeout):
                self.barrier(stream=stream)
            return
        self._begin()
        self._check(self._lib.barrier(self._handle, streams.address(stream, self._comm._device)))

    def all_reduce(
        self,
        array: Any,
        op: Op | str = Op.sum,
        *,
        out: Any = None,
        stream: streams.StreamLike = None,
        timeout: float | None = None,
    ) -> Any:
        """Reduces elementwise, in rank order, and returns ``out``: an array of the shape of ``array``,
        or ``array`` itself; a new one if None. Collective."""
        if timeout is not None:
            with limit(timeout):
                return self.all_reduce(array, op, out=out, stream=stream)
        number, refused = (op, None) if type(op) is Op else _op(op)
        try:
            return self._run(self._lib.all_reduce, array, out, (), stream, number, refused=refused)
        finally:
            refused = None  # its traceback has this frame

    def all_gather(
        self, array: Any, *, out: Any = None, stream: streams.StreamLike = None, timeout: float | None = None
    ) -> Any:
        """Gives every rank the arrays of all: [ranks, \\*shape], in the order of ranks. ``array`` may
        be this rank's part of ``out``. Collective."""
        if timeout is not None:
            with limit(timeout):
                return self.all_gather(array, out=out, stream=stream)
        return self._run(self._lib.all_gather, array, out, (self._comm.ranks,), stream)

    def repeated_all_gather(self, array: Any, out: Any) -> Callable[[], None]:
        """A function that makes an all-gather of the same arrays whenever it is called, for less:
        neither may be moved. On the host."""
        self._open()
        to, source = Slot("out", -1, written=True), Slot("array", -1)
        given, into = source.fill(array), to.fill(out)
        call, handle = self._lib.all_gather, self._handle
        kept = to, source, array, out

        def again() -> None:
            if self._closed:
                self._open()
            if status := call(handle, 0, into, given):
                raise self._failure(status)

        again.kept = kept  # type: ignore[attr-defined]
        return again

    def broadcast(
        self, array: Any, root: int = 0, *, stream: streams.StreamLike = None, timeout: float | None = None
    ) -> Any:
        """Gives every rank the contents of root's array, in place, and returns it. Collective."""
        if timeout is not None:
            with limit(timeout):
                return self.broadcast(array, root, stream=stream)
        self._begin()
        slots = self._take()
        try:
            slots[0].wants = 0
            refused = _refusal(slots[0], array)
            if refused is None and not (isinstance(root, int) and 0 <= root < self._comm.ranks):
                refused = InvalidError(f"broadcast: root {root!r} of {self._comm.ranks} ranks")
            on = streams.address(stream, self._comm._device)
            if refused is None:
                status = self._lib.broadcast(self._handle, on, slots[0].address, root)
            else:
                status = self._lib.broadcast(self._handle, on, slots[0].absent(refused), 0)
            if refused is not None:
                raise refused
            if status:
                raise self._failure(status)
        finally:
            refused = None  # its traceback has this frame
            self._give(slots)
        return array

    def _run(
        self,
        call: Any,
        array: Any,
        out: Any,
        more: tuple[int, ...],
        stream: streams.StreamLike,
        *rest: int,
        refused: Exception | None = None,
    ) -> Any:
        """Runs a collective with an operand that is read and one that is written, of the same shape but
        for the dimensions of ``more``."""
        self._begin()
        slots = self._take()
        to, source = slots
        try:
            refused = refused or _refusal(source, array)
            if refused is None and out is None:
                out, refused = self._made(source, more)
            if refused is None:
                to.wants = source.code
                refused = _refusal(to, out)
            on = streams.address(stream, self._comm._device)
            if refused is None:
                status = call(self._handle, on, to.address, source.address, *rest)
            else:  # the others get the reason, instead of waiting
                status = call(self._handle, on, to.absent(refused), source.absent(refused), *rest)
            if refused is not None:
                raise refused
            if status:
                raise self._failure(status)
        finally:
            refused = None  # its traceback has this frame
            self._give(slots)
        return out

    def _made(self, source: Slot, more: tuple[int, ...]) -> tuple[Any, Exception | None]:
        """A new array for a result, or why there is none."""
        if len(more) + len(source.shape) > _abi.MAX_DIMS:
            return None, source.refuse(
                f"{len(source.shape)} dimensions, want at most {_abi.MAX_DIMS - len(more)}: the result has one more"
            )
        try:
            return memory.empty(source.kind, more + source.shape, source.dtype, self._comm._device), None
        except Exception as e:
            return None, e

    def _take(self) -> tuple[Slot, Slot]:
        try:
            return self._slots.pop()
        except IndexError:
            device = self._comm._device
            return Slot("out", device, written=True), Slot("array", device)

    def _give(self, slots: tuple[Slot, Slot]) -> None:
        for slot in slots:
            if slot.held:
                slot.held.clear()
        self._slots.append(slots)

    def _begin(self) -> None:
        """The start of every call."""
        if self._closed:
            self._open()
        if self._forgotten.found:
            self._forgotten.collect()


def _op(op: Op | str | int) -> tuple[Op, Exception | None]:
    """An operation by its name or number, or why it is none."""
    try:
        return Op[op] if isinstance(op, str) else Op(op), None
    except (KeyError, ValueError):
        return Op.sum, InvalidError(f"op: {op!r}, want one of {', '.join(Op.__members__)}")


def _refusal(slot: Slot, array: Any) -> Exception | None:
    """Takes an operand, or records why it is refused."""
    try:
        return None if slot.fill(array) else slot.refuse("there is no array")
    except Exception as e:
        return e
