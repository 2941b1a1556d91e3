"""How ranks meet: MSCCL++'s ``CommGroup`` over a communicator of Weft's."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import weft

from .types import ErrorCode

__all__ = ["CommGroup"]

_joining = threading.Lock()


class CommGroup:
    """The ranks of an mpi4py communicator, of a process group of PyTorch's, or those that know rank 0's address. On
    GPUs where PyTorch sees one. Making one is collective.

    ``interfaceIpPortTrio`` is "interface:ip:port" or "ip:port", with ``rank`` and ``size``. Ranks of several hosts
    have the same WEFT_SECRET then.
    """

    def __init__(
        self,
        mpi_comm: Any = None,
        torch_group: Any = None,
        interfaceIpPortTrio: str = "",  # noqa: N803
        rank: int | None = None,
        size: int | None = None,
    ) -> None:
        options = _engine()
        if interfaceIpPortTrio:
            if rank is None or size is None:
                raise RuntimeError("interfaceIpPortTrio needs rank and size")
            *interface, ip, port = interfaceIpPortTrio.rsplit(":", 2)
            with _environment(rank, size, f"{ip}:{port}", *interface):
                self.communicator = weft.Communicator.join(**options)
        elif mpi_comm is not None:
            self.communicator = weft.Communicator.from_mpi(mpi_comm, **options)
        elif torch_group is not None:
            self.communicator = weft.Communicator.from_process_group(torch_group, **options)
        else:
            raise RuntimeError("Either the interface or mpi_group need to be specified")
        self.my_rank = self.communicator.rank
        self.nranks = self.communicator.ranks
        self.nranks_per_node = self.communicator.local_ranks
        self.nranks_per_ipc_domain = self.ipc_domain_n_ranks = self.communicator.local_ranks
        self._group: weft.Group | None = None

    @property
    def bootstrap(self) -> CommGroup:
        """What ranks meet by: this has its ``barrier``."""
        return self

    def barrier(self) -> None:
        """Returns when every rank has entered it. Collective."""
        if self._group is None:
            self._group = weft.Group(self.communicator)
        self._group.barrier()
        self.communicator.wait()

    def close(self) -> None:
        """Leaves. Weft's own."""
        self.communicator.close()

    def __del__(self) -> None:
        if comm := self.__dict__.get("communicator"):
            with suppress(weft.WeftError):
                comm.close()

    def my_ib_device(self, local_rank: int) -> int:
        """The number of the network card that a rank of a host uses."""
        if not 0 <= local_rank < 8:
            raise AssertionError(f"local rank {local_rank}: there are cards 0 to 7")
        return local_rank

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "communicator":
            raise AttributeError(name)
        raise AttributeError(
            f"CommGroup.{name} ({ErrorCode.InvalidUsage.name}): Weft has the ranks' group and its barrier, and makes "
            f"channels and memory by itself; use weft.Group and weft.Window of CommGroup.communicator"
        )


def _engine() -> dict[str, Any]:
    """The rank's engine: PyTorch's current GPU, if a program has PyTorch and that sees one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return {"engine": "gpu", "gpu": torch.cuda.current_device()}
    return {}


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
