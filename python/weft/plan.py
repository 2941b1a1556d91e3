"""Communication plans: files that say what each block of each rank does, and what runs them."""

from __future__ import annotations

import contextlib
import ctypes
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from . import streams
from ._library import library
from .communicator import Communicator
from .errors import InvalidError, WeftError
from .operands import Slot
from .resources import Made
from .streams import StreamLike

__all__ = ["Executor", "Finding", "Plan", "check", "lower"]


class Finding(NamedTuple):
    """What is wrong with a plan, or may be."""

    kind: str
    """As "deadlock", "race" or "wrong result"."""
    warning: bool
    """Whether the plan may run all the same."""
    text: str
    """A line that names the operations: rank, block and position."""


def check(plan: str | bytes | Mapping[str, Any]) -> list[Finding]:
    """Verifies a plan: that it ends, races with nothing and gives what its collective defines, in every order of
    events. Errors come first; no finding is a proof. Of a recording, as :func:`lower` takes it, it also says where
    operations that were fused mean something else."""
    if isinstance(plan, Mapping):
        plan = json.dumps(plan, separators=(",", ":"))
    lib, text = library(), plan.encode() if isinstance(plan, str) else plan
    found = json.loads(_text(lambda out: lib.plan_check(text, out)))
    return [Finding(f["class"], f["warning"], f["text"]) for f in found]


def lower(recording: Mapping[str, Any], *, compact: bool = False) -> str:
    """The text of the plan of a recorded program: over lines, or compact on one. The Go package plan/lowering says
    what is in a recording, whose keys are its fields."""
    lib, text = library(), json.dumps(recording, separators=(",", ":")).encode()
    return _text(lambda out: lib.plan_lower(text, compact, out))


class Executor(Made):
    """Runs plans on the ranks of a communicator.

    Making one is collective, and so are its methods. With ``unverified``, the same on all ranks, plans run in which
    :func:`check` finds errors, but for broken rules and deadlocks.
    """

    _kind = "executor of plans"
    _RELEASE = "executor_destroy"

    def __init__(self, comm: Communicator, *, unverified: bool = False) -> None:
        super().__init__(comm, "executor_create", int(unverified))
        self._comm = comm

    def load(self, plan: str | bytes) -> Plan:
        """Makes the plan of a text ready to run: verifies it, and compares it among the ranks. One that is wrong, or
        differs, is refused on every rank."""
        self._open()
        number = ctypes.c_int64()
        text = plan.encode() if isinstance(plan, str) else plan
        if not isinstance(text, bytes):
            why = InvalidError(f"a plan of type {type(plan).__name__}, want its text, as str or bytes")
            self._refuse(why, "executor_load", b"{}")
        self._check(self._lib.executor_load(self._handle, text, ctypes.byref(number)))
        return Plan(self, number.value)

    def reset(self) -> None:
        """Gives up all plans that were loaded. No rank runs any of them."""
        self._open()
        self._check(self._lib.executor_reset(self._handle))


class Plan:
    """A plan that an executor has loaded."""

    def __init__(self, executor: Executor, number: int) -> None:
        self._executor, self._number = executor, number
        device = executor._comm._device
        self._out, self._in = Slot("out", device, written=True), Slot("array", device)

    def execute(self, array: Any, out: Any, *, stream: StreamLike = None) -> Any:
        """Runs the plan on this rank's operands, and returns ``out``. Either may be None if the plan has none.

        They have the plan's chunks, all of as many bytes, a multiple of its alignment, and are in place if the plan
        was written for that. On the host it returns when the result is complete, on GPUs it enqueues on ``stream``.
        """
        device = self._executor._comm._device
        try:
            operands = self._out.fill(out), self._in.fill(array), streams.address(stream, device)
        except Exception as e:  # the others hear of it, and do not wait
            absent = self._in.absent(e)
            with contextlib.suppress(WeftError):
                self._run(absent, absent, streams.address(None, device))
            raise
        self._run(*operands)
        return out

    def _run(self, out: int, source: int, stream: int) -> None:
        x = self._executor
        x._open()
        x._check(x._lib.executor_run(x._handle, stream, self._number, out, source))


def _text(make: Callable[[Any], int]) -> str:
    """A text that the library writes."""
    lib, out = library(), ctypes.c_void_p()
    if status := make(ctypes.byref(out)):
        lib.fail(status)
    try:
        return ctypes.string_at(out.value or 0).decode()
    finally:
        lib.text_free(out)
