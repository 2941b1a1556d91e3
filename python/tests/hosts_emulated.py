"""Ranks on emulated GPUs of several hosts, each of which is a process whose threads are the ranks there. Arguments are
the names of the ranks' hosts, the host that this process is, and a file through which the ranks meet. test_gpu.py
starts them."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import emulated
import internode
import original
import pytest
import torch

import weft
from mscclpp.ext import ep


def meet(file, n, make):
    """The n-th id, which the host of rank 0 makes."""
    file = file.with_suffix(f".{n}")
    if make:
        made = weft.UniqueId.create("lo")
        file.with_suffix(".new").write_text(str(made))
        file.with_suffix(".new").rename(file)
        return made
    end = time.monotonic() + 100
    while not file.exists():
        assert time.monotonic() < end, "the host of rank 0 makes no id"
        time.sleep(0.01)
    return file.read_text()


def at_once(work, ranks):
    """Does a rank's work for each in a thread of its own, and returns what it returns, by rank."""
    found, errors = {}, []

    def rank(r):
        try:
            found[r] = work(r)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=rank, args=(r,), daemon=True) for r in ranks]
    for t in threads:
        t.start()
    for t in threads:
        t.join(200)
        assert not t.is_alive(), "a rank does not come back"
    for e in errors:
        raise e
    return found


def main(hosts, host, file):
    here = [r for r, name in enumerate(hosts) if name == host]
    ids = [meet(Path(file), n, 0 in here) for n in range(3)]

    def join(n, r, **options):
        return weft.Communicator.from_unique_id(ids[n], r, len(hosts), deadline=100, **options)

    def on_gpu(n, r):
        return join(n, r, engine="gpu", gpu=here.index(r))

    def of_mscclpp(r):
        b = ep.Buffer.from_communicator(on_gpu(2, r))
        original.low_latency(b, 9, 512, 3, 2)
        original.internode(b, [sorted(set(hosts)).index(name) for name in hosts])

    of_host = at_once(lambda r: internode.returned(join(0, r), "cpu"), here)
    with pytest.MonkeyPatch.context() as patch:
        emulated.tensors_on_gpus(patch)
        of_gpu = at_once(lambda r: internode.returned(on_gpu(1, r), "cpu"), here)
        at_once(of_mscclpp, here)
    for r in here:
        assert of_gpu[r].keys() == of_host[r].keys()
        for name, want in of_host[r].items():
            got = of_gpu[r][name]
            assert (got.dtype, got.shape) == (want.dtype, want.shape), name
            assert torch.equal(got.view(torch.uint8), want.view(torch.uint8)), f"rank {r}: {name}"
    print("same bits", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
