"""The compiled part of the package, which makes the calls of every layer without Python code between tensors and the
C library.

It is a file beside libweft.so, of CPython's stable ABI. It is never needed: without it, where WEFT_COMPILED is 0, in
other interpreters and in those without a lock, with a PyTorch older than its exchange of tensors in C, and for arrays
of other libraries, the package's Python code makes the same calls. It also makes those that the compiled part declines,
so it alone says what is wrong with one. ``native/native.h`` says more.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable
from typing import Any

from . import _abi, errors
from ._library import find

_NAME = "_native.abi3.so"


def _found() -> Any:
    wanted = os.environ.get("WEFT_COMPILED", "")
    if wanted not in ("", "0", "1"):
        raise errors.InvalidError(f"WEFT_COMPILED={wanted}: it is 1, 0 or empty")
    if wanted == "0":
        return None
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        path = os.path.join(os.path.dirname(os.path.realpath(find())), _NAME)
        loader = importlib.machinery.ExtensionFileLoader("weft._native", path)
        spec = importlib.util.spec_from_file_location("weft._native", path, loader=loader)
        if spec is None or not os.path.exists(path):
            return None
        found = importlib.util.module_from_spec(spec)
        loader.exec_module(found)
        sys.modules[spec.name] = found  # in wheels it can be imported by its name, too, which must not make another
    except (ImportError, errors.LibraryError):
        return None
    return found if found.RELEASE == _abi.RELEASE else None


NATIVE: Any = _found()
"""The module, or None."""


def bind(functions: Any) -> None:
    """Gives the module the addresses of a library's functions."""
    if NATIVE is None:
        return
    from . import dlpack, views

    addresses = tuple(ctypes.cast(getattr(functions, name), ctypes.c_void_p).value or 0 for name in NATIVE.FUNCTIONS)
    NATIVE.bind(addresses, views._shown, dlpack._shown, views.sweep)


_torch: Any = None


def knows(torch: Any) -> bool:
    """Whether the module serves tensors of this PyTorch, which it gets to know by the first call."""
    global _torch
    if NATIVE is None or (_torch is None and not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")):
        return False
    if _torch is None:
        try:
            NATIVE.bind_torch(torch)
        except (ImportError, ValueError, AttributeError):  # an exchange of another kind
            _torch = False
        else:
            _torch = torch
    return _torch is not False


def in_use() -> bool:
    """The same of the PyTorch that is in use, if one is."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "Tensor") and knows(torch)


def batches(handle: Any) -> int:
    """How many batches of a handle tensors show that the module has made for a buffer."""
    return 0 if handle._calls is None else int(handle._calls.batches)


def sweep(lease: Callable[[Any], Any]) -> None:
    """Forgets tensors that have gone; handles whose memory others show get a lease."""
    if NATIVE is not None:
        NATIVE.sweep(lease)


def drained() -> int:
    """How many tensors over the library's memory have gone so far."""
    return 0 if NATIVE is None else NATIVE.drained()
