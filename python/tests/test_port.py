"""Channels between ranks that are processes, by memory and by libfabric."""

from __future__ import annotations

import os
import re
import signal

import pytest
from conftest import SOURCE

import weft
from weft.limits import whole
from weft.port import _places


@pytest.fixture
def fabric(comm):
    """Libfabric, or the test is skipped."""
    try:
        with weft.port.Service(comm, sources=["127.0.0.1"]) as s:
            if not s.rails:
                raise weft.UnsupportedError("there are memory channels alone")
    except weft.UnsupportedError as e:
        if os.environ.get("WEFT_REQUIRE_FABRIC") == "1":
            raise
        pytest.skip(f"needs libfabric: {e}")


def passed(ended, killed=-1):
    for rank, p in enumerate(ended):
        assert p.code == (-signal.SIGKILL if rank == killed else 0), p.out


@pytest.mark.parametrize("ranks", [2, 3])
def test_memory(processes, ranks):
    passed(processes(ranks, "channels", "memory", ",".join("a" * ranks)))


@pytest.mark.parametrize("hosts", ["a,a", "a,b", "a,b,b"])
def test_fabric(processes, fabric, hosts):
    passed(processes(1 + hosts.count(","), "channels", "fabric", hosts))


@pytest.mark.parametrize(
    ("hosts", "transport"),
    [("a,a", "CudaIpc"), ("a,a,a", "IB0"), ("a,b", "IB0"), ("a,a,b", "Ethernet"), ("a,b,c", "IB1")],
)
def test_mscclpp(processes, fabric, hosts, transport):
    passed(processes(1 + hosts.count(","), "mscclpp_channels", hosts, transport))


def test_mscclpp_bootstrap(processes, fabric, tmp_path):
    passed(processes(2, "mscclpp_bootstrap", tmp_path, 1))


def test_mscclpp_without_libfabric(processes, tmp_path):
    passed(processes(2, "mscclpp_bootstrap", tmp_path, 0))


@pytest.mark.parametrize("hosts", ["a,a,a", "a,b,c"])
def test_death(processes, fabric, hosts):
    passed(processes(3, "lost_channel", hosts), killed=2)


def test_example(processes, fabric):
    for p in processes(2, "examples", SOURCE / "examples", "port_channel.py"):
        assert p.code == 0, p.out
        assert "100 rows came by fabric" in p.out


def test_service(comm):
    with pytest.raises(weft.InvalidError, match="channels"):
        weft.port.Service(comm, channels=1 << 20)
    with pytest.raises(weft.InvalidError, match="channels"):
        weft.port.Service(comm, channels=1.5)
    with weft.port.Service(comm, channels=7) as s:
        assert s.channels == 7
        m = s.register(None)
        assert m.size == 0
        with pytest.raises(weft.InvalidError, match="another rank"):
            s.connect(0, m)
        m.close()
        m.close()
        with pytest.raises(weft.ClosedError):
            m.size_of(0)
    with pytest.raises(weft.ClosedError):
        s.register(None)


def test_places():
    """What is no offset, size or value is refused as it was given."""
    for given, words in [
        (-1, "is -1, want a whole number from 0 to 2**63 - 1"),
        (1 << 63, "is 9223372036854775808, want a whole number from 0 to 2**63 - 1"),
        (1.5, "is 1.5, want a whole number"),
        (True, "is True, want a whole number"),
    ]:
        with pytest.raises(weft.InvalidError, match=re.escape(words) + "$"):
            _places(0, given)
    assert _places(0, (1 << 63) - 1) == (0, (1 << 63) - 1)
    with pytest.raises(weft.InvalidError, match=r"value is 1\.5, want a whole number$"):
        whole("value", 1.5, below=64)
    for fits in (-(1 << 63), (1 << 64) - 1):
        assert whole("value", fits, below=64) == fits
    for wrong in (-(1 << 63) - 1, 1 << 64):
        with pytest.raises(
            weft.InvalidError, match=re.escape(f"{wrong}, want a whole number from -2**63 to 2**64 - 1")
        ):
            whole("value", wrong, below=64)
