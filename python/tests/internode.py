"""What exchanges between hosts return, on one rank of a communicator and with tensors of any device."""

from __future__ import annotations

import torch

import deep_ep

LOCAL, TOPK, MOST, HIDDEN = 4, 4, 40, 512


def returned(c, device):
    """Everything that exchanges of a buffer return, as tensors of the host: by fresh routings and cached handles, with
    rows beyond those that come, with biases, few tokens at a time too. The buffer closes the communicator."""
    ranks, experts, hosts = c.ranks, LOCAL * c.ranks, c.hosts
    b, found = deep_ep.Buffer.from_communicator(c), {}
    g = torch.Generator().manual_seed(c.rank)
    tokens = MOST - 7 * c.rank
    x, y = (torch.randn(n, HIDDEN, generator=g).bfloat16().to(device) for n in (tokens, MOST * ranks))
    ids = torch.rand((tokens, experts), generator=g).topk(TOPK).indices
    ids[torch.rand(ids.shape, generator=g) < 0.2] = -1
    ids, weights = ids.to(device), torch.rand((tokens, TOPK), generator=g).to(device)
    bias = tuple(torch.randn(x.shape, generator=g).bfloat16().to(device) for _ in range(2))

    def keep(name, t):
        found[name] = t.detach().cpu().contiguous()

    per_rank, per_host, per_expert, in_rank, _ = b.get_dispatch_layout(ids, experts)
    on = torch.stack([in_rank[:, [h == host for h in hosts]].any(1) for host in range(1 + max(hosts))], 1)
    assert torch.equal(per_host, on.sum(0).int())
    config = deep_ep.Config(20, 8, 256, 16, 128)
    layout = {
        "num_tokens_per_rank": per_rank,
        "num_tokens_per_rdma_rank": per_host,
        "is_token_in_rank": in_rank,
        "num_tokens_per_expert": per_expert,
        "topk_idx": ids,
        "topk_weights": weights,
        "config": config,
    }
    for worst, later in ((0, False), (0, True), (MOST * ranks, True)):
        of = f"{worst=}, {later=}"

        def options(later=later):
            return {"async_finish": later} | ({"previous_event": b.capture()} if later else {})

        def wait(event, later=later):
            if later:
                event.current_stream_wait()

        got, got_ids, got_weights, counts, made, event = b.internode_dispatch(
            x, **layout, **options(), num_worst_tokens=worst
        )
        wait(event)
        n = int(made[6][-1])
        assert worst or (len(got), sum(counts)) == (n, int((got_ids >= 0).sum()))
        for name, t in (("rows", got), ("ids", got_ids), ("weights", got_weights), ("meta", made[7])):
            keep(f"{of}, {name}", t[:n])
        for i, t in enumerate(made):
            if i not in (7, 9):  # that is of as many rows as there are
                keep(f"{of}, handle {i}", t)
        for by in (made, tuple(made)):
            again, *nothing, event = b.internode_dispatch(x, by, config=config, **options())
            wait(event)
            assert nothing == [None] * 4
            assert torch.equal(again[:n], got[:n])
            for biases in (None, bias[0], bias):
                home, home_weights, event = b.internode_combine(
                    y[: len(got)], by, got_weights, biases, config, **options()
                )
                wait(event)
                keep(f"{of}, home, biases {0 if biases is None else len(biases)}, by {type(by).__name__}", home)
                assert torch.equal(home_weights, torch.where(ids >= 0, weights, 0))
    for fp8, later in ((False, False), (True, False), (True, True)):
        of = f"few, {fp8=}, {later=}"
        rows, counts, made, _, receive = b.low_latency_dispatch(
            x, ids, MOST, experts, use_fp8=fp8, return_recv_hook=later
        )
        if later:
            receive()
        for e, n in enumerate(counts.tolist()):
            for i, t in enumerate(rows if fp8 else (rows,)):
                keep(f"{of}, rows {i} of {e}", t[e, :n])
        mine = y.repeat(LOCAL, 1).view(LOCAL, MOST * ranks, HIDDEN)
        home, _, receive = b.low_latency_combine(mine, ids, weights, made, return_recv_hook=later)
        if later:
            receive()
        keep(f"{of}, home", home)
    return found
