"""Arguments that forks of DeepEP have added and that are not served: each is refused in words."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor

import weft


def refuse_forks_of_dispatch(topk_weights: Tensor | None, use_nvfp4: bool) -> NoReturn:
    """Refuses the arguments of low_latency_dispatch, of which one is given; x_global_scale if it is no other."""
    if topk_weights is not None:
        raise weft.UnsupportedError(
            "low_latency_dispatch: topk_weights is the hybrid-ep branch's, and weights do not travel with these "
            "rows: give them to low_latency_combine"
        )
    name = "use_nvfp4" if use_nvfp4 else "x_global_scale"
    raise weft.UnsupportedError(
        f"low_latency_dispatch: {name} is of SGLang's fork, for rows in NVFP4, which need a Blackwell GPU's "
        "products: send float8 with use_fp8=True, or bfloat16 (vLLM: VLLM_DEEPEPLL_NVFP4_DISPATCH=0)"
    )


_OVERLAP = (
    "overlap",
    "src_signals",
    "src_signal_expect_value",
    "packed_recv_count",
    "comp_signal",
    "block_m",
    "threshold",
    "num_sms",
)

NO_OVERLAP = False, None, 0, None, None, None, None, None
"""The arguments of low_latency_combine that SGLang's fork has added, where none is given."""


def refuse_overlap(given: tuple[Any, ...]) -> NoReturn:
    """Refuses those arguments, of which one is given."""
    pairs = zip(_OVERLAP, given, NO_OVERLAP, strict=True)
    names = ", ".join(name for name, value, none in pairs if isinstance(value, Tensor) or value != none)
    raise weft.UnsupportedError(
        f"low_latency_combine: {names}: of SGLang's fork, whose combine begins before its rows are there and waits for "
        "signals: combine after the products that make the rows (SGLang: leave out --enable-single-batch-overlap)"
    )
