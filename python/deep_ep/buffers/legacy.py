"""The first interface, under DeepEP's name of its module."""

from __future__ import annotations

from ..buffer import Buffer

__all__ = ["Buffer"]
