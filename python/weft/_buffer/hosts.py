"""Ranks of several hosts: DeepEP's nodes. A host is where ranks share memory, as they have agreed when they joined."""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 31  # of an int32


class Hosts:
    """The hosts of ranks, by number."""

    def __init__(self, of_ranks: tuple[int, ...], rank: int) -> None:
        self.of_ranks, self.rank, self.count = of_ranks, rank, max(of_ranks) + 1
        self.own, self.local = of_ranks[rank], of_ranks[:rank].count(of_ranks[rank])
        """The rank's host, and its number there."""
        self.bit = 1 << self.local if self.local < _BITS else 0
        self.ranks = [[r for r, host in enumerate(of_ranks) if host == h] for h in range(self.count)]

    def root(self, everywhere: bool) -> int:
        """DeepEP's get_root_rdma_rank: among all ranks, that of host 0 with this rank's number on its host."""
        return self.ranks[0][min(self.local, len(self.ranks[0]) - 1)] if everywhere else 0

    def within(self, in_rank: Tensor) -> Tensor:
        """Whether each token goes to each host: bool [tokens, hosts]."""
        return torch.stack([in_rank[:, ranks].any(1) for ranks in self.ranks], 1)

    def tokens(self, in_rank: Tensor) -> Tensor | None:
        """The tokens that go to each host, once each: int32 [hosts]; None where there is one."""
        return None if self.count == 1 else self.within(in_rank).sum(0, dtype=torch.int32)

    def sums(self, of_ranks: Tensor) -> Tensor:
        """Sums of rows of ranks, by host."""
        index = torch.tensor(self.of_ranks, device=of_ranks.device)
        return of_ranks.new_zeros((self.count, *of_ranks.shape[1:])).index_add_(0, index, of_ranks)
