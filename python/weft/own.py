"""Algorithms of the caller's own: kernels in CUDA C++ that a group on GPUs compiles, and runs beside the library's."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import _abi
from ._abi import Collective, Op
from ._library import Library
from .dtypes import DType
from .errors import InvalidError
from .operands import _ADDRESS, Slot

_PLACES = {None: 0, True: 1, False: 2}


@dataclass(frozen=True, kw_only=True)
class OwnAlgorithm:
    """A kernel that runs a collective, the same on all ranks.

    ``source`` is CUDA C++17 that includes "weft.cuh", which says what a kernel is given and does, and may include
    ``headers``, by name. ``name`` is unique in the group, ``kernel`` the kernel's in the source.

    It is for operands of ``min_bytes`` to ``max_bytes`` (0: any) a part, of ``dtypes`` and ``ops`` (empty: all), on
    ``ranks`` ranks (0: any); ``in_place`` True takes only calls whose ``out`` is their operand, False only others.

    A launch has at most so many ``blocks`` (0: as there is room for) of ``threads`` (0: 512), with ``shared`` bytes.
    ``scratch`` bytes of each rank's memory all ranks reach, ``local`` bytes only this rank's GPU; both are zeros in
    the beginning. ``extras`` are names of arrays that :meth:`weft.Group.launched` gives the kernel.
    """

    name: str
    collective: Collective | str
    source: str
    kernel: str
    headers: Mapping[str, str] = field(default_factory=dict)
    defines: Mapping[str, object] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    extras: Sequence[str] = ()
    min_bytes: int = 0
    max_bytes: int = 0
    ranks: int = 0
    dtypes: Sequence[DType | str] = ()
    ops: Sequence[Op | str] = ()
    in_place: bool | None = None
    blocks: int = 0
    threads: int = 0
    shared: int = 0
    scratch: int = 0
    local: int = 0


class Request(NamedTuple):
    """What a selector goes by."""

    collective: str
    """As "all_reduce"."""
    dtype: str
    """As "float32"; "" of a barrier."""
    op: str
    """Of a reduction, as "sum"."""
    root: int
    ranks: int
    """Those that take part."""
    count: int
    """Elements of a rank's part."""
    bytes: int


Select = Callable[[Request], str | None]


class Creation:
    """The arguments with which C makes a group, and what must live as long as it does."""

    def __init__(self, options: Any, algorithms: Sequence[OwnAlgorithm], select: Select | None) -> None:
        self.arguments: tuple[Any, ...] = ("group_create", options)
        if not algorithms and select is None:
            return
        self._held: list[Any] = []
        array = (_abi.OwnAlgorithm * max(1, len(algorithms)))()
        for to, a in zip(array, algorithms, strict=False):
            self._put(to, a)
        # C calls it as long as the group lives.
        self.function = _abi.SelectFunction(_calls(select)) if select is not None else _abi.SelectFunction()
        self.arguments = (
            "group_create_own",
            options,
            ctypes.addressof(array),
            len(algorithms),
            self.function,
            None,
        )
        self._held.append(array)

    def _put(self, to: _abi.OwnAlgorithm, a: OwnAlgorithm) -> None:
        to.size = ctypes.sizeof(to)
        to.name, to.source, to.kernel = a.name.encode(), a.source.encode(), a.kernel.encode()
        to.headers, to.defines, to.tags = (self._list(_turns(of)) for of in (a.headers, a.defines, a.tags))
        to.extras = self._list(a.extras)
        to.collective = _member(Collective, a.collective)
        to.in_place = _PLACES[a.in_place]
        to.dtypes = sum(1 << n for n in {_member(DType, d) for d in a.dtypes})
        to.ops = sum(1 << n for n in {_member(Op, op) for op in a.ops})
        for name in ("min_bytes", "max_bytes", "ranks", "blocks", "threads", "shared", "scratch", "local"):
            setattr(to, name, getattr(a, name))

    def _list(self, texts: Iterable[object]) -> int:
        listed = strings(texts)
        self._held.append(listed)
        return ctypes.addressof(listed)


def strings(texts: Iterable[object]) -> Any:
    """A list of C's strings, which ends with NULL."""
    encoded = [str(text).encode() for text in texts]
    return (ctypes.c_char_p * (len(encoded) + 1))(*encoded, None)


def _turns(of: Mapping[str, object]) -> Iterator[object]:
    for name, value in of.items():
        yield name
        yield value


def _member(of: Any, name: Any) -> int:
    try:
        return int(of[name] if isinstance(name, str) else of(name))
    except (KeyError, ValueError):
        raise InvalidError(f"{name!r}, want one of {', '.join(of.__members__)}") from None


def _calls(select: Select) -> Callable[[object, int, int], None]:
    """A selector as C calls it. What it raises is in the name, which no algorithm has: the call fails with it."""

    def call(_: object, request: int, name: int) -> None:
        try:
            r = _abi.Request.from_address(request)
            dtype = DType(r.dtype).name if r.dtype else ""
            kind, op = Collective(r.collective).name, Op(r.op).name
            asked = Request(kind, dtype, op, r.root, r.ranks, r.count, r.bytes)
            chosen = select(asked) or ""
        except BaseException as e:  # it must not unwind through C
            chosen = f"the selector raised {type(e).__name__}: {e}"
        text = chosen.encode()[:127]
        ctypes.memmove(name, text, len(text))

    return call


class Launches:
    """What a group says of how its calls are launched."""

    _lib: Library
    _handle: int
    _comm: Any
    _creation: Creation
    _check: Callable[[int], None]

    @contextlib.contextmanager
    def launched(
        self,
        *,
        algorithm: str | None = None,
        blocks: int = 0,
        threads: int = 0,
        extras: Mapping[str, Any] | None = None,
    ) -> Iterator[None]:
        """Has the calls in a ``with`` block be launched so, on all ranks alike: by an algorithm, if they name none
        themselves; with at most so many blocks; and for one of the caller's own with so many threads, and with arrays
        on the GPU that it takes by name. They live until the streams have passed the calls."""
        extras = extras or {}
        addresses = (ctypes.c_int64 * len(extras))()
        for i, (name, array) in enumerate(extras.items()):
            slot = Slot(name, self._comm._device, written=True)
            slot.fill(array)
            addresses[i] = slot.words[_ADDRESS]
        names = strings(extras)
        launch = _abi.Launch(
            algorithm=None if algorithm is None else algorithm.encode(),
            blocks=blocks,
            threads=threads,
            extras=ctypes.addressof(names),
            addresses=ctypes.addressof(addresses),
        )
        self._check(self._lib.group_launch(self._handle, ctypes.addressof(launch)))
        try:
            yield
        finally:
            self._check(self._lib.group_launch(self._handle, None))
