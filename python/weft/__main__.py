"""The command line: ``python -m weft`` is the command ``weft`` that the wheel installs."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from typing import NoReturn

from .errors import LibraryError


def _places() -> Iterator[str]:
    """Where installers put commands: for this package's folder, and for this interpreter."""
    here = os.path.dirname(os.path.realpath(__file__))
    yield os.path.join(here, "..", "..", "build")  # the source tree
    yield os.path.join(here, "..", "bin")  # pip install --target
    yield os.path.join(here, "..", "..", "..", "..", "bin")  # pip install --prefix
    yield sysconfig.get_path("scripts")
    yield sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))


def find() -> str:
    """The path of the command."""
    for place in _places():
        path = os.path.join(place, "weft")
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise LibraryError(
        "the command weft is not beside this package: install the wheel, or run make build in its source"
    )


def main() -> NoReturn:
    """Becomes the command, with the same arguments."""
    os.execv(find(), ["weft", *sys.argv[1:]])  # noqa: S606 - the command that was installed with this package


if __name__ == "__main__":
    main()
