"""Arguments of calls into the C library, reused between calls: the operands, the C structs that point
to them, and the results.

A call takes its arguments from its handle's pool and returns them afterwards, so two threads never
share them. Arguments that an interrupt loses are garbage-collected.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from . import _abi
from .operands import Held, Slot
from .streams import StreamLike, of_torch

Operands = tuple[tuple[int, Slot, Any], ...]
"""The operands of a call: the word of the struct that points to the operand, its slot, and the array,
None or UNMADE."""

UNMADE = object()
"""Stands for a result whose memory could not be allocated."""


class CallArgs:
    """The operands of a call and the C struct that points to them. The struct is an array of 8-byte words;
    the first is its size."""

    def __init__(self, arguments: type[_abi.Struct]) -> None:
        self.held = Held()  # copies of operands
        self.scope: Any = None  # a context in which the call's stream is PyTorch's current one
        self._arguments = arguments()
        self.words = memoryview(self._arguments).cast("B").cast("Q")
        self.address = ctypes.addressof(self._arguments)
        self.out = ctypes.c_uint64()
        self.out_address = ctypes.addressof(self.out)

    def enter(self, stream: StreamLike, on: int, device: int) -> None:
        """Makes the caller's stream PyTorch's current one.

        PyTorch then allocates copies of operands and new arrays on that stream. Operands are kept alive
        until the stream has passed the call.
        """
        self.held.stream = on
        named = of_torch(stream, device)
        if named is None:
            self.scope = contextlib.nullcontext()
            return
        import torch

        self.scope, self.held.torch_stream = torch.cuda.stream(named), named
        self.scope.__enter__()

    def leave(self) -> None:
        """Ends what :meth:`enter` began."""
        scope, self.scope, self.held.stream, self.held.torch_stream = self.scope, None, None, None
        scope.__exit__(None, None, None)

    def refuse(self, why: Exception, routing: int, operands: Operands) -> Exception:
        """Fills in the valid operands, and the reason in place of the invalid ones. The library then refuses
        the call on every rank; otherwise the other ranks would wait for this one.
        """
        words, reported = self.words, False
        words[1] = routing
        for word, slot, array in operands:
            try:
                words[word] = slot.fill(array) if array is not UNMADE else slot.absent(why)
            except Exception as e:
                words[word], reported = slot.absent(e), True
            reported = reported or array is UNMADE
        if not reported:  # the operand that was refused is valid now
            word, slot = next((word, slot) for word, slot, array in operands if array is not None)
            words[word] = slot.absent(why)
        return why

    def slot(self, name: str, device: int, wants: int = 0, *, written: bool = False) -> Slot:
        return Slot(name, device, wants, written=written, held=self.held)


T = TypeVar("T")
F = TypeVar("F", bound=CallArgs)


class Pool(Generic[T]):
    """Objects of a handle that no call uses."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._spare: list[T] = []

    def take(self) -> T:
        try:
            return self._spare.pop()
        except IndexError:
            return self._make()

    def give(self, thing: T) -> None:
        self._spare.append(thing)


class ArgsPool(Pool[F]):
    """Arguments of a handle that no call uses."""

    def give(self, args: F) -> None:
        if args.scope is not None:
            args.leave()
        if args.held:
            args.held.clear()
        self._spare.append(args)
