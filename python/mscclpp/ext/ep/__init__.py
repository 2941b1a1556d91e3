"""MSCCL++'s expert parallelism: a buffer whose methods take and return what the extension's do."""

from __future__ import annotations

from .buffer import Buffer, Config, EventHandle

__all__ = ["Buffer", "Config", "EventHandle"]
