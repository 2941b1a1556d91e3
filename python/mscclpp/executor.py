"""Plans on disk, and what is to run them."""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from typing import Any, NoReturn

import weft
import weft.plan
from weft.operands import Slot

from ._mscclpp import Error
from .types import CollectiveBufferMode, DataType, ErrorCode, PacketType

__all__ = ["ExecutionPlan", "Executor"]


class ExecutionPlan:
    """The plan of a file, for a rank."""

    def __init__(self, planPath: str, rank: int) -> None:  # noqa: N803
        self.text = Path(planPath).read_text(encoding="utf-8")
        plan = json.loads(self.text)
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
        self.reductions = _reductions(plan)


def _reductions(node: Any) -> set[str]:
    """The names of the reductions of a plan's operations."""
    if isinstance(node, list):
        return set().union(*map(_reductions, node))
    if not isinstance(node, dict):
        return set()
    own = {node["reduce_op"]} if isinstance(node.get("reduce_op"), str) else set()
    return own.union(*map(_reductions, node.values()))


_TYPES = {
    DataType.int32: weft.DType.int32,
    DataType.uint32: weft.DType.uint32,
    DataType.float16: weft.DType.float16,
    DataType.float32: weft.DType.float32,
    DataType.bfloat16: weft.DType.bfloat16,
    DataType.float8_e4m3fn: weft.DType.float8_e4m3,
    DataType.float8_e5m2: weft.DType.float8_e5m2,
    DataType.uint8: weft.DType.uint8,
}


class Executor:
    """Runs plans of a communicator's ranks. The first plan is collective for more than itself: memory is made.

    Plans in which the verifier finds errors run, and what it finds is logged on rank 0; broken rules and deadlocks are
    refused.
    """

    def __init__(self, comm: Any) -> None:
        self.communicator = getattr(comm, "communicator", comm)
        self._executor: weft.plan.Executor | None = None
        self._plans: dict[str, weft.plan.Plan] = {}
        self._out, self._in = Slot("recv_buff", -1, written=True), Slot("send_buff", -1)

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
    ) -> None:
        """Runs a plan on this rank's memory, of so many bytes, or enqueues it on a GPU. Packets of every size give the
        same. What is wrong on one rank the others are told, and no rank runs the plan."""
        if not isinstance(self.communicator, weft.Communicator):
            reason = f"an executor of {self.communicator!r}: give it a CommGroup's communicator"
            raise Error(ErrorCode.InvalidUsage, reason)
        try:
            if rank != self.communicator.rank or rank != plan.rank:
                raise Error(ErrorCode.ExecutorError, "GPU rank does not match")
            PacketType(packet_type)
            dtype = _TYPES.get(DataType(int(data_type)))
            if dtype is None:
                raise weft.UnsupportedError(
                    f"plan {plan.name}: elements of type {DataType(int(data_type)).name}; "
                    f"there are {', '.join(t.name for t in _TYPES)}"
                )
            on = int(stream)
            out = _operand(self._out, recv_buff, recv_buff_size, dtype)
            source = _operand(self._in, send_buff, send_buff_size, dtype)
        except Exception as e:
            self._refuse(plan, e)
        loaded = self._load(plan)
        try:
            loaded._run(out, source, on)
        except weft.InvalidError as e:
            raise Error(ErrorCode.ExecutorError, str(e)) from e

    def _refuse(self, plan: ExecutionPlan, why: Exception) -> NoReturn:
        """Has all ranks refuse a launch, for a reason that this one has found, and raises it: else the others would
        run it against this rank's next."""
        if isinstance(self.communicator, weft.Communicator):
            with contextlib.suppress(weft.WeftError):
                absent = self._in.absent(why)
                self._load(plan)._run(absent, absent, 0)
        raise why

    def _load(self, plan: ExecutionPlan) -> weft.plan.Plan:
        """The plan, made ready: by its content, for two may have one name."""
        if (loaded := self._plans.get(plan.text)) is not None:
            return loaded
        if self._executor is None:
            self._executor = weft.plan.Executor(self.communicator, unverified=True)
        if self.communicator.rank == 0:
            for found in weft.plan.check(plan.text):
                if not found.warning:
                    logging.getLogger("mscclpp").warning("plan %s: %s", plan.name, found.text)
        loaded = self._plans[plan.text] = self._executor.load(plan.text)
        return loaded

    def reset(self) -> None:
        """Forgets what was prepared for plans. Collective, with nothing in flight."""
        self._plans.clear()
        if self._executor is not None:
            self._executor.reset()

    def close(self) -> None:
        """Gives up the memory of plans, which the communicator's close does, too. Weft's own."""
        self._plans.clear()
        if self._executor is not None:
            self._executor.close()
            self._executor = None


def _operand(slot: Slot, address: int, size: int, dtype: weft.DType) -> int:
    """The argument for C of memory."""
    reason = ""
    if size < 0 or size % dtype.itemsize:
        reason = f"{slot.name} of {size} bytes is no number of elements of {dtype.name}"
    elif size > 0 and not address:
        reason = f"{slot.name} of {size} bytes at NULL"
    if reason:
        raise Error(ErrorCode.ExecutorError, reason)
    slot.put(int(address), int(dtype), (size // dtype.itemsize,))
    return slot.address
