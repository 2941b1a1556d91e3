"""The second interface, under DeepEP's name of its module."""

from __future__ import annotations

from ..elastic import ElasticBuffer, EPHandle

__all__ = ["EPHandle", "ElasticBuffer"]
