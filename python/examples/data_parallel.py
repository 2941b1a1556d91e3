"""Data-parallel training: gradients are averaged in buckets while the backward pass computes others.

    build/weft run -n 2 python3 python/examples/data_parallel.py 1000

Every rank trains on numbers of its own. All have the same parameters after each step, to the bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

import weft


class Buckets:
    """Averages gradients over the ranks.

    A bucket is one tensor, of which the gradients of some parameters are parts. The hook of the last of them starts the
    bucket, after those before it: so all ranks start the same calls in the same order. ``start`` takes a bucket and
    returns what :meth:`finish` waits for.
    """

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], start: Callable[[torch.Tensor], Any], elements: int = 4096
    ) -> None:
        self._start, self._buckets, self._works = start, [], []
        bucket: list[torch.nn.Parameter] = []
        for p in reversed(list(parameters)):  # about the order in which gradients are ready
            bucket.append(p)
            if sum(p.numel() for p in bucket) >= elements:
                self._add(bucket)
                bucket = []
        if bucket:
            self._add(bucket)
        self._missing = [len(parts) for _, parts in self._buckets]

    def _add(self, parameters: list[torch.nn.Parameter]) -> None:
        flat = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype, device=parameters[0].device)
        index, at = len(self._buckets), 0
        for p in parameters:
            p.grad = flat[at : at + p.numel()].view_as(p)
            p.register_post_accumulate_grad_hook(lambda _, index=index: self._ready(index))
            at += p.numel()
        self._buckets.append((flat, parameters))

    def _ready(self, index: int) -> None:
        self._missing[index] -= 1
        while len(self._works) < len(self._buckets) and self._missing[len(self._works)] == 0:
            self._works.append(self._start(self._buckets[len(self._works)][0]))

    def zero(self) -> None:
        """Before a backward pass."""
        for flat, _ in self._buckets:
            flat.zero_()

    def finish(self) -> None:
        """After a backward pass: the gradients are averages from here on."""
        for work in self._works:
            work.wait()
        self._works.clear()
        self._missing = [len(parts) for _, parts in self._buckets]


def train(rank: int, steps: int, start: Callable[[torch.Tensor], Any]) -> tuple[list[float], torch.Tensor]:
    """The losses of a rank, and the parameters at the end."""
    torch.manual_seed(0)
    linear, tanh = torch.nn.Linear, torch.nn.Tanh
    model = torch.nn.Sequential(linear(32, 64), tanh(), linear(64, 64), tanh(), linear(64, 4))
    numbers = torch.Generator().manual_seed(1 + rank)
    truth = torch.randn(32, 4, generator=torch.Generator().manual_seed(0)) / 6
    buckets = Buckets(model.parameters(), start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 32, generator=numbers)
        buckets.zero()
        loss = (model(x) - (x @ truth).tanh()).square().mean()
        loss.backward()
        buckets.finish()
        optimizer.step()
        losses.append(loss.item())
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()])


def main(steps: int) -> None:
    with weft.join() as comm, weft.Group(comm) as group:
        losses, parameters = train(
            comm.rank, steps, lambda bucket: group.all_reduce(bucket, "avg", out=bucket, async_op=True)
        )
        everyone = group.all_gather(parameters)
        if not all(torch.equal(theirs, parameters) for theirs in everyone):
            raise SystemExit("ranks have different parameters")
        print(f"rank {comm.rank}: the loss went from {losses[0]:.3f} to {losses[-1]:.3f} in {steps} steps")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
