"""The start of exchange tests: seeds, process groups, printing once."""

from __future__ import annotations

import os
import random
from typing import Any

import torch
import torch.distributed as dist

import weft

_seeds = {"global": 0, "local": 0}


def init_seed(global_seed: int) -> None:
    """Seeds every generator, differently on each rank."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    _seeds.update({"global": global_seed, "local": global_seed + rank})
    random.seed(_seeds["local"])
    torch.manual_seed(_seeds["local"])


def get_local_seed() -> int:
    return _seeds["local"]


def get_global_seed() -> int:
    return _seeds["global"]


def dist_print(s: str = "", once_in_node: bool = False) -> None:
    """Prints on every rank, or on the first of a node; ranks wait for each other."""
    if not once_in_node or int(os.environ.get("LOCAL_RANK", dist.get_rank())) == 0:
        print(s, flush=True)
    dist.barrier()


def init_dist(local_rank: int, num_local_ranks: int, seed: int = 0) -> tuple[int, int, Any]:
    """Makes the process group of all ranks: rank, ranks, group. WORLD_SIZE and RANK count nodes; on
    machines with GPUs tensors are on them by default."""
    nodes, node = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    address = f"tcp://{os.environ.get('MASTER_ADDR', '127.0.0.1')}:{os.environ.get('MASTER_PORT', '8361')}"
    gpus = torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(local_rank)
        torch.set_default_device("cuda")
    torch.set_default_dtype(torch.bfloat16)
    dist.init_process_group(
        "nccl" if gpus else "gloo",
        init_method=address,
        world_size=nodes * num_local_ranks,
        rank=node * num_local_ranks + local_rank,
    )
    init_seed(seed)
    return dist.get_rank(), dist.get_world_size(), dist.new_group(list(range(nodes * num_local_ranks)))


def get_physical_domain_size(group: Any) -> tuple[int, int]:
    """How many nodes there are, and ranks of each that reach each other's memory. All ranks are of one."""
    return 1, dist.get_world_size(group)


def get_logical_domain_size(group: Any, allow_hybrid_mode: bool = True) -> tuple[int, int]:
    """The same as exchanges see it."""
    return 1, dist.get_world_size(group)


def check_nvlink_connections(group: Any) -> None:
    """Nothing: joining detects and reports GPUs that cannot reach each other."""


# GB/s of a GPU's links in one direction, by its compute capability.
_NVLINK = {8: 300, 9: 450, 10: 900}


def get_nvlink_gbs(factor: float = 0.9) -> float:
    """The GB/s of a GPU's links, by the kind of GPU; without a GPU those of an H200."""
    major = torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else 9
    return factor * _NVLINK.get(major, 450)


def get_rdma_gbs(nic_name: str = "") -> float:
    """Refused: exchanges use no network card."""
    raise weft.UnsupportedError("get_rdma_gbs: exchanges stay on one host, and use no network card")
