"""Plans on disk, and what is to run them."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import weft

from ._mscclpp import Error
from .types import CollectiveBufferMode, DataType, ErrorCode, PacketType

__all__ = ["ExecutionPlan", "Executor"]


class ExecutionPlan:
    """The plan of a file, for a rank."""

    def __init__(self, planPath: str, rank: int) -> None:  # noqa: N803
        with open(planPath, encoding="utf-8") as file:
            plan = json.load(file)
        try:
            ranks = [gpu["id"] for gpu in plan["gpus"]]
            self.name: str = plan["name"]
            self.collective: str = plan["collective"]
            in_place = bool(plan["inplace"])
        except (KeyError, TypeError) as e:
            raise weft.InvalidError(f"{planPath}: no plan: {e!r}") from e
        if not 0 <= rank < len(ranks) or ranks[rank] != rank:
            raise Error(ErrorCode.ExecutorError, "GPU rank does not match")
        self.path, self.rank = str(planPath), rank
        self.min_message_size: int = plan.get("min_message_size", 0)
        self.max_message_size: int = plan.get("max_message_size", 2**64 - 1)
        self.buffer_mode = CollectiveBufferMode.IN_PLACE if in_place else CollectiveBufferMode.OUT_OF_PLACE


class Executor:
    """Runs plans of a communicator's ranks: not in this release."""

    def __init__(self, comm: Any) -> None:
        self.communicator = comm

    def execute(
        self,
        rank: int,
        send_buff: int,
        recv_buff: int,
        send_buff_size: int,
        recv_buff_size: int,
        data_type: DataType,
        plan: ExecutionPlan,
        stream: int,
        packet_type: PacketType = PacketType.LL16,
    ) -> NoReturn:
        """Refuses: nothing is enqueued."""
        raise weft.UnsupportedError(
            f"plan {plan.name}: this release makes plans and does not run them; give the file {plan.path} to MSCCL++'s "
            f"executor, or use weft.Group for the collective"
        )

    def reset(self) -> None:
        """Forgets what was prepared for plans: nothing."""
