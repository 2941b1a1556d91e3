"""Where the originals assert, these exceptions have a message."""

from __future__ import annotations

import weft
from weft.errors import Words


class ContractError(weft.InvalidError, AssertionError):
    """A call against the contract of its interface."""


def require(condition: bool, words: str) -> None:
    if not condition:
        raise ContractError(words)


TOP_K = "top-k, the width of topk_idx"
HIDDEN = "the hidden size of x"


def words(max_tokens: str) -> Words:
    """What errors of handles say in the words of a buffer, whose name for the most tokens of a rank this is."""
    return Words(
        (r"^(?:Handle|Group|TokenCounter): ", ""),
        (r"\bcount: ", "get_dispatch_layout: "),
        (r"^all-gather: ", "dispatch: "),
        (r"\bset_mask goes on\b", "a mask of the buffer's or the communicator's goes on"),
        (r", which deadline= sets\b", ", which deadline= of the communicator sets, in from_communicator"),
        # Arguments of handles, and those that they follow from.
        (
            r"\b(ranks? \d[\d, -]*) calls? (?:Handle|Group|TokenCounter), "
            r"(ranks? \d[\d, -]*) (?:Handle|Group|TokenCounter)\b",
            r"the calls of \1 differ from those of \2",
        ),
        (r"\btopk (?=is -?\d+:)", "top-k "),
        (r"\btopk(?=: \w+ on rank)", TOP_K),
        (r"\bhidden(?=: \w+ on rank)", HIDDEN),
        (r"\bexperts(?= is |: )", "num_experts"),
        (r"\bmax_tokens\b", max_tokens),
        (r"\bpower_of_two_scales\b", "round_scale"),
        (r"; (?:quantize|scale_order): [^;]*", ""),
        (r"\bpayload(?=: )", "the type of rows (use_fp8)"),
        (r"\blayout(?=: )", "do_expand"),
        (r"\balignment(?= is |: )", "expert_alignment"),
        (r"\bcounts(?=: )", "num_worst_tokens"),
        # Operands.
        (r"\btopk(?= is |:)", "topk_idx"),
        (r"(?<!_)\bweights(?= are |:)", "topk_weights"),
        (r"\boutput rows are\b", "out is"),
        (r"(?<!received )\brows are (?=[a-z0-9_]+\[)", "x is "),
        (r"^rows(?=: )|(?<=: )rows(?=: )", "x"),
        (r"\bbiases are\b", "bias is"),
        (r"\bscales are(?= [a-z0-9_]+\[)", "the scales of x are"),
        (r"\bscales are given, \w+ rows have none here", "x is a pair, and rows of its type have no scales"),
        (r"\bno scales given, want\b", "x has no scales, want a pair, the second"),
    )
