"""Functions that PyTorch's compiler must call and not trace: its trace of calls into C, frame by frame, is
slower, and not always right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])


def opaque(function: F) -> F:
    """Makes the compiler break its graph at calls of a function, and not trace its callees.

    It does the work of torch.compiler.disable without a wrapper that every call passes.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    try:
        c = torch._C._dynamo.eval_frame
        c.set_code_exec_strategy(function.__code__, c._FrameExecStrategy(c._FrameAction.SKIP, c._FrameAction.SKIP))  # type: ignore[attr-defined]
    except AttributeError:  # a PyTorch that lacks it: it traces
        pass
    return function
