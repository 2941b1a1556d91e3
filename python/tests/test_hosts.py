"""Ranks that are processes of several hosts, as they say: DeepEP's and MSCCL++'s own tests there, over libfabric."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from conftest import EVERYTHING


@pytest.mark.parametrize("hosts", ["a,b", "a,a,b,b"] if EVERYTHING else ["a,b"])
def test_original_tests(fabric, torch_processes, hosts):
    for p in torch_processes(1 + hosts.count(","), "several_hosts", hosts, timeout=240):
        assert p.code == 0, p.out
