"""Reading and showing arrays of any library through DLPack, whose structs are a public convention."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys
import threading
from collections.abc import Sequence
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object
from typing import Any, NamedTuple

from ._abi import MAX_DIMS
from .dtypes import DType


class _Device(ctypes.Structure):
    _fields_ = (("type", c_int32), ("id", c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


_HOST_DEVICES = (1, 3, 11)  # memory of the host, pinned by CUDA or ROCm or not
CUDA = 2
_CUDA_DEVICES = (CUDA, 13)  # and managed memory of CUDA

_INT, _UINT, _FLOAT, _BFLOAT = 0, 1, 2, 4
_TYPES = {
    **{(_INT, bits): DType[f"int{bits}"] for bits in (8, 16, 32, 64)},
    **{(_UINT, bits): DType[f"uint{bits}"] for bits in (8, 16, 32, 64)},
    **{(_FLOAT, bits): DType[f"float{bits}"] for bits in (16, 32, 64)},
    (_BFLOAT, 16): DType.bfloat16,
    (6, 8): DType.bool,
    (10, 8): DType.float8_e4m3,
    (12, 8): DType.float8_e5m2,
    (14, 8): DType.ue8m0,
}
_CODES = {dtype: code for code, dtype in _TYPES.items()}

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (py_object, c_char_p), c_void_p


class Found(NamedTuple):
    """An array that was read, and the object that keeps its memory."""

    address: int
    dtype: DType | None
    type_words: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    contiguous: bool
    capsule: Any


def device_of(array: Any) -> int:
    """Where an array is: a GPU's number; -1 is the host, -2 something else."""
    kind, number = array.__dlpack_device__()
    return -1 if kind in _HOST_DEVICES else int(number) if kind in _CUDA_DEVICES else -2


def read(array: Any, stream: int | None) -> Found:
    """The address, shape and type of an array. The array keeps its memory: its capsule is not consumed, but
    is kept as long as the result.

    On a GPU work that was enqueued for the array comes before later work on ``stream``: 1 is the convention's
    legacy default stream, -1 no stream.
    """
    capsule = array.__dlpack__() if stream is None else array.__dlpack__(stream=stream)
    t = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] for i in range(t.ndim)) if t.strides else dense(shape)
    dtype = _TYPES.get((t.dtype.code, t.dtype.bits)) if t.dtype.lanes == 1 else None
    words = f"{t.dtype.code} of {t.dtype.bits} bits"
    return Found((t.data or 0) + t.byte_offset, dtype, words, shape, strides, contiguous(shape, strides), capsule)


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of an array without gaps, in elements."""
    strides = [1] * len(shape)
    for i in reversed(range(len(shape) - 1)):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


def contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements of these strides are without gaps, in order."""
    return 0 in shape or all(n == 1 or s == d for n, s, d in zip(shape, strides, dense(shape), strict=True))


# Showing. The consumer of a capsule calls its deleter, in any thread, and possibly while an exception is
# handled. The deleter is therefore the library's, which sets a flag. The next sweep forgets memory that has
# no consumer any more.

_new = ctypes.pythonapi.PyCapsule_New
_new.argtypes, _new.restype = (c_void_p, c_char_p, c_void_p), py_object

_valid = ctypes.pythonapi.PyCapsule_IsValid
_valid.argtypes, _valid.restype = (py_object, c_char_p), ctypes.c_int

# A managed tensor, behind which its shape, its strides and the flag stand.
_MANAGED = 64
_PACK = [struct.Struct(f"=Qii iBBH QQQ QQ {n}q{n}q q") for n in range(MAX_DIMS + 1)]


class _Block:
    """A managed tensor of so many dimensions. Its memory stays for ever: the deleter may be called when the
    interpreter has ended."""

    __slots__ = ("at", "dims", "flag", "memory")

    def __init__(self, dims: int) -> None:
        self.dims, size = dims, _PACK[dims].size
        self.memory = (ctypes.c_char * size)()
        ctypes.pythonapi.Py_IncRef(py_object(self.memory))
        self.at = ctypes.addressof(self.memory)
        self.flag = memoryview(self.memory).cast("B")[-8:].cast("q")

    def say(self, address: int, dtype: int, shape: tuple[int, ...], device: int) -> None:
        """Makes the DLPack description of an array, which is in use from now on."""
        dims, (code, bits), pack = self.dims, _CODES[dtype], _PACK[self.dims]
        sizes, flag = self.at + _MANAGED, self.at + pack.size - 8
        pack.pack_into(
            self.memory,
            0,
            address,
            CUDA,
            device,
            dims,
            code,
            bits,
            1,
            sizes,
            sizes + 8 * dims,
            0,
            flag,
            _deleter(),
            *shape,
            *_dense(shape),
            0,
        )


_dense = functools.lru_cache(maxsize=1024)(dense)


class _Shown:
    """An array that is shown: its block, the objects that it keeps alive, and the capsule, until a consumer
    has taken it over."""

    __slots__ = ("block", "capsule", "keep")

    def __init__(self, keep: Any) -> None:
        self.block: Any = None
        self.capsule: Any = None
        self.keep = keep


# Shown arrays, by the address of their block, and the free blocks, by their dimensions.
_shown: dict[int, _Shown] = {}
_free: list[list[_Block]] = [[] for _ in range(MAX_DIMS + 1)]

_TAKEN = object()
_sweeping = threading.RLock()
os.register_at_fork(before=_sweeping.acquire, after_in_parent=_sweeping.release, after_in_child=_sweeping.release)


@functools.cache
def _deleter() -> int:
    from ._library import library

    return int(ctypes.cast(library().dlpack_deleter, c_void_p).value or 0)


def show(address: int, dtype: int, shape: tuple[int, ...], device: int, keep: Any) -> Any:
    """A capsule of memory of a GPU, which keeps something for as long as its taker uses the memory, and
    until the :func:`sweep` after that."""
    shown = _Shown(keep)
    block = shown.block = _block(len(shape))
    _shown[block.at] = shown  # from here on a sweep finds it, also after an interrupt
    block.say(address, dtype, shape, device)
    shown.capsule = _new(block.at, b"dltensor", None)
    return shown.capsule


def lend(address: int, dtype: int, shape: tuple[int, ...], device: int) -> tuple[_Block, Any]:
    """A capsule that keeps nothing alive and is not swept, and its block, which is to be returned when the
    memory is not used any more."""
    block = _block(len(shape))
    block.say(address, dtype, shape, device)
    return block, _new(block.at, b"dltensor", None)


def returned(block: _Block) -> None:
    """Takes a block back, unless it is in use after all."""
    if block.flag[0]:
        _free[block.dims].append(block)


def _block(dims: int) -> _Block:
    try:
        return _free[dims].pop()
    except IndexError:
        return _Block(dims)


def sweep() -> None:
    """Forgets shown arrays that were released."""
    if not _shown:
        return
    with _sweeping:
        for at in list(_shown):
            shown = _shown.get(at)  # a destructor may sweep, too
            if shown is not None and _gone(shown):
                block = shown.block
                del _shown[at], shown
                _free[block.dims].append(block)


def _gone(shown: _Shown) -> bool:
    capsule = shown.capsule
    if capsule is _TAKEN:
        return shown.block.flag[0] != 0  # type: ignore[no-any-return]
    if capsule is None:  # an interrupt came before there was one, unless its maker is at it
        return _references(shown) <= _OWN
    if shown.block.flag[0]:
        return True
    if _references(capsule) > _OWN_TO_CAPSULE:
        return False
    if _valid(capsule, b"dltensor"):
        return True  # it was released, or never taken over
    shown.capsule = _TAKEN
    return False


def _references(thing: object) -> int:
    return sys.getrefcount(thing)


def _own() -> tuple[int, int]:
    """The references that a sweep itself holds to a shown array, and to a capsule: their number depends on
    the interpreter."""

    def asked(shown: _Shown) -> tuple[int, int]:
        capsule = shown.capsule
        return _references(shown), _references(capsule)

    some = {0: _Shown(None)}
    some[0].capsule = object()
    for at in list(some):
        shown = some[at]
        found = asked(shown)
    return found


_OWN, _OWN_TO_CAPSULE = _own()
