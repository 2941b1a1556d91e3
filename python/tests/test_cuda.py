"""Real GPUs: what cuda_ranks.py checks, with PyTorch's CUDA tensors, streams, captures and autograd, by
ranks that are processes.

Ranks are spread over the GPUs that there are, and share them if they are more. Starting processes costs
many seconds on GPUs, so all checks of so many ranks are made in one start of them, and each has a test
here that tells what it found.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest
from conftest import HERE, alone

if importlib.util.find_spec("torch") is None:
    pytest.skip("no PyTorch", allow_module_level=True)

import torch

# Before the library or PyTorch is asked whether there are GPUs: their number is all that this
# process wants of them.
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
if GPUS == 0:
    if os.environ.get("WEFT_REQUIRE_GPU") == "1":
        pytest.fail("PyTorch sees no GPU, and WEFT_REQUIRE_GPU=1", pytrace=False)
    pytest.skip("PyTorch sees no GPU", allow_module_level=True)

RANKS = sorted({1, 2, min(4, GPUS)})


def listed(name):
    """The checks of a list of cuda_ranks.py."""
    text = (HERE / "cuda_ranks.py").read_text().partition(f"\n{name} = (")[2]
    return text.partition(")")[0].replace(",", " ").split()


# Ranks of two hosts, which share the GPUs.
HOSTS = {2: "ab", 4: "aabb"}
# of a start, so that what hangs is told before all of this is ended
SECONDS = 0.4 * float(os.environ.get("WEFT_PART_SECONDS", "600"))


def start(ranks, *names, hosts=None):
    """Runs checks on so many ranks, of these hosts if they are of several, and returns what each rank has said: a list
    of its lines, and how it ended."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    common = alone() | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }
    common["WEFT_TRACE_SECONDS"] = str(SECONDS - 10)
    of_rank = [{"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(ranks)]
    if hosts:
        common["HOSTS"] = hosts
        for r, named in enumerate(of_rank):
            named["WEFT_HOSTID"] = hosts[r]
    # What they say goes to files: PyTorch's compiler starts processes that outlive them, and a pipe
    # ends with the last of those.
    said = [tempfile.TemporaryFile("w+") for _ in range(ranks)]  # noqa: SIM115 # they are closed below
    started = [
        subprocess.Popen(
            [sys.executable, str(HERE / "cuda_ranks.py"), *names],
            env=common | of_rank[r],
            stdout=said[r],
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        for r in range(ranks)
    ]
    until = time.monotonic() + SECONDS
    try:
        for p in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                p.wait(max(0, until - time.monotonic()))
    finally:
        for p in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)
            p.wait()
    ended = []
    for p, text in zip(started, said, strict=True):
        with text:
            text.seek(0)
            ended.append((p.returncode, text.read()))
    return ended


@functools.cache
def found(ranks, hosts=None):
    """What all checks have found on so many ranks: by rank, each check's line, and all that was said."""
    ended = start(ranks, hosts=hosts)
    lines = [
        {line["check"]: line for line in map(json.loads, filter(lambda x: x.startswith('{"check"'), text.splitlines()))}
        for _, text in ended
    ]
    return lines, ended


def tell(check, lines, ended):
    """Fails by what a check has found, or tells its figures."""
    wrong, skipped = [], None
    for rank, of_rank in enumerate(lines):
        line = of_rank.get(check)
        if line is None:
            wrong.append(
                f"rank {rank} did not get so far; it ended with {ended[rank][0]}, and said "
                f"last:\n{ended[rank][1][-3000:]}"
            )
        elif line["error"]:
            wrong.append(f"rank {rank}, after {line['seconds']} s:\n{line['error']}")
        skipped = skipped or (line or {}).get("skipped")
    assert not wrong, "\n".join(wrong)
    if skipped:
        pytest.skip(skipped)
    if figures := lines[0][check].get("figures"):
        print(f"\n{len(ended)} ranks on {GPUS} GPUs, of rank 0:")
        for name, times in figures.items():
            print(f"  {name}: {json.dumps(times)}")


@pytest.mark.parametrize("check", listed("CHECKS"))
@pytest.mark.parametrize("ranks", RANKS)
def test_on_gpus(ranks, check):
    tell(check, *found(ranks))


@pytest.mark.parametrize("check", listed("CHECKS_BETWEEN_HOSTS"))
@pytest.mark.parametrize("ranks", HOSTS)
def test_between_hosts(ranks, check):
    tell(check, *found(ranks, HOSTS[ranks]))


def survived(ended):
    *alive, dead = ended
    lines = [json.loads(line) for _, text in ended for line in text.splitlines() if line.startswith('{"check"')]
    if lines and all(line["skipped"] for line in lines):
        pytest.skip(lines[0]["skipped"])
    assert dead[0] == -9, dead[1]
    for code, text in alive:
        assert code == 0, text
        assert '"error": null' in text, text


@pytest.mark.parametrize("ranks", [n for n in RANKS if n > 1])
def test_dead_rank(ranks):
    survived(start(ranks, "death"))


@pytest.mark.parametrize("check", ["death", "deep_ep_death"])
@pytest.mark.parametrize("ranks", HOSTS)
def test_dead_rank_between_hosts(ranks, check):
    survived(start(ranks, check, hosts=HOSTS[ranks]))
