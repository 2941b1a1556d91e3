"""DeepEP's tests of normal exchanges within a node and between nodes, step by step, and numbers of selections that come
home: on one rank of a buffer, with tensors of any device."""

from __future__ import annotations

import torch

import deep_ep
from deep_ep.utils.math import calc_diff, inplace_unique, per_token_cast_back, per_token_cast_to_fp8

TOKENS, HIDDEN, TOPK, LOCAL = 48, 512, 4, 4


def seeded(*numbers):
    return torch.Generator().manual_seed(sum(n * 1000**i for i, n in enumerate(numbers)))


def selections(rank, ranks):
    return torch.rand((TOKENS, LOCAL * ranks), generator=seeded(rank, 1)).topk(TOPK, sorted=False)[1]


def replay(b, device, hosts=None):
    """What test_intranode does with a buffer, in its order; test_internode where ranks are on these hosts."""
    ranks, rank, experts = b.group_size, b.rank, LOCAL * b.group_size
    everyone = [selections(r, ranks).to(device) for r in range(ranks)]
    ids = everyone[rank]
    full = torch.full((TOKENS, HIDDEN), float(rank), dtype=torch.bfloat16, device=device)
    random = torch.randn((TOKENS, HIDDEN), generator=seeded(rank, 2)).bfloat16().to(device)
    quantised, scales = per_token_cast_to_fp8(full)
    fp8 = quantised, scales.t().contiguous().t()
    weights = torch.full((TOKENS, TOPK), float(rank), device=device)
    random_weights = torch.randn((TOKENS, TOPK), generator=seeded(rank, 3)).to(device)

    # The layout.
    def visits(of):
        goes = of // LOCAL
        inplace_unique(goes, ranks)
        return torch.stack([(goes == r).any(1) for r in range(ranks)], 1)

    in_rank = visits(ids)
    come = sum(int(visits(of)[:, rank].sum()) for of in everyone)
    selected = [sum(int((of == rank * LOCAL + e).sum()) for of in everyone) for e in range(LOCAL)]
    per_rank, per_node, per_expert, is_in_rank, _ = b.get_dispatch_layout(ids, experts)
    if hosts is None:
        assert per_node is None
    else:
        on = torch.stack([in_rank[:, [h == host for h in hosts]].any(1) for host in sorted(set(hosts))], 1)
        assert torch.equal(per_node, on.sum(0).int())
    assert torch.equal(per_rank, in_rank.sum(0).int())
    assert torch.equal(per_expert, torch.stack([(ids == e).sum() for e in range(experts)]).int())
    assert torch.equal(is_in_rank, in_rank)
    layout = {
        "num_tokens_per_rank": per_rank,
        "num_tokens_per_rdma_rank": per_node,
        "is_token_in_rank": is_in_rank,
        "num_tokens_per_expert": per_expert,
    }
    times = in_rank.sum(1, keepdim=True)

    def check_rows(rows, prefix):
        """Each source rank's rows are full of its number."""
        assert torch.equal(rows.amin(1), rows.amax(1))
        begin = 0
        for source in range(ranks):
            end = int(prefix[source])
            assert (rows[begin:end] == source).all()
            begin = end
        assert begin == rows.shape[0]

    config = deep_ep.Config(24, 8, 256)
    for previous in (False, True):
        for later in (False, True):

            def options(previous=previous, later=later):
                return {"config": config, "async_finish": later} | ({"previous_event": b.capture()} if previous else {})

            def wait(event, later=later):
                if later:
                    event.current_stream_wait()

            for x, with_topk in ((x, with_topk) for x in (random, full, fp8) for with_topk in (True, False)):
                of_selections = (
                    {"topk_idx": ids, "topk_weights": random_weights if x is random else weights} if with_topk else {}
                )
                got, got_ids, got_weights, counts, handle, event = b.dispatch(x, **layout, **of_selections, **options())
                wait(event)
                rows = per_token_cast_back(*got) if isinstance(got, tuple) else got
                prefix = handle[0][:, rank] if hosts is None else handle[-4]
                assert (rows.shape[0], counts) == (come, selected)
                if x is not random:
                    check_rows(rows, prefix)
                if with_topk:
                    assert ((got_ids == -1) | ((got_ids >= 0) & (got_ids < LOCAL))).all()
                    assert [int((got_ids == e).sum()) for e in range(LOCAL)] == selected
                    sent = got_weights
                    if x is not random:  # a number for every slot, also those of experts elsewhere
                        sent = torch.where(got_ids == -1, got_weights.amax(1, keepdim=True), got_weights)
                        check_rows(sent, prefix)
                    most, most_ids, most_weights, none, worst_handle, event = b.dispatch(
                        x, **layout, **of_selections, **options(), num_worst_tokens=TOKENS * ranks
                    )
                    wait(event)
                    assert none == []
                    assert (most_ids.shape[0], most_weights.shape[0]) == (TOKENS * ranks,) * 2
                    for worst, exact in zip(
                        most if isinstance(most, tuple) else (most,),
                        got if isinstance(got, tuple) else (got,),
                        strict=True,
                    ):
                        assert worst.shape[0] == TOKENS * ranks
                        assert torch.equal(worst[:come].float(), exact.float())
                    assert torch.equal(most_ids[:come], got_ids)
                    assert torch.equal(most_weights[:come], got_weights)
                    assert (most_ids[come:] == -1).all()
                else:
                    again, *nothing, event = b.dispatch(x, handle=handle, **options())
                    wait(event)
                    assert nothing == [None] * 4
                    rows = per_token_cast_back(*again) if isinstance(again, tuple) else again
                    if x is not random:
                        check_rows(rows, prefix)
                    sent = None
                home, home_weights, event = b.combine(rows, handle, topk_weights=sent, **options())
                wait(event)
                assert calc_diff(home.float() / times, random if x is random else full) < 5e-6
                if with_topk:
                    mean, want = (home_weights, random_weights) if x is random else (home_weights / times, weights)
                    assert calc_diff(mean, want) < 1e-9
                    worst_rows, worst_sent = (
                        torch.cat((t, t.new_full((TOKENS * ranks - come, *t.shape[1:]), float("nan"))))
                        for t in (rows, sent)
                    )
                    home, worst_weights, event = b.combine(
                        worst_rows, worst_handle, topk_weights=worst_sent, **options()
                    )
                    wait(event)
                    assert calc_diff(home.float() / times, random if x is random else full) < 5e-6
                    assert torch.equal(worst_weights, home_weights)

    # Chunks.
    for x in (fp8, full):
        for chunk in (*range(4, 33, 2), 0):
            config = (
                deep_ep.Config(24, chunk or 8, 256)
                if chunk or ranks == 1
                else deep_ep.Buffer.get_dispatch_config(ranks)
            )
            got, *_ = b.dispatch(x, handle=handle, config=config)
            check_rows(per_token_cast_back(*got) if isinstance(got, tuple) else got, prefix)
    rows, _, _, _, handle, _ = b.dispatch(full, **layout, config=deep_ep.Config(24, 8, 256))
    for chunk in range(7):
        config = (
            deep_ep.Config(24, chunk or 8, 256) if chunk or ranks == 1 else deep_ep.Buffer.get_combine_config(ranks)
        )
        home, _, _ = b.combine(rows, handle, config=config)
        assert calc_diff(home.float() / times, full) < 5e-6


def said(sender, source, columns):
    """What a rank sends home of another's tokens."""
    return torch.randn((TOKENS, columns), generator=seeded(sender, source, columns, 4))


def numbers_at_home(b, device, columns, worst, wait=lambda: None):
    """Numbers of selections that ranks send home come as the fp32 sums, in rank order, of all ranks
    that a token went to; rows as they do without them."""
    ranks, rank, experts = b.group_size, b.rank, LOCAL * b.group_size
    ids = selections(rank, ranks)
    ids[torch.rand(ids.shape, generator=seeded(rank, 5)) < 0.3] = -1
    ids[rank] = -1  # a token that goes nowhere
    in_rank = torch.stack([((ids >= 0) & (ids // LOCAL == r)).any(1) for r in range(ranks)], 1)
    want = torch.zeros((TOKENS, columns))
    for r in range(ranks):
        want = torch.where(in_rank[:, r, None], want + said(r, rank, columns), want)
    x = torch.randn((TOKENS, HIDDEN), generator=seeded(rank, 6)).bfloat16().to(device)
    ids, want = ids.to(device), want.to(device)
    per_rank, _, per_expert, is_in_rank, _ = b.get_dispatch_layout(ids, experts)
    layout = {
        "num_tokens_per_rank": per_rank,
        "is_token_in_rank": is_in_rank,
        "num_tokens_per_expert": per_expert,
        "topk_idx": ids,
    }
    rows, *_, handle, _ = b.dispatch(x, **layout, num_worst_tokens=TOKENS * ranks if worst else 0)
    prefix, tokens = (handle[i].cpu() for i in (0, 3))
    wait()
    sent, begin = torch.full((rows.shape[0], columns), float("nan")), 0
    for source in range(ranks):
        end = int(prefix[source, rank])
        sent[begin:end] = said(rank, source, columns)[tokens[begin:end].long()]
        begin = end
    sent = sent.to(device)
    biases = [torch.randn((TOKENS, HIDDEN), generator=seeded(rank, 7 + i)).bfloat16().to(device) for i in range(2)]
    for bias in (None, biases[0], tuple(biases), None):
        alone, none, _ = b.combine(rows, handle, bias=bias)
        for by in (handle, tuple(handle)):
            home, numbers, _ = b.combine(rows, by, topk_weights=sent, bias=bias)
            wait()
            assert none is None
            assert torch.equal(home, alone)
            assert (numbers.dtype, numbers.is_contiguous()) == (torch.float32, True)
            assert torch.equal(numbers, want)
