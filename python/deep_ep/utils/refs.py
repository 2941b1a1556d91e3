"""Exchanges by PyTorch alone, to compare others with: rows by source rank, then token, and sums in DeepEP's order."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from .envs import get_global_seed

Rows = Tensor | tuple[Tensor, Tensor]


def dispatch(
    x: Rows, topk_idx: Tensor, topk_weights: Tensor | None, num_max_tokens_per_rank: int, num_experts: int
) -> tuple[Rows, Tensor, Tensor | None, Tensor, Tensor]:
    """Sends tokens to the ranks of their experts: rows, with scales if ``x`` has some, local experts,
    -1 for those elsewhere, weights, sources, counts.

    Sources are rank * ``num_max_tokens_per_rank`` + token, int32 [rows], counts how many rows each
    rank sent, int32 [ranks] on the host. Collective.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    local = num_experts // ranks
    to = [((topk_idx >= r * local) & (topk_idx < (r + 1) * local)).any(1).nonzero().flatten() for r in range(ranks)]
    sent, chosen = [len(tokens) for tokens in to], torch.cat(to)
    from_each = torch.empty(ranks, dtype=torch.int64, device=topk_idx.device)
    dist.all_to_all_single(from_each, torch.tensor(sent, device=topk_idx.device))
    received = from_each.tolist()

    def move(t: Tensor) -> Tensor:
        rows = t[chosen].contiguous()
        arrived = torch.empty((sum(received), *t.shape[1:]), dtype=t.dtype, device=t.device)
        dist.all_to_all_single(arrived.view(torch.uint8), rows.view(torch.uint8), received, sent)
        return arrived

    rows = tuple(move(t) for t in x) if isinstance(x, tuple) else move(x)
    ids = move(topk_idx) - rank * local
    sources = move(
        torch.arange(len(topk_idx), dtype=torch.int32, device=topk_idx.device)[:, None] + rank * num_max_tokens_per_rank
    ).flatten()
    weights = None if topk_weights is None else move(topk_weights)
    return (
        rows,
        ids.masked_fill((ids < 0) | (ids >= local), -1),
        weights,
        sources,
        torch.tensor(received, dtype=torch.int32),
    )  # type: ignore[return-value]


def generate_pre_combine_data(
    src_token_global_idx: Tensor,
    num_max_tokens_per_rank: int,  # noqa: ARG001 # DeepEP's signature
    num_topk: int,
    hidden: int,
) -> Tensor:
    """The output of each selection's expert for tokens: bfloat16 [tokens, topk, hidden], a function of their
    indices among all ranks' tokens and of the seed alone."""
    device = src_token_global_idx.device
    selections = src_token_global_idx.int()[:, None] * num_topk + torch.arange(
        num_topk, dtype=torch.int32, device=device
    )
    columns = torch.arange(hidden, dtype=torch.int32, device=device) * 40503 + get_global_seed()
    mixed = (selections * 97_531)[:, :, None] + columns  # whole numbers wrap round
    mixed = (mixed ^ (mixed >> 13)) * 1_274_126_177
    return ((mixed >> 12 & 0xFFFF).float() / 32768 - 1).bfloat16()


def ordered_accumulate(data: Tensor, initial_value: Tensor | None = None) -> Tensor:
    """The sum of [tokens, topk, hidden] in the order of selections, after a first value: in fp32, rounded once."""
    total = (
        torch.zeros_like(data[:, 0], dtype=torch.float32) if initial_value is None else initial_value.float().clone()
    )
    for k in range(data.shape[1]):
        total += data[:, k].float()
    return total.to(data.dtype)


def combine(
    y: Tensor,
    topk_idx: Tensor,
    num_scaleout_ranks: int,
    num_scaleup_ranks: int,
    num_experts: int,
    bias: Tensor | tuple[Tensor, Tensor] | None,
    reduce_in_local: bool,
    reduce_in_scaleup: bool,
) -> Tensor:
    """Sums [tokens, topk, hidden] of a rank's own tokens after the biases: first, if asked for, those
    of one rank, then those of one domain, each rounded."""
    local = num_experts // (num_scaleout_ranks * num_scaleup_ranks)
    if reduce_in_local:
        y = _folded(y, topk_idx // local)
    if reduce_in_scaleup:
        y = _folded(y, topk_idx // (local * num_scaleup_ranks))
    first = bias[0].float() + bias[1].float() if isinstance(bias, tuple) else bias
    return ordered_accumulate(y, first)


def _folded(y: Tensor, groups: Tensor) -> Tensor:
    """The sums of each token's selections of one group, in the place of the last of them, and zeros elsewhere."""
    out = torch.zeros_like(y)
    for k in range(y.shape[1]):
        same = groups[:, : k + 1] == groups[:, k, None]
        last = ~(groups[:, k + 1 :] == groups[:, k, None]).any(1)
        out[:, k] = torch.where(last[:, None], ordered_accumulate(torch.where(same[:, :, None], y[:, : k + 1], 0)), 0)
    return out
