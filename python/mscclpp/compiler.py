"""Programs become algorithms."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import weft
from weft import plan

from .algorithms import Algorithm
from .executor import ExecutionPlan
from .language.program import CollectiveProgram
from .language.utils import AlgoSpec

__all__ = ["compile"]

_log = logging.getLogger("mscclpp")


def compile(algo: Callable[..., CollectiveProgram], algo_spec: AlgoSpec, rank: int, **kwargs: Any) -> Algorithm:  # noqa: A001
    """Makes the plan of the program that a function returns, and an algorithm of it. Further arguments are the
    function's.

    The plan is a file in the folder MSCCLPP_CACHE_DIR, by default ``mscclpp`` in the user's cache directory. Its name
    is the hash of what is in it, so a changed program is another file.

    The plan is verified. One that breaks a rule of plans, or that waits for what never comes, is refused. What else is
    found, the logger "mscclpp" gets on rank 0, for MSCCL++'s own programs have findings, too.
    """
    if not callable(algo):
        raise ValueError(f"{type(algo).__name__} is no function that returns a program")
    program = algo(algo_spec, **kwargs)
    if not isinstance(program, CollectiveProgram):
        raise TypeError(f"the function returned {type(program).__name__}, want a CollectiveProgram")
    text = program.to_json(indent=None, separators=(",", ":"), ensure_ascii=False).encode()
    _verify(algo_spec.name, program, rank)
    key = hashlib.sha256(text).hexdigest()
    return Algorithm(
        key,
        ExecutionPlan(str(_kept(key, text)), rank),
        tags=algo_spec.tags,
        constraint=Algorithm.Constraint(algo_spec.world_size, algo_spec.nranks_per_node),
    )


def _verify(name: str, program: CollectiveProgram, rank: int) -> None:
    """Refuses a plan that cannot run, and logs what else may be wrong with it."""
    findings = plan.check(program.recording())
    if fatal := [f.text for f in findings if f.kind in ("structure", "deadlock") and not f.warning]:
        raise weft.InvalidError(f"plan {name}: " + "; ".join(fatal))
    if rank == 0:
        for f in findings:
            _log.log(logging.WARNING if f.warning else logging.ERROR, "plan %s: %s", name, f.text)


def _kept(key: str, text: bytes) -> Path:
    """The file of a plan, which another rank may be writing, too."""
    folder = Path(os.environ.get("MSCCLPP_CACHE_DIR") or Path.home() / ".cache" / "mscclpp")
    file = folder / f"{key}.json"
    if file.exists() and file.read_bytes() == text:
        return file
    folder.mkdir(parents=True, exist_ok=True)
    # Under a name of its own, for ranks may be threads of one process. Others read the file, so it is no temporary one.
    written = folder / f"{key}.json.tmp.{os.getpid()}.{threading.get_ident()}"
    written.write_bytes(text)
    written.replace(file)
    return file
