"""The wheel: what is in it, and that it works by itself."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile

import pytest
from conftest import SOURCE, alone

from weft import _library


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, SOURCE / "backend.py", folder], env=alone() | {"WEFT_LIBRARY": str(_library.find())}, check=True, capture_output=True)
    (wheel,) = folder.iterdir()
    return wheel


def test_contents(built):
    assert built.stat().st_size <= 12e6
    with zipfile.ZipFile(built) as archive:
        names = set(archive.namelist())
    assert {"weft/__init__.py", "weft/py.typed", "weft/libweft.so", "weft/ep/handle.py"} <= names
    assert not [n for n in names if "test" in n or n.endswith(".pyc")]


def test_tag_is_true(built):
    """The library needs no newer glibc than the tag says, and no other library of the system."""
    glibc = re.fullmatch(r"weft-[\d.]+-py3-none-manylinux_2_(\d+)_\w+\.whl", built.name)
    try:
        out = subprocess.run(["objdump", "-p", "-T", _library.find()], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("no objdump")
    assert max(int(v) for v in re.findall(r"GLIBC_2\.(\d+)", out)) == int(glibc[1])
    assert set(re.findall(r"NEEDED +(\S+)", out)) <= {"libc.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def test_it_installs_and_runs(built, tmp_path):
    pip = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False)
    if pip.returncode:
        pytest.skip("no pip")
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--target", target, built]
    subprocess.run(install, check=True, capture_output=True)
    program = "import weft\nwith weft.join() as c: print(c.ranks, weft.__file__)"
    env = {k: v for k, v in alone().items() if k != "WEFT_LIBRARY"} | {"PYTHONPATH": str(target)}
    out = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert out == f"1 {target}/weft/__init__.py\n"
