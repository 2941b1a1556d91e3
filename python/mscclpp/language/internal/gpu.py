"""What one rank of a program has and does."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .operations import Record
from .types import ChannelType


class Gpu:
    """The recording of a rank: its chunks, channels and semaphores in the order in which they were made, and its
    operations in the order of the calls."""

    def __init__(self, rank: int, input_chunks: int, output_chunks: int, scratch_chunks: int) -> None:
        self.id = rank
        self.input_chunks = input_chunks
        self.output_chunks = output_chunks
        self.scratch_chunks = scratch_chunks
        self._channels: list[Record] = []
        self._counts: Counter[str] = Counter()
        self._switches: list[Record] = []
        self._semaphores: list[int] = []
        self._operations: list[Record] = []

    def add_channel(self, channel: Any) -> int:
        """Adds a channel and gives its number."""
        if channel.channel_type is ChannelType.switch:
            group = channel.rank_group
            self._switches.append({"buffer": channel.buffer_type.value, "ranks": list(group.ranks)})
            return len(self._switches) - 1
        kind = channel.channel_type.value
        self._channels.append({"type": kind, "peer": channel.dst_rank})
        self._counts[kind] += 1
        return self._counts[kind] - 1

    def add_semaphore(self, semaphore: Any) -> int:
        """Adds a semaphore and gives its number."""
        self._semaphores.append(semaphore.initial_value)
        return len(self._semaphores) - 1

    def add_operation(self, tb: int, operation: Any, loop: int | None = None) -> None:
        """Adds an operation to a block, in a pipeline or in none."""
        if tb < 0:
            raise RuntimeError(f"Thread block {tb} is negative.")
        record = {"block": tb, **operation.record(self.id)}
        if loop is not None:
            record["loop"] = loop
        self._operations.append(record)

    def record(self) -> Record:
        """What the library is told."""
        return {
            "input": self.input_chunks,
            "output": self.output_chunks,
            "scratch": self.scratch_chunks,
            "channels": self._channels,
            "switches": self._switches,
            "semaphores": self._semaphores,
            "ops": self._operations,
        }
