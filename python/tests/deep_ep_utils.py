"""What deep_ep.utils computes, against the same in plain loops: on tensors of any device."""

from __future__ import annotations

import functools
import operator
import struct
import time

import pytest
import torch

from deep_ep.utils.gate import get_unbalanced_scores
from deep_ep.utils.math import (
    align,
    calc_diff,
    ceil_div,
    count_bytes,
    create_grouped_scores,
    hash_tensor,
    hash_tensors,
    inplace_unique,
    per_token_cast_back,
    per_token_cast_to_fp8,
    safe_div,
)


def seeded(n):
    return torch.Generator().manual_seed(n)


def numbers():
    assert (ceil_div(7, 2), align(7, 4), align(8, 4)) == (4, 8, 8)
    assert (safe_div(1, 2), safe_div(0, 0)) == (0.5, 0)
    with pytest.raises(ZeroDivisionError):
        safe_div(1, 0)


def differences(device):
    x, y = (torch.randn((4, 256), generator=seeded(i)).to(device) for i in range(2))
    a, b = (t.cpu().double().add(1).flatten().tolist() for t in (x, y))
    want = 1 - 2 * sum(map(operator.mul, a, b)) / sum(u * u + v * v for u, v in zip(a, b, strict=True))
    assert isinstance(calc_diff(x, y), float)
    assert abs(calc_diff(x, y) - want) < 1e-12
    assert abs(calc_diff(x, x)) < 1e-12
    assert calc_diff(x[:0], y[:0]) == 0.0


def casts(device):
    for tokens, hidden in ((4, 512), (3, 192), (5, 100), (1, 128), (0, 256)):
        x = torch.randn((tokens, hidden), generator=seeded(hidden)).bfloat16().to(device)
        x[: tokens // 4] = 0
        rows, scales = per_token_cast_to_fp8(x)
        blocks = ceil_div(hidden, 128)
        assert (rows.shape, rows.dtype, rows.is_contiguous()) == (x.shape, torch.float8_e4m3fn, True)
        assert (scales.shape, scales.dtype) == ((tokens, blocks), torch.float32)
        for b in range(blocks):
            part = x[:, 128 * b : 128 * b + 128].float()
            largest = part.abs().amax(1).clamp(1e-4)
            assert torch.equal(scales[:, b], largest / 448)
            assert torch.equal(
                rows[:, 128 * b : 128 * b + 128].float(),
                (part * (448 / largest)[:, None]).to(torch.float8_e4m3fn).float(),
            )
        want = (rows.float() * scales.repeat_interleave(128, 1)[:, :hidden]).bfloat16()
        columns = scales.t().contiguous().t()
        for same in (scales, columns, scales.reshape(-1), scales.reshape(tokens, blocks, 1), scales.reshape(1, -1)):
            back = per_token_cast_back(rows, same)
            assert (back.dtype, back.is_contiguous()) == (torch.bfloat16, True)
            assert torch.equal(back, want)
        assert not tokens or calc_diff(want, x) < 2e-3
        stacked = per_token_cast_back(torch.stack((rows, rows)), torch.stack((scales, scales)))
        assert torch.equal(stacked, torch.stack((want, want)))
        if blocks % 4 or not tokens:
            continue
        powers = torch.randint(120, 130, (tokens, blocks), generator=seeded(1), dtype=torch.uint8)
        packed = powers.view(torch.int32).to(device)
        want = (rows.float() * torch.exp2(powers.float() - 127).to(device).repeat_interleave(128, 1)).bfloat16()
        for same in (
            packed,
            packed.t().contiguous().t(),
            packed.reshape(-1),
            packed.reshape(tokens, -1, 1),
            torch.stack((packed, packed), -1)[..., 0],
        ):
            assert torch.equal(per_token_cast_back(rows, same), want)
    empty = per_token_cast_back(
        torch.empty((0, 128), dtype=torch.float8_e4m3fn, device=device), torch.empty((3, 1), device=device)
    )
    assert (empty.shape, empty.dtype) == ((0, 128), torch.bfloat16)


def selections(device):
    for columns, slots in ((6, 8), (6, 4), (1, 3), (9, 9)):
        x = torch.randint(-2, slots, (50, columns), generator=seeded(columns)).to(device)
        for dtype in (torch.int64, torch.int32):
            ids = x.to(dtype)
            at = ids.data_ptr()
            inplace_unique(ids, slots)
            assert (ids.dtype, ids.data_ptr()) == (dtype, at)
            for row, got in zip(x.tolist(), ids.tolist(), strict=True):
                want = sorted({i for i in row if i >= 0}, reverse=True)[:slots]
                assert got == want + [-1] * (columns - len(want))
    scores = torch.rand((5, 12), generator=seeded(2)).to(device)
    groups = torch.tensor([[0, 2], [1, 1], [3, 0], [2, 3], [1, 2]], device=device)
    grouped = create_grouped_scores(scores, groups, 4)
    for t, named in enumerate(groups.tolist()):
        assert grouped[t].tolist() == [s if e // 3 in named else 0 for e, s in enumerate(scores[t].tolist())]


def hashes(device):
    def summed(raw):
        return sum(struct.unpack(f"{len(raw) // 4}i", raw))

    x = torch.randn((7, 12), generator=seeded(3))
    short = x.to(torch.float8_e4m3fn)
    for t in (
        x,
        x.bfloat16(),
        short,
        (x * 100).long(),
        x > 0,
        x[:, ::2],
        x[0, :1:2],
        x.t(),
        x[:0],
        torch.tensor(3.5),
        short[0, 1:6],
    ):
        raw = b"".join(bytes(number.clone().view(1).view(torch.uint8).tolist()) for number in t.flatten())
        assert hash_tensor(t.to(device)) == summed(raw + bytes(-len(raw) % 4))
    y, z = (2 * x).to(device), (3 * x).to(device)
    x = x.to(device)
    assert hash_tensors(x, None, (y, [z, None])) == functools.reduce(operator.xor, map(hash_tensor, (x, y, z)))
    assert hash_tensors() == hash_tensors(None) == hash_tensors(x, x) == 0
    assert count_bytes(x, (y, None, [z.bfloat16()]), None) == 7 * 12 * (4 + 4 + 2)


def check(device):
    numbers()
    differences(device)
    casts(device)
    selections(device)
    hashes(device)


def gate(tokens, local, ranks, topk, ratio, precise, calls):
    """Makes scores as often as that: seconds of a call, and how many tokens went to each rank."""
    total, since = 0, time.perf_counter()
    for _ in range(calls):
        scores = get_unbalanced_scores(tokens, local * ranks, ranks, topk, ratio, precise)
        assert (scores.shape, scores.is_cuda) == ((tokens, local * ranks), torch.cuda.is_available())
        goes = scores.topk(topk, sorted=False).indices // local
        total = total + torch.zeros((tokens, ranks), device=scores.device).scatter_(1, goes, 1).sum(0)
    found = total.tolist()
    return (time.perf_counter() - since) / calls, found
