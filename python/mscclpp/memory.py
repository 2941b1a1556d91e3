"""Memory of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft

from ._mscclpp import Error
from .types import ErrorCode

__all__ = ["RawGpuBuffer"]


class RawGpuBuffer:
    """So many bytes of PyTorch's current GPU, or of the host where PyTorch sees no GPU."""

    def __init__(self, nelems: int, granularity: Any = None) -> None:
        import torch

        if nelems <= 0:
            raise weft.InvalidError(f"a buffer of {nelems} bytes, want more than 0")
        self._torch = torch
        where = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
        self._bytes = torch.empty(nelems, dtype=torch.uint8, device=where)

    def nelems(self) -> int:
        """How many bytes there are."""
        return self._bytes.numel()  # type: ignore[no-any-return]

    def bytes(self) -> int:
        """How many bytes there are."""
        return self._bytes.numel()  # type: ignore[no-any-return]

    def data(self) -> int:
        """Where they are."""
        return self._bytes.data_ptr()  # type: ignore[no-any-return]

    def device_id(self) -> int:
        """The GPU that has them, or -1."""
        return self._bytes.get_device()  # type: ignore[no-any-return]

    def to_dlpack(self, data_type: str, shape: Sequence[int] = (), strides: Sequence[int] = ()) -> Any:
        """A capsule of DLPack of elements of a type, which is named as ``str(torch.float32)``: all that fit, or those
        of a shape. The memory stays as long as it is in use."""
        dtype = self._dtype(data_type)
        of = self._bytes[: self._bytes.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        if shape:
            dense = [1] * len(shape)
            for i in reversed(range(len(shape) - 1)):
                dense[i] = dense[i + 1] * shape[i + 1]
            steps = list(strides) or dense
            last = sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
            if min(shape) < 0 or min(steps) < 0 or (min(shape) > 0 and last >= of.numel()):
                raise weft.InvalidError(f"shape {tuple(shape)} with strides {tuple(steps)}, of {of.numel()} elements")
            of = of.as_strided(tuple(shape), tuple(steps))
        return self._torch.utils.dlpack.to_dlpack(of)

    def _dtype(self, name: str) -> Any:
        """The type of a name."""
        known = name.removeprefix("torch.")
        torch = self._torch
        if known == "fp8_e4m3b15":
            return torch.uint8
        if known in ("float32", "int32", "uint32", "bfloat16", "float16", "uint8") or known.startswith("float8_"):
            found = getattr(torch, known, None)
            if found is not None:
                return found
        raise Error(ErrorCode.InvalidUsage, f"Unsupported type: {name}")
