"""Arguments of exchanges, and what they return, reused between calls."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import _abi, memory
from ..call_args import CallArgs, Operands
from ..dtypes import SIZES, DType
from ..errors import OperandError
from .spec import ROW_TYPES, Payload

if TYPE_CHECKING:
    from .spec import Spec


_TENSOR = struct.Struct("=8xQii4q").unpack_from


class ReturnedTensor:
    """A tensor that a C call returns, to be copied or viewed. Its shape is cached: it rarely changes."""

    __slots__ = ("_address", "_kind", "_like", "_make", "_size", "_tensor", "address", "bytes")

    def __init__(self) -> None:
        self._tensor = _abi.Tensor()
        self.bytes = memoryview(self._tensor).cast("B")
        self.address = ctypes.addressof(self._tensor)
        self._kind, self._like = "", [0]

    def size(self, kind: str) -> int:
        """The number of its bytes. Prepares :meth:`copy` to an array of that kind."""
        self._address, *like = _TENSOR(self.bytes)
        if like != self._like or kind != self._kind:
            code, dims, *sizes = like
            shape = tuple(sizes[:dims])
            self._size, self._make = math.prod(shape) * SIZES[code], memory.maker(kind, shape, DType(code))
            self._kind, self._like = kind, like
        return self._size

    @property
    def length(self) -> int:
        """The size of its first dimension."""
        return self._like[2]

    def copy(self) -> Any:
        """A new array with the tensor's contents."""
        made = self._make()
        memory.fill(self._kind, made, self._address, self._size)
        return made


class DispatchArgs(CallArgs):
    def __init__(self, spec: Spec, device: int) -> None:
        super().__init__(_abi.EpDispatchArgs)
        self.topk = self.slot("topk", device)
        self.weights = self.slot("weights", device)
        self.rows = self.slot("rows", device, spec.row_dtype)
        self.scales = self.slot("scales", device, DType.ue8m0 if spec.payload == Payload.fp8_ue8m0 else 0)
        self._data, self._scales = ReturnedTensor(), ReturnedTensor()
        self.data_bytes, self.scales_bytes = self._data.bytes, self._scales.bytes
        self._result = _abi.EpDispatchResult(data=self._data.address, scales=self._scales.address)
        self.result = memoryview(self._result).cast("B").cast("Q")
        self.result_address = ctypes.addressof(self._result)
        self.scaled = spec.payload in (Payload.fp8, Payload.fp8_ue8m0) or spec.scale_bytes > 0

    @property
    def returned_rows(self) -> int:
        """The number of returned rows, if rows are the first dimension."""
        return self._data.length

    def copies(self, kind: str, most: int) -> tuple[Any, Any] | None:
        """Copies of the received rows and scales; None if they exceed that many bytes."""
        size, scales = self._data.size(kind), self._scales if self.scaled else None
        if size + (0 if scales is None else scales.size(kind)) > most:
            return None
        return self._data.copy(), None if scales is None else scales.copy()

    def arguments(self, routing: int, topk: Any, weights: Any, rows: Any, scales: Any) -> Exception | None:
        """Fills in the operands; returns the error if one is invalid."""
        words = self.words
        words[1] = routing
        try:
            words[2] = 0 if topk is None else self.topk.fill(topk)
            words[3] = 0 if weights is None else self.weights.fill(weights)
            words[4] = self.rows.fill(rows)
            words[5] = 0 if scales is None else self.scales.fill(scales)
        except Exception as e:
            to_prepare = None if routing else topk
            return self.refuse(
                e,
                routing,
                (
                    (2, self.topk, to_prepare),
                    (3, self.weights, weights),
                    (4, self.rows, rows),
                    (5, self.scales, scales),
                ),
            )
        return None


class CopyArgs(CallArgs):
    """Arguments of a copy of received rows."""

    def __init__(self, spec: Spec, device: int) -> None:
        super().__init__(_abi.EpCopyArgs)
        members = _abi.EpCopyArgs
        names = [name for name, _ in members._fields_ if name not in ("size", "received", "scale_order", "reserved")]
        wants = {
            "rows": ROW_TYPES[Payload(spec.payload)],
            "scales": DType.ue8m0 if spec.payload == Payload.fp8_ue8m0 else 0,
        }
        self._slots = [
            (getattr(members, name).offset // 8, self.slot(name, device, wants.get(name, 0), written=True))
            for name in names
        ]
        self._order = members.scale_order.offset // 4
        self._halves = memoryview(self._arguments).cast("B").cast("i")

    def arguments(self, received: int, order: int, arrays: tuple[Any, ...]) -> None:
        """Fills in the arrays, in the order of the struct's members."""
        words = self.words
        words[1] = received
        self._halves[self._order] = order
        for (word, slot), array in zip(self._slots, arrays, strict=True):
            words[word] = slot.fill(array)


class CombineArgs(CallArgs):
    def __init__(self, spec: Spec, device: int) -> None:
        super().__init__(_abi.EpCombineArgs)
        t = spec.output_dtype
        self.rows = self.slot("rows", device, t)
        self.sum = self.slot("out", device, t, written=True)
        self.bias = self.slot("bias", device, t), self.slot("second bias", device, t)
        self.weights = self.slot("weights", device)
        self.received = _abi.EpCombineArgs.received.offset // 8  # the word of the received rows' handle

    def arguments(self, routing: int, rows: Any, out: Any, bias: Any, weights: Any = None) -> Exception | None:
        """Fills in the operands; returns the error if one is invalid."""
        words = self.words
        words[1] = routing
        words[4] = words[5] = words[6] = 0
        try:
            words[2] = self.rows.fill(rows)
            words[3] = self.sum.fill(out)
            if weights is not None:
                words[6] = self.weights.fill(weights)
            if bias is not None:
                biases = bias if isinstance(bias, (tuple, list)) else (bias,)
                if len(biases) > len(self.bias):
                    raise OperandError(f"bias: {len(biases)} arrays, want at most {len(self.bias)}")
                for i, b in enumerate(biases):
                    words[4 + i] = self.bias[i].fill(b)
        except Exception as e:
            return self.refuse(e, routing, self.operands(rows, out, bias, weights))
        return None

    def operands(self, rows: Any, out: Any, bias: Any, weights: Any) -> Operands:
        biases = *(bias if isinstance(bias, (tuple, list)) else (bias,)), None, None
        return (
            (2, self.rows, rows),
            (3, self.sum, out),
            (4, self.bias[0], biases[0]),
            (5, self.bias[1], biases[1]),
            (6, self.weights, weights),
        )


class GradientArgs(CallArgs):
    """Arguments of a backward call: two operands that are read, then two that are written."""

    def __init__(
        self, arguments: type[_abi.Struct], first: str, second: str, rows: str, spec: Spec, device: int
    ) -> None:
        super().__init__(arguments)
        self.received = arguments.received.offset // 8
        t = spec.output_dtype
        self.first, self.second = self.slot(first, device, t), self.slot(second, device, t)
        self.rows, self.weights = (
            self.slot(rows, device, t, written=True),
            self.slot("grad_weights", device, written=True),
        )

    def arguments(self, routing: int, first: Any, second: Any, rows: Any, weights: Any) -> Exception | None:
        """Fills in the operands; returns the error if one is invalid."""
        words = self.words
        words[1] = routing
        try:
            for i, (slot, array) in enumerate(
                ((self.first, first), (self.second, second), (self.rows, rows), (self.weights, weights)), 2
            ):
                words[i] = slot.fill(array)
        except Exception as e:
            return self.refuse(e, routing, self.operands(first, second, rows, weights))
        return None

    def operands(self, first: Any, second: Any, rows: Any, weights: Any) -> Operands:
        return (2, self.first, first), (3, self.second, second), (4, self.rows, rows), (5, self.weights, weights)


class DescriptionArgs(CallArgs):
    """Arguments of a query for parts of a routing."""

    def __init__(self, parts: list[tuple[str, tuple[int, ...], DType]], demand: int) -> None:
        super().__init__(_abi.RoutingDescription)
        # For each part the word of its address, its shape (-1 for the rows) and its type.
        self.parts = [
            (getattr(_abi.RoutingDescription, name).offset // 8, shape, dtype) for name, shape, dtype in parts
        ]
        self._sized: tuple[str, int] = "", 0
        self._makers: list[tuple[int, Callable[[], Any]]] = []
        self.demand: Any = None
        if demand:
            self.demand = (ctypes.c_int32 * demand)()
            self.words[_abi.RoutingDescription.expert_demand.offset // 8] = ctypes.addressof(self.demand)

    def arrays(self, kind: str, rows: int) -> list[Any]:
        """New arrays for the parts; the call fills them."""
        if self._sized != (kind, rows):
            shaped = (
                (word, shape if shape[0] >= 0 else (rows, *shape[1:]), dtype) for word, shape, dtype in self.parts
            )
            self._makers = [(word, memory.maker(kind, shape, dtype)) for word, shape, dtype in shaped]
            self._sized = kind, rows
        out, words = [], self.words
        for word, make in self._makers:
            array = make()
            words[word] = array.data_ptr() if kind == memory.TORCH else memory.address_of(kind, array)
            out.append(array)
        return out
