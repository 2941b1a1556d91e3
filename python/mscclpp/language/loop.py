"""Pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .internal.globals import get_program, set_program

if TYPE_CHECKING:
    from typing import Self

__all__ = ["LoopIterationContext", "get_program", "set_program"]


class LoopIterationContext:
    """Operations in its with block are repeated for each window of ``unit`` bytes of ``num_chunks`` chunks: each
    block has them in a pipeline."""

    def __init__(self, unit: int, num_chunks: int) -> None:
        self.unit = unit
        self.num_chunks = num_chunks

    def __enter__(self) -> Self:
        get_program().set_loop_context(self)
        return self

    def __exit__(self, *_: object) -> None:
        get_program().set_loop_context(None)
