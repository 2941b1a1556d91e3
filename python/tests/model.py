"""Expert parallelism in plain numpy, by the documentation's words: what every rank receives, and what comes home."""

from __future__ import annotations

import numpy as np


class Batch:
    """Tokens of every rank, routed at random. All numbers are small and whole, or halves of such, so
    that sums are exact in any order."""

    def __init__(self, ranks, *, experts, topk, hidden, max_tokens, seed=0, dtype=np.float32):
        rng = np.random.default_rng(seed)
        self.ranks, self.experts, self.topk, self.hidden, self.max_tokens = ranks, experts, topk, hidden, max_tokens
        self.local = experts // ranks
        self.tokens = [int(rng.integers(0, max_tokens + 1)) for _ in range(ranks)]
        self.topks = []
        for n in self.tokens:
            t = np.array([rng.permutation(experts)[:topk] for _ in range(n)], np.int64).reshape(n, topk)
            t[rng.random(t.shape) < 0.2] = -1
            self.topks.append(t)
        self.weights = [(rng.integers(1, 5, (n, topk)) / 2).astype(np.float32) for n in self.tokens]
        self.rows = [rng.integers(-8, 9, (n, hidden)).astype(dtype) for n in self.tokens]

    def zone(self, expert):
        """The (rank, token, selection) of the rows that an expert receives, in their order."""
        return [
            (r, t, k)
            for r in range(self.ranks)
            for t in range(self.tokens[r])
            for k in range(self.topk)
            if self.topks[r][t, k] == expert
        ]

    def visitors(self, rank):
        """The (rank, token) of the tokens with an expert on a rank, in order."""
        first, last = rank * self.local, (rank + 1) * self.local
        return [
            (r, t)
            for r in range(self.ranks)
            for t in range(self.tokens[r])
            if any(first <= e < last for e in self.topks[r][t])
        ]

    def combined(self, rank, expert_of):
        """The weighted sums of a rank's tokens, where an expert does expert_of(expert, row) to a row."""
        out = np.zeros((self.tokens[rank], self.hidden), np.float32)
        for t in range(self.tokens[rank]):
            for k in range(self.topk):
                e = self.topks[rank][t, k]
                if e >= 0:
                    out[t] += self.weights[rank][t, k] * expert_of(e, self.rows[rank][t].astype(np.float32))
        return out
