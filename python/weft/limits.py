"""What numbers may be, and how long calls wait."""

from __future__ import annotations

import numbers
import operator
import threading
from types import TracebackType
from typing import Any

from ._library import library
from .errors import InvalidError

_thread = threading.local()


_MOST = 1e9


def whole(
    name: str,
    given: Any,
    error: type[InvalidError] = InvalidError,
    bits: int = 64,
    least: int | None = None,
    below: int | None = None,
) -> int:
    """An integer that C's type of so many bits has, or from least on, or below 2**below: fractions are refused, and
    none is taken for another one.
    """
    try:
        number = None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        number = None
    if number is None:
        raise error(f"{name} is {given!r}, want a whole number")
    below = bits - 1 if below is None else below
    if not (-(1 << bits - 1) if least is None else least) <= number < 1 << below:
        lowest = f"-2**{bits - 1}" if least is None else least
        raise error(f"{name} is {number}, want a whole number from {lowest} to 2**{below} - 1")
    return number


def milliseconds(what: str, seconds: float) -> int:
    """Seconds that bound a wait, as the library takes them."""
    if not isinstance(seconds, numbers.Real) or not 0 < seconds <= _MOST:
        raise InvalidError(
            f"a {what} of {seconds!r} seconds, want more than 0 and at most {_MOST:.0e}: every wait must end, "
            f"and not before it began"
        )
    return max(1, round(seconds * 1000))


class timeout:  # noqa: N801
    """Bounds the calls of this thread, in ``with weft.timeout(seconds):``, that wait on the host,
    beside the communicator's deadline.

    A call that reaches the limit raises :class:`weft.DeadlineError`, and the other ranks
    :class:`weft.AbortedError` with this one's number, as after :meth:`weft.Communicator.abort`.
    :meth:`weft.Communicator.wait` is the exception: it aborts no operation, and may be called again. Work
    that is enqueued on the caller's stream waits on the GPU, by the communicator's deadline alone.
    ``timeout=`` of a call is the same for that call.
    """

    def __init__(self, seconds: float) -> None:
        self._ms = milliseconds("timeout", seconds)
        self._before = 0

    def __enter__(self) -> None:
        self._before = getattr(_thread, "ms", 0)
        _set(self._ms)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _set(self._before)


def _set(ms: int) -> None:
    lib = library()
    if status := lib.timeout_set(ms):
        lib.fail(status)
    _thread.ms = ms
