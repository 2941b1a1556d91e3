"""All-reduces with a norm, and collectives with words, against each step alone."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import weft

RANKS, TOKENS, HIDDEN = 3, 5, 256


def inputs(rank, dtype=np.float32):
    rng = np.random.default_rng(rank)
    return rng.normal(size=(TOKENS, HIDDEN)).astype(dtype)


def test_norm(threads):
    gamma = np.linspace(0.5, 2, HIDDEN, dtype=np.float32)

    def rank(c):
        x, residual = inputs(c.rank), inputs(100)
        with weft.Group(c) as g:
            rows = g.all_reduce(x) + residual
            mean = (rows.astype(np.float64) ** 2).mean(axis=1, keepdims=True)
            want = rows / np.sqrt(mean + 1e-5) * gamma
            after = np.empty_like(x)
            out = g.all_reduce_norm(x, gamma, eps=1e-5, residual=residual, residual_out=after)
            assert (after == rows).all()
            assert np.allclose(out, want, rtol=1e-5, atol=1e-6)
            same = x.copy()
            assert g.all_reduce_norm(same, gamma, eps=1e-5, residual=residual, out=same) is same
            assert (same == out).all()
            scales = np.empty((TOKENS, HIDDEN // 128), np.float32)
            q = g.all_reduce_norm(x, gamma, eps=1e-5, residual=residual, scales=scales)
            assert q.shape == x.shape
            assert q.dtype.itemsize == 1
            most = np.abs(out.reshape(TOKENS, -1, 128)).max(axis=2)
            assert (scales == most / np.float32(448)).all()
            exponents = np.empty(scales.shape, np.uint8)
            g.all_reduce_norm(x, gamma, eps=1e-5, residual=residual, scales=exponents, out=q)
            assert (exponents == np.ceil(np.log2(scales)) + 127).all()
            with pytest.raises(weft.InvalidError, match="gamma"):
                g.all_reduce_norm(x, gamma[:100].copy())
            g.barrier()

    threads(RANKS, rank)


def test_norm_of_tensors(threads):
    torch = pytest.importorskip("torch")

    def rank(c):
        x = torch.from_numpy(inputs(c.rank)).bfloat16()
        residual = torch.from_numpy(inputs(100)).bfloat16()
        gamma = torch.ones(HIDDEN, dtype=torch.bfloat16)
        with weft.Group(c) as g:
            rows = (g.all_reduce(x).float() + residual.float()).bfloat16()
            out = g.all_reduce_norm(x, gamma, residual=residual, residual_out=residual)
            assert out.dtype == torch.bfloat16
            assert torch.equal(residual, rows)
            want = torch.nn.functional.rms_norm(rows.float(), (HIDDEN,), eps=1e-6)
            assert torch.allclose(out.float(), want, rtol=1e-2, atol=1e-2)
            scale = torch.tensor([0.25])
            q = g.all_reduce_norm(x, gamma, scale=scale)
            assert q.dtype == torch.float8_e4m3fn
            assert torch.equal(q.float(), (g.all_reduce_norm(x, gamma).float() * 4).to(torch.float8_e4m3fn).float())

    threads(RANKS, rank)


def test_words(threads):
    chunks = 4

    def rank(c):
        x = np.arange(1000, dtype=np.int32) + 1000 * c.rank
        out = np.zeros((RANKS, 1000), np.int32)
        words = np.zeros((RANKS, chunks), np.int64)
        with weft.Group(c) as g:
            for times in 1, 2:
                g.all_gather_progress(x, words, out=out)
                assert (words == times).all()
            assert (out == np.arange(RANKS * 1000).reshape(RANKS, 1000)).all()
            made, ready, result = (
                np.zeros((RANKS, 1000), np.int32),
                np.zeros(RANKS, np.uint64),
                np.zeros(1000, np.int32),
            )

            def produce():
                for r in range(RANKS):
                    made[r] = x + r
                    ready[r] = 1

            producer = threading.Thread(target=produce)
            producer.start()
            g.reduce_scatter_ready(made, ready, out=result)
            producer.join()
            assert (ready == 0).all()
            assert (result == 3 * np.arange(1000) + 3000 + 3 * c.rank).all()
            with pytest.raises(weft.InvalidError, match="words of"):
                g.all_gather_progress(x, words.astype(np.int32), out=out)

    threads(RANKS, rank)
