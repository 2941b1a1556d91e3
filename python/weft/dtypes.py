"""Types of elements, and their names in other libraries."""

from __future__ import annotations

import enum
from typing import Any

from .errors import OperandError


class DType(enum.IntEnum):
    """The type of an array's elements, by the numbers of weft.h."""

    bfloat16 = 1
    float16 = 2
    float32 = 3
    float64 = 4
    float8_e4m3 = 5
    float8_e5m2 = 6
    ue8m0 = 7
    int8 = 8
    int16 = 9
    int32 = 10
    int64 = 11
    uint8 = 12
    uint16 = 13
    uint32 = 14
    uint64 = 15
    bool = 16

    __hash__ = int.__hash__  # an enumeration's own is a function of Python's

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return SIZES[self]


OF_NUMBER: dict[int, DType] = {int(d): d for d in DType}
"""Types by their numbers, for less than the enumeration finds them."""

SIZES: dict[int, int] = {
    **dict.fromkeys((DType.float8_e4m3, DType.float8_e5m2, DType.ue8m0, DType.int8, DType.uint8, DType.bool), 1),
    **dict.fromkeys((DType.bfloat16, DType.float16, DType.int16, DType.uint16), 2),
    **dict.fromkeys((DType.float32, DType.int32, DType.uint32), 4),
    **dict.fromkeys((DType.float64, DType.int64, DType.uint64), 8),
}

# The names that PyTorch and ml_dtypes have for types whose name here is another, and those of payloads and commands.
ALIASES = {
    "bf16": DType.bfloat16,
    "fp16": DType.float16,
    "fp32": DType.float32,
    "fp64": DType.float64,
    "float8_e4m3fn": DType.float8_e4m3,
    "float8_e8m0fnu": DType.ue8m0,
    "half": DType.float16,
    "float": DType.float32,
    "double": DType.float64,
    "bool_": DType.bool,
}

_FOREIGN = {d.name: d.name for d in DType} | {d.name: name for name, d in ALIASES.items() if name.startswith("float8")}

DTypeLike = Any
"""A :class:`DType`, the name of one, or a type of numpy or PyTorch."""


def dtype_of(like: DTypeLike) -> DType:
    """The type that a name, a numpy type or a torch type means."""
    if isinstance(like, DType):
        return like
    name = (
        like if isinstance(like, str) else getattr(like, "name", None) or getattr(like, "__name__", None) or str(like)
    )
    name = str(name).rsplit(".", 1)[-1]
    try:
        return ALIASES.get(name) or DType[name]
    except KeyError:
        raise OperandError(f"no type {like!r} here, want one of {', '.join(d.name for d in DType)}") from None


def foreign_name(dtype: DType) -> str:
    """The name of a type in PyTorch and ml_dtypes."""
    return _FOREIGN[dtype.name]
