"""Programs: what is recorded between the beginning and the end of a with block, and the plan of it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List  # noqa: UP035

from weft import plan

from .channel import MemoryChannel, PortChannel, SwitchChannel
from .collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    BaseBuffer,
    Collective,
    ReduceScatter,
    SendRecv,
    TestCollective,
)
from .internal.globals import get_program, set_program
from .internal.gpu import Gpu
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
    ReplicationPolicy,
    SyncType,
)
from .rank import Semaphore
from .thread_block_group import ThreadBlockGroup
from .utils import AlgoSpec

if TYPE_CHECKING:
    from typing import Self

    from .loop import LoopIterationContext

# Programs import all of a module, and use what came with it.
__all__ = [
    "AlgoSpec",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "BarrierOperation",
    "BaseBuffer",
    "BaseOperation",
    "BufferType",
    "ChannelType",
    "Chunk",
    "Collective",
    "CollectiveProgram",
    "CopyOperation",
    "Dict",
    "FlushOperation",
    "GetOperation",
    "Gpu",
    "GroupLoadReduce",
    "GroupStore",
    "Instruction",
    "List",
    "LocalChunk",
    "MSCCLPPProgram",
    "MemoryChannel",
    "PortChannel",
    "PutOperation",
    "RankGroup",
    "ReduceOperation",
    "ReduceOperationType",
    "ReduceScatter",
    "RemoteBuffer",
    "RemoteChunk",
    "ReplicationPolicy",
    "Semaphore",
    "SemaphoreAcquireOperation",
    "SemaphoreReleaseOperation",
    "SendRecv",
    "SignalOperation",
    "SwitchChannel",
    "SyncOperation",
    "SyncType",
    "TestCollective",
    "ThreadBlockGroup",
    "ThreadBlockGroupInfo",
    "WaitOperation",
    "dataclass",
    "defaultdict",
    "get_program",
    "json",
    "set_program",
]


class CollectiveProgram:
    """A program for all ranks. What its with block calls is recorded, and :meth:`to_json` makes the plan.

    The plan is the one that MSCCL++ makes, byte for byte, where that means something else than the program, too.
    ``sound`` is Weft's own: with it operations are fused, and threads of a block ordered, by rules that keep the
    meaning. docs/guides/mscclpp.md says what differs.
    """

    def __init__(
        self,
        name: str,
        collective: Collective,
        num_ranks: int,
        instances: int = 1,
        protocol: str = "Simple",
        instr_fusion: bool = True,
        auto_sync: bool = True,
        replication_policy: ReplicationPolicy = ReplicationPolicy.interleaved,
        reuse_resources: bool = False,
        num_threads_per_block: int = 1024,
        use_double_scratch_buffer: bool = False,
        buffer_alignment: int = 16,
        min_message_size: int = 0,
        max_message_size: int = 2**64 - 1,
        *,
        sound: bool = False,
    ) -> None:
        if protocol not in ("Simple", "LL"):
            raise AssertionError(f"Given protocol: {protocol}. Must be either Simple, LL")
        self.name = name
        self.collective = collective
        self.num_ranks = num_ranks
        self.instances = instances
        self.protocol = protocol
        self.instr_fusion = instr_fusion
        self.auto_sync = auto_sync
        self.replication_policy = replication_policy
        self.reuse_resources = reuse_resources
        self.num_threads_per_block = num_threads_per_block
        self.use_double_scratch_buffer = use_double_scratch_buffer
        self.buffer_alignment = buffer_alignment
        self.min_message_size = min_message_size
        self.max_message_size = max_message_size
        self.sound = sound
        self.buffers = collective.init_buffers()
        self.gpus: list[Gpu] = []
        for rank in range(num_ranks):
            inputs, outputs = (self.buffers[rank][b].size for b in (BufferType.input, BufferType.output))
            self.gpus.append(Gpu(rank, inputs, outputs, 0))
        self.loop_context: LoopIterationContext | None = None
        self._loops: list[LoopIterationContext] = []
        self._signals: Counter[tuple[int, int, ChannelType]] = Counter()
        self._waits: Counter[tuple[int, int, ChannelType]] = Counter()

    @classmethod
    def from_spec(cls, spec: AlgoSpec) -> CollectiveProgram:
        """A program with the arguments of a specification."""
        return cls(
            spec.name,
            spec.collective,
            spec.world_size,
            instances=spec.instances,
            protocol=spec.protocol,
            instr_fusion=spec.instr_fusion,
            auto_sync=spec.auto_sync,
            replication_policy=spec.replication_policy,
            reuse_resources=spec.reuse_resources,
            num_threads_per_block=spec.num_threads_per_block,
            use_double_scratch_buffer=spec.use_double_scratch_buffer,
            buffer_alignment=spec.buffer_alignment,
            min_message_size=spec.min_message_size,
            max_message_size=spec.max_message_size,
            sound=spec.sound,
        )

    def __enter__(self) -> Self:
        set_program(self)
        return self

    def __exit__(self, *_: object) -> None:
        set_program(None)

    def add_channel(self, channel: Any) -> Any:
        """Adds a channel and gives its number: that of a switch channel on each member."""
        if channel.channel_type is ChannelType.switch:
            return {rank: self.gpus[rank].add_channel(channel) for rank in channel.rank_group.ranks}
        return self.gpus[channel.src_rank].add_channel(channel)

    def add_semaphore(self, semaphore: Semaphore) -> int:
        """Adds a semaphore and gives its number."""
        return self.gpus[semaphore.rank].add_semaphore(semaphore)

    def setup_channel(self, tb: int, channel: Any, rank: int | None = None) -> list[int]:
        """What an operation of a block has as its channels, on a rank if it is a switch channel. The block's own
        numbers are given when the plan is made."""
        if channel.channel_type is ChannelType.switch:
            return [channel.channel_ids[channel.src_rank if rank is None else rank]]
        return [channel.channel_id]

    def setup_remote_chunk(
        self,
        rank: int,
        tb: int,
        remote_chunk: RemoteBuffer,
        channel_access: ChannelType,
    ) -> RemoteBuffer:
        """What an operation of a block has as the buffer of a remote chunk."""
        return remote_chunk

    def add_operation(self, rank: int, tb: int, operation: BaseOperation) -> None:
        """Adds an operation to a block."""
        loop = None if self.loop_context is None else len(self._loops) - 1
        self.gpus[rank].add_operation(tb, operation, loop)

    def set_loop_context(self, loop_context: LoopIterationContext | None) -> None:
        """Says that operations are in a pipeline from now on, or in none."""
        if self.loop_context is not None and loop_context is not None:
            raise RuntimeError("Nested Pipelines are not Supported.")
        self.loop_context = loop_context
        if loop_context is not None:
            self._loops.append(loop_context)

    def register_signal(self, src_rank: int, dst_rank: int, channel_type: ChannelType) -> None:
        """Counts a signal to a rank."""
        self._signals[src_rank, dst_rank, channel_type] += 1

    def register_wait(self, src_rank: int, dst_rank: int, channel_type: ChannelType) -> None:
        """Counts a wait for a signal of a rank."""
        self._waits[dst_rank, src_rank, channel_type] += 1

    def validate_signal_wait_pairing(self) -> None:
        """Refuses a program that signals from one rank to another more or less often than that waits for it."""
        for key in {**self._signals, **self._waits}:
            signals, waits = self._signals[key], self._waits[key]
            if signals != waits:
                src, dst, kind = key
                raise RuntimeError(
                    f"Signal/Wait mismatch on {kind}: rank {src} issues {signals} signal(s) to rank {dst}, "
                    f"but rank {dst} performs {waits} wait(s) for rank {src}. Every signal must be matched by a "
                    f"corresponding wait on the peer rank over a channel of the same type."
                )

    def post_process_operations(self) -> None:
        """Checks what has been recorded. The recording stays as it is: :meth:`to_json` may follow any number of
        times."""
        self.validate_signal_wait_pairing()
        if self.replication_policy is not ReplicationPolicy.interleaved:
            raise TypeError(
                f"replication_policy {self.replication_policy}: instances that share their chunks would all do the "
                f"same; use ReplicationPolicy.interleaved"
            )

    def to_json(self, indent: int | str | None = 2, **kwargs: Any) -> str:
        """The plan, as ``json.dumps`` writes it with these arguments."""
        self.post_process_operations()
        if indent == 2 and not kwargs:
            return plan.lower(self.recording())
        return json.dumps(json.loads(plan.lower(self.recording(), compact=True)), indent=indent, **kwargs)

    def recording(self) -> dict[str, Any]:
        """What the library is told: see :func:`weft.plan.lower`."""
        return {
            "name": self.name,
            "collective": self.collective.name,
            "protocol": self.protocol,
            "inplace": bool(self.collective.inplace),
            "reuse_resources": self.reuse_resources,
            "threads": self.num_threads_per_block,
            "double_scratch": self.use_double_scratch_buffer,
            "alignment": self.buffer_alignment,
            "min_bytes": self.min_message_size,
            "max_bytes": self.max_message_size,
            "instances": self.instances,
            "fuse": self.instr_fusion,
            "sync": self.auto_sync,
            "sound": self.sound,
            "ranks": [gpu.record() for gpu in self.gpus],
            "loops": [{"unit": loop.unit, "chunks": loop.num_chunks} for loop in self._loops],
        }


MSCCLPPProgram = CollectiveProgram
