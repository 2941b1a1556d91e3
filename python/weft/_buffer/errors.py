"""Where the originals assert, these exceptions have a message."""

from __future__ import annotations

import weft


class ContractError(weft.InvalidError, AssertionError):
    """A call against the contract of its interface."""


def require(condition: bool, words: str) -> None:
    if not condition:
        raise ContractError(words)
