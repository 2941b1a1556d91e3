"""Extensions of MSCCL++'s: expert parallelism."""

from __future__ import annotations

from . import ep

__all__ = ["ep"]
