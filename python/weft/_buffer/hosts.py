"""Ranks of several hosts: DeepEP's nodes. A host is where ranks share memory, as they have agreed when they joined."""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 31  # of an int32


class Hosts:
    """The hosts of ranks, by number."""

    def __init__(self, of_ranks: tuple[int, ...], rank: int, gpu: int = -1) -> None:
        """``gpu`` is where tensors are, without which they are on the host."""
        self.of_ranks, self.rank, self.count = of_ranks, rank, max(of_ranks) + 1
        self.own, self.local = of_ranks[rank], of_ranks[:rank].count(of_ranks[rank])
        """The rank's host, and its number there."""
        self.bit = 1 << self.local if self.local < _BITS else 0
        self.numbers = torch.tensor(of_ranks, device="cpu" if gpu < 0 else torch.device("cuda", gpu))
        """The host of each rank, int64 [ranks]. It is made at once: captures take no copies of what Python has."""

    def root(self, everywhere: bool) -> int:
        """DeepEP's get_root_rdma_rank: among all ranks, that of host 0 with this rank's number on its host."""
        if not everywhere:
            return 0
        ranks = [r for r, host in enumerate(self.of_ranks) if host == 0]
        return ranks[min(self.local, len(ranks) - 1)]

    def within(self, in_rank: Tensor) -> Tensor:
        """Whether each token goes to each host: bool [tokens, hosts]."""
        ranks = in_rank.new_zeros((in_rank.shape[0], self.count), dtype=torch.int32)
        return ranks.index_add_(1, self.numbers, in_rank.int()) > 0

    def tokens(self, in_rank: Tensor) -> Tensor | None:
        """The tokens that go to each host, once each: int32 [hosts]; None where there is one."""
        return None if self.count == 1 else self.within(in_rank).sum(0, dtype=torch.int32)

    def sums(self, of_ranks: Tensor) -> Tensor:
        """Sums of rows of ranks, by host."""
        return of_ranks.new_zeros((self.count, *of_ranks.shape[1:])).index_add_(0, self.numbers, of_ranks)
