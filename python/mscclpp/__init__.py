"""MSCCL++'s expert parallelism over Weft: ``mscclpp.ext.ep``. Change no line, install this package, and
exchanges are Weft's.

The rest of MSCCL++ is not here. docs/guides/mscclpp.md lists what is the same and what differs.
"""

from __future__ import annotations


def __getattr__(name: str) -> object:
    raise AttributeError(
        f"mscclpp.{name}: the package weft-mscclpp has mscclpp.ext.ep and nothing else of MSCCL++; install "
        f"MSCCL++ in its place for that"
    )
