"""Inference with CUDA graphs: a mixture-of-experts layer is captured once, and replayed for every batch.

    build/weft run -n 2 python3 python/examples/moe_graph.py

It needs a GPU for each rank, or one that all share. This program itself has not been run on one; the captures and
replays that it is made of have (docs/benchmarks/gpu-tests.md, part "python").
"""

from __future__ import annotations

import os

import torch

import weft


class Layer:
    """A layer for up to ``tokens`` tokens a rank, whose steps are one graph."""

    def __init__(self, comm: weft.Communicator, *, hidden: int, experts: int, topk: int, tokens: int) -> None:
        gpu = torch.cuda.current_device()
        self.exchange = weft.ep.Handle(
            comm, experts=experts, topk=topk, hidden=hidden, max_tokens=tokens, payload="bf16", counts="device"
        )
        self.router = torch.randn(hidden, experts, device=gpu, dtype=torch.bfloat16) / hidden**0.5
        local = experts // comm.ranks
        self.experts = torch.randn(local, hidden, hidden, device=gpu, dtype=torch.bfloat16) / hidden**0.5
        # A graph reads its inputs from, and writes its results to, the same memory each time.
        self.x = torch.zeros(tokens, hidden, device=gpu, dtype=torch.bfloat16)
        self.out = torch.empty_like(self.x)
        self.topk = topk
        self.graph = self._capture()

    def _step(self) -> weft.ep.Received:
        weights, chosen = (self.x @ self.router).float().softmax(-1).topk(self.topk)
        received = self.exchange.dispatch(self.x, chosen, weights)
        rows = torch.bmm(received.rows, self.experts)  # in every slot: a graph cannot ask how many have come
        self.exchange.combine(rows, received, out=self.out)
        return received

    def _capture(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # one step before, which also makes the memory that describes rows
            self._step().release()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.received = self._step()  # kept as long as the graph is replayed
        return graph

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's results for a batch of as many tokens as the graph has; the next call overwrites them."""
        self.x.copy_(x)
        self.graph.replay()
        return self.out

    def close(self) -> None:
        """Gives graph and memory back, in this order."""
        torch.cuda.synchronize()
        del self.graph
        self.received.release()
        self.exchange.close()


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("moe_graph needs a GPU; moe_layer.py runs without one")
    rank = int(os.environ.get("LOCAL_RANK", os.environ.get("WEFT_LOCAL_RANK", "0")))
    torch.cuda.set_device(rank % torch.cuda.device_count())
    with weft.join(engine="gpu", gpu=torch.cuda.current_device()) as comm:
        layer = Layer(comm, hidden=1024, experts=8 * comm.ranks, topk=2, tokens=32)
        for batch in range(3):
            x = torch.randn(32, 1024, device="cuda", dtype=torch.bfloat16)
            y = layer(x)
            comm.wait()  # errors of the GPU's work come here
            if not y.isfinite().all():
                raise SystemExit(f"rank {comm.rank}: batch {batch} has results that are not finite")
        print(f"rank {comm.rank}: 3 batches by one graph")
        layer.close()


if __name__ == "__main__":
    main()
