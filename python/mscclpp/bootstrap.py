"""How ranks meet: MSCCL++'s ``TcpBootstrap`` over a communicator of Weft's."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import weft

from .channels import misused
from .communicator import Communicator

__all__ = ["TcpBootstrap", "UniqueId"]

_joining = threading.Lock()


class UniqueId:
    """What ranks of a bootstrap share. It may be pickled, and has a secret in it."""

    def __init__(self, text: str = "") -> None:
        self._text = text


class TcpBootstrap:
    """The ranks that are to meet by an id or an address, with a barrier and messages of bytes."""

    def __init__(self, rank: int, nRanks: int) -> None:  # noqa: N803
        self._rank, self._ranks = rank, nRanks
        self._communicator: Communicator | None = None
        self._id: UniqueId | None = None
        self._group: weft.Group | None = None

    @classmethod
    def create(cls, rank: int, nRanks: int) -> TcpBootstrap:  # noqa: N803
        """A bootstrap of so many ranks."""
        return cls(rank, nRanks)

    @classmethod
    def _of(cls, comm: Communicator) -> TcpBootstrap:
        """That of ranks which have joined."""
        made = cls(comm.rank, comm.ranks)
        made._communicator = comm
        return made

    @staticmethod
    def create_unique_id() -> UniqueId:
        """An id, which rank 0 makes in its process and brings to the others."""
        return UniqueId(str(weft.UniqueId.create()))

    def get_unique_id(self) -> UniqueId:
        """The id by which the ranks have met."""
        if self._id is None:
            raise misused("get_unique_id: the ranks have not met by one; initialize takes what create_unique_id gives")
        return self._id

    def initialize(self, unique_id: UniqueId | str, timeout_sec: float = 30) -> None:
        """Joins the ranks of an id, or those that know rank 0's address, "ip:port" or "interface:ip:port". Collective.

        Ranks of several hosts that meet by an address have the same WEFT_SECRET.
        """
        if self._communicator is not None:
            raise misused("initialize: the ranks have met; make another bootstrap")
        if isinstance(unique_id, UniqueId):
            self._id = unique_id
            with _bounded(timeout_sec):
                self._communicator = Communicator.from_unique_id(  # type: ignore[assignment]
                    unique_id._text, self._rank, self._ranks, **engine()
                )
            return
        *interface, ip, port = unique_id.rsplit(":", 2)
        with _environment(self._rank, self._ranks, f"{ip}:{port}", *interface), _bounded(timeout_sec):
            self._communicator = Communicator.join(**engine())  # type: ignore[assignment]

    def get_rank(self) -> int:
        return self._rank

    def get_n_ranks(self) -> int:
        return self._ranks

    def get_n_ranks_per_node(self) -> int:
        return self._met().local_ranks

    def get_n_ranks_per_ipc_domain(self) -> int:
        return self._met().local_ranks

    def barrier(self) -> None:
        """Returns when every rank has entered it. Collective."""
        comm = self._met()
        if self._group is None:
            self._group = weft.Group(comm)
        self._group.barrier()
        comm.wait()

    def send(self, data: Any, *place: int) -> None:
        """Sends bytes to a rank, by a tag: ``send(bytes, peer, tag)`` or ``send(address, size, peer, tag)``."""
        if isinstance(data, int):
            size, peer, tag = place
            data = ctypes.string_at(data, size)
        else:
            peer, tag = place
        self._met()._meeting().mail.send(peer, 2 * tag, bytes(data))

    def recv(self, data: Any, *place: int) -> None:
        """Receives bytes of a rank, by a tag: ``recv(bytearray, peer, tag)``, which gets as long as what comes, or
        ``recv(address, size, peer, tag)``."""
        at, size = (data, place[0]) if isinstance(data, int) else (0, -1)
        peer, tag = place[-2:]
        came = self._met()._meeting().mail.receive(peer, 2 * tag)
        if not at:
            data[:] = came
            return
        if len(came) > size:
            raise misused(f"recv: {len(came)} bytes came of rank {peer}, and there is room for {size}")
        ctypes.memmove(at, came, len(came))

    def _met(self) -> Communicator:
        if self._communicator is None:
            raise misused("the ranks of this bootstrap have not met: call initialize")
        return self._communicator


def engine() -> dict[str, Any]:
    """The rank's engine: PyTorch's current GPU, if a program has PyTorch and that sees one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return {"engine": "gpu", "gpu": torch.cuda.current_device()}
    return {}


@contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    if seconds < 0:
        yield
        return
    with weft.timeout(seconds):
        yield


@contextmanager
def _environment(rank: int, size: int, address: str, interface: str = "") -> Iterator[None]:
    """Says where rank 0 is to what joins by the environment."""
    said = {"WEFT_RANK": str(rank), "WEFT_SIZE": str(size), "WEFT_ADDRESS": address}
    if interface:
        said["WEFT_INTERFACE"] = interface
    if not _joining.acquire(blocking=False):
        raise RuntimeError(
            "another rank of this process is joining by its address: give such ranks a weft.UniqueId, as "
            "weft.Communicator.from_unique_id takes it, or make each a process"
        )
    try:
        before = {name: os.environ.get(name) for name in said}
        os.environ.update(said)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
    finally:
        _joining.release()
