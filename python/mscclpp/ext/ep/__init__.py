"""MSCCL++'s expert parallelism: a buffer whose methods have the arguments and results of the extension's."""

from __future__ import annotations

from .buffer import Buffer, Config, EventHandle

__all__ = ["Buffer", "Config", "EventHandle"]
