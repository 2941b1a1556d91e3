"""Exchanges of one spec among the ranks of a communicator."""

from __future__ import annotations

import ctypes
import itertools
import sys
import warnings
import weakref
import zlib
from collections.abc import Callable
from typing import Any, NoReturn

from .. import _abi, compiled, memory, streams, views
from ..call_args import UNMADE, ArgsPool, Pool
from ..communicator import Communicator
from ..dtypes import DType
from ..errors import InvalidError, OperandError, unexpected
from ..limits import timeout as limit
from ..operands import Slot, kind_of
from ..resources import Garbage, Lease, Made
from ..streams import StreamLike
from .call_args import CombineArgs, CopyArgs, DescriptionArgs, DispatchArgs, GradientArgs, ReturnedTensor
from .routing import PARTS, Received, Routing, _Holder
from .spec import Counts, Layout, Spec
from .work import PendingCombine, PendingDispatch

RoutingLike = Routing | Received

_numbers = itertools.count(1)

NUMBERED: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()
"""The handles that live, by their numbers."""


def _ends_gradient(call: str) -> None:
    """Warns the caller of a method of a handle, one of whose operands requires a gradient, that it ends there."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.is_grad_enabled():
        warnings.warn(
            f"{call}: an operand requires a gradient, and none passes this method: call weft.torch.{call}, or say by "
            "torch.no_grad() or detach() that none is wanted",
            stacklevel=3,
        )


class Handle(Made):
    """Exchanges of one :class:`Spec` among the ranks of a communicator. Several handles may live at
    once; they share nothing.

    Making one is collective, and so is every operation: each unmasked rank calls them in the same order.
    Inputs are arrays of PyTorch, of numpy, or of any library with DLPack or the buffer protocol. Results are
    of the same kind as the rows. numpy has no bfloat16 and no float8: arrays of ml_dtypes are taken, and
    unsigned integers of the same size where the spec gives their type.

    Shapes below: ``tokens`` of this rank, ``topk`` and ``hidden`` of the spec, and ``rows`` as the
    layout has them: [local experts, rows, hidden] for expert_major, [rows, hidden] for the others.

    ``stream``: on the host None. On a GPU the call enqueues on a stream, after earlier work there, and
    returns. Operands are borrowed until the stream has passed. None is PyTorch's current stream. Another
    stream is as if the call stood in ``with torch.cuda.stream(stream)``: new tensors are that stream's, and
    operands keep their memory until it has passed. On a GPU results are tensors where the rows were, else
    :class:`weft.DeviceArray`, and ``out`` is given.

    In a CUDA graph's capture no call may wait for the host: layouts whose arrays are exactly the rows that
    arrive need ``counts="device"``. Keep the results of a captured call as long as the graph is replayed:
    other calls reuse released memory.

    ``timeout``: seconds that bound the call's waits on the host, as :class:`weft.timeout` does.
    """

    _kind = "handle"
    _RELEASE = "ep_destroy"

    def __init__(self, comm: Communicator, spec: Spec | None = None, **choices: Any) -> None:
        """Makes a handle of a spec, or of the arguments of a :class:`Spec`, by name. Here the memory for exchanges
        is allocated."""
        try:
            if spec is not None and not isinstance(spec, Spec):
                raise TypeError(f"{spec!r} is no weft.ep.Spec: give one, or its arguments by name, such as experts=8")
            if spec is None:
                if unknown := sorted(choices.keys() - Spec.__dataclass_fields__.keys()):
                    raise TypeError(
                        f"weft.ep.Handle has no argument {unknown[0]!r}; it has {', '.join(Spec.__dataclass_fields__)}"
                    )
                spec = Spec(**choices)
            elif choices:
                raise TypeError("give a spec, or the arguments of one, not both")
            struct = spec._struct()
        except Exception as e:
            comm._refuse(e, "ep_create", _abi.EpSpec())
        super().__init__(comm, "ep_create", struct)
        own = Garbage(comm._lib)  # batches and routings that were made from it
        self._garbage, self._watched, self._watch, self._collect = own.found, own.watched, own.watch, own.collect
        self._comm = comm
        self._device = device = comm._device
        self.spec = spec
        """The spec that the handle was made from."""
        info = _abi.EpInfo()
        self._check(self._lib.ep_get(self._handle, info))
        self.capacity: int = info.capacity
        """Rows of a received array at its largest."""
        self.memory_bytes: int = info.memory_bytes
        """Of the handle's windows on this rank."""
        self.sms: tuple[int, int, int] = (info.dispatch_sms, info.combine_sms, info.gradient_sms)
        """On a GPU: SMs that dispatches, combines and gradients run on."""
        self._dispatches = ArgsPool(lambda: DispatchArgs(spec, device))
        self._copies = ArgsPool(lambda: CopyArgs(spec, device))
        self._combines = ArgsPool(lambda: CombineArgs(spec, device))
        self._dispatch_backwards = ArgsPool(
            lambda: GradientArgs(
                _abi.EpDispatchBackwardArgs, "grad_rows", "grad_row_weights", "grad_tokens", spec, device
            )
        )
        self._combine_backwards = ArgsPool(
            lambda: GradientArgs(_abi.EpCombineBackwardArgs, "grad_out", "rows", "grad_rows", spec, device)
        )
        self._waits: tuple[Any, ...] = ()
        fixed = spec.counts == Counts.device or spec.layout in (Layout.expert_major, Layout.rank_major)
        self._fixed_rows = self.capacity if fixed else None
        self._tensors = Pool(ReturnedTensor)
        self._named: dict[tuple[str, ...], tuple[tuple[str, _abi.Part], ...]] = {}
        self._descriptions: dict[Any, ArgsPool[DescriptionArgs]] = {}
        # Compilers keep code for a number, also for later processes, where the number must not stand for
        # another kind of handle.
        kind = zlib.crc32(f"{spec} of {self.capacity} rows from {comm.ranks} ranks".encode())
        self.number: int = kind << 31 | next(_numbers)
        """The number of the handle, for operators that take only numbers."""
        NUMBERED[self.number] = self
        self._calls: Any = None
        if compiled.NATIVE is not None:
            self._calls = compiled.NATIVE.Calls(
                self._handle,
                device,
                weakref.ref(self),
                self._garbage,
                self._forgotten.found,
                Routing,
                Received,
                memory.TORCH,
                self._fixed_rows,
                memory.samples((spec.hidden,), spec.output_dtype, device),
            )

    def close(self) -> None:
        """Closes the handle on this rank. It is no collective call. Further calls do nothing."""
        super().close()
        if self._closed:
            self._calls = None

    def __repr__(self) -> str:
        s, closed = self.spec, ", closed" if self.closed else ""
        return (
            f"<weft.ep.Handle of {s.experts} experts, topk {s.topk}, hidden {s.hidden}, {s.layout.name}, "
            f"{s.payload.name}, rank {self._comm.rank} of {self._comm.ranks}{closed}>"
        )

    @property
    def comm(self) -> Communicator:
        """The handle's communicator."""
        return self._comm

    # Routing.

    def prepare(
        self,
        topk: Any,
        weights: Any = None,
        *,
        stream: StreamLike = None,
        timeout: float | None = None,
        **unknown: NoReturn,
    ) -> Routing:
        """Turns selections into a routing for any number of dispatches and combines. Collective.

        ``topk``: int32 or int64 [tokens, topk], the experts that each token selects, -1 for none, those
        of a token distinct. ``weights``: float32 [tokens, topk]; None if sums are plain, or if they
        come later, with a dispatch or a combine. Both may be changed afterwards, on a GPU once the
        stream has passed.
        """
        if unknown:
            self._refuse_operation(unexpected("prepare", unknown, _KEYWORDS["prepare"]))
        if timeout is not None:
            with self._limit(timeout):
                return self.prepare(topk, weights, stream=stream)
        on = self._begin(stream, takes=True)
        args = self._dispatches.take()
        try:
            if stream is not None:
                args.enter(stream, on, self._device)
            refused = args.arguments(0, topk, weights, None, None)
            self._end(refused, self._lib.ep_prepare(self._handle, on, args.words[2], args.words[3], args.out_address))
            return Routing(self, args.out.value, args.topk.length, args.topk.kind)
        finally:
            refused = None  # its traceback has this frame
            self._dispatches.give(args)

    # Dispatch.

    def dispatch(
        self,
        rows: Any,
        topk: Any = None,
        weights: Any = None,
        *,
        routing: RoutingLike | None = None,
        scales: Any = None,
        stream: StreamLike = None,
        timeout: float | None = None,
        **unknown: NoReturn,
    ) -> Received:
        """Sends the rows of this rank's tokens to their experts, and receives those that come. Collective.

        ``rows``: [tokens, hidden] of the spec's row type; opaque ones uint8 [tokens, row_bytes]. ``scales``,
        of rows that come quantised: float32 or UE8M0 [tokens, hidden / 128]; opaque ones uint8 [tokens,
        scale_bytes]. Give either ``topk`` and ``weights``, as for :meth:`prepare`, or the ``routing`` that it
        made. With a routing ``weights`` are given on every rank or on none: they replace the routing's
        weights here and where the rows arrive.
        """
        if unknown:
            self._refuse_operation(unexpected("dispatch", unknown, _KEYWORDS["dispatch"]))
        if timeout is not None:
            with self._limit(timeout):
                return self.dispatch(rows, topk, weights, routing=routing, scales=scales, stream=stream)
        if getattr(rows, "requires_grad", False) or getattr(weights, "requires_grad", False):
            _ends_gradient("dispatch")
        if stream is None and self._calls is not None:
            got = self._calls.dispatch(self, rows, topk, weights, routing, scales)
            if got is not None:
                return got  # type: ignore[no-any-return]
        on = self._begin(stream, takes=True)
        by = _routing(routing)
        args = self._dispatches.take()
        result = args.result
        result[1] = result[2] = 0
        try:
            if stream is not None:
                args.enter(stream, on, self._device)
            refused = args.arguments(self._number(by), topk, weights, rows, scales)
            status = self._lib.ep_dispatch(self._handle, on, args.address, args.result_address, 0)
            if refused is not None or status:
                self._end(refused, status)
            return self._arrived(args, by, args.topk.length if by is None else by.tokens, args.rows.kind, on)
        except BaseException:
            self._abandon(args, by)
            raise
        finally:
            refused = None  # its traceback has this frame
            self._dispatches.give(args)

    def dispatch_copied(
        self,
        rows: Any,
        topk: Any = None,
        weights: Any = None,
        *,
        routing: RoutingLike | None = None,
        scales: Any = None,
        most: int,
    ) -> tuple[Any, Any, Routing, Received | None]:
        """On the host, :meth:`dispatch` with small results copied: rows, scales, the routing, None.
        Collective.

        Rows and scales of more than ``most`` bytes are not copied: for them the last value is the result of
        :meth:`dispatch`, and the first two are None.
        """
        self._begin(None)
        by = None if routing is None else _routing(routing)
        args = self._dispatches.take()
        result = args.result
        result[1] = result[2] = 0
        try:
            refused = args.arguments(self._number(by), topk, weights, rows, scales)
            status = self._lib.ep_dispatch(self._handle, 0, args.address, args.result_address, 0)
            if refused is not None or status:
                self._end(refused, status)
            kind = args.rows.kind
            made = args.copies(kind, most)
            if made is None:
                got = self._arrived(args, by, args.topk.length if by is None else by.tokens, kind)
                return None, None, got.routing, got
            if by is None:
                by = Routing(self, result[2], args.topk.length, kind)
                if by._rows is None:
                    by._rows = args.returned_rows
            number, result[1] = result[1], 0
            if status := self._lib.received_release(number):
                self._watch(_Holder(), Received._RELEASE, number)  # by the next call
            return *made, by, None
        except BaseException:
            self._abandon(args, by)
            raise
        finally:
            refused = None  # its traceback has this frame
            self._dispatches.give(args)

    def send_dispatch(
        self,
        rows: Any,
        topk: Any = None,
        weights: Any = None,
        *,
        routing: RoutingLike | None = None,
        scales: Any = None,
        stream: StreamLike = None,
        timeout: float | None = None,
        **unknown: NoReturn,
    ) -> PendingDispatch:
        """The first half of :meth:`dispatch`: sends only. ``rows`` and ``scales`` are borrowed until
        the second half, and are not changed. Collective."""
        if unknown:
            self._refuse_operation(unexpected("send_dispatch", unknown, _KEYWORDS["send_dispatch"]))
        if timeout is not None:
            with self._limit(timeout):
                return self.send_dispatch(rows, topk, weights, routing=routing, scales=scales, stream=stream)
        if getattr(rows, "requires_grad", False) or getattr(weights, "requires_grad", False):
            _ends_gradient("dispatch")
        on = self._begin(stream, takes=True)
        by = _routing(routing)
        args = self._dispatches.take()
        try:
            if stream is not None:
                args.enter(stream, on, self._device)
            refused = args.arguments(self._number(by), topk, weights, rows, scales)
            self._end(refused, self._lib.ep_dispatch(self._handle, on, args.address, 0, args.out_address))
            borrowed = (rows, scales, *args.held)
            return PendingDispatch(
                self, args.out.value, borrowed, args.topk.length if by is None else by.tokens, by, args.rows.kind, on
            )
        finally:
            refused = None  # its traceback has this frame
            self._dispatches.give(args)

    def _receive(self, work: PendingDispatch, tokens: int, by: Routing | None, kind: str, on: int) -> Received:
        args = self._dispatches.take()
        args.result[1] = args.result[2] = 0
        try:
            work._over(self._lib.work_receive(work._in_use(), args.result_address))
            return self._arrived(args, by, tokens, kind, on)
        except BaseException:
            self._abandon(args, by)
            raise
        finally:
            self._dispatches.give(args)

    def _arrived(self, args: DispatchArgs, by: Routing | None, tokens: int, kind: str, on: int = 0) -> Received:
        if by is None:
            by = Routing(self, args.result[2], tokens, kind)
        return Received(self, args.result[1], by, kind, args.data_bytes, args.scales_bytes, on)

    def _copy(self, received: Received, order: int, arrays: tuple[Any, ...], stream: StreamLike) -> None:
        """Copies a received batch."""
        on = self._begin(stream)
        args = self._copies.take()
        try:
            if stream is not None:
                args.enter(stream, on, self._device)
            args.arguments(received._in_use(), order, arrays)
            self._end(None, self._lib.ep_copy_received(self._handle, on, args.address))
        finally:
            self._copies.give(args)

    def _abandon(self, args: DispatchArgs, by: Routing | None) -> None:
        """Releases a received batch of a caller that was interrupted before it got it. A batch that was
        released already is refused as such."""
        received, made = args.result[1:3]
        if received:
            self._watch(_Holder(), Received._RELEASE, received)
        if made and by is None:
            self._watch(_Holder(), Routing._RELEASE, made)

    # Combine.

    def combine(
        self,
        rows: Any,
        routing: RoutingLike,
        *,
        out: Any = None,
        bias: Any = None,
        weights: Any = None,
        stream: StreamLike = None,
        timeout: float | None = None,
        **unknown: NoReturn,
    ) -> Any:
        """Brings the experts' rows home and sums them. Collective.

        ``rows``: as dispatch gave them, of the spec's output type. ``routing``: with the
        :class:`Received` in its place, which must not be released, rows in memory for received rows are
        refused unless they are of that batch. ``bias``: [tokens, hidden], or two such, which are added
        first. ``weights``: float32 [tokens, topk], of the exact weighted reduction, which needs them at
        home alone: they take the place of those that the routing had there. Returns ``out``: [tokens,
        hidden], a new array if None; it overlaps none of the rows, which other ranks read.
        """
        if unknown:
            self._refuse_operation(unexpected("combine", unknown, _KEYWORDS["combine"]))
        if timeout is not None:
            with self._limit(timeout):
                return self.combine(rows, routing, out=out, bias=bias, weights=weights, stream=stream)
        if getattr(rows, "requires_grad", False) or getattr(weights, "requires_grad", False):
            _ends_gradient("combine")
        if stream is None and self._calls is not None:
            sums = self._calls.combine(self, rows, routing, out, bias, weights)
            if sums is not None:
                return sums
        on = self._begin(stream)
        args = self._combines.take()
        try:
            if stream is not None:
                args.enter(stream, on, self._device)
            out, refused = self._combining(args, routing, rows, out, bias, weights, stream)
            status = self._lib.ep_combine(self._handle, on, args.address, 0)
            if refused is not None or status:
                self._end(refused, status)
            return out
        finally:
            refused = None  # its traceback has this frame
            self._combines.give(args)

    def _combining(
        self,
        args: CombineArgs,
        routing: RoutingLike,
        rows: Any,
        out: Any,
        bias: Any,
        weights: Any,
        stream: StreamLike,
    ) -> tuple[Any, Exception | None]:
        """Takes the operands of a combine: its output, and the reason of a refusal."""
        by = _routing(routing)
        number = self._number(by, wanted=True)
        try:
            args.words[args.received] = _received(routing)
            if out is None:
                out = self._tokens_like("out", rows, by, stream)
        except Exception as e:
            return None, args.refuse(e, number, args.operands(rows, UNMADE, bias, weights))
        return out, args.arguments(number, rows, out, bias, weights)

    def send_combine(
        self,
        rows: Any,
        routing: RoutingLike,
        *,
        out: Any = None,
        bias: Any = None,
        weights: Any = None,
        stream: StreamLike = None,
        timeout: float | None = None,
        **unknown: NoReturn,
    ) -> PendingCombine:
        """The first half of :meth:`combine`: sends only. ``rows``, ``out``, ``bias`` and ``weights``
        are borrowed until the second half. Collective."""
        if unknown:
            self._refuse_operation(unexpected("send_combine", unknown, _KEYWORDS["send_combine"]))
        if timeout is not None:
            with self._limit(timeout):
                return self.send_combine(rows, routing, out=out, bias=bias, weights=weights, stream=stream)
        if getattr(rows, "requires_grad", False) or getattr(weights, "requires_grad", False):
            _ends_gradient("combine")
        on = self._begin(stream)
        args = self._combines.take()
        try:
            if stream is not None:
                args.enter(stream, on, self._device)
            out, refused = self._combining(args, routing, rows, out, bias, weights, stream)
            self._end(refused, self._lib.ep_combine(self._handle, on, args.address, args.out_address))
            return PendingCombine(self, args.out.value, (rows, bias, weights, routing, *args.held), out)
        finally:
            refused = None  # its traceback has this frame
            self._combines.give(args)

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
        timeout: float | None = None,
        **unknown: NoReturn,
    ) -> tuple[Any, Any]:
        """The gradient of dispatch: a combine without weights. Collective.

        ``grad_rows``: as dispatch gave the rows, of the spec's output type. ``grad_row_weights``:
        float32 [rows], with topk numbers a row for layouts of one row per rank; or None, on every rank.
        Returns ``grad_tokens``, [tokens, hidden], and ``grad_weights``, float32 [tokens, topk], or None
        without ``grad_row_weights``; new arrays where None is given.
        """
        if unknown:
            self._refuse_operation(unexpected("dispatch_backward", unknown, _KEYWORDS["dispatch_backward"]))
        if timeout is not None:
            with self._limit(timeout):
                return self.dispatch_backward(
                    grad_rows,
                    routing,
                    grad_row_weights,
                    grad_tokens=grad_tokens,
                    grad_weights=grad_weights,
                    stream=stream,
                )
        on = self._begin(stream)
        args = self._dispatch_backwards.take()
        try:
            if stream is not None:
                args.enter(stream, on, self._device)
            by = _routing(routing)
            number = self._number(by, wanted=True)
            try:
                args.words[args.received] = _received(routing)
                if grad_tokens is None:
                    grad_tokens = self._tokens_like("grad_tokens", grad_rows, by, stream)
                if grad_weights is None and grad_row_weights is not None:
                    grad_weights = self._weights_like(grad_row_weights, by, stream)
            except Exception as e:
                results = _unmade(grad_tokens), grad_weights if grad_row_weights is None else _unmade(grad_weights)
                refused: Exception | None = args.refuse(e, number, args.operands(grad_rows, grad_row_weights, *results))
            else:
                refused = args.arguments(number, grad_rows, grad_row_weights, grad_tokens, grad_weights)
            self._end(refused, self._lib.ep_dispatch_backward(self._handle, on, args.address))
            return grad_tokens, grad_weights
        finally:
            refused = None  # its traceback has this frame
            self._dispatch_backwards.give(args)

    def combine_backward(
        self,
        grad_out: Any,
        routing: RoutingLike,
        rows: Any = None,
        *,
        grad_rows: Any = None,
        grad_weights: Any = None,
        stream: StreamLike = None,
        timeout: float | None = None,
        **unknown: NoReturn,
    ) -> tuple[Any, Any]:
        """The gradient of combine: a dispatch with weights. Collective.

        ``grad_out``: [tokens, hidden] of the spec's output type. ``rows``: the rows of the combine, on every
        rank or on none. Returns ``grad_rows``, as dispatch gave the rows, which may be ``rows`` itself, and
        ``grad_weights``, float32 [tokens, topk], or None without ``rows``; new arrays where None is given.
        """
        if unknown:
            self._refuse_operation(unexpected("combine_backward", unknown, _KEYWORDS["combine_backward"]))
        if timeout is not None:
            with self._limit(timeout):
                return self.combine_backward(
                    grad_out, routing, rows, grad_rows=grad_rows, grad_weights=grad_weights, stream=stream
                )
        on = self._begin(stream)
        args = self._combine_backwards.take()
        try:
            if stream is not None:
                args.enter(stream, on, self._device)
            by = _routing(routing)
            number = self._number(by, wanted=True)
            try:
                args.words[args.received] = _received(routing)
                if grad_rows is None:
                    grad_rows = self._made("grad_rows", grad_out, self.rows_shape(by), self.spec.output_dtype, stream)
                if grad_weights is None and rows is not None:
                    grad_weights = self._weights_like(rows, by, stream)
            except Exception as e:
                results = _unmade(grad_rows), grad_weights if rows is None else _unmade(grad_weights)
                refused: Exception | None = args.refuse(e, number, args.operands(grad_out, rows, *results))
            else:
                refused = args.arguments(number, grad_out, rows, grad_rows, grad_weights)
            self._end(refused, self._lib.ep_combine_backward(self._handle, on, args.address))
            return grad_rows, grad_weights
        finally:
            refused = None  # its traceback has this frame
            self._combine_backwards.give(args)

    def _naming(self, names: tuple[str, ...]) -> tuple[tuple[str, _abi.Part], ...]:
        """The parts of a routing that have these names."""
        shapes = _part_shapes(self.spec, self._comm.ranks)
        for i, name in enumerate(names):
            if name not in shapes:
                raise InvalidError(f"{name!r} is no part of a routing of this layout, want one of {', '.join(shapes)}")
            if name in names[:i]:
                raise InvalidError(f"{name!r} is asked for twice: name each part once")
        found = self._named[names] = tuple((name, PARTS[name]) for name in names)
        return found

    def _describing(self, names: tuple[str, ...], demand: bool) -> ArgsPool[DescriptionArgs]:
        """The pool of arguments for queries of these parts of a routing."""
        self._naming(names)
        shapes, local = _part_shapes(self.spec, self._comm.ranks), self.spec.experts // self._comm.ranks
        parts = [(name, *shapes[name]) for name in names]
        found = self._descriptions[names, demand] = ArgsPool(
            lambda: DescriptionArgs(parts, local if demand and "expert_demand" not in names else 0)
        )
        return found

    def _tokens_like(self, name: str, like: Any, by: Routing, stream: StreamLike) -> Any:
        return self._made(name, like, (by.tokens, self.spec.hidden), self.spec.output_dtype, stream)

    def _weights_like(self, like: Any, by: Routing, stream: StreamLike) -> Any:
        return self._made("grad_weights", like, (by.tokens, self.spec.topk), DType.float32, stream)

    def _made(self, name: str, like: Any, shape: tuple[int, ...], dtype: DType, stream: StreamLike) -> Any:
        """A new array for a result."""
        kind = kind_of(like, self._device)
        if self._device >= 0:
            if stream is not None and stream == streams.OWN:
                raise OperandError(f"{name}: memory for a call on OWN is in no other stream's order: give {name}")
            if kind != memory.TORCH:
                raise OperandError(f"{name}: on a GPU results are made where operands are PyTorch's: give {name}")
        return memory.empty(kind, shape, dtype, self._device)

    # Memory and counters.

    def rows_shape(self, routing: RoutingLike) -> tuple[int, ...]:
        """The shape of the rows that a dispatch by a routing returns and a combine takes, of numbers of
        the output type."""
        rows = _routing(routing).rows
        if self.spec.layout == Layout.expert_major:
            local = self.spec.experts // self._comm.ranks
            return (local, rows // local, self.spec.hidden)
        return (rows, self.spec.hidden)

    def combine_buffer(self, *, kind: str | None = None) -> Any:
        """The handle's buffer for the rows of :meth:`combine` or :meth:`dispatch_backward`: [capacity,
        hidden]. Rows that begin at its start need no copy.

        It exists on GPUs where homes read rows in place: for token-major and packed layouts, and for a
        capacity that can overflow, unless ranks sum first (partial sums, by expert) or the buffer would be
        too large. For everything else no memory is better than another, and this is None.
        """
        return self._buffer(self._lib.ep_combine_buffer, kind)

    def gradient_buffer(self, *, kind: str | None = None) -> Any:
        """The handle's buffer for the gradients of the output in :meth:`combine_backward`: [max_tokens,
        hidden]. On GPUs gradients that begin at its start need no copy.

        On GPUs it spares a copy of them. On the host no memory is better than another, and this is None.
        """
        return self._buffer(self._lib.ep_gradient_buffer, kind)

    def _buffer(self, tell: Callable[[int, int], int], kind: str | None) -> Any:
        self._open()
        t = _abi.Tensor()
        self._check(tell(self._handle, ctypes.addressof(t)))
        if not t.dtype:
            return None
        return memory.view(
            kind or memory.default_kind(self._device),
            t.data,
            DType(t.dtype),
            t.shape[: t.dims],
            self._device,
            Lease(self),
        )

    def count_waits(self, dispatch: Any = None, combine: Any = None) -> None:
        """Says where later operations count for how many nanoseconds this rank waited for each of the
        others: int64 [ranks], to which each adds.

        None counts nothing. The arrays are kept as long as operations may count there. Local.
        """
        self._open()
        slots = (Slot("dispatch", self._device, written=True), Slot("combine", self._device, written=True))
        numbers = [slot.fill(array) for slot, array in zip(slots, (dispatch, combine), strict=True)]
        self._check(self._lib.ep_count_waits(self._handle, *numbers))
        self._waits = (dispatch, combine, slots)

    # The steps that all operations share.

    def _begin(self, stream: StreamLike, takes: bool = False) -> int:
        """The start of every call; one that takes memory first returns memory whose arrays were released."""
        if self._closed:
            self._open()
        if takes and self._device >= 0:
            views.sweep()
        if self._calls is not None:
            self._calls.collect()
        if self._garbage:
            self._collect()
        if self._forgotten.found and self._device < 0:  # on a GPU it would wait, and may be amid a capture
            self._forgotten.collect()
        if stream is None and self._device < 0:
            return 0
        try:
            return streams.address(stream, self._device)
        except Exception as e:
            self._refuse_operation(e)

    def _limit(self, seconds: float) -> limit:
        """A bound of an operation, which all ranks refuse if it is wrong."""
        try:
            return limit(seconds)
        except Exception as e:
            self._refuse_operation(e)

    def _number(self, by: Any, wanted: bool = False) -> int:
        """The number of an operation's routing, which all ranks refuse if it is wrong; 0 for none, unless one is
        wanted."""
        if by is None and not wanted:
            return 0
        try:
            return _number(by)
        except Exception as e:
            self._refuse_operation(e)

    def _refuse_operation(self, why: Exception) -> NoReturn:
        """Has all ranks refuse an operation, for a reason that this one has found before it had the operands, and
        raises it: else the others would wait for this one."""
        self._open()
        args = self._dispatches.take()
        try:
            on = 0 if self._device < 0 else streams.address(None, self._device)
            self._lib.ep_prepare(self._handle, on, args.topk.absent(why), 0, args.out_address)
        finally:
            self._dispatches.give(args)
        try:
            raise why
        finally:
            del why  # else its traceback, which has this frame, would keep the caller's arrays

    def _end(self, refused: Exception | None, status: int) -> None:
        """The end of a call. This package passes its refusals to the library as text, so that the other ranks
        get them and do not wait."""
        if refused is not None:
            if self._face is not None:
                self._face.say(refused)
            try:
                raise refused
            finally:
                # its traceback has this frame: a cycle, which would keep all that callers have
                # until it is collected
                refused = None
        if status:
            raise self._failure(status)


_KEYWORDS = {
    call.__name__: tuple(call.__kwdefaults__)
    for call in (
        Handle.prepare,
        Handle.dispatch,
        Handle.send_dispatch,
        Handle.combine,
        Handle.send_combine,
        Handle.dispatch_backward,
        Handle.combine_backward,
    )
}
"""What the calls of handles take by name alone."""


def _part_shapes(spec: Spec, ranks: int) -> dict[str, tuple[tuple[int, ...], DType]]:
    """The arrays of routing metadata: shapes, -1 for rows, and types."""
    local = (spec.experts // ranks,)
    of_experts = dict.fromkeys(
        ("expert_counts", "expert_demand", "padded_counts", "expert_offsets"), (local, DType.int32)
    )
    of_rows = dict.fromkeys(("source_ranks", "source_tokens"), ((-1,), DType.int32))
    shapes = {**of_experts, **of_rows, "source_counts": ((ranks,), DType.int32)}
    if spec.one_row_per_rank:
        return shapes | {
            "row_experts": ((-1, spec.topk), DType.int64),
            "row_selection_weights": ((-1, spec.topk), DType.float32),
        }
    return shapes | {
        "ranges": ((*local, ranks), DType.int64),
        "source_selections": ((-1,), DType.int32),
        "row_weights": ((-1,), DType.float32),
    }


def _unmade(result: Any) -> Any:
    return UNMADE if result is None else result


def _routing(by: RoutingLike | None) -> Any:
    return by.routing if isinstance(by, Received) else by


def _number(by: Any) -> int:
    """The number of a routing, which the caller must give."""
    try:
        return int(by._in_use())
    except AttributeError:
        raise InvalidError(
            f"the routing is of type {type(by).__name__}, want the Routing or the Received that prepare or "
            f"dispatch returned"
        ) from None


def _received(by: RoutingLike) -> int:
    """The received batch of an operation's rows, if the caller gives it. A released batch is refused: to
    combine other memory after that, pass the routing."""
    return by._in_use() if isinstance(by, Received) else 0
