"""MSCCL++'s errors, where its extension module has them."""

from __future__ import annotations

from .types import ErrorCode

__all__ = ["Error", "ErrorCode"]


class Error(RuntimeError):
    """An error with a code and a text, which are its arguments."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(int(code), f"{text} (mscclpp failure: {code.name})")
