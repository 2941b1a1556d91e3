"""Reading arrays of any library through DLPack, whose structs are a public convention."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object
from typing import Any, NamedTuple

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
_CUDA_DEVICES = (2, 13)

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
    device: int  # a GPU's number; -1 is the host, -2 something else
    capsule: Any


def read(array: Any, device: int) -> Found:
    """Where an array is, and what. It stays the array's: its capsule is not consumed, only kept as long as what this returns."""
    # On a GPU what was enqueued before on the default stream comes first; 1 is that stream in the convention.
    capsule = array.__dlpack__() if device < 0 else array.__dlpack__(stream=1)
    t = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    shape = tuple(t.shape[i] for i in range(t.ndim))
    dense = [1] * t.ndim
    for i in reversed(range(t.ndim - 1)):
        dense[i] = dense[i + 1] * shape[i + 1]
    strides = tuple(t.strides[i] for i in range(t.ndim)) if t.strides else tuple(dense)
    contiguous = 0 in shape or all(n == 1 or s == d for n, s, d in zip(shape, strides, dense, strict=True))
    kind = t.device.type
    where = -1 if kind in _HOST_DEVICES else t.device.id if kind in _CUDA_DEVICES else -2
    dtype = _TYPES.get((t.dtype.code, t.dtype.bits)) if t.dtype.lanes == 1 else None
    words = f"{t.dtype.code} of {t.dtype.bits} bits"
    return Found((t.data or 0) + t.byte_offset, dtype, words, shape, strides, contiguous, where, capsule)
