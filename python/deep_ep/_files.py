"""Whether the files of this package are its own: other packages install under its name, too.

pip writes over files of the same name and leaves the others. Any module of ours asks, for the package's first may be
the other's.
"""

from __future__ import annotations

import importlib.machinery
import pathlib
from collections.abc import Iterator

OURS = frozenset(("_C", "__init__", "_files", "buffer", "elastic", "forks", "hybrid_ep_buffer", "routes"))
"""The modules of this folder."""

_OURS = "weft_deep_ep"


def refuse_mixture() -> None:
    """Raises why the package cannot be used where files of another lie between its own.

    pip writes over files of the same name and leaves the others: such a module would be imported beside this
    package's. Of a package that was installed later the first file is that one's, and says nothing here.
    """
    for other in _others(pathlib.Path(__file__).parent):
        raise ImportError(
            f"deep_ep: {other} is of another package of this name (deep_ep, sgl-deep-ep), whose files are mixed "
            "with these: pip uninstall it, then pip install --force-reinstall --no-deps weft-deep-ep; or install Weft "
            "by pip install --target FOLDER and put FOLDER first in PYTHONPATH"
        )


def _others(package: pathlib.Path) -> Iterator[pathlib.Path]:
    """Modules in the folder and extension modules beside it that are another package's, and what installers wrote
    down of other distributions that have files here."""
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    for file in (*package.iterdir(), *package.parent.glob("deep_ep_cpp.*")):
        if file.name.endswith(suffixes) or (file.suffix == ".py" and file.stem not in OURS):
            yield file
    prefix = f"{package.name}/".encode()
    for record in package.parent.glob("*.dist-info/RECORD"):
        if record.parent.name.partition("-")[0].lower() != _OURS and b"\n" + prefix in b"\n" + record.read_bytes():
            yield record.parent


refuse_mixture()
