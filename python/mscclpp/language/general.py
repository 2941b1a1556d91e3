"""The text of the active program."""

from __future__ import annotations

from .internal.globals import get_program

__all__ = ["JSON", "get_program"]


def JSON() -> str:  # noqa: N802
    """The plan of the active program, as JSON."""
    return get_program().to_json()
