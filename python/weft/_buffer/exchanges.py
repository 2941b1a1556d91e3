"""What both buffers build on: handles by what they are for, what ranks tell each other, and whose
memory results are."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

import weft
from weft import ep
from weft.ep.routing import Columns, in_columns

from .errors import ContractError
from .events import CommStream
from .mask import Mask

# Smaller results are copied out of the library's memory: a view of it costs more.
_SHOWN_BYTES = 1 << 16

_MOST_TOPK = 32

_FEW_SMS = 2  # enough for what has a row

# The first serial group of buffers, far from numbers that callers choose. The exchanges of a buffer
# follow each other, so its handles share multiprocessors.
_SERIAL_GROUPS = 1 << 40

# Batches that the library has memory for at once. On the host it is address space until it is used.
_LIVE_ON_HOST, _LIVE_ON_GPU = 8, 2


Era = tuple[int, frozenset[int]]
"""How often ranks were taken in again before an exchange, and which were left out."""


class Exchanges:
    """The handles of a buffer, each made when it is first needed, on all ranks alike.

    On GPUs counts stay where the rows are, and no call of a handle's waits: a dispatch whose tensors
    are exactly the rows that come asks for their number once.
    """

    def __init__(self, comm: weft.Communicator) -> None:
        self.comm, self.ranks, self.rank = comm, comm.ranks, comm.rank
        self.on_gpu = comm.engine == "gpu"
        self.stream = CommStream()
        self.mask = Mask(comm, self._forget)
        self._forgot = 0
        self.meeting: Any = None  # of normal exchanges on the host
        self.of_handles: list[dict[ep.Handle, Any]] = []
        """What others know of handles, to be forgotten with them."""
        self._handles: dict[Any, ep.Handle] = {}
        self._serial_group = comm._buffers = comm._buffers + 1
        self._shown: dict[ep.Handle, list[weakref.ref[ep.Received]]] = {}
        self._captured: set[ep.Handle] = set()  # those of which there are graphs
        self._group: weft.Group | None = None
        self._everywhere: torch.Tensor | None = None  # every rank
        self._gathers: dict[int, tuple[torch.Tensor, torch.Tensor, Any]] = {}
        self._counters: dict[int, ep.Counter] = {}

    def handle(self, key: Any, **spec: Any) -> ep.Handle:
        """The handle of a key, which says all that the spec does. Collective when it is the first time."""
        found = self._handles.get(key)
        if found is None:
            spec.setdefault("live", _LIVE_ON_GPU if self.on_gpu else _LIVE_ON_HOST)
            if self.on_gpu:
                spec["counts"] = ep.Counts.device
                spec["serial_group"] = _SERIAL_GROUPS + self._serial_group
            found = self._handles[key] = ep.Handle(self.comm, **spec)
        return found

    @functools.cached_property
    def _sharing(self) -> int:
        """How many ranks may share a GPU, and its multiprocessors: where each sees another one alone
        too many, which is only a bound."""
        return -(-self.comm.local_ranks // max(1, torch.cuda.device_count()))

    def _forget(self) -> None:
        """Gives up what has been made with others: all make it anew when it is needed."""
        for made in (*self._handles.values(), *((self._group,) if self._group else ())):
            made.close()
        for kept in (self._handles, self._gathers, self._shown, self._captured, *self.of_handles):
            kept.clear()
        self._group = self.meeting = None
        self._forgot += 1

    @property
    def era(self) -> Era:
        """What exchanges that begin now know of masks."""
        return self._forgot, self.comm._left_out

    def check_era(self, then: Era, anew: bool = False) -> None:
        """Refuses what goes on with an exchange of then, on every rank alike, if what it was made with
        is gone, or its rows would be counted ``anew``."""
        now = self.era
        if then[0] != now[0]:
            raise ContractError("the handle is from before a rank was taken in again: dispatch without it first")
        if anew and then != now:
            raise ContractError(
                "the handle is from before ranks were masked, and had not what is asked of it now: dispatch "
                "without it first"
            )

    def find(self, key: Any) -> ep.Handle | None:
        """The handle of a key, if there is one."""
        return self._handles.get(key)

    @functools.cached_property
    def most_sms(self) -> int:
        """Multiprocessors that low-latency exchanges may fill: all that other buffers have left. 0
        leaves it to the library."""
        return (
            torch.cuda.get_device_properties(where(self.comm)).multi_processor_count
            if self.on_gpu and torch.cuda.is_available()
            else 0
        )

    def layout(self, topk: torch.Tensor, experts: int) -> tuple[torch.Tensor, None, torch.Tensor, torch.Tensor]:
        """Counts where tokens go, where their selections are: int32 [ranks], None (there is one node),
        int32 [experts], bool [tokens, ranks]. Local."""
        if not self.mask.settled:
            self.mask.settle()  # till then a communicator that has failed counts nothing
        if self.on_gpu:
            counter = self._counters.get(experts)
            if counter is None:
                counter = self._counters[experts] = ep.Counter(self.comm, experts=experts)
            if topk.dim() != 2:
                raise ContractError(f"topk_idx of shape {tuple(topk.shape)}, want [tokens, topk]")
            made, device = torch.empty, topk.device
            ranks, selections = (
                made(self.ranks, dtype=torch.int32, device=device),
                made(experts, dtype=torch.int32, device=device),
            )
            within = made((topk.shape[0], self.ranks), dtype=torch.uint8, device=device)
            counter.count(topk, rank_tokens=ranks, expert_selections=selections, token_in_rank=within)
            return ranks, None, selections, within.view(torch.bool)
        counted = ep.count(topk, experts=experts, ranks=self.ranks)
        return counted.rank_tokens, None, counted.expert_selections, counted.token_in_rank.view(torch.bool)

    def told(self, counts: torch.Tensor) -> torch.Tensor:
        """Numbers of a GPU's on the host: here it waits for all that was enqueued before."""
        found = counts.cpu()
        self.comm.check()  # what was counted for an operation that failed is nothing
        return found

    # Rows that stay the caller's.

    def dispatch(
        self,
        handle: ep.Handle,
        rows: torch.Tensor,
        scales: torch.Tensor | None,
        topk: torch.Tensor | None,
        weights: torch.Tensor | None,
        routing: ep.Routing | None = None,
        come: Callable[[ep.Routing], int | None] | None = None,
        columns: Columns | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, ep.Routing]:
        """Sends rows: those that arrive, their scales, the routing. The tensors are the caller's as
        long as he wants. Collective.

        Large ones show the library's memory, which has room for a few batches; when that is taken, and
        of small ones, they are copies. On a GPU they are of the capacity, or of the rows of which
        ``come`` says that they come, and what is captured shows the memory, too, but nothing after
        that. ``columns``: what scales are to be.
        """
        if self.on_gpu:
            got = handle.dispatch(rows, topk, weights, routing=routing, scales=scales)
            if routing is None:
                self.stream.shows(weakref.ref(got.routing))
        else:
            copied, copied_scales, routing, large = handle.dispatch_copied(
                rows, topk, weights, routing=routing, scales=scales, most=_SHOWN_BYTES
            )
            if large is None:
                return copied, in_columns(copied_scales, columns), routing
            got = large
        return *self._keep(handle, rows, got, come and come(got.routing), columns), got.routing

    def _keep(
        self, handle: ep.Handle, like: torch.Tensor, got: ep.Received, come: int | None, columns: Columns | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self._may_show(handle, like):
            rows, scales = got._arrays(columns)
            if come is not None:
                rows, scales = rows[:come], None if scales is None else scales[:come]
            shown = weakref.ref(got)
            self._shown[handle].append(shown)
            self.stream.shows(shown)
            return rows, scales
        with got:
            rows, scales = got._arrays()
            if come is not None:  # nothing else is there
                return rows[:come].clone(), None if scales is None else scales[:come].clone()
            copies = torch.empty_like(rows), None if scales is None else torch.empty_like(scales)
            got.copy_to(*copies)
        return copies[0], in_columns(copies[1], columns)

    def _may_show(self, handle: ep.Handle, like: torch.Tensor) -> bool:
        if like.is_cuda and torch.cuda.is_current_stream_capturing():
            self._captured.add(handle)
        elif handle in self._captured:
            return False  # replays write where captured exchanges have, whatever is shown there by then
        # One batch must be left for the next exchange.
        shown = self._shown[handle] = [s for s in self._shown.get(handle, ()) if s() is not None]
        return len(shown) < handle.spec.live - 1

    # What ranks tell each other.

    def gather_of(self, n: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """On the host: where a rank's n numbers are put, where everyone's come, and the call that
        exchanges them, which is collective."""
        found = self._gathers.get(n)
        if found is None:
            if self._group is None:
                self._group = weft.Group(self.comm)
            mine, everyone = (
                torch.zeros(n, dtype=torch.int32, device="cpu"),
                torch.empty((self.ranks, n), dtype=torch.int32, device="cpu"),
            )
            found = self._gathers[n] = mine, everyone, self._group.repeated_all_gather(mine, everyone)
        return found

    def all_gather(self, mine: torch.Tensor) -> torch.Tensor:
        """On GPUs: everyone's numbers, int32 [ranks, n], of this rank's, int32 [n], as one token that
        every rank has an expert for. Collective.

        Those of ranks that are left out are 0.
        """
        if self.ranks > _MOST_TOPK:
            raise weft.UnsupportedError(
                f"{self.ranks} ranks on GPUs, want at most {_MOST_TOPK}: use groups of fewer ranks"
            )
        n = mine.shape[0]
        row = torch.nn.functional.pad(mine, (0, -n % 4)).unsqueeze(0)
        h = self.handle(
            ("all", row.shape[1]),
            experts=self.ranks,
            topk=self.ranks,
            hidden=0,
            max_tokens=1,
            layout=ep.Layout.rank_major,
            payload=ep.Payload.opaque,
            row_bytes=row.shape[1] * 4,
            sms=_FEW_SMS * self._sharing,
        )
        everywhere = self._everywhere
        if everywhere is None:
            everywhere = torch.arange(self.ranks, device=mine.device).unsqueeze(0)
            # what is captured is filled by replays
            if not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
                self._everywhere = everywhere
        with h.dispatch(row.view(torch.uint8), everywhere) as got:
            everyone = got.rows.view(torch.int32)[:, :n].clone()
        for rank in self.comm._left_out:
            everyone[rank].zero_()
        return everyone

    def barrier(self, like: torch.Tensor) -> None:
        """Returns, or on a GPU lets the stream go on, when every rank has come. Collective."""
        if self.on_gpu:
            self.all_gather(torch.zeros(4, dtype=torch.int32, device=like.device))
            return
        if self._group is None:
            self._group = weft.Group(self.comm)
        self._group.barrier()


def where(comm: weft.Communicator) -> torch.device:
    """Where the tensors of a communicator are."""
    return (
        torch.device("cuda", comm._device)
        if comm.engine == "gpu" and torch.cuda.is_available()
        else torch.device("cpu")
    )


class Kept:
    """What a tensor holds now, for later, when the tensor may hold something else: on the host as
    bytes, which cost less than another tensor."""

    __slots__ = ("_as", "_held", "shape")

    def __init__(self, t: torch.Tensor) -> None:
        self.shape = t.shape
        self._held: Any
        if t.is_cpu and t.is_contiguous() and (size := t.nbytes):
            self._held, self._as = ctypes.string_at(t.data_ptr(), size), t.dtype
        else:
            self._held, self._as = t.clone(), None

    def tensor(self) -> torch.Tensor:
        """A tensor of it, which is not to be changed."""
        if self._as is not None:
            self._held, self._as = torch.frombuffer(bytearray(self._held), dtype=self._as).view(self.shape), None
        return self._held  # type: ignore[no-any-return]
