"""Small helpers, under DeepEP's name of the module."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def value_or(value: T | None, default: T) -> T:
    """The value, or the default for None."""
    return default if value is None else value


def weak_lru(maxsize: int | None = 128, typed: bool = False) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """functools.lru_cache for methods, which keeps no object alive."""

    def cached(method: Callable[..., T]) -> Callable[..., T]:
        @functools.lru_cache(maxsize, typed)
        def of(me: weakref.ref[Any], *arguments: Any, **options: Any) -> T:
            return method(me(), *arguments, **options)

        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **options: Any) -> T:
            return of(weakref.ref(self), *arguments, **options)

        return call

    return cached
