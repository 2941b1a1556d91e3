"""Whether the files of this package are its own: other packages install under its name, too."""

from __future__ import annotations

import importlib.machinery
import pathlib
from collections.abc import Iterator

OURS = frozenset(("_C", "__init__", "_files", "buffer", "elastic", "forks", "hybrid_ep_buffer", "routes"))
"""The modules of this folder."""


def _foreign() -> Iterator[pathlib.Path]:
    """Modules in this folder, and extension modules beside it, that are another package's."""
    here, suffixes = pathlib.Path(__file__).parent, tuple(importlib.machinery.EXTENSION_SUFFIXES)
    for file in (*here.iterdir(), *here.parent.glob("deep_ep_cpp.*")):
        if file.name.endswith(suffixes) or (file.suffix == ".py" and file.stem not in OURS):
            yield file


def refuse_mixture() -> None:
    """Raises why the package cannot be used where modules of another lie between its files.

    pip writes over files of the same name and leaves the others: such a module would be imported beside this
    package's. Of a package that was installed later the first file is that one's, and says nothing here.
    """
    for file in _foreign():
        raise ImportError(
            f"deep_ep: {file} is of another package of this name (deep_ep, sgl-deep-ep), whose files are mixed "
            "with these: pip uninstall it, then pip install --force-reinstall weft-deep-ep; or install Weft by "
            "pip install --target FOLDER and put FOLDER first in PYTHONPATH"
        )
