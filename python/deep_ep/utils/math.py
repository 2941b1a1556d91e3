"""Computations of exchange tests."""

from __future__ import annotations

import torch
from torch import Tensor


def calc_diff(x: Tensor, y: Tensor) -> float:
    """How far two tensors are from the same direction: 1 less their cosine, of numbers moved by 1, in
    double precision; 0 for two that are empty."""
    if not x.numel() and not y.numel():
        return 0.0
    a, b = x.double() + 1, y.double() + 1
    return float(1 - 2 * (a * b).sum() / (a * a + b * b).sum())


def safe_div(a: float, b: float) -> float:
    """The quotient, where 0 / 0 is 0."""
    return 0 if a == b == 0 else a / b


def ceil_div(x: int, y: int) -> int:
    return -(-x // y)


def align(x: int, y: int) -> int:
    return ceil_div(x, y) * y


def per_token_cast_to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantises rows, 128 numbers by one scale: float8_e4m3 [tokens, hidden], float32 [tokens, hidden /
    128, rounded up]."""
    tokens, hidden = x.shape
    scales = -(-hidden // 128)  # the last one is the remainder
    blocks = torch.nn.functional.pad(x.float(), (0, scales * 128 - hidden)).view(tokens, scales, 128)
    largest = blocks.abs().amax(2).clamp(1e-4)
    rows = (blocks * (448 / largest).unsqueeze(2)).to(torch.float8_e4m3fn).view(tokens, scales * 128)
    return rows[:, :hidden].contiguous(), largest / 448


def per_token_cast_back(x_fp8: Tensor, x_scales: Tensor) -> Tensor:
    """The rows that were quantised, nearly: bfloat16, of the shape of ``x_fp8``.

    Scales, in any shape, are those of one row after the other. Those that are int32 hold four powers of two each.
    """
    if x_fp8.numel() == 0:
        return x_fp8.to(torch.bfloat16)
    if x_scales.dtype == torch.int32:
        x_scales = (_raw(x_scales).int() << 23).view(torch.float32)
    hidden = x_fp8.shape[-1]
    rows = x_fp8.reshape(-1, hidden)
    blocks = torch.nn.functional.pad(rows.float(), (0, -hidden % 128)).view(len(rows), -1, 128)
    out = (blocks * x_scales.reshape(len(rows), -1, 1)).view(len(rows), -1)[:, :hidden].to(torch.bfloat16)
    return out.contiguous().view(x_fp8.shape)


def inplace_unique(x: Tensor, num_slots: int) -> None:
    """Leaves in every row each number once that is not negative, the largest first, in the first
    ``num_slots`` columns, and -1 in the rest."""
    found = x.sort(dim=1, descending=True).values
    found[:, 1:].masked_fill_(found[:, 1:] == found[:, :-1].clone(), -1)
    found = found.clamp_(min=-1).sort(dim=1, descending=True).values
    found[:, num_slots:] = -1
    x.copy_(found)


def create_grouped_scores(scores: Tensor, group_idx: Tensor, num_groups: int) -> Tensor:
    """Scores [tokens, experts] with zeros for experts outside the groups that a token has."""
    tokens, experts = scores.shape
    mask = torch.zeros((tokens, num_groups), dtype=torch.bool, device=scores.device).scatter_(1, group_idx, True)
    return torch.where(mask.repeat_interleave(experts // num_groups, dim=1), scores, 0)


def _raw(t: Tensor) -> Tensor:
    """The bytes of a tensor, row by row."""
    row = t.reshape(-1)
    return (row if row.stride(0) == 1 else row.clone(memory_format=torch.contiguous_format)).view(torch.uint8)


def hash_tensor(t: Tensor) -> int:
    """The sum of a tensor's memory as int32, filled up with zeros."""
    raw = _raw(t)
    return int(torch.nn.functional.pad(raw, (0, -len(raw) % 4)).view(torch.int32).sum())


def hash_tensors(*tensors: Tensor | tuple[Tensor, ...] | list[Tensor] | None) -> int:
    """The exclusive or of the hashes of tensors, and of tuples and lists of them."""
    value = 0
    for t in tensors:
        if t is not None:
            value ^= hash_tensors(*t) if isinstance(t, (tuple, list)) else hash_tensor(t)
    return value


def count_bytes(*tensors: Tensor | tuple[Tensor, ...] | list[Tensor] | None) -> int:
    """The bytes of tensors, and of tuples and lists of them."""
    return sum(
        count_bytes(*t) if isinstance(t, (tuple, list)) else 0 if t is None else t.numel() * t.element_size()
        for t in tensors
    )
