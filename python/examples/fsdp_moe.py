"""FSDP for all but the experts, expert parallelism for these. A sketch, on CPU tensors and Gloo.

    PYTHONPATH=python torchrun --standalone --nproc-per-node 2 python/examples/fsdp_moe.py

torch.distributed shards, gathers and reduces the shared parameters; Weft moves the tokens. Both have the same ranks.
On GPUs pass ``engine="gpu"`` to ``from_process_group`` and move the modules there: that has not been run.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from moe_layer import MoE
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import weft


class Block(torch.nn.Module):
    """A residual layer around a mixture of experts."""

    def __init__(self, comm: weft.Communicator, width: int, tokens: int) -> None:
        super().__init__()
        self.norm, self.mix = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)
        self.moe = MoE(comm, hidden=width, inner=2 * width, experts=2 * comm.ranks, topk=2, max_tokens=tokens)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mix(self.norm(x))
        return x + self.moe(x)


def main(steps: int) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    with weft.Communicator.from_process_group() as comm:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(Block(comm, width=32, tokens=16) for _ in range(2)))
        experts = [p for block in model for p in block.moe.expert_parameters()]
        for block in model:
            fully_shard(block, mesh=mesh, ignored_params=set(experts))
        fully_shard(model, mesh=mesh, ignored_params=set(experts))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
        numbers = torch.Generator().manual_seed(1 + rank)
        losses = []
        for _ in range(steps):
            x = torch.randn(16, 32, generator=numbers)
            loss = (model(x) - x.roll(1, -1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for p in experts:  # FSDP averages over the ranks; the tokens of all ranks have been summed here
                p.grad /= ranks
            optimizer.step()
            losses.append(loss.item())
        print(f"rank {rank}: the loss went from {losses[0]:.3f} to {losses[-1]:.3f} in {steps} steps")
        for block in model:
            block.moe.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
