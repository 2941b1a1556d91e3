"""Scores of experts that send one rank more tokens than the others."""

from __future__ import annotations

import torch
from torch import Tensor

from .math import ceil_div

_STEPS = 16  # of the search for a factor: more than the tokens of a test tell apart


def get_unbalanced_scores(num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float, precise: bool) -> Tensor:
    """Scores [tokens, experts], positive, whose ``num_topk`` largest are a token's selections: rank 0 gets ``ratio`` times the tokens of another rank.

    Random scores are so nearly, if selections leave room for it. ``precise`` ones are so as exactly as whole tokens can be, and give all other ranks as many:
    every token goes to the same number of ranks.
    """
    if precise:
        return _precise(num_tokens, num_experts, num_ranks, num_topk, ratio)
    scores = torch.rand((num_tokens, num_experts), dtype=torch.float32)
    if ratio == 1 or num_ranks == 1 or num_tokens == 0:
        return scores
    local, least, most = num_experts // num_ranks, 0.0, 1.0
    favoured = scores.clone()
    for _ in range(_STEPS):  # the power of rank 0's scores: the lower it is, the more of them are among the largest
        power = (least + most) / 2
        favoured[:, :local] = scores[:, :local] ** power
        counts = _tokens_of_ranks(favoured, num_topk, local)
        least, most = (power, most) if counts[0] > ratio * counts[1:].float().mean() else (least, power)
    return favoured


def _tokens_of_ranks(scores: Tensor, topk: int, local: int) -> Tensor:
    """How many tokens go to each rank."""
    ranks = scores.shape[1] // local
    chosen = scores.topk(topk, sorted=False).indices // local
    return torch.zeros((len(scores), ranks), dtype=torch.int64, device=scores.device).scatter_(1, chosen, 1).sum(0)


def _precise(tokens: int, experts: int, ranks: int, topk: int, ratio: float) -> Tensor:
    local = experts // ranks
    # So many ranks a token: as many as selections that favour nobody reach, within what there are experts for, and what leaves the others their share.
    reached = round(ranks * (1 - (1 - 1 / ranks) ** topk))
    fewest, most = max(1, ceil_div(topk, local)), min(topk, ranks, int((ranks - 1) / ratio) + 1)
    if fewest > most:
        raise ValueError(f"{topk} selections of {experts} experts on {ranks} ranks cannot send rank 0 {ratio} times as many tokens: want a smaller ratio")
    each = min(max(reached, fewest), most)
    first = min(tokens, round(ratio * tokens * each / (ranks - 1 + ratio))) if each < ranks else tokens
    # Rank 0's tokens are any; the others take turns.
    to_first = torch.zeros(tokens, dtype=torch.int64)
    to_first[torch.randperm(tokens)[:first]] = 1
    others = each - to_first
    turn = others.cumsum(0) - others + int(torch.randint(max(ranks - 1, 1), ()))
    places = torch.arange(max(ranks - 1, 1))
    goes = (places - turn[:, None]) % max(ranks - 1, 1) < others[:, None]
    allowed = torch.cat((to_first[:, None].bool(), goes), 1)[:, :ranks]
    # One expert of each rank that a token goes to comes before all others of those ranks, and these before the rest.
    scores = torch.rand((tokens, ranks, local), dtype=torch.float32)
    before = torch.zeros_like(scores).scatter_(2, scores.argmax(2, keepdim=True), 1) + 1
    return (scores + before * allowed[:, :, None]).view(tokens, experts)
