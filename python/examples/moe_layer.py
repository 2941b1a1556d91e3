"""A mixture-of-experts layer whose experts are spread over the ranks, with gradients.

    build/weft run -n 2 python3 python/examples/moe_layer.py

The program compares the layer with one that has all experts on every rank: outputs and gradients.
"""

from __future__ import annotations

import torch

import weft
import weft.torch


class MoE(torch.nn.Module):
    """Top-k routing to experts that are two linear layers each.

    Every rank has the router, and ``experts / ranks`` of the experts. ``max_tokens`` is the most that any rank passes
    at once; ``live`` is how many forward passes may wait for their backward pass. All ranks make the layer together,
    and call it in the same order.
    """

    def __init__(
        self,
        comm: weft.Communicator,
        *,
        hidden: int,
        inner: int,
        experts: int,
        topk: int,
        max_tokens: int,
        live: int = 2,
        payload: str = "fp32",
    ) -> None:
        super().__init__()
        self.topk = topk
        self.local = slice(experts // comm.ranks * comm.rank, experts // comm.ranks * (comm.rank + 1))
        # All ranks draw all experts and keep theirs: a layer begins the same with any number of ranks.
        self.router = torch.nn.Linear(hidden, experts, bias=False)
        self.up = torch.nn.Parameter((torch.randn(experts, hidden, inner) / hidden**0.5)[self.local].clone())
        self.down = torch.nn.Parameter((torch.randn(experts, inner, hidden) / inner**0.5)[self.local].clone())
        self.exchange = weft.ep.Handle(
            comm, experts=experts, topk=topk, hidden=hidden, max_tokens=max_tokens, live=live, payload=payload
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(self.topk)
        weights = weights / weights.sum(-1, keepdim=True)
        # Received are [experts of this rank, rows, hidden]; rows without a token are zeros, and stay it.
        rows, _, routing = weft.torch.dispatch(self.exchange, x, chosen, weights)
        rows = torch.bmm(torch.nn.functional.silu(torch.bmm(rows, self.up)), self.down)
        return weft.torch.combine(self.exchange, rows, routing, weights)

    def expert_parameters(self) -> list[torch.nn.Parameter]:
        """What no other rank has: no rank averages their gradients."""
        return [self.up, self.down]

    def close(self) -> None:
        """Gives the exchange's memory back."""
        self.exchange.close()


def reference(layer: MoE, up: torch.Tensor, down: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The same layer with all experts here."""
    weights, chosen = layer.router(x).softmax(-1).topk(layer.topk)
    weights = weights / weights.sum(-1, keepdim=True)
    every = torch.einsum("ted,edh->teh", torch.nn.functional.silu(torch.einsum("th,ehd->ted", x, up)), down)
    return (every.gather(1, chosen[..., None].expand(-1, -1, x.shape[-1])) * weights[..., None]).sum(1)


def main() -> None:
    torch.manual_seed(0)
    with weft.join() as comm, weft.Group(comm) as group:
        layer = MoE(comm, hidden=32, inner=64, experts=4 * comm.ranks, topk=2, max_tokens=16)
        x = torch.randn(16 - comm.rank, 32, requires_grad=True)  # ranks may have different numbers of tokens
        y = layer(x)
        y.square().sum().backward()

        # The experts of all ranks, in one place.
        up, down = (group.all_gather(p.detach()).flatten(0, 1).requires_grad_() for p in layer.expert_parameters())
        again = x.detach().requires_grad_()
        want = reference(layer, up, down, again)
        want.square().sum().backward()
        torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(x.grad, again.grad, rtol=1e-4, atol=1e-5)
        # An expert's gradient is that of the tokens of all ranks.
        for p, whole in zip(layer.expert_parameters(), (up, down), strict=True):
            torch.testing.assert_close(p.grad, group.all_reduce(whole.grad)[layer.local], rtol=1e-4, atol=1e-5)
        print(f"rank {comm.rank}: outputs and gradients are those of a layer with all experts on one rank")
        layer.close()


if __name__ == "__main__":
    main()
