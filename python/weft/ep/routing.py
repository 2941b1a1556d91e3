"""Where tokens and rows go, and rows that have arrived."""

from __future__ import annotations

import struct
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import _abi, compiled, memory, streams, views
from .._abi import Part, Status
from ..dtypes import OF_NUMBER, DType
from ..errors import ClosedError, InternalError
from ..resources import Lease
from ..streams import StreamLike
from .spec import ScaleOrder, _member

if TYPE_CHECKING:
    from .handle import Handle

_TENSOR = struct.Struct("=8xQii4q").unpack_from


Columns = tuple[DType, tuple[int, ...]]
"""The type and shape of scales in memory; ``turned`` ones have their last two dimensions swapped."""


def in_columns(scales: Any, columns: Columns | None) -> Any:
    """Scales of PyTorch's in the given type, if one is given."""
    if scales is None or columns is None:
        return scales
    dtype, shape = columns
    return scales.view(memory.torch_dtype(dtype)).view(shape).transpose(-2, -1)


class _Holder:
    """A holder that is collected at once: the next call releases its handle."""


class _Attributes:
    """What the compiled part's Held has."""

    __slots__ = (
        "_array_kind",
        "_data",
        "_handle",
        "_number",
        "_routing",
        "_rows",
        "_scales",
        "_stream",
        "_tokens",
    )


_Base: Any = _Attributes if compiled.NATIVE is None else compiled.NATIVE.Held


class _Held(_Base):  # type: ignore[misc]
    """A handle of a Handle's that is given back: by release, or by the next operation after it was collected.

    The compiled part makes them without ``__init__``, and takes their end down itself.
    """

    __slots__ = ("__weakref__",)

    _kind = "it was"
    _RELEASE = ""

    def __init__(self, handle: Handle, number: int) -> None:
        self._handle: Handle = handle
        self._number = number
        handle._watch(self, self._RELEASE, number)

    def release(self) -> None:
        """Gives it back. Local. Further calls do nothing."""
        number, handle = self._number, self._handle
        if number and not handle.closed:
            status = getattr(handle._lib, self._RELEASE)(number)
            if status == Status.ERROR_BUSY:
                handle._watch(_Holder(), self._RELEASE, number)  # by the next call
            else:
                if status and status != Status.ERROR_HANDLE:
                    handle._check(status)
                handle._watched.pop(number, None)
        self._number = 0

    def _in_use(self) -> int:
        if not self._number:
            raise ClosedError(f"{self._kind} released before")
        return self._number

    def _shown(
        self, address: int, dtype: DType, shape: tuple[int, ...], lease: Lease | None, stream: int | None = None
    ) -> Any:
        """An array over memory at an address, which keeps this for as long as it lives."""
        handle, kind = self._handle, self._array_kind
        if lease is None and kind == memory.TORCH and handle._calls is not None and 0 not in shape:
            shown = handle._calls.show(self, address, dtype, shape)
            if shown is not None:
                return shown
        return memory.view(kind, address, dtype, shape, handle._device, lease or Lease(handle, self), stream)

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Routing(_Held):
    """Which row of which rank each selection goes to: dispatches and combines use it.

    On a GPU reading a number waits for it, which a capture cannot do. Arrays are in the GPU's memory; the
    stream in which the routing was prepared fills in those that describe rows. After a graph has prepared it
    anew ask for them again.
    """

    __slots__ = ()
    _kind = "this routing was"
    _RELEASE = "routing_release"

    def __init__(self, handle: Handle, number: int, tokens: int, kind: str) -> None:
        super().__init__(handle, number)
        self._tokens = tokens
        self._array_kind = kind
        self._rows = handle._fixed_rows

    def __repr__(self) -> str:
        return f"<weft.ep.Routing of {self.tokens} tokens{'' if self._number else ', released'}>"

    def _info(self) -> _abi.RoutingInfo:
        info, handle = _abi.RoutingInfo(), self._handle
        streams.refuse_capture(handle._device, "numbers of a routing")
        handle._check(handle._lib.routing_get(self._in_use(), info))
        if handle._device >= 0:
            handle.comm.check()  # the counts of a failed operation are void
        return info

    @property
    def tokens(self) -> int:
        """Tokens that this rank dispatches."""
        return self._tokens  # type: ignore[no-any-return]

    @property
    def rows(self) -> int:
        """Rows of the arrays that dispatch returns."""
        return self._row_count() if self._handle._device < 0 or self._rows is not None else int(self._info().rows)

    @property
    def received(self) -> int:
        """Rows that exist here, pads included."""
        return int(self._info().received)

    @property
    def demand(self) -> int:
        """Rows routed here, dropped ones included."""
        return int(self._info().demand)

    @property
    def selections(self) -> int:
        """Selections of this rank's tokens."""
        return int(self._info().selections)

    @property
    def visits(self) -> int:
        """Distinct pairs of this rank's tokens and a rank."""
        return int(self._info().visits)

    @property
    def remote_rows(self) -> int:
        """Rows of this rank's that cross to other ranks."""
        return int(self._info().remote_rows)

    @property
    def expert_counts(self) -> Any:
        """int32 [local experts]: rows in each expert's zone, pads not counted."""
        return self._part(Part.EXPERT_COUNTS)

    @property
    def expert_demand(self) -> Any:
        """int32 [local experts]: selections of each expert, dropped ones included."""
        return self._part(Part.EXPERT_DEMAND)

    @property
    def padded_counts(self) -> Any:
        """int32 [local experts]: rows of each zone, pads included."""
        return self._part(Part.PADDED_COUNTS)

    @property
    def expert_offsets(self) -> Any:
        """int32 [local experts]: the first row of each zone."""
        return self._part(Part.EXPERT_OFFSETS)

    @property
    def ranges(self) -> Any:
        """int64 [local experts, ranks]: begin << 32 | count of each source rank's rows in the zone.
        None where rows are not by expert."""
        return self._part(Part.RANGES)

    @property
    def source_counts(self) -> Any:
        """int32 [ranks]: tokens that each rank sends here."""
        return self._part(Part.SOURCE_COUNTS)

    @property
    def source_ranks(self) -> Any:
        """int32 [rows]: where each row comes from; -1 for rows that hold no token."""
        return self._part(Part.SOURCE_RANKS)

    @property
    def source_tokens(self) -> Any:
        """int32 [rows]: the token's index at its source."""
        return self._part(Part.SOURCE_TOKENS)

    @property
    def source_selections(self) -> Any:
        """int32 [rows]: which of its token's selections each row is; -1 for rows that hold no token.
        None where rows are not by expert."""
        return self._part(Part.SOURCE_SELECTIONS)

    @property
    def row_weights(self) -> Any:
        """float32 [rows]: the weight of each row's selection. None where rows are not by expert."""
        return self._part(Part.ROW_WEIGHTS)

    @property
    def row_experts(self) -> Any:
        """int32 [rows, top-k]: local experts, or -1. None where rows are by expert."""
        return self._part(Part.ROW_EXPERTS)

    @property
    def row_selection_weights(self) -> Any:
        """float32 [rows, top-k]: their weights. None where rows are by expert."""
        return self._part(Part.ROW_SELECTION_WEIGHTS)

    @property
    def row_demand(self) -> Any:
        """int32 [1]: rows routed here, pads and dropped ones included, where the rows are."""
        return self._part(Part.ROW_DEMAND)

    def parts(self, *names: str, demand: bool = False, rows: int | None = None) -> tuple[Any, ...]:
        """Several of the arrays above, of those that the layout has, each once, for less than one by
        one; here ``row_experts`` is int64.

        ``row_demand`` is not among them. With ``demand`` a list of ``expert_demand``'s numbers comes
        last. On a GPU those of rows may be of the first so many ``rows`` alone, and a
        :class:`weft.DeviceArray` of ``row_experts`` stays int32.
        """
        handle = self._handle
        if handle._device >= 0:
            found = []
            for name, part in handle._named.get(names) or handle._naming(names):
                array = self._part(part, rows if name in _OF_ROWS else None)
                found.append(memory.widened(array) if name == "row_experts" else array)
            if demand:
                found.append(self.expert_demand.tolist())
            return tuple(found)
        number, kind = self._in_use(), self._array_kind
        pool = handle._descriptions.get((names, demand)) or handle._describing(names, demand)
        args = pool.take()
        try:
            out = args.arrays(kind, self._row_count() if self._rows is None else self._rows)
            if status := handle._lib.routing_describe(number, args.address):
                handle._check(status)
            if demand:
                out.append(args.demand[:] if args.demand is not None else out[names.index("expert_demand")].tolist())
            return tuple(out)
        finally:
            pool.give(args)

    def _row_count(self) -> int:
        """The rows of received arrays, asked for once: on the host they do not change."""
        if self._rows is None:
            self._rows = int(self._info().rows)
        return self._rows

    def _part(self, part: Part, rows: int | None = None) -> Any:
        """The array of a part, or on a GPU its first so many rows."""
        handle = self._handle
        tensor = handle._tensors.take()
        try:
            if status := handle._lib.routing_tensor(self._in_use(), part, tensor.address):
                handle._check(status)
            address, dtype, dims, *sizes = _TENSOR(tensor.bytes)
        finally:
            handle._tensors.give(tensor)
        if not dtype:
            self._refuse_absence(part)
            return None
        shape = tuple(sizes[:dims])
        if rows is not None and rows < shape[0]:
            shape = (rows, *shape[1:])
        if handle._device >= 0:
            return self._shown(address, OF_NUMBER[dtype], shape, None)
        return memory.copy(self._array_kind, address, OF_NUMBER[dtype], shape)

    def _refuse_absence(self, part: Part) -> None:
        """Raises why a tensor is absent that the layout has."""
        handle = self._handle
        if handle._device < 0 or part in (_BY_EXPERT if handle.spec.one_row_per_rank else _BY_RANK):
            return
        streams.refuse_capture(
            handle._device, "a description of rows, whose memory is made when the first is asked for,"
        )
        handle.comm.check()
        raise InternalError(f"there is no {part.name.lower()}")


PARTS = {part.name.lower(): part for part in Part}
"""C's names of the parts of a routing."""

_OF_ROWS = frozenset(
    ("source_ranks", "source_tokens", "source_selections", "row_weights", "row_experts", "row_selection_weights")
)

# The parts that only layouts of one kind have.
_BY_EXPERT = (Part.RANGES, Part.SOURCE_SELECTIONS, Part.ROW_WEIGHTS)
_BY_RANK = (Part.ROW_EXPERTS, Part.ROW_SELECTION_WEIGHTS)


class Received(_Held):
    """Rows that have arrived.

    ``rows`` and ``scales`` show the handle's memory, which has room for ``live`` batches: release a batch
    when its rows were read and their combine has returned, or delete it and its arrays.
    """

    __slots__ = ()
    _kind = "these received rows were"
    _RELEASE = "received_release"

    def __init__(
        self, handle: Handle, number: int, routing: Routing, kind: str, data: Any, scales: Any, stream: int
    ) -> None:
        super().__init__(handle, number)
        self._stream = stream
        self._routing = routing
        self._array_kind = kind
        self._data, self._scales = bytes(data), bytes(scales)
        if routing._rows is None and handle._device < 0:
            routing._rows = _TENSOR(data)[3]

    @property
    def routing(self) -> Routing:
        """Where they come from."""
        return self._routing  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        _, dtype, dims, *sizes = _TENSOR(self._data)
        state = "" if self._number else ", released"
        return f"<weft.ep.Received {OF_NUMBER[dtype].name}{sizes[:dims]}{state}>"

    @property
    def rows(self) -> Any:
        """The rows, in the layout of the spec; opaque ones are uint8 [rows, row_bytes]."""
        return self._array(_TENSOR(self._data), None)

    @property
    def scales(self) -> Any:
        """Their scales, a number for each 128 of a row, in the spec's order; None where there are none."""
        return self._array(_TENSOR(self._scales), None)

    def _arrays(self, columns: Columns | None = None) -> tuple[Any, Any]:
        """The rows and their scales in one call, which costs less than two; with another type for the scales,
        and their last two dimensions swapped."""
        handle, lease = self._handle, Lease(self._handle, self)
        (address, dtype, dims, *sizes), (of_scales, scale_dtype, scale_dims, *scale_sizes), device = (
            _TENSOR(self._data),
            _TENSOR(self._scales),
            handle._device,
        )
        shape, scale_shape = tuple(sizes[:dims]), tuple(scale_sizes[:scale_dims])
        if device < 0 or self._array_kind != memory.TORCH or 0 in shape or (scale_dtype and 0 in scale_shape):
            return self._array(_TENSOR(self._data), lease), in_columns(
                self._array(_TENSOR(self._scales), lease), columns
            )
        self._in_use()
        handle._open()
        beside = None
        if scale_dtype:
            t, of = columns or (OF_NUMBER[scale_dtype], scale_shape)
            beside = (of_scales, t, of, device, columns is not None)
        return views.show_pair((address, OF_NUMBER[dtype], shape, device, False), beside, lease)

    def copy_to(
        self,
        rows: Any = None,
        scales: Any = None,
        *,
        scale_order: ScaleOrder | str | None = None,
        source_tokens: Any = None,
        source_ranks: Any = None,
        row_weights: Any = None,
        row_experts: Any = None,
        row_selection_weights: Any = None,
        expert_counts: Any = None,
        ranges: Any = None,
        source_counts: Any = None,
        stream: StreamLike = None,
    ) -> None:
        """Copies the received batch to the caller's arrays; None leaves one out. Local.

        ``rows``: of the type and shape of :attr:`rows`. ``scales``: as :attr:`scales`, or in another
        ``scale_order`` of the spec: [.., rows, hidden / 128] row-major and [.., hidden / 128, rows]
        column-major; UE8M0 column-major int32 [.., hidden / 512, rows]. The others are as the
        :class:`Routing` has them, ``row_experts`` in int32 or int64. With a packed layout arrays may have more
        rows, and on a GPU with counts on the device fewer: rows that one array has no room for are left out of
        all. All are contiguous, and none overlaps another or the received batch.

        It writes only rows that exist, pads included, and their metadata. It does not write behind an
        expert's last row, nor the gaps of rank_major. On a GPU one kernel reads the counts from the GPU's
        memory, so the time follows from the received rows; the host does not wait, and the call can be
        captured. ``stream``: that of the dispatch, or one that waits for it; None is PyTorch's current
        stream.
        """
        order = _member(ScaleOrder, scale_order, ScaleOrder(self._handle.spec.scale_order))
        arrays = (
            rows,
            scales,
            source_tokens,
            source_ranks,
            row_weights,
            row_experts,
            row_selection_weights,
            expert_counts,
            ranges,
            source_counts,
        )
        self._handle._copy(self, order, arrays, stream)

    def _array(self, t: tuple[int, ...], lease: Lease | None) -> Any:
        address, dtype, dims, *shape = t
        if not dtype:
            return None
        self._in_use()
        self._handle._open()
        return self._shown(address, OF_NUMBER[dtype], tuple(shape[:dims]), lease, self._stream)
