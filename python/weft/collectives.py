"""Collectives between ranks on the host, or on GPUs. Results are the same bits on every rank, in every run and
on both engines."""

from __future__ import annotations

import ctypes
import itertools
import math
import numbers
import operator
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypedDict

from . import _abi, dlpack, memory, streams
from ._abi import Collective, Op
from .call_args import ArgsPool, CallArgs
from .communicator import Communicator
from .dtypes import DType, DTypeLike, dtype_of
from .errors import InvalidError, OperandError, unexpected
from .fused import FusedCollectives
from .limits import timeout as limit
from .limits import whole
from .operands import Slot
from .own import Creation, OwnAlgorithm, Select, strings
from .resources import Made
from .work import Begun, Work

if TYPE_CHECKING:
    from typing import Unpack

Shape = tuple[int, ...]
Parts = tuple[str, Any]
"""Numbers for the ranks' parts, in rows, and the name of the argument that they were."""

_numbers = itertools.count(1)
NUMBERED: weakref.WeakValueDictionary[int, Group] = weakref.WeakValueDictionary()
"""The groups that live, by their numbers."""


class Send(NamedTuple):
    """A message to a rank, for :meth:`Group.batch`."""

    array: Any
    peer: int


class Recv(NamedTuple):
    """A message from a rank, for :meth:`Group.batch`, and where it goes."""

    array: Any
    peer: int


class Algorithm(NamedTuple):
    """An algorithm that a group has."""

    name: str
    """As ``algorithm=`` of a call and ``force=`` of a :class:`Group` name it."""
    collective: Collective
    min_bytes: int
    """Of a rank's part; 0 is no bound, here and below."""
    max_bytes: int
    ranks: int
    """The only number of ranks for which it is; 0: any."""


class How(TypedDict, total=False):
    """What every call of a :class:`Group` takes beside its operands."""

    stream: streams.StreamLike
    """On GPUs, where the call is enqueued: see :mod:`weft.streams`. None is the current stream."""
    timeout: float | None
    """Seconds that bound the call's waits on the host, as :class:`weft.timeout` does."""
    algorithm: str | None
    """An algorithm by name, the same on all ranks; None: the fastest."""
    symmetric: bool
    """Whether operands in windows lie at the same place of the same window on every rank. GPUs read and write no
    other operand of a peer where it lies."""
    async_op: bool
    """Whether the call returns a :class:`Work` at once, and not the result."""
    blocks: int
    """On GPUs, the most blocks of a launch, the same on all ranks; 0: as the algorithm does."""
    threads: int
    """Those of a block, of an algorithm of the caller's own."""
    extras: Mapping[str, Any] | None
    """Arrays on the GPU that such an algorithm takes, by name."""


class Group(FusedCollectives, Made):
    """Collectives of a communicator, and the memory that they need.

    Making one is collective, with the same arguments on all ranks. On the host ``scratch`` bytes stage operands
    that lie in no window; 0 is 4 MiB. On GPUs ``staging`` bytes of each GPU hold what peers send, 0 is 64 MiB,
    and kernels fill at most ``sms`` multiprocessors; 0 is three quarters of the free ones. ``serial_group`` is that
    of :class:`weft.ep.Spec`. ``dtypes``, on GPUs: types whose kernels are loaded now, and not by the first
    reduction, which in a capture could not. ``force``: names of algorithms that are used wherever they support a
    call, in this order. ``algorithms``, on GPUs, are kernels of the caller's own, and ``select`` names the algorithm
    of a call that names none, or None: it depends on its argument alone.

    Every method is collective, but for messages. Operands are arrays of the same type; shapes play no part where
    ``out`` is given. Without it a new array is returned: on GPUs only if the operand is PyTorch's. ``out`` may be
    the operand, or this rank's part of one the other; otherwise they must not overlap.

    Arrays that are read and are not contiguous are copied first. Such ones that are written are refused, by name:
    pass a contiguous array and copy from it.

    For an array with a part for each rank, the first dimension being the ranks, a list of arrays of NumPy or
    PyTorch may stand, a part each; they are copied.

    All calls take the keywords of :class:`How`. On the host a call returns when its result is complete, on GPUs it
    enqueues on ``stream``. With ``async_op=True`` it returns a :class:`Work` at once; calls of a group run in the
    order in which they begin. A ``with`` block that an exception leaves amid such calls aborts them, on all ranks.
    """

    _kind = "group of collectives"
    _RELEASE = "group_destroy"

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return f"<weft.Group rank {self._comm.rank} of {self._comm.ranks}{closed}>"

    def __init__(
        self,
        comm: Communicator,
        *,
        scratch: int = 0,
        staging: int = 0,
        sms: int = 0,
        serial_group: int = 0,
        dtypes: Sequence[DTypeLike] = (),
        force: Sequence[str] = (),
        algorithms: Sequence[OwnAlgorithm] = (),
        select: Select | None = None,
    ) -> None:
        try:
            options = _abi.GroupOptions(
                scratch=whole("scratch", scratch),
                staging=whole("staging", staging),
                sms=whole("sms", sms, bits=32),
                serial_group=whole("serial_group", serial_group),
                dtypes=sum(1 << t for t in {int(dtype_of(like)) for like in dtypes}),
            )
            if force:
                names = ctypes.create_string_buffer(" ".join(force).encode())
                options.force = ctypes.addressof(names)
            self._creation = Creation(options, algorithms, select, comm._device)
        except Exception as e:
            comm._refuse(e, "group_create", None)
        super().__init__(comm, *self._creation.arguments)
        self._comm = comm
        self._pool = _Pool(lambda: _CollectiveArgs(comm._device))
        self._started: dict[int, Begun] = {}  # calls that have not been seen to end, with what they borrow
        self._abandoned: list[Begun] = []  # those whose Work is gone
        self._ending = threading.RLock()  # of the ends of calls; a collection amid one may close a Work
        self._forgotten.watched[self._handle].keep = self._started
        # Compilers keep code for a number, also for later processes, where the number must not stand for a
        # group of other shapes.
        self.number: int = comm.ranks << 31 | next(_numbers)
        """The number of the group, for operators that take only numbers."""
        NUMBERED[self.number] = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (
            kind is not None
            and not self.closed
            and any(not begun.over(self._lib) for begun in list(self._started.values()))
        ):
            self._lib.comm_abort(self._comm._handle)  # else its peers' part would be waited for
        self.close()

    def close(self) -> None:
        """Closes the group on this rank, when the calls that were started have ended. It is no collective call."""
        super().close()
        if self._closed:
            self._started.clear()

    def barrier(self, **how: Unpack[How]) -> Work | None:
        """Returns, or on GPUs lets the stream go on, when every rank has entered it."""
        if how:
            return self._run(Collective.barrier, None, reads=False, writes=False, **how)  # type: ignore[no-any-return]
        self._begin()
        self._check(self._lib.barrier(self._handle, streams.address(None, self._comm._device)))
        return None

    def all_reduce(
        self, array: Any, op: Op | str = Op.sum, *, scalar: Any = None, out: Any = None, **how: Unpack[How]
    ) -> Any:
        """Reduces elementwise, in rank order, and returns ``out``: an array of the shape of ``array``,
        or ``array`` itself; a new one if None.

        A "premulsum" multiplies each element by ``scalar`` first: a number, or an array of one element, which
        on GPUs may be on the host or on the GPU. It is the same on all ranks, and of the operands' type, float32
        for floats of 8 and 16 bits.
        """
        return self._run(Collective.all_reduce, array, out, op, scalar, **how)

    def reduce_scatter(
        self, array: Any, op: Op | str = Op.sum, *, scalar: Any = None, out: Any = None, **how: Unpack[How]
    ) -> Any:
        """Reduces [ranks, \\*shape] as :meth:`all_reduce`, and gives each rank its part, of that shape."""
        return self._run(Collective.reduce_scatter, array, out, op, scalar, shape=self._part, **how)

    def reduce_scatter_v(
        self,
        array: Any,
        counts: Sequence[int],
        op: Op | str = Op.sum,
        *,
        at: Sequence[int] | None = None,
        scalar: Any = None,
        out: Any = None,
        **how: Unpack[How],
    ) -> Any:
        """The same with parts of ``counts[r]`` rows for rank r, from row ``at[r]`` of ``array`` on; without ``at``
        one after the other. Both are the same on all ranks."""
        return self._run(
            Collective.reduce_scatter_v,
            array,
            out,
            op,
            scalar,
            shape=lambda source: (_counts("counts", counts, self._comm.ranks)[self._comm.rank], *source.shape[1:]),
            parts=(("counts", counts), ("at", at), _NONE, _NONE),
            **how,
        )

    def reduce(
        self,
        array: Any,
        op: Op | str = Op.sum,
        root: int = 0,
        *,
        scalar: Any = None,
        out: Any = None,
        **how: Unpack[How],
    ) -> Any:
        """Reduces as :meth:`all_reduce`, and gives the result to root; other ranks return None, and their
        ``out`` is not looked at."""
        writes = self._comm.rank == root
        return self._run(Collective.reduce, array, out, op, scalar, root=root, writes=writes, **how)

    def all_gather(self, array: Any, *, out: Any = None, **how: Unpack[How]) -> Any:
        """Gives every rank the arrays of all: [ranks, \\*shape], in the order of ranks. ``array`` may
        be this rank's part of ``out``."""
        return self._run(Collective.all_gather, array, out, shape=self._all, **how)

    def all_gather_v(
        self,
        array: Any,
        counts: Sequence[int],
        at: Sequence[int] | None = None,
        *,
        out: Any = None,
        **how: Unpack[How],
    ) -> Any:
        """Gives every rank the arrays of all, ``counts[r]`` rows of rank r, from row ``at[r]`` of ``out`` on;
        without ``at`` one after the other. Both are the same on all ranks. With ``at`` give ``out``."""
        return self._run(
            Collective.all_gather_v,
            array,
            out,
            shape=self._rows("counts", counts, at),
            parts=(_NONE, _NONE, ("counts", counts), ("at", at)),
            **how,
        )

    def repeated_all_gather(self, array: Any, out: Any) -> Callable[..., None]:
        """A function that makes an all-gather of the same arrays whenever it is called, for less:
        neither may be moved. Another array like ``out`` may be given to it. On a GPU it is enqueued on the current
        stream, and ``out`` may be a tensor of PyTorch's in pinned memory."""
        self._open()
        device = self._comm._device
        to, source = Slot("out", device, written=True), Slot("array", device)
        to.folds = source.folds = to.pinned = True
        call, handle = self._lib.all_gather, self._handle

        def refuse(why: Exception) -> NoReturn:  # the others hear of it, in place of the next all-gather
            slot = Slot("array", device)
            absent = slot.absent(why)
            call(handle, streams.address(None, device), absent, absent)
            raise why

        try:
            given, into = source.fill(array), to.fill(out)
        except Exception as e:
            refuse(e)
        kept = to, source, array, out

        def again(other: Any = None) -> None:
            if self._closed:
                self._open()
            if other is not None:
                try:
                    to.fill(other)
                except Exception as e:
                    refuse(e)
            if status := call(handle, streams.address(None, device), into, given):
                raise self._failure(status)

        again.kept = kept  # type: ignore[attr-defined]
        return again

    def all_to_all(self, array: Any, *, out: Any = None, **how: Unpack[How]) -> Any:
        """Gives every rank its part of all arrays: both are [ranks, \\*shape]. ``out`` may be ``array``."""
        return self._run(Collective.all_to_all, array, out, **how)

    def all_to_all_v(
        self,
        array: Any,
        send: Any,
        recv: Any,
        *,
        send_at: Any = None,
        recv_at: Any = None,
        out: Any = None,
        **how: Unpack[How],
    ) -> Any:
        """The same with parts of different lengths: ``send[r]`` rows go to rank r and ``recv[r]`` come from it,
        which is what that rank says that it sends. Without positions parts lie one after the other. With
        ``recv_at`` give ``out``.

        On GPUs all four may be arrays of int64 [ranks] on the GPU, where the kernel reads them when it runs. They
        then count elements, not rows.
        """
        return self._run(
            Collective.all_to_all_v,
            array,
            out,
            shape=self._rows("recv", recv, recv_at),
            parts=(("send", send), ("send_at", send_at), ("recv", recv), ("recv_at", recv_at)),
            **how,
        )

    def broadcast(self, array: Any, root: int = 0, *, out: Any = None, **how: Unpack[How]) -> Any:
        """Gives every rank the contents of root's array, in place, and returns it; with ``out`` there, and
        other ranks' ``array`` is not looked at."""
        if out is None:
            out = array
        reads = out is array or self._comm.rank == root
        return self._run(Collective.broadcast, array, out, root=root, reads=reads, **how)

    def gather(self, array: Any, root: int = 0, *, out: Any = None, **how: Unpack[How]) -> Any:
        """Gives root the arrays of all, as :meth:`all_gather`; other ranks return None, and their ``out`` is
        not looked at."""
        writes = self._comm.rank == root
        return self._run(Collective.gather, array, out, root=root, writes=writes, shape=self._all, **how)

    def scatter(self, array: Any, root: int = 0, *, out: Any = None, **how: Unpack[How]) -> Any:
        """Gives every rank its part of root's array, [ranks, \\*shape]. Other ranks' ``array`` is not looked
        at, and they give ``out``."""
        reads = self._comm.rank == root
        return self._run(Collective.scatter, array, out, root=root, reads=reads, shape=self._part, **how)

    # Messages between pairs of ranks, in which no other rank takes part.

    def send(self, array: Any, peer: int, **how: Unpack[How]) -> Work | None:
        """Sends a message to another rank, and returns when that one has taken it, whatever its size: two ranks
        that both send first wait for each other. Messages between two ranks are matched in their order."""
        return self.batch((Send(array, peer),), **how)

    def recv(self, array: Any, peer: int, **how: Unpack[How]) -> Any:
        """Receives a message into ``array``, which is returned, and has the type and the number of elements that the
        peer sends; if it has not, both ranks raise :class:`weft.MismatchError`."""
        work = self.batch((Recv(array, peer),), **how)
        if work is None:
            return array
        work._result = array
        return work

    def batch(self, messages: Iterable[Send | Recv], **how: Unpack[How]) -> Work | None:
        """Sends and receives messages together. They go on side by side, so ranks may exchange them in any pattern,
        and a rank may send to itself. Arrays that are received into overlap no other array of the batch."""
        return self._run(  # type: ignore[no-any-return]
            Collective.point_to_point, None, reads=False, writes=False, messages=list(messages), **how
        )

    # What ran, and what could.

    @property
    def algorithm(self) -> str:
        """The name of the algorithm of the last call that was not asynchronous: "" before the first, and after one
        that was refused."""
        self._open()
        name = ctypes.c_char_p()
        self._check(self._lib.group_algorithm(self._handle, ctypes.addressof(name)))
        return (name.value or b"").decode()

    def algorithms(self) -> list[Algorithm]:
        """The algorithms that the group has."""
        self._open()
        found, a = [], _abi.Algorithm()
        while True:
            self._check(self._lib.group_algorithm_at(self._handle, len(found), a))
            if not a.name:
                return found
            name = ctypes.string_at(a.name).decode()
            found.append(Algorithm(name, Collective(a.collective), a.min_bytes, a.max_bytes, a.ranks))

    def _run(
        self,
        kind: int,
        array: Any,
        out: Any = None,
        op: Op | str = Op.sum,
        scalar: Any = None,
        *,
        root: int = 0,
        reads: bool = True,
        writes: bool = True,
        shape: Callable[[Slot], Shape] | None = None,
        parts: tuple[Parts, ...] | None = None,
        dtype: DType | None = None,
        more: Callable[[_CollectiveArgs], None] | None = None,
        messages: list[Send | Recv] | None = None,
        stream: streams.StreamLike = None,
        timeout: float | None = None,
        algorithm: str | None = None,
        symmetric: bool = False,
        async_op: bool = False,
        blocks: int = 0,
        threads: int = 0,
        extras: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> Any:
        """Runs or starts a call, with an operand that is read and one that is written where this rank has them.
        ``shape`` is that of a new array for the result; None: that of ``array``; and so is ``dtype``. ``more``
        puts other arguments."""
        self._begin()
        args, on, bound, refused, lists, work = self._pool.take(), 0, None, None, None, None
        try:
            words, source, to = args.words, args.array, args.out_array
            try:
                if messages is not None:
                    args.name_messages(messages, self._comm.ranks)
                if unknown:
                    raise unexpected(_words(kind).replace("-", "_"), unknown, How.__annotations__)
                on = streams.address(stream, self._comm._device)
                if timeout is not None:
                    bound = limit(timeout)
                    bound.__enter__()
                if stream is not None:
                    args.enter(stream, on, self._comm._device)
                number = op if type(op) is Op else _op(op)
                words[_KIND] = kind | number << 32
                if type(root) is not int or not 0 <= root < self._comm.ranks:
                    root = _rank(f"{_words(kind)}: root", root, self._comm.ranks)
                words[_ROOT] = root
                if reads and kind in _IN_PARTS and type(array) in _LISTS:
                    given_list, array = array, self._stacked(array)
                    args.borrow(given_list)
                if not writes:
                    out = None
                elif kind in _OUT_PARTS and type(out) in _LISTS:
                    lists, out = out, None
                    if async_op and self._comm._device >= 0:
                        raise OperandError(
                            "out: a list is filled by copies, which come after an asynchronous call's Work: give "
                            "one array"
                        )
                given = words[_OUT] = 0
                if reads and (array is not out or array is None):
                    given = source.fill(array) or _none(source)
                if writes:
                    to.wants = dtype or (source.code if given else 0)
                    if out is None:
                        out = self._made(source, reads, shape, dtype)
                    if lists is not None:
                        self._check_parts(lists, out)
                    words[_OUT] = to.fill(out)
                words[_IN] = given or (words[_OUT] if reads else 0)
                if scalar is not None:
                    args.scale(number, scalar, (source if given else to).dtype)
                if parts is not None:
                    args.put_parts(parts, source, self._comm.ranks)
                if algorithm is not None or symmetric:
                    args.choose(algorithm, symmetric)
                if blocks or threads or extras:
                    args.launch(blocks, threads, extras or {})
                if messages is not None:
                    args.put_messages()
                if more is not None:
                    args.more = True
                    more(args)
            except Exception as e:  # the others get the reason, instead of waiting
                refused = e
                words[_KIND], words[_ROOT] = kind, 0
                words[_OUT] = words[_IN] = source.absent(e)
                if messages is not None:
                    args.refuse_messages(source.address)
            if async_op:
                args.held.extend((array, out, lists))
                args.out.value = 0
                status = self._lib.group_start(self._handle, on, args.address, args.out_address)
            else:
                status = self._lib.group_run(self._handle, on, args.address)
            if refused is not None:
                raise refused
            if status:
                raise self._failure(status)
            finish = None if lists is None else lambda: self._copy_parts(args, lists, out)
            if async_op:
                work = Work(self, _words(kind), args.out.value, args, out if lists is None else lists, finish)
                return work
            if finish is not None:
                finish()
                return lists
        finally:
            refused = None  # its traceback has this frame
            if bound is not None:
                bound.__exit__(None, None, None)
            if work is None and async_op and args.out.value:
                # After an interrupt: it is dropped, and the call goes on.
                work = Work(self, _words(kind), args.out.value, args, None)
            if work is None:
                self._pool.give(args)
            elif args.scope is not None:
                args.leave()
        return out

    def _copy_parts(self, args: _CollectiveArgs, lists: Sequence[Any], whole: Any) -> None:
        """Copies a result to a list of arrays."""
        args.borrow(lists)
        for r, part in enumerate(lists):
            if r not in self._comm._left_out:
                _plain(part)[...] = whole[r]

    def _reap(self) -> None:
        """Releases calls whose Work is gone, and that have ended."""
        with self._ending:
            while self._abandoned:
                begun = self._abandoned[0]
                if begun.number in self._started and not (begun.ask(self) or begun.captured):
                    return  # calls end in about their order
                self._abandoned.remove(begun)
                self._over(begun)

    def _over(self, begun: Begun) -> None:
        """Gives back what a call has borrowed."""
        while self._lib.work_release(begun.number) == _abi.Status.ERROR_BUSY:  # a waiter is about to return
            pass
        if self._started.pop(begun.number, None) is not None:
            self._pool.give(begun.args)

    def _begin(self) -> None:
        """The start of every call."""
        if self._closed:
            self._open()
        if self._abandoned:
            self._reap()
        if self._forgotten.found:
            self._forgotten.collect()

    def _made(
        self, source: Slot, reads: bool, shape: Callable[[Slot], Shape] | None, dtype: DType | None = None
    ) -> Any:
        """A new array for a result."""
        if not reads:
            raise OperandError("out: there is no array, and only root has one that says its shape")
        sizes = shape(source) if shape is not None else source.shape
        return memory.empty(source.kind, sizes, dtype or source.dtype, self._comm._device)

    def _rows(self, name: str, counts: Sequence[int], at: Sequence[int] | None) -> Callable[[Slot], Shape]:
        """The shape of a new array for parts of so many rows."""

        def shape(source: Slot) -> Shape:
            if at is not None:
                raise OperandError("out: there is no array, and parts that have positions may leave gaps: give one")
            return (sum(_counts(name, counts, self._comm.ranks)), *source.shape[1:])

        return shape

    def _all(self, source: Slot) -> Shape:
        """The shape of what is gathered."""
        return (self._comm.ranks, *source.shape)

    def _part(self, source: Slot) -> Shape:
        """The shape of a rank's part."""
        if source.shape[:1] != (self._comm.ranks,):
            raise source.refuse(
                f"shape {source.shape}, want [{self._comm.ranks}, ...], a part for each rank, or give out"
            )
        return source.shape[1:]

    # Lists of arrays, a part for each rank.

    def _stacked(self, arrays: Sequence[Any]) -> Any:
        """One array of all, which have one type and one shape."""
        library, first = _library(arrays, self._comm.ranks, "array"), arrays[0]
        for r, array in enumerate(arrays):
            if array.dtype != first.dtype or array.shape != first.shape:
                raise OperandError(
                    f"array: part {r} is of shape {tuple(array.shape)} and type {array.dtype}, and part 0 of "
                    f"{tuple(first.shape)} and {first.dtype}"
                )
        return library.stack(tuple(arrays))

    def _check_parts(self, arrays: Sequence[Any], whole: Any) -> None:
        """Refuses arrays that the parts of a result cannot be copied to."""
        _library(arrays, self._comm.ranks, "out")
        for r, array in enumerate(arrays):
            if type(array) is not type(whole) or array.shape != whole.shape[1:] or array.dtype != whole.dtype:
                raise OperandError(
                    f"out: part {r} is of shape {tuple(array.shape)} and type {array.dtype}, want "
                    f"{tuple(whole.shape[1:])} and {whole.dtype}, of the library of the operand"
                )
            if why := _unwritable(array, whole):
                raise OperandError(f"out: part {r} {why}")


_WORD = {name: getattr(_abi.CollectiveArgs, name).offset // 8 for name, _ in _abi.CollectiveArgs._fields_}
_KIND, _ROOT, _OUT, _IN = (_WORD[name] for name in ("collective", "root", "out", "in"))
_DATA = _abi.Tensor.data.offset // 8
_LISTS = (list, tuple)
# Collectives whose input, or output, has a part for each rank.
_IN_PARTS = frozenset((Collective.reduce_scatter, Collective.all_to_all, Collective.scatter))
_OUT_PARTS = frozenset((Collective.all_gather, Collective.all_to_all, Collective.gather))
_NONE: Parts = "", None
_TRANSFER = ctypes.sizeof(_abi.Transfer)
_ENCODED: dict[str, Any] = {}  # names of algorithms in C's form


class _CollectiveArgs(CallArgs):
    """Arguments of a collective."""

    def __init__(self, device: int) -> None:
        super().__init__(_abi.CollectiveArgs)
        self.array, self.out_array = self.slot("array", device), self.slot("out", device, written=True)
        self.device = device
        self.messages: list[Send | Recv] = []  # of the call
        self._messages: list[Slot] = []
        self.info = (ctypes.c_uint64 * 3)(ctypes.sizeof(_abi.WorkInfo))  # of the call, once it is a Work
        self.info_address = ctypes.addressof(self.info)
        self.more = False

    def slot(self, name: str, device: int, wants: int = 0, *, written: bool = False) -> Slot:
        made = super().slot(name, device, wants, written=written)
        made.folds = True  # collectives go by elements
        return made

    def scale(self, op: Op, scalar: Any, dtype: DType) -> None:
        """Takes the scalar of a pre-multiplied sum of elements of a type."""
        if op != Op.premulsum:
            raise InvalidError(f"scalar: {op.name} takes none, premulsum does")
        self.more = True
        slot = Slot("scalar", -1)
        self.held.append(slot)
        if isinstance(scalar, numbers.Real):
            if dtype in (DType.bfloat16, DType.float16, DType.float8_e4m3, DType.float8_e5m2):
                dtype = DType.float32
            number = ctypes.create_string_buffer(8)
            try:
                struct.pack_into("=" + memory.format_of(dtype), number, 0, scalar)
            except (struct.error, OverflowError) as e:
                raise slot.refuse(f"{scalar!r} is no {dtype.name}: {e}") from None
            self.held.append(number)
            slot.put(ctypes.addressof(number), dtype, ())
            self.words[_WORD["scalar"]] = slot.address
            return
        if self.device >= 0 and _on_gpu(scalar):
            slot.device, slot.held = self.device, self.held
            self.words[_ROOT] |= 1 << 32
        self.words[_WORD["scalar"]] = slot.fill(scalar)

    def put_parts(self, parts: tuple[Parts, ...], source: Slot, ranks: int) -> None:
        """Takes numbers of rows, and has them be elements."""
        self.more = True
        shape = source.shape
        if not shape:
            raise self.array.refuse("it has no dimensions, and counts are of rows")
        if self.device >= 0 and _on_gpu(parts[0][1]):
            self._put_device_parts(parts, ranks)
            return
        row = math.prod(shape[1:])
        for word, (name, values) in enumerate(parts, _WORD["send"]):
            if values is None:
                continue
            elements = (ctypes.c_int64 * ranks)(*_counts(name, values, ranks, row))
            self.held.append(elements)
            self.words[word] = ctypes.addressof(elements)

    def _put_device_parts(self, parts: tuple[Parts, ...], ranks: int) -> None:
        """Takes numbers of elements in the GPU's memory."""
        for word, (name, values) in enumerate(parts, _WORD["send"]):
            slot = self.slot(name, self.device)
            slot.fill(values)
            if values is None or slot.dtype != DType.int64 or slot.shape != (ranks,):
                raise slot.refuse(f"counts and positions on the GPU are four arrays of int64 [{ranks}]")
            self.held.append(values)
            self.words[word] = slot.words[_DATA]
        self.words[_WORD["symmetric"]] |= 1 << 32  # counts_on_device

    def choose(self, algorithm: str | None, symmetric: bool) -> None:
        """Takes the name of an algorithm, and where operands lie."""
        self.more = True
        if algorithm is not None:
            name = _ENCODED.get(algorithm)
            if name is None:
                if not isinstance(algorithm, str) or "\0" in algorithm:
                    raise InvalidError(f"algorithm: {algorithm!r}, want the name of one")
                name = ctypes.create_string_buffer(algorithm.encode())
                if len(_ENCODED) < 1000:
                    _ENCODED[algorithm] = name
            self.held.append(name)
            self.words[_WORD["algorithm"]] = ctypes.addressof(name)
        self.words[_WORD["symmetric"]] |= bool(symmetric)

    def launch(self, blocks: int, threads: int, extras: Mapping[str, Any]) -> None:
        """Takes how the call is launched."""
        self.more = True
        if not isinstance(extras, Mapping):
            raise InvalidError(f"extras: a {type(extras).__qualname__}, want arrays by their names")
        launch = _abi.Launch(blocks=whole("blocks", blocks, bits=32), threads=whole("threads", threads, bits=32))
        names, addresses = strings(extras), (ctypes.c_int64 * len(extras))()
        for i, (name, array) in enumerate(extras.items()):
            slot = self.slot(name, self.device, written=True)
            if not slot.fill(array):
                _none(slot)
            addresses[i] = slot.at
        launch.extras, launch.addresses = ctypes.addressof(names), ctypes.addressof(addresses)
        self.held.extend((launch, names, addresses, extras))
        self.words[_WORD["launch"]] = ctypes.addressof(launch)

    def name_messages(self, messages: list[Send | Recv], ranks: int) -> None:
        """Takes the peers and the directions of messages. It comes before all else: if anything of the call is
        refused, these are the peers that get the reason. A message that names no peer is refused itself."""
        self.more = True
        self.messages = messages
        transfers = (ctypes.c_uint64 * (3 * len(self.messages)))()
        self.held.append(transfers)
        self.words[_WORD["transfers"]] = ctypes.addressof(transfers)
        wrong, named = None, 0
        for i in range(len(self.messages)):
            try:
                direction_and_peer = self._direction_and_peer(i, ranks)
            except InvalidError as e:
                wrong = wrong or e
                continue
            transfers[3 * named], transfers[3 * named + 2] = _TRANSFER, direction_and_peer
            named += 1
        self.words[_WORD["transfer_count"]] = named
        if wrong is not None:
            raise wrong

    def _direction_and_peer(self, i: int, ranks: int) -> int:
        """The last word of a message in C's form."""
        message = self.messages[i]
        if not isinstance(message, (Send, Recv)):
            raise InvalidError(f"batch: message {i} is a {type(message).__qualname__}, want a weft.Send or a weft.Recv")
        return isinstance(message, Recv) << 32 | _rank(f"{self._name(i)}: rank", message.peer, ranks)

    def put_messages(self) -> None:
        """Takes the arrays of messages that were named."""
        while len(self._messages) < len(self.messages):
            self._messages.append(self.slot("", self.device))
        transfers = self._transfers()
        for i, message in enumerate(self.messages):
            slot = self._messages[i]
            slot.name, slot.written = self._name(i), isinstance(message, Recv)
            transfers[3 * i + 1] = slot.fill(message.array) or _none(slot)

    def refuse_messages(self, absent: int) -> None:
        """Has the peers that messages name get the reason of a refusal."""
        transfers = self._transfers()
        for i in range(self.words[_WORD["transfer_count"]]):
            transfers[3 * i + 1] = absent

    def _transfers(self) -> Any:
        """The messages in C's form, those that were named."""
        count = self.words[_WORD["transfer_count"]]
        return (ctypes.c_uint64 * (3 * count)).from_address(self.words[_WORD["transfers"]]) if count else ()

    def _name(self, i: int) -> str:
        """What errors call a message."""
        kind = "recv" if isinstance(self.messages[i], Recv) else "send"
        return kind + (f" {i}" if len(self.messages) > 1 else "")

    def borrow(self, arrays: Sequence[Any]) -> None:
        """Has PyTorch keep the memory of arrays until the call's stream has passed."""
        if self.held.torch_stream is not None:
            for array in arrays:
                array.record_stream(self.held.torch_stream)

    def clear(self) -> None:
        """Forgets what few calls have."""
        self.more = False
        self.messages = []
        for word in range(_WORD["scalar"], len(self.words)):
            self.words[word] = 0


class _Pool(ArgsPool["_CollectiveArgs"]):
    """Arguments of a group that no call uses."""

    def give(self, args: _CollectiveArgs) -> None:
        if args.more:
            args.clear()
        super().give(args)


def _rank(name: str, given: Any, ranks: int) -> int:
    """The number of a rank that a call names."""
    try:
        number = operator.index(given)
    except TypeError:
        number = -1
    if not 0 <= number < ranks:
        raise InvalidError(f"{name} {given!r} of {ranks} ranks")
    return number


def _words(kind: int) -> str:
    """The name of a collective in errors."""
    return Collective(kind).name.replace("_", "-")


def _op(op: Op | str | int) -> Op:
    """An operation by its name or number."""
    try:
        return Op[op] if isinstance(op, str) else Op(op)
    except (KeyError, ValueError):
        raise InvalidError(f"op: {op!r}, want one of {', '.join(Op.__members__)}") from None


def _none(slot: Slot) -> int:
    raise slot.refuse("there is no array")


def _counts(name: str, values: Any, ranks: int, row: int = 1) -> list[int]:
    """Numbers of rows for all ranks, as numbers of elements of so long rows."""
    try:
        sizes = [operator.index(n) * row for n in values]
    except TypeError:
        sizes = []
    if len(sizes) != ranks or not all(-1 < n < 1 << 62 for n in sizes):
        given = values.tolist() if hasattr(values, "tolist") else values
        raise InvalidError(f"{name}: {given!r}, want a number of rows for each of {ranks} ranks")
    return sizes


def _library(arrays: Sequence[Any], ranks: int, name: str) -> Any:
    """PyTorch or NumPy, whichever's arrays stand in a list, a part for each rank."""
    if len(arrays) != ranks:
        raise OperandError(f"{name}: a list of {len(arrays)} arrays, want one for each of {ranks} ranks")
    for library, array_type in (("torch", "Tensor"), ("numpy", "ndarray")):
        found = sys.modules.get(library)
        if found is not None and all(isinstance(a, getattr(found, array_type)) for a in arrays):
            return found
    raise OperandError(f"{name}: a list of {type(arrays[0]).__qualname__}, want one of arrays of NumPy or PyTorch")


def _plain(array: Any) -> Any:
    """An array as it is written: PyTorch records no gradient."""
    return array.detach() if hasattr(array, "detach") else array


def _unwritable(array: Any, whole: Any) -> str | None:
    """Why a part of a result cannot be copied to an array, which need not be contiguous."""
    if not hasattr(array, "detach"):
        return None if array.flags.writeable else "is read-only, and is written"
    if array.device != whole.device:
        return f"is on {array.device}, and the result on {whole.device}: move it there"
    if any(size > 1 and stride == 0 for size, stride in zip(array.shape, array.stride(), strict=True)):
        return "is an expanded tensor, whose elements share memory, and is written: pass one of its own"
    return None


def _on_gpu(array: Any) -> bool:
    """Whether an array is on a GPU."""
    if hasattr(array, "__dlpack_device__"):
        return dlpack.device_of(array) >= 0
    return hasattr(array, "__cuda_array_interface__")
