"""Intently: attention you can compute, see and trust.

The names stand in the order in which one learns them: attend, the masks, scores, biases,
positions, kernels. Models, training and pictures are imported from their own packages.
"""

from typing import TYPE_CHECKING, Any

from intently import errors, kernels, positions, reference, scores
from intently.attention import Attention, attend, attention
from intently.biases import Bias, alibi, relative_buckets
from intently.drop_in import scaled_dot_product_attention
from intently.masks import (
    Mask,
    allowed,
    causal,
    dilated,
    grid,
    padding,
    prefix,
    segments,
    window,
)
from intently.matrix import Dense, LazyMatrix, Merged, rollout, stack_rows
from intently.positions import Learned, Rotary, sinusoidal
from intently.scores import Additive, Cosine, Dot, General, Score, concat

if TYPE_CHECKING:
    from intently import show
    from intently.observe import load_recording, watch

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 - in the order of learning
    "attend",
    "attention",
    "scaled_dot_product_attention",
    "LazyMatrix",
    "Attention",
    "Dense",
    "Merged",
    "stack_rows",
    "rollout",
    "Mask",
    "causal",
    "padding",
    "window",
    "prefix",
    "segments",
    "dilated",
    "grid",
    "allowed",
    "Score",
    "Dot",
    "Additive",
    "concat",
    "General",
    "Cosine",
    "Bias",
    "alibi",
    "relative_buckets",
    "sinusoidal",
    "Learned",
    "Rotary",
    "watch",
    "load_recording",
    "show",
    "scores",
    "positions",
    "reference",
    "kernels",
    "errors",
]


def __getattr__(name: str) -> Any:
    """Watching and pictures are loaded when they are asked for."""
    if name == "show":
        from importlib import import_module

        return import_module("intently.show")
    if name in ("watch", "load_recording"):
        from intently import observe

        return getattr(observe, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
