"""Ranks that are processes of several hosts, as they say: DeepEP's and MSCCL++'s own tests there, over libfabric."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")

from conftest import EVERYTHING

import weft


@pytest.mark.parametrize("hosts", ["a,b", "a,a,b,b"] if EVERYTHING else ["a,b"])
def test_original_tests(comm, torch_processes, hosts):
    try:
        with weft.port.Service(comm) as s:
            if not s.rails:
                raise weft.UnsupportedError("there are memory channels alone")
    except weft.UnsupportedError as e:
        if os.environ.get("WEFT_REQUIRE_FABRIC") == "1":
            raise
        pytest.skip(f"needs libfabric: {e}")
    for p in torch_processes(1 + hosts.count(","), "several_hosts", hosts, timeout=240):
        assert p.code == 0, p.out
