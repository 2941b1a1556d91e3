"""Trains a model with a mixture-of-experts layer: expert parallelism, and data parallelism for all else.

    build/weft run -n 2 python3 python/examples/train_moe.py 50

Each rank has its part of one batch. The losses are the same with 1, 2 and 4 ranks, but for rounding.
"""

from __future__ import annotations

import sys

import torch
from moe_layer import MoE

import weft

BATCH, WIDTH, EXPERTS = 64, 32, 8


def train(comm: weft.Communicator, group: weft.Group, steps: int) -> list[float]:
    """The losses of the whole batch, one a step."""
    torch.manual_seed(0)  # all ranks begin with the same parameters
    moe = MoE(comm, hidden=WIDTH, inner=64, experts=EXPERTS, topk=2, max_tokens=BATCH // comm.ranks)
    first, last = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
    experts = moe.expert_parameters()
    shared = [p for m in (first, moe.router, last) for p in m.parameters()]
    optimizer = torch.optim.AdamW([*shared, *experts], lr=3e-3)
    truth = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
    losses = []
    for _ in range(steps):
        batch = torch.randn(BATCH, WIDTH)  # the same on all ranks, which take a part each
        x = batch.chunk(comm.ranks)[comm.rank]
        hidden = first(x)
        y = last(hidden + moe(hidden))
        # Of the sum over all ranks the gradients are sums, too: those of experts are whole after the backward pass,
        # because tokens of all ranks have come to them; those of all else are summed here.
        loss = (y - (x @ truth).tanh()).square().sum() / (BATCH * WIDTH)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        works = [group.all_reduce(p.grad, out=p.grad, async_op=True) for p in shared]
        for work in works:
            work.wait()
        optimizer.step()
        losses.append(float(group.all_reduce(loss.detach().reshape(1))))
    mine = torch.cat([p.detach().flatten() for p in shared])
    if not all(torch.equal(theirs, mine) for theirs in group.all_gather(mine)):
        raise SystemExit("ranks have different shared parameters")
    moe.close()
    return losses


def main(steps: int) -> None:
    with weft.join() as comm, weft.Group(comm) as group:
        losses = train(comm, group, steps)
        if comm.rank == 0:
            print(f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f} in {steps} steps on {comm.ranks} ranks")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
