"""Groups of blocks that share an operation."""

from __future__ import annotations

from collections.abc import Sequence

from .internal.operations import ThreadBlockGroupInfo

__all__ = ["ThreadBlockGroup"]


class ThreadBlockGroup:
    """Blocks of a rank. Each does its part of an operation, by its position in the list."""

    def __init__(self, tb_list: Sequence[int]) -> None:
        for i, tb in enumerate(tb_list):
            if tb in tb_list[:i]:
                raise ValueError(f"Duplicate thread block found at index {i}: {tb}")
        self.tb_list = list(tb_list)

    def get_internal_id(self, tb: int) -> int:
        """The position of a block."""
        if tb not in self.tb_list:
            raise ValueError(f"Thread block {tb} not found in thread block group")
        return self.tb_list.index(tb)

    def numtb(self) -> int:
        """How many blocks there are."""
        return len(self.tb_list)


Executor = tuple[int, "ThreadBlockGroupInfo | None"]


def executors(tb: int | None, group: ThreadBlockGroup | None, error: type[Exception] = RuntimeError) -> list[Executor]:
    """The blocks that do an operation, with their positions: one block, or all of a group. Of a block and a group
    the block does its part of the group's."""
    if tb is None and group is None:
        raise error(
            "Either 'tb' (thread block ID) or 'tb_group' (ThreadBlockGroup) must be provided, but both are None."
        )
    blocks = [tb] if tb is not None else group.tb_list
    if group is None:
        return [(b, None) for b in blocks]
    return [(b, ThreadBlockGroupInfo(group.get_internal_id(b), group.numtb())) for b in blocks]
