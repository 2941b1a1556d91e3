"""A program on emulated GPUs: an array behind DLPack that says it is on one is counted there."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import weft


class OnGPU:
    """A numpy array as one on a GPU. Device memory is the process's where GPUs are emulated."""

    def __init__(self, array, gpu):
        self.array, self.gpu = array, gpu

    def __dlpack_device__(self):
        return 2, self.gpu

    def __dlpack__(self, **_):
        capsule = self.array.__dlpack__()
        at = ctypes.pythonapi.PyCapsule_GetPointer
        at.restype, at.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        device = (ctypes.c_int32 * 2).from_address(at(capsule, b"dltensor") + 8)  # behind the address of the data
        device[0], device[1] = 2, self.gpu
        return capsule


def refused(kind, words, call):
    with pytest.raises(kind, match=words):
        call()


def main():
    topk = np.array([[0, 1, -1], [2, 3, 0], [-1, -1, -1], [3, 2, 1]])
    want = weft.ep.count(topk, experts=4, ranks=2, ranks_per_node=1)
    out = [np.full_like(array, 77) for array in want]
    with weft.join(engine="gpu", gpu=1) as comm:
        counter = weft.ep.TokenCounter(comm, experts=4, ranks=2, ranks_per_node=1)
        names = weft.ep.TokenCounts._fields
        given = {name: OnGPU(array, 1) for name, array in zip(names, out, strict=True)}
        counter.count(OnGPU(topk, 1), **given, stream=weft.OWN)
        for name, got, ours in zip(names, out, want, strict=True):
            assert (got == ours).all(), name
        counter.count(OnGPU(topk, 1), rank_tokens=given["rank_tokens"], stream=weft.OWN, timeout=5)
        refused(
            weft.InvalidError,
            "tokens of ranks",
            lambda: counter.count(OnGPU(topk, 1), rank_tokens=OnGPU(out[2], 1), stream=weft.OWN),
        )
        refused(
            weft.OperandError,
            "node_tokens: it is on",
            lambda: counter.count(OnGPU(topk, 1), node_tokens=out[1], stream=weft.OWN),
        )
        counter.close()
        refused(
            weft.ClosedError, "this counter was closed", lambda: counter.count(OnGPU(topk, 1), **given, stream=weft.OWN)
        )
    print("ok")


main()
