"""Operations as they are recorded. What they become in a plan is the library's to say: package plan/lowering in Go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .types import BufferType, ChannelType, Chunk, Instruction, ReduceOperationType, RemoteBuffer, SyncType

__all__ = [
    "BarrierOperation",
    "BaseOperation",
    "CopyOperation",
    "FlushOperation",
    "GetOperation",
    "GroupLoadReduce",
    "GroupStore",
    "LocalChunk",
    "PutOperation",
    "ReduceOperation",
    "RemoteChunk",
    "SemaphoreAcquireOperation",
    "SemaphoreReleaseOperation",
    "SignalOperation",
    "SyncOperation",
    "ThreadBlockGroupInfo",
    "WaitOperation",
]

Record = dict[str, Any]


@dataclass
class LocalChunk:
    """A range of chunks of the buffer of the rank that has the operation."""

    type: BufferType
    index: int
    size: int

    def record(self, rank: int) -> Record:
        """What the library is told."""
        return {"rank": rank, "buffer": self.type.value, "index": self.index, "size": self.size}


@dataclass
class RemoteChunk:
    """A range of chunks of another rank's buffer, which is what ``setup_remote_chunk`` of a program gave."""

    type: BufferType
    index: int
    size: int
    buffer_id: RemoteBuffer

    def record(self, _rank: int) -> Record:
        """What the library is told."""
        buffer = self.buffer_id
        return {"rank": buffer.remote_rank, "buffer": buffer.type.value, "index": self.index, "size": self.size}


@dataclass
class ThreadBlockGroupInfo:
    """A block's position in a group, and how many there are."""

    tb_id: int
    tbg_size: int


def _chunks(all_of: Sequence[LocalChunk | RemoteChunk], rank: int) -> list[Record]:
    return [c.record(rank) for c in all_of]


def _group(info: ThreadBlockGroupInfo | None) -> Record:
    return {} if info is None else {"group": {"id": info.tb_id, "size": info.tbg_size}}


@dataclass
class BaseOperation:
    """An operation of one block."""

    name: ClassVar[Instruction]

    def record(self, rank: int) -> Record:
        """What the library is told, of a rank's operation."""
        return {"kind": self.name.value}


@dataclass
class SyncOperation(BaseOperation):
    """A barrier of the threads of a block."""

    name = Instruction.nop


@dataclass
class BarrierOperation(BaseOperation):
    """A barrier of several blocks."""

    name = Instruction.barrier
    rank: int
    tb_list: list[int]

    def record(self, rank: int) -> Record:
        return {**super().record(rank), "blocks": list(self.tb_list)}


@dataclass
class _Ordering(BaseOperation):
    """An operation that orders others."""

    ids: list[int]
    data_sync: SyncType = field(default=SyncType.none, kw_only=True)

    def record(self, rank: int) -> Record:
        sync = {"before": SyncType.before in self.data_sync, "after": SyncType.after in self.data_sync}
        return {**super().record(rank), **sync}


@dataclass
class _OfSemaphores(_Ordering):
    def record(self, rank: int) -> Record:
        return {**super().record(rank), "semaphores": list(self.ids)}


@dataclass
class SemaphoreAcquireOperation(_OfSemaphores):
    """Takes one of each semaphore."""

    name = Instruction.sem_acquire


@dataclass
class SemaphoreReleaseOperation(_OfSemaphores):
    """Adds one to each semaphore."""

    name = Instruction.sem_release


@dataclass
class _OfChannels(_Ordering):
    channel_type: ChannelType
    relaxed: bool = field(default=False, kw_only=True)
    weak: ClassVar[Instruction | None] = None

    def record(self, rank: int) -> Record:
        kind = self.weak if self.relaxed and self.weak is not None else self.name
        of = {"kind": kind.value, "via": self.channel_type.value, "channels": list(self.ids)}
        return {**super().record(rank), **of}


@dataclass
class SignalOperation(_OfChannels):
    """Adds one to the peer's counter of each channel."""

    name = Instruction.signal
    weak = Instruction.relaxed_signal


@dataclass
class WaitOperation(_OfChannels):
    """Waits for one more signal of each channel."""

    name = Instruction.wait
    weak = Instruction.relaxed_wait


@dataclass
class FlushOperation(_OfChannels):
    """Waits until the transfers of each channel have read their sources."""

    name = Instruction.flush


@dataclass
class _Moving(BaseOperation):
    """An operation with sources and destinations, of the kind that is given."""

    instruction: Instruction
    src_buff: list[LocalChunk | RemoteChunk]
    dst_buff: list[LocalChunk | RemoteChunk]
    channel_ids: list[int] = field(default_factory=list)
    channel_type: ChannelType = ChannelType.none
    tbg_info: ThreadBlockGroupInfo | None = None

    def record(self, rank: int) -> Record:
        return {
            "kind": self.instruction.value,
            "src": _chunks(self.src_buff, rank),
            "dst": _chunks(self.dst_buff, rank),
            "channels": list(self.channel_ids),
            "via": self.channel_type.value,
            **_group(self.tbg_info),
        }


@dataclass
class CopyOperation(_Moving):
    """Copies in a rank, to packets or from them."""


@dataclass
class GetOperation(_Moving):
    """Reads from another rank."""


@dataclass
class PutOperation(_Moving):
    """Writes to another rank."""


@dataclass
class ReduceOperation(_Moving):
    """Folds its sources."""

    reduce_operation: ReduceOperationType = field(default=ReduceOperationType.sum, kw_only=True)

    def record(self, rank: int) -> Record:
        return {**super().record(rank), "reduce": self.reduce_operation.value}


@dataclass
class _OfSwitch(BaseOperation):
    """An operation between a chunk and the chunks of a switch channel's members."""

    chunk: Chunk
    buffer_offset: int
    size: int
    channel_ids: list[int]

    def record(self, rank: int) -> Record:
        return {**super().record(rank), "via": ChannelType.switch.value, "channels": list(self.channel_ids)}

    def sides(self) -> tuple[Record, Record]:
        """The chunk, and those of the members."""
        c = self.chunk
        one = {"rank": c.rank, "buffer": c.buffer.value, "index": c.index, "size": c.size}
        return one, {"index": self.buffer_offset, "size": self.size}


@dataclass
class GroupLoadReduce(_OfSwitch):
    """Folds the members' chunks into one."""

    name = Instruction.group_load_reduce
    reduce_operation: ReduceOperationType = field(default=ReduceOperationType.sum, kw_only=True)

    def record(self, rank: int) -> Record:
        one, members = self.sides()
        return {**super().record(rank), "src": [members], "dst": [one], "reduce": self.reduce_operation.value}


@dataclass
class GroupStore(_OfSwitch):
    """Writes a chunk, or its packets, to those of all members."""

    name = Instruction.group_store
    packets: bool = field(default=False, kw_only=True)

    def record(self, rank: int) -> Record:
        one, members = self.sides()
        kind = Instruction.group_store_packet if self.packets else self.name
        return {**super().record(rank), "kind": kind.value, "src": [one], "dst": [members]}
