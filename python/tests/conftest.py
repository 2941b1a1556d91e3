"""Ranks for tests: as threads of this process, and as processes."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import weft

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent
EVERYTHING = os.environ.get("WEFT_TEST_ALL") == "1"  # make test-all: long series, and more ranks

# What a shell starts in the background ignores Ctrl-C, and so would the programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What templates of ranks have imported.
NUMPY = "numpy", "pytest"
TORCH = *NUMPY, "torch", "torch.distributed"

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


class Template:
    """The process of template.py, which forks ranks that have modules imported."""

    def __init__(self, *modules):
        self._requests, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, str(HERE / "template.py"), str(theirs.fileno()), *modules]
            self._process = subprocess.Popen(command, env=alone(), pass_fds=[theirs.fileno()])
        self._answers = self._requests.makefile("rb")
        self._ended = {}  # of ranks, how

    def run(self, programs, timeout):
        """Runs a rank for each program and environment, and returns how each ended."""
        with contextlib.ExitStack() as files:
            outs = [files.enter_context(tempfile.TemporaryFile()) for _ in programs]
            ranks = []
            try:
                for (program, environment), out in zip(programs, outs, strict=True):
                    wanted = json.dumps({"program": [*map(str, program)], "environment": environment}).encode()
                    self._requests.settimeout(timeout)
                    socket.send_fds(self._requests, [len(wanted).to_bytes(8, "little")], [out.fileno()])
                    self._requests.sendall(wanted)
                    while len(answer := self._answer()) == 2:
                        pass
                    ranks.append(answer[0])
                until = time.monotonic() + timeout
                for rank in ranks:
                    while rank not in self._ended:
                        self._requests.settimeout(max(0.001, until - time.monotonic()))
                        self._answer()
            finally:
                for rank in ranks:
                    if rank not in self._ended:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(rank, signal.SIGKILL)
            ended = [os.waitstatus_to_exitcode(self._ended.pop(rank)) for rank in ranks]
            for out in outs:
                out.seek(0)
            return [Ended(code, out.read().decode()) for code, out in zip(ended, outs, strict=True)]

    def _answer(self):
        line = self._answers.readline()
        assert line, "the template of ranks has ended"
        answer = tuple(map(int, line.split()))
        if len(answer) == 2:
            self._ended[answer[0]] = answer[1]
        return answer

    def close(self):
        self._answers.close()
        self._requests.close()
        self._process.wait()


@pytest.fixture(scope="session")
def templates():
    """Runs programs on ranks of a template with modules, which is begun when it is first wanted."""
    begun = {}

    def run(modules, programs, timeout):
        try:
            if modules not in begun:
                begun[modules] = Template(*modules)
            return begun[modules].run(programs, timeout)
        except BaseException:  # what ranks left behind is not the next ones'
            if modules in begun:
                begun.pop(modules).close()
            raise

    yield run
    for template in begun.values():
        template.close()


def free_port():
    """A port that was free just now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def processes(templates):
    """Runs a function of ranks.py on so many ranks, which are processes, and returns how each ended. With ``torch``
    they have PyTorch imported."""

    def run(n, function, *arguments, torch=False, timeout=180):
        common = alone() | {"WEFT_SIZE": str(n), "WEFT_ADDRESS": f"127.0.0.1:{free_port()}"}
        program = HERE / "ranks.py", function, *arguments
        ranks = [(program, common | {"WEFT_RANK": str(r)}) for r in range(n)]
        return templates(TORCH if torch else NUMPY, ranks, timeout)

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
def torch_processes(templates):
    """Runs a function of torch_ranks.py on so many ranks, which know each other by an address."""

    def run(n, function, *arguments, timeout=180):
        common = alone() | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(n),
            "LOCAL_WORLD_SIZE": str(n),
        }
        program = HERE / "torch_ranks.py", function, *arguments
        ranks = [(program, common | {"RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(n)]
        return templates(TORCH, ranks, timeout)

    return run


@pytest.fixture
def torch_program(templates):
    """Runs a program, or ``-m`` and a module, in a process of its own that has PyTorch imported, and returns how it
    ended."""

    def run(*program, timeout=180, **environment):
        (ended,) = templates(TORCH, [(program, alone() | environment)], timeout)
        return ended

    return run


@pytest.fixture
def torch_script(torch_program, tmp_path):
    """Runs a program text in the same way."""

    def run(text, timeout=180):
        file = tmp_path / "script.py"
        file.write_text(text)
        return torch_program(file, timeout=timeout)

    return run
