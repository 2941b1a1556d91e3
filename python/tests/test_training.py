"""Training with asynchronous calls: the losses of a rank-order reference to the bit, and those of Gloo nearly."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest
from conftest import EVERYTHING, SOURCE

if importlib.util.find_spec("torch") is None:
    pytest.skip("no PyTorch", allow_module_level=True)

EXAMPLES = SOURCE / "examples"


@pytest.mark.parametrize("ranks", [2, 3] if EVERYTHING else [3])
def test_losses(torch_processes, ranks):
    steps = 1000 if EVERYTHING else 50
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


def test_examples(processes):
    """In one process a rank: each would import PyTorch anew."""
    programs = "data_parallel.py 5", "moe_layer.py", "train_moe.py 20"
    for r, ended in enumerate(processes(2, "examples", EXAMPLES, *programs, torch=True, timeout=200)):
        assert ended.code == 0, ended.out
        averages, layer, *training = ended.out.splitlines()[:-1]
        assert averages.startswith(f"rank {r}: the loss went from "), ended.out
        assert layer == f"rank {r}: outputs and gradients are those of a layer with all experts on one rank"
        assert [t[:19] for t in training] == ["the loss went from "] * (r == 0), ended.out


def test_the_number_of_ranks_changes_no_loss(processes):
    """Of a batch that ranks share, with experts that they share."""
    if not EVERYTHING:
        pytest.skip("WEFT_TEST_ALL=1")
    losses = {
        processes(n, "examples", EXAMPLES, "train_moe.py 50", torch=True, timeout=200)[0].out.split(" on ")[0]
        for n in (1, 2, 4)
    }
    assert len(losses) == 1, losses


@pytest.mark.skipif(not EVERYTHING, reason="WEFT_TEST_ALL=1")
def test_fsdp_beside_experts(torch_program):
    run = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", EXAMPLES / "fsdp_moe.py", "10"
    ended = torch_program(*run, timeout=200, OMP_NUM_THREADS="1")
    assert ended.code == 0, ended.out
    losses = re.findall(r"the loss went from ([\d.]+) to ([\d.]+) in 10 steps", ended.out)
    assert len(losses) == 2, ended.out
    assert all(float(last) < float(first) for first, last in losses)
