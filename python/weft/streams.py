"""Streams of GPUs, as callers name them."""

from __future__ import annotations

import sys
from typing import Any

from ._abi import STREAM_OWN
from .errors import InvalidError, OperandError, UnsupportedError

OWN = STREAM_OWN
"""The communicator's own stream, ordered with nothing but itself: a call returns when its work there is
done. Operands must be ready, and outputs given."""

StreamLike = Any


def address(stream: StreamLike, device: int) -> int:
    """The stream argument of C.

    On the host there are none: it is None. On a GPU None is PyTorch's current stream if PyTorch is in use
    there, else CuPy's, else the legacy default one. Else give a ``torch.cuda.Stream``, any object with
    ``__cuda_stream__``, a CUstream's number, or :data:`OWN`.
    """
    if stream is None:
        return current(device) if device >= 0 else 0
    if isinstance(stream, int):
        if not 0 <= stream < 1 << 64:
            raise InvalidError(f"stream: {stream} is no CUstream's number, which has 64 bits")
        return stream
    of = getattr(getattr(stream, "device", None), "index", None)
    if of is not None and device >= 0 and of != device:
        raise InvalidError(
            f"stream: it is GPU {of}'s, and the communicator works on GPU {device}: pass one of that GPU's"
        )
    for name in ("cuda_stream", "ptr"):
        number = getattr(stream, name, None)
        if isinstance(number, int):
            return number
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise OperandError(
        f"a {type(stream).__qualname__} is no stream: pass None, a torch.cuda.Stream, or a CUstream's number"
    )


def _torch() -> Any:
    """PyTorch, if it is in use on GPUs."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


def current(device: int) -> int:
    """The number of the stream that the calling thread enqueues on, by the library that it uses."""
    if torch := _torch():
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        return int(raw(device) if raw else torch.cuda.current_stream(device).cuda_stream)
    if cupy := sys.modules.get("cupy"):
        return int(cupy.cuda.get_current_stream(device).ptr)
    return 0


def of_torch(stream: StreamLike, device: int) -> Any:
    """A stream as PyTorch's, or None if PyTorch is not in use on GPUs, or the stream is not the caller's."""
    torch = _torch()
    if torch is None or device < 0 or stream is None:
        return None
    if isinstance(stream, torch.cuda.Stream):
        return stream
    number = address(stream, device)
    if number == OWN:
        return None
    return torch.cuda.ExternalStream(number, device=device) if number else torch.cuda.default_stream(device)


def borrow(array: Any, stream: StreamLike, device: int) -> None:
    """Has PyTorch keep the memory of an array, if it is PyTorch's, until the stream has passed what it is given now."""
    torch = _torch() if device >= 0 else None
    if torch is None or not isinstance(array, torch.Tensor):
        return
    named = torch.cuda.current_stream(device) if stream is None else of_torch(stream, device)
    if named is not None:
        array.record_stream(named)


def refuse_capture(device: int, what: str) -> None:
    """Refuses a call that would wait for the current stream while it captures."""
    torch = _torch() if device >= 0 else None
    if torch is not None and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(
            f"{what} cannot be read in a capture, which must not wait: read it before, or use the tensors on the GPU"
        )
