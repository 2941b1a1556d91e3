"""Ctrl-C, and every other signal with a handler of Python's, while the main thread waits inside the library.

The library asks the interpreter meanwhile, in the same thread, whether a handler has raised an exception. It then
ends the call, as an abort does, and the exception goes on from there.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._library import Library

_FUNCTIONS = ("PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch")

_listens = False


def listen(lib: Library) -> None:
    """Has the main thread's waits serve signals from now on. It does nothing in another thread, which gets none."""
    global _listens
    if _listens or threading.current_thread() is not threading.main_thread():
        return
    _listens = True
    api = getattr(ctypes, "pythonapi", None)
    if api is None or not all(hasattr(api, name) for name in _FUNCTIONS):
        return  # an interpreter without CPython's functions: signals are served when calls return
    addresses = (ctypes.c_void_p * len(_FUNCTIONS))(
        *(ctypes.cast(getattr(api, name), ctypes.c_void_p).value for name in _FUNCTIONS)
    )
    if status := lib.ask_python(ctypes.addressof(addresses)):
        lib.fail(status)


def raise_pending(lib: Library) -> None:
    """Raises the exception of a handler that has ended a call of this thread, if there is one."""
    if not _listens or threading.current_thread() is not threading.main_thread():
        return
    found = (ctypes.c_void_p * 3)()
    if lib.python_exception(ctypes.addressof(found)):
        restore = ctypes.pythonapi.PyErr_Restore
        restore.argtypes, restore.restype = (ctypes.c_void_p,) * 3, None
        restore(*found)
