"""Reading and showing arrays of any library through DLPack, whose structs are a public convention."""

from __future__ import annotations

import ctypes
import struct
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
_CUDA_DEVICES = (CUDA, 13)  # and what CUDA moves by itself

_INT, _UINT, _FLOAT, _BFLOAT = 0, 1, 2, 4
_TYPES = {
    **{(_INT, bits): DType[f"int{bits}"] for bits in (8, 16, 32, 64)},
    **{(_UINT, bits): DType[f"uint{bits}"] for bits in (8, 16, 32, 64)},
    **{(_FLOAT, bits): DType[f"float{bits}"] for bits in (16, 32, 64)},
    (_BFLOAT, 16): DType.bfloat16,
    (10, 8): DType.float8_e4m3,
    (12, 8): DType.float8_e5m2,
    (14, 8): DType.ue8m0,
}
_CODES = {dtype: code for code, dtype in _TYPES.items()}

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (py_object, c_char_p), c_void_p


class Found(NamedTuple):
    """An array that was read, and what keeps its memory."""

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
    """Where an array is, and what. It stays the array's: its capsule is not consumed, only kept as long as what this returns.

    On a GPU ``stream`` is the one that what was enqueued for the array comes before: 1 is the legacy default one in the convention, -1 none.
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


# Showing. Who takes a capsule over calls its deleter, in any thread; who does not leaves that to the capsule's destructor.

_shown: dict[int, Any] = {}

# It calls no Python code, which an interrupt could break off.
_deleter = ctypes.CFUNCTYPE(None, c_void_p)(_shown.pop)

_raw_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_raw_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))


@ctypes.PYFUNCTYPE(None, c_void_p)
def _destructor(capsule: int) -> None:
    if _raw_valid(capsule, b"dltensor"):
        _shown.pop(_raw_pointer(capsule, b"dltensor"), None)


_new = ctypes.pythonapi.PyCapsule_New
_new.argtypes, _new.restype = (c_void_p, c_char_p, c_void_p), py_object

# Arrays may go after this module has, when the interpreter ends.
for _callback in (_deleter, _destructor):
    ctypes.pythonapi.Py_IncRef(py_object(_callback))


_DELETER, _DESTRUCTOR = (ctypes.cast(f, c_void_p).value for f in (_deleter, _destructor))

# A managed tensor, behind which its shape and strides stand.
_MANAGED = 64
_PACK = [struct.Struct(f"=Qii iBBH QQQ QQ {n}q{n}q") for n in range(MAX_DIMS + 1)]


class _Block:
    """A managed tensor of a type and a shape."""

    __slots__ = ("address", "at", "memory")

    def __init__(self, dtype: int, shape: Sequence[int], device: int) -> None:
        dims, (code, bits), pack = len(shape), _CODES[dtype], _PACK[len(shape)]
        self.memory = (ctypes.c_char * pack.size)()
        self.at = ctypes.addressof(self.memory)
        sizes = self.at + _MANAGED
        pack.pack_into(self.memory, 0, 0, CUDA, device, dims, code, bits, 1, sizes, sizes + 8 * dims, 0, 0, _DELETER, *shape, *dense(shape))
        self.address = memoryview(self.memory).cast("B")[:8].cast("Q")


# Blocks by what they say: the next array of a type and a shape takes one over whose array has gone, of which is shown.
_blocks: dict[tuple[int, tuple[int, ...], int], list[_Block]] = {}
_SAYINGS, _ALIKE = 1024, 16


def show(address: int, dtype: int, shape: tuple[int, ...], device: int, keep: Any) -> Any:
    """A capsule of memory of a GPU, which keeps something for as long as its taker uses the memory."""
    alike = _blocks.get((dtype, shape, device))
    if alike is None:
        if len(_blocks) >= _SAYINGS:
            _blocks.clear()
        alike = _blocks[dtype, shape, device] = []
    for block in alike:
        mine = block, keep
        if _shown.setdefault(block.at, mine) is mine:  # and no other thread's
            break
    else:
        block = _Block(dtype, shape, device)
        _shown[block.at] = block, keep
        if len(alike) < _ALIKE:
            alike.append(block)
    try:
        block.address[0] = address
        return _new(block.at, b"dltensor", _DESTRUCTOR)
    except BaseException:
        _shown.pop(block.at, None)
        raise
