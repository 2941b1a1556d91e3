"""The programs that print what calls cost run; what they print, nothing depends on."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import alone


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch")
@pytest.mark.parametrize(("program", "calls"), [("cost.py", 5), ("cost_deep_ep.py", 10)])
def test_cost(program, calls):
    p = subprocess.run(
        [sys.executable, Path(__file__).with_name(program), "2"],
        env=alone(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert p.returncode == 0, p.stdout + p.stderr
    assert p.stdout.count("\n") == calls, p.stdout
