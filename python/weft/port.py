"""Channels between two ranks, as MSCCL++ has them: they put bytes into each other's memory and count each other's
signals, by memory that both map or through libfabric, also between hosts.

::

    with weft.join() as comm, weft.port.Service(comm) as service:
        memory = service.register(array)  # collective
        channel = service.connect(1 - comm.rank, memory)  # on both ranks
        channel.put_with_signal(to, start, size)
        channel.wait()
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _abi
from ._abi import PortKind
from .communicator import Communicator
from .errors import InvalidError
from .limits import whole
from .operands import Slot
from .own import strings
from .resources import Made, Resource

__all__ = ["Channel", "DeviceHandle", "Memory", "PortKind", "Service"]


class Service(Made):
    """Makes channels between the ranks of a communicator. Making one is collective.

    - ``provider``: libfabric's, by name; None is the first that the machine has and Weft takes.
    - ``sources``: addresses of network interfaces, each of which is a rail; none: one rail, by the interface
      by which ranks of different hosts have met, ``WEFT_INTERFACE`` if that is set.
    - ``channels``: the most between two ranks (64); they are never given up.
    - ``depth``: of the ring that kernels and threads push to, a power of two (512).
    - ``spread``: bytes from which a channel that spreads divides a put (512 KiB).
    - ``spin``: seconds for which what moves the network polls before it sleeps (200 us).

    Without libfabric there are memory channels, where all ranks are on one host.
    """

    _kind = "port service"
    _RELEASE = "port_destroy"

    def __init__(
        self,
        comm: Communicator,
        *,
        provider: str | None = None,
        sources: Sequence[str] = (),
        channels: int = 0,
        depth: int = 0,
        spread: int = 0,
        spin: float = 0,
    ) -> None:
        options = _abi.PortOptions()
        try:
            listed = strings(sources)
            options.provider = provider.encode() if provider else None
            options.sources = ctypes.addressof(listed)
            options.channels, options.depth = whole("channels", channels), whole("depth", depth)
            options.spread, options.spin_us = whole("spread", spread), math.ceil(spin * 1e6)
        except Exception as e:
            comm._refuse(e, "port_create", None)
        super().__init__(comm, "port_create", options)
        self._comm = comm
        info = _abi.PortInfo()
        self._check(self._lib.port_get(self._handle, info))
        self.provider: str = (info.provider or b"").decode()
        """Libfabric's provider: "" where there is none."""
        self.rails: int = info.rails
        """The number of rails: 0 where there is no libfabric."""
        self.channels: int = info.channels
        """The most channels between two ranks."""

    def register(self, array: Any) -> Memory:
        """Makes an array of each rank known to all, of any length; None is none. Collective.

        It is contiguous memory of the host, also on GPUs, where it is pinned if kernels are to fill it. An array of a
        :class:`weft.Window` is mapped by the peers of the host. The memory keeps the array.
        """
        return self._made("port_memory_create", array)

    def expose(self, array: Any) -> Memory:
        """Makes an array of this rank alone, of which the others learn by :meth:`Memory.card`. What holds of the array
        of :meth:`register` holds of it."""
        return self._made("port_memory_expose", array)

    def _made(self, create: str, array: Any) -> Memory:
        self._open()
        slot = Slot("memory", -1, written=True)
        try:
            size = math.prod(slot.shape) * slot.dtype.itemsize if slot.fill(array) else 0
        except Exception as e:
            if create == "port_memory_create":
                self._refuse(e, create, None, 0)
            raise
        return self._memory(create, slot.at if size else None, size, (array, slot))

    def _memory(self, create: str, at: int | None, size: int, held: Any) -> Memory:
        number = ctypes.c_uint64()
        self._check(getattr(self._lib, create)(self._handle, at, size, ctypes.addressof(number)))
        return Memory(self, number.value, size, held)

    def adopt(self, card: bytes) -> Memory:
        """Makes a memory of another rank, a destination of channels to it, by the card that the rank has made of it."""
        self._open()
        text = ctypes.create_string_buffer(card, len(card))
        number = ctypes.c_uint64()
        self._check(
            self._lib.port_memory_import(
                self._handle, ctypes.addressof(text) if card else None, len(card), ctypes.addressof(number)
            )
        )
        return Memory(self, number.value, 0, None)

    def connect(
        self,
        peer: int,
        dst: Memory,
        src: Memory | None = None,
        *,
        kind: PortKind | str = PortKind.auto,
        spread: bool = False,
    ) -> Channel:
        """Makes a channel to a peer, from this rank's part of ``src`` (``dst`` if None) to the peer's of ``dst``. Both
        ranks call it, and make their channels in the same order.

        ``kind`` is "memory", "fabric", or "auto": memory where both map what is put into. ``spread`` divides large
        puts among all rails; such a channel has no adds.
        """
        src = dst if src is None else src
        self._open()
        options = _abi.PortChannelOptions()
        try:
            options.kind = _kind(kind)
        except InvalidError as e:
            self._refuse(e, "port_connect", whole("peer", peer, bits=32), options, dst._handle, src._handle)
        options.spread = int(spread)
        number = ctypes.c_uint64()
        self._check(
            self._lib.port_connect(
                self._handle,
                whole("peer", peer, bits=32),
                options,
                dst._handle,
                src._handle,
                ctypes.addressof(number),
            )
        )
        return Channel(self, number.value, dst, src)

    def open(
        self,
        peer: int,
        number: int,
        dst: Memory,
        src: Memory | None = None,
        *,
        kind: PortKind | str,
        spread: bool = False,
    ) -> Channel:
        """Makes the channel of a number, from 1 to :attr:`channels`, to a peer to which a channel of kind "fabric" was
        connected before. Both ranks open the number that they have agreed on, of the same kind, and neither waits.
        :meth:`connect` takes the lowest number that is free."""
        src = dst if src is None else src
        self._open()
        options = _abi.PortChannelOptions(kind=_kind(kind), spread=int(spread))
        made = ctypes.c_uint64()
        self._check(
            self._lib.port_open(
                self._handle,
                whole("peer", peer, bits=32),
                whole("number", number, bits=32),
                options,
                dst._handle,
                src._handle,
                ctypes.addressof(made),
            )
        )
        return Channel(self, made.value, dst, src)


def _kind(kind: PortKind | str) -> int:
    try:
        return int(PortKind[kind] if isinstance(kind, str) else PortKind(kind))
    except (KeyError, ValueError):
        raise InvalidError(f"kind {kind!r}, want one of {', '.join(PortKind.__members__)}") from None


class Memory(Resource):
    """A memory of each rank, from and into which channels put: see :meth:`Service.register`."""

    _kind = "port memory"
    _RELEASE = "port_memory_destroy"

    def __init__(self, service: Service, handle: int, size: int, held: Any) -> None:
        super().__init__(service._lib, handle, service)
        self._held = held
        self.size = size
        """Bytes of this rank's part."""

    def card(self) -> bytes:
        """What another rank adopts to put into this rank's part, until this is closed."""
        self._open()
        length = ctypes.c_size_t(_CARD)
        while True:
            text = ctypes.create_string_buffer(length.value)
            room = length.value
            status = self._lib.port_memory_card(self._handle, ctypes.addressof(text), ctypes.addressof(length))
            if not status:
                return text.raw[: length.value]
            if length.value <= room:
                raise self._failure(status)

    def size_of(self, rank: int) -> int:
        """Bytes of a rank's part."""
        self._open()
        size = ctypes.c_uint64()
        self._check(self._lib.port_memory_size(self._handle, whole("rank", rank, bits=32), ctypes.addressof(size)))
        return size.value


class DeviceHandle(NamedTuple):
    """A channel as kernels take it."""

    raw: bytes
    """The ``PortChannel`` of port.cuh."""


class Channel(Resource):
    """A way to a peer's memory, and signals. Any thread may call its methods at any time.

    What is asked of it takes effect in that order: who has waited for a signal sees all that was put and added before.
    Offsets and sizes are bytes.
    """

    _kind = "port channel"
    _RELEASE = "port_channel_destroy"

    def __init__(self, service: Service, handle: int, dst: Memory, src: Memory) -> None:
        super().__init__(service._lib, handle, service)
        self._service, self._dst, self._src = service, dst, src
        info = _abi.PortChannelInfo()
        self._check(self._lib.port_channel_get(self._handle, info))
        self.peer: int = info.peer
        """The peer's rank."""
        self.kind = PortKind(info.kind)
        """What carries it: "memory" or "fabric", as a :class:`PortKind`."""

    def using(self, dst: Memory, src: Memory | None = None) -> Channel:
        """The same channel, with the same signals and the same order, between other memories."""
        self._open()
        src, number = dst if src is None else src, ctypes.c_uint64()
        self._check(self._lib.port_channel_with(self._handle, dst._handle, src._handle, ctypes.addressof(number)))
        return Channel(self._service, number.value, dst, src)

    def put(self, dst_offset: int, src_offset: int, size: int) -> None:
        """Writes bytes of this rank's memory into the peer's. They must stay as they are until a flush, and the peer
        sees them after the next signal."""
        self._check(self._lib.port_put(self._handle, *_places(dst_offset, src_offset, size)))

    def signal(self) -> None:
        """Raises the peer's count of signals by one, behind all that was asked for before."""
        self._check(self._lib.port_signal(self._handle))

    def put_with_signal(self, dst_offset: int, src_offset: int, size: int) -> None:
        """A put and a signal, in one request."""
        self._check(self._lib.port_put_with_signal(self._handle, *_places(dst_offset, src_offset, size)))

    def put_with_signal_and_flush(self, dst_offset: int, src_offset: int, size: int) -> None:
        """A put, a signal and a flush, in one request."""
        self._check(self._lib.port_put_with_signal_and_flush(self._handle, *_places(dst_offset, src_offset, size)))

    def flush(self) -> None:
        """Waits until the sources of what was put may change, and adds have taken effect. It fails if the peer leaves
        before that."""
        self._check(self._lib.port_flush(self._handle))

    def atomic_add(self, dst_offset: int, value: int) -> None:
        """Adds to a 64-bit word of the peer's memory, behind all that was asked for before; sums wrap. The value is one
        of a word with a sign or without."""
        (at,) = _places(dst_offset)
        self._check(self._lib.port_atomic_add(self._handle, at, whole("value", value, below=64) % (1 << 64)))

    def poll(self) -> bool:
        """Consumes a signal of the peer, if there is one."""
        consumed = ctypes.c_int()
        self._check(self._lib.port_poll(self._handle, ctypes.addressof(consumed)))
        return bool(consumed.value)

    def wait(self) -> None:
        """Waits for a signal of the peer, and consumes it. If it raises, it has consumed none."""
        self._check(self._lib.port_wait(self._handle))

    def check(self) -> None:
        """Raises why nothing can be asked of the channel, if there is a reason."""
        self._check(self._lib.port_channel_error(self._handle))

    def device_handle(self) -> DeviceHandle:
        """The channel as kernels of this rank's GPU take it. Signals are consumed either by the host or by kernels."""
        kernel = ctypes.create_string_buffer(_abi.PORT_KERNEL_BYTES)
        self._check(self._lib.port_kernel(self._handle, kernel, len(kernel)))
        return DeviceHandle(kernel.raw)


_CARD = 512  # bytes, which do for a few rails


def _places(*numbers: int) -> tuple[int, ...]:
    """Offsets and sizes as C takes them."""
    return tuple(whole("an offset or a size", n, least=0) for n in numbers)
