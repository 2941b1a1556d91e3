"""What DeepEP asserts, as exceptions with words."""

from __future__ import annotations

import weft


class ContractError(weft.InvalidError, AssertionError):
    """A call against DeepEP's contract."""


def require(condition: bool, words: str) -> None:
    if not condition:
        raise ContractError(words)
