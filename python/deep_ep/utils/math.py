"""What tests of exchanges compute."""

from __future__ import annotations

import hashlib

import torch


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """How far two tensors are from the same direction: 1 less their cosine, of numbers moved by 1, in double precision."""
    a, b = x.double() + 1, y.double() + 1
    return float(1 - 2 * (a * b).sum() / (a * a + b * b).sum())


def safe_div(a: float, b: float) -> float:
    return a / b if b else 0.0


def ceil_div(x: int, y: int) -> int:
    return -(-x // y)


def align(x: int, y: int) -> int:
    return ceil_div(x, y) * y


def per_token_cast_to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises rows, 128 numbers by one scale: float8_e4m3 [tokens, hidden], float32 [tokens, hidden / 128, rounded up]."""
    tokens, hidden = x.shape
    scales = -(-hidden // 128)  # the last one is of what is left
    blocks = torch.nn.functional.pad(x.float(), (0, scales * 128 - hidden)).view(tokens, scales, 128)
    largest = blocks.abs().amax(2).clamp(1e-4)
    rows = (blocks * (448 / largest).unsqueeze(2)).to(torch.float8_e4m3fn).view(tokens, scales * 128)
    return rows[:, :hidden].contiguous(), largest / 448


def per_token_cast_back(x_fp8: torch.Tensor, x_scales: torch.Tensor) -> torch.Tensor:
    """The rows that were quantised, nearly: bfloat16 [tokens, hidden]. Scales that are int32 hold four powers of two each."""
    if x_fp8.numel() == 0:
        return x_fp8.to(torch.bfloat16)
    if x_scales.dtype == torch.int32:
        x_scales = (x_scales.clone(memory_format=torch.contiguous_format).view(torch.uint8).int() << 23).view(torch.float32)
    hidden = x_fp8.shape[-1]
    blocks = torch.nn.functional.pad(x_fp8.float(), (0, -hidden % 128)).unflatten(-1, (-1, 128))
    return (blocks * x_scales.unsqueeze(-1)).flatten(-2)[..., :hidden].to(torch.bfloat16)


def inplace_unique(x: torch.Tensor, num_slots: int) -> None:
    """Leaves in every row each number from 0 to num_slots - 1 once, those that were there more often first, and -1 in the rest."""
    counts = torch.zeros((x.shape[0], num_slots + 1), dtype=torch.int64, device=x.device)
    counts.scatter_add_(1, torch.where(x < 0, num_slots, x).long(), torch.ones_like(x, dtype=torch.int64))
    often, which = counts[:, :num_slots].sort(dim=1, descending=True, stable=True)
    found = torch.where(often > 0, which, -1).to(x.dtype)
    n = min(num_slots, x.shape[1])
    x.fill_(-1)
    x[:, :n] = found[:, :n]


def create_grouped_scores(scores: torch.Tensor, group_idx: torch.Tensor, num_groups: int) -> torch.Tensor:
    """Scores [tokens, experts] with zeros for experts outside the groups that a token has."""
    tokens, experts = scores.shape
    mask = torch.zeros((tokens, num_groups), dtype=torch.bool, device=scores.device).scatter_(1, group_idx, True)
    return torch.where(mask.repeat_interleave(experts // num_groups, dim=1), scores, 0)


def hash_tensor(t: torch.Tensor) -> int:
    """A number of a tensor's bytes."""
    return int.from_bytes(hashlib.blake2b(t.contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes(), digest_size=7).digest(), "little")


def hash_tensors(*tensors: torch.Tensor) -> int:
    return sum(hash_tensor(t) for t in tensors)


def count_bytes(*tensors: torch.Tensor | tuple[torch.Tensor, ...] | None) -> int:
    """The bytes of tensors, and of tuples of them."""
    return sum(count_bytes(*t) if isinstance(t, (tuple, list)) else 0 if t is None else t.numel() * t.element_size() for t in tensors)
