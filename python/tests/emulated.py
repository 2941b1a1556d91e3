"""GPUs that the host's processors emulate, for tests: the library that has them, and arrays of theirs.

Device memory is the process's there, and ranks are its threads. So numpy arrays stand for arrays on a
GPU, behind objects that say by DLPack or by ``__cuda_array_interface__`` that they are on one, as other
libraries' arrays do.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import dlpack

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "emulated"
HERE = "WEFT_EMULATED" in os.environ  # whether this process is one that has the library


def environment():
    """What a process has in its environment that has the library, which is built here if need be."""
    if shutil.which("go") is None or not (ROOT / "clib").is_dir():
        pytest.skip("the library on emulated GPUs is built by Go, of the source tree")
    if shutil.which(os.environ.get("WEFT_CXX", "g++")) is None and shutil.which("clang++") is None:
        pytest.skip("kernels are emulated by what a C++ compiler makes of them")
    FOLDER.mkdir(parents=True, exist_ok=True)
    library = FOLDER / "libweft.so"
    subprocess.run(
        [
            "go",
            "build",
            "-trimpath",  # as scripts/clib.sh, whose compiled packages it shares
            "-tags",
            "emulated",
            "-buildmode=c-shared",
            "-ldflags=-s -w -extldflags '-Wl,-soname,libweft.so'",
            "-o",
            str(library),
            "./clib",
        ],
        cwd=ROOT,
        env=os.environ | {"CGO_ENABLED": "1"},
        check=True,
    )
    compiled = ROOT / "build" / "clib" / "_native.abi3.so"
    if compiled.exists():
        put(compiled, FOLDER)
    return {"WEFT_LIBRARY": str(library), "WEFT_EMULATED": "1"}


def put(library, folder):
    """Puts a library into a folder under its name, as a new file: a process that has the one there loaded goes on with
    that. Writing into it would take its data from under that process, which then ends by a segmentation fault."""
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as new:
        shutil.copyfile(library, new.name)
    shutil.copymode(library, new.name)
    os.replace(new.name, Path(folder) / Path(library).name)


class OnGPU:
    """A numpy array as an array on a GPU of a library that has DLPack."""

    def __init__(self, array, gpu, dtype=None):
        self.array, self.gpu = array, gpu
        self.dtype = dtype or weft.DType[array.dtype.name]
        self.streams = []  # that takers have named

    def __dlpack_device__(self):
        return dlpack.CUDA, self.gpu

    def __dlpack__(self, *, stream=None, **_):
        self.streams.append(stream)
        return dlpack.show(self.array.ctypes.data, self.dtype, self.array.shape, self.gpu, self.array)


class Interface:
    """The same of a library that has ``__cuda_array_interface__`` alone."""

    def __init__(self, array, **other):
        self.array = array
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3, "stream": None} | other


def numpy_of(x):
    """A copy of an array that was received on a GPU; None for none."""
    if x is None:
        return None
    assert isinstance(x, weft.DeviceArray)
    raw = (ctypes.c_ubyte * x.nbytes).from_address(x.address) if x.nbytes else b""
    return np.frombuffer(raw, weft.memory.numpy_dtype(x.dtype)).reshape(x.shape).copy()


def fill(x, array):
    """Writes into an array that was received on a GPU."""
    ctypes.memmove(x.address, np.ascontiguousarray(array).ctypes.data, x.nbytes)


def tensors_on_gpus(monkeypatch):
    """Has PyTorch's tensors of the host stand for tensors on GPUs: the package takes them, and makes such ones."""
    import torch

    from weft import compiled, memory, operands

    if compiled.knows(torch):
        compiled.NATIVE.emulate(True)
        monkeypatch.setattr(memory, "torch_device", lambda _: torch.device("cpu"))
    read, empty, say = operands._torch_reader(torch), memory.empty, dlpack._Block.say

    def of_gpu(slot, x):
        device, slot.device = slot.device, -1
        try:
            read(slot, x)
        finally:
            slot.device = device

    def say_of_host(block, *arguments):
        say(block, *arguments)
        ctypes.c_int32.from_address(block.at + 8).value = 1  # the host's memory

    monkeypatch.setitem(operands._READERS, torch.Tensor, of_gpu)
    monkeypatch.setitem(operands._READERS, torch.nn.Parameter, of_gpu)
    monkeypatch.setattr(dlpack._Block, "say", say_of_host)
    monkeypatch.setattr(
        memory,
        "empty",
        lambda kind, shape, dtype, device: empty(kind, shape, dtype, -1 if kind == memory.TORCH else device),
    )
