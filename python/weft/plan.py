"""Communication plans: files that say what each block of each rank does."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from typing import Any

from ._library import library


def lower(recording: Mapping[str, Any], *, compact: bool = False) -> str:
    """The text of the plan of a recorded program: over lines, or compact on one. The Go package plan/lowering says
    what is in a recording, whose keys are its fields."""
    lib, text = library(), ctypes.c_void_p()
    if status := lib.plan_lower(json.dumps(recording, separators=(",", ":")).encode(), compact, ctypes.byref(text)):
        lib.fail(status)
    try:
        return ctypes.string_at(text.value).decode()
    finally:
        lib.text_free(text)
