"""What DeepEP's and MSCCL++'s names say where ranks are on several hosts: counts, handles, and the raw calls. Here
hosts are said to be several; test_hosts.py has processes of several."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from test_deep_ep import EXPERTS, arrivals, token_batch  # noqa: E402

import deep_ep  # noqa: E402
import mscclpp_ep_cpp  # noqa: E402
import weft  # noqa: E402
from mscclpp.ext import ep  # noqa: E402

CHANNELS = 3


@pytest.fixture
def several(threads):
    """Runs a function of a rank's buffer, on ranks that are said to be on these hosts."""

    def run(hosts, function, kind=deep_ep.Buffer):
        def rank(c):
            c.__dict__["hosts"] = hosts
            return function(kind.from_communicator(c))

        return threads(len(hosts), rank)

    return run


def by_channel(tokens):
    """The channel of each token of a rank."""
    per = max(1, -(-tokens // CHANNELS))
    return [t // per for t in range(tokens)]


def to_hosts(rank, hosts):
    """The hosts that each token of a rank goes to."""
    local = EXPERTS // len(hosts)
    return [{hosts[e // local] for e in row.tolist() if e >= 0} for row in token_batch(rank)[1]]


def to_ranks(rank, ranks):
    return [{e // (EXPERTS // ranks) for e in row.tolist() if e >= 0} for row in token_batch(rank)[1]]


def counted(tokens, places, count):
    """For each place and channel the tokens for it so far, and each token's number among them in its channel."""
    channels = by_channel(len(tokens))
    prefix = torch.zeros((places, CHANNELS), dtype=torch.int32)
    numbers = torch.full((len(tokens), places), -1, dtype=torch.int32)
    for t, to in enumerate(tokens):
        for p in to:
            numbers[t, p] = sum(p in tokens[u] for u in range(t) if channels[u] == channels[t])
            prefix[p, channels[t] :] += 1
    return prefix, numbers


def contents(rank, hosts):
    """What the handle of an exchange has, by its documentation."""
    ranks, come = len(hosts), arrivals(rank, len(hosts))
    of_ranks = torch.tensor([sum(s <= r for s, _ in come) for r in range(ranks)], dtype=torch.int32)
    of_hosts = torch.tensor([sum(hosts[s] <= h for s, _ in come) for h in range(max(hosts) + 1)], dtype=torch.int32)
    arrived = torch.zeros((ranks, CHANNELS), dtype=torch.int32)
    for s, t in come:
        arrived[s, by_channel(len(token_batch(s)[1]))[t]] += 1
    near = hosts[:rank].count(hosts[rank])
    host_prefix, host_numbers = counted(to_hosts(rank, hosts), max(hosts) + 1, CHANNELS)
    summed = torch.stack([arrived[[h == r for r in hosts]].sum(0) for h in range(max(hosts) + 1)])
    return (
        torch.tensor([[r in to for r in range(ranks)] for to in to_ranks(rank, ranks)]),
        host_prefix,
        counted(to_ranks(rank, ranks), ranks, CHANNELS)[0],
        summed.cumsum(1).int(),
        of_hosts,
        (of_ranks - arrived.sum(1))[:, None].int() + (arrived.cumsum(1) - arrived).int(),
        of_ranks,
        torch.tensor([[hosts[s], 1 << near] for s, _ in come], dtype=torch.int32).view(torch.uint8).view(-1, 8),
        host_numbers,
        torch.full((len(come), 8), -1, dtype=torch.int32),
    )


def same(got, want):
    assert got.dtype == want.dtype
    assert torch.equal(got, want), (got, want)


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 0, 2), (0, 0, 0)])
def test_deep_ep(several, hosts):
    def rank(b):
        r, count = b.rank, max(hosts) + 1
        runtime = b.runtime
        assert (runtime.get_num_rdma_ranks(), runtime.get_rdma_rank()) == (count, hosts[r])
        assert runtime.is_internode_available() == (count > 1)
        assert runtime.get_root_rdma_rank(False) == 0
        assert hosts[runtime.get_root_rdma_rank(True)] == 0
        x, ids, weights = token_batch(r)
        for _ in range(2):  # the second may be the compiled part's
            per_rank, per_host, per_expert, in_rank, _ = b.get_dispatch_layout(ids, EXPERTS)
            want = [sum(h in to for to in to_hosts(r, hosts)) for h in range(count)]
            assert (per_host is None) if count == 1 else (per_host.tolist() == want and per_host.dtype == torch.int32)
            layout = {
                "num_tokens_per_rank": per_rank,
                "num_tokens_per_rdma_rank": per_host,
                "is_token_in_rank": in_rank,
                "num_tokens_per_expert": per_expert,
                "config": deep_ep.Config(2 * CHANNELS, 8, 256),
            }
            options = {"topk_idx": ids, "topk_weights": weights}
            got, got_ids, got_weights, counts, handle, _ = b.internode_dispatch(x, **layout, **options)
            plain = b.dispatch(x, **layout, **options)
            same(got, plain[0])
            same(got_ids, plain[1])
            same(got_weights, plain[2])
            assert counts == plain[3]
            assert (len(handle), len(plain[4])) == (10, 6 if count == 1 else 10)
            for member, expected in zip(handle, contents(r, hosts), strict=True):
                same(member, expected)
            home, home_weights, _ = b.internode_combine(got, handle, topk_weights=got_weights)
            same(home, b.combine(got, plain[4])[0])
            torch.testing.assert_close(home_weights, torch.where(ids >= 0, weights, 0.0))
            # By the handle, by its contents, and by those after the handle itself has gone.
            for by in (handle, tuple(handle), list(copy.copy(handle))):
                same(b.internode_dispatch(2 * x, by)[0], 2 * got)
                same(b.dispatch(2 * x, handle=by)[0], 2 * got)
                same(b.combine(got, by)[0], home)
            with pytest.raises(AssertionError, match="not copies"):
                b.internode_combine(got, tuple(t.clone() for t in handle))
        return home

    for r, home in enumerate(several(hosts, rank)):
        x, there = token_batch(r)[0], torch.tensor([len(to) for to in to_ranks(r, len(hosts))])
        torch.testing.assert_close(home.float(), x.float() * there[:, None], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1), (0, 0)])
def test_mscclpp(several, hosts):
    def rank(b):
        r, count = b.rank, max(hosts) + 1
        assert (b.get_num_rdma_ranks(), b.get_rdma_rank(), b.is_internode_available()) == (count, hosts[r], count > 1)
        assert hosts[b.get_root_rdma_rank(True)] == b.get_root_rdma_rank(False) == 0
        x, ids, weights = token_batch(r)
        per_rank, per_host, per_expert, in_rank, _ = b.get_dispatch_layout(ids, EXPERTS)
        counts, end = (per_rank, per_host, in_rank, per_expert), (ep.Config(2 * CHANNELS, 8, 256), None, False, False)
        got = b.internode_dispatch(x, None, ids, weights, *counts, 0, 0, None, None, None, None, 1, *end)
        assert len(got) == 15
        for member, expected in zip(got[5:14], contents(r, hosts)[1:], strict=True):
            same(member, expected)
        plain = b.intranode_dispatch(x, None, ids, weights, per_rank, in_rank, per_expert, 0, None, None, 1, *end)
        for i in range(4):
            assert got[i] is plain[i] or torch.equal(got[i], plain[i])
        assert got[4] == plain[4]
        n, cached = got[0].shape[0], (got[5], got[8], got[6], got[10])
        again = b.internode_dispatch(2 * x, None, None, None, None, None, in_rank, None, n, n, *cached, 1, *end)
        same(again[0], 2 * got[0])
        assert [again[i] is None for i in range(5, 14)] == [False, False, True, False, True, False, True, True, True]
        handle = got[11], in_rank, got[7], got[8], got[9], got[12], got[13]
        home, home_weights, _ = b.internode_combine(got[0], got[3], *handle, *end)
        torch.testing.assert_close(home_weights, torch.where(ids >= 0, weights, 0.0))
        same(home, b.intranode_combine(plain[0], plain[3], plain[8], plain[5], plain[7], plain[9], *end)[0])
        for changed, words in (
            ((got[11][1:], *handle[1:]), "want the"),
            ((*handle[:3], got[8].clone(), *handle[4:]), "rdma_rank_prefix_sum was not returned by"),
            ((*handle[:2], got[7][:, :1].contiguous(), *handle[3:]), "is not of the dispatch"),
            ((*handle[:5], got[12].long(), got[13]), "combined_rdma_head: type"),
        ):
            with pytest.raises(mscclpp_ep_cpp.ContractError, match=words):
                b.internode_combine(got[0], got[3], *changed, *end)
        with pytest.raises(mscclpp_ep_cpp.ContractError, match="cached matrices"):
            b.internode_dispatch(x, None, None, None, None, None, in_rank, None, n + 1, n, *cached, 1, *end)
        if count > 1:
            wrong = per_rank, None, in_rank, per_expert
            with pytest.raises(mscclpp_ep_cpp.ContractError, match="num_tokens_per_rdma_rank"):
                b.internode_dispatch(x, None, ids, weights, *wrong, 0, 0, None, None, None, None, 1, *end)

    several(hosts, rank, ep.Buffer)


@pytest.mark.parametrize(("hosts", "value", "lines"), [((0, 1), "1", 1), ((0, 1), "0", 0), ((0, 0), "1", 0)])
def test_no_card_is_driven(several, caplog, monkeypatch, hosts, value, lines):
    monkeypatch.setenv("MSCCLPP_EP_USE_IBGDA", value)
    several(hosts, lambda _: None, ep.Buffer)
    said = [record.getMessage() for record in caplog.records if record.name == "mscclpp"]
    assert len(said) == lines
    assert all("the host moves the bytes" in line for line in said)


def test_elastic(several):
    def rank(b):
        assert (b.num_rdma_ranks, b.num_nvlink_ranks) == b.get_physical_domain_size() == (2, 3)
        assert b.get_logical_domain_size() == (1, 3)

    several((0, 1, 1), rank, deep_ep.ElasticBuffer)


def test_hosts(comm):
    assert comm.hosts == (0,)
    comm.close()
    assert comm.hosts == (0,)
    with weft.join() as c:
        c.close()
        with pytest.raises(weft.ClosedError):
            _ = c.hosts


def test_a_layout_copies_nothing_of_python(several):
    """Which a capture on a GPU would refuse."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, arguments=(), options=None):
            self.names.append(str(operator))
            return operator(*arguments, **(options or {}))

    def rank(b):
        ids = token_batch(b.rank)[1]
        b.get_dispatch_layout(ids, EXPERTS)
        with Operators() as seen:
            seen.names = []
            b.get_dispatch_layout(ids, EXPERTS)
        assert seen.names
        assert "aten.lift_fresh.default" not in seen.names, seen.names

    several((0, 0, 1), rank)
