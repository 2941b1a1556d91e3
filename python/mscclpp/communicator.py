"""MSCCL++'s Communicator: a communicator of Weft's whose pairs of ranks connect, and send each other memories."""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import weft
import weft.port
from weft._library import Library
from weft.limits import whole

from .channels import Connection, RegisteredMemory, Semaphore, misused
from .mail import Mail
from .types import EndpointConfig, Transport, TransportFlags

__all__ = ["Communicator", "Future"]

T = TypeVar("T")

_CHANNELS = 256  # between two ranks
_MAIL = 2  # of them

_KINDS = "a memory", "a connection", "a semaphore"
_MEMORY, _CONNECTION, _SEMAPHORE = range(3)

_END = struct.Struct("=BiI")  # kind, transport, number of a channel or 0


class Future(Generic[T]):
    """What another rank is to send. :meth:`get` waits for it, and for those before it of the same rank and tag."""

    def __init__(self, resolve: Callable[[], None], kind: int, make: Callable[[bytes], T]) -> None:
        self._resolve, self._kind, self._make = resolve, kind, make
        self._got: T | None = None
        self._error: Exception | None = None

    def get(self) -> T:
        while self._got is None:
            if self._error is not None:
                raise self._error
            self._resolve()
        return self._got

    def _take(self, message: bytes) -> None:
        try:
            if message[0] != self._kind:
                raise misused(f"{_KINDS[self._kind]} was to come, and the other rank has sent {_KINDS[message[0]]}")
            self._got = self._make(message)
        except Exception as e:
            self._error = e


class Meeting:
    """What a communicator's pairs of ranks share: a service for channels, and messages."""

    def __init__(self, comm: weft.Communicator) -> None:
        self.service = weft.port.Service(comm, channels=_CHANNELS)
        self.nothing = self.service.register(None)
        self.mail = Mail(comm, self.service)
        self.kind = "fabric" if self.service.rails else "memory"
        self._hosts = comm.hosts if comm.engine == "host" else tuple(range(comm.ranks))
        self._own = self._hosts[comm.rank]
        self._next: defaultdict[int, int] = defaultdict(lambda: _MAIL + 1)

    def maps(self, peer: int) -> bool:
        """Whether this rank and the peer map each other's windows."""
        return self._hosts[peer] == self._own

    def number(self, peer: int, channels: int) -> int:
        """The first of numbers for channels to a peer, which the lower rank of a pair draws."""
        first = self._next[peer]
        if first + channels - 1 > self.service.channels:
            raise misused(
                f"rank {peer}: there are {self.service.channels} channels to it; give one semaphore several memories"
            )
        self._next[peer] += channels
        return first

    def open(self, peer: int, number: int, kind: str = "") -> weft.port.Channel:
        return self.service.open(peer, number, self.nothing, kind=kind or self.kind)


class Communicator(weft.Communicator):
    """A communicator of Weft's with MSCCL++'s calls for pairs of ranks.

    The first of these calls is collective: all pairs of ranks connect then. ``connect``, ``send_memory`` and
    ``build_semaphore`` send at once, and what the peer sends is a :class:`Future`. The i-th that a rank sends to
    another by a tag is the i-th that the other receives by it.
    """

    def __new__(cls, bootstrap: Any, *_: Any) -> Communicator:  # noqa: PYI034
        """The communicator of a bootstrap, whose ranks have met."""
        if isinstance(bootstrap, Library):  # Weft makes one
            return super().__new__(cls)
        return bootstrap._met()  # type: ignore[no-any-return]

    def __init__(self, bootstrap: Any, *more: Any) -> None:
        if isinstance(bootstrap, Library):
            super().__init__(bootstrap, *more)
            self._met: Meeting | None = None
            self._awaited: defaultdict[tuple[int, int], deque[Future[Any]]] = defaultdict(deque)

    def register_memory(self, ptr: int, size: int, transports: Transport | TransportFlags) -> RegisteredMemory:
        """Memory of this rank at an address, which stays the caller's: the host's, also on GPUs, where it is pinned if
        kernels are to fill it."""
        ptr, size = whole("ptr", ptr), whole("size", size)
        if size < 0 or (size and not ptr):
            raise misused(f"register_memory: {size} bytes at {ptr:#x}")
        return RegisteredMemory._own(self, ptr, size, transports)

    def send_memory(self, memory: RegisteredMemory, remote_rank: int, tag: int = 0) -> None:
        """Tells a rank of a memory."""
        self._say(remote_rank, tag, bytes((_MEMORY,)) + memory.serialize())

    def recv_memory(self, remote_rank: int, tag: int = 0) -> Future[RegisteredMemory]:
        """The memory that a rank sends."""
        return self._await(remote_rank, tag, _MEMORY, lambda said: RegisteredMemory.deserialize(said[1:]))

    def connect(self, local_config: EndpointConfig | Transport, remote_rank: int, tag: int = 0) -> Future[Connection]:
        """A connection to another rank, which both make."""
        peer = remote_rank
        config = EndpointConfig(local_config) if isinstance(local_config, Transport) else local_config
        own = config.transport
        if peer == self.rank:
            raise misused("connect: this rank itself; copy within a rank")
        number = self._propose(peer, tag, _CONNECTION, own, 1)

        def made(said: bytes) -> Connection:
            _, theirs, proposed = _END.unpack(said)
            remote = Transport(theirs)
            if (Transport.CudaIpc in (own, remote)) and (own != remote or self.hosts[peer] != self.hosts[self.rank]):
                raise misused(
                    f"connect: {own.name} here, on host {self.hosts[self.rank]}, {remote.name} on rank {peer}, on host "
                    f"{self.hosts[peer]}: CudaIpc is within a host, on both ranks; use IB0 or Ethernet"
                )
            return Connection(self, peer, tag, own, remote, number or proposed)

        return self._await(peer, tag, _CONNECTION, made)

    def build_semaphore(self, connection: Connection, remote_rank: int, tag: int = 0) -> Future[Semaphore]:
        """A semaphore of a connection, which both ranks build."""
        if connection._comm is not self or connection._peer != remote_rank:
            raise misused(f"build_semaphore: the connection leads to rank {connection._peer}, not to {remote_rank}")
        number = self._propose(remote_rank, tag, _SEMAPHORE, connection.transport(), 2)
        return self._await(
            remote_rank, tag, _SEMAPHORE, lambda said: Semaphore(connection, number or _END.unpack(said)[2])
        )

    def remote_rank_of(self, connection: Connection) -> int:
        return connection._peer

    def tag_of(self, connection: Connection) -> int:
        return connection._tag

    # As older programs call them.

    def connect_on_setup(
        self, remote_rank: int, tag: int, local_config: EndpointConfig | Transport
    ) -> Future[Connection]:
        return self.connect(local_config, remote_rank, tag)

    def send_memory_on_setup(self, memory: RegisteredMemory, remote_rank: int, tag: int) -> None:
        self.send_memory(memory, remote_rank, tag)

    def recv_memory_on_setup(self, remote_rank: int, tag: int) -> Future[RegisteredMemory]:
        return self.recv_memory(remote_rank, tag)

    def setup(self) -> None:
        """Nothing: calls take effect by themselves."""

    # Messages.

    def _meeting(self) -> Meeting:
        if self._met is None:
            self._met = Meeting(self)
        return self._met

    def _propose(self, peer: int, tag: int, kind: int, transport: Transport, channels: int) -> int:
        """Tells a rank of an end; returns the number of the first of its channels, 0 if the peer draws it."""
        number = self._meeting().number(peer, channels) if self.rank < peer else 0
        self._say(peer, tag, _END.pack(kind, transport, number))
        return number

    def _say(self, peer: int, tag: int, message: bytes) -> None:
        self._meeting().mail.send(peer, 2 * tag + 1, message)

    def _await(self, peer: int, tag: int, kind: int, make: Callable[[bytes], T]) -> Future[T]:
        awaited = self._awaited[peer, tag]

        def resolve() -> None:
            message = self._meeting().mail.receive(peer, 2 * tag + 1)
            awaited.popleft()._take(message)

        made = Future(resolve, kind, make)
        awaited.append(made)
        return made
