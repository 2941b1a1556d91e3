"""Scores of experts that send one rank more tokens than the others."""

from __future__ import annotations

import torch
from torch import Tensor

from .math import ceil_div

_STEPS = 16  # of the search for a power: finer than the tokens of a test can show


def get_unbalanced_scores(
    num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float, precise: bool
) -> Tensor:
    """Scores [tokens, experts], positive, whose ``num_topk`` largest are a token's selections: rank 0
    gets ``ratio`` times the tokens of another rank.

    Random scores are so nearly, if selections leave room for it. ``precise`` ones meet that as exactly as
    whole tokens can, and give all other ranks the same number: every token goes to the same number of ranks.
    They are made on the GPU where there is one, and nothing waits for it.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if precise:
        return _precise(num_tokens, num_experts, num_ranks, num_topk, ratio, device)
    scores = torch.rand((num_tokens, num_experts), dtype=torch.float32, device=device)
    if ratio != 1 and num_ranks > 1 and num_tokens:
        scores[:, : num_experts // num_ranks] **= _power(scores, num_ranks, num_topk, ratio)
    return scores


def _power(scores: Tensor, ranks: int, topk: int, ratio: float) -> Tensor:
    """The power of rank 0's scores, less than 1, with which it gets ``ratio`` times the tokens of
    another rank.

    A token's i-th best expert on rank 0 is selected if its score is greater than the best one elsewhere
    but topk - i: with powers below the quotient of their logarithms.
    """
    local = scores.shape[1] // ranks
    few = min(topk, local)
    own = scores[:, :local].topk(few).values.log()
    # 0 for experts that do not exist
    others, experts = torch.nn.functional.pad(scores[:, local:], (0, topk)).topk(topk)
    below = others.log()[:, topk - few :].flip(1) / own
    # How many ranks a token's first so many experts elsewhere are on.
    of, earlier = experts // local, torch.ones((topk, topk), dtype=torch.bool, device=scores.device).tril(-1)
    new = ~((of[:, :, None] == of[:, None, :]) & earlier).any(2)
    visits = torch.nn.functional.pad(new.cumsum(1), (1, 0))
    least, most = torch.zeros((), device=scores.device), torch.ones((), device=scores.device)
    for _ in range(_STEPS):
        power = (least + most) / 2
        selected = (below > power).sum(1, keepdim=True)
        enough = (selected > 0).sum() * (ranks - 1) > ratio * visits.gather(1, topk - selected).sum()
        least, most = torch.where(enough, power, least), torch.where(enough, most, power)
    return most


def _precise(tokens: int, experts: int, ranks: int, topk: int, ratio: float, device: torch.device) -> Tensor:
    local = experts // ranks
    # The number of ranks of a token: as many as uniform selections reach, bounded by the number of experts,
    # and by the share that the other ranks must get.
    reached = round(ranks * (1 - (1 - 1 / ranks) ** topk))
    fewest, most = max(1, ceil_div(topk, local)), min(topk, ranks, int((ranks - 1) / ratio) + 1)
    if fewest > most:
        raise ValueError(
            f"{topk} selections of {experts} experts on {ranks} ranks cannot send rank 0 {ratio} times as many "
            f"tokens: want a smaller ratio"
        )
    each = min(max(reached, fewest), most)
    first = min(tokens, round(ratio * tokens * each / (ranks - 1 + ratio))) if each < ranks else tokens
    # Rank 0's tokens are any; the others take turns.
    to_first = (torch.randperm(tokens, device=device) < first).long()
    others, elsewhere = each - to_first, max(ranks - 1, 1)
    turn = others.cumsum(0) - others + torch.randint(elsewhere, (), device=device)
    goes = (torch.arange(elsewhere, device=device) - turn[:, None]) % elsewhere < others[:, None]
    allowed = torch.cat((to_first[:, None].bool(), goes), 1)[:, :ranks]
    # One expert of each rank that a token goes to comes before all others of those ranks, and these
    # before the rest.
    scores = torch.rand((tokens, ranks, local), dtype=torch.float32, device=device)
    before = torch.ones_like(scores).scatter_(2, scores.argmax(2, keepdim=True), 2)
    return (scores + before * allowed[:, :, None]).view(tokens, experts)
