"""Events of streams. On the host a call is done when it returns, and there is nothing to wait for."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch


class EventHandle:
    """The end of what is enqueued in the current stream now."""

    def __init__(self) -> None:
        self._event = torch.cuda.current_stream().record_event() if torch.cuda.is_available() else None

    def current_stream_wait(self) -> None:
        """Has the current stream wait for it."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)


class EventOverlap:
    """An event, or none, and the tensors that it keeps: ``with`` waits for it at the end of the block, beside whose work the exchange runs."""

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[torch.Tensor, ...] | None = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors
        self._hooks: list[Callable[[], Any]] = []

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Has the current stream wait for the event."""
        if self.event is None:
            raise ValueError("there is no event: ask for one by async_finish=True, or by Buffer.capture()")
        self.event.current_stream_wait()
        if release_handle:
            self.event = self.extra_tensors = None
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook()

    def register_hook_after_wait(self, hook_after_wait: Callable[[], Any]) -> None:
        """Has a function called once after the next wait."""
        self._hooks.append(hook_after_wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None) -> None:
        if self.event is not None:
            self.current_stream_wait()
