"""How ranks that know each other by other means meet: all-gathers of bytes."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from . import _abi
from .errors import DeadlineError, InvalidError

if TYPE_CHECKING:
    from typing import Self


class Callback:
    """An all-gather as the C library calls it. Its exceptions are kept, because C takes only numbers.

    The function refers to this object, which refers to the function: a ``with`` statement ends that, so that the
    caller's all-gather does not live on until the collector runs. A process group that does has threads when the
    process ends, and then aborts it. The statement raises the exception that was kept.
    """

    def __init__(self, all_gather: Callable[[bytes], Iterable[bytes]], ranks: int) -> None:
        self._all_gather = all_gather
        self._ranks = ranks
        self.error: BaseException | None = None
        self.function: Any = _abi.AllGatherFunction(self._call)
        self._hook: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # the one that signals interrupt
            self._hook, sys.unraisablehook = sys.unraisablehook, self._raised
        return self

    def __exit__(self, *_: object) -> None:
        if self._hook is not None:
            sys.unraisablehook = self._hook
        self.function = self._hook = None
        if self.error is not None:
            raise self.error from None

    def _raised(self, what: Any) -> None:
        """Keeps what interrupted a call before its first line: a signal that came while C ran."""
        if what.object == self._call:
            self.error = what.exc_value
        else:
            self._hook(what)

    def _call(self, _: object, mine: int, size: int, everyone: int) -> int:
        try:
            parts = [bytes(p) for p in self._all_gather(ctypes.string_at(mine, size))]
            if len(parts) != self._ranks or any(len(p) != size for p in parts):
                raise InvalidError(
                    f"the all-gather returned {[len(p) for p in parts]} bytes, want {size} of each of "
                    f"{self._ranks} ranks"
                )
            ctypes.memmove(everyone, b"".join(parts), size * self._ranks)
        except BaseException as e:  # it must not unwind through C, and is raised again afterwards
            self.error = e
            return 1
        return 0


def _comes(there: Callable[[], bool], seconds: float) -> bool:
    """Waits until something is there, or for so many seconds. Signals are heeded."""
    start, nap = time.monotonic(), 50e-6
    while not there():
        if time.monotonic() - start > seconds:
            return False
        time.sleep(nap)
        nap = min(2 * nap, 5e-3)
    return True


class StoreGather:
    """An all-gather through a key-value store: every rank sets its key and gets the others'.

    A store that can be asked for a key (``check``) bounds no wait itself, nor keeps Ctrl-C waiting: a rank that does
    not come is named after the deadline, in seconds, or after the store's own time limit if that is None.
    """

    def __init__(self, store: Any, rank: int, ranks: int, name: str, deadline: float | None = None) -> None:
        self._store, self._rank, self._ranks = store, rank, ranks
        self._set_by = "the store" if deadline is None else "deadline="
        if deadline is None:
            limit = getattr(store, "timeout", None)
            deadline = limit.total_seconds() if isinstance(limit, timedelta) else math.inf
        self._deadline = deadline
        # A store outlives ranks that an elastic launcher starts anew: keys of an earlier life must
        # not be found.
        life = f"weft/{name}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self._prefix = f"{life}/{store.add(f'{life}/joins/{rank}', 1)}"
        self._round = 0

    def __call__(self, mine: bytes) -> list[bytes]:
        self._round += 1
        key = f"{self._prefix}/{self._round}"
        self._store.set(f"{key}/{self._rank}", mine)
        return [mine if r == self._rank else self._get(r, f"{key}/{r}") for r in range(self._ranks)]

    def _get(self, rank: int, key: str) -> bytes:
        check = getattr(self._store, "check", None)
        if check is not None and not _comes(lambda: check([key]), self._deadline):
            raise DeadlineError(
                f"rank {rank} has not come to the store: rank {self._rank} waited {self._deadline:g} s, which "
                f"{self._set_by} sets"
            )
        return bytes(self._store.get(key))


class ProcessGroupGather:
    """An all-gather through a process group of PyTorch's. Signals are heeded while it waits: a wait of PyTorch's own
    would leave Ctrl-C until the group's time limit, which is half an hour.

    It ends after the deadline, in seconds, or after the group's time limit if that is None.
    """

    def __init__(self, group: Any, deadline: float | None = None) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist, self._group = torch, dist, group
        self.rank: int = dist.get_rank(group)
        self.ranks: int = dist.get_world_size(group)
        if self.rank < 0:
            raise InvalidError("this rank is not in the process group")
        # NCCL carries memory of GPUs only.
        self._device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
        self._deadline = math.inf if deadline is None else deadline

    def __call__(self, mine: bytes) -> list[bytes]:
        torch = self._torch
        sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(self._device)
        got = [torch.empty_like(sent) for _ in range(self.ranks)]
        work = self._dist.all_gather(got, sent, group=self._group, async_op=True)
        if not _comes(work.is_completed, self._deadline):
            raise DeadlineError(
                f"not all {self.ranks} ranks of the process group joined: rank {self.rank} waited "
                f"{self._deadline:g} s, which deadline= sets"
            )
        work.wait()
        return [bytes(t.tolist()) for t in got]
