"""The tests of gpu_cases.py on GPUs that the host's processors emulate: a library of its own, and so a
process of its own. test_cuda.py is for real GPUs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

from conftest import HERE, alone
from emulated import environment


def test_on_emulated_gpus():
    more = shlex.split(os.environ.get("WEFT_GPU_CASES", ""))
    run = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--durations=5",
        str(HERE / "gpu_cases.py"),
        str(HERE / "own_cases.py"),
        *more,
    ]
    p = subprocess.run(
        run,
        env=alone() | environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    print(p.stdout)
    assert p.returncode == 0, p.stdout
