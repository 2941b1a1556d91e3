"""The base of both buffers: handles by their arguments, small exchanges between ranks, and the owners of
results' memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import weft
from weft import compiled, ep, memory
from weft.dtypes import DType
from weft.ep.routing import Columns, in_columns
from weft.errors import Words

from .errors import ContractError, words
from .events import CommStream, capturing
from .hosts import Hosts
from .mask import Mask

# Smaller results are copied out of the library's memory: a view of it costs more.
SHOWN_BYTES = 1 << 16

_FEW_SMS = 2  # enough for a few numbers of each rank
_FEW_BYTES = 1 << 20  # and for what they send

_SHAPES = 64  # of counts that pinned memory is kept for

# The first serial group of buffers, far from numbers that callers choose. The exchanges of a buffer
# follow each other, so its handles share multiprocessors.
_SERIAL_GROUPS = 1 << 40

# Batches that the library has memory for at once. On the host it is address space until it is used.
_LIVE_ON_HOST, _LIVE_ON_GPU = 8, 2


Say = Callable[[torch.Tensor, int], tuple[int, ...]]
"""Writes what a dispatch of so many tokens says into each row of memory, and returns its numbers."""

Era = tuple[int, frozenset[int]]
"""How often masked ranks had rejoined before an exchange, and which ranks were masked."""


class Exchanges:
    """The handles of a buffer. Every rank makes a handle when it is first needed.

    On GPUs counts stay in device memory and no handle call waits for the host. Only a dispatch whose tensors
    have exactly the received rows reads their number, once.
    """

    def __init__(
        self,
        comm: weft.Communicator,
        describes_again: bool = False,
        max_tokens: str = "num_max_dispatch_tokens_per_rank",
    ) -> None:
        """``describes_again``: whether results of dispatches by a known routing are described, too. ``max_tokens``: the
        buffer's name for the most tokens of a rank."""
        self._words = words(max_tokens)
        self._describes_again = describes_again
        self.comm, self.ranks, self.rank = comm, comm.ranks, comm.rank
        self.on_gpu = comm.engine == "gpu"
        self.in_streams = self.on_gpu and torch.cuda.is_available()
        """Whether exchanges are enqueued in PyTorch's streams."""
        self.device = comm._device if self.in_streams else -1
        """The GPU of those streams."""
        self.hosts = Hosts(comm.hosts, comm.rank, self.device)
        self.stream = CommStream(self.device)
        self._wait = functools.partial(_wait, comm, self.stream) if self.in_streams else comm.wait
        self.mask = Mask(comm, self._forget)
        self._forgot = 0
        self.meeting: Any = None  # of normal exchanges on the host
        self._compiled: dict[ep.Handle, Any] = {}  # the compiled part's exchanges of handles; None where it has none
        self.of_handles: list[dict[Any, Any]] = [self._compiled]
        """Caches to clear with the handles."""
        self._handles: dict[Any, ep.Handle] = {}
        self._serial_group = comm._buffers = comm._buffers + 1
        self._shown: dict[ep.Handle, list[weakref.ref[ep.Received]]] = {}
        self.captured: set[ep.Handle] = set()
        """Handles that a captured graph uses."""
        self._layouts: dict[int, tuple[Any, Any]] = {}
        self.says: list[Say] = []
        """What writes this rank's announcements before the counts that the compiled part makes, once there is one."""
        self._group: weft.Group | None = None
        self._gathers: dict[int, tuple[torch.Tensor, torch.Tensor, Any]] = {}
        self._counters: dict[int, ep.TokenCounter] = {}
        self._on_host: dict[torch.Size, torch.Tensor] = {}  # pinned memory for int32 counts of a GPU

    def handle(self, key: Any, **spec: Any) -> ep.Handle:
        """The handle of a key, which determines the spec. Collective the first time."""
        found = self._handles.get(key)
        if found is None:
            spec.setdefault("live", _LIVE_ON_GPU if self.on_gpu else _LIVE_ON_HOST)
            if self.on_gpu:
                spec["counts"] = ep.Counts.device
                spec["serial_group"] = _SERIAL_GROUPS + self._serial_group
            with self._saying():
                found = ep.Handle(self.comm, **spec)
            found._face = self._words
            self._handles[key] = found
        return found

    @contextlib.contextmanager
    def _saying(self) -> Iterator[None]:
        """Has errors say what is wrong in the words of the buffer."""
        try:
            yield
        except weft.WeftError as e:
            self._words.say(e)
            raise

    @functools.cached_property
    def _sharing(self) -> int:
        """Upper bound on ranks per GPU, which share its multiprocessors. It is too high if every rank sees
        only its own GPU."""
        return -(-self.comm.local_ranks // max(1, torch.cuda.device_count()))

    def _forget(self) -> None:
        """Closes the objects that were made collectively. Every rank makes it again when it is needed."""
        for made in (*self._handles.values(), *((self._group,) if self._group else ())):
            made.close()
        for kept in (self._handles, self._gathers, self._shown, self.captured, *self.of_handles):
            kept.clear()
        self._group = self.meeting = None
        self._forgot += 1

    @property
    def era(self) -> Era:
        """The state of masks for exchanges that begin now."""
        return self._forgot, self.comm._left_out

    def check_era(self, then: Era, anew: bool = False) -> None:
        """Refuses, on every rank, to continue an exchange of era ``then`` if its handles were closed since,
        or if masks changed and its rows would have to be counted again (``anew``)."""
        now = self.era
        if then[0] != now[0]:
            raise ContractError("the handle is from before a rank was taken in again: dispatch without it first")
        if anew and then != now:
            raise ContractError(
                "the handle is from before ranks were masked, and lacks the data that the call needs: dispatch "
                "without it first"
            )

    def find(self, key: Any) -> ep.Handle | None:
        """The handle of a key, if there is one."""
        return self._handles.get(key)

    @functools.cached_property
    def most_sms(self) -> int:
        """Multiprocessors that low-latency exchanges may fill: all that other buffers have left. 0 is the
        library's choice."""
        return (
            torch.cuda.get_device_properties(where(self.comm)).multi_processor_count
            if self.on_gpu and torch.cuda.is_available()
            else 0
        )

    def layout(
        self, topk: torch.Tensor, experts: int
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]:
        """Counts where tokens go, on the device of ``topk``. Returns tokens per rank, int32 [ranks]; per host, int32
        [hosts], None where there is one; selections per expert, int32 [experts]; and whether a token goes to a rank,
        bool [tokens, ranks]. Local."""
        if not self.mask.agreed:
            self.mask.agree()  # till then a communicator that has failed counts nothing
        if self.on_gpu:
            counter = self._counters.get(experts)
            if counter is None:
                with self._saying():
                    counter = self._counters[experts] = ep.TokenCounter(self.comm, experts=experts)
                counter._face = self._words
            if topk.dim() != 2:
                raise ContractError(f"topk_idx of shape {tuple(topk.shape)}, want [tokens, topk]")
            made, device = torch.empty, topk.device
            ranks, selections = (
                made(self.ranks, dtype=torch.int32, device=device),
                made(experts, dtype=torch.int32, device=device),
            )
            within = made((topk.shape[0], self.ranks), dtype=torch.uint8, device=device)
            counter.count(topk, rank_tokens=ranks, expert_selections=selections, token_in_rank=within)
            self._lay_out(experts, counter._handle, counter)
            in_rank = within.view(torch.bool)
            return ranks, self.hosts.tokens(in_rank), selections, in_rank
        with self._saying():
            counted = ep.count(topk, experts=experts, ranks=self.ranks)
        self._lay_out(experts, 0, _Counting(self.comm, self._words))
        in_rank = counted.token_in_rank.view(torch.bool)
        return counted.rank_tokens, self.hosts.tokens(in_rank), counted.expert_selections, in_rank

    def _lay_out(self, experts: int, counter: int, owner: Any) -> None:
        """Has the compiled part count from now on."""
        if not compiled.in_use() or experts in self._layouts or self.hosts.count > 1:
            return
        device = self.comm._device
        made = compiled.NATIVE.Layout(
            counter,
            device,
            experts,
            self.ranks,
            memory.samples((self.ranks,), DType.int32, device),
            memory.samples((experts,), DType.int32, device),
            memory.samples((self.ranks,), DType.bool, device),
            memory.samples((), DType.int32, device),
            functools.partial(_say, self.says),
        )
        self._layouts[experts] = made, owner

    def counting(self, experts: int) -> Any:
        """What of the compiled part counts selections of so many experts, or None."""
        found = self._layouts.get(experts)
        return None if found is None else found[0]

    def quick_layout(self, topk: torch.Tensor, experts: int) -> tuple[Any, ...] | None:
        """:meth:`layout` by the compiled part, in the current stream; None where it declines."""
        found = self._layouts.get(experts)
        if found is None or not self.mask.agreed:
            return None
        return self.stream.run_quick(found[0].count, found[1], topk)  # type: ignore[no-any-return]

    def on_host(self, counts: torch.Tensor) -> torch.Tensor:
        """Copies counts from a GPU to the host, where the next such call may write over them. Waits for all work
        that was enqueued before."""
        if not counts.is_cuda:
            found = counts.cpu()
            self.comm.check()
            return found
        kept = self._on_host.get(counts.shape)
        if kept is None:
            if len(self._on_host) >= _SHAPES:
                self._on_host.clear()
            kept = self._on_host[counts.shape] = _pinned(counts.shape)
        kept.copy_(counts, non_blocking=True)
        self.wait()
        return kept

    def wait(self) -> None:
        """Waits for all work that was enqueued on the current stream: what of it comes to the host is there then."""
        self._wait()

    def waiter(self) -> Callable[[], None]:
        """:meth:`wait`, without a reference to this, for objects that the collector does not look into."""
        return self._wait

    # Rows that stay the caller's.

    def dispatch(
        self,
        handle: ep.Handle,
        rows: torch.Tensor,
        scales: torch.Tensor | None,
        topk: torch.Tensor | None,
        weights: torch.Tensor | None,
        routing: ep.Routing | None = None,
        received_rows: Callable[[ep.Routing], int | None] | None = None,
        columns: Columns | None = None,
        describe: Callable[[ep.Received], None] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, ep.Routing]:
        """Dispatches rows. Returns the received rows, their scales, and the routing. The caller may keep the
        tensors as long as needed. Collective.

        Large tensors are views of the library's memory, which has room for a few batches. Small ones,
        and all others while that memory is in use, are copies. On a GPU tensors have the capacity, or
        ``received_rows`` of the routing. A capture also returns views, but calls after it do not.
        ``columns``: the order and type of the returned scales. ``describe`` is called on a GPU with the received batch.
        """
        if self.on_gpu:
            got = handle.dispatch(rows, topk, weights, routing=routing, scales=scales)
            if describe is not None:
                describe(got)
            if routing is None:
                self.stream.shows(weakref.ref(got.routing))
        else:
            copied, copied_scales, routing, large = handle.dispatch_copied(
                rows, topk, weights, routing=routing, scales=scales, most=SHOWN_BYTES
            )
            if large is None:
                return copied, in_columns(copied_scales, columns), routing
            got = large
        return *self._keep(handle, rows, got, received_rows and received_rows(got.routing), columns), got.routing

    def dispatch_described(
        self,
        handle: ep.Handle,
        rows: torch.Tensor,
        scales: torch.Tensor | None,
        topk: torch.Tensor | None,
        weights: torch.Tensor | None,
        routing: ep.Routing | None = None,
        received: int | Callable[[ep.Routing], int | None] | None = None,
        describes: bool = False,
    ) -> tuple[
        torch.Tensor, torch.Tensor | None, ep.Routing, torch.Tensor | None, torch.Tensor | None, list[int] | None
    ]:
        """:meth:`dispatch` by the compiled part where it can. It then also describes the rows on the host: the
        received selections, int64 [rows, topk]; their weights, or those of rows that are selections' themselves; and
        each expert's demand, None if it does not. ``received``: the number of rows, or what finds it. ``describes``:
        whether rows on a GPU are described, too, without the demand, unless by a known routing. Collective.
        """
        by = self.compiled(handle)
        if by is not None and not (rows.is_cuda and (handle in self.captured or capturing())):
            late = callable(received)
            got = by.dispatch(handle, rows, scales, topk, weights, routing, None if late else received, describes)
            if got is not None:
                count = received(got[2]) if late else None  # type: ignore[operator]
                return got if count is None else _first(count, got)  # type: ignore[no-any-return]
        known = received if callable(received) or received is None else lambda _: received
        expands = not handle.spec.one_row_per_rank
        if not (describes and self.on_gpu and topk is not None) or (expands and weights is None):
            return (*self.dispatch(handle, rows, scales, topk, weights, routing, known), None, None, None)
        late = received is None or callable(received)
        room = handle.capacity if late else received
        ids = None if expands else topk.new_empty((room, topk.shape[1]), dtype=torch.int64)
        shape = (room,) if expands else (room, topk.shape[1])
        sums = None if weights is None else topk.new_empty(shape, dtype=torch.float32)
        if late:  # fewer may come than there is room for
            for part, nothing in (ids, -1), (sums, 0):
                if part is not None:
                    part.fill_(nothing)

        def describe(got: ep.Received) -> None:
            got.copy_to(row_experts=ids, **{"row_weights" if expands else "row_selection_weights": sums})

        arrived, arrived_scales, made = self.dispatch(
            handle, rows, scales, topk, weights, routing, known, None, describe
        )
        count = received(made) if callable(received) else None
        return arrived, arrived_scales, made, _rows(ids, count), _rows(sums, count), None

    def compiled(self, handle: ep.Handle) -> Any:
        """The compiled part's exchanges of a handle whose rows are tokens' or packed; None where it has none."""
        found = self._compiled.get(handle)
        if found is None and handle not in self._compiled:
            found = self._compiled[handle] = self._compile(handle)
        return found

    def _compile(self, handle: ep.Handle) -> Any:
        spec = handle.spec
        scale = DType.ue8m0 if spec.payload == ep.Payload.fp8_ue8m0 else DType.float32
        if handle._calls is None or spec.payload == ep.Payload.opaque or not compiled.in_use():
            return None
        if not (compiled.NATIVE.shows(DType(spec.row_dtype)) and compiled.NATIVE.shows(scale)):
            return None
        device, expands = self.comm._device, not spec.one_row_per_rank
        return compiled.NATIVE.Normal(
            handle._calls,
            self.shown_of(handle),
            spec.live,
            spec.experts // self.ranks,
            expands,
            self._describes_again,
            SHOWN_BYTES,
            spec.max_tokens,
            spec.hidden,
            spec.topk,
            spec.experts,
            memory.samples((spec.hidden,), DType(spec.row_dtype), device),
            memory.samples((-(-spec.hidden // 128),), scale, device),
            memory.samples((spec.topk,), DType.int64, device),
            memory.samples(() if expands else (spec.topk,), DType.float32, device),
        )

    def _keep(
        self, handle: ep.Handle, like: torch.Tensor, got: ep.Received, count: int | None, columns: Columns | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self._may_show(handle, like):
            rows, scales = got._arrays(columns)
            if count is not None:
                rows, scales = rows[:count], None if scales is None else scales[:count]
            shown = weakref.ref(got)
            self._shown[handle].append(shown)
            self.stream.shows(shown)
            return rows, scales
        with got:
            rows, scales = got._arrays()
            if count is not None:  # later rows are undefined
                return rows[:count].clone(), None if scales is None else scales[:count].clone()
            copies = torch.empty_like(rows), None if scales is None else torch.empty_like(scales)
            got.copy_to(*copies)
        return copies[0], in_columns(copies[1], columns)

    def _may_show(self, handle: ep.Handle, like: torch.Tensor) -> bool:
        if like.is_cuda and torch.cuda.is_current_stream_capturing():
            self.captured.add(handle)
        elif handle in self.captured:
            return False  # replays overwrite the memory of captured exchanges, views or not
        # One batch must be left for the next exchange.
        shown = self.shown_of(handle)
        shown[:] = [s for s in shown if s() is not None]
        return len(shown) + compiled.batches(handle) < handle.spec.live - 1

    def shown_of(self, handle: ep.Handle) -> list[weakref.ref[ep.Received]]:
        """Batches of a handle that tensors of the caller's show, but for those of the compiled part."""
        return self._shown.setdefault(handle, [])

    # Gathers of numbers from all ranks.

    def gather_of(self, n: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """The send buffer of a rank's n numbers, the receive buffer [ranks, n], in which rows of masked ranks stay as
        they are, and the collective call that gathers them. The receive buffer is the host's: a GPU writes into pinned
        memory, so that no copy follows."""
        found = self._gathers.get(n)
        if found is None:
            device = where(self.comm)
            with torch.inference_mode(False):  # they are written in any mode
                mine = torch.zeros(n, dtype=torch.int32, device=device)
            everyone = _pinned((self.ranks, n), device.type == "cuda")
            found = self._gathers[n] = mine, everyone, self.group.repeated_all_gather(mine, everyone)
        return found

    @property
    def group(self) -> weft.Group:
        """The group of collectives. Collective the first time."""
        if self._group is None:
            on_gpu = {
                "staging": _FEW_BYTES,
                "sms": _FEW_SMS * self._sharing,
                "serial_group": _SERIAL_GROUPS + self._serial_group,
            }
            with self._saying():
                self._group = weft.Group(self.comm, **(on_gpu if self.on_gpu else {}))
            self._group._face = self._words
        return self._group

    def all_gather(self, mine: torch.Tensor) -> torch.Tensor:
        """On GPUs: gathers int32 [n] of every rank into int32 [ranks, n]. Rows of masked ranks are 0. Collective."""
        return self.group.all_gather(mine, out=mine.new_zeros(self.ranks, *mine.shape))  # type: ignore[no-any-return]

    def barrier(self) -> None:
        """Returns, or on a GPU lets the stream go on, when every rank has come. Collective."""
        self.group.barrier()


def _rows(part: torch.Tensor | None, count: int | None) -> torch.Tensor | None:
    """The first so many rows of a tensor."""
    return part if part is None or count is None else part[:count]


def _first(count: int, got: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the compiled part's dispatch has returned, of the first so many rows."""
    rows, scales, routing, ids, sums, demand = got
    return rows[:count], _rows(scales, count), routing, _rows(ids, count), _rows(sums, count), demand


def _wait(comm: weft.Communicator, stream: CommStream) -> None:
    """Waits for the current stream of a communicator's GPU."""
    stream.synchronize(comm._device)
    comm.check()  # counts of a failed operation are undefined


def _say(says: Sequence[Say], whole: torch.Tensor, pieces: int, tokens: int) -> tuple[int, ...] | None:
    """Writes an announcement into memory of many pieces; None if nothing is known of it yet."""
    return says[0](whole.view(pieces, -1), tokens) if says else None


class _Counting:
    """What raises the errors of counting on the host."""

    def __init__(self, comm: weft.Communicator, words: Words) -> None:
        self._comm, self._words = comm, words

    def _check(self, status: int) -> None:
        failure = self._comm._failure(status)
        self._words.say(failure)
        raise failure


def _pinned(shape: Sequence[int], pinned: bool = True) -> torch.Tensor:
    """Zeros of int32 in memory of the host's which a GPU reaches, if it is ``pinned``."""
    with torch.inference_mode(False):  # it is written in any mode
        return torch.zeros(shape, dtype=torch.int32, device="cpu", pin_memory=pinned)


def where(comm: weft.Communicator) -> torch.device:
    """Where the tensors of a communicator are."""
    return (
        torch.device("cuda", comm._device)
        if comm.engine == "gpu" and torch.cuda.is_available()
        else torch.device("cpu")
    )


class Kept:
    """The present content of a tensor, for later, when the tensor may hold another: on the host as bytes,
    which cost less than another tensor."""

    __slots__ = ("_as", "_held", "shape")

    def __init__(self, t: torch.Tensor) -> None:
        self.shape = t.shape
        self._held: Any = None if compiled.NATIVE is None else compiled.NATIVE.content(t)
        if self._held:
            self._as = t.dtype
        elif t.is_cpu and t.is_contiguous() and (size := t.nbytes):
            self._held, self._as = ctypes.string_at(t.data_ptr(), size), t.dtype
        else:
            self._held, self._as = t.clone(), None

    @classmethod
    def of(cls, content: bytes | torch.Tensor, shape: torch.Size) -> Kept:
        """That of a tensor of integers, by its bytes or a copy."""
        made = cls.__new__(cls)
        made.shape, made._held = shape, content
        if isinstance(content, torch.Tensor):
            made._as = None
            return made
        made._as = torch.int32 if len(content) == 4 * shape.numel() else torch.int64
        if not content:
            made._held, made._as = torch.empty(shape, dtype=torch.int64, device="cpu"), None
        return made

    def tensor(self) -> torch.Tensor:
        """A tensor of it, which is not to be changed."""
        if self._as is not None:
            self._held, self._as = torch.frombuffer(bytearray(self._held), dtype=self._as).view(self.shape), None
        return self._held  # type: ignore[no-any-return]
