"""Algorithms: plans of programs, collections of them, and the choice between them."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import weft

from ._mscclpp import Error
from .executor import ExecutionPlan, Executor
from .types import CollectiveBufferMode, CommResult, DataType, ErrorCode, ReduceOp

__all__ = ["Algorithm", "AlgorithmCollection", "AlgorithmCollectionBuilder"]

_log = logging.getLogger("mscclpp")

Selector = Callable[[Mapping[str, Mapping[str, "Algorithm"]], Any], "Algorithm | None"]


class Algorithm:
    """An algorithm that is a plan."""

    @dataclass(frozen=True)
    class Constraint:
        """For how many ranks it is, and how many of them on a host. 0 is any number."""

        world_size: int = 0
        n_ranks_per_node: int = 0

    def __init__(
        self,
        id: str | None = None,
        execution_plan: ExecutionPlan | None = None,
        native_handle: Any = None,
        tags: Mapping[str, int] | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        if native_handle is not None or execution_plan is None:
            raise weft.UnsupportedError(
                "an algorithm of native code: Weft takes kernels in CUDA C++ as weft.OwnAlgorithm, and plans here"
            )
        self.id = id
        self.execution_plan = execution_plan
        self.tags: dict[str, int] = dict(tags or {})
        self.constraint = constraint or Algorithm.Constraint()

    @property
    def name(self) -> str:
        """The plan's."""
        return self.execution_plan.name

    @property
    def collective(self) -> str:
        """The plan's."""
        return self.execution_plan.collective

    @property
    def message_size_range(self) -> tuple[int, int]:
        """The bytes that the plan is for, both ends included."""
        return self.execution_plan.min_message_size, self.execution_plan.max_message_size

    @property
    def buffer_mode(self) -> CollectiveBufferMode:
        """Whether the plan is for operands in place."""
        return self.execution_plan.buffer_mode

    def set_message_size_range(self, min_message_size: int, max_message_size: int) -> None:
        """Refuses: a plan says its sizes itself."""
        raise TypeError(
            f"{self.name} is a plan, for messages from {self.message_size_range[0]} to {self.message_size_range[1]} "
            f"bytes; compile it with min_message_size={min_message_size} and max_message_size={max_message_size}"
        )

    def is_dsl_algorithm(self) -> bool:
        """Yes: it is a plan."""
        return True

    def is_native_algorithm(self) -> bool:
        """No: it is a plan."""
        return False

    def reset(self) -> None:
        """Forgets what was prepared: nothing."""

    def execute(
        self,
        comm: Any,
        input_buffer: int,
        output_buffer: int,
        input_size: int,
        output_size: int,
        dtype: DataType,
        op: ReduceOp = ReduceOp.NOP,
        stream: int = 0,
        executor: Executor | None = None,
        nblocks: int = 0,
        nthreads_per_block: int = 0,
        symmetric_memory: bool = False,
        extras: Mapping[str, int] | None = None,
        accum_dtype: DataType | None = None,
    ) -> int:
        """Runs the plan, and gives 0. ``op`` is NOP, or the plan's reduction. What is wrong on one rank the others are
        told."""
        if executor is None:
            raise Error(ErrorCode.InvalidUsage, "Executor is null in DslAlgorithm::execute")
        plan = self.execution_plan
        try:
            own = nblocks or nthreads_per_block or extras
            self._check(op, bool(own), accum_dtype is None or accum_dtype in (dtype, DataType.float32))
        except Exception as e:
            executor._refuse(plan, e)
        executor.execute(plan.rank, input_buffer, output_buffer, input_size, output_size, dtype, plan, stream)
        return int(CommResult.SUCCESS)

    def _check(self, op: ReduceOp, own: bool, exact: bool) -> None:
        """Raises what is wrong with the arguments of a call that a plan does not have."""
        plan = self.execution_plan
        wanted = {ReduceOp.SUM: "sum", ReduceOp.MIN: "min"}.get(ReduceOp(int(op)))
        if wanted and plan.reductions and plan.reductions != {wanted}:
            raise weft.InvalidError(
                f"plan {plan.name}: op is {wanted}, and the plan has {', '.join(sorted(plan.reductions))}; pass NOP"
            )
        if own:
            raise weft.UnsupportedError(
                f"plan {plan.name}: a plan has its own blocks and threads, and takes no extras; leave them out"
            )
        if not exact:
            raise weft.UnsupportedError(f"plan {plan.name}: sums are in float32; leave accum_dtype out")


class AlgorithmCollection:
    """Algorithms by collective and name. A second one of a name replaces the first. ``native`` may be another
    collection, whose algorithms this one begins with."""

    def __init__(self, native: AlgorithmCollection | None = None) -> None:
        if native is not None and not isinstance(native, AlgorithmCollection):
            raise weft.UnsupportedError(
                f"a collection of native code, {type(native).__name__}: give another AlgorithmCollection, or none"
            )
        of = {} if native is None else native._of
        self._of: dict[str, dict[str, Algorithm]] = {c: dict(named) for c, named in of.items()}

    def __iter__(self) -> Iterator[Algorithm]:
        return (a for named in self._of.values() for a in named.values())

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def __getitem__(self, index: int) -> Algorithm:
        return list(self)[index]

    def get_by_collective(self, collective: str) -> list[Algorithm]:
        """The algorithms of a collective."""
        return list(self._of.get(collective, {}).values())

    def register_algorithm(self, collective: str, algo_name: str, algorithm: Algorithm) -> None:
        """Adds an algorithm."""
        self._of.setdefault(collective, {})[algo_name] = algorithm


class AlgorithmCollectionBuilder:
    """Collects algorithms. All of a process are one.

    Nothing here asks its selectors: MSCCL++ asks them in its library in place of NCCL, which Weft has none of. A caller
    asks :attr:`selector`, then :attr:`fallback_selector`, and executes what they give. Setting one logs a warning.
    """

    _one: ClassVar[AlgorithmCollectionBuilder | None] = None
    _algorithms: list[Algorithm]
    selector: Selector | None
    fallback_selector: Selector | None

    def __new__(cls) -> AlgorithmCollectionBuilder:  # noqa: PYI034
        if cls._one is None:
            cls._one = super().__new__(cls)
            cls._one._algorithms = []
            cls._one.selector = cls._one.fallback_selector = None
        return cls._one

    @classmethod
    def reset(cls) -> None:
        """Forgets all."""
        cls._one = None

    def add_algorithm_builder(self, algorithm_builder: Algorithm) -> None:
        """Adds an algorithm that is a plan."""
        if not isinstance(algorithm_builder, Algorithm):
            raise ValueError(f"{type(algorithm_builder).__name__} is no algorithm that is a plan")
        self._algorithms.append(algorithm_builder)

    def set_algorithm_selector(self, selector: Selector) -> None:
        """Sets the function that chooses among algorithms, for the caller to ask."""
        _kept("selector")
        self.selector = selector

    def set_fallback_algorithm_selector(self, selector: Selector) -> None:
        """Sets the function that the caller asks where the first has no answer."""
        _kept("fallback_selector")
        self.fallback_selector = selector

    def build(self) -> AlgorithmCollection:
        """The algorithms that were added."""
        made = AlgorithmCollection()
        for a in self._algorithms:
            made.register_algorithm(a.collective, a.name, a)
        return made

    def build_default_algorithms(self, scratch_buffer: int, scratch_buffer_size: int, rank: int) -> AlgorithmCollection:
        """Refuses: Weft's own algorithms are a group's."""
        raise weft.UnsupportedError(
            f"MSCCL++'s native algorithms, for rank {rank} with {scratch_buffer_size} bytes of scratch at "
            f"{scratch_buffer:#x}: use weft.Group, which has algorithms of its own and chooses among them"
        )


def _kept(name: str) -> None:
    _log.warning("AlgorithmCollectionBuilder: nothing asks its %s; ask it yourself, and execute what it gives", name)


atexit.register(AlgorithmCollectionBuilder.reset)
