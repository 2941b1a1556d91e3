"""Collectives between ranks on the host. Results are the same bits on every rank and in every run."""

from __future__ import annotations

import ctypes
import enum
from typing import Any, Union

from . import _abi, memory, streams
from .communicator import Communicator
from .dtypes import DType
from .errors import OperandError
from .operands import Slot
from .resources import Resource


class Op(enum.IntEnum):
    """How elements are reduced."""

    sum = 0
    prod = 1
    min = 2
    max = 3
    avg = 4


class Group(Resource):
    """Collectives of a communicator, and the memory that they need.

    Making one is collective. ``scratch`` bytes stage operands that lie in no window; 0 is 4 MiB.
    """

    _kind = "group of collectives"

    def __init__(self, comm: Communicator, *, scratch: int = 0) -> None:
        handle = ctypes.c_uint64()
        comm._check(comm._lib.group_create(comm._handle, _abi.GroupOptions(scratch=scratch), ctypes.addressof(handle)))
        super().__init__(comm._lib, handle.value, comm)
        self._comm = comm
        self._frames: list[tuple[Slot, Slot]] = []

    def barrier(self, *, stream: streams.StreamLike = None) -> None:
        """Returns when every rank has entered it. Collective."""
        self._open()
        self._check(self._lib.barrier(self._handle, streams.address(stream, self._comm._device)))

    def all_reduce(self, array: Any, op: Union[Op, str] = Op.sum, *, out: Any = None, stream: streams.StreamLike = None) -> Any:
        """Reduces elementwise, in rank order, and returns ``out``: an array of the shape of ``array``, which it may be itself; a new one if None. Collective."""
        number = Op[op] if isinstance(op, str) else Op(op)
        return self._run(array, out, (), lambda o, i: self._lib.all_reduce(self._handle, self._on(stream), o, i, number))

    def all_gather(self, array: Any, *, out: Any = None, stream: streams.StreamLike = None) -> Any:
        """Gives every rank the arrays of all: [ranks, \\*shape], in the order of ranks. ``array`` may be this rank's part of ``out``. Collective."""
        return self._run(array, out, (self._comm.ranks,), lambda o, i: self._lib.all_gather(self._handle, self._on(stream), o, i))

    def broadcast(self, array: Any, root: int = 0, *, stream: streams.StreamLike = None) -> Any:
        """Gives every rank the contents of root's array, in place, and returns it. Collective."""
        self._open()
        slots = self._take()
        try:
            slots[0].written = self._comm.rank != root
            refused = _fill(slots[:1], (array,))
            status = self._lib.broadcast(self._handle, self._on(stream), 0 if refused else slots[0].address, root)
            if refused:
                raise refused
            self._check(status)
        finally:
            slots[0].written = True
            self._give(slots)
        return array

    def _run(self, array: Any, out: Any, more: tuple[int, ...], call: Any) -> Any:
        self._open()
        slots = self._take()
        to, source = slots
        try:
            refused = _fill((source,), (array,))
            if not refused:
                if out is None:
                    t = _abi.Tensor.from_address(source.address)
                    out = memory.empty(source.kind, more + tuple(t.shape[: t.dims]), DType(t.dtype), self._comm._device)
                to.wants = _abi.Tensor.from_address(source.address).dtype
                refused = _fill((to,), (out,))
            # Who has nothing to pass tells the others so, instead of leaving them to wait.
            status = call(0, 0) if refused else call(to.address, source.address)
            if refused:
                raise refused
            self._check(status)
        finally:
            self._give(slots)
        return out

    def _on(self, stream: streams.StreamLike) -> int:
        return streams.address(stream, self._comm._device)

    def _take(self) -> tuple[Slot, Slot]:
        try:
            return self._frames.pop()
        except IndexError:
            device = self._comm._device
            return Slot("out", device, written=True), Slot("array", device)

    def _give(self, slots: tuple[Slot, Slot]) -> None:
        for slot in slots:
            slot.held = None
        self._frames.append(slots)

    def _destroy(self) -> int:
        return int(self._lib.group_destroy(self._handle))


def _fill(slots: tuple[Slot, ...], arrays: tuple[Any, ...]) -> OperandError | None:
    for slot, array in zip(slots, arrays):
        try:
            if not slot.fill(array):
                return slot.refuse("there is no array")
        except OperandError as e:
            return e
    return None
