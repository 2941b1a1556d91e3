"""What importing costs, and what it does not do."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from conftest import alone


def import_time(module):
    """What importing a module takes by the interpreter's own account."""
    p = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import {module}"],
        env=alone(),
        capture_output=True,
        text=True,
        check=True,
    )
    return int(re.search(rf"\|\s*(\d+) \| {module}$", p.stderr, re.MULTILINE)[1])


def test_it_is_quick():
    """It is to take 100 ms where asyncio takes 33; whoever else uses the processor slows down both."""
    assert any(import_time("weft") <= 3 * import_time("asyncio") for _ in range(10))


def test_it_imports_no_arrays_and_opens_no_library(script):
    ended = script(
        "import sys, weft\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
        "assert 'libweft' not in open('/proc/self/maps').read()\n"
        "assert weft.ep.Spec(experts=1, topk=1, hidden=8, max_tokens=1)\n"
    )
    assert ended.code == 0, ended.out


def test_without_a_library(script):
    ended = script("import weft; weft.join()", WEFT_LIBRARY="/nonexistent/libweft.so")
    assert ended.code == 1
    assert "weft.errors.LibraryError" in ended.out
    assert "WEFT_LIBRARY=/nonexistent/libweft.so does not load" in ended.out


def test_another_library(script):
    """What WEFT_LIBRARY names may be any library: the C library, say, which every process has."""
    ended = script("import weft; weft.join()", WEFT_LIBRARY="libc.so.6")
    assert ended.code == 1
    assert "weft.errors.LibraryError: WEFT_LIBRARY=libc.so.6 is another library" in ended.out
    assert "unset WEFT_LIBRARY" in ended.out


@pytest.mark.parametrize("text", ["from weft import *", "import weft.ep, weft.errors, weft.dtypes"])
def test_names(script, text):
    ended = script(text)
    assert ended.code == 0, ended.out
