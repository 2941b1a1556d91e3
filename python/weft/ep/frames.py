"""What a call passes to C, kept for the next call of its kind: operands, arguments, results.

A call takes a frame out of its handle's list and puts it back afterwards, so two threads never share one; one that an interrupt loses is garbage.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .. import _abi
from ..dtypes import DType
from ..errors import OperandError
from ..operands import Slot

if TYPE_CHECKING:
    from .spec import Spec

_HANDLES = struct.Struct("=QQ")


class Frame:
    """The operands of a call and the struct that points to them."""

    slots: tuple[Slot, ...] = ()

    def __init__(self, arguments: type[_abi.Struct]) -> None:
        self._arguments = arguments()
        self._buffer = memoryview(self._arguments).cast("B")
        self._pack = struct.Struct(f"={len(self._buffer) // 8}Q").pack_into
        self._size = len(self._buffer)
        self.address = ctypes.addressof(self._arguments)
        out = ctypes.c_uint64()
        self.out = out
        self.out_address = ctypes.addressof(out)

    def point(self, *members: int) -> int:
        """Fills the arguments in, and returns where they are."""
        self._pack(self._buffer, 0, self._size, *members)
        return self.address

    def fill(self, *arrays: Any) -> OperandError | None:
        """Takes the operands, or says what is wrong with the first that cannot be taken."""
        try:
            for slot, array in zip(self.slots, arrays):
                slot.fill(array)
        except OperandError as e:
            return e
        return None


class DispatchFrame(Frame):
    def __init__(self, spec: Spec, device: int) -> None:
        super().__init__(_abi.EpDispatchArgs)
        self.topk = Slot("topk", device)
        self.weights = Slot("weights", device)
        self.rows = Slot("rows", device, spec.row_dtype)
        self.scales = Slot("scales", device, DType.ue8m0 if spec.payload.name == "fp8_ue8m0" else 0)  # type: ignore[union-attr]
        self.slots = (self.topk, self.weights, self.rows, self.scales)
        self._data, self._scales = _abi.Tensor(), _abi.Tensor()
        self.data_buffer, self.scales_buffer = memoryview(self._data).cast("B"), memoryview(self._scales).cast("B")
        self._result = _abi.EpDispatchResult(data=ctypes.addressof(self._data), scales=ctypes.addressof(self._scales))
        self.result_address = ctypes.addressof(self._result)

        self._handles = memoryview(self._result).cast("B")[8:24]

    def arrived(self) -> tuple[int, int]:
        """The handles of what has arrived and of its routing."""
        return _HANDLES.unpack_from(self._handles)  # type: ignore[return-value]

    def clear(self) -> None:
        """Says that nothing has arrived."""
        _HANDLES.pack_into(self._handles, 0, 0, 0)


class CombineFrame(Frame):
    def __init__(self, spec: Spec, device: int) -> None:
        super().__init__(_abi.EpCombineArgs)
        t = spec.output_dtype
        self.rows = Slot("rows", device, t)
        self.sum = Slot("out", device, t, written=True)
        self.bias = Slot("bias", device, t)
        self.second_bias = Slot("second bias", device, t)
        self.slots = (self.rows, self.sum, self.bias, self.second_bias)


class DispatchBackwardFrame(Frame):
    def __init__(self, spec: Spec, device: int) -> None:
        super().__init__(_abi.EpDispatchBackwardArgs)
        t = spec.output_dtype
        self.slots = (
            Slot("grad_rows", device, t),
            Slot("grad_row_weights", device),
            Slot("grad_tokens", device, t, written=True),
            Slot("grad_weights", device, written=True),
        )


class CombineBackwardFrame(Frame):
    def __init__(self, spec: Spec, device: int) -> None:
        super().__init__(_abi.EpCombineBackwardArgs)
        t = spec.output_dtype
        self.slots = (
            Slot("grad_out", device, t),
            Slot("rows", device, t),
            Slot("grad_rows", device, t, written=True),
            Slot("grad_weights", device, written=True),
        )


F = TypeVar("F", bound=Frame)


class Frames(Generic[F]):
    """The frames of a handle that no call uses."""

    def __init__(self, make: Callable[[], F]) -> None:
        self._make = make
        self._spare: list[F] = []

    def take(self) -> F:
        try:
            return self._spare.pop()
        except IndexError:
            return self._make()

    def give(self, frame: F) -> None:
        for slot in frame.slots:
            slot.held = None
        self._spare.append(frame)
