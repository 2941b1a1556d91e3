"""The older name of DeepEP's extension module."""

from deep_ep._C import Config, EventHandle, get_low_latency_rdma_size_hint, is_sm90_compiled, topk_idx_t

__all__ = ["Config", "EventHandle", "get_low_latency_rdma_size_hint", "is_sm90_compiled", "topk_idx_t"]


def __getattr__(name: str) -> object:
    from deep_ep import _C

    return getattr(_C, name)
