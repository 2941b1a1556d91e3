"""Every program of the documentation runs, on two ranks."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest
from conftest import SOURCE, alone

PAGES = [SOURCE.parent / "docs" / "guides" / name for name in ("python.md", "deep_ep.md", "mscclpp.md")]
PROGRAMS = [
    program
    for page in PAGES
    if page.exists()
    for program in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]


def test_there_are_programs():
    assert len(PROGRAMS) >= 5


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_program(program, processes, tmp_path):
    if "import torch" in program and importlib.util.find_spec("torch") is None:
        pytest.skip("no PyTorch")
    file = tmp_path / "program.py"
    file.write_text(program)
    if "init_process_group" in program:
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(file)]
        p = subprocess.run(
            run, env=alone() | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=100, check=False
        )
        assert p.returncode == 0, p.stdout + p.stderr
        return
    for ended in processes(2, "program", file, timeout=100):
        assert (ended.code, ended.out) == (0, "ok\n"), ended.out
