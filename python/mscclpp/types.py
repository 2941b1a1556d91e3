"""Numbers that MSCCL++'s interface has names for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

__all__ = [
    "CollectiveBufferMode",
    "CommResult",
    "DataType",
    "Device",
    "DeviceType",
    "EndpointConfig",
    "ErrorCode",
    "PacketType",
    "ReduceOp",
    "Transport",
    "TransportFlags",
]


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


class Transport(IntEnum):
    """What carries a connection."""

    Unknown = 0
    CudaIpc = 1
    IB0 = 2
    IB1 = 3
    IB2 = 4
    IB3 = 5
    IB4 = 6
    IB5 = 7
    IB6 = 8
    IB7 = 9
    Ethernet = 10
    NumTransports = 11

    def __or__(self, other: Any) -> TransportFlags:  # type: ignore[override]
        return TransportFlags(self) | other


class TransportFlags:
    """A set of transports."""

    __slots__ = ("_bits",)

    def __init__(self, transport: Transport | TransportFlags | None = None) -> None:
        self._bits = _bits(transport)

    def has(self, transport: Transport) -> bool:
        return bool(self._bits >> transport & 1)

    def none(self) -> bool:
        return not self._bits

    def any(self) -> bool:
        return bool(self._bits)

    def all(self) -> bool:
        return self._bits == _EVERY

    def count(self) -> int:
        return self._bits.bit_count()

    def _of(self, bits: int) -> TransportFlags:
        made = TransportFlags()
        made._bits = bits
        return made

    def __or__(self, other: Transport | TransportFlags) -> TransportFlags:
        return self._of(self._bits | _bits(other))

    def __and__(self, other: Transport | TransportFlags) -> TransportFlags:
        return self._of(self._bits & _bits(other))

    def __xor__(self, other: Transport | TransportFlags) -> TransportFlags:
        return self._of(self._bits ^ _bits(other))

    def __invert__(self) -> TransportFlags:
        return self._of(_EVERY & ~self._bits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Transport, TransportFlags)) and self._bits == _bits(other)

    def __hash__(self) -> int:
        return hash(self._bits)

    def __repr__(self) -> str:
        return f"TransportFlags({'|'.join(t.name for t in Transport if self.has(t))})"


_EVERY = (1 << Transport.NumTransports) - 1


def _bits(of: Transport | TransportFlags | None) -> int:
    if of is None:
        return 0
    return of._bits if isinstance(of, TransportFlags) else 1 << Transport(of)


class DeviceType(IntEnum):
    """Kinds of devices."""

    Unknown = 0
    CPU = 1
    GPU = 2


@dataclass
class Device:
    """A device: the host's processor, or a GPU."""

    type: DeviceType = DeviceType.Unknown
    id: int = -1


@dataclass
class EndpointConfig:
    """An end of a connection. Weft takes its transport, and chooses queues by itself."""

    transport: Transport = Transport.Unknown
    device: Device | DeviceType = DeviceType.GPU
    max_write_queue_size: int = -1
    ib: Any = None
