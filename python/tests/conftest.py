"""Ranks for tests: as threads of this process, and as processes."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import weft

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent
EVERYTHING = os.environ.get("WEFT_TEST_ALL") == "1"  # make test-all: long series, and more ranks

# What a shell starts in the background ignores Ctrl-C, and so would the programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_LAUNCHERS = (
    "WEFT_RANK",
    "WEFT_SIZE",
    "WEFT_ADDRESS",
    "WEFT_ID",
    "RANK",
    "WORLD_SIZE",
    "SLURM_",
    "OMPI_",
    "PMI_",
    "LWS_",
    "JOB_COMPLETION",
)


def alone() -> dict[str, str]:
    """An environment in which a process is alone, whoever started the tests."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHERS)}
    return kept | {
        "PYTHONPATH": os.pathsep.join(p for p in (str(SOURCE), os.environ.get("PYTHONPATH", "")) if p),
        "PYTHONWARNINGS": "ignore",
    }


def at_once(work, things):
    """Does some work of each thing in a thread of its own, which take turns as often as can be."""
    workers = [threading.Thread(target=work, args=(thing,)) for thing in things]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for w in workers:
            w.start()
        for w in workers:
            w.join()
    finally:
        sys.setswitchinterval(switch)


@pytest.fixture(autouse=True, scope="session")
def _alone():
    for name in list(os.environ):
        if name.startswith(_LAUNCHERS):
            del os.environ[name]


@pytest.fixture(autouse=True, scope="module")
def _frozen():
    """Collections, which many tests make, need not look through all that was imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def of_host(monkeypatch):
    """Has what shows memory of a GPU by DLPack show the host's, which PyTorch takes over without a GPU."""
    from weft import dlpack, views

    views.sweep()  # what earlier tests have shown is not this one's
    monkeypatch.setattr(dlpack, "CUDA", 1)
    monkeypatch.setattr(dlpack, "_free", [[] for _ in dlpack._free])
    monkeypatch.setattr(views, "_spare", {})
    return (ctypes.c_float * 20)()


@pytest.fixture
def comm():
    """The only rank of a communicator."""
    with weft.join(deadline=20) as c:
        yield c


@pytest.fixture
def fabric(comm):
    """Skips a test where there is no libfabric, unless WEFT_REQUIRE_FABRIC=1."""
    try:
        with weft.port.Service(comm) as s:
            if not s.rails:
                raise weft.UnsupportedError("there are memory channels alone")
    except weft.UnsupportedError as e:
        if os.environ.get("WEFT_REQUIRE_FABRIC") == "1":
            raise
        pytest.skip(f"needs libfabric: {e}")


@pytest.fixture
def threads():
    """Runs a function of a communicator on so many ranks, which are threads, and returns what it
    returned on each. ``gpu`` says which GPU is a rank's."""

    def run(n, function, gpu=None, **options):
        options = {"deadline": 20, **options}
        ids = weft.UniqueId.create("lo")
        results, errors = [None] * n, []

        def rank(r):
            try:
                of_rank = {} if gpu is None else {"engine": "gpu", "gpu": gpu(r)}
                with weft.Communicator.from_unique_id(ids, r, n, **options, **of_rank) as c:
                    results[r] = function(c)
            except BaseException as e:
                errors.append((r, e))

        all_ranks = [threading.Thread(target=rank, args=(r,), daemon=True) for r in range(n)]
        for t in all_ranks:
            t.start()
        for t in all_ranks:
            t.join(60)
            assert not t.is_alive(), "a rank does not come back"
        # Who fails first makes others fail, too; what it met tells the most.
        heard = weft.LeftError, weft.AbortedError, weft.DeadlineError
        for _, e in sorted(errors, key=lambda re: isinstance(re[1], heard)):
            raise e
        return results

    return run


@dataclasses.dataclass
class Ended:
    """How a process ended."""

    code: int
    out: str


@pytest.fixture
def processes():
    """Runs a function of ranks.py on so many ranks, which are processes, and returns how each ended."""

    def run(n, function, *arguments, timeout=60):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{s.getsockname()[1]}"
        started = [
            subprocess.Popen(
                [sys.executable, str(HERE / "ranks.py"), function, *map(str, arguments)],
                env=alone() | {"WEFT_RANK": str(r), "WEFT_SIZE": str(n), "WEFT_ADDRESS": address},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for r in range(n)
        ]
        try:
            return [Ended(p.wait(), out) for p in started for out in [p.communicate(timeout=timeout)[0]]]
        finally:
            for p in started:
                p.kill()

    return run


@pytest.fixture
def script():
    """Runs a program text in a process of its own and returns how it ended."""

    def run(text, *options, timeout=60, **environment):
        p = subprocess.run(
            [sys.executable, *options, "-c", text],
            env=alone() | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Ended(p.returncode, p.stdout)

    return run


@pytest.fixture
def torch_processes():
    """Runs a function of torch_ranks.py on so many ranks, which know each other by an address."""

    def run(n, function, *arguments, timeout=60):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        common = alone() | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(n),
            "LOCAL_WORLD_SIZE": str(n),
        }
        started = [
            subprocess.Popen(
                [sys.executable, str(HERE / "torch_ranks.py"), function, *map(str, arguments)],
                env=common | {"RANK": str(r), "LOCAL_RANK": str(r)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for r in range(n)
        ]
        try:
            return [Ended(p.wait(), out) for p in started for out in [p.communicate(timeout=timeout)[0]]]
        finally:
            for p in started:
                p.kill()

    return run
