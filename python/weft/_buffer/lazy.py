"""Tuples whose members are made when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .opaque import opaque


class Lazy(tuple[Any, ...]):
    """A tuple of so many things, which are made when one of them is wanted."""

    _make: Callable[..., tuple[Any, ...]]
    _length: int
    _made: tuple[Any, ...] | None = None

    @opaque
    def contents(self) -> tuple[Any, ...]:
        """The plain tuple."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def __iter__(self) -> Iterator[Any]:
        return iter(self.contents())

    def __getitem__(self, i: Any) -> Any:
        return self.contents()[i]

    def __len__(self) -> int:
        return self._length

    def __bool__(self) -> bool:
        return True

    def __contains__(self, item: object) -> bool:
        return item in self.contents()

    def __add__(self, other: Any) -> Any:
        return self.contents() + tuple(other)

    def __radd__(self, other: Any) -> Any:
        return tuple(other) + self.contents()

    def __mul__(self, times: Any) -> Any:
        return self.contents() * times

    __rmul__ = __mul__

    def index(self, *arguments: Any) -> int:
        return self.contents().index(*arguments)

    def count(self, thing: Any) -> int:
        return self.contents().count(thing)

    def __copy__(self) -> Any:
        return self  # which nothing changes

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> Any:
        return tuple, (list(self.contents()),)

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.contents()}"
