"""The calls that programs make of deep_ep, with their arguments and what they do with the results, on CPU tensors.

docs/guides/deep_ep.md lists the programs; a test has the name of the one whose calls it makes.
"""

from __future__ import annotations

import gc
import inspect
import pathlib
import re
import shutil
import weakref

import pytest

torch = pytest.importorskip("torch")

import deep_ep  # noqa: E402
import weft  # noqa: E402
from deep_ep import Buffer, ElasticBuffer, EventHandle, EventOverlap, HybridEPBuffer  # noqa: E402
from deep_ep.hybrid_ep_buffer import indices_to_map  # noqa: E402
from deep_ep.utils.math import per_token_cast_to_fp8  # noqa: E402

HIDDEN, EXPERTS, TOPK, RANKS, MOST = 512, 8, 2, 2, 16


def token_batch(rank):
    """Tokens, selections, weights; the ranks have different numbers of tokens."""
    g = torch.Generator().manual_seed(500 + rank)
    tokens = 7 + 2 * rank
    ids = torch.rand((tokens, EXPERTS), generator=g).argsort(1)[:, :TOPK]
    weights = torch.rand((tokens, TOPK), generator=g)
    return torch.randn((tokens, HIDDEN), generator=g).bfloat16(), ids, weights


def visits(ids):
    """The ranks that each token goes to: [tokens, 1]."""
    return torch.stack([(ids // (EXPERTS // RANKS) == r).any(1) for r in range(RANKS)]).sum(0)[:, None]


@pytest.fixture
def buffers(threads):
    """Runs a function of a buffer, of a class of deep_ep's, on two ranks."""

    def run(kind, function, *arguments, **options):
        def rank(c):
            return function(kind.from_communicator(c, *arguments, **options), *token_batch(c.rank))

        return threads(RANKS, rank)

    return run


def close(got, want):
    assert torch.allclose(got.float(), want.float(), rtol=3e-2, atol=3e-2)


def layout(b, ids, **options):
    names = (
        "num_tokens_per_rank",
        "num_tokens_per_rdma_rank",
        "num_tokens_per_expert",
        "is_token_in_rank",
        "previous_event",
    )
    return dict(zip(names, b.get_dispatch_layout(ids, EXPERTS, **options), strict=True))


@pytest.mark.parametrize("scaled", [False, True])
def test_vllm_high_throughput(buffers, scaled):
    def rank(b, x, ids, weights):
        previous = b.capture()
        given = layout(b, ids, previous_event=previous, async_finish=False, allocate_on_comm_stream=False)
        data, come, come_weights, counts, handle, event = b.dispatch(
            x=per_token_cast_to_fp8(x) if scaled else x,
            handle=None,
            **given | {"previous_event": previous},
            topk_idx=ids,
            topk_weights=weights,
            expert_alignment=1,
            config=Buffer.get_dispatch_config(RANKS),
            async_finish=True,
            allocate_on_comm_stream=False,
        )
        if event.event is not None:
            event.current_stream_wait()
        rows = data[0] if scaled else data
        assert sum(counts) == int((come >= 0).sum())
        assert come_weights.shape == come.shape == (len(rows), TOPK)
        home, _, event = b.combine(
            x=rows.bfloat16(),
            handle=handle,
            topk_weights=None,
            config=Buffer.get_combine_config(RANKS),
            previous_event=b.capture(),
            async_finish=False,
            allocate_on_comm_stream=False,
        )
        assert event.event is None
        if not scaled:
            close(home, x * visits(ids))

    buffers(Buffer, rank)


@pytest.mark.parametrize("fp8", [False, True])
def test_vllm_low_latency(buffers, fp8):
    def rank(b, x, ids, weights):
        rows, counts, handle, _, hook = b.low_latency_dispatch(
            x,
            ids,
            MOST,
            EXPERTS,
            use_fp8=fp8,
            round_scale=fp8,
            use_ue8m0=fp8,
            async_finish=False,
            return_recv_hook=True,
        )
        hook()
        assert counts.shape == (EXPERTS // RANKS,)
        if fp8:
            assert rows[1].shape == (EXPERTS // RANKS, RANKS * MOST, HIDDEN // 512)
            return
        out = torch.empty_like(x)
        _, _, hook = b.low_latency_combine(
            rows, ids, weights, handle, async_finish=False, zero_copy=False, return_recv_hook=True, out=out
        )
        hook()
        close(out, x * weights.sum(1, keepdim=True))

    buffers(Buffer, rank)


def test_vllm_masks(buffers):
    def rank(b, x, ids, weights):
        status = torch.empty(RANKS, dtype=torch.int32)
        b.low_latency_query_mask_buffer(status)
        b.low_latency_clean_mask_buffer()
        assert status.tolist() == [0] * RANKS

    buffers(Buffer, rank, enable_shrink=True)


@pytest.mark.parametrize("graph", [False, True])
def test_vllm_v2(buffers, graph):
    def rank(b, x, ids, weights):
        rows, come, come_weights, handle, event = b.dispatch(
            x=x,
            topk_idx=ids,
            topk_weights=weights,
            num_experts=EXPERTS,
            num_max_tokens_per_rank=MOST if graph else None,
            do_expand=not graph,
            do_cpu_sync=not graph,
            async_with_compute_stream=False,
        )
        assert event.event is None
        assert bool(handle.num_recv_tokens_per_expert_list) != graph
        n = int(handle.psum_num_recv_tokens_per_scaleup_rank[-1])
        assert (come is None, come_weights.dim()) == ((False, 2) if graph else (True, 1))
        made = rows.clone()
        if graph:
            made[n:] = 0
        home, _, event = b.combine(x=made, handle=handle, async_with_compute_stream=True)
        event.current_stream_wait()
        close(home, x * (visits(ids) if graph else TOPK))

    buffers(ElasticBuffer, rank, num_max_tokens_per_rank=MOST)


def test_vllm_hybrid_ep(buffers):
    def rank(b, x, ids, weights):
        room = MOST * RANKS * TOPK
        routing_map, probs = indices_to_map(ids, weights.float(), x.shape[0], EXPERTS)
        rows, scores, _, counts, handle = b.dispatch_with_permute(
            hidden=x,
            routing_map=routing_map,
            probs=probs,
            scaling_factor=None,
            num_of_experts_per_rank=EXPERTS // RANKS,
            pad_multiple=1,
            num_permuted_tokens=room,
            non_blocking=True,
        )
        assert (rows.shape, scores.shape) == ((room, HIDDEN), (room,))
        rest = torch.full((1,), room) - counts.sum(dim=0, keepdim=True)
        assert len(torch.arange(len(counts) + 1).repeat_interleave(torch.cat([counts, rest]), output_size=room)) == room
        home, _ = b.combine_with_unpermute(hidden=rows, handle=handle)
        close(home, x * TOPK)

    buffers(HybridEPBuffer, rank, HIDDEN, MOST, EXPERTS // RANKS)


@pytest.mark.parametrize("later", [False, True])
def test_sglang_normal(buffers, later):
    def rank(b, x, ids, weights):
        previous = Buffer.capture() if later else None
        given = layout(
            b, ids, previous_event=previous, async_finish=later, allocate_on_comm_stream=previous is not None
        )
        config = deep_ep.Config(num_sms=8, num_max_nvl_chunked_send_tokens=8, num_max_nvl_chunked_recv_tokens=256)
        rows, _, _, counts, handle, event = b.dispatch(
            x,
            topk_idx=ids,
            topk_weights=weights,
            **given,
            async_finish=later,
            allocate_on_comm_stream=(given["previous_event"] is not None) and later,
            expert_alignment=128,
            config=config,
        )
        if later:
            event.current_stream_wait()
        assert not any(n % 128 for n in counts)
        previous = Buffer.capture() if later else None
        home, _, event = b.combine(
            rows,
            handle,
            async_finish=later,
            previous_event=previous,
            allocate_on_comm_stream=previous is not None,
            config=config,
        )
        if later:
            event.current_stream_wait()
        close(home, x * visits(ids))
        b.clean_low_latency_buffer(MOST, HIDDEN, EXPERTS)

    buffers(Buffer, rank)


@pytest.mark.parametrize("hooked", [False, True])
def test_sglang_low_latency(buffers, hooked):
    def rank(b, x, ids, weights):
        rows, counts, handle, event, hook = b.low_latency_dispatch(
            x, ids, MOST, EXPERTS, use_fp8=False, async_finish=not hooked, return_recv_hook=hooked
        )
        hook() if hooked else event.current_stream_wait()
        combine = {
            "x": rows,
            "topk_idx": ids,
            "topk_weights": weights,
            "handle": handle,
            "async_finish": not hooked,
            "return_recv_hook": hooked,
        }
        signal = torch.zeros(8, dtype=torch.int32)
        for overlap in (
            {"overlap": True, "src_signals": signal, "src_signal_expect_value": 1},
            {
                "overlap": True,
                "packed_recv_count": counts,
                "comp_signal": signal,
                "block_m": 64,
                "threshold": 3,
                "num_sms": 32,
            },
        ):
            with pytest.raises(weft.UnsupportedError, match=r"overlap, .*leave out --enable-single-batch-overlap"):
                b.low_latency_combine(**combine, **overlap)
        for one in (("src_signals", signal), ("src_signal_expect_value", 1), ("threshold", 0), ("num_sms", 1)):
            with pytest.raises(weft.UnsupportedError, match=f"combine: {one[0]}: of SGLang"):
                b.low_latency_combine(**combine, **dict([one]))
        home, event, hook = b.low_latency_combine(**combine, overlap=False, src_signals=None)
        hook() if hooked else event.current_stream_wait()
        close(home, x * weights.sum(1, keepdim=True))

    buffers(Buffer, rank)


def test_nvfp4(buffers):
    def rank(b, x, ids, weights):
        for given, words in (
            (
                {"use_nvfp4": True, "x_global_scale": weights},
                r"use_nvfp4 is of SGLang's fork.*VLLM_DEEPEPLL_NVFP4_DISPATCH=0",
            ),
            ({"x_global_scale": weights}, "x_global_scale is of"),
            ({"topk_weights": weights}, "hybrid-ep branch's.*give them to low_latency_combine"),
        ):
            with pytest.raises(weft.UnsupportedError, match=words):
                b.low_latency_dispatch(x, ids, MOST, EXPERTS, use_fp8=False, **given)
        assert b.low_latency_dispatch(x, ids, MOST, EXPERTS, use_nvfp4=False, x_global_scale=None)[0][0].dim() == 3

    buffers(Buffer, rank)


def test_sglang_v2(buffers):
    def rank(b, x, ids, weights):
        sms = b.get_theoretical_num_sms(EXPERTS, TOPK)
        rows, _, _, handle, _ = b.dispatch(
            per_token_cast_to_fp8(x),
            topk_idx=ids,
            topk_weights=weights,
            num_experts=EXPERTS,
            num_max_tokens_per_rank=MOST,
            expert_alignment=128,
            num_sms=sms,
            num_qps=b.get_theoretical_num_qps(sms),
            async_with_compute_stream=False,
            do_cpu_sync=True,
            do_expand=True,
            use_tma_aligned_col_major_sf=True,
        )
        assert len(rows[0]) == sum(handle.num_recv_tokens_per_expert_list)
        home, _, _ = b.combine(rows[0].bfloat16(), handle=handle, num_sms=sms)
        assert home.shape == x.shape

    buffers(ElasticBuffer, rank, num_max_tokens_per_rank=MOST)


class Dispatch(torch.autograd.Function):
    """Megatron-LM's FusedDispatch; with ``saved``, XTuner's DeepEPDispatch, whose handle autograd keeps."""

    @staticmethod
    def forward(ctx, x, ids, weights, b, saved):
        given = layout(
            b, ids, previous_event=EventOverlap(EventHandle()), async_finish=True, allocate_on_comm_stream=True
        )
        rows, come, come_weights, counts, handle, event = b.dispatch(
            x, topk_idx=ids, topk_weights=weights, **given, async_finish=True, allocate_on_comm_stream=True
        )
        event.current_stream_wait()
        ctx.b, ctx.handle = b, None if saved else handle
        if saved:
            ctx.save_for_backward(*handle)
        return rows, come, come_weights, torch.tensor(counts), handle

    @staticmethod
    def backward(ctx, grad, _, grad_weights, *__):
        grad_x, grad_weights, event = ctx.b.combine(
            grad.contiguous(),
            ctx.handle or ctx.saved_tensors,
            topk_weights=grad_weights.float(),
            previous_event=EventOverlap(EventHandle()),
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        event.current_stream_wait()
        return grad_x, None, grad_weights, None, None


class Combine(torch.autograd.Function):
    """The same of their combines."""

    @staticmethod
    def forward(ctx, x, b, handle, saved):
        home, _, event = b.combine(
            x,
            handle=handle,
            async_finish=True,
            previous_event=EventOverlap(EventHandle()),
            allocate_on_comm_stream=True,
        )
        event.current_stream_wait()
        ctx.b, ctx.handle = b, None if saved else handle
        if saved:
            ctx.save_for_backward(*handle)
        return home, None

    @staticmethod
    def backward(ctx, grad, _=None):
        rows, _, _, _, _, event = ctx.b.dispatch(
            grad.contiguous(),
            handle=ctx.handle or ctx.saved_tensors,
            previous_event=EventOverlap(EventHandle()),
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        event.current_stream_wait()
        return rows, None, None, None


def trained(saved):
    def rank(b, x, ids, weights):
        x, weights = x.requires_grad_(), weights.requires_grad_()
        rows, come, come_weights, _, handle = Dispatch.apply(x, ids, weights, b, saved)
        come_weights = come_weights.masked_fill(come < 0, 0)
        home, _ = Combine.apply((rows.float() * come_weights.sum(1, keepdim=True)).bfloat16(), b, handle, saved)
        del handle
        gc.collect()
        close(home, x * weights.sum(1, keepdim=True))
        home.float().sum().backward()
        close(x.grad, weights.sum(1, keepdim=True).expand_as(x))
        assert torch.allclose(weights.grad, x.float().sum(1, keepdim=True).expand_as(weights), atol=1.0, rtol=3e-2)

    return rank


def test_megatron(buffers):
    buffers(Buffer, trained(saved=False))


def test_xtuner(buffers):
    buffers(Buffer, trained(saved=True))


def test_torchtitan(buffers):
    """Its calls name x, and give None for what the handle has."""

    def rank(b, x, ids, weights):
        ids = ids.masked_fill(weights < 0.2, -1)
        given = layout(b, ids) | {"previous_event": EventOverlap(EventHandle())}
        options = {"async_finish": True, "allocate_on_comm_stream": True}
        rows, _, _, _, handle, event = b.dispatch(x=x, topk_idx=ids, topk_weights=weights, **given, **options)
        event.current_stream_wait()
        home, _, event = b.combine(x=rows, handle=handle, previous_event=EventOverlap(EventHandle()), **options)
        event.current_stream_wait()
        close(home, x * given["is_token_in_rank"].sum(1, keepdim=True))
        none = dict.fromkeys((*given, "topk_idx", "topk_weights"))
        again = b.dispatch(x=x, **none | {"handle": handle, "previous_event": EventOverlap(EventHandle())}, **options)
        assert torch.equal(again[0], rows)

    buffers(Buffer, rank)


def test_torchtitan_hybrid_ep(buffers):
    def rank(b, x, ids, weights):
        assert (b.config.hidden_dim, b.config.num_of_experts_per_rank) == (HIDDEN, EXPERTS // RANKS)
        assert b.config.max_num_of_tokens_per_rank >= MOST
        routing_map, probs = indices_to_map(ids, weights.float(), x.shape[0], EXPERTS)
        rows, scores, _, counts, handle = b.dispatch_with_permute(
            hidden=x,
            routing_map=routing_map,
            probs=probs,
            scaling_factor=None,
            num_of_experts_per_rank=EXPERTS // RANKS,
            pad_multiple=32,
            num_permuted_tokens=None,
            non_blocking=False,
        )
        assert int(counts.sum()) == len(rows) == len(scores)
        home, home_probs = b.combine_with_unpermute(hidden=rows, probs=scores, handle=handle)
        close(home, x * TOPK)
        assert torch.equal(home_probs.gather(dim=1, index=ids), weights)
        again = b.dispatch_with_permute(
            hidden=x, scaling_factor=None, handle=handle, num_permuted_tokens=len(rows), pad_multiple=32
        )
        assert torch.equal(again[0], rows)

    buffers(HybridEPBuffer, rank, HIDDEN, MOST, EXPERTS // RANKS)


def test_constructors():
    """How programs make buffers: the arguments fit, and forks' are refused in words."""
    group, sizes = object(), (1 << 20, 1 << 20)
    for kind, arguments, options in (
        (Buffer, (group, *sizes, False, 24, True, False, True, False, None), {}),  # main's order
        (Buffer, (group, *sizes), {"low_latency_mode": True, "num_qps_per_rank": 4, "allow_mnnvl": True}),  # SGLang
        (Buffer, (group, *sizes), {"allow_mnnvl": True, "use_fabric": True}),
        (Buffer, (group,), {"num_nvl_bytes": 0, "num_rdma_bytes": 0, "explicitly_destroy": True}),  # vLLM
        (ElasticBuffer, (group,), {"num_max_tokens_per_rank": 8, "hidden": 8, "num_topk": 2, "sl_idx": 0}),
        (
            HybridEPBuffer,  # Megatron-LM
            (),
            {
                "group": group,
                "hidden_dim": HIDDEN,
                "max_num_of_tokens_per_rank": MOST,
                "num_local_experts": 4,
                "use_fp8": False,
                "num_sms_dispatch_api": 24,
                "num_sms_combine_api": 24,
                "num_blocks_permute": 8,
                "num_blocks_unpermute": 8,
                "num_sms_preprocessing_api": 108,
            },
        ),
        (
            HybridEPBuffer,  # torchtitan
            (group, HIDDEN, MOST, 4),
            {"load_cached_kernels": True, "use_shared_buffer": True, "enable_custom_allgather": True},
        ),
    ):
        bound = inspect.signature(kind).bind(*arguments, **options).arguments
        assert bound["group"] is group
        if len(arguments) == 10:
            assert (bound["explicitly_destroy"], bound["enable_shrink"]) == (True, False)
    assert "fuse_permute_dispatch" in inspect.signature(HybridEPBuffer.dispatch_with_permute).parameters
    with pytest.raises(weft.UnsupportedError, match="allow_nvlink_for_normal_mode=False is the hybrid-ep branch's"):
        Buffer(group, allow_nvlink_for_normal_mode=False)


def test_attributes(comm):
    elastic = ElasticBuffer.from_communicator(comm, num_max_tokens_per_rank=8, explicitly_destroy=True)
    assert elastic.deterministic is False
    assert elastic.runtime.num_ranks == 1
    elastic.destroy()
    assert elastic.runtime is None
    b = Buffer.from_communicator(weft.join(deadline=20), explicitly_destroy=True)
    runtime = b.runtime
    assert runtime.is_available()
    runtime.destroy()
    assert b.runtime is None
    assert not runtime.is_available()


def test_semantic():
    from deep_ep.utils.semantic import value_or, weak_lru

    class Doubles:
        calls = 0

        @weak_lru(maxsize=None)
        def of(self, n):
            self.calls += 1
            return 2 * n

    assert (value_or(None, 5), value_or(0, 5), value_or(False, True)) == (5, 0, False)
    a, b = Doubles(), Doubles()
    assert (a.of(3), a.of(3), a.calls, b.of(3), b.calls) == (6, 6, 1, 6, 1)
    gone = weakref.ref(a)
    del a
    assert gone() is None


def test_communicators_of_nccl(monkeypatch):
    """Those that PyTorch has: exchanges need none."""
    from deep_ep.utils import comm

    class Group:
        def __init__(self, address):
            self.address = address

        def size(self):
            return 2

        def _get_backend(self, _device):
            return self

        def _comm_ptr(self):
            return self.address

    def gather(everyone, mine, _group):
        everyone[:] = [mine, mine]

    monkeypatch.setattr(comm.dist, "all_gather_object", gather)
    group = Group(4096)
    handle = comm.get_nccl_comm_handle(group)
    assert (handle.get(), handle.managed, comm.get_nccl_comm_handle(group)) == (4096, False, handle)
    comm.destroy_all_managed_nccl_comm()
    assert comm.get_nccl_comm_handle(group) is not handle
    comm.destroy_all_managed_nccl_comm()
    for call, words in (
        (lambda: comm.get_nccl_comm_handle(Group(0)), "rank 0 has no communicator"),
        (lambda: comm.get_nccl_comm_handle(group, force_new_comm=True), "force_new_comm"),
        (lambda: comm.NCCLCommHandle(1, True), "managed=False"),
    ):
        with pytest.raises(weft.UnsupportedError, match=words):
            call()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("deep_ep/_C.abi3.so", ""),
        ("deep_ep/sgl_only.py", ""),
        ("deep_ep_cpp.abi3.so", ""),
        ("sgl_deep_ep-1.0.dist-info", "deep_ep/__init__.py,,\n"),
        ("deep_ep-1.2.1.dist-info", "deep_ep_cpp.so,,\ndeep_ep/buffer.py,sha256=0,19\n"),
    ],
)
def test_files_of_another_package(tmp_path, monkeypatch, name, content):
    from deep_ep import _files

    def record(folder, text):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "RECORD").write_text(text)

    _files.refuse_mixture()
    record("weft_deep_ep-0.1.0.dist-info", "deep_ep/__init__.py,,\ndeep_ep_cpp/__init__.py,,\n")
    record("torch-2.13.0.dist-info", "torch/deep_ep/__init__.py,,\n")
    (tmp_path / "deep_ep").mkdir()
    (tmp_path / "deep_ep" / "_C.py").touch()
    monkeypatch.setattr(_files, "__file__", str(tmp_path / "deep_ep" / "_files.py"))
    _files.refuse_mixture()
    folder = pathlib.Path(deep_ep.__file__).parent
    assert {file.stem for file in folder.glob("*.py")} == _files.OURS
    _files.refuse_mixture()
    if content:
        record(name, content)
    else:
        (tmp_path / name).touch()
    found = re.escape(str(tmp_path / name))
    with pytest.raises(ImportError, match=rf"{found} is of another package.*sgl-deep-ep.*PYTHONPATH"):
        _files.refuse_mixture()


def test_another_package_installed_over_this(torch_script, tmp_path):
    """Its __init__.py is the package's then, and each module of ours that is left refuses."""
    (tmp_path / "weft").symlink_to(pathlib.Path(weft.__file__).parent)
    shutil.copytree(pathlib.Path(deep_ep.__file__).parent, tmp_path / "deep_ep")
    (tmp_path / "deep_ep" / "__init__.py").write_text("")
    (tmp_path / "sgl_deep_ep-1.0.dist-info").mkdir()
    (tmp_path / "sgl_deep_ep-1.0.dist-info" / "RECORD").write_text("deep_ep/__init__.py,,\n")
    for module in ("hybrid_ep_buffer", "elastic", "_C"):
        ended = torch_script(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import deep_ep.{module}")
        assert ended.code == 1
        assert "ImportError: deep_ep: " in ended.out, ended.out


def test_the_first_in_the_path_wins(script, tmp_path):
    """Where another package of the name is installed, as SGLang does, a folder in PYTHONPATH comes before it."""
    (tmp_path / "deep_ep").mkdir()
    (tmp_path / "deep_ep" / "__init__.py").write_text("raise ImportError('sgl-deep-ep')")
    found = "importlib.util.find_spec('deep_ep').origin"
    program = f"import importlib.util, site; site.addsitedir({str(tmp_path)!r}); print({found})"
    assert script(program).out == f"{deep_ep.__file__}\n"
