"""Counting on a GPU, one that the host's processors emulate: a library of its own, and so a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HERE, alone

ROOT = Path(__file__).resolve().parents[2]


def test_counter(tmp_path):
    if shutil.which("go") is None or not (ROOT / "clib").is_dir():
        pytest.skip("the library on emulated GPUs is built by Go, of the source tree")
    if shutil.which(os.environ.get("WEFT_CXX", "g++")) is None and shutil.which("clang++") is None:
        pytest.skip("kernels are emulated by what a C++ compiler makes of them")
    library = tmp_path / "libweft.so"
    subprocess.run(
        ["go", "build", "-tags", "emulated", "-buildmode=c-shared", "-ldflags=-s -w -extldflags '-Wl,-soname,libweft.so'", "-o", str(library), "./clib"],
        cwd=ROOT,
        env=os.environ | {"CGO_ENABLED": "1"},
        check=True,
    )
    environment = alone() | {"WEFT_LIBRARY": str(library), "WEFT_EMULATED_KERNELS": str(tmp_path)}
    p = subprocess.run([sys.executable, str(HERE / "counting.py")], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (p.returncode, p.stdout) == (0, "ok\n"), p.stderr
