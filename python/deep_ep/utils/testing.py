"""How tests time exchanges."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed

_FLUSHED = 256 << 20


def flush_l2_cache(enabled: bool = True) -> None:
    """Writes more memory than a GPU's cache holds."""
    if enabled and torch.cuda.is_available():
        torch.empty(_FLUSHED // 4, dtype=torch.int32, device="cuda").zero_()


def bench(
    fn: Callable[[], Any],
    num_warmups: int = 50,
    num_tests: int = 50,
    post_fn: Callable[[], Any] | None = None,
    flush_l2: bool = True,
) -> tuple[float, float, float]:
    """Seconds of a call: the mean, the least and the most, the first call not counted. On a GPU between
    events, on the host by the clock."""
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


# The names of the kernels that do the work of DeepEP's kernels of these names. There are none for the rest of
# an exchange, which is in the same kernel.
_KERNELS = {"dispatch": "::dispatch", "combine": "::combine", "notify": "::row_map"}


def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: str | tuple[str, ...],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    flush_l2: bool = True,
    barrier_comm_profiling: bool = False,
    num_kernels_per_period: int = 1,
    barrier: Callable[[], Any] | None = None,
) -> Any:
    """Seconds of the kernels of a call, by PyTorch's profiler: a number for one name, a tuple for several.

    Names are parts of kernel names, or DeepEP's names; the time of a name without a kernel is NaN. With
    several kernels a period a number is a list of as many. On the host, which has no kernels, every name
    stands for the whole call.
    """
    names = (kernel_names,) if isinstance(kernel_names, str) else kernel_names
    fn()
    if torch.cuda.is_available():
        with suppress_stdout_stderr() if suppress_kineto_output else empty_suppress():
            kernels = _profiled(
                fn, num_tests, trace_path, flush_l2, (barrier or _meet) if barrier_comm_profiling else None
            )
    else:
        seconds = _by_the_clock(fn, num_tests, None, False)
        kernels = [(name, s) for s in seconds for name in names for _ in range(num_kernels_per_period)]
    found = tuple(_of_kernel(kernels, name, num_kernels_per_period) for name in names)
    return found[0] if isinstance(kernel_names, str) else found


def _profiled(
    fn: Callable[[], Any], tests: int, trace: str | None, flush: bool, meet: Callable[[], Any] | None
) -> list[tuple[str, float]]:
    """The kernels of so many calls in the order in which they began: names and seconds."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(tests):
            flush_l2_cache(flush)
            if meet is not None:
                meet()
            fn()
        torch.cuda.synchronize()
    if trace is not None:
        profile.export_chrome_trace(trace)
    events = sorted(
        (e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA),
        key=lambda e: e.time_range.start,
    )
    return [(e.name, e.time_range.elapsed_us() / 1e6) for e in events]


def _meet() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def _of_kernel(kernels: list[tuple[str, float]], name: str, period: int) -> Any:
    """The mean of the kernels that a name stands for, of each in its period."""
    here = _KERNELS.get(name.removesuffix("_impl"), name)
    seconds = [s for kernel, s in kernels if name in kernel or here in kernel]
    if len(seconds) % period:
        raise ValueError(f"{len(seconds)} kernels are called {name!r}, which are no periods of {period}")
    means = [sum(seconds[i::period]) / len(seconds[i::period]) if seconds else float("nan") for i in range(period)]
    return means[0] if period == 1 else means


class empty_suppress:  # noqa: N801
    """Suppresses nothing."""

    def __enter__(self) -> empty_suppress:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        pass


class suppress_stdout_stderr:  # noqa: N801
    """Suppresses the output of a block, C's included."""

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
