"""Types of the language: enumerations, and what operations are about."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, Flag


class _Named(Enum):
    """Members print as what they are in a plan."""

    def __str__(self) -> str:
        return str(self.value)


class SyncType(Flag):
    """Where the threads of a block wait for each other around an operation."""

    none = 0
    before = 1
    after = 2
    both = 3


class BufferType(_Named):
    """A buffer of a rank."""

    input = "i"
    output = "o"
    scratch = "s"


class ChannelType(_Named):
    """How a block reaches other ranks."""

    none = ""
    memory = "memory"
    port = "port"
    switch = "switch"


class ReduceOperationType(_Named):
    """How elements are combined."""

    sum = "sum"
    min = "min"
    max = "max"


class ReplicationPolicy(_Named):
    """How instances share the chunks."""

    interleaved = "interleaved"
    none = "none"


class Instruction(_Named):
    """The names of operations in a plan."""

    nop = "nop"
    barrier = "barrier"
    sem_acquire = "sem_acquire"
    sem_release = "sem_release"
    signal = "signal"
    wait = "wait"
    relaxed_signal = "rlxsignal"
    relaxed_wait = "rlxwait"
    flush = "flush"
    copy = "copy"
    copy_packet = "cpkt"
    unpack_packet = "upkt"
    put = "put"
    put_with_signal = "pws"
    put_with_signal_and_flush = "pwsf"
    put_packet = "ppkt"
    read_put_packet = "rppkt"
    get = "get"
    reduce = "re"
    reduce_packet = "repkt"
    reduce_send = "res"
    reduce_send_packet = "respkt"
    reduce_copy_packet = "recpkt"
    reduce_copy_send_packet = "recspkt"
    read_reduce = "rre"
    read_reduce_send = "rres"
    group_load_reduce = "glre"
    group_store = "gstore"
    group_store_packet = "gstorepkt"
    group_load_reduce_store = "glres"
    pipeline = "pipeline"


@dataclass
class Chunk:
    """A range of chunks of a rank's buffer."""

    rank: int
    buffer: BufferType
    index: int
    size: int


@dataclass
class RankGroup:
    """The members of a switch channel."""

    size: int
    ranks: list[int]


@dataclass(frozen=True)
class RemoteBuffer:
    """A buffer of another rank that one rank reaches."""

    local_rank: int
    remote_rank: int
    type: BufferType
    channel_access: ChannelType
