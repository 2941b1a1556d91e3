"""Communicators: this rank among the others."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
import os
import warnings
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from . import _abi, _signals, rendezvous, streams
from ._library import Library, library
from .errors import InvalidError, WeftError
from .limits import milliseconds, whole
from .limits import timeout as limit
from .resources import Garbage, Resource, gone, opened, undisturbed

Log = Any
"""A function that takes a line, a :class:`logging.Logger`, or None."""


class UniqueId:
    """The id of a new communicator: a line of text with a secret in it.

    Rank 0 makes it and listens from then on. Pass ``str(id)`` to the others by any means; each makes an id of
    the text.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    @classmethod
    def create(cls, interface: str | None = None) -> UniqueId:
        """Makes an id in the process of rank 0, which listens on a network interface: "lo" for ranks of
        this host, None for all."""
        lib = library()
        text = ctypes.create_string_buffer(_abi.UNIQUE_ID_BYTES)
        if status := lib.unique_id_create(text, interface.encode() if interface else None):
            lib.fail(status)
        return cls(text.value.decode())

    def release(self) -> None:
        """Releases an id that no rank 0 of this process has used."""
        lib = library()
        if status := lib.unique_id_release(self._text.encode()):
            lib.fail(status)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "UniqueId(...)"  # the text is a secret


class Communicator(Resource):
    """This rank among the others of a job.

    Made by :func:`join`, or by one of the ``from_`` methods; all are collective, and take

    - ``engine``: "host" for memory of the host, "gpu" for that of one GPU, the same on every rank;
    - ``gpu``: the number of this rank's GPU among those that the process sees;
    - ``deadline``: seconds that bound every wait (60);
    - ``huge_pages``: False: windows do not use the system's pool of huge pages;
    - ``log``: a function that takes a line, or a :class:`logging.Logger`: it gets joins, faults,
      masks and the first call of a group by each algorithm. Any thread calls it, and it must make no call of this
      package.

    Any thread may use it, one at a time: a second call on it, or on an object that was made from it, raises
    :class:`weft.BusyError`.
    """

    _kind = "communicator"
    _RELEASE = "comm_destroy"

    def __init__(self, lib: Library, handle: int, log: Any) -> None:
        super().__init__(lib, handle)
        self._garbage = Garbage(lib)  # the objects that were made from it
        self._log = log  # the library calls it until the communicator is destroyed
        info = self._info()
        self.rank: int = info.rank
        """This rank's number."""
        self.ranks: int = info.ranks
        """How many ranks there are."""
        self.local_ranks: int = info.local_ranks
        """How many of them are on this host."""
        self.engine: str = "gpu" if info.engine else "host"
        """The engine: "host" or "gpu"."""
        self.deadline: float = info.deadline_ms / 1000
        """Seconds that bound every wait."""
        self._device = -1
        self._buffers = 0  # that were made of it, on all ranks alike
        self._left_out: frozenset[int] = frozenset()  # the mask, cached for frequent reads
        opened(self)

    # How ranks meet.

    @classmethod
    def join(
        cls,
        *,
        engine: str = "host",
        gpu: int | None = None,
        deadline: float | None = None,
        huge_pages: bool = True,
        log: Log = None,
    ) -> Communicator:
        """Joins by the environment that weft run, torchrun, Slurm, Open MPI, MPICH or Kubernetes sets;
        without one, as the only rank. Collective."""
        lib, options = library(), _options(engine, gpu, deadline, huge_pages, log)
        return cls._made(lib, options, lambda out: lib.comm_create(options, out))

    @classmethod
    def from_unique_id(
        cls,
        id: UniqueId | str,
        rank: int,
        ranks: int,
        *,
        engine: str = "host",
        gpu: int | None = None,
        deadline: float | None = None,
        huge_pages: bool = True,
        log: Log = None,
    ) -> Communicator:
        """Joins the communicator of an id as ``rank`` of ``ranks``; rank 0 is in the process that made the
        id. Collective."""
        if not 0 <= rank < ranks < 1 << 31:  # the library knows how many there may be
            raise InvalidError(f"rank {rank} of {ranks}")
        lib, options = library(), _options(engine, gpu, deadline, huge_pages, log)
        return cls._made(lib, options, lambda out: lib.comm_create_with_id(str(id).encode(), rank, ranks, options, out))

    @classmethod
    def from_all_gather(
        cls,
        all_gather: Callable[[bytes], Iterable[bytes]],
        rank: int,
        ranks: int,
        *,
        engine: str = "host",
        gpu: int | None = None,
        deadline: float | None = None,
        huge_pages: bool = True,
        log: Log = None,
    ) -> Communicator:
        """Joins through the caller's all-gather. Collective.

        ``all_gather`` takes this rank's bytes and returns those of every rank, in the order of ranks; all
        pass the same number of bytes. It is called while this call lasts, by the same thread, and bounds its
        own waits. An exception of the function is raised by this call.
        """
        lib, options = library(), _options(engine, gpu, deadline, huge_pages, log)
        with rendezvous.Callback(all_gather, ranks) as call:
            # Python code would give a structure's address amid the call, where an interrupt becomes an ArgumentError.
            given = ctypes.byref(options)
            made = cls._made(
                lib,
                options,
                lambda out: lib.comm_create_with_all_gather(call.function, None, rank, ranks, given, out),
            )
            if call.error is not None:
                made.abort()
                made.close()
        return made

    @classmethod
    def from_store(cls, store: Any, rank: int, ranks: int, *, name: str = "weft", **options: Any) -> Communicator:
        """Joins through a key-value store, such as ``torch.distributed``'s. Collective.

        ``store`` has ``set(key, bytes)``, ``get(key)``, which waits for the key, and ``add(key, 1)``. If it has
        ``check([key])``, too, ranks that have not joined are waited for until the deadline, if one is given, else until
        the store's time limit; without it, as long as ``get`` waits. Communicators of the same ``name`` are
        distinguished by how often each rank has joined under it; ranks that join different ones at the same time must
        name them.
        """
        gather = rendezvous.StoreGather(store, rank, ranks, name, options.get("deadline"))
        return cls.from_all_gather(gather, rank, ranks, **options)

    @classmethod
    def from_process_group(cls, group: Any = None, **options: Any) -> Communicator:
        """Joins the ranks of a ``torch.distributed`` process group; None is the world group. Collective
        within the group.

        The group carries a few hundred bytes while ranks join, and nothing afterwards. Ranks that have not joined are
        waited for until the deadline, if one is given, else until the group's time limit.
        """
        gather = rendezvous.ProcessGroupGather(group, options.get("deadline"))
        return cls.from_all_gather(gather, gather.rank, gather.ranks, **options)

    @classmethod
    def from_mpi(cls, comm: Any, **options: Any) -> Communicator:
        """Joins the ranks of an mpi4py communicator. Collective within it."""
        return cls.from_all_gather(comm.allgather, comm.Get_rank(), comm.Get_size(), **options)

    @classmethod
    def _made(cls, lib: Library, options: _abi.CommOptions, create: Callable[[Any], int]) -> Communicator:
        out = ctypes.c_uint64()
        _signals.listen(lib)
        try:
            if status := create(ctypes.addressof(out)):
                lib.fail(status)
            made = cls(lib, out.value, options.log)
        except BaseException:  # an interrupt, which peers see at once
            if out.value:
                lib.comm_destroy(out.value)
            raise
        made._device = options.gpu if options.engine else -1
        return made

    # The communicator's properties.

    def _info(self) -> _abi.CommInfo:
        info = _abi.CommInfo()
        self._check(self._lib.comm_get(self._handle, info))
        return info

    @functools.cached_property
    def hosts(self) -> tuple[int, ...]:
        """The host of each rank. Ranks of one host share memory; hosts are numbered from 0 in the order of their lowest
        ranks."""
        numbers = (ctypes.c_int32 * self.ranks)()
        self._check(self._lib.comm_hosts(self._handle, numbers, self.ranks))
        return tuple(numbers)

    @property
    def mask(self) -> frozenset[int]:
        """The masked ranks."""
        words = self._words()
        self._check(self._lib.comm_mask(self._handle, words, len(words)))
        return frozenset(64 * i + r for i, word in enumerate(words) if word for r in range(64) if word >> r & 1)

    @property
    def generation(self) -> int:
        """It grows with every :meth:`set_mask`."""
        return int(self._info().generation)

    def check(self) -> None:
        """Raises the failure that every operation raises until :meth:`set_mask`, if there is one."""
        self._check(self._lib.comm_error(self._handle))

    # Failures.

    def abort(self) -> None:
        """Makes every pending and later operation of every rank raise :class:`weft.AbortedError`, until
        :meth:`set_mask`. Any thread may call it."""
        self._check(self._lib.comm_abort(self._handle))

    def _words(self) -> ctypes.Array[ctypes.c_uint64]:
        """An empty set of ranks, as the library takes it."""
        return (ctypes.c_uint64 * ((self.ranks + 63) // 64))()

    def set_mask(self, ranks: Iterable[int] = (), *, timeout: float | None = None) -> None:
        """Goes on after a failure without these ranks, and with all others.

        The ranks that remain call it with the same ones, when none of their operations is in progress. A job
        never splits in two: if ranks mask each other, one side continues (the first to call; of two at once
        the larger, or of equal ones that with the lowest rank), and the others get :class:`weft.MaskedError`.
        A rank that was left out waits here to be taken back, without those that go on in its ``ranks``.

        Once it has returned, nothing that a masked rank of another host writes lands in windows or port memories.
        Such a write ends that rank's connection: taking it back then raises :class:`weft.DiedError` with its number on
        every rank, and the others go on without it.
        """
        words = self._words()
        try:
            bound = contextlib.nullcontext() if timeout is None else limit(timeout)
            for r in self._numbers(ranks):
                words[r // 64] |= 1 << r % 64
        except Exception as e:  # the others hear of it, instead of waiting
            self._refuse_call(e, lambda: self._lib.comm_set_mask(self._handle, words, len(words)))
        with bound:
            self._set_mask(words)

    def _numbers(self, ranks: Iterable[int]) -> list[int]:
        """The ranks that a call names."""
        try:
            numbers = [operator.index(r) for r in ranks]
        except TypeError:
            raise InvalidError(f"set_mask: {ranks!r}, want the numbers of ranks, such as [3]") from None
        for r in numbers:
            if not 0 <= r < self.ranks:
                raise InvalidError(f"set_mask: rank {r} of {self.ranks}")
        return numbers

    def _set_mask(self, words: ctypes.Array[ctypes.c_uint64]) -> None:
        try:
            self._check(self._lib.comm_set_mask(self._handle, words, len(words)))
        except BaseException:
            with contextlib.suppress(WeftError):  # an interrupt may come when it has taken effect
                self._left_out = self.mask
            raise
        self._left_out = self.mask

    def wait(self, stream: streams.StreamLike = None, *, timeout: float | None = None) -> None:
        """Waits until the work that was enqueued on the stream has ended, and raises the failure that an
        operation has met meanwhile.

        Work of a GPU fails after its call has returned: this, :meth:`check` and the next call say so,
        and a bare ``synchronize`` of PyTorch's does not. On the host, where operations have happened
        when they return, the failure only. ``timeout``: seconds that bound the wait, which may be
        called again then.
        """
        if timeout is not None:
            with limit(timeout):
                self.wait(stream)
            return
        self._check(self._lib.comm_wait(self._handle, streams.address(stream, self._device)))

    # Communicators of its ranks.

    def split(self, color: int | None, key: int = 0, *, timeout: float | None = None) -> Communicator | None:
        """Makes a communicator of each color, from 0 on: of the ranks that gave it, numbered by their keys and,
        where those are equal, in the order that they have here. None as a color joins none, and gives None.

        Collective over the ranks that are not masked. A new communicator has the options of this one and is on
        the same GPU; it has failures and masks of its own, and is closed by itself. It writes to this one's
        ``log`` for as long as this one is open.
        """
        try:
            color, key = -1 if color is None else whole("color", color), whole("key", key)
        except Exception as e:
            self._refuse(e, "comm_split", 0, 0)
        return self._derived(timeout, "comm_split", color, key)

    def duplicate(self, *, timeout: float | None = None) -> Communicator:
        """Makes a communicator of the same ranks, in the same order: :meth:`split` with one color. While ranks are
        masked it is refused; :meth:`shrink` leaves them out."""
        return self._copied(timeout, "comm_duplicate")

    def shrink(self, *, timeout: float | None = None) -> Communicator:
        """Makes a communicator of the ranks that are not masked, numbered anew in their order: after a rank has
        died and :meth:`set_mask`. This communicator stays as it is."""
        return self._copied(timeout, "comm_shrink")

    def _copied(self, timeout: float | None, create: str) -> Communicator:
        made = self._derived(timeout, create)
        if made is None:
            raise RuntimeError("the library made no communicator")
        return made

    def _derived(self, timeout: float | None, create: str, *arguments: int) -> Communicator | None:
        if timeout is not None:
            try:
                bound = limit(timeout)
            except Exception as e:
                self._refuse(e, create, *arguments)
            with bound:
                return self._derived(None, create, *arguments)
        out = ctypes.c_uint64()
        try:
            self._check(getattr(self._lib, create)(self._handle, *arguments, ctypes.addressof(out)))
            if not out.value:
                return None
            made = type(self)(self._lib, out.value, self._log)
        except BaseException:  # an interrupt, which peers see at once
            if out.value:
                self._lib.comm_destroy(out.value)
            raise
        made._device = self._device
        return made

    # The end.

    def close(self) -> None:
        """Leaves, and closes all that was made from it. It waits for no other rank; peers that still
        wait for this one get :class:`weft.LeftError`.

        Memory that arrays still show stays until the last of them has gone. While another thread is
        inside a call it is refused (:class:`weft.BusyError`); :meth:`abort` ends such a call.
        """
        if self._leases and not self._closed and self._process == os.getpid():
            self._check(undisturbed(lambda: self._lib.comm_leave(self._handle)))
        super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not self._closed and self._garbage.pending():
            self._lib.comm_abort(self._handle)  # else its peers' part of calls that were started would be waited for
        self.close()

    def _rests(self) -> bool:
        return self._device >= 0

    def _destroy(self) -> int:
        status = undisturbed(super()._destroy)
        if status != _abi.Status.ERROR_BUSY:
            gone(self)
        return status

    def __del__(self) -> None:
        # One whose making was interrupted has no rank yet, and nobody to be warned.
        if not getattr(self, "_closed", True) and hasattr(self, "rank") and self._process == os.getpid():
            warnings.warn(
                f"rank {self.rank}'s communicator was never closed: use with, or call close()",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return (
            f"<weft.Communicator rank {self.rank} of {self.ranks}, {self.engine}{', closed' if self._closed else ''}>"
        )


join = Communicator.join


def _options(engine: str, gpu: int | None, deadline: float | None, huge_pages: bool, log: Log) -> _abi.CommOptions:
    if engine not in ("host", "gpu"):
        raise InvalidError(f'engine {engine!r}, want "host" or "gpu"')
    if engine == "gpu" and gpu is None:
        gpu = int(os.environ.get("LOCAL_RANK", "0"))
    options = _abi.CommOptions(
        engine=1 if engine == "gpu" else 0,
        gpu=gpu or 0,
        deadline_ms=0 if deadline is None else milliseconds("deadline", deadline),
        no_huge_pages=not huge_pages,
    )
    if log is not None:
        say = getattr(log, "info", log)

        def tell(_context: object, line: bytes) -> None:
            say(line.decode(errors="replace"))

        options.log = _abi.LogFunction(tell)
    return options
