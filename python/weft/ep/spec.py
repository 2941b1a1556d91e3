"""The description of exchanges: the same on every rank."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from typing import Any, TypeVar

from .. import _abi
from .._abi import Counts, Layout, Overflow, Payload, Reduction, ScaleOrder, Weighting
from .._bases import Choice
from .._library import library
from ..dtypes import DType, DTypeLike, dtype_of
from ..errors import InvalidError
from ..limits import whole


@dataclasses.dataclass(frozen=True)
class KernelTuning:
    """How a GPU kernel moves rows: it changes how long an operation takes, never its result.

    0 is Weft's choice. A member that does not fit a handle's mode is refused.
    """

    threads: int = 0
    """Of a block: 64 to 512, a multiple of 32."""
    protocol: str | None = None
    """Slot mode: "values", which are their own flags, or "flags"."""
    units: int = 0
    """Slot mode, dispatch: units of 512 bytes that a warp moves at a time: 1, 2 or 4."""
    senders: int = 0
    """Slot mode: how many of 16 blocks send while the others receive; -1: all do both."""
    dependent: int = 0
    """Slot mode: 1: the next kernel may be scheduled while this one ends; -1: it may not."""
    blocks: int = 0
    """Direct mode: the most blocks."""
    bulk: int = 0
    """Direct mode: 1: bulk copies move rows; -1: threads do."""
    warps: int = 0
    """Direct mode: warps of a block that move rows by bulk copies."""
    parts: int = 0
    """Direct mode: parts of a row that a warp moves by bulk copies one after the other."""

    def _struct(self) -> _abi.EpKernelTuning:
        if self.protocol not in _PROTOCOLS:
            raise InvalidError(f"protocol {self.protocol!r}, want one of {', '.join(p for p in _PROTOCOLS if p)}")
        members = {
            f.name: whole(f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != "protocol"
        }
        return _abi.EpKernelTuning(**members, protocol=_PROTOCOLS.index(self.protocol))


_PROTOCOLS = (None, "values", "flags")

E = TypeVar("E", bound=Choice)

ROW_TYPES = {
    Payload.bf16: DType.bfloat16,
    Payload.fp16: DType.float16,
    Payload.fp32: DType.float32,
    Payload.fp8: DType.float8_e4m3,
    Payload.fp8_ue8m0: DType.float8_e4m3,
    Payload.opaque: DType.uint8,
}


@dataclasses.dataclass(frozen=True)
class Spec:
    """The description of a handle's exchanges. Choices are given by name or as members of their types. Not every
    combination is supported: :meth:`check` says which, and the guide has the table.

    ``experts``: of all ranks; rank r has the r-th share of experts / ranks.
    ``topk``: selections a token, 1 to 32.
    ``hidden``: numbers a row.
    ``max_tokens``: the most tokens that any rank dispatches at once.
    ``layout``: the order in which rows arrive, a :class:`Layout`.
    ``reduction``: how rows are summed on their way home; None: exact where the layout allows it.
    ``weighting``: whether combine applies the weights; None: weighted where the layout allows it.
    ``payload``: what rows are made of; a type stands for the payload of its rows, "float32" for fp32.
    ``quantize``: the type of rows that dispatch quantises to FP8; None: rows are quantised already.
    ``power_of_two_scales``: scales of quantised rows are powers of two, rounded up.
    ``scale_order``: the order of received scales, a :class:`ScaleOrder`.
    ``output``: the type that combine takes and returns; None: the payload's, or bfloat16.
    ``counts``: whether the host learns how many rows arrive, or only the GPU, a :class:`Counts`.
    ``overflow``: what happens to rows beyond the capacity, an :class:`Overflow`.
    ``sms``: on GPUs, the SMs that the kernels may fill; 0: three quarters of the free ones.
    ``row_bytes``, ``scale_bytes``: of an opaque payload, bytes of a row and of its scales, or 0.
    ``capacity``: the most rows that a rank (expert_major: an expert) can receive; 0 is the worst case.
    ``alignment``: of expert_packed, the multiple to which the experts' rows are padded.
    ``live``: received batches that may be unreleased at once; 0 is 2.
    ``dispatch_tuning``, ``combine_tuning``: on GPUs; None is Weft's choice.
    ``serial_group``: on GPUs, the number of a serial group; 0: none. Operations of its handles never run at once: they
    follow each other in stream order, in the same order on every rank. The handles share one reservation of SMs.
    """

    experts: int
    topk: int
    hidden: int
    max_tokens: int
    layout: Layout | str = Layout.expert_major
    reduction: Reduction | str | None = None
    weighting: Weighting | str | None = None
    payload: Payload | DTypeLike = Payload.bf16
    quantize: DTypeLike = None
    power_of_two_scales: bool = False
    scale_order: ScaleOrder | str = ScaleOrder.row_major
    output: DTypeLike = None
    counts: Counts | str = Counts.host
    overflow: Overflow | str = Overflow.refuse
    sms: int = 0
    row_bytes: int = 0
    scale_bytes: int = 0
    capacity: int = 0
    alignment: int = 0
    live: int = 0
    dispatch_tuning: KernelTuning | None = None
    combine_tuning: KernelTuning | None = None
    serial_group: int = 0

    def __post_init__(self) -> None:
        assign = object.__setattr__
        for name in _NUMBERS:
            assign(self, name, whole(name, getattr(self, name)))
        layout = _member(Layout, self.layout)
        # a row per token and rank, which stands for all of a rank's experts
        one = layout in (Layout.rank_major, Layout.token_major)
        assign(self, "layout", layout)
        assign(self, "reduction", _member(Reduction, self.reduction, Reduction(one)))
        assign(self, "weighting", _member(Weighting, self.weighting, Weighting(one)))
        assign(self, "payload", _payload(self.payload))
        assign(self, "quantize", None if self.quantize is None else dtype_of(self.quantize))
        assign(self, "scale_order", _member(ScaleOrder, self.scale_order))
        assign(self, "output", None if self.output is None else dtype_of(self.output))
        assign(self, "counts", _member(Counts, self.counts))
        assign(self, "overflow", _member(Overflow, self.overflow))

    @property
    def row_dtype(self) -> DType:
        """The type of the rows that dispatch takes."""
        return self.quantize or ROW_TYPES[_payload(self.payload)]

    @property
    def output_dtype(self) -> DType:
        """The type of the rows that combine takes and returns."""
        if self.output is not None:
            return dtype_of(self.output)
        plain = (Payload.bf16, Payload.fp16, Payload.fp32)
        return ROW_TYPES[_member(Payload, self.payload)] if self.payload in plain else DType.bfloat16

    @property
    def one_row_per_rank(self) -> bool:
        """Whether a row stands for all of a rank's experts."""
        return self.layout in (Layout.rank_major, Layout.token_major)

    def check(self, ranks: int, engine: str = "host") -> None:
        """Raises why a spec is not supported for a number of ranks on an engine, "host" or "gpu", if it
        is not. Local."""
        lib = library()
        if status := lib.ep_check(self._struct(), 1 if engine == "gpu" else 0, ranks):
            lib.fail(status)

    def _struct(self) -> _abi.EpSpec:
        members = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        tunings = {name: members.pop(name) for name in ("dispatch_tuning", "combine_tuning")}
        made = _abi.EpSpec(**{name: 0 if v is None else int(v) for name, v in members.items()})
        made.tunings = {name: t._struct() for name, t in tunings.items() if t is not None}  # which live as long
        for name, t in made.tunings.items():
            setattr(made, name, ctypes.addressof(t))
        return made


_NUMBERS = (
    "experts",
    "topk",
    "hidden",
    "max_tokens",
    "sms",
    "row_bytes",
    "scale_bytes",
    "capacity",
    "alignment",
    "live",
    "serial_group",
)


def _member(choices: type[E], given: Any, default: E | None = None) -> E:
    if given is None and default is not None:
        return default
    try:
        return choices[given] if isinstance(given, str) else choices(given)
    except (KeyError, ValueError):
        raise InvalidError(
            f"{choices.__name__.lower()} {given!r}, want one of {', '.join(choices.__members__)}"
        ) from None


_OF_TYPE = {ROW_TYPES[p]: p for p in (Payload.bf16, Payload.fp16, Payload.fp32, Payload.fp8)}


def _payload(given: Any) -> Payload:
    """The payload of a name, or of the type of its rows: fp32 of "float32", of numpy's and of PyTorch's."""
    try:
        return _member(Payload, given if not isinstance(given, DType) else given.name)  # both are numbers
    except InvalidError:
        with contextlib.suppress(TypeError, KeyError):
            return _OF_TYPE[dtype_of(given)]
        raise InvalidError(
            f"payload {given!r}, want one of {', '.join(Payload.__members__)}, or a type: "
            f"{', '.join(dtype.name for dtype in _OF_TYPE)}"
        ) from None
