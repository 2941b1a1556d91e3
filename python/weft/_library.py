"""libweft.so: where it is, and its functions.

It is loaded by the first call that needs it, not by ``import weft``: a process that forks before has
children that can load it themselves. Calls go through ctypes, which gives the interpreter's lock up
while they last; those of every layer go through the compiled part, if it serves.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, NoReturn

from . import _abi, _signals, errors

_NAME = "libweft.so"
_NAMED = "WEFT_LIBRARY"


def _called(path: str) -> str:
    """The path, with the variable that named it."""
    return f"{_NAMED}={path}" if path == os.environ.get(_NAMED) else path


class Library:
    """The functions of the C library as attributes, each with its prototype."""

    def __init__(self, path: str) -> None:
        try:
            functions = ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
        except OSError as e:
            raise errors.LibraryError(f"{_called(path)} does not load: {e}") from e
        try:
            version = functions.weft_version()
        except AttributeError:
            raise errors.LibraryError(
                f"{_called(path)} is another library: it has no weft_version; name {_NAME}, or unset {_NAMED}"
            ) from None
        if version < _abi.VERSION:
            raise errors.LibraryError(
                f"{_called(path)} serves version {version} of its interface, and this package needs {_abi.VERSION}: "
                f"update the library"
            )
        for name, arguments in _abi.FUNCTIONS.items():
            try:
                function = getattr(functions, name)
            except AttributeError:
                raise errors.LibraryError(
                    f"{_called(path)} has no {name}: it is older than this package; update the library"
                ) from None
            function.argtypes = arguments
            function.restype = _abi.RESULTS.get(name, ctypes.c_int)
            setattr(self, name.removeprefix("weft_"), function)
        from . import compiled

        compiled.bind(functions)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the C library has no weft_{name}")

    def fail(self, status: int) -> NoReturn:
        """Raises the last failure of this thread."""
        raise self.failure(status)

    def failure(self, status: int) -> errors.WeftError:
        """The last failure of this thread as an exception. Where a signal's handler has raised one, that is raised."""
        if status == _abi.Status.ERROR_ABORTED:
            _signals.raise_pending(self)
        return errors.of_status(status, self.error().decode(errors="replace"), self.error_rank())


def find() -> str:
    """The path of the library: WEFT_LIBRARY, else beside this file (in wheels), else the library that ``make
    clib`` built in the source tree."""
    if named := os.environ.get(_NAMED):
        return named
    here = os.path.dirname(os.path.realpath(__file__))
    for folder in (here, os.path.join(here, "..", "..", "build", "clib")):
        path = os.path.join(folder, _NAME)
        if os.path.exists(path):
            return path
    raise errors.LibraryError(
        f"no {_NAME} beside {here}: install the wheel, run make clib in the source tree, or name the file in "
        f"WEFT_LIBRARY"
    )


_loading = threading.Lock()
_loaded: Library | None = None


def library() -> Library:
    """The library, loaded once for the process: two Go runtimes in one would break each other."""
    global _loaded
    if _loaded is None:
        with _loading:
            if _loaded is None:
                _loaded = Library(find())
    return _loaded
