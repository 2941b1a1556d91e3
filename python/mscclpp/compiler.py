"""Programs become algorithms."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .algorithms import Algorithm
from .executor import ExecutionPlan
from .language.program import CollectiveProgram
from .language.utils import AlgoSpec

__all__ = ["compile"]


def compile(algo: Callable[..., CollectiveProgram], algo_spec: AlgoSpec, rank: int, **kwargs: Any) -> Algorithm:  # noqa: A001
    """Makes the plan of the program that a function returns, and an algorithm of it. Further arguments are the
    function's.

    The plan is a file in the folder MSCCLPP_CACHE_DIR, by default ``mscclpp`` in the user's cache directory. Its name
    is the hash of what is in it, so a changed program is another file.
    """
    if not callable(algo):
        raise ValueError(f"{type(algo).__name__} is no function that returns a program")
    program = algo(algo_spec, **kwargs)
    if not isinstance(program, CollectiveProgram):
        raise TypeError(f"the function returned {type(program).__name__}, want a CollectiveProgram")
    text = program.to_json(indent=None, separators=(",", ":"), ensure_ascii=False).encode()
    key = hashlib.sha256(text).hexdigest()
    return Algorithm(
        key,
        ExecutionPlan(str(_kept(key, text)), rank),
        tags=algo_spec.tags,
        constraint=Algorithm.Constraint(algo_spec.world_size, algo_spec.nranks_per_node),
    )


def _kept(key: str, text: bytes) -> Path:
    """The file of a plan, which another rank may be writing, too."""
    folder = Path(os.environ.get("MSCCLPP_CACHE_DIR") or Path.home() / ".cache" / "mscclpp")
    file = folder / f"{key}.json"
    if file.exists() and file.read_bytes() == text:
        return file
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / f"{key}.json.tmp.{os.getpid()}"
    written.write_bytes(text)
    written.replace(file)
    return file
