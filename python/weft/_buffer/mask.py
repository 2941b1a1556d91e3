"""Ranks that a buffer leaves out."""

from __future__ import annotations

from collections.abc import Callable

import weft

from .errors import require


class Mask:
    """The ranks that a buffer leaves out. DeepEP's masks are each rank's own; here the ranks that go on
    agree, when they next meet."""

    def __init__(self, comm: weft.Communicator, forget: Callable[[], None]) -> None:
        """``forget`` closes the objects that ranks have made together: some may have been made without a rank
        that is taken in again."""
        self._comm, self._forget = comm, forget
        self._ranks: set[int] = set()
        self._grows = False
        self.agreed = True
        """Whether they have agreed."""

    def put(self, rank: int, masked: bool) -> None:
        """Masks a rank, or takes it in again."""
        require(0 <= rank < self._comm.ranks, f"rank {rank} of {self._comm.ranks}")
        (self._ranks.add if masked else self._ranks.discard)(rank)
        self._grows, self.agreed = self._grows or not masked, False

    def clear(self) -> None:
        """Takes all ranks in again."""
        self._ranks.clear()
        self._grows, self.agreed = True, False

    def ranks(self) -> set[int]:
        """Those that are to be left out."""
        return set(self._ranks)

    def agree(self) -> None:
        """Makes the ranks that continue agree, including those that are taken in again, also after a failure
        that no rank's end caused. Collective, among them."""
        self._comm.set_mask(self._ranks)
        if self._grows:
            self._forget()
        self._grows, self.agreed = False, True
