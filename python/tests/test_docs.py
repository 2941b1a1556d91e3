"""Every program of the documentation runs, on two ranks."""

from __future__ import annotations

import importlib.util
import re

import pytest
from conftest import SOURCE

GUIDES = SOURCE.parent / "docs" / "guides"
NAMES = "quickstart.md", "moe-layer.md", "python.md", "deep_ep.md", "mscclpp.md", "mscclpp-language.md"
PAGES = [SOURCE.parent / "README.md", *(GUIDES / name for name in NAMES)]
PROGRAMS = [
    program
    for page in PAGES
    if page.exists()
    for program in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]


def test_there_are_programs():
    assert len(PROGRAMS) >= 5


def test_excerpts():
    """What a guide shows of an example stands there; other tests run the examples."""
    if not GUIDES.exists():
        pytest.skip("needs the source tree")
    found = [
        e
        for page in GUIDES.glob("*.md")
        for e in re.findall(r'```python title="(.*?)"\n(.*?)```', page.read_text(), re.DOTALL)
    ]
    assert len(found) >= 5
    for name, excerpt in found:
        assert excerpt in (SOURCE / "examples" / name).read_text(), f"{name} has other words than\n{excerpt}"


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_program(program, processes, torch_program, tmp_path, monkeypatch):
    monkeypatch.setenv("MSCCLPP_CACHE_DIR", str(tmp_path / "plans"))
    if "import torch" in program and importlib.util.find_spec("torch") is None:
        pytest.skip("no PyTorch")
    file = tmp_path / "program.py"
    file.write_text(program)
    if "init_process_group" in program:
        run = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", file
        ended = torch_program(*run, timeout=300, OMP_NUM_THREADS="1")
        assert ended.code == 0, ended.out
        return
    for ended in processes(2, "program", file, torch="import torch" in program, timeout=300):
        *printed, end = ended.out.splitlines()
        assert (ended.code, end) == (0, "ok"), ended.out
        assert bool(printed) == ("print(" in program), ended.out
