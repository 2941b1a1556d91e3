"""Dispatch and combine as operators of PyTorch, with gradients and with fakes for torch.compile.

An operator's arguments are tensors and numbers. A handle crosses as a number, which stands for it as long as
it lives. A routing passes as a tensor of int64 [tokens + 1], whose memory keeps the routing alive: wherever
PyTorch keeps the tensor, for a backward pass or in a compiled graph.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from typing import Any, NamedTuple

import torch

from .. import ep
from ..ep.handle import NUMBERED
from ..ep.spec import Layout
from ..errors import ClosedError, InvalidError, OperandError, UnsupportedError
from ..memory import torch_dtype

_numbers = itertools.count(1)
_routings: weakref.WeakValueDictionary[int, ep.Routing] = weakref.WeakValueDictionary()


class Dispatched(NamedTuple):
    """The results of a dispatch."""

    rows: torch.Tensor
    """The rows, in the layout of the handle, zeros where no token stands; they show the handle's
    memory, and hold it as long as they live."""
    row_weights: torch.Tensor
    """float32: the weights of the rows, of the shape of ``rows`` without hidden; where a row stands for
    all of a rank's experts [rows, topk].

    Empty without weights."""
    routing: torch.Tensor
    """The routing that :func:`combine` uses; :func:`routing_of` has its counts."""


def dispatch(handle: ep.Handle, x: torch.Tensor, topk: torch.Tensor, weights: torch.Tensor | None = None) -> Dispatched:
    """Sends the rows of this rank's tokens to their experts, and receives those that come. Collective,
    and so is its backward pass.

    ``x``: [tokens, hidden] of the handle's row type; ``topk``: int32 or int64 [tokens, topk];
    ``weights``: float32 [tokens, topk], or None if sums are plain. Gradients come back to ``x`` from
    the rows, and to ``weights`` from ``row_weights``.
    """
    number = _number(handle)
    _check_tensors(handle, x=x, topk=topk)
    return Dispatched(*torch.ops.weft.dispatch(x, topk, weights, number))


def combine(
    handle: ep.Handle, rows: torch.Tensor, routing: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Brings the experts' rows home and sums them: [tokens, hidden]. Collective, and so is its backward pass.

    The weights of weighted sums are those that the dispatch was given; give them here, too, to have their gradients.
    """
    number = _number(handle)
    _check_tensors(handle, rows=rows, routing=routing)
    out: torch.Tensor = torch.ops.weft.combine(rows, weights, routing, number)
    return out


def routing_of(routing: torch.Tensor) -> ep.Routing:
    """The routing that a tensor of a dispatch's holds. It goes with the tensor."""
    number = int(routing[0])
    try:
        return _routings[number]
    except KeyError:
        raise ClosedError("the tensor holds no routing: pass the one that dispatch returned") from None


def _number(handle: ep.Handle) -> int:
    if not isinstance(handle, ep.Handle):
        raise InvalidError(f"handle is of type {type(handle).__name__}, want a weft.ep.Handle")
    if handle.spec.payload not in (ep.Payload.bf16, ep.Payload.fp16, ep.Payload.fp32):
        raise UnsupportedError(
            "operators have gradients, and quantised or opaque rows have none: use the handle's methods"
        )
    return handle.number


def _check_tensors(handle: ep.Handle, **operands: Any) -> None:
    """Refuses operands of other types on every rank: the others get the reason, instead of waiting."""
    for name, given in operands.items():
        if not isinstance(given, torch.Tensor):
            handle._refuse_operation(
                OperandError(f"{name} is of type {type(given).__name__}, want a tensor of PyTorch")
            )


def _handle(number: int) -> ep.Handle:
    try:
        return NUMBERED[number]
    except KeyError:
        raise ClosedError("the handle of this operator is gone: keep it as long as its gradients are wanted") from None


def _hold(routing: ep.Routing) -> torch.Tensor:
    """A tensor that holds a routing."""
    number = next(_numbers)
    _routings[number] = routing
    block: Any = (ctypes.c_int64 * (routing.tokens + 1))(number)
    block._routing = routing
    return torch.frombuffer(block, dtype=torch.int64)


# Forwards.


@torch.library.custom_op("weft::dispatch", mutates_args=())
def _dispatch(
    x: torch.Tensor, topk: torch.Tensor, weights: torch.Tensor | None, handle: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    h = _handle(handle)
    got = h.dispatch(x, topk, weights)
    rows = got.rows
    if _has_gaps(h.spec):
        # Old content would get into sums over all rows, such as the gradients of the experts' weights.
        rows.view(-1, h.spec.hidden).masked_fill_((got.routing.source_ranks < 0)[:, None], 0)
    return rows, _row_weights(h, got, rows, weights), _hold(got.routing)


def _has_gaps(spec: ep.Spec) -> bool:
    """Whether received rows may be ones that hold no token, and that dispatch does not write."""
    return bool(spec.counts) or spec.layout in (Layout.expert_major, Layout.rank_major)


def _row_weights(h: ep.Handle, got: ep.Received, rows: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    if weights is None:
        return rows.new_empty(0, dtype=torch.float32)
    found = (
        got.routing.row_selection_weights if h.spec.one_row_per_rank else got.routing.row_weights.view(rows.shape[:-1])
    )
    return found.clone() if found.is_cuda else found  # on the host it is a copy already


@_dispatch.register_fake
def _(
    x: torch.Tensor, topk: torch.Tensor, weights: torch.Tensor | None, handle: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    h = _handle(handle)
    spec = h.spec
    if spec.layout == Layout.expert_major:
        local = spec.experts // h.comm.ranks
        shape: tuple[Any, ...] = (local, h.capacity // local)
    elif spec.layout == Layout.rank_major or spec.counts:
        shape = (h.capacity,)
    else:
        shape = (torch.library.get_ctx().new_dynamic_size(),)
    rows = x.new_empty((*shape, spec.hidden), dtype=torch_dtype(spec.output_dtype))
    sizes = (0,) if weights is None else (*shape, spec.topk) if spec.one_row_per_rank else shape
    return rows, x.new_empty(sizes, dtype=torch.float32), torch.empty(x.shape[0] + 1, dtype=torch.int64, device="cpu")


@torch.library.custom_op("weft::combine", mutates_args=())
def _combine(rows: torch.Tensor, weights: torch.Tensor | None, routing: torch.Tensor, handle: int) -> torch.Tensor:
    out: torch.Tensor = _handle(handle).combine(rows, routing_of(routing))
    return out


@_combine.register_fake
def _(rows: torch.Tensor, weights: torch.Tensor | None, routing: torch.Tensor, handle: int) -> torch.Tensor:
    return rows.new_empty((routing.shape[0] - 1, _handle(handle).spec.hidden))


# Gradients.


@torch.library.custom_op("weft::dispatch_backward", mutates_args=())
def _dispatch_backward(
    grad_rows: torch.Tensor, grad_row_weights: torch.Tensor | None, routing: torch.Tensor, handle: int
) -> tuple[torch.Tensor, torch.Tensor]:
    h = _handle(handle)
    of_weights = (
        None
        if grad_row_weights is None
        else grad_row_weights
        if h.spec.one_row_per_rank
        else grad_row_weights.reshape(-1)
    )
    grad_x, grad_weights = h.dispatch_backward(grad_rows, routing_of(routing), of_weights)
    return grad_x, grad_rows.new_empty(0, dtype=torch.float32) if grad_weights is None else grad_weights


@_dispatch_backward.register_fake
def _(
    grad_rows: torch.Tensor, grad_row_weights: torch.Tensor | None, routing: torch.Tensor, handle: int
) -> tuple[torch.Tensor, torch.Tensor]:
    spec, tokens = _handle(handle).spec, routing.shape[0] - 1
    weights = (0,) if grad_row_weights is None else (tokens, spec.topk)
    return grad_rows.new_empty((tokens, spec.hidden)), grad_rows.new_empty(weights, dtype=torch.float32)


@torch.library.custom_op("weft::combine_backward", mutates_args=())
def _combine_backward(
    grad_out: torch.Tensor, rows: torch.Tensor | None, routing: torch.Tensor, handle: int, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    h = _handle(handle)
    grad_rows = torch.zeros_like(like) if _has_gaps(h.spec) else torch.empty_like(like)
    grad_rows, grad_weights = h.combine_backward(grad_out, routing_of(routing), rows, grad_rows=grad_rows)
    return grad_rows, grad_out.new_empty(0, dtype=torch.float32) if grad_weights is None else grad_weights


@_combine_backward.register_fake
def _(
    grad_out: torch.Tensor, rows: torch.Tensor | None, routing: torch.Tensor, handle: int, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    weights = (0,) if rows is None else (routing.shape[0] - 1, _handle(handle).spec.topk)
    return torch.empty_like(like), grad_out.new_empty(weights, dtype=torch.float32)


def _save_dispatch(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.handle, ctx.weighted = inputs[3], inputs[2] is not None
    ctx.save_for_backward(output[2])


def _differentiate_dispatch(
    ctx: Any, grad_rows: torch.Tensor, grad_row_weights: torch.Tensor, _routing: Any
) -> tuple[Any, ...]:
    (routing,) = ctx.saved_tensors
    of_weights = grad_row_weights if ctx.weighted and ctx.needs_input_grad[2] else None
    grad_x, grad_weights = torch.ops.weft.dispatch_backward(grad_rows.contiguous(), of_weights, routing, ctx.handle)
    return grad_x, None, None if of_weights is None else grad_weights, None


def _save_combine(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    rows, weights, routing, ctx.handle = inputs
    ctx.weighted = weights is not None
    ctx.save_for_backward(rows, routing)


def _differentiate_combine(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
    rows, routing = ctx.saved_tensors
    weighted = ctx.weighted and ctx.needs_input_grad[1]
    grad_rows, grad_weights = torch.ops.weft.combine_backward(
        grad_out.contiguous(), rows if weighted else None, routing, ctx.handle, rows
    )
    return grad_rows, grad_weights if weighted else None, None, None


_dispatch.register_autograd(_differentiate_dispatch, setup_context=_save_dispatch)
_combine.register_autograd(_differentiate_combine, setup_context=_save_combine)
