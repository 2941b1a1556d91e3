"""Events, under DeepEP's name of the module."""

from __future__ import annotations

from weft._buffer.events import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
