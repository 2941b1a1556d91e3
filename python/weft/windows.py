"""Windows: symmetric memory, which every rank sees of every other."""

from __future__ import annotations

import ctypes
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

from . import _abi, memory
from .communicator import Communicator
from .dtypes import DTypeLike, dtype_of
from .errors import InvalidError, OperandError
from .limits import whole
from .operands import Slot
from .resources import Lease, Resource

_MOST = 1 << 62


def _bytes(size: int) -> int:
    """The size of a window."""
    if not isinstance(size, numbers.Integral) or not 0 <= size < _MOST:
        raise InvalidError(f"a window of {size!r} bytes")
    return int(size)


class Window(Resource):
    """Memory of the same size on every rank, zeroed, that all ranks of the host map. Operands that lie
    in one move without a staging copy.

    Making one is collective; closing it is not. Arrays over it keep its memory until they have gone.
    """

    _kind = "window"
    _RELEASE = "window_destroy"

    def __init__(self, comm: Communicator, size: int) -> None:
        """Makes a window of ``size`` bytes a rank, of the host or of the rank's GPU."""
        self._make(comm, "window_create", lambda: (_bytes(size),), 0)

    @classmethod
    def from_file(cls, comm: Communicator, descriptor: int, size: int) -> Window:
        """Makes a window of a memfd of at least ``size`` bytes, sealed against shrinking, on the host.
        The descriptor stays the caller's."""
        window = cls.__new__(cls)
        window._make(
            comm,
            "window_create_from_fd",
            lambda: (whole("descriptor", descriptor, bits=32), _bytes(size)),
            -1,
            0,
        )
        return window

    @classmethod
    def from_array(cls, comm: Communicator, array: Any) -> Window:
        """Makes a window of an array of the caller's, which must outlive the window on every rank; this
        rank's window keeps it.

        On a GPU it is memory of one allocation; on the host all ranks must be in this process.
        Memory of a GPU must outlive the communicator where ranks of several hosts have met a failure.
        """
        slot = Slot("window", comm._device, written=True)

        def memory_of() -> tuple[int, int]:
            if not slot.fill(array):
                raise OperandError("window: there is no array")
            return slot.at, math.prod(slot.shape) * slot.dtype.itemsize

        window = cls.__new__(cls)
        window._make(comm, "window_create_from_memory", memory_of, slot.address, 0)
        window._array = array
        return window

    def _make(self, comm: Communicator, create: str, arguments: Callable[[], tuple[int, ...]], *others: int) -> None:
        """Makes the window with arguments, or, if they are refused, has all ranks refuse it, with others."""
        self._comm = comm
        self._array: Any = None
        handle = ctypes.c_uint64()
        try:
            given = arguments()
        except Exception as e:
            comm._refuse(e, create, *others)
        comm._check(getattr(comm._lib, create)(comm._handle, *given, ctypes.addressof(handle)))
        super().__init__(comm._lib, handle.value, comm)
        info = _abi.WindowInfo()
        self._check(self._lib.window_get(self._handle, info))
        self.id: int = info.id
        """Its number, the same on every rank."""
        self.size: int = info.bytes
        """Bytes of each rank's segment."""

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return f"<weft.Window of {self.size} bytes a rank, rank {self._comm.rank} of {self._comm.ranks}{closed}>"

    def array(
        self,
        shape: Sequence[int],
        dtype: DTypeLike,
        *,
        offset: int = 0,
        rank: int | None = None,
        kind: str | None = None,
    ) -> Any:
        """An array over ``offset`` bytes and on of this rank's segment, or of another's.

        ``kind`` is "numpy" or "torch"; None is numpy on the host, if there is numpy, and PyTorch on GPUs.
        """
        t = dtype_of(dtype)
        size = math.prod(shape) * t.itemsize
        if offset < 0 or offset + size > self.size or offset % t.itemsize:
            raise InvalidError(f"window: {size} bytes of {t.name} at byte {offset} of {self.size}")
        self._open()
        at = ctypes.c_uint64()
        self._check(
            self._lib.window_peer(self._handle, self._comm.rank if rank is None else rank, ctypes.addressof(at))
        )
        if not at.value:
            raise InvalidError(f"window: rank {rank} was masked when the window was made, and has no part of it")
        return memory.view(
            kind or memory.default_kind(self._comm._device),
            at.value + offset,
            t,
            shape,
            self._comm._device,
            Lease(self, self._array),
        )
