"""The active program: the one whose with block is being run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..program import CollectiveProgram

_program: CollectiveProgram | None = None


def get_program() -> CollectiveProgram:
    """The active program."""
    if _program is None:
        raise RuntimeError("No Program in context")
    return _program


def set_program(program: CollectiveProgram | None) -> None:
    """Makes a program the active one, or none."""
    global _program
    _program = program
