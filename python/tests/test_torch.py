"""PyTorch: tensors of the host's, gradients, torch.compile, process groups, DataLoader."""

from __future__ import annotations

import re
import warnings

import pytest
from conftest import HERE

torch = pytest.importorskip("torch")

import weft  # noqa: E402
import weft.torch  # noqa: E402
from weft import ep  # noqa: E402


def routed(rank, *, tokens=6, experts=4, topk=2, hidden=16, dtype=torch.float32):
    g = torch.Generator().manual_seed(rank)
    x = torch.randint(-4, 5, (tokens, hidden), generator=g).to(dtype)
    ids = torch.stack([torch.randperm(experts, generator=g)[:topk] for _ in range(tokens)])
    ids[0, 1] = -1
    return x, ids, torch.randint(1, 5, (tokens, topk), generator=g) / 2.0


def handle(c, **choices):
    return ep.Handle(c, **{"experts": 4, "topk": 2, "hidden": 16, "max_tokens": 6, "payload": "fp32", **choices})


def scale(rows, c):
    """The experts: the e-th of all multiplies by e + 1."""
    local = rows.shape[0]
    return rows * (torch.arange(local, dtype=rows.dtype) + c.rank * local + 1).view(local, 1, 1)


def reference(x, ids, weights):
    """What comes home of such experts, differentiable."""
    valid = (ids >= 0).to(x.dtype)
    return torch.einsum("tk,th->th", weights.to(x.dtype) * (ids + 1) * valid, x)


@pytest.mark.parametrize("payload", ["bf16", "fp16", "fp32"])
def test_tensors(threads, payload):
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[payload]

    def rank(c):
        x, ids, weights = routed(c.rank, dtype=dtype)
        with handle(c, payload=payload) as h:
            got = h.dispatch(x.t().contiguous().t(), ids.int(), weights)
            assert isinstance(got.rows, torch.Tensor)
            assert got.rows.dtype == dtype
            assert got.routing.expert_counts.dtype == torch.int32
            got.rows.copy_(scale(got.rows, c))
            out = torch.empty_like(x)
            assert h.combine(got.rows, got, out=out) is out
            assert torch.equal(out, reference(x.float(), ids, weights).to(dtype))
            with pytest.raises(weft.OperandError, match=r"out: shape \(6, 16\) .* is not contiguous"):
                h.combine(got.rows, got, out=torch.empty(16, 6, dtype=dtype).t())

    threads(2, rank)


def test_collectives(threads):
    def rank(c):
        with weft.Group(c) as g:
            for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.uint8):
                x = torch.arange(5).to(dtype)
                assert torch.equal(g.all_reduce(x), 3 * x)
                assert torch.equal(g.all_gather(x), torch.stack([x] * 3))
            parameter = torch.nn.Parameter(torch.full((2,), float(c.rank)))
            assert g.broadcast(parameter.data, 2).tolist() == [2, 2]
            with pytest.raises(weft.OperandError, match=r"array: type torch\.complex64"):
                g.all_reduce(torch.zeros(2, dtype=torch.complex64))
            with pytest.raises(weft.OperandError, match="array: it is on meta"):
                g.all_reduce(torch.zeros(2, device="meta"))
            with pytest.raises(weft.OperandError, match=r"layout torch\.sparse_coo"):
                g.all_reduce(torch.zeros(2).to_sparse())

    threads(3, rank)


def test_fp8(comm):
    with handle(comm, hidden=128, payload="fp8", quantize="bfloat16") as h:
        x, ids, weights = routed(0, hidden=128, dtype=torch.bfloat16)
        got = h.dispatch(x, ids, weights)
        assert got.rows.dtype == torch.float8_e4m3fn
        rows = (got.rows.float() * got.scales).bfloat16()
        assert (h.combine(rows, got) - reference(x, ids, weights) / 1).isfinite().all()
        with pytest.raises(weft.UnsupportedError, match="gradients"):
            weft.torch.dispatch(h, x, ids, weights)


@pytest.mark.parametrize("layout", ["expert_major", "expert_packed", "token_major", "rank_major"])
def test_gradients(threads, layout):
    """The gradients of a layer are those that autograd finds for its formula."""

    def layer(c, h, x, ids, weights):
        rows, row_weights, routing = weft.torch.dispatch(h, x, ids, weights)
        by = weft.torch.routing_of(routing)
        local = h.spec.experts // c.ranks
        if layout == "expert_major":
            rows = scale(rows, c)
        elif layout == "expert_packed":
            factor = torch.zeros(rows.shape[0])
            for e in range(local):
                first = int(by.expert_offsets[e])
                factor[first : first + int(by.expert_counts[e])] = c.rank * local + e + 1
            rows = rows * factor[:, None]
        else:
            experts = by.row_experts
            factor = torch.where(experts >= 0, experts + c.rank * local + 1, 0)
            rows = torch.where((by.source_ranks >= 0)[:, None], rows * (row_weights * factor).sum(1, keepdim=True), 0)
        return weft.torch.combine(h, rows, routing, weights if h.spec.weighting == ep.Weighting.weighted else None)

    def rank(c):
        x, ids, weights = routed(c.rank)
        upstream = torch.arange(x.numel(), dtype=torch.float32).view_as(x) % 5 - 2
        want_x, want_w = x.clone().requires_grad_(), weights.clone().requires_grad_()
        want = reference(want_x, ids, want_w)
        want.backward(upstream)
        with handle(c, layout=layout) as h:
            for _ in range(3):
                got_x, got_w = x.clone().requires_grad_(), weights.clone().requires_grad_()
                out = layer(c, h, got_x, ids, got_w)
                assert torch.equal(out, want)
                out.backward(upstream)
                assert torch.equal(got_x.grad, want_x.grad)
                assert torch.equal(got_w.grad, want_w.grad)
            with torch.no_grad():
                assert torch.equal(layer(c, h, x, ids, weights), want)

    threads(2, rank)


def test_gradients_that_end(comm):
    """Methods of a handle pass no gradients, and say so where one would be lost."""
    x, ids, weights = routed(0)
    leaf, scores = x.clone().requires_grad_(), weights.clone().requires_grad_()
    with handle(comm) as h:
        for got in (
            lambda: h.dispatch(leaf, ids, weights),
            lambda: h.dispatch(x, ids, scores),
            lambda: h.send_dispatch(leaf, ids, weights).receive(),
        ):
            with pytest.warns(UserWarning, match=r"dispatch: .* call weft\.torch\.dispatch") as said:
                received = got()
            assert said[0].filename == __file__
            rows = received.rows.clone().requires_grad_()
            for send in (h.combine, lambda *a: h.send_combine(*a).wait()):
                with pytest.warns(UserWarning, match=r"combine: .* call weft\.torch\.combine"):
                    send(rows, received)
            received.release()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with torch.no_grad(), h.dispatch(leaf, ids, scores) as received:
                h.combine(received.rows, received)
            rows, _, routing = weft.torch.dispatch(h, leaf, ids, scores)
            weft.torch.combine(h, rows, routing, scores).sum().backward()
    assert leaf.grad is not None


def test_gradients_of_experts(threads):
    """What stood in the handle's memory before does not get into gradients that sum over all rows."""

    def rank(c):
        with handle(c) as h:
            x, ids, weights = routed(c.rank)
            for _ in range(3):
                with h.dispatch(x, ids, weights) as got:
                    got.rows.fill_(float("nan"))
            factor = torch.ones(2, requires_grad=True)
            few = slice(2 + c.rank)
            rows, _, routing = weft.torch.dispatch(h, x[few], ids[few], weights[few])
            out = weft.torch.combine(h, rows * factor.view(2, 1, 1), routing, weights[few])
            out.sum().backward()
            return factor.grad.tolist()

    got = [gradient for gradients in threads(2, rank) for gradient in gradients]
    want = [0.0] * 4
    for r in range(2):
        x, ids, weights = routed(r)
        for t in range(2 + r):
            for k in range(2):
                if ids[t, k] >= 0:
                    want[ids[t, k]] += float(weights[t, k] * x[t].sum())
    assert got == want


def test_routing_of_something_else():
    with pytest.raises(weft.ClosedError, match="holds no routing"):
        weft.torch.routing_of(torch.zeros(3, dtype=torch.int64))


def test_operators(comm):
    """PyTorch's own checks of operators: schemas, fakes, gradients, tracing."""
    x, ids, weights = routed(0)
    h = handle(comm, live=16)
    number = h.number
    args = (x.requires_grad_(), ids, weights.requires_grad_(), number)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.weft.dispatch.default, args, test_utils=checks)
    rows, _, routing = weft.torch.dispatch(h, x, ids, weights)
    rows = rows.detach().clone().requires_grad_()
    torch.library.opcheck(
        torch.ops.weft.combine.default,
        (rows, weights, routing, number),
        test_utils=(*checks, "test_aot_dispatch_static"),
    )


def test_numbers(comm):
    """Compiled code is kept for processes to come, by the numbers in it: what stands for a handle must
    not stand for another kind of one there."""
    kinds = [h.number >> 31 for h in (handle(comm), handle(comm), handle(comm, layout="token_major"))]
    assert kinds[0] == kinds[1] != kinds[2]
    assert handle(comm).number != handle(comm).number


@pytest.mark.parametrize("layout", ["expert_major", "token_major"])
def test_compile(threads, layout):
    """A compiled layer is one graph, and gives what it gives uncompiled, forwards and backwards."""

    def rank(c):
        x, ids, weights = routed(c.rank)
        with handle(c, layout=layout, live=4) as h:

            def layer(x, weights):
                rows, _, routing = weft.torch.dispatch(h, x, ids, weights)
                return weft.torch.combine(
                    h, torch.tanh(rows) * 2, routing, weights if layout == "expert_major" else None
                ).sin()

            results = []
            torch._dynamo.reset()
            # How many rows there are depends on the routing. PyTorch before 2.10 has to be asked to trace that.
            torch._dynamo.config.capture_dynamic_output_shape_ops = True
            for f in (torch.compile(layer, fullgraph=True, backend="aot_eager"), layer):
                got_x, got_w = x.clone().requires_grad_(), weights.clone().requires_grad_()
                out = f(got_x, got_w)
                out.sum().backward()
                results.append((out.detach(), got_x.grad, got_w.grad))
            for plain, compiled in zip(*results, strict=True):
                assert (plain is None and compiled is None) or torch.equal(plain, compiled)

    threads(1, rank)


def of_all(r, ranks, rows, *shape, seed=0):
    """The tensor of a rank, and what all ranks have, of small numbers."""
    g = torch.Generator().manual_seed(seed)
    whole = torch.randint(-4, 5, (ranks, rows, *shape), generator=g).float()
    return whole[r].clone().requires_grad_(), whole


@pytest.mark.parametrize("shape", [(2,), (2, 1, 2, 1, 2), ()])
def test_functional_collectives(threads, shape):
    """Collectives that return new tensors, and the gradients of a loss that sums over the ranks."""
    ranks, counts = 3, [[1, 0, 2], [3, 0, 0], [2, 1, 0]]  # what each rank sends

    def rank(c):
        r, f = c.rank, weft.torch
        x, whole = of_all(r, ranks, 3, *shape)
        upstream, all_up = of_all(r, ranks, 9, *shape, seed=1)
        up = upstream.detach()

        def gradient(out):
            (g,) = torch.autograd.grad(out, x, up[: len(out)])
            return g

        with weft.Group(c) as g:
            out = f.all_reduce(g, x)
            assert torch.equal(out, whole.sum(0))
            assert torch.equal(gradient(out), all_up[:, :3].sum(0))
            out = f.all_reduce(g, x, weft.Op.avg)
            assert torch.equal(out, whole.sum(0) / 3)
            assert torch.equal(gradient(out), all_up[:, :3].sum(0) / 3)
            out = f.all_gather(g, x)
            assert torch.equal(out, whole.flatten(0, 1))
            assert torch.equal(gradient(out), all_up.sum(0)[3 * r : 3 * r + 3])
            out = f.reduce_scatter(g, x)
            assert torch.equal(out, whole.sum(0)[r : r + 1])
            assert torch.equal(gradient(out), all_up[:, 0])
            out = f.reduce_scatter(g, x, "avg")
            assert torch.equal(gradient(out), all_up[:, 0] / 3)
            out = f.all_to_all(g, x)
            assert torch.equal(out, whole[:, r])
            assert torch.equal(gradient(out), all_up[:, r])
            send, recv = counts[r], [of[r] for of in counts]
            out = f.all_to_all(g, x, recv, send)
            parts = [whole[p].split(counts[p])[r] for p in range(ranks)]
            assert torch.equal(out, torch.cat(parts))
            back = [all_up[p][: sum(of[p] for of in counts)].split([of[p] for of in counts])[r] for p in range(ranks)]
            assert torch.equal(gradient(out), torch.cat(back))
            out = f.broadcast(g, x, 1)
            assert torch.equal(out, whole[1])
            assert torch.equal(gradient(out), all_up[:, :3].sum(0) * (r == 1))
            out = f.all_reduce(g, x, "max")
            assert torch.equal(out, whole.amax(0))
            with pytest.raises(weft.UnsupportedError, match="max has no gradient"):
                gradient(out)
            for call in f.reduce_scatter, f.all_to_all:  # what one rank refuses all do, without waiting
                with pytest.raises(weft.InvalidError, match="want rows, as many for each of 3 ranks") as e:
                    call(g, x[:2] if r == 1 else x)
                assert isinstance(e.value, weft.OperandError) == (r == 1)
            with pytest.raises(weft.OperandError, match="both recv and send"):
                f.all_to_all(g, x, recv)
            assert torch.equal(f.all_reduce(g, x.detach().int()), whole.sum(0).int())

    threads(ranks, rank)


def test_collective_operators(comm):
    """PyTorch's own checks of operators."""
    ops = torch.ops.weft
    with weft.Group(comm) as g:
        x = torch.ones(4, 2, requires_grad=True)
        for op, args in (
            (ops.all_reduce, (x, "sum")),
            (ops.all_gather, (x,)),
            (ops.reduce_scatter, (x, "avg")),
            (ops.all_to_all, (x, None, None)),
            (ops.all_to_all, (x, [4], [4])),
            (ops.broadcast, (x, 0)),
            (ops.reduce_to, (x.detach(), 0)),
        ):
            torch.library.opcheck(op.default, (*args, g.number))
        assert weft.Group(comm).number > g.number
    with pytest.raises(weft.ClosedError, match="the group of this operator is gone"):
        ops.all_reduce(x, "sum", 1)


def test_compiled_collectives(torch_processes):
    for ended in torch_processes(2, "compiled_collectives", timeout=200):
        assert (ended.code, ended.out) == (0, "ok\n"), ended.out


@pytest.mark.parametrize("function", ["process_group", "absent", "store"])
def test_rendezvous(torch_processes, function):
    for ended in torch_processes(2, function):
        assert (ended.code, without_gloo(ended.out)) == (0, "ok\n"), ended.out


def without_gloo(out):
    """What ranks printed, without the lines that Gloo prints in PyTorch before 2.11."""
    return re.sub(r"\[Gloo\] Rank \d+ is connected.*\n", "", out)


def test_torchrun(torch_program):
    """Ranks under torchrun meet in its store, whoever of PyTorch's is there."""
    run = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", HERE / "torch_ranks.py", "torchrun"
    ended = torch_program(*run, timeout=100, OMP_NUM_THREADS="1")
    assert ended.code == 0, ended.out
    assert without_gloo(ended.out).split() in (["ok", "ok"], ["okok"])  # lines of two processes


def test_data_loader(torch_script):
    """Workers that DataLoader forks leave their parent's communicator alone."""
    ended = torch_script("""
import torch, weft
from torch.utils.data import DataLoader, Dataset
class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        try:
            comm.check()
            return -1
        except weft.ForkedError:
            return i * i
with weft.join() as comm, weft.Group(comm) as g:
    assert g.all_reduce(torch.ones(3)).sum() == 3
    for _ in range(2):
        got = torch.cat(list(DataLoader(Squares(), batch_size=2, num_workers=2, multiprocessing_context="fork")))
        assert got.tolist() == [i * i for i in range(8)], got
    assert g.all_reduce(torch.ones(3)).sum() == 3
""")
    assert (ended.code, ended.out) == (0, ""), ended.out
