"""What ranks under torchrun do: one function a test, named on the command line."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import weft

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def exchange(c):
    assert (c.rank, c.ranks) == (RANK, RANKS)
    with weft.Group(c) as g:
        assert g.all_gather(torch.tensor([c.rank])).flatten().tolist() == list(range(RANKS))


def process_group():
    dist.init_process_group("gloo")
    for _ in range(2):
        with weft.Communicator.from_process_group(deadline=20) as c:
            exchange(c)
    alone = dist.new_group([0])
    if RANK == 0:
        with weft.Communicator.from_process_group(alone) as c:
            assert c.ranks == 1
    dist.destroy_process_group()


def store():
    s = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), RANKS, RANK == 0, timedelta(seconds=20))
    for name in ("one", "one", "two"):
        with weft.Communicator.from_store(s, RANK, RANKS, name=name, deadline=20) as c:
            exchange(c)


def torchrun():
    dist.init_process_group("gloo")  # its store is up, and weft joins through it
    with weft.join(deadline=20) as c:
        exchange(c)
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("ok")
