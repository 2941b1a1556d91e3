"""Collectives: what a program computes, and the chunks of each rank's input and output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from .internal.types import BufferType
from .rank import BaseBuffer

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "BaseBuffer",
    "BufferType",
    "Collective",
    "ReduceScatter",
    "SendRecv",
    "TestCollective",
]

Buffers = list[dict[BufferType, BaseBuffer]]


class Collective(ABC):
    """A collective of so many ranks. Each rank's part is ``chunk_factor`` chunks. In place or not, the program says
    which buffers it uses."""

    name = "custom"

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool = True) -> None:
        self.num_ranks = num_ranks
        self.chunk_factor = chunk_factor
        self.inplace = inplace

    @abstractmethod
    def init_buffers(self) -> Buffers:
        """The input and output of each rank."""

    def check(self, prog: Any) -> bool:
        """Nothing calls it. Classes of a program's own may have it."""
        return True

    def _each(self, inputs: int, outputs: int) -> Buffers:
        return [
            {
                BufferType.input: BaseBuffer(rank, BufferType.input, 0, inputs),
                BufferType.output: BaseBuffer(rank, BufferType.output, 0, outputs),
            }
            for rank in range(self.num_ranks)
        ]


class TestCollective(Collective):
    """A collective without a meaning, with inputs and outputs of any size."""

    __test__ = False
    name = "test"

    def __init__(self, num_ranks: int, input_size: int, output_size: int) -> None:
        super().__init__(num_ranks, 0, inplace=False)
        self.input_size = input_size
        self.output_size = output_size

    def init_buffers(self) -> Buffers:
        return self._each(self.input_size, self.output_size)


class AllGather(Collective):
    """Gives every rank the inputs of all."""

    name = "allgather"

    def init_buffers(self) -> Buffers:
        return self._each(self.chunk_factor, self.num_ranks * self.chunk_factor)


class AllReduce(Collective):
    """Gives every rank the sum of the inputs."""

    name = "allreduce"

    def init_buffers(self) -> Buffers:
        return self._each(self.num_ranks * self.chunk_factor, self.num_ranks * self.chunk_factor)


class ReduceScatter(Collective):
    """Gives every rank its part of the sum of the inputs."""

    name = "reducescatter"

    def init_buffers(self) -> Buffers:
        return self._each(self.num_ranks * self.chunk_factor, self.chunk_factor)


class AllToAll(Collective):
    """Gives every rank a part of each input."""

    name = "alltoall"

    def init_buffers(self) -> Buffers:
        return self._each(self.num_ranks * self.chunk_factor, self.num_ranks * self.chunk_factor)


class SendRecv(Collective):
    """Gives every rank the input of another."""

    name = "sendrecv"

    def init_buffers(self) -> Buffers:
        return self._each(self.chunk_factor, self.chunk_factor)
