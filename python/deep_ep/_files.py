"""Whether the files of this package are its own: other packages install under its name, too."""

from __future__ import annotations

import importlib.machinery
import pathlib


def refuse_mixture() -> None:
    """Raises why the package cannot be used where the extension module of another lies between its files.

    pip writes over files of the same name and leaves the others: such a module would be imported for ``_C.py``.
    """
    for file in pathlib.Path(__file__).parent.glob("_C.*"):
        if file.name.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
            raise ImportError(
                f"deep_ep: {file} is of another package of this name (deep_ep, sgl-deep-ep), whose files are mixed "
                "with these: pip uninstall it, then pip install --force-reinstall weft-deep-ep; or install Weft by "
                "pip install --target FOLDER and put FOLDER first in PYTHONPATH"
            )
