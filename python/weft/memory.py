"""Arrays over memory of the library's, and new ones: of numpy, of PyTorch, or plain ones, of the same kind as
the caller's operands."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import dlpack, views
from .dtypes import SIZES, DType, foreign_name
from .errors import OperandError
from .resources import Lease

NUMPY, TORCH, PLAIN = "numpy", "torch", "plain"

# The types of memoryviews; for types that they lack, unsigned integers of the same size.
_FORMATS = {
    DType.float16: "e",
    DType.float32: "f",
    DType.float64: "d",
    DType.int8: "b",
    DType.int16: "h",
    DType.int32: "i",
    DType.int64: "q",
    DType.uint16: "H",
    DType.bfloat16: "H",
    DType.uint32: "I",
    DType.uint64: "Q",
    DType.bool: "?",
}


def format_of(dtype: DType) -> str:
    """The format of a type, as modules struct and memoryview have it."""
    return _FORMATS.get(dtype, "B")


def default_kind(device: int = -1) -> str:
    """The kind of arrays where no operand says one: numpy's if there is numpy, else PyTorch's if it is
    in use; on a GPU PyTorch's if it is in use there."""
    if device >= 0:
        torch = sys.modules.get("torch")
        return TORCH if torch is not None and torch.cuda.is_available() else PLAIN
    try:
        import numpy  # noqa: F401
    except ImportError:
        return TORCH if "torch" in sys.modules else PLAIN
    return NUMPY


def numpy_dtype(dtype: DType) -> Any:
    """The type in numpy. Types that numpy lacks are those of ml_dtypes, where that is installed, else
    unsigned integers of the same size."""
    import numpy

    if dtype in (DType.bfloat16, DType.float8_e4m3, DType.float8_e5m2, DType.ue8m0):
        try:
            import ml_dtypes
        except ImportError:
            return numpy.dtype(f"uint{8 * dtype.itemsize}")
        return numpy.dtype(getattr(ml_dtypes, foreign_name(dtype)))
    return numpy.dtype(dtype.name)


@functools.cache
def torch_dtype(dtype: DType) -> Any:
    """The type in PyTorch."""
    import torch

    return getattr(torch, foreign_name(dtype))


@functools.cache
def torch_device(device: int) -> Any:
    """A GPU as PyTorch's device: looking it up by name costs more."""
    import torch

    return torch.device("cuda", device)


class DeviceArray:
    """Memory of a GPU as any library takes it over without a copy: ``torch.from_dlpack(x)``,
    ``cupy.from_dlpack(x)``, or by ``__cuda_array_interface__``.

    Results on a GPU are of this class if the operands were not PyTorch's.
    """

    def __init__(
        self,
        address: int,
        dtype: DType,
        shape: Sequence[int],
        device: int,
        lease: Lease | None,
        stream: int | None = None,
    ) -> None:
        self.address = address
        self.dtype = dtype
        self.shape = tuple(shape)
        self.device = device
        """The GPU's number."""
        self.stream = stream
        """The stream that fills it, if one does."""
        self._lease = lease

    @property
    def nbytes(self) -> int:
        """The bytes that it has."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        # bits, of types that the interface has no name for
        typestr = _TYPESTR.get(self.dtype, f"<u{self.dtype.itemsize}")
        stream = None if self.stream is None else self.stream or 1  # 1 is the legacy default stream there
        return {
            "shape": self.shape,
            "typestr": typestr,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": stream,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device

    def __dlpack__(
        self, *, stream: int | None = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """A capsule. A consumer that takes the array over in another stream than its own orders the two."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"it is shown where it is, on GPU {self.device}: copy it afterwards")
        return dlpack.show(self.address, self.dtype, self.shape, self.device, self)

    def __repr__(self) -> str:
        return f"<weft.DeviceArray {self.dtype.name} {list(self.shape)} on GPU {self.device}>"


_TYPESTR = {
    **{DType[f"float{8 * n}"]: f"<f{n}" for n in (2, 4, 8)},
    **{DType[f"int{8 * n}"]: f"<i{n}" for n in (1, 2, 4, 8)},
    **{DType[f"uint{8 * n}"]: f"<u{n}" for n in (1, 2, 4, 8)},
    DType.bool: "|b1",
}


def view(
    kind: str, address: int, dtype: DType, shape: Sequence[int], device: int, lease: Lease, stream: int | None = None
) -> Any:
    """An array over memory at an address, which it keeps for as long as it lives. ``device`` is a GPU's
    number, or -1; ``stream`` fills the array."""
    if device >= 0:
        return _on_gpu(kind, address, dtype, tuple(shape), device, lease, stream)
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return empty(kind, shape, dtype, device)
    block: Any = (ctypes.c_ubyte * size).from_address(address)
    block._lease = lease
    if kind == TORCH:
        import torch

        return torch.frombuffer(block, dtype=torch.uint8).view(torch_dtype(dtype)).view(tuple(shape))
    if kind == NUMPY:
        import numpy

        return numpy.frombuffer(block, numpy.uint8).view(numpy_dtype(dtype)).reshape(tuple(shape))
    return _plain(memoryview(block), dtype, shape)


def _on_gpu(
    kind: str, address: int, dtype: DType, shape: tuple[int, ...], device: int, lease: Lease, stream: int | None
) -> Any:
    if kind != TORCH:
        return DeviceArray(address, dtype, shape, device, lease, stream)
    if 0 in shape:
        return empty(kind, shape, dtype, device)
    return views.show(address, dtype, shape, device, lease)


def empty(kind: str, shape: Sequence[int], dtype: DType, device: int) -> Any:
    """A new array, not initialised."""
    if kind == TORCH and device < 0:
        make = _makers.get((shape, dtype)) if type(shape) is tuple else None
        return (make or maker(kind, tuple(shape), dtype))()
    if device >= 0:
        if kind != TORCH:
            raise OperandError(
                "results on a GPU are made for operands of PyTorch's only: give the arrays that are to hold them"
            )
        return sys.modules["torch"].empty(shape, dtype=torch_dtype(dtype), device=torch_device(device))
    if kind == NUMPY:
        import numpy

        return numpy.empty(tuple(shape), numpy_dtype(dtype))
    return _plain(memoryview(bytearray(math.prod(shape) * dtype.itemsize)), dtype, shape)


# A maker of small PyTorch tensors, by shape and type: copying an existing one costs half of making one from
# nothing.
_makers: dict[tuple[tuple[int, ...], DType], Callable[[], Any]] = {}
_MAKERS, _SAMPLE_BYTES = 256, 1 << 12


def maker(kind: str, shape: tuple[int, ...], dtype: DType) -> Callable[[], Any]:
    """A maker of such new host arrays, not initialised, for callers that make many."""
    if kind != TORCH:
        return lambda: empty(kind, shape, dtype, -1)
    found = _makers.get((shape, dtype))
    if found is not None:
        return found
    torch = sys.modules["torch"]
    make = functools.partial(torch.empty, shape, dtype=torch_dtype(dtype), device="cpu")
    # a tensor made under a mode must not be shared
    if math.prod(shape) * SIZES[dtype] <= _SAMPLE_BYTES and len(_makers) < _MAKERS and not views.watched():
        make = _makers[shape, dtype] = functools.partial(torch.empty_like, make())
    return make


def samples(shape: tuple[int, ...], dtype: DType, device: int) -> Callable[[int], Any]:
    """A maker of PyTorch tensors of so many rows of a shape, or of that shape for -1 rows. They take no memory: others
    are made like them."""

    def sample(rows: int) -> Any:
        torch, where = sys.modules["torch"], "cpu" if device < 0 else torch_device(device)
        with torch.inference_mode(False):
            whole = shape if rows < 0 else (rows, *shape)
            return torch.empty((1,) * len(whole), dtype=torch_dtype(dtype), device=where).expand(whole)

    return sample


def address_of(kind: str, array: Any) -> int:
    """Where an array of the host's is that :func:`empty` has made."""
    if kind == TORCH:
        return array.data_ptr()  # type: ignore[no-any-return]
    if kind == NUMPY:
        return int(array.ctypes.data)
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(array)) if array.nbytes else 0


def widened(array: Any) -> Any:
    """An array of int32 as one of int64, where something can make one."""
    if isinstance(array, DeviceArray):
        return array
    return array.astype("int64") if hasattr(array, "astype") else array.long()


def copy(kind: str, address: int, dtype: DType, shape: Sequence[int]) -> Any:
    """A new array with the content at a host address."""
    out = empty(kind, shape, dtype, -1)
    fill(kind, out, address, math.prod(shape) * dtype.itemsize)
    return out


def fill(kind: str, array: Any, address: int, size: int) -> None:
    """Copies bytes at an address of the host's into an array that :func:`empty` has made."""
    if size:
        ctypes.memmove(array.data_ptr() if kind == TORCH else address_of(kind, array), address, size)


def _plain(block: Any, dtype: DType, shape: Sequence[int]) -> Any:
    if 0 in shape:  # which memoryviews cannot be cast to
        return block.cast("B").cast(format_of(dtype))
    return block.cast("B").cast(format_of(dtype), tuple(shape))
