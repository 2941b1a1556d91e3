"""Counting on a GPU, one that the host's processors emulate: a library of its own, and so a process of its own."""

from __future__ import annotations

import subprocess
import sys

from conftest import HERE, alone
from emulated import environment


def test_counter():
    p = subprocess.run(
        [sys.executable, str(HERE / "counting.py")],
        env=alone() | environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (p.returncode, p.stdout) == (0, "ok\n"), p.stderr
