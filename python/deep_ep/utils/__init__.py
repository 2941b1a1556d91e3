"""The names that code imports from deep_ep.utils."""

from __future__ import annotations

from weft._buffer.events import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
