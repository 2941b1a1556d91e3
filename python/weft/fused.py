"""Collectives that do more than move and reduce, or that run beside the kernels that they serve."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _abi
from ._abi import Collective, Op
from .dtypes import DType

if TYPE_CHECKING:
    from typing import Unpack

    from .collectives import How


class FusedCollectives:
    """The methods of a group for them."""

    _run: Callable[..., Any]

    def all_reduce_norm(
        self,
        array: Any,
        gamma: Any,
        *,
        eps: float = 1e-6,
        residual: Any = None,
        residual_out: Any = None,
        scales: Any = None,
        scale: Any = None,
        power_of_two_scales: bool = False,
        out: Any = None,
        **how: Unpack[How],
    ) -> Any:
        """Sums [..., hidden] over ranks, adds ``residual``, divides each row by its root mean square, multiplies it
        by ``gamma``, [hidden], and returns ``out``. ``residual_out`` gets the rows before that, and may be
        ``residual``; ``out`` may be ``array``. Each step is rounded to the type of ``array``, bfloat16, float16 or
        float32, so the bits are those of each step alone.

        With ``scales`` or ``scale`` the result is of float8_e4m3. ``scales`` gets a scale for each 128 columns:
        float32, powers of two with ``power_of_two_scales``, or float8_e8m0 exponents. ``scale`` is one float32 by
        which the result is divided, in the memory that operands are in.
        """
        quantised = scales is not None or scale is not None

        def more(args: Any) -> None:
            norm = _abi.Norm(eps=eps, power_of_two_scales=power_of_two_scales)
            for name, operand, wants, written in (
                ("gamma", gamma, 0, False),
                ("residual", residual, 0, False),
                ("residual_out", residual_out, 0, True),
                ("scales", scales, DType.ue8m0, True),
                ("scale", scale, 0, False),
            ):
                setattr(norm, name, _operand(args, name, operand, wants, written=written))
            args.held.append(norm)
            args.words[_NORM] = ctypes.addressof(norm)

        dtype = DType.float8_e4m3 if quantised else None
        return self._run(Collective.all_reduce, array, out, dtype=dtype, more=more, **how)

    def all_gather_progress(self, array: Any, progress: Any, *, out: Any, **how: Unpack[How]) -> Any:
        """Gathers as ``all_gather`` does, and raises words as parts of ``out`` land: ``progress`` is of int64 or
        uint64, [ranks] or [ranks, chunks]. The words of a rank cut its part of B bytes into chunks of
        16 * ceil(B / (16 * chunks)) bytes. Each is raised by one a call, by a release: a kernel of another stream that
        reads the new number by an acquire may read that chunk. This rank's part lands first, then the next rank's.
        All ranks give words. The first call for a type loads kernels: make it before others wait for words.
        """

        def more(args: Any) -> None:
            args.words[_WORDS] = _operand(args, "progress", progress, 0, written=True)

        return self._run(Collective.all_gather, array, out, more=more, **how)

    def reduce_scatter_ready(
        self,
        array: Any,
        ready: Any,
        op: Op | str = Op.sum,
        *,
        out: Any,
        **how: Unpack[How],
    ) -> Any:
        """Reduces as ``reduce_scatter`` does, and reads a chunk of ``array`` when its word of ``ready`` is not 0: the
        kernel that makes the chunk raises it. It makes the word 0 when it has read the chunk. Words are those of
        :meth:`all_gather_progress`, which stand for chunks of the part that goes to a rank."""

        def more(args: Any) -> None:
            args.words[_WORDS] = _operand(args, "ready", ready, 0, written=True)

        return self._run(Collective.reduce_scatter, array, out, op, more=more, **how)


_NORM, _WORDS = (getattr(_abi.CollectiveArgs, name).offset // 8 for name in ("norm", "words"))


def _operand(args: Any, name: str, array: Any, wants: int, *, written: bool) -> int:
    """An operand that few calls have, in C's form."""
    slot = args.slot(name, args.device, wants, written=written)
    args.held.extend((slot, array))
    return slot.fill(array)
