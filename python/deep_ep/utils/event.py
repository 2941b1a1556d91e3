"""Events, under DeepEP's name of the module."""

from __future__ import annotations

from ..events import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
