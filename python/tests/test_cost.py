"""The programs that print what calls cost run; what they print, nothing depends on."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import alone


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch")
@pytest.mark.parametrize(
    ("program", "lines"),
    [((Path(__file__).with_name("cost.py"), "2"), 5), (("-m", "weft.bench_calls", "--turns", "2"), 16)],
)
def test_cost(program, lines):
    p = subprocess.run(
        [sys.executable, *program],
        env=alone(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert p.returncode == 0, p.stdout + p.stderr
    assert p.stdout.count("\n") == lines, p.stdout
