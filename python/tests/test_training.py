"""Training with asynchronous calls: the losses of a rank-order reference to the bit, and those of Gloo nearly."""

from __future__ import annotations

import importlib.util
import json

import pytest
from conftest import EVERYTHING, SOURCE

if importlib.util.find_spec("torch") is None:
    pytest.skip("no PyTorch", allow_module_level=True)

EXAMPLE = SOURCE / "examples" / "data_parallel.py"


@pytest.mark.parametrize("ranks", [2, 3] if EVERYTHING else [3])
def test_losses(torch_processes, ranks):
    steps = 1000 if EVERYTHING else 100
    for ended in torch_processes(ranks, "training", steps, timeout=300):
        assert ended.code == 0, ended.out
        found = json.loads(ended.out.splitlines()[0])
        print(found)
        assert found["steps"] == steps
        assert found["same bits as in rank order"]
        assert found["same bits on every rank"]
        # Sums of two ranks have one order, so Gloo's are the same; of more they differ in the last bits, which
        # the steps after carry on.
        assert found["most that a loss is off Gloo's"] <= (0 if ranks == 2 else 1e-6)
        assert found["last loss"] < 0.5 * found["first loss"]


def test_example(processes):
    for r, ended in enumerate(processes(2, "example", EXAMPLE, 5, timeout=200)):
        assert ended.code == 0, ended.out
        assert ended.out.startswith(f"rank {r}: the loss went from "), ended.out
