"""Numbers that MSCCL++'s interface has names for."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["CollectiveBufferMode", "CommResult", "DataType", "ErrorCode", "PacketType", "ReduceOp"]


class DataType(IntEnum):
    """Types of elements."""

    int32 = 0
    uint32 = 1
    float16 = 2
    float32 = 3
    bfloat16 = 4
    float8_e4m3fn = 5
    float8_e4m3fnuz = 6
    float8_e5m2 = 7
    float8_e5m2fnuz = 8
    uint8 = 9
    float8_e4m3b15 = 10


class ReduceOp(IntEnum):
    """Reductions."""

    SUM = 0
    MIN = 3
    NOP = 255


class PacketType(IntEnum):
    """Sizes of packets."""

    LL8 = 0
    LL16 = 1


class CollectiveBufferMode(IntEnum):
    """Whether operands may lie in place."""

    ANY = 0
    IN_PLACE = 1
    OUT_OF_PLACE = 2


class CommResult(IntEnum):
    """What a call gave."""

    SUCCESS = 0
    UNHANDLED_CUDA_ERROR = 1
    SYSTEM_ERROR = 2
    INTERNAL_ERROR = 3
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    IN_PROGRESS = 7


class ErrorCode(IntEnum):
    """Kinds of errors."""

    SystemError = 0
    InternalError = 1
    RemoteError = 2
    InvalidUsage = 3
    Timeout = 4
    Aborted = 5
    ExecutorError = 6
