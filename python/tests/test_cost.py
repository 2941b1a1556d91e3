"""The programs that print what calls cost run; what they print, nothing depends on."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch")
@pytest.mark.parametrize(
    ("program", "lines"),
    [((Path(__file__).with_name("cost.py"), "2"), 5), (("-m", "weft.bench_calls", "--turns", "2"), 16)],
)
def test_cost(torch_program, program, lines):
    ended = torch_program(*program, timeout=300)
    assert ended.code == 0, ended.out
    assert ended.out.count("\n") == lines, ended.out
