"""Channels: how a rank's blocks reach other ranks."""

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
from .rank import check_rank, local, several
from .thread_block_group import ThreadBlockGroup, executors

# Programs import all of a module, and use what came with it.
__all__ = [
    "BarrierOperation",
    "BaseOperation",
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
    "MemoryChannel",
    "PortChannel",
    "PutOperation",
    "RankGroup",
    "ReduceOperation",
    "ReduceOperationType",
    "RemoteBuffer",
    "RemoteChunk",
    "SemaphoreAcquireOperation",
    "SemaphoreReleaseOperation",
    "SignalOperation",
    "SwitchChannel",
    "SyncOperation",
    "SyncType",
    "ThreadBlockGroup",
    "ThreadBlockGroupInfo",
    "WaitOperation",
    "dataclass",
    "defaultdict",
    "get_program",
]


class _Channel:
    """This rank's end of a channel to one peer. The k-th of a type to a peer is the other end of that peer's k-th to
    this rank."""

    channel_type: ChannelType

    def __init__(self, dst_rank: int, src_rank: int) -> None:
        check_rank(src_rank, "Source rank")
        check_rank(dst_rank, "Destination rank")
        if src_rank == dst_rank:
            raise RuntimeError(f"Channel from rank {src_rank} to itself; the two ranks must differ.")
        self.dst_rank = dst_rank
        self.src_rank = src_rank
        self.channel_id = get_program().add_channel(self)

    def _signal(self, tb: int, data_sync: SyncType, relaxed: bool = False) -> None:
        program = get_program()
        program.register_signal(self.src_rank, self.dst_rank, self.channel_type)
        ids = program.setup_channel(tb, self)
        op = SignalOperation(ids, self.channel_type, data_sync=data_sync, relaxed=relaxed)
        program.add_operation(self.src_rank, tb, op)

    def _wait(self, tb: int, data_sync: SyncType, relaxed: bool = False) -> None:
        program = get_program()
        program.register_wait(self.src_rank, self.dst_rank, self.channel_type)
        ids = program.setup_channel(tb, self)
        op = WaitOperation(ids, self.channel_type, data_sync=data_sync, relaxed=relaxed)
        program.add_operation(self.src_rank, tb, op)

    def _put(
        self,
        kind: Instruction,
        dst: Chunk,
        src: Chunk,
        tb: int | None,
        tb_group: ThreadBlockGroup | None = None,
        error: type[Exception] = RuntimeError,
    ) -> None:
        """A put of any kind."""
        if src.rank != self.src_rank:
            raise RuntimeError(
                f"Source chunk rank {src.rank} does not match current channel source rank {self.src_rank}."
            )
        if kind is Instruction.read_put_packet and src.buffer is not BufferType.scratch:
            raise RuntimeError("Source chunk must be of type scratch.")
        if dst.rank != self.dst_rank:
            raise RuntimeError(f"Dst chunk rank {dst.rank} does not match current channel dst rank {self.dst_rank}.")
        packets = kind in (Instruction.put_packet, Instruction.read_put_packet)
        if packets and dst.buffer is not BufferType.scratch:
            raise RuntimeError("Destination chunk must be of type scratch.")
        self._same_size(dst, src)
        program = get_program()
        for block, part in executors(tb, tb_group, error):
            to = self._remote(block, dst)
            ids = program.setup_channel(block, self)
            op = PutOperation(kind, [local(src)], [to], ids, self.channel_type, part)
            program.add_operation(self.src_rank, block, op)

    def _remote(self, tb: int, chunk: Chunk) -> RemoteChunk:
        """A chunk of the peer, as a block sees it."""
        buffer = RemoteBuffer(self.src_rank, chunk.rank, chunk.buffer, self.channel_type)
        found = get_program().setup_remote_chunk(self.src_rank, tb, buffer, self.channel_type)
        return RemoteChunk(chunk.buffer, chunk.index, chunk.size, found)

    @staticmethod
    def _same_size(dst: Chunk, src: Chunk) -> None:
        if dst.size != src.size:
            raise RuntimeError(f"Destination chunk size {dst.size} does not match source chunk size {src.size}.")


class MemoryChannel(_Channel):
    """A channel through memory that this rank maps of a peer."""

    channel_type = ChannelType.memory

    def signal(self, tb: int, data_sync: SyncType = SyncType.both, relaxed: bool = False) -> None:
        """Adds one to the peer's counter, after what the block wrote before; relaxed, without that order."""
        self._signal(tb, data_sync, relaxed)

    def wait(self, tb: int, data_sync: SyncType = SyncType.both, relaxed: bool = False) -> None:
        """Waits for one more signal of the peer."""
        self._wait(tb, data_sync, relaxed)

    def get(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Reads a chunk of the peer."""
        if dst_chunk.rank != self.src_rank:
            raise RuntimeError(
                f"Source chunk rank {dst_chunk.rank} does not match current channel source rank {self.src_rank}."
            )
        if src_chunk.rank != self.dst_rank:
            raise RuntimeError(
                f"Dst chunk rank {src_chunk.rank} does not match current channel dst rank {self.dst_rank}."
            )
        self._same_size(dst_chunk, src_chunk)
        program = get_program()
        for block, part in executors(tb, tb_group):
            of = self._remote(block, src_chunk)
            ids = program.setup_channel(block, self)
            op = GetOperation(Instruction.get, [of], [local(dst_chunk)], ids, self.channel_type, part)
            program.add_operation(self.src_rank, block, op)

    def put(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Writes a chunk of the peer."""
        self._put(Instruction.put, dst_chunk, src_chunk, tb, tb_group)

    def put_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Writes data as packets to the peer's scratch."""
        self._put(Instruction.put_packet, dst_chunk, src_chunk, tb, tb_group)

    def read_put_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Waits for packets of scratch and writes them to the peer's."""
        self._put(Instruction.read_put_packet, dst_chunk, src_chunk, tb, tb_group, ValueError)

    put_packet = put_packets
    read_put_packet = read_put_packets

    def reduce(
        self,
        local_src_chunk: Chunk,
        remote_src_chunks: Chunk | Sequence[Chunk],
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
        local_dst_chunk: Chunk | None = None,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
    ) -> None:
        """Folds a chunk of this rank and chunks of the peer into ``local_dst_chunk``, by default the first."""
        src, dst, remote = local_src_chunk, local_dst_chunk or local_src_chunk, several(remote_src_chunks)
        for chunk in (src, dst):
            if chunk.rank != self.src_rank:
                raise RuntimeError(
                    f"Destination chunk rank {chunk.rank} does not match current channel source rank {self.src_rank}."
                )
        if src.size != dst.size:
            raise RuntimeError(f"Source chunk size {src.size} does not match destination chunk size {dst.size}.")
        if not remote:
            raise RuntimeError("Remote source chunk empty.")
        for chunk in remote:
            if chunk.rank != self.dst_rank:
                raise RuntimeError(
                    f"Source chunk rank {chunk.rank} does not match current channel dst rank {self.dst_rank}."
                )
            if chunk.size != src.size:
                raise RuntimeError(f"Source chunk size {chunk.size} does not match local source chunk size {src.size}.")
        program = get_program()
        for block, part in executors(tb, tb_group):
            of = [self._remote(block, c) for c in remote]
            ids = program.setup_channel(block, self)
            op = ReduceOperation(
                Instruction.read_reduce,
                [local(src), *of],
                [local(dst)],
                ids,
                self.channel_type,
                part,
                reduce_operation=reduce_op,
            )
            program.add_operation(self.src_rank, block, op)


class PortChannel(_Channel):
    """A channel whose transfers a proxy makes."""

    channel_type = ChannelType.port

    def signal(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Adds one to the peer's counter, after the transfers of the channel before."""
        self._signal(tb, data_sync)

    def wait(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Waits for one more signal of the peer."""
        self._wait(tb, data_sync)

    def flush(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Waits until the transfers of the channel have read their sources."""
        program = get_program()
        ids = program.setup_channel(tb, self)
        program.add_operation(self.src_rank, tb, FlushOperation(ids, self.channel_type, data_sync=data_sync))

    def put(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """Writes a chunk of the peer. The source is read until a flush."""
        self._put(Instruction.put, dst_chunk, src_chunk, tb)

    def put_with_signal(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """A put and a signal."""
        self._put(Instruction.put_with_signal, dst_chunk, src_chunk, tb)
        get_program().register_signal(self.src_rank, self.dst_rank, self.channel_type)

    def put_with_signal_and_flush(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """A put, a signal and a flush."""
        self._put(Instruction.put_with_signal_and_flush, dst_chunk, src_chunk, tb)
        get_program().register_signal(self.src_rank, self.dst_rank, self.channel_type)

    def put_packets(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """Writes a chunk of scratch, which must have packets when it runs, to the peer's."""
        self._put(Instruction.put_packet, dst_chunk, src_chunk, tb)

    def read_put_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Waits for packets of scratch and writes them to the peer's."""
        self._put(Instruction.read_put_packet, dst_chunk, src_chunk, tb, tb_group, ValueError)

    put_packet = put_packets
    read_put_packet = read_put_packets


class SwitchChannel:
    """A channel to a buffer of several ranks at once."""

    channel_type = ChannelType.switch

    def __init__(self, rank_list: Sequence[int], buffer_type: BufferType) -> None:
        program, members = get_program(), list(rank_list)
        if not all(0 <= rank < program.num_ranks for rank in members):
            raise RuntimeError(
                f"One or more ranks in {members} are out of bounds. Number of ranks: {program.num_ranks}"
            )
        if len(set(members)) < len(members):
            raise RuntimeError(f"One or more ranks in {members} are there twice.")
        self.buffer_type = buffer_type
        self.rank_group = RankGroup(len(members), members)
        self.channel_ids: dict[int, int] = program.add_channel(self)

    def at_rank(self, rank: int) -> SwitchChannelRankView:
        """The channel as one of its members has it."""
        self._check_member(rank)
        return SwitchChannelRankView(self, rank)

    def _check_member(self, rank: int) -> None:
        if rank not in self.rank_group.ranks:
            raise RuntimeError(f"Rank {rank} is not part of this SwitchChannel's rank group.")

    def reduce(
        self,
        rank: int,
        buffer_offset: int,
        size: int,
        dst_chunk: Chunk,
        tb: int,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
    ) -> None:
        """Folds the members' chunks into one of the rank."""
        self._check(rank, dst_chunk, buffer_offset, size)
        ids = get_program().setup_channel(tb, self, rank)
        op = GroupLoadReduce(dst_chunk, buffer_offset, size, ids, reduce_operation=reduce_op)
        get_program().add_operation(rank, tb, op)

    def broadcast(self, rank: int, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        """Writes a chunk of the rank to all members."""
        self._store(rank, src_chunk, buffer_offset, size, tb, packets=False)

    def broadcast_packets(self, rank: int, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        """Waits for packets of the rank's scratch and writes them to all members'."""
        self._store(rank, src_chunk, buffer_offset, size, tb, packets=True)

    def _store(self, rank: int, src: Chunk, buffer_offset: int, size: int, tb: int, *, packets: bool) -> None:
        if packets and src.buffer is not BufferType.scratch:
            raise RuntimeError("Source chunk must be of type scratch for the packet broadcast.")
        if packets and self.buffer_type is not BufferType.scratch:
            raise RuntimeError("Switch channel must be of type scratch for the packet broadcast.")
        self._check(rank, src, buffer_offset, size)
        ids = get_program().setup_channel(tb, self, rank)
        get_program().add_operation(rank, tb, GroupStore(src, buffer_offset, size, ids, packets=packets))

    def _check(self, rank: int, chunk: Chunk, offset: int, size: int) -> None:
        self._check_member(rank)
        members, program = self.rank_group.ranks, get_program()
        if chunk.rank not in members:
            raise RuntimeError(f"Destination chunk rank {chunk.rank} is not part of the rank group {members}.")
        if chunk.rank != rank:
            raise RuntimeError(f"Destination chunk rank {chunk.rank} does not match the rank {rank} that uses it.")
        if chunk.size != size:
            raise RuntimeError(f"Destination chunk size {chunk.size} does not match the required size {size}.")
        if offset < 0:
            raise RuntimeError(f"Buffer offset {offset} is negative.")
        for member in members:
            if self.buffer_type is BufferType.scratch:
                has = program.gpus[member].scratch_chunks
            else:
                has = program.buffers[member][self.buffer_type].size
            if has < offset + size:
                raise RuntimeError(
                    f"Buffer size {has} is smaller than required size {offset + size} for rank {member}."
                )


class SwitchChannelRankView:
    """A switch channel as one of its members has it."""

    def __init__(self, channel: SwitchChannel, rank: int) -> None:
        self._channel = channel
        self._rank = rank

    def reduce(
        self,
        buffer_offset: int,
        size: int,
        dst_chunk: Chunk,
        tb: int,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
    ) -> None:
        """Folds the members' chunks into one of the rank."""
        self._channel.reduce(self._rank, buffer_offset, size, dst_chunk, tb, reduce_op)

    def broadcast(self, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        """Writes a chunk of the rank to all members."""
        self._channel.broadcast(self._rank, src_chunk, buffer_offset, size, tb)

    def broadcast_packets(self, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        """Waits for packets of the rank's scratch and writes them to all members'."""
        self._channel.broadcast_packets(self._rank, src_chunk, buffer_offset, size, tb)
