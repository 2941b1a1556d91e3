"""What the package says of the C library's ABI is what the record says, which the library's own tests
compare with weft.h."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from weft import DType, Op, _abi, ep

RECORD = Path(__file__).resolve().parents[2] / "clib" / "testdata" / "abi.txt"
pytestmark = pytest.mark.skipif(not RECORD.exists(), reason="needs the source tree")


@pytest.fixture(scope="module")
def record():
    return RECORD.read_text()


def camel(name):
    return "".join(part.capitalize() for part in name.removeprefix("weft_").split("_"))


def test_structs(record):
    seen = 0
    for name, size, members in re.findall(r"^struct (\w+) (\d+)\n((?:\t.*\n)*)", record, re.MULTILINE):
        mirror = getattr(_abi, camel(name))
        assert ctypes.sizeof(mirror) == int(size), name
        want = [(m, int(at), int(n)) for m, at, n in re.findall(r"\t(\w+) at (\d+), (\d+) bytes", members)]
        got = [(m, getattr(mirror, m).offset, getattr(mirror, m).size) for m, _ in mirror._fields_]
        assert got == want, name
        seen += 1
    assert seen >= 14


def test_functions(record):
    declared = set(re.findall(r"(weft_\w+)\(", record))
    assert declared == set(_abi.FUNCTIONS)
    for name, arguments in re.findall(r"(weft_\w+)\((.*)\)$", record, re.MULTILINE):
        count = 0 if arguments == "void" else arguments.count(",") + 1
        assert len(_abi.FUNCTIONS[name]) == count, name


def test_numbers(record):
    value = {name: int(n) for name, n in re.findall(r"^(?:enum|define) WEFT_(\w+) (\d+)", record, re.MULTILINE)}
    for ours, name in (
        (_abi.VERSION, "VERSION"),
        (_abi.MAX_DIMS, "MAX_DIMS"),
        (_abi.VALUES, "VALUES"),
        (_abi.ABSENT, "ABSENT"),
        (_abi.UNIQUE_ID_BYTES, "UNIQUE_ID_BYTES"),
        (_abi.PORT_KERNEL_BYTES, "PORT_KERNEL_BYTES"),
    ):
        assert ours == value.pop(name)
    del value["NONE"], value["HOST"], value["GPU"]
    mirrors = [
        (_abi.Status, "{}"),
        (_abi.Part, "{}"),
        (DType, "{}"),
        (Op, "{}"),
        (_abi.Collective, "{}"),
        (ep.Layout, "{}"),
        (ep.Reduction, "{}"),
    ]
    mirrors += [
        (ep.Weighting, "{}"),
        (ep.Payload, "PAYLOAD_{}"),
        (ep.ScaleOrder, "{}_SCALES"),
        (ep.Counts, "{}_COUNTS"),
        (ep.Overflow, "OVERFLOW_{}"),
        (_abi.PortKind, "PORT_{}"),
    ]
    for mirror, pattern in mirrors:
        for member in mirror:
            assert value.pop(pattern.format(member.name.upper()), None) == member, member
    assert not value, "the package lacks these"
