"""MSCCL++'s own tests of its buffer, step by step, on one rank, with tensors of any device."""

from __future__ import annotations

import torch

import mscclpp.ext.ep as ep


def low_latency(b, tokens, hidden, topk, per_rank, device="cpu"):
    """Rows that say whose they are, identity experts, sums against x * sum of weights, with the original's absolute
    bound."""
    ranks = b.group_size
    experts = ranks * per_rank

    def batch(r):
        g = torch.Generator().manual_seed(0xB3C4 + r)
        x = torch.full((tokens, hidden), float(r - 128), dtype=torch.bfloat16)
        x[:, -128:] = torch.arange(tokens).bfloat16()[:, None]
        ids = (torch.randn((tokens, experts), generator=g).abs() + 1).topk(topk).indices
        weights = torch.randn((tokens, topk), generator=g).abs()
        for _ in range(min(10, tokens)):
            ids[torch.randint(tokens, (1,), generator=g), torch.randint(topk, (1,), generator=g)] = -1
        return x.to(device), ids.to(device), weights.to(device)

    x, ids, weights = batch(b.rank)
    rows, scales, counts, sources, ranges, event, hook = b.low_latency_dispatch(
        x, ids, tokens, experts, False, False, True
    )
    hook()
    assert (scales, event) == (None, None)
    everyone = torch.cat([batch(r)[1].flatten() for r in range(ranks)])
    for e in range(per_rank):
        n = int(counts[e])
        assert n == (everyone == b.rank * per_rank + e).sum()
        assert n == (ranges[e] & 0xFFFFFFFF).sum()
        assert torch.equal(rows[e, :n, :-128].amin(1), rows[e, :n, :-128].amax(1))
        assert torch.equal(rows[e, :n, -1], sources[e, :n].bfloat16())
    out = torch.empty_like(x)
    home, _, _ = b.low_latency_combine(
        rows.clone(), ids, weights, sources, ranges, tokens, experts, False, False, False, out
    )
    want = (x.float() * weights.masked_fill(ids == -1, 0).sum(1, keepdim=True)).bfloat16()
    assert (home.float() - want.float()).abs().max() < 1e-2
    # As its benchmark does: dispatches into the same tensors, then combines of the last.
    given = (
        torch.empty_like(rows),
        None,
        torch.empty_like(sources),
        torch.empty_like(ranges),
        torch.empty_like(counts),
    )
    for _ in range(5):
        last = b.low_latency_dispatch(x, ids, tokens, experts, False, False, False, *given)
    for _ in range(5):
        b.low_latency_combine(
            last[0], ids, weights, last[3], last[4], tokens, experts, False, False, False, out.fill_(9)
        )
        assert torch.equal(out, home)


def internode(b, hosts, device="cpu"):
    """Rows full of their source's number, between hosts and back."""
    rank, tokens, experts, topk = b.rank, 31, 4 * b.group_size, 3
    ids = torch.randn((tokens, experts), generator=torch.Generator().manual_seed(rank)).topk(topk).indices.to(device)
    x = torch.full((tokens, 512), float(rank), dtype=torch.bfloat16, device=device)
    weights = torch.ones((tokens, topk), device=device)
    per_rank, per_host, per_expert, in_rank, _ = b.get_dispatch_layout(ids, experts, None, False, False)
    end = ep.Config(20, 8, 256, 16, 128), None, False, False
    on = torch.stack([in_rank[:, [h == host for h in hosts]].any(1) for host in sorted(set(hosts))], 1)
    assert torch.equal(per_host, on.sum(0).int())
    for _ in range(3):
        got = b.runtime.internode_dispatch(
            x, None, ids, weights, per_rank, per_host, in_rank, per_expert, 0, 0, None, None, None, None, 1, *end
        )
        rows, _, _, row_weights, _, _, _, starts, sums, gbl_starts, ends, meta, rdma_head, nvl_head, _ = got
        begin = 0
        for source, last in enumerate(ends.tolist()):
            assert (rows[begin:last] == source).all()
            assert (meta.view(torch.int32)[begin:last, 0] == hosts[source]).all()
            begin = last
        assert begin == rows.shape[0]
        home, home_weights, _ = b.runtime.internode_combine(
            rows, row_weights, meta, in_rank, starts, sums, gbl_starts, rdma_head, nvl_head, *end
        )
        torch.testing.assert_close(home.float(), x.float() * in_rank.sum(1, keepdim=True), rtol=1e-2, atol=1e-2)
        assert torch.equal(home_weights, weights)
        n = rows.shape[0]
        cached = got[5], sums, got[6], ends
        again = b.runtime.internode_dispatch(
            x + 1, None, None, None, None, None, in_rank, None, n, n, *cached, 1, *end
        )[0]
        assert torch.equal(again, rows + 1)
