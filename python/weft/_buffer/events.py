"""Events of streams, and the stream of exchanges. On the host a call is done when it returns, and there
is nothing to wait for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from weft import compiled, views

if TYPE_CHECKING:
    from typing import Self


class EventHandle:
    """An event at the end of the work that is enqueued in the current stream now."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        # Before CUDA is in use nothing is enqueued anywhere.
        self._event = torch.cuda.current_stream().record_event() if torch.cuda.is_initialized() else None

    @classmethod
    def of(cls, event: Any) -> EventHandle:
        """A recorded event of PyTorch's, or None for work that has ended."""
        made = cls.__new__(cls)
        made._event = event
        return made

    def current_stream_wait(self) -> None:
        """Has the current stream wait for it."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)


class EventOverlap:
    """An event, or none, and the tensors that it keeps: ``with`` waits for it at the end of the block, and
    the exchange runs beside the block's work."""

    event: EventHandle | None = None
    extra_tensors: tuple[torch.Tensor, ...] | None = None
    _hooks: list[Callable[[], Any]] | None = None

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[torch.Tensor, ...] | None = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Has the current stream wait for the event."""
        if self.event is None:
            raise ValueError(
                "there is no event: ask for one by async_finish=True or async_with_compute_stream=True, or by capture()"
            )
        self.event.current_stream_wait()
        if release_handle:
            self.event = self.extra_tensors = None
        hooks, self._hooks = self._hooks or (), None
        for hook in hooks:
            hook()

    def register_hook_after_wait(self, hook_after_wait: Callable[[], Any]) -> None:
        """Has a function called once after the next wait."""
        self._hooks = [*(self._hooks or ()), hook_after_wait]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        if self.event is not None:
            self.current_stream_wait()


nothing_to_wait_for: Callable[[], EventOverlap] = functools.partial(object.__new__, EventOverlap)
"""Makes an EventOverlap without an event, which every call of a compiled exchange returns."""

Before = EventHandle | EventOverlap | None
"""The event that an exchange comes after, or None for the work that is enqueued in the current stream."""

_HAPPENED = EventHandle.of(None)


# How many shown objects are kept before a sweep.
_FEW = 32

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
    lambda device: torch.cuda.current_stream(device).cuda_stream
)


_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)
_record = getattr(getattr(torch._C, "_CudaEventBase", None), "record", torch.cuda.Event.record)


class Current:
    """The current stream of a GPU, in a twentieth of the time that PyTorch takes."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: tuple[Any, Any, int] = None, None, -1  # replaced as a whole, because threads read it

    def stream(self, device: int) -> tuple[Any, int]:
        """The stream and its number."""
        number = _raw_stream(device)
        known, stream, of = self._known
        if number != known or of != device:
            stream = torch.cuda.current_stream(device)
            self._known = number, stream, device
        return stream, number


class _Ends:
    """The number of the last exchange's stream (last) and its end, as the compiled part's Streams has them."""

    __slots__ = "end", "last"

    def __init__(self) -> None:
        self.end: Any = None
        self.last: int | None = None

    def settle(self) -> None:
        """Has the end be recorded, as it always is."""


class CommStream:
    """Where the exchanges of a buffer are enqueued: on a GPU in a stream of their own, beside which
    others compute, or in the current one.

    They share multiprocessors, so one comes after another wherever they are. Captured work has no relation to
    earlier work: its caller orders graphs.
    """

    def __init__(self, device: int = -1) -> None:
        """``device``: the GPU of the streams that exchanges are enqueued in, or -1."""
        self._stream: Any = None
        self._current = Current()
        self._events: list[Any] = []  # events without a waiter, to be recorded again
        self._shown: list[Any] = []
        self._some_gone = False
        self._drained = compiled.drained()
        # The last exchange's stream and end, and the events that say so again and again: in the stream of
        # exchanges, and in a current one.
        self._ends: Any = _Ends()
        self._marks: tuple[Any, Any] | None = None
        self.in_order: Any = None
        """The compiled part's order of exchanges, if it is in use."""
        self.run_quick: Callable[..., Any]
        """Makes an exchange of the compiled part's, on a GPU in the current stream, and returns its result.

        It declines, with None, where more is to be done than that, as where the stream captures or the last exchange
        was in another.
        """
        if compiled.in_use():
            self._ends = compiled.NATIVE.Streams(
                device,
                _current_device,
                capturing,
                torch.cuda.current_stream,
                _record,
                torch.cuda.Event() if device >= 0 else None,
            )
            self.run_quick, self.in_order = self._ends.run, self._ends
        self._captured: Any = None  # the stream of the last exchange that was captured

    def stream(self) -> Any:
        """The stream; on the host PyTorch's only one."""
        if self._stream is None:
            if not torch.cuda.is_initialized():
                return torch.cpu.current_stream()
            self._stream = torch.cuda.Stream(priority=-1)
        return self._stream

    def synchronize(self, device: int) -> None:
        """Waits for the current stream of a GPU."""
        self._current.stream(device)[0].synchronize()

    def shows(self, received: Any) -> None:
        """Remembers that tensors of the caller's show memory of the library's, which an exchange may
        take again when they have gone."""
        self._shown.append(received)
        if len(self._shown) > _FEW:
            self._some_gone = self._any_gone()

    def run(
        self, exchange: Callable[..., Any], like: torch.Tensor, before: Before, later: bool, *arguments: Any
    ) -> tuple[Any, EventOverlap]:
        """Makes an exchange of tensors of a device, and returns its result and its end. Unless that
        comes ``later``, the current stream waits for it."""
        if not like.is_cuda:
            return exchange(*arguments), EventOverlap(_HAPPENED if later else None)
        device = like.get_device()
        if torch.cuda.current_device() != device:
            with torch.cuda.device(device):
                return self.run(exchange, like, before, later, *arguments)
        own, (current, _) = self.stream(), self._current.stream(device)
        event = before.event if isinstance(before, EventOverlap) else before
        if event is None or event._event is None or self._any_gone():
            self._order(own, current)
        else:
            own.wait_event(event._event)
        capturing = torch.cuda.is_current_stream_capturing()
        if capturing:
            self._follow_captured(own)
        else:
            self._follow(own, own.cuda_stream)
        try:
            # as torch.cuda.stream does, which takes ten times as long to find out which device is
            # meant
            torch.cuda.set_stream(own)
            for t in _tensors(arguments):
                t.record_stream(own)
            result = exchange(*arguments)
        finally:
            torch.cuda.set_stream(current)
            end = torch.cuda.Event() if later or capturing else self._mark(0)
            end.record(own)
            if not capturing:
                self._ends.last, self._ends.end = own.cuda_stream, end
        for t in _tensors(result):
            t.record_stream(current)
        if later:
            return result, EventOverlap(EventHandle.of(end))
        current.wait_event(end)
        return result, EventOverlap()

    def run_soon(
        self, exchange: Callable[..., Any], like: torch.Tensor, before: Before, later: bool, *arguments: Any
    ) -> tuple[Any, EventOverlap]:
        """:meth:`run` of something short. An exchange between two pieces of the current stream's work is
        enqueued there: switching to another stream and back takes longer."""
        if later or before is not None or not like.is_cuda:
            return self.run(exchange, like, before, later, *arguments)
        return self._run_here(exchange, like.get_device(), *arguments), EventOverlap()

    def run_half(self, exchange: Callable[..., Any], like: torch.Tensor, *arguments: Any) -> Any:
        """Makes half of an exchange, in the current stream."""
        return self._run_here(exchange, like.get_device(), *arguments) if like.is_cuda else exchange(*arguments)

    def _run_here(self, exchange: Callable[..., Any], device: int, *arguments: Any) -> Any:
        if torch.cuda.current_device() != device:
            with torch.cuda.device(device):
                return self._run_here(exchange, device, *arguments)
        current, number = self._current.stream(device)
        if torch.cuda.is_current_stream_capturing():
            self._follow_captured(current)
            return exchange(*arguments)
        self._follow(current, number)
        try:
            return exchange(*arguments)
        finally:
            end = self._mark(1)
            end.record(current)
            self._ends.last, self._ends.end = number, end

    def _follow_captured(self, stream: Any) -> None:
        """Has a stream that captures wait for the last exchange of the same capture."""
        last, self._captured = self._captured, stream
        if last is None or last.cuda_stream == stream.cuda_stream:
            return
        with torch.cuda.stream(last):
            captures = torch.cuda.is_current_stream_capturing()
        if captures:
            stream.wait_stream(last)

    def _follow(self, stream: Any, number: int) -> None:
        """Has a stream wait for the last exchange, if it was in another."""
        ends = self._ends
        if ends.end is not None and ends.last != number:
            ends.settle()
            stream.wait_event(ends.end)

    def _mark(self, which: int) -> Any:
        if self._marks is None:
            self._marks = torch.cuda.Event(), torch.cuda.Event()
        return self._marks[which]

    def catch_up(self) -> None:
        """Makes the current stream wait for the work that is enqueued in the stream of exchanges now, such as
        metadata of rows that was asked for later."""
        if self._stream is None or torch.cuda.is_current_stream_capturing():
            return
        current = torch.cuda.current_stream()
        if current != self._stream:
            self._order(current, self._stream)

    def _order(self, after: Any, before: Any) -> None:
        """Makes a stream wait for the work that is enqueued in another now."""
        event = self._events.pop() if self._events else torch.cuda.Event()
        event.record(before)
        after.wait_event(event)
        self._events.append(event)

    def _any_gone(self) -> bool:
        """Whether memory was given back that the current stream may still read: its readers were enqueued
        there."""
        views.sweep()
        left = [shown for shown in self._shown if shown() is not None]
        before, self._drained = self._drained, compiled.drained()
        gone = self._some_gone or len(left) < len(self._shown) or self._drained != before
        self._shown, self._some_gone = left, False
        return gone


def _tensors(of: Any) -> Iterator[torch.Tensor]:
    if isinstance(of, torch.Tensor):
        if of.is_cuda:
            yield of
    elif type(of) is tuple:  # lists are of numbers
        for part in of:
            yield from _tensors(part)
    elif hasattr(of, "tensors"):
        yield from _tensors(of.tensors)
