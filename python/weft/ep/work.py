"""Operations that were sent and are received later."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from .._abi import Status
from ..errors import ClosedError
from ..limits import timeout as limit

if TYPE_CHECKING:
    from .handle import Handle
    from .routing import Received, Routing


class _Pending:
    def __init__(self, handle: Handle, number: int, borrowed: Any) -> None:
        self._handle = handle
        self._number = number
        self._borrowed = borrowed  # operands, until the second half

    @property
    def over(self) -> bool:
        """Whether the second half was called."""
        return not self._number

    def _in_use(self) -> int:
        if not self._number:
            raise ClosedError("the operation's second half was called before")
        return self._number

    def _over(self, status: int) -> None:
        """The second half was called. Unless another thread is inside a call, the operation ends here,
        whatever the result."""
        if status != Status.ERROR_BUSY:
            self._number, self._borrowed = 0, None
        self._handle._check(status)

    def __del__(self) -> None:
        if self._number and not self._handle.closed:
            warnings.warn(
                "an operation was sent and never received: its handle does nothing else before",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )


class PendingDispatch(_Pending):
    """A dispatch that was sent. Until :meth:`receive` its handle does nothing else."""

    def __init__(
        self, handle: Handle, number: int, borrowed: Any, tokens: int, routing: Routing | None, kind: str, on: int
    ) -> None:
        super().__init__(handle, number, borrowed)
        self._tokens, self._routing, self._kind, self._on = tokens, routing, kind, on

    def receive(self, *, timeout: float | None = None) -> Received:
        """The second half: the rows that arrive. Collective."""
        if timeout is not None:
            with limit(timeout):
                return self.receive()
        return self._handle._receive(self, self._tokens, self._routing, self._kind, self._on)


class PendingCombine(_Pending):
    """A combine that was sent. Until :meth:`wait` its handle does nothing else."""

    def __init__(self, handle: Handle, number: int, borrowed: Any, out: Any) -> None:
        super().__init__(handle, number, borrowed)
        self._out = out

    def wait(self, *, timeout: float | None = None) -> Any:
        """The second half: [tokens, hidden], the sums. Collective."""
        if timeout is not None:
            with limit(timeout):
                return self.wait()
        self._over(self._handle._lib.work_wait(self._in_use()))
        return self._out
