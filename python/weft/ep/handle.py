"""Exchanges of one spec among the ranks of a communicator."""

from __future__ import annotations

import ctypes
from typing import Any, Union

from .. import _abi, memory, streams
from ..communicator import Communicator
from ..dtypes import DType
from ..errors import OperandError
from ..operands import Slot
from ..resources import Lease, Resource
from ..streams import StreamLike
from .frames import CombineBackwardFrame, CombineFrame, DispatchBackwardFrame, DispatchFrame, Frame, Frames
from .routing import Received, Routing
from .spec import Layout, Spec
from .work import PendingCombine, PendingDispatch

RoutingLike = Union[Routing, Received]


class Handle(Resource):
    """Exchanges of one :class:`Spec` among the ranks of a communicator. Several handles may live at once; they share nothing.

    Making one is collective, and so is every operation: each unmasked rank calls them in the same order. Inputs are arrays of PyTorch, of numpy, or of what has
    DLPack or the buffer protocol; results are of the kind that the rows were. numpy has no bfloat16 and no float8: arrays of ml_dtypes are taken, and
    unsigned whole numbers of the same size where the spec says what they stand for.

    Shapes below: ``tokens`` of this rank, ``topk`` and ``hidden`` of the spec, and ``rows`` as the layout has them: [local experts, rows, hidden] for
    expert_major, [rows, hidden] for the others.

    ``stream``: on the host None. On a GPU what was computed there comes before, the call enqueues and returns, and operands are borrowed until the stream has
    passed; None is PyTorch's current stream.
    """

    _kind = "handle"

    def __init__(self, comm: Communicator, spec: Spec | None = None, **choices: Any) -> None:
        """Makes a handle of a spec, or of what a :class:`Spec` takes. Here the memory for exchanges is allocated."""
        if spec is None:
            spec = Spec(**choices)
        elif choices:
            raise TypeError("give a spec, or what makes one, not both")
        number = ctypes.c_uint64()
        comm._check(comm._lib.ep_create(comm._handle, spec._struct(), ctypes.addressof(number)))
        super().__init__(comm._lib, number.value, comm)
        self._garbage: list[tuple[str, int]] = []
        self._comm = comm
        self._device = device = comm._device
        self.spec = spec
        """What the handle was made from."""
        info = _abi.EpInfo()
        self._check(self._lib.ep_get(self._handle, info))
        self.capacity: int = info.capacity
        """Rows of a received array at its largest."""
        self.memory_bytes: int = info.memory_bytes
        """Of the handle's windows on this rank."""
        self.sms: tuple[int, int, int] = (info.dispatch_sms, info.combine_sms, info.gradient_sms)
        """On a GPU: multiprocessors that dispatches, combines and gradients run on."""
        self._dispatches = Frames(lambda: DispatchFrame(spec, device))
        self._combines = Frames(lambda: CombineFrame(spec, device))
        self._dispatch_backwards = Frames(lambda: DispatchBackwardFrame(spec, device))
        self._combine_backwards = Frames(lambda: CombineBackwardFrame(spec, device))
        self._waits: tuple[Any, ...] = ()

    @property
    def comm(self) -> Communicator:
        """The handle's communicator."""
        return self._comm

    # Routing.

    def prepare(self, topk: Any, weights: Any = None, *, stream: StreamLike = None) -> Routing:
        """Turns routing into what dispatches and combines go by, any number of times. Collective.

        ``topk``: int32 or int64 [tokens, topk], the experts that each token selects, -1 for none, those of a token distinct. ``weights``: float32
        [tokens, topk]; None if sums are plain. Both may be changed afterwards.
        """
        on = self._begin(stream)
        frame = self._dispatches.take()
        try:
            refused = frame.fill(topk, weights)
            given = 0 if refused else (topk is not None) * frame.topk.address
            self._end(refused, self._lib.ep_prepare(self._handle, on, given, (weights is not None) * frame.weights.address, frame.out_address))
            return Routing(self, frame.out.value, len(topk), frame.topk.kind)
        finally:
            self._dispatches.give(frame)

    # Dispatch.

    def dispatch(
        self, rows: Any, topk: Any = None, weights: Any = None, *, routing: RoutingLike | None = None, scales: Any = None, stream: StreamLike = None
    ) -> Received:
        """Sends the rows of this rank's tokens to their experts, and receives those that come. Collective.

        ``rows``: [tokens, hidden] of the spec's row type; opaque ones uint8 [tokens, row_bytes]. ``scales``, of rows that come quantised: float32 or UE8M0
        [tokens, hidden / 128]; opaque ones uint8 [tokens, scale_bytes]. Either ``topk`` and ``weights``, as :meth:`prepare` takes them, or the ``routing``
        that it made.
        """
        on = self._begin(stream)
        frame = self._dispatches.take()
        frame.clear()
        try:
            number = _number(routing)
            refused = frame.fill(topk, weights, rows, scales)
            self._end(refused, self._lib.ep_dispatch(self._handle, on, _dispatch(frame, number, topk, weights, rows, scales, refused), frame.result_address, 0))
            return self._arrived(frame, routing, topk, frame.rows.kind)
        except BaseException:
            self._abandon(frame, routing)
            raise
        finally:
            self._dispatches.give(frame)

    def send_dispatch(
        self, rows: Any, topk: Any = None, weights: Any = None, *, routing: RoutingLike | None = None, scales: Any = None, stream: StreamLike = None
    ) -> PendingDispatch:
        """The first half of :meth:`dispatch`: sends only. ``rows`` and ``scales`` are borrowed until the second half, and are not changed. Collective."""
        on = self._begin(stream)
        frame = self._dispatches.take()
        try:
            number = _number(routing)
            refused = frame.fill(topk, weights, rows, scales)
            arguments = _dispatch(frame, number, topk, weights, rows, scales, refused)
            self._end(refused, self._lib.ep_dispatch(self._handle, on, arguments, 0, frame.out_address))
            borrowed = (rows, scales, frame.rows.held, frame.scales.held)
            known = _routing(routing)
            return PendingDispatch(self, frame.out.value, borrowed, known.tokens if known else len(topk), known, frame.rows.kind)
        finally:
            self._dispatches.give(frame)

    def _receive(self, work: int, tokens: int, routing: Routing | None, kind: str) -> Received:
        frame = self._dispatches.take()
        frame.clear()
        try:
            self._check(self._lib.work_receive(work, frame.result_address))
            return self._arrived(frame, routing, range(tokens), kind)
        except BaseException:
            self._abandon(frame, routing)
            raise
        finally:
            self._dispatches.give(frame)

    def _arrived(self, frame: DispatchFrame, routing: RoutingLike | None, tokens: Any, kind: str) -> Received:
        received, by = frame.arrived()
        known = _routing(routing)
        return Received(self, received, known or Routing(self, by, len(tokens), kind), kind, frame.data_buffer, frame.scales_buffer)

    def _abandon(self, frame: DispatchFrame, routing: RoutingLike | None) -> None:
        """Gives back what has arrived for a caller who was interrupted before it was told. What was given back before is refused as such."""
        received, by = frame.arrived()
        if received:
            self._garbage.append((Received._RELEASE, received))
        if by and routing is None:
            self._garbage.append((Routing._RELEASE, by))

    # Combine.

    def combine(self, rows: Any, routing: RoutingLike, *, out: Any = None, bias: Any = None, stream: StreamLike = None) -> Any:
        """Brings the experts' rows home and sums them. Collective.

        ``rows``: as dispatch gave them, of the spec's output type. ``bias``: [tokens, hidden], or two such, which are added first. Returns ``out``:
        [tokens, hidden], a new array if None.
        """
        return self._combine(rows, routing, out, bias, stream, later=False)

    def send_combine(self, rows: Any, routing: RoutingLike, *, out: Any = None, bias: Any = None, stream: StreamLike = None) -> PendingCombine:
        """The first half of :meth:`combine`: sends only. ``rows``, ``out`` and ``bias`` are borrowed until the second half. Collective."""
        sent: PendingCombine = self._combine(rows, routing, out, bias, stream, later=True)
        return sent

    def _combine(self, rows: Any, routing: RoutingLike, out: Any, bias: Any, stream: StreamLike, *, later: bool) -> Any:
        on = self._begin(stream)
        frame = self._combines.take()
        try:
            by = _routing(routing)
            first, second = bias if isinstance(bias, (tuple, list)) else (bias, None)
            refused = None
            if out is None:
                refused = frame.fill(rows)
                out = memory.empty(frame.rows.kind, (by.tokens, self.spec.hidden), self.spec.output_dtype, self._device)
            refused = refused or frame.fill(rows, out, first, second)
            arguments = frame.point(
                by._in_use(),
                0 if refused or rows is None else frame.rows.address,
                0 if refused else frame.sum.address,
                0 if refused or first is None else frame.bias.address,
                0 if refused or second is None else frame.second_bias.address,
            )
            self._end(refused, self._lib.ep_combine(self._handle, on, arguments, frame.out_address if later else 0))
            if not later:
                return out
            return PendingCombine(self, frame.out.value, (rows, bias, by, [s.held for s in frame.slots]), out)
        finally:
            self._combines.give(frame)

    # Gradients.

    def dispatch_backward(
        self,
        grad_rows: Any,
        routing: RoutingLike,
        grad_row_weights: Any = None,
        *,
        grad_tokens: Any = None,
        grad_weights: Any = None,
        stream: StreamLike = None,
    ) -> tuple[Any, Any]:
        """The gradient of dispatch: what a combine does, without weights. Collective.

        ``grad_rows``: as dispatch gave the rows, of the spec's output type. ``grad_row_weights``: float32 [rows], with topk numbers a row for layouts of one row
        per rank; or None, on every rank. Returns ``grad_tokens``, [tokens, hidden], and ``grad_weights``, float32 [tokens, topk], or None without
        ``grad_row_weights``; new arrays where None is given.
        """
        on = self._begin(stream)
        frame = self._dispatch_backwards.take()
        try:
            by, spec = _routing(routing), self.spec
            refused = frame.fill(grad_rows, grad_row_weights)
            kind = frame.slots[0].kind
            if grad_tokens is None:
                grad_tokens = memory.empty(kind, (by.tokens, spec.hidden), spec.output_dtype, self._device)
            if grad_weights is None and grad_row_weights is not None:
                grad_weights = memory.empty(kind, (by.tokens, spec.topk), DType.float32, self._device)
            arrays = (grad_rows, grad_row_weights, grad_tokens, grad_weights)
            refused = refused or frame.fill(*arrays)
            self._end(refused, self._lib.ep_dispatch_backward(self._handle, on, _arguments(frame, by, arrays, refused)))
            return grad_tokens, grad_weights
        finally:
            self._dispatch_backwards.give(frame)

    def combine_backward(
        self, grad_out: Any, routing: RoutingLike, rows: Any = None, *, grad_rows: Any = None, grad_weights: Any = None, stream: StreamLike = None
    ) -> tuple[Any, Any]:
        """The gradient of combine: what a dispatch does, with weights. Collective.

        ``grad_out``: [tokens, hidden] of the spec's output type. ``rows``: what was combined, on every rank or on none. Returns ``grad_rows``, as dispatch gave
        the rows, which may be ``rows`` itself, and ``grad_weights``, float32 [tokens, topk], or None without ``rows``; new arrays where None is given.
        """
        on = self._begin(stream)
        frame = self._combine_backwards.take()
        try:
            by, spec = _routing(routing), self.spec
            refused = frame.fill(grad_out, rows)
            kind = frame.slots[0].kind
            if grad_rows is None:
                grad_rows = memory.empty(kind, self.rows_shape(by), spec.output_dtype, self._device)
            if grad_weights is None and rows is not None:
                grad_weights = memory.empty(kind, (by.tokens, spec.topk), DType.float32, self._device)
            arrays = (grad_out, rows, grad_rows, grad_weights)
            refused = refused or frame.fill(*arrays)
            self._end(refused, self._lib.ep_combine_backward(self._handle, on, _arguments(frame, by, arrays, refused)))
            return grad_rows, grad_weights
        finally:
            self._combine_backwards.give(frame)

    # Memory and counters.

    def rows_shape(self, routing: RoutingLike) -> tuple[int, ...]:
        """The shape of the rows that a dispatch by a routing returns and a combine takes, of numbers of the output type."""
        rows = _routing(routing).rows
        if self.spec.layout == Layout.expert_major:
            local = self.spec.experts // self._comm.ranks
            return (local, rows // local, self.spec.hidden)
        return (rows, self.spec.hidden)

    def combine_buffer(self, *, kind: str | None = None) -> Any:
        """Memory for rows that :meth:`combine` or :meth:`dispatch_backward` is to take: [capacity, hidden], of which theirs are the first rows.

        On GPUs it spares token-major rows a copy. For everything else no memory is better than another, and this is None.
        """
        self._open()
        t = _abi.Tensor()
        self._check(self._lib.ep_combine_buffer(self._handle, ctypes.addressof(t)))
        if not t.dtype:
            return None
        return memory.view(kind or memory.default_kind(), t.data, DType(t.dtype), t.shape[: t.dims], self._device, Lease(self))

    def count_waits(self, dispatch: Any = None, combine: Any = None) -> None:
        """Says where later operations count for how many nanoseconds this rank waited for each of the others: int64 [ranks], to which each adds.

        None counts nothing. The arrays are kept as long as operations may count there. Local.
        """
        self._open()
        slots = (Slot("dispatch", self._device, written=True), Slot("combine", self._device, written=True))
        numbers = [slot.fill(array) for slot, array in zip(slots, (dispatch, combine))]
        self._check(self._lib.ep_count_waits(self._handle, *numbers))
        self._waits = (dispatch, combine, [slot.held for slot in slots])

    # What all operations have in common.

    def _begin(self, stream: StreamLike) -> int:
        if self._closed:
            self._open()
        if self._garbage:
            self._collect()
        if stream is None and self._device < 0:
            return 0
        return streams.address(stream, self._device)

    def _end(self, refused: OperandError | None, status: int) -> None:
        """The end of a call. What this package refuses was passed on as no operand, so that the other ranks were told instead of left to wait."""
        if refused is not None:
            raise refused
        if status:
            raise self._failure(status)

    def _collect(self) -> None:
        """Gives back what was collected as garbage."""
        while self._garbage:
            name, number = self._garbage.pop()
            if getattr(self._lib, name)(number) == _abi.Status.ERROR_BUSY:
                self._garbage.append((name, number))
                return

    def _destroy(self) -> int:
        return int(self._lib.ep_destroy(self._handle))


def _routing(by: RoutingLike | None) -> Routing:
    return by.routing if isinstance(by, Received) else by  # type: ignore[return-value]


def _number(by: RoutingLike | None) -> int:
    return 0 if by is None else _routing(by)._in_use()


def _dispatch(frame: DispatchFrame, routing: int, topk: Any, weights: Any, rows: Any, scales: Any, refused: OperandError | None) -> int:
    """The arguments of a dispatch, without rows if some operand is refused."""
    return frame.point(
        routing,
        0 if topk is None or refused else frame.topk.address,
        0 if weights is None or refused else frame.weights.address,
        0 if rows is None or refused else frame.rows.address,
        0 if scales is None or refused else frame.scales.address,
    )


def _arguments(frame: Frame, by: Routing, arrays: tuple[Any, ...], refused: OperandError | None) -> int:
    """The arguments of a gradient, without operands if one is refused."""
    return frame.point(by._in_use(), *(0 if a is None or refused else slot.address for slot, a in zip(frame.slots, arrays)))
