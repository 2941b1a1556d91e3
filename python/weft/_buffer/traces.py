"""The state that a dispatch attaches to a tensor that it returns; it identifies the dispatch's routing."""

from __future__ import annotations

import weakref
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")

# By address and storage: autograd and compilers give a tensor back as another object with the same
# memory. Attributes would go with copies, and keep tensors from being pickled.
_left: dict[int, tuple[weakref.ref[Any], Any]] = {}


def leave(tensor: Tensor, what: Any) -> None:
    """Leaves something at a tensor for as long as its memory lives, which it must not keep alive."""
    at = tensor.data_ptr()

    def forget(of: weakref.ref[Any]) -> None:
        if _left.get(at, (None,))[0] is of:
            _left.pop(at, None)

    _left[at] = weakref.ref(tensor.untyped_storage(), forget), what


def recall(tensor: Any, kind: type[T]) -> T | None:
    """The state that was attached to a tensor, if it is of that kind."""
    of, found = _left.get(tensor.data_ptr(), (None, None)) if isinstance(tensor, Tensor) else (None, None)
    return found if of is not None and of() is tensor.untyped_storage() and isinstance(found, kind) else None
