"""Kernel tuning of DeepEP and MSCCL++. Weft chooses by itself; sizes and tables are kept for code that
computes with them."""

from __future__ import annotations

from .errors import require

_NVL_PEERS = 8
_MAX_TOPK = 128
_INDEX_BYTES = 8


class Config:
    """Numbers of multiprocessors and chunks, as the originals take them. On the host they say nothing
    but into how many channels a handle's matrices count."""

    def __init__(
        self,
        num_sms: int = 20,
        num_max_nvl_chunked_send_tokens: int = 6,
        num_max_nvl_chunked_recv_tokens: int = 256,
        num_max_rdma_chunked_send_tokens: int = 6,
        num_max_rdma_chunked_recv_tokens: int = 256,
    ) -> None:
        require(num_sms >= 0, f"num_sms is {num_sms}")
        require(
            0 < num_max_nvl_chunked_send_tokens < num_max_nvl_chunked_recv_tokens,
            f"chunks of {num_max_nvl_chunked_send_tokens} tokens are sent and of "
            f"{num_max_nvl_chunked_recv_tokens} received: receive more than is sent",
        )
        # The received bytes are a multiple of the sent ones.
        received = (
            -(-num_max_rdma_chunked_recv_tokens // max(num_max_rdma_chunked_send_tokens, 1))
            * num_max_rdma_chunked_send_tokens
        )
        require(
            0 < num_max_rdma_chunked_send_tokens <= received // 2,
            f"chunks of {num_max_rdma_chunked_send_tokens} tokens are sent between nodes and of {received} "
            f"received: receive twice as much",
        )
        self.num_sms = num_sms
        self.num_max_nvl_chunked_send_tokens = num_max_nvl_chunked_send_tokens
        self.num_max_nvl_chunked_recv_tokens = num_max_nvl_chunked_recv_tokens
        self.num_max_rdma_chunked_send_tokens = num_max_rdma_chunked_send_tokens
        self.num_max_rdma_chunked_recv_tokens = received

    @property
    def channels(self) -> int:
        return max(1, self.num_sms // 2)

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes that the originals' buffers need within a node. Weft chooses its own resources."""
        ranks, nodes = min(num_ranks, _NVL_PEERS), max(num_ranks // _NVL_PEERS, 1)
        token = hidden_bytes + 8 + _MAX_TOPK * (_INDEX_BYTES + 4 + 4)
        return _align(self.channels * ranks * ((2 * nodes + 3) * 4 + self.num_max_nvl_chunked_recv_tokens * token))

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes that the originals' buffers need between nodes; 0 within one."""
        if num_ranks <= _NVL_PEERS:
            return 0
        token = hidden_bytes + 8 + _MAX_TOPK * (_INDEX_BYTES + 4 + 4) + 16
        return _align(
            2 * self.channels * (num_ranks // _NVL_PEERS) * (18 * 4 + self.num_max_rdma_chunked_recv_tokens * token)
        )


def low_latency_size(tokens: int, hidden: int, experts: int) -> int:
    """Bytes that DeepEP's buffer needs for low-latency exchanges."""
    return _low_latency_size(tokens, hidden, experts, 2 * hidden + hidden // 128 * 4, _align(4 * experts))


def low_latency_size_of_mscclpp(tokens: int, hidden: int, experts: int) -> int:
    """Bytes that MSCCL++'s buffer needs for low-latency exchanges: counters are of 8 bytes there, and
    rows that are combined have no scales."""
    return _low_latency_size(tokens, hidden, experts, 2 * hidden, 8 * experts)


def _low_latency_size(tokens: int, hidden: int, experts: int, combined: int, signals: int) -> int:
    """Two buffers each of sent rows, of received rows, and of signals; ``combined`` bytes of a row on its way
    home."""
    dispatched = 16 + max(2 * hidden, hidden + hidden // 128 * 4)
    sent = max(tokens * dispatched, experts * tokens * combined)
    received = experts * tokens * max(dispatched, combined)
    return (2 * (sent + received + signals) + 128) // 128 * 128


def _align(n: int) -> int:
    return -(-n // 128) * 128


# Chunks by number of ranks: nvl sent, nvl received, rdma sent, rdma received.
DISPATCH = {
    2: (24, 256, 6, 128),
    4: (6, 256, 6, 128),
    8: (6, 256, 6, 128),
    16: (36, 288, 20, 128),
    **dict.fromkeys((24, 32, 48, 64), (32, 288, 8, 128)),
    96: (20, 480, 12, 128),
    128: (20, 560, 12, 128),
    144: (32, 720, 12, 128),
    160: (28, 720, 12, 128),
}
COMBINE = {
    2: (10, 256, 6, 128),
    4: (9, 256, 6, 128),
    8: (4, 256, 6, 128),
    16: (4, 288, 12, 128),
    **dict.fromkeys((24, 32, 48, 64), (1, 288, 8, 128)),
    96: (1, 480, 8, 128),
    128: (1, 560, 8, 128),
    **dict.fromkeys((144, 160), (2, 720, 8, 128)),
}


def chunks(table: dict[int, tuple[int, int, int, int]], ranks: int, sms: int) -> Config:
    require(
        ranks in table,
        f"there is no configuration for {ranks} ranks, but for {', '.join(map(str, table))}: make a Config",
    )
    return Config(sms, *table[ranks])
