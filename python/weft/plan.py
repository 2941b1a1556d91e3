"""Communication plans: files that say what each block of each rank does."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ._library import library

__all__ = ["Finding", "check", "lower"]


class Finding(NamedTuple):
    """What is wrong with a plan, or may be."""

    kind: str
    """As "deadlock", "race" or "wrong result"."""
    warning: bool
    """Whether the plan may run all the same."""
    text: str
    """A line that names the operations: rank, block and position."""


def check(plan: str | bytes) -> list[Finding]:
    """Verifies a plan: that it ends, races with nothing and gives what its collective defines, in every order of
    events. Errors come first; no finding is a proof."""
    lib, text = library(), plan.encode() if isinstance(plan, str) else plan
    found = json.loads(_text(lambda out: lib.plan_check(text, out)))
    return [Finding(f["class"], f["warning"], f["text"]) for f in found]


def lower(recording: Mapping[str, Any], *, compact: bool = False) -> str:
    """The text of the plan of a recorded program: over lines, or compact on one. The Go package plan/lowering says
    what is in a recording, whose keys are its fields."""
    lib, text = library(), json.dumps(recording, separators=(",", ":")).encode()
    return _text(lambda out: lib.plan_lower(text, compact, out))


def _text(make: Callable[[Any], int]) -> str:
    """A text that the library writes."""
    lib, out = library(), ctypes.c_void_p()
    if status := make(ctypes.byref(out)):
        lib.fail(status)
    try:
        return ctypes.string_at(out.value or 0).decode()
    finally:
        lib.text_free(out)
