"""The tests of gpu_cases.py on GPUs that the host's processors emulate: a library of its own, and so a
process of its own. test_cuda.py is for real GPUs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest
from conftest import EVERYTHING, HERE, alone
from emulated import environment, put


@pytest.mark.parametrize("compiled", ["1", "0"] if EVERYTHING else ["1"])
def test_on_emulated_gpus(torch_program, compiled):
    more = shlex.split(os.environ.get("WEFT_GPU_CASES", ""))
    program = "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5"
    cases = HERE / "gpu_cases.py", HERE / "own_cases.py"
    ended = torch_program(*program, *cases, *more, timeout=600, **environment(), WEFT_COMPILED=compiled)
    print(ended.out)
    assert ended.code == 0, ended.out


@pytest.mark.parametrize("hosts", ["ab", "aabb"] if EVERYTHING else ["ab"])
def test_between_hosts(fabric, tmp_path, hosts):
    """What a buffer's exchanges between hosts return on GPUs is what they return on the host, bit by bit."""
    pytest.importorskip("torch")
    started = [
        subprocess.Popen(
            [sys.executable, str(HERE / "hosts_emulated.py"), hosts, host, str(tmp_path / "id")],
            env=alone() | environment() | {"WEFT_HOSTID": host},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for host in sorted(set(hosts))
    ]
    try:
        said = [p.communicate(timeout=400)[0] for p in started]
    finally:
        for p in started:
            p.kill()
    assert all(p.returncode == 0 for p in started), "\n".join(said)


def test_a_library_in_use_stays(tmp_path):
    """Files of tests that run at once share a folder: who builds the library there leaves it to those who have it
    loaded."""
    library, there = tmp_path / "library.so", tmp_path / "there"
    there.mkdir()
    library.write_bytes(b"first")
    put(library, there)
    with (there / library.name).open("rb") as loaded:
        library.write_bytes(b"second")
        put(library, there)
        assert loaded.read() == b"first"
    assert (there / library.name).read_bytes() == b"second"
    assert [file.name for file in there.iterdir()] == [library.name]
