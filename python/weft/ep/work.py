"""Operations whose second half is to come: send now, receive later."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ..errors import ClosedError

if TYPE_CHECKING:
    from .handle import Handle
    from .routing import Received, Routing


class _Pending:
    def __init__(self, handle: Handle, number: int, borrowed: Any) -> None:
        self._handle = handle
        self._number = number
        self._borrowed = borrowed  # operands, until the second half

    def _take(self) -> int:
        number, self._number = self._number, 0
        if not number:
            raise ClosedError("the operation's second half was called before")
        return number

    def __del__(self) -> None:
        if self._number and not self._handle.closed:
            warnings.warn(
                "an operation was sent and never received: its handle does nothing else before", ResourceWarning, source=self, stacklevel=2
            )


class PendingDispatch(_Pending):
    """A dispatch that was sent. Until :meth:`receive` its handle does nothing else."""

    def __init__(self, handle: Handle, number: int, borrowed: Any, tokens: int, routing: Routing | None, kind: str) -> None:
        super().__init__(handle, number, borrowed)
        self._tokens, self._routing, self._kind = tokens, routing, kind

    def receive(self) -> Received:
        """The second half: the rows that arrive. Collective."""
        received = self._handle._receive(self._take(), self._tokens, self._routing, self._kind)
        self._borrowed = None
        return received


class PendingCombine(_Pending):
    """A combine that was sent. Until :meth:`wait` its handle does nothing else."""

    def __init__(self, handle: Handle, number: int, borrowed: Any, out: Any) -> None:
        super().__init__(handle, number, borrowed)
        self._out = out

    def wait(self) -> Any:
        """The second half: [tokens, hidden], the sums. Collective."""
        handle = self._handle
        handle._check(handle._lib.work_wait(self._take()))
        self._borrowed = None
        return self._out
