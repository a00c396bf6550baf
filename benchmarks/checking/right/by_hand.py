"""Attention modules as people write them: the styles of breadth that are a softmax."""

from __future__ import annotations

from typing import Any

from benchmarks.breadth import styles
from benchmarks.checking.right import Case

OTHERS = frozenset((
    "gumbel", "difference", "SigmoidAttention", "DeepViT", "CaiT", "Performer", "LinearAttention",
    "Efficient", "nystrom", "linformer", "over_queries", "T5", "SetTransformer", "NonLocal",
    "talking_before", "talking_both", "talking_heads", "Router", "MemoryNetwork", "sparse",
    "ClipPooling", "OpenAIClip", "exp_in_place", "by_tensordot", "Bert", "Axial",
    "in_autograd_function",
))  # fmt: skip
"""Styles that are another attention by design, pool, or have no gradient for queries and keys."""


def _case(style: str) -> Case:
    model, given = styles.build(style)
    asked: dict[str, Any] = {"inputs": given}
    return Case(f"by hand, {style.replace('_', ' ')}", lambda: model, asked)


CASES = tuple(_case(style) for style in styles.STYLES if style not in OTHERS)
