"""Collectives as operators of PyTorch that return new tensors, with gradients and with fakes for torch.compile.

A group crosses as a number, which stands for it as long as it lives. Operators have no order of their own: all ranks
run, and compile, the same program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from ..collectives import NUMBERED, Collective, Group, Op
from ..errors import ClosedError, InvalidError, OperandError, UnsupportedError


def all_reduce(group: Group, x: torch.Tensor, op: Op | str = "sum") -> torch.Tensor:
    """Reduces elementwise, as :meth:`weft.Group.all_reduce`. Collective, and so is its backward pass, of a sum or
    an average."""
    number = _number(group, Collective.all_reduce, x)
    out: torch.Tensor = torch.ops.weft.all_reduce(x, _name(op), number)
    return out


def all_gather(group: Group, x: torch.Tensor) -> torch.Tensor:
    """The rows of all ranks, one rank's after the other's: [rows, \\*] gives [ranks * rows, \\*]. Collective; its
    backward pass is a reduce-scatter."""
    number = _number(group, Collective.all_gather, x)
    out: torch.Tensor = torch.ops.weft.all_gather(x, number)
    return out


def reduce_scatter(group: Group, x: torch.Tensor, op: Op | str = "sum") -> torch.Tensor:
    """Reduces, and gives each rank its rows: [ranks * rows, \\*] gives [rows, \\*]. Collective; the backward pass of
    a sum or an average is an all-gather."""
    number = _number(group, Collective.reduce_scatter, x)
    out: torch.Tensor = torch.ops.weft.reduce_scatter(x, _name(op), number)
    return out


def all_to_all(
    group: Group, x: torch.Tensor, recv: Sequence[int] | None = None, send: Sequence[int] | None = None
) -> torch.Tensor:
    """Gives each rank its rows of ``x``, one rank's after the other's: as many for each, or ``send[r]`` for rank r,
    from which ``recv[r]`` come. Collective; its backward pass is the all-to-all back."""
    if (recv is None) != (send is None):
        raise OperandError("all_to_all: give both recv and send, or neither")
    splits = None if recv is None else list(recv), None if send is None else list(send)
    number = _number(group, Collective.all_to_all, x)
    out: torch.Tensor = torch.ops.weft.all_to_all(x, *splits, number)
    return out


def broadcast(group: Group, x: torch.Tensor, root: int = 0) -> torch.Tensor:
    """root's tensor; others' ``x`` says the shape and the type alone. Collective; its backward pass sums the
    gradients of all ranks on root."""
    number = _number(group, Collective.broadcast, x)
    out: torch.Tensor = torch.ops.weft.broadcast(x, root, number)
    return out


def _number(group: Group, kind: Collective, x: torch.Tensor) -> int:
    """The number of a call's group."""
    if not isinstance(group, Group):
        raise InvalidError(f"group is of type {type(group).__name__}, want a weft.Group")
    if not isinstance(x, torch.Tensor):
        _refuse(group, kind, OperandError(f"x is of type {type(x).__name__}, want a tensor of PyTorch"))
    return group.number


def _name(op: Op | str) -> str:
    return op if isinstance(op, str) else op.name


def _group(number: int) -> Group:
    try:
        return NUMBERED[number]
    except KeyError:
        raise ClosedError("the group of this operator is gone: keep it as long as its gradients are wanted") from None


def _rows(group: Group, kind: Collective, x: torch.Tensor, parts: int) -> int:
    """The rows of each of so many parts."""
    if x.dim() == 0 or x.shape[0] % parts:
        want = f"rows, as many for each of {parts} ranks" if parts > 1 else "rows: give it a first dimension"
        words = f"{kind.name}: shape {tuple(x.shape)}, want {want}"
        _refuse(group, kind, OperandError(words))
    return x.shape[0] // parts


def _refuse(group: Group, kind: Collective, why: OperandError) -> NoReturn:
    """Refuses a call on every rank: the others get the reason, instead of waiting."""

    def more(_: object) -> None:
        raise why

    group._run(kind, None, reads=False, writes=False, more=more)
    raise why


def _new(group: Group, x: torch.Tensor, rows: int) -> torch.Tensor:
    """A tensor for a result that has parts of all ranks. Nothing is written to those of masked ranks."""
    make = x.new_zeros if group._comm._left_out else x.new_empty
    return make((rows, *x.shape[1:]))


@torch.library.custom_op("weft::all_reduce", mutates_args=())
def _all_reduce(x: torch.Tensor, op: str, group: int) -> torch.Tensor:
    out = x.new_empty(x.shape)
    _group(group).all_reduce(x, op, out=out)
    return out


@_all_reduce.register_fake
def _(x: torch.Tensor, op: str, group: int) -> torch.Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("weft::all_gather", mutates_args=())
def _all_gather(x: torch.Tensor, group: int) -> torch.Tensor:
    g = _group(group)
    out = _new(g, x, _rows(g, Collective.all_gather, x, 1) * g._comm.ranks)
    g.all_gather(x, out=out)
    return out


@_all_gather.register_fake
def _(x: torch.Tensor, group: int) -> torch.Tensor:
    return x.new_empty((x.shape[0] * _group(group)._comm.ranks, *x.shape[1:]))


@torch.library.custom_op("weft::reduce_scatter", mutates_args=())
def _reduce_scatter(x: torch.Tensor, op: str, group: int) -> torch.Tensor:
    g = _group(group)
    out = x.new_empty((_rows(g, Collective.reduce_scatter, x, g._comm.ranks), *x.shape[1:]))
    g.reduce_scatter(x, op, out=out)
    return out


@_reduce_scatter.register_fake
def _(x: torch.Tensor, op: str, group: int) -> torch.Tensor:
    return x.new_empty((x.shape[0] // _group(group)._comm.ranks, *x.shape[1:]))


@torch.library.custom_op("weft::all_to_all", mutates_args=())
def _all_to_all(x: torch.Tensor, recv: Sequence[int] | None, send: Sequence[int] | None, group: int) -> torch.Tensor:
    g = _group(group)
    if recv is None or send is None:
        _rows(g, Collective.all_to_all, x, g._comm.ranks)
        out = _new(g, x, x.shape[0])
        g.all_to_all(x, out=out)
        return out
    _rows(g, Collective.all_to_all_v, x, 1)
    out = _new(g, x, max(0, sum(recv)))  # the call refuses what is less
    g.all_to_all_v(x, send, recv, out=out)
    return out


@_all_to_all.register_fake
def _(x: torch.Tensor, recv: Sequence[int] | None, send: Sequence[int] | None, group: int) -> torch.Tensor:
    return x.new_empty((x.shape[0] if recv is None else sum(recv), *x.shape[1:]))


@torch.library.custom_op("weft::broadcast", mutates_args=())
def _broadcast(x: torch.Tensor, root: int, group: int) -> torch.Tensor:
    out = x.new_empty(x.shape)
    _group(group).broadcast(x, root, out=out)
    return out


@_broadcast.register_fake
def _(x: torch.Tensor, root: int, group: int) -> torch.Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("weft::reduce_to", mutates_args=())
def _reduce_to(x: torch.Tensor, root: int, group: int) -> torch.Tensor:
    """The sum of all ranks on root, and zeros on others: the gradient of a broadcast."""
    g = _group(group)
    out = x.new_empty(x.shape) if g._comm.rank == root else torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    g.reduce(x, "sum", root, out=out)
    return out


@_reduce_to.register_fake
def _(x: torch.Tensor, root: int, group: int) -> torch.Tensor:
    return x.new_empty(x.shape)


# Gradients. What a rank's loss depends on is what it has received, so the gradient of an operand is the sum of what
# all ranks have found for it.


def _linear(op: str) -> str:
    if op not in ("sum", "avg"):
        raise UnsupportedError(f"{op} has no gradient here: sum and avg have; detach the operand")
    return op


def _save_reduction(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, ctx.op, ctx.group = inputs


def _save_group(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.group = inputs[-1]


def _save_counts(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, ctx.recv, ctx.send, ctx.group = inputs


def _save_root(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, ctx.root, ctx.group = inputs


def _differentiate_all_reduce(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return torch.ops.weft.all_reduce(grad, _linear(ctx.op), ctx.group), None, None


def _differentiate_all_gather(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return torch.ops.weft.reduce_scatter(grad, "sum", ctx.group), None


def _differentiate_reduce_scatter(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    gathered = torch.ops.weft.all_gather(grad, ctx.group)
    if _linear(ctx.op) == "avg":
        comm = _group(ctx.group)._comm
        gathered = gathered / (comm.ranks - len(comm._left_out))
    return gathered, None, None


def _differentiate_all_to_all(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return torch.ops.weft.all_to_all(grad, ctx.send, ctx.recv, ctx.group), None, None, None


def _differentiate_broadcast(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return torch.ops.weft.reduce_to(grad, ctx.root, ctx.group), None, None


_all_reduce.register_autograd(_differentiate_all_reduce, setup_context=_save_reduction)
_all_gather.register_autograd(_differentiate_all_gather, setup_context=_save_group)
_reduce_scatter.register_autograd(_differentiate_reduce_scatter, setup_context=_save_reduction)
_all_to_all.register_autograd(_differentiate_all_to_all, setup_context=_save_counts)
_broadcast.register_autograd(_differentiate_broadcast, setup_context=_save_root)
