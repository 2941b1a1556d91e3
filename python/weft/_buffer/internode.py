"""DeepEP's handle of dispatches between hosts."""

from __future__ import annotations

import torch
from torch import Tensor

from .hosts import Hosts
from .normal import DispatchHandle, Went, arrivals, departures
from .traces import leave

_HEADS = 8  # columns of send_nvl_head


class InternodeHandle(DispatchHandle):
    """DeepEP's handle of a dispatch between nodes, and the routing.

    That is (is_token_in_rank, rdma_channel_prefix_matrix, gbl_channel_prefix_matrix, recv_rdma_channel_prefix_matrix,
    recv_rdma_rank_prefix_sum, recv_gbl_channel_prefix_matrix, recv_gbl_rank_prefix_sum, recv_src_meta, send_rdma_head,
    send_nvl_head), made when it is read. What DeepEP counts where a node forwards, this counts of rows that the rank
    itself receives; nothing is forwarded by rings, so send_nvl_head is -1.
    """

    _length = 10
    _hosts: Hosts

    @classmethod
    def of(cls, handle: DispatchHandle, hosts: Hosts) -> InternodeHandle:
        """The same dispatch's."""
        if isinstance(handle, cls):
            return handle
        made = cls()
        made.__dict__.update(handle.__dict__)
        made._made, made._hosts = None, hosts
        return made

    def _make(self) -> tuple[Tensor, ...]:
        everyone, sources, _, arrived = arrivals(*self._of)
        in_rank, channels, hosts = self._of[1], self._of[3], self._hosts
        of_ranks = everyone[:, 1 + hosts.rank].cumsum(0, dtype=torch.int32)
        of_hosts = hosts.sums(everyone[:, 1 + hosts.rank]).cumsum(0, dtype=torch.int32)
        to_hosts, numbers = departures(hosts.within(in_rank), channels)
        exists = sources >= 0
        numbered = hosts.numbers.int()
        meta = torch.stack((numbered[torch.where(exists, sources, 0).long()], exists.int() * hosts.bit), 1)
        made = (
            in_rank,
            to_hosts,
            departures(in_rank, channels)[0],
            hosts.sums(arrived).cumsum(1, dtype=torch.int32),
            of_hosts,
            (of_ranks - everyone[:, 1 + hosts.rank])[:, None] + (arrived.cumsum(1) - arrived).int(),
            of_ranks,
            meta.view(torch.uint8),
            numbers,
            torch.full((sources.shape[0], _HEADS), -1, dtype=torch.int32, device=sources.device),
        )
        leave(of_hosts, Went(self.route, self.received))
        return made
