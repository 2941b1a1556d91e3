"""Ranks, their buffers, and what a rank does without the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Dict, List  # noqa: UP035

from .internal.globals import get_program
from .internal.operations import (
    BarrierOperation,
    BaseOperation,
    CopyOperation,
    FlushOperation,
    GetOperation,
    GroupLoadReduce,
    GroupStore,
    LocalChunk,
    PutOperation,
    ReduceOperation,
    RemoteChunk,
    SemaphoreAcquireOperation,
    SemaphoreReleaseOperation,
    SignalOperation,
    SyncOperation,
    ThreadBlockGroupInfo,
    WaitOperation,
)
from .internal.types import (
    BufferType,
    ChannelType,
    Chunk,
    Instruction,
    RankGroup,
    ReduceOperationType,
    RemoteBuffer,
    SyncType,
)
from .thread_block_group import ThreadBlockGroup, executors

# Programs import all of a module, and use what came with it.
__all__ = [
    "BarrierOperation",
    "BaseBuffer",
    "BaseOperation",
    "Buffer",
    "BufferType",
    "ChannelType",
    "Chunk",
    "CopyOperation",
    "Dict",
    "FlushOperation",
    "GetOperation",
    "GroupLoadReduce",
    "GroupStore",
    "Instruction",
    "List",
    "LocalChunk",
    "PutOperation",
    "Rank",
    "RankGroup",
    "ReduceOperation",
    "ReduceOperationType",
    "RemoteBuffer",
    "RemoteChunk",
    "Semaphore",
    "SemaphoreAcquireOperation",
    "SemaphoreReleaseOperation",
    "SignalOperation",
    "SyncOperation",
    "SyncType",
    "ThreadBlockGroup",
    "ThreadBlockGroupInfo",
    "WaitOperation",
    "dataclass",
    "defaultdict",
    "get_program",
]


def check_rank(rank: int, words: str = "Rank") -> None:
    """Refuses a rank that the active program does not have."""
    ranks = get_program().num_ranks
    if not 0 <= rank < ranks:
        raise RuntimeError(f"{words} {rank} is out of bounds. Number of ranks: {ranks}")


def local(chunk: Chunk) -> LocalChunk:
    """A chunk of the rank that has the operation."""
    return LocalChunk(chunk.buffer, chunk.index, chunk.size)


def several(chunks: Chunk | Sequence[Chunk]) -> list[Chunk]:
    """A list of chunks, or the one that stands for a list of one."""
    return [chunks] if isinstance(chunks, Chunk) else list(chunks)


class Rank:
    """A rank of the active program, and its operations."""

    def __init__(self, rank: int) -> None:
        check_rank(rank)
        self.rank = rank

    def get_input_buffer(self) -> BaseBuffer:
        """The input."""
        return get_program().buffers[self.rank][BufferType.input]

    def get_output_buffer(self) -> BaseBuffer:
        """The output."""
        return get_program().buffers[self.rank][BufferType.output]

    def copy(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Copies between buffers of the rank."""
        self._copy(Instruction.copy, dst_chunk, src_chunk, tb, tb_group)

    def unpack_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Waits for the packets of a chunk of scratch and copies their data."""
        self._copy(Instruction.unpack_packet, dst_chunk, src_chunk, tb, tb_group)

    def copy_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Copies data to scratch as packets."""
        self._copy(Instruction.copy_packet, dst_chunk, src_chunk, tb, tb_group)

    unpack_packet = unpack_packets
    copy_packet = copy_packets

    def _copy(
        self, kind: Instruction, dst: Chunk, src: Chunk, tb: int | None, tb_group: ThreadBlockGroup | None
    ) -> None:
        self._check(dst, src)
        if kind is Instruction.unpack_packet and src.buffer is not BufferType.scratch:
            raise RuntimeError("Source chunk must be of type scratch.")
        if kind is Instruction.copy_packet and dst.buffer is not BufferType.scratch:
            raise RuntimeError("Destination chunk must be of type scratch.")
        for block, part in executors(tb, tb_group):
            op = CopyOperation(kind, [local(src)], [local(dst)], tbg_info=part)
            get_program().add_operation(self.rank, block, op)

    def _check(self, dst: Chunk, src: Chunk) -> None:
        if dst.rank != self.rank or src.rank != self.rank:
            raise RuntimeError(
                f"Inconsistent ranks: dst {dst.rank}, src {src.rank}, self {self.rank}. They must match."
            )
        if dst.size != src.size:
            raise RuntimeError(f"Inconsistent chunk sizes: dst {dst.size}, src {src.size}. They must match.")

    def reduce(
        self,
        src_chunk: Chunk,
        other_chunks: Chunk | Sequence[Chunk],
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
        dst_chunk: Chunk | None = None,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
        packet: bool = False,
        op: ReduceOperationType | None = None,
    ) -> None:
        """Folds a chunk and others, or the packets of others, into ``dst_chunk``, by default the first. ``op`` is
        another name of ``reduce_op``."""
        dst, others = dst_chunk or src_chunk, several(other_chunks)
        self._check(dst, src_chunk)
        if not others:
            raise RuntimeError("Other chunk empty.")
        for chunk in others:
            if chunk.rank != self.rank:
                raise RuntimeError(f"Other chunk rank {chunk.rank} does not match current rank {self.rank}.")
            if chunk.size != src_chunk.size:
                raise RuntimeError(
                    f"Inconsistent chunk sizes: other {chunk.size}, src {src_chunk.size}. They must match."
                )
            if packet and chunk.buffer is not BufferType.scratch:
                raise RuntimeError("Other chunk must be of type scratch.")
        kind = Instruction.reduce_packet if packet else Instruction.reduce
        for block, part in executors(tb, tb_group):
            sources = [local(c) for c in (src_chunk, *others)]
            operation = ReduceOperation(kind, sources, [local(dst)], tbg_info=part, reduce_operation=op or reduce_op)
            get_program().add_operation(self.rank, block, operation)

    def barrier(self, tb_list: Sequence[int]) -> None:
        """A barrier of blocks of the rank. That of one block is one of its threads."""
        blocks = list(tb_list)
        if not blocks:
            raise RuntimeError("Barrier requires at least thread block.")
        if len(set(blocks)) < len(blocks):
            raise RuntimeError(f"Barrier of thread blocks {blocks}: one that is there twice would wait for itself.")
        op = SyncOperation() if len(blocks) == 1 else BarrierOperation(self.rank, blocks)
        for tb in blocks:
            get_program().add_operation(self.rank, tb, op)


class BaseBuffer:
    """A buffer of a rank. A slice of it is a :class:`Chunk`. ``size`` is where it ends."""

    def __init__(self, rank: int, buffer_type: BufferType, offset: int, size: int) -> None:
        self.rank = rank
        self.buffer_type = buffer_type
        self.offset = offset
        self.size = offset + size

    def __getitem__(self, key: slice) -> Chunk:
        if not isinstance(key, slice):
            raise TypeError(f"Buffer indices must be slices, not {type(key).__name__}")
        if key.step not in (None, 1):
            raise ValueError(f"Buffer slicing does not support step != 1 (got step={key.step})")
        start = 0 if key.start is None else key.start
        stop = self.size - self.offset if key.stop is None else key.stop
        if start < 0 or stop < 0:
            raise ValueError(
                f"Buffer slicing does not support negative indices (got start={key.start}, stop={key.stop})"
            )
        if start > stop:
            raise ValueError(f"Buffer slice start ({start}) must be <= stop ({stop})")
        if self.offset + stop > self.size:
            raise RuntimeError(
                f"Index range from {self.offset + start} - {self.offset + stop} is out of bounds for buffer "
                f"{self.buffer_type}. Buffer size: {self.size}"
            )
        return Chunk(self.rank, self.buffer_type, self.offset + start, stop - start)


class Buffer(BaseBuffer):
    """Scratch of a rank, behind what it has already."""

    def __init__(self, rank: int, size: int) -> None:
        check_rank(rank)
        if size < 0:
            raise RuntimeError(f"Buffer size {size} is negative.")
        gpu = get_program().gpus[rank]
        super().__init__(rank, BufferType.scratch, gpu.scratch_chunks, size)
        gpu.scratch_chunks += size


class Semaphore:
    """A counting semaphore between blocks of a rank."""

    def __init__(self, rank: int, initial_value: int) -> None:
        check_rank(rank, "Source rank")
        self.rank = rank
        self.initial_value = initial_value
        self.id = get_program().add_semaphore(self)

    def acquire(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Takes one, and waits while there is none."""
        get_program().add_operation(self.rank, tb, SemaphoreAcquireOperation([self.id], data_sync=data_sync))

    def release(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Adds one."""
        get_program().add_operation(self.rank, tb, SemaphoreReleaseOperation([self.id], data_sync=data_sync))
