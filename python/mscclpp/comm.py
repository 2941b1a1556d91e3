"""MSCCL++'s ``CommGroup``: ranks that have met, and what programs make of their connections."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import weft
from weft.operands import Slot

from .bootstrap import TcpBootstrap, engine
from .channels import Connection, MemoryChannel, ProxyService, RegisteredMemory, Semaphore, misused
from .communicator import Communicator
from .types import EndpointConfig, ErrorCode, Transport, TransportFlags

if TYPE_CHECKING:
    import numpy as np

__all__ = ["CommGroup"]

Connections = dict[int, Connection]


class CommGroup:
    """The ranks of an mpi4py communicator, of a process group of PyTorch's, or those that know rank 0's address. On
    GPUs where PyTorch sees one. Making one is collective.

    ``interfaceIpPortTrio`` is "interface:ip:port" or "ip:port", with ``rank`` and ``size``. Ranks of several hosts
    have the same WEFT_SECRET then.
    """

    communicator: Communicator

    def __init__(
        self,
        mpi_comm: Any = None,
        torch_group: Any = None,
        interfaceIpPortTrio: str = "",  # noqa: N803
        rank: int | None = None,
        size: int | None = None,
    ) -> None:
        if interfaceIpPortTrio:
            if rank is None or size is None:
                raise RuntimeError("interfaceIpPortTrio needs rank and size")
            self.bootstrap = TcpBootstrap.create(rank, size)
            self.bootstrap.initialize(interfaceIpPortTrio, -1)
            self.communicator = self.bootstrap._met()
        elif mpi_comm is not None:
            self._use(Communicator.from_mpi(mpi_comm, **engine()))
        elif torch_group is not None:
            self._use(Communicator.from_process_group(torch_group, **engine()))
        else:
            raise RuntimeError("Either the interface or mpi_group need to be specified")
        self.my_rank = self.communicator.rank
        self.nranks = self.communicator.ranks
        self.nranks_per_node = self.communicator.local_ranks
        self.nranks_per_ipc_domain = self.ipc_domain_n_ranks = self.communicator.local_ranks

    def _use(self, comm: Any) -> None:
        self.communicator, self.bootstrap = comm, TcpBootstrap._of(comm)

    def barrier(self) -> None:
        """Returns when every rank has entered it. Collective."""
        self.bootstrap.barrier()

    def send(self, tensor: np.ndarray[Any, Any], peer: int, tag: int) -> None:
        """Sends an array's bytes to a rank, by a tag."""
        self.bootstrap.send(tensor.tobytes(), peer, tag)

    def recv(self, tensor: np.ndarray[Any, Any], peer: int, tag: int) -> None:
        """Receives bytes of a rank, by a tag, into an array."""
        came = bytearray()
        self.bootstrap.recv(came, peer, tag)
        if len(came) > tensor.nbytes or not tensor.flags.c_contiguous:
            raise misused(f"recv: {len(came)} bytes came of rank {peer}, for a contiguous array of {tensor.nbytes}")
        memoryview(tensor).cast("B")[: len(came)] = came

    def close(self) -> None:
        """Leaves. Weft's own."""
        self.communicator.close()

    def __del__(self) -> None:
        if comm := self.__dict__.get("communicator"):
            with suppress(weft.WeftError):
                comm.close()

    def my_ib_device(self, local_rank: int) -> Transport:
        """The transport of the network card that a rank of a host uses."""
        if not 0 <= local_rank < 8:
            raise AssertionError(f"local rank {local_rank}: there are cards 0 to 7")
        return Transport(Transport.IB0 + local_rank)

    # Connections and channels. A call is made by both ranks of each connection.

    def make_connection(
        self,
        all_ranks: list[int],
        endpoints: EndpointConfig | Transport | dict[int, EndpointConfig] | dict[int, Transport],
        use_switch: bool = False,
    ) -> Connections:
        """Connections to ranks."""
        if use_switch:
            raise misused("make_connection: no switch channels are to be had; leave use_switch out, or use weft.Group")
        awaited = {
            rank: self.communicator.connect(endpoints[rank] if isinstance(endpoints, dict) else endpoints, rank)
            for rank in all_ranks
        }
        return {rank: future.get() for rank, future in awaited.items()}

    def register_local_memory(self, tensor: Any, connections: Connections) -> RegisteredMemory:
        """The memory of an array."""
        transports = TransportFlags()
        for connection in connections.values():
            transports |= connection.transport()
        slot = Slot("tensor", -1, written=True)
        size = math.prod(slot.shape) * slot.dtype.itemsize if slot.fill(tensor) else 0
        made = self.communicator.register_memory(slot.at if size else 0, size, transports)
        made._held = tensor, slot
        return made

    def register_tensor_with_connections(self, tensor: Any, connections: Connections) -> dict[int, RegisteredMemory]:
        """The memory of an array of this rank, and of those that the peers pass."""
        return self._exchanged(self.register_local_memory(tensor, connections), connections)

    def _exchanged(self, memory: RegisteredMemory, connections: Connections) -> dict[int, RegisteredMemory]:
        for rank in connections:
            self.communicator.send_memory(memory, rank)
        awaited = {rank: self.communicator.recv_memory(rank) for rank in connections}
        return {self.my_rank: memory} | {rank: future.get() for rank, future in awaited.items()}

    def make_semaphores(self, connections: Connections) -> dict[int, Semaphore]:
        """A semaphore of each connection."""
        awaited = {rank: self.communicator.build_semaphore(to, rank) for rank, to in connections.items()}
        return {rank: future.get() for rank, future in awaited.items()}

    def make_memory_channels(self, tensor: Any, connections: Connections) -> dict[int, MemoryChannel]:
        """Memory channels from an array to the peers' ones."""
        return self.make_memory_channels_with_scratch(
            tensor, self.register_local_memory(tensor, connections), connections
        )

    def make_memory_channels_with_scratch(
        self,
        tensor: Any,
        registeredScratchBuffer: RegisteredMemory,  # noqa: N803
        connections: Connections,
    ) -> dict[int, MemoryChannel]:
        """Memory channels from an array to the peers' scratch memory."""
        semaphores = self.make_semaphores(connections)
        memories = self._exchanged(registeredScratchBuffer, connections)
        own = self.register_local_memory(tensor, connections)
        return {
            rank: MemoryChannel(semaphores[rank], memories[rank], own, registeredScratchBuffer.data())
            for rank in connections
        }

    def make_port_channels(
        self, proxy_service: ProxyService, tensor: Any, connections: Connections
    ) -> dict[int, weft.port.Channel]:
        """Port channels from an array to the peers' ones."""
        own = self.register_local_memory(tensor, connections)
        return self._port_channels(proxy_service, own, own, connections)

    def make_port_channels_with_scratch(
        self,
        proxy_service: ProxyService,
        tensor: Any,
        registeredScratchBuffer: RegisteredMemory,  # noqa: N803
        connections: Connections,
    ) -> dict[int, weft.port.Channel]:
        """Port channels from an array to the peers' scratch memory."""
        own = self.register_local_memory(tensor, connections)
        return self._port_channels(proxy_service, own, registeredScratchBuffer, connections)

    def _port_channels(
        self, proxy: ProxyService, own: RegisteredMemory, scratch: RegisteredMemory, connections: Connections
    ) -> dict[int, weft.port.Channel]:
        semaphores = self.make_semaphores(connections)
        memories = self._exchanged(scratch, connections)
        src = proxy.add_memory(own)
        return {
            rank: proxy.port_channel(proxy.add_semaphore(semaphores[rank]), proxy.add_memory(memories[rank]), src)
            for rank in connections
        }

    def register_semaphore_with_proxy(
        self, proxy_service: ProxyService, connections: Connections
    ) -> dict[int, weft.port.Channel]:
        """Channels for signals alone."""
        return {
            rank: proxy_service.base_port_channel(proxy_service.add_semaphore(semaphore))
            for rank, semaphore in self.make_semaphores(connections).items()
        }

    def register_memory_with_proxy(
        self, proxy_service: ProxyService, tensor: Any, connections: Connections
    ) -> dict[int, int]:
        """The numbers of this rank's memory and of the peers' ones."""
        memories = self.register_tensor_with_connections(tensor, connections)
        return {rank: proxy_service.add_memory(memory) for rank, memory in memories.items()}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "communicator":
            raise AttributeError(name)
        raise AttributeError(
            f"CommGroup.{name} ({ErrorCode.InvalidUsage.name}): this package has connections, semaphores, memories and "
            f"channels; use weft.Group and weft.Window of CommGroup.communicator for the rest"
        )
