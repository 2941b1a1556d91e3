"""Connections, memories, semaphores and channels of two ranks, by MSCCL++'s names over ``weft.port``."""

from __future__ import annotations

import ctypes
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import weft
import weft.port

from ._mscclpp import Error
from .types import ErrorCode, Transport, TransportFlags

if TYPE_CHECKING:
    from .communicator import Communicator

__all__ = [
    "Connection",
    "Host2DeviceSemaphore",
    "Host2HostSemaphore",
    "MemoryChannel",
    "PortChannel",
    "ProxyService",
    "RegisteredMemory",
    "Semaphore",
    "misused",
]

PortChannel = weft.port.Channel
"""A channel of a :class:`ProxyService`. Its ``device_handle().raw`` is the struct ``PortChannel`` of port.cuh, and its
methods are the same calls for the host."""

_MEMORY = struct.Struct("=4sIQ")  # mark, rank, bytes
_MARK = b"WFM1"

_WORD = ctypes.c_uint64


def misused(text: str) -> Error:
    return Error(ErrorCode.InvalidUsage, text)


class RegisteredMemory:
    """Memory of a rank: this one's, which stays the caller's, or that which another one has sent."""

    def __init__(self) -> None:
        self._rank, self._at, self._size, self._card = -1, 0, 0, b""
        self._transports = TransportFlags()
        self._comm: Communicator | None = None  # of this rank's
        self._memory: weft.port.Memory | None = None
        self._held: Any = None  # what owns it, where that is known

    @classmethod
    def _own(
        cls, comm: Communicator, at: int, size: int, transports: Transport | TransportFlags | None
    ) -> RegisteredMemory:
        made = cls()
        made._comm, made._rank, made._at, made._size = comm, comm.rank, at, size
        made._transports = TransportFlags(transports)
        return made

    def data(self) -> int:
        """Where it is; 0 for another rank's."""
        return self._at

    def size(self) -> int:
        """Its bytes."""
        return self._size

    def transports(self) -> TransportFlags:
        """What it was registered for."""
        return self._transports

    def serialize(self) -> bytes:
        """What other ranks make it of."""
        if self._comm is not None:
            self._card = self._of(self._comm).card()
        return _MEMORY.pack(_MARK, max(self._rank, 0), self._size) + self._card

    @staticmethod
    def deserialize(data: bytes) -> RegisteredMemory:
        data = bytes(data)
        if len(data) <= _MEMORY.size or data[:4] != _MARK:
            raise misused(f"deserialize: {len(data)} bytes that are no memory of this version of Weft")
        made = RegisteredMemory()
        _, made._rank, made._size = _MEMORY.unpack_from(data)
        made._card = data[_MEMORY.size :]
        return made

    def _of(self, comm: Communicator) -> weft.port.Memory:
        """The memory as the communicator's service has it."""
        if self._memory is None:
            service = comm._meeting().service
            if self._comm is None:
                self._memory = service.adopt(self._card)
            else:
                held = (ctypes.c_ubyte * self._size).from_address(self._at) if self._size else None
                self._memory = service.expose(held)
        return self._memory


class Connection:
    """A way to another rank, by which the host writes. Kernels take channels."""

    def __init__(
        self, comm: Communicator, peer: int, tag: int, transport: Transport, remote: Transport, number: int
    ) -> None:
        self._comm, self._peer, self._tag, self._transport, self._remote = comm, peer, tag, transport, remote
        self._base = comm._meeting().open(peer, number)

    def write(
        self,
        dst: RegisteredMemory,
        dstOffset: int,  # noqa: N803
        src: RegisteredMemory,
        srcOffset: int,  # noqa: N803
        size: int,
    ) -> None:
        """Writes bytes of this rank's memory into the peer's. They must stay as they are until :meth:`flush`."""
        self._between(dst, src).put(dstOffset, srcOffset, size)

    def update_and_sync(self, dst: RegisteredMemory, dst_offset: int, src: int, new_value: int) -> None:
        """Gives a word of this rank's, at an address, a value, and adds to a word of the peer's what that word has
        risen by, behind what was written before."""
        word = _WORD.from_address(src)
        by, word.value = new_value - word.value, new_value
        self._between(dst, None).atomic_add(dst_offset, by % (1 << 64))

    def flush(self, timeout_usec: int = 30_000_000) -> None:
        """Waits until what was written has left this rank's memory; a negative time is the communicator's deadline."""
        if timeout_usec < 0:
            self._base.flush()
            return
        try:
            with weft.timeout(timeout_usec / 1e6):
                self._base.flush()
        except weft.DeadlineError as e:
            raise Error(ErrorCode.Timeout, str(e)) from e

    def transport(self) -> Transport:
        return self._transport

    def remote_transport(self) -> Transport:
        return self._remote

    def get_max_write_queue_size(self) -> int:
        """The ring has so many places; what pushes to it waits for one."""
        return 512

    def _between(self, dst: RegisteredMemory, src: RegisteredMemory | None) -> weft.port.Channel:
        to = dst._of(self._comm)
        return self._base.using(to, self._comm._meeting().nothing if src is None else src._of(self._comm))


class Semaphore:
    """Signals between two ranks, which a channel consumes."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        comm, peer = connection._comm, connection._peer
        meeting = comm._meeting()
        self._port = meeting.open(peer, number)
        self._mapped: weft.port.Channel | None = None
        if meeting.maps(peer):  # memory channels count for themselves
            self._mapped = meeting.open(peer, number + 1, "memory") if meeting.service.rails else self._port

    def connection(self) -> Connection:
        return self._connection


class _Signals:
    """A semaphore by itself."""

    def __init__(self, semaphore: Any, connection: Connection | None = None) -> None:
        if connection is not None:  # of a communicator, and collective between the two
            semaphore = connection._comm.build_semaphore(connection, connection._peer, connection._tag).get()
        self._semaphore: Semaphore = semaphore

    def connection(self) -> Connection:
        return self._semaphore.connection()

    def signal(self) -> None:
        """Raises the peer's count by one."""
        self._semaphore._port.signal()


class Host2HostSemaphore(_Signals):
    """Signals between hosts' processors."""

    def poll(self) -> bool:
        """Consumes a signal, if there is one."""
        return self._semaphore._port.poll()

    def wait(self, max_spin_count: int = 10_000_000) -> None:
        """Waits for a signal, at most until the communicator's deadline."""
        self._semaphore._port.wait()


class Host2DeviceSemaphore(_Signals):
    """Signals of the host to kernels, which take them by a port channel of the semaphore."""

    def device_handle(self) -> Any:
        raise misused("Host2DeviceSemaphore.device_handle: kernels wait by a channel: pass ProxyService.port_channel's")


class MemoryChannel:
    """A channel that copies into memory which both ranks map: that of a ``weft.Window``, on one host. Its methods are
    those of a port channel, for the host."""

    def __init__(
        self,
        semaphore: Semaphore,
        dst: RegisteredMemory,
        src: RegisteredMemory,
        packet_buffer: int = 0,
    ) -> None:
        comm = semaphore._connection._comm
        if semaphore._mapped is None:
            raise misused(
                "MemoryChannel: it is of ranks on one host, which have joined on the host; between other ranks use a "
                "port channel, and in kernels weft.cuh's channels of a group"
            )
        self._channel = semaphore._mapped.using(dst._of(comm), src._of(comm))

    def device_handle(self) -> Any:
        raise misused(
            "MemoryChannel.device_handle: kernels write to peers of a host by weft.cuh's channels of a group: see "
            "weft.OwnAlgorithm"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._channel, name)


class ProxyService:
    """Numbers semaphores and memories, of which it makes channels. What moves bytes is the communicator's, and needs
    neither start nor stop."""

    def __init__(self, fifo_size: int = 512) -> None:
        if fifo_size <= 0 or fifo_size & (fifo_size - 1):
            raise misused(f"fifo_size is {fifo_size}, want a power of two")
        self._semaphores: list[Semaphore] = []
        self._memories: list[RegisteredMemory] = []

    def start_proxy(self, blocking: bool = False) -> None:
        """Nothing: it runs."""

    def stop_proxy(self) -> None:
        """Waits until what the host has pushed has left this rank's memories."""
        for semaphore in self._semaphores:
            if not semaphore._connection._comm.closed:
                with suppress(weft.LeftError):  # it has read what it wanted
                    semaphore._port.flush()

    def build_and_add_semaphore(self, comm: Communicator, connection: Connection) -> int:
        """Builds a semaphore of a connection, on both ranks, and numbers it."""
        return self.add_semaphore(comm.build_semaphore(connection, connection._peer, connection._tag).get())

    def add_semaphore(self, semaphore: Any) -> int:
        """Numbers a semaphore."""
        self._semaphores.append(semaphore._semaphore if isinstance(semaphore, _Signals) else semaphore)
        return len(self._semaphores) - 1

    def add_memory(self, memory: RegisteredMemory) -> int:
        """Numbers a memory, of this rank or another."""
        self._memories.append(memory)
        return len(self._memories) - 1

    def semaphore(self, id: int) -> Host2DeviceSemaphore:
        return Host2DeviceSemaphore(self._semaphore(id))

    def base_port_channel(self, id: int) -> weft.port.Channel:
        """The channel of a semaphore, for signals alone."""
        base = self._semaphore(id)._port
        return base.using(base._dst, base._src)

    def port_channel(self, id: int, dst: int, src: int) -> weft.port.Channel:
        """The channel of a semaphore between two memories, by their numbers."""
        semaphore = self._semaphore(id)
        comm = semaphore._connection._comm
        return semaphore._port.using(self._memory(dst)._of(comm), self._memory(src)._of(comm))

    def _semaphore(self, id: int) -> Semaphore:
        if not 0 <= id < len(self._semaphores):
            raise misused(f"semaphore {id}, and {len(self._semaphores)} were added")
        return self._semaphores[id]

    def _memory(self, id: int) -> RegisteredMemory:
        if not 0 <= id < len(self._memories):
            raise misused(f"memory {id}, and {len(self._memories)} were added")
        return self._memories[id]
