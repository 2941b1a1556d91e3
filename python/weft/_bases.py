"""Base classes of the mirrors of weft.h's structs and enumerations."""

from __future__ import annotations

import ctypes
import enum
import functools
from ctypes import c_int32, c_int64


class Choice(enum.IntEnum):
    """One of some."""

    __hash__ = int.__hash__  # an enumeration's own is a function of Python's


class Struct(ctypes.Structure):
    """A struct of weft.h, which begins with its size."""

    size: int

    def __init__(self, **members: object) -> None:
        for name, value in members.items():
            if isinstance(value, int):
                self._check(name, value)
        super().__init__(size=ctypes.sizeof(self), **members)

    @property
    def _as_parameter_(self) -> int:
        """The address, in the form that functions take."""
        return ctypes.addressof(self)

    def _check(self, name: str, value: int) -> None:
        """Refuses a value that a member would take for another number."""
        least, most = _range(type(self), name)
        if not least <= value <= most:
            from .errors import InvalidError

            raise InvalidError(f"{name}: {value}, want {least} to {most}")


@functools.cache
def _range(struct: type[Struct], name: str) -> tuple[int, int]:
    """The values that a member of a struct can hold."""
    bits = 8 * getattr(struct, name).size
    if any(member == name and of in (c_int32, c_int64) for member, of in struct._fields_):
        return -(1 << bits - 1), (1 << bits - 1) - 1
    return 0, (1 << bits) - 1
