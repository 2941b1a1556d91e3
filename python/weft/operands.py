"""Callers' operands: arrays of PyTorch, of numpy, and of every library with DLPack or the buffer protocol, in
the form that the C library takes.

Inputs that are not contiguous are copied; outputs that are not are refused, by name.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from collections.abc import Callable
from typing import Any

from . import _abi, compiled, dlpack, memory, streams
from .dtypes import ALIASES, DType
from .errors import OperandError, told

# The members of a tensor of C's after the address, for each number of dimensions, and their offset.
_PACK = [struct.Struct(f"=ii{n}q").pack_into for n in range(_abi.MAX_DIMS + 1)]
_TYPE_AT = _abi.Tensor.dtype.offset
_ADDRESS = _abi.Tensor.data.offset // 8  # in words

# Types of arrays whose own library lacks the real type, by the size that stands for it.
_STAND_INS = {1: (DType.uint8,), 2: (DType.uint16,)}


class Held(list[Any]):
    """The objects that a call keeps alive, and the GPU stream that it enqueues on."""

    __slots__ = ("stream", "torch_stream")

    def __init__(self) -> None:
        super().__init__()
        self.stream: int | None = None  # None where there is none, as on the host, or where it does not matter
        self.torch_stream: Any = None  # the same, if the caller has named it and PyTorch knows it


class Slot:
    """Where an operand is put for the C library to read. Members with the same value as the last time are not
    written again: most calls are like the one before."""

    __slots__ = (
        "_bytes",
        "_shape",
        "_struct",
        "address",
        "code",
        "device",
        "folds",
        "held",
        "kind",
        "name",
        "pinned",
        "wants",
        "why",
        "words",
        "written",
    )

    def __init__(
        self, name: str, device: int, wants: int = 0, *, written: bool = False, held: Held | None = None
    ) -> None:
        self.name = name
        self.device = device  # the GPU's number, or -1 on the host
        self.wants = wants  # the DType that is expected, where arrays may lack it
        self.written = written
        self.folds = False  # whether C may be told of one dimension, where there are more than it takes
        self.pinned = False  # whether a GPU takes tensors in pinned memory of the host's
        self.held = Held() if held is None else held  # copies that were made, and the owners of memory
        self.kind = memory.PLAIN  # of the last operand
        self._struct = _abi.Tensor()
        self._bytes = memoryview(self._struct).cast("B")
        self.words = self._bytes.cast("Q")
        self.address = ctypes.addressof(self._struct)
        self._shape: Any = None
        self.code = 0
        self.why: Any = None

    def fill(self, array: Any) -> int:
        """Takes an operand, or None for none, and returns the argument for C."""
        if array is None:
            return 0
        (_READERS.get(type(array)) or _reader(self, array))(self, array)
        return self.address

    def absent(self, why: Exception) -> int:
        """Takes no operand, and returns the reason in C's form: every rank then refuses the call with that
        text."""
        self.why = ctypes.create_string_buffer(told(why))
        self.put(ctypes.addressof(self.why), _abi.ABSENT, ())
        return self.address

    def put(self, address: int, code: int, shape: Any) -> None:
        if shape != self._shape or code != self.code:
            self.reshape(code, shape)
        self.words[_ADDRESS] = address

    def reshape(self, code: int, shape: Any) -> None:
        dims, sizes = len(shape), shape
        if dims > _abi.MAX_DIMS:
            if not self.folds:
                raise self.refuse(f"{dims} dimensions, want at most {_abi.MAX_DIMS}")
            dims, sizes = 1, (math.prod(shape),)
        self._shape = None  # in case of an interrupt here
        _PACK[dims](self._bytes, _TYPE_AT, code, dims, *sizes)
        self._shape, self.code = shape, code

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the last operand."""
        return tuple(self._shape)

    @property
    def length(self) -> int:
        """The first of its dimensions."""
        return self._shape[0]  # type: ignore[no-any-return]

    @property
    def at(self) -> int:
        """Where the last operand is."""
        return self.words[_ADDRESS]

    @property
    def dtype(self) -> DType:
        """The type of the last operand."""
        return DType(self.code)

    def code_of(self, name: str, size: int) -> int:
        """The number of the type of a name."""
        dtype = ALIASES.get(name) or DType.__members__.get(name)
        if dtype is None:
            raise self.refuse(f"type {name}, which is none of {', '.join(DType.__members__)}")
        if (
            self.wants
            and dtype != self.wants
            and dtype in _STAND_INS.get(size, ())
            and DType(self.wants).itemsize == size
        ):
            return self.wants
        return dtype

    def refuse(self, why: str) -> OperandError:
        return OperandError(f"{self.name}: {why}")

    def refuse_layout(self, shape: Any, strides: Any) -> OperandError:
        return self.refuse(
            f"shape {tuple(shape)} with strides {strides} is not contiguous, and is written: pass a contiguous array"
        )

    def refuse_copy(self, shape: Any, strides: Any) -> OperandError | None:
        """Why no copy can be made in the call's stream of an operand that is not contiguous, if none can."""
        if self.held.stream != streams.OWN:
            return None
        return self.refuse(
            f"shape {tuple(shape)} with strides {strides} is not contiguous, and nothing is copied for a call "
            f"on OWN: pass a contiguous array"
        )

    def refuse_device(self, where: object) -> OperandError:
        want = "the host's memory" if self.device < 0 else f"GPU {self.device}"
        return self.refuse(f"it is on {where}, and the communicator works on {want}: move it there")


_NATIVE = "<" if sys.byteorder == "little" else ">"  # as formats of ctypes' arrays begin

Reader = Callable[[Slot, Any], None]

_READERS: dict[type, Reader] = {}


def _reader(slot: Slot, array: Any) -> Reader:
    """How arrays of a type are read, found out once."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    reader: Reader
    if torch is not None and isinstance(array, torch.Tensor):
        compiled.knows(torch)
        reader = _torch_reader(torch)
    elif numpy is not None and isinstance(array, numpy.ndarray):
        reader = _numpy_reader(numpy)
    elif isinstance(array, memory.DeviceArray):
        reader = _read_device_array
    elif hasattr(array, "__dlpack__"):
        reader = _read_dlpack
    elif hasattr(array, "__cuda_array_interface__"):
        reader = _read_cuda_array
    else:
        try:
            memoryview(array).release()
        except TypeError:
            raise slot.refuse(
                f"a {type(array).__module__}.{type(array).__qualname__} is no array: pass one of PyTorch or "
                f"numpy, or of a library with DLPack, __cuda_array_interface__ or the buffer protocol"
            ) from None
        reader = _read_buffer
    _READERS[type(array)] = reader
    return reader


def _torch_reader(torch: Any) -> Reader:
    codes = {getattr(torch, d.name): int(d) for d in DType if hasattr(torch, d.name)}
    codes |= {getattr(torch, name): int(d) for name, d in ALIASES.items() if hasattr(torch, name)}
    kind = memory.TORCH

    def read(slot: Slot, x: Any) -> None:
        code = codes.get(x.dtype)
        if code is None or x.get_device() != slot.device or not x.is_contiguous() or x.is_neg():
            x, code = check(slot, x)
        if slot.held.torch_stream is not None:
            # else its memory may be another tensor's before the stream has passed
            x.record_stream(slot.held.torch_stream)
        slot.kind = kind
        shape = x.shape
        if shape != slot._shape or code != slot.code:  # put, without a call
            slot.reshape(code, shape)
        slot.words[_ADDRESS] = x.data_ptr() or memory_of(slot, x)

    def memory_of(slot: Slot, x: Any) -> int:
        if x.numel() and not x.is_cpu:
            raise slot.refuse_device(x.device)
        return 0

    def check(slot: Slot, x: Any) -> tuple[Any, int]:
        code = codes.get(x.dtype)
        if code is None:
            raise slot.refuse(f"type {x.dtype}, which is none of {', '.join(DType.__members__)}")
        if (x.device.type not in ("cpu", "cuda") or x.get_device() != slot.device) and not (
            slot.pinned and x.is_cpu and x.is_pinned()
        ):
            raise slot.refuse_device(x.device)
        if x.layout is not torch.strided:
            raise slot.refuse(f"layout {x.layout}, want a dense tensor")
        if x.is_neg():
            if slot.written:
                raise slot.refuse(
                    "it is a view that PyTorch negates when it is read, and is written: pass a tensor of its own"
                )
            x = x.resolve_neg()
            slot.held.append(x)
        if not x.is_contiguous():
            if slot.written:
                raise slot.refuse_layout(x.shape, x.stride())
            if refused := slot.refuse_copy(x.shape, x.stride()):
                raise refused
            if slot.held.torch_stream is not None:
                x.record_stream(slot.held.torch_stream)  # which copies it
            x = x.contiguous()
            slot.held.append(x)
        return x, code

    return read


def _numpy_reader(numpy: Any) -> Reader:
    def read(slot: Slot, x: Any) -> None:
        if slot.device >= 0:
            raise slot.refuse_device("the host")
        dtype = x.dtype
        if not dtype.isnative:
            raise slot.refuse(f"type {dtype.str} has another byte order than this machine: convert it")
        if not x.flags.c_contiguous:
            if slot.written:
                raise slot.refuse_layout(x.shape, x.strides)
            x = numpy.ascontiguousarray(x)
            slot.held.append(x)
        address, read_only = x.__array_interface__["data"]
        if slot.written and read_only:
            raise slot.refuse("it is read-only, and is written")
        slot.kind = memory.NUMPY
        slot.put(address, slot.code_of(dtype.name, dtype.itemsize), x.shape)

    return read


def _read_dlpack(slot: Slot, x: Any) -> None:
    where = dlpack.device_of(x)
    if where != slot.device:
        raise slot.refuse_device(
            "the host" if where == -1 else f"GPU {where}" if where >= 0 else "no memory of CUDA's or the host's"
        )
    found = dlpack.read(x, _foreign_stream(slot))
    if found.dtype is None:
        raise slot.refuse(f"DLPack type {found.type_words}, which is none of {', '.join(DType.__members__)}")
    if not found.contiguous:
        raise _refuse_strides(slot, found.shape, found.strides)
    slot.held.append(found)  # keeps the memory
    slot.kind = memory.default_kind() if slot.device < 0 else memory.PLAIN
    slot.put(found.address, slot.code_of(found.dtype.name, found.dtype.itemsize), found.shape)


def _foreign_stream(slot: Slot) -> int | None:
    """The call's stream in DLPack's form: work that other libraries have enqueued for an array comes
    before."""
    if slot.device < 0:
        return None
    stream = slot.held.stream
    return streams.current(slot.device) or 1 if stream is None else -1 if stream == streams.OWN else stream or 1


def _refuse_strides(slot: Slot, shape: Any, strides: Any) -> OperandError:
    if slot.written:
        return slot.refuse_layout(shape, strides)
    return slot.refuse(f"shape {shape} with strides {strides} is not contiguous: pass a contiguous copy")


def _read_device_array(slot: Slot, x: memory.DeviceArray) -> None:
    if x.device != slot.device:
        raise slot.refuse_device(f"GPU {x.device}")
    slot.kind = memory.PLAIN
    slot.put(x.address, x.dtype, x.shape)


_NUMPY_KINDS = {"f": "float", "i": "int", "u": "uint"}


def _read_cuda_array(slot: Slot, x: Any) -> None:
    if slot.device < 0:
        raise slot.refuse_device("a GPU")
    known = x.__cuda_array_interface__  # which GPU it does not say
    shape, typestr, (address, read_only) = tuple(known["shape"]), known["typestr"], known["data"]
    size = int(typestr[2:])
    name = "bool" if typestr[1:] == "b1" else f"{_NUMPY_KINDS.get(typestr[1], typestr[1])}{8 * size}"
    if typestr[0] not in "<|=" or name not in DType.__members__:
        raise slot.refuse(f"type {typestr}, which is none of {', '.join(DType.__members__)}")
    strides = known.get("strides")
    if strides is not None and not dlpack.contiguous(shape, [s // size for s in strides]):
        raise _refuse_strides(slot, shape, tuple(strides))
    if slot.written and read_only:
        raise slot.refuse("it is read-only, and is written")
    made = known.get("stream")
    if made is not None and made != _foreign_stream(slot):
        raise slot.refuse(
            f"it is made in stream {made}, and the call enqueues on another: call with stream={made}, or pass "
            f"an array of a library with DLPack"
        )
    slot.kind = memory.PLAIN
    slot.put(address or 0, slot.code_of(name, size), shape)


_BUFFER_TYPES = {
    "e": DType.float16,
    "f": DType.float32,
    "d": DType.float64,
    **dict.fromkeys("bhilqn", "int"),
    **dict.fromkeys("BHILQNc", "uint"),
    "?": DType.bool,
}


def _read_buffer(slot: Slot, x: Any) -> None:
    if slot.device >= 0:
        raise slot.refuse_device("the host")
    block = memoryview(x)
    found = _BUFFER_TYPES.get(block.format.lstrip("@=" + _NATIVE))
    if found is None:
        raise slot.refuse(f"buffer format {block.format!r}, which is none of {', '.join(DType.__members__)}")
    name = found.name if isinstance(found, DType) else f"{found}{8 * block.itemsize}"
    shape = block.shape
    if slot.written:
        if not block.c_contiguous:
            raise slot.refuse_layout(shape, block.strides)
        if block.readonly:
            raise slot.refuse("it is read-only, and is written")
    elif not block.c_contiguous or block.readonly:
        block = memoryview(bytearray(block.tobytes()))
    held = (ctypes.c_ubyte * block.nbytes).from_buffer(block)
    slot.held.append(held)
    slot.kind = memory.default_kind()
    slot.put(ctypes.addressof(held), slot.code_of(name, memoryview(x).itemsize), shape)


def kind_of(array: Any, device: int = -1) -> str:
    """The kind of new arrays that go with an operand."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return memory.TORCH
    return memory.default_kind() if device < 0 else memory.PLAIN
