"""How tests time exchanges."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

_FLUSHED = 256 << 20


def flush_l2_cache(enabled: bool = True) -> None:
    """Writes more memory than a GPU's cache holds."""
    if enabled and torch.cuda.is_available():
        torch.empty(_FLUSHED // 4, dtype=torch.int32, device="cuda").zero_()


def bench(
    fn: Callable[[], Any], num_warmups: int = 50, num_tests: int = 50, post_fn: Callable[[], Any] | None = None, flush_l2: bool = True
) -> tuple[float, float, float]:
    """Seconds of a call: the mean, the least and the most, the first call not counted. On a GPU between events, on the host by the clock."""
    for _ in range(num_warmups):
        fn()
    measure = _between_events if torch.cuda.is_available() else _by_the_clock
    seconds = measure(fn, num_tests, post_fn, flush_l2)[1:]
    return sum(seconds) / len(seconds), min(seconds), max(seconds)


def _by_the_clock(fn: Callable[[], Any], tests: int, after: Callable[[], Any] | None, _flush: bool) -> list[float]:
    seconds = []
    for _ in range(max(tests, 2)):
        since = time.perf_counter()
        fn()
        seconds.append(time.perf_counter() - since)
        if after is not None:
            after()
    return seconds


def _between_events(fn: Callable[[], Any], tests: int, after: Callable[[], Any] | None, flush: bool) -> list[float]:
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(max(tests, 2))]
    for begin, end in pairs:
        flush_l2_cache(flush)
        begin.record()
        fn()
        end.record()
        if after is not None:
            after()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]


class empty_suppress:  # noqa: N801
    """Suppresses nothing."""

    def __enter__(self) -> empty_suppress:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        pass


class suppress_stdout_stderr:  # noqa: N801
    """Suppresses what a block prints, of C's as well."""

    def __enter__(self) -> suppress_stdout_stderr:  # noqa: PYI034
        self._kept = contextlib.ExitStack()
        self._kept.enter_context(_silent(1))
        self._kept.enter_context(_silent(2))
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()


@contextlib.contextmanager
def _silent(descriptor: int) -> Iterator[None]:
    kept = os.dup(descriptor)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, descriptor)
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
        os.close(nothing)
