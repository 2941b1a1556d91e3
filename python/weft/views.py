"""Tensors of PyTorch's that show memory of a GPU.

To take memory over by DLPack takes PyTorch ten times as long as an alias of a tensor does. Exchanges return
the same few memory blocks again and again. So this module keeps one tensor of each and gives callers aliases.
The storage counts its tensors, which shows when callers have dropped all of them.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from . import dlpack
from .dtypes import DType, foreign_name

Place = tuple[int, DType, tuple[int, ...], int, bool]
"""The key of a tensor: its address, type, shape and GPU, and whether its last two dimensions are swapped."""


class _Shown:
    """A tensor whose aliases callers have, or may have, and the objects that it keeps alive; or two tensors,
    with one lifetime."""

    __slots__ = ("alone", "beside", "block", "keep", "number", "place", "storage", "tensor", "unasked")

    def __init__(self, place: Place, uses: Callable[[int], int], beside: Place | None = None) -> None:
        self.place, self.keep = place, None
        self.block, self.tensor = _taken_over(place)
        # Tensors refer to a storage, and so does an object that stands for it, whose own users PyTorch may
        # not count.
        self.storage = self.tensor.untyped_storage()
        self.number: int = self.storage._cdata
        self.alone, self.unasked = uses(self.number), self.references()
        self.beside = None if beside is None else _Shown(beside, uses)

    def references(self) -> int:
        return sys.getrefcount(self.storage)

    def unused(self, uses: Callable[[int], int]) -> bool:
        """Whether callers have dropped all aliases."""
        if uses(self.number) != self.alone or self.references() != self.unasked:
            return False
        return self.beside is None or self.beside.unused(uses)

    def moved(self) -> bool:
        """Whether the storage's content was moved, as share_memory_ does."""
        return bool(self.tensor.data_ptr() != self.place[0]) or (self.beside is not None and self.beside.moved())

    def drop(self) -> None:
        """Marks the memory as unused."""
        block, self.tensor, self.storage = self.block, None, None
        dlpack.returned(block)
        if self.beside is not None:
            self.beside.drop()


# Views that callers have; and, by their key, views without aliases, the last used last.
_shown: dict[int, _Shown] = {}
_spare: dict[tuple[Place, Place | None], list[_Shown]] = {}
_MOST = 1024
_lock = threading.RLock()
# A child of a fork has no thread that would give it back. A sweep takes the lock of views first, and so does
# fork, whose hooks run last in first out.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@functools.cache
def _uses() -> Callable[[int], int] | None:
    """The number of tensors of a storage, and of other references to it; None if this PyTorch does not
    say."""
    return getattr(sys.modules["torch"]._C, "_storage_Use_Count", None)


@functools.cache
def _modes() -> tuple[Callable[[], int], Callable[[], int]]:
    """The number of PyTorch modes of this thread. They may keep tensors for themselves, which are then in no
    caller's hands."""
    c = sys.modules["torch"]._C
    return c._len_torch_dispatch_stack, c._len_torch_function_stack


def watched() -> bool:
    """Whether this thread has a PyTorch mode."""
    return any(count() for count in _modes())


def show(address: int, dtype: DType, shape: tuple[int, ...], device: int, keep: Any) -> Any:
    """A tensor over memory of a GPU, which keeps something for as long as anything uses that memory,
    and until the :func:`sweep` after that."""
    return show_pair((address, dtype, shape, device, False), None, keep)[0]


def show_pair(place: Place, beside: Place | None, keep: Any) -> tuple[Any, Any]:
    """Two tensors like that, which keep something for as long as anything uses either, for less than
    one by one; the second may be None."""
    uses, (dispatch, function) = _uses(), _modes()
    if uses is None or dispatch() or function():
        return _taken_over(place, keep)[1], None if beside is None else _taken_over(beside, keep)[1]
    shown = _take((place, beside)) or _Shown(place, uses, beside)
    aliases = shown.tensor.detach(), None if beside is None else shown.beside.tensor.detach()  # type: ignore[union-attr]
    shown.keep = keep
    _shown[id(shown)] = shown  # now that a sweep finds that it has an alias
    return aliases


def _take(places: tuple[Place, Place | None]) -> _Shown | None:
    with _lock:
        spare = _spare.get(places)
        if not spare:
            return None
        shown = spare.pop()
        if not spare:
            del _spare[places]
    if not shown.moved():
        return shown
    shown.drop()
    return None


def sweep() -> None:
    """Forgets views that were dropped."""
    if _shown or len(_spare) > _MOST:
        _sweep()
    dlpack.sweep()


def _sweep() -> None:
    uses = _uses()
    with _lock:
        for shown in list(_shown.values()) if uses else ():
            # A destructor may sweep, too.
            if shown.unused(uses) and _shown.pop(id(shown), None) is not None:  # type: ignore[arg-type]
                shown.keep = None
                places = shown.place, None if shown.beside is None else shown.beside.place
                _spare.setdefault(places, []).append(shown)
        while len(_spare) > _MOST:
            for shown in _spare.pop(next(iter(_spare))):
                shown.drop()


# The types that every PyTorch imports through DLPack. Others are imported as bytes and reinterpreted
# afterwards.
_IN_DLPACK = frozenset(
    (
        *(DType[f"int{n}"] for n in (8, 16, 32, 64)),
        *(DType[f"float{n}"] for n in (16, 32, 64)),
        DType.uint8,
        DType.bfloat16,
    )
)


def _taken_over(place: Place, *keep: Any) -> tuple[Any, Any]:
    """A tensor and its block (no block if it keeps nothing alive). It is not made by its address alone: the
    driver would name another GPU for a peer's memory."""
    address, dtype, shape, device, changed_round = place
    torch = sys.modules["torch"]
    plain = dtype in _IN_DLPACK
    given = (
        (dtype, shape)
        if plain
        else (DType.uint8, shape if dtype.itemsize == 1 else (math.prod(shape) * dtype.itemsize,))
    )
    block, capsule = (
        (None, dlpack.show(address, *given, device, *keep)) if keep else dlpack.lend(address, *given, device)
    )
    with torch.inference_mode(False):  # aliases are used in any mode
        tensor = torch.from_dlpack(capsule)
        if not plain:
            tensor = tensor.view(getattr(torch, foreign_name(dtype))).view(shape)
        return block, tensor.transpose(-2, -1) if changed_round else tensor
