"""Messages between two ranks, which need no other rank: a message is sent when there is room, and kept by its tag until
it is received."""

from __future__ import annotations

import struct
from collections import defaultdict, deque

import weft
import weft.port

__all__ = ["Mail"]

_SLOT = 4096  # bytes of a piece of a message
_SLOTS = 16  # of a direction, each of which the receiver gives back

_MESSAGE = struct.Struct("=qQ")  # tag, bytes


class Mail:
    """The messages of a rank. Making one is collective: all pairs of ranks are connected then.

    Each pair has two channels: signals of the first count pieces that came, those of the second the slots given back.
    """

    def __init__(self, comm: weft.Communicator, service: weft.port.Service) -> None:
        import numpy as np

        ranks, self.rank = comm.ranks, comm.rank
        near = comm.engine == "host" and comm.local_ranks == ranks  # then windows do without libfabric
        shape = 2, ranks, _SLOTS, _SLOT
        size = 2 * ranks * _SLOTS * _SLOT
        self._window = weft.Window(comm, size) if near else None
        flat = np.zeros(size, np.uint8) if self._window is None else self._window.array((size,), "uint8")
        self._in, self._out = flat.reshape(shape)
        memory = service.register(flat)
        self._pieces: dict[int, weft.port.Channel] = {}
        self._returns: dict[int, weft.port.Channel] = {}
        kind = "fabric" if service.rails else "auto"
        for a in range(ranks):  # in one order on all ranks, so that none waits for another in a circle
            for b in range(a):
                if self.rank in (a, b):
                    peer = a + b - self.rank
                    self._pieces[peer] = service.connect(peer, memory, kind=kind)
                    self._returns[peer] = service.connect(peer, memory, kind=kind)
        self._sent: defaultdict[int, int] = defaultdict(int)
        self._free: defaultdict[int, int] = defaultdict(lambda: _SLOTS)
        self._unsent: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._came: defaultdict[int, bytearray] = defaultdict(bytearray)  # of a message that is not whole
        self._read: defaultdict[int, int] = defaultdict(int)
        self._kept: defaultdict[tuple[int, int], deque[bytes]] = defaultdict(deque)

    def send(self, peer: int, tag: int, message: bytes) -> None:
        """Sends a message. It waits only where more than 64 KiB were not received yet. If that wait fails, the rest
        goes before the next message."""
        self._known(peer)
        if peer == self.rank:
            self._kept[peer, tag].append(message)
            return
        self._unsent[peer] += _MESSAGE.pack(tag, len(message)) + message
        self._unsent[peer] += bytes(-len(self._unsent[peer]) % _SLOT)
        while self._unsent[peer]:
            self._push(peer)

    def _push(self, peer: int) -> None:
        """Sends a piece, when there is a slot for it."""
        channel, returns, at = self._pieces[peer], self._returns[peer], self._sent[peer] % _SLOTS
        while self._free[peer] < _SLOTS and returns.poll():
            self._free[peer] += 1
        if not self._free[peer]:
            returns.wait()
            self._free[peer] += 1
        self._out[peer, at] = memoryview(self._unsent[peer])[:_SLOT]
        channel.put_with_signal(self._at(0, self.rank, at), self._at(1, peer, at), _SLOT)
        self._sent[peer] += 1
        self._free[peer] -= 1
        del self._unsent[peer][:_SLOT]

    def receive(self, peer: int, tag: int) -> bytes:
        """The next message of a rank and a tag. What comes before it of other tags is kept."""
        self._known(peer)
        kept = self._kept[peer, tag]
        while not kept:
            if peer == self.rank:
                raise weft.InvalidError(f"a message of this rank itself, tag {tag}: it has sent none")
            came, message = self._next(peer)
            self._kept[peer, came].append(message)
        return kept.popleft()

    def _next(self, peer: int) -> tuple[int, bytes]:
        """The next message of a rank, of any tag, with its tag."""
        came = self._came[peer]
        tag, size = -1, 0
        while not came or len(came) < _MESSAGE.size + size:
            came += self._piece(peer)
            tag, size = _MESSAGE.unpack_from(came)
        message = bytes(came[_MESSAGE.size : _MESSAGE.size + size])
        came.clear()
        return tag, message

    def _piece(self, peer: int) -> bytes:
        self._pieces[peer].wait()
        piece = self._in[peer, self._read[peer] % _SLOTS].tobytes()
        self._read[peer] += 1
        self._returns[peer].signal()
        return piece

    def _known(self, peer: int) -> None:
        if peer != self.rank and peer not in self._pieces:
            raise weft.InvalidError(f"rank {peer}, and there are {self._in.shape[0]}")

    def _at(self, way: int, rank: int, slot: int) -> int:
        """Where a slot of the memory begins, of those that come from a rank (0) or go to it (1)."""
        return ((way * self._in.shape[0] + rank) * _SLOTS + slot) * _SLOT
