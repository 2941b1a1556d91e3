"""Algorithms of the caller's own: kernels in CUDA C++ that a group on GPUs compiles, and runs beside the library's."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from . import _abi
from ._abi import Collective, Op
from ._library import library
from .dtypes import DType
from .errors import InvalidError, WeftError
from .limits import whole
from .operands import Slot

_PLACES = {None: 0, True: 1, False: 2}
_WINDOWS = {"inputs": 1, "outputs": 2}


def get_include() -> str:
    """The folder of the device headers, which sources include: "weft.cuh", and "port.cuh" for channels. The library has
    them built in, so that algorithms of a group need no folder."""
    installed = Path(__file__).resolve().parent / "include"
    return str(installed if installed.is_dir() else installed.parents[2] / "device")


class Request(NamedTuple):
    """What a selector, or a key, goes by."""

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


class OwnContext:
    """What the kernels of a key have beside what each call says. :attr:`OwnAlgorithm.prepare` may change all but the
    key, ``scratch`` and ``local`` to the same on all ranks."""

    def __init__(self, key: str, scratch: int, local: int) -> None:
        self.key = key
        """"" of an algorithm without keys."""
        self.scratch, self.local = scratch, local
        self.values: list[Any] = []
        """The kernel's ``values``, at most 8: numbers, or arrays on the GPU, whose addresses it gets. Arrays are kept
        as long as the context."""


@dataclass(frozen=True, kw_only=True)
class OwnAlgorithm:
    """A kernel that runs a collective, the same on all ranks.

    ``source`` is CUDA C++17 that includes "weft.cuh", which says what a kernel is given and does, and may include
    ``headers``, by name. ``name`` is unique in the group, ``kernel`` the kernel's in the source.

    It is for operands of ``min_bytes`` to ``max_bytes`` (0: any) a part, of ``dtypes`` and ``ops`` (empty: all), on
    ``ranks`` ranks (0: any); ``in_place`` True takes only calls whose ``out`` is their operand, False only others.
    ``needs`` are those of "inputs" and "outputs" that the kernel reaches on peers: it is for symmetric calls that have
    them in windows.

    A launch has at most so many ``blocks`` (0: as there is room for) of ``threads`` (0: 512), with ``shared`` bytes.
    ``scratch`` bytes of each rank's memory all ranks reach, ``local`` bytes only this rank's GPU; both are zeros in
    the beginning. ``extras`` are names of arrays that calls give the kernel: see :class:`weft.How`.

    ``prepare`` makes what else calls need: it changes the :class:`OwnContext` that it is given, and what it returns is
    kept with it. All ranks call it at the same time: when the group is made, or, with a ``key``, in the first call of
    each key, which a graph cannot capture. ``key`` gives the key of a call, the same on all ranks, by its argument
    alone; there are 64 at most. What either raises is in the call's error.
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
    needs: Sequence[str] = ()
    blocks: int = 0
    threads: int = 0
    shared: int = 0
    scratch: int = 0
    local: int = 0
    key: Callable[[Request], str] | None = None
    prepare: Callable[[OwnContext], object] | None = None


class Creation:
    """The arguments with which C makes a group, and what must live as long as it does."""

    def __init__(self, options: Any, algorithms: Sequence[OwnAlgorithm], select: Select | None, device: int) -> None:
        self.arguments: tuple[Any, ...] = ("group_create", options)
        if not algorithms and select is None:
            return
        self._held: list[Any] = []
        self._device = device
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
        if wrong := set(a.needs) - set(_WINDOWS):
            raise InvalidError(f"needs: {sorted(wrong)}, want some of {', '.join(_WINDOWS)}")
        to.needs = sum(_WINDOWS[n] for n in set(a.needs))
        to.dtypes = sum(1 << n for n in {_member(DType, d) for d in a.dtypes})
        to.ops = sum(1 << n for n in {_member(Op, op) for op in a.ops})
        for name in ("min_bytes", "max_bytes", "shared", "scratch", "local"):
            setattr(to, name, whole(name, getattr(a, name)))
        for name in ("ranks", "blocks", "threads"):
            setattr(to, name, whole(name, getattr(a, name), bits=32))
        # C calls them as long as the group lives; and release when it has gone, perhaps after its object.
        if a.key is not None:
            to.key = _abi.KeyFunction(_asks(a.key))
        if a.prepare is not None:
            to.prepare, to.release = _abi.PrepareFunction(_prepares(a.prepare, self._device)), _release

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


def _request(request: int) -> Request:
    """A request of C's."""
    r = _abi.Request.from_address(request)
    dtype = DType(r.dtype).name if r.dtype else ""
    return Request(Collective(r.collective).name, dtype, Op(r.op).name, r.root, r.ranks, r.count, r.bytes)


def _answer(text: str, at: int) -> None:
    """Writes a text where C wants it."""
    encoded = text.encode()[:127]
    ctypes.memmove(at, encoded, len(encoded))


def _calls(select: Select) -> Callable[[object, int, int], None]:
    """A selector as C calls it. What it raises is in the name, which no algorithm has: the call fails with it."""

    def call(_: object, request: int, name: int) -> None:
        try:
            chosen = select(_request(request)) or ""
        except BaseException as e:  # it must not unwind through C
            chosen = f"the selector raised {type(e).__name__}: {e}"
        _answer(chosen, name)

    return call


def _asks(key: Callable[[Request], str]) -> Callable[[object, int, int], int]:
    """A hook for keys as C calls it."""

    def call(_: object, request: int, text: int) -> int:
        try:
            found = key(_request(request))
            if len(found.encode()) > 127:
                raise InvalidError(f"a key of more than 127 bytes: {found!r}")
            _answer(found, text)
        except BaseException as e:
            return _failed("key", e)
        return 0

    return call


_numbers = itertools.count(1)
_contexts: dict[int, Any] = {}
"""What hooks have made, by numbers that C has: groups are given up by C, perhaps when their objects are gone."""


def _prepares(prepare: Callable[[OwnContext], object], device: int) -> Callable[[object, int], int]:
    """A hook that makes contexts as C calls it."""

    def call(_: object, made: int) -> int:
        try:
            to = _abi.OwnContext.from_address(made)
            context = OwnContext((to.key or b"").decode(), to.scratch, to.local)
            held = [prepare(context)]
            if len(context.values) > _abi.VALUES:
                raise InvalidError(f"{len(context.values)} values, want at most {_abi.VALUES}")
            for i, value in enumerate(context.values):
                if isinstance(value, int):
                    to.values[i] = value
                    continue
                slot = Slot(f"values[{i}]", device, written=True)
                slot.fill(value)
                to.values[i] = slot.at
                held.extend((value, slot))
            to.scratch, to.local = whole("scratch", context.scratch), whole("local", context.local)
            to.state = number = next(_numbers)
            _contexts[number] = held
        except BaseException as e:
            return _failed("prepare", e)
        return 0

    return call


@_abi.ReleaseFunction
def _release(_: object, number: int) -> None:
    _contexts.pop(number, None)


def _failed(hook: str, error: BaseException) -> int:
    """Has C find what a hook has raised."""
    own = isinstance(error, WeftError) and error.status > 0
    words = str(error) if own else f"{hook} raised {type(error).__name__}: {error}"
    status = error.status if own else InvalidError.status
    return library().error_set(int(status), -1, words.replace("\0", "").encode())  # type: ignore[no-any-return]
