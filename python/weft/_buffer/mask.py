"""Ranks that a buffer leaves out."""

from __future__ import annotations

import weft

from .errors import require


class Mask:
    """The ranks that a buffer leaves out. DeepEP's masks are each rank's own; here the ranks that go on agree, when they next meet."""

    def __init__(self, comm: weft.Communicator) -> None:
        self._comm = comm
        self._ranks: set[int] = set()
        self.settled = True
        """Whether they have agreed."""

    def put(self, rank: int, masked: bool) -> None:
        """Leaves a rank out of what follows, or takes it in again."""
        require(0 <= rank < self._comm.ranks, f"rank {rank} of {self._comm.ranks}")
        (self._ranks.add if masked else self._ranks.discard)(rank)
        self.settled = False

    def clear(self) -> None:
        """Takes all ranks in again."""
        self._ranks.clear()
        self.settled = False

    def ranks(self) -> set[int]:
        """Those that are to be left out."""
        return set(self._ranks)

    def settle(self) -> None:
        """Has the ranks that go on agree. Collective, among them."""
        if self._comm.mask != self._ranks:
            self._comm.set_mask(self._ranks)
        self.settled = True
