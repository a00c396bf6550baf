"""Intently: attention you can compute, see and trust.

The names are listed in learning order: attend, the masks, scores, biases,
positions, kernels. Models, training and pictures are imported from their own packages.

Each name is imported when it is first used, so that the command line can answer ``--help``
without PyTorch.
"""

from typing import TYPE_CHECKING

from intently.foundation.on_demand import listed, names

if TYPE_CHECKING:
    from intently import errors, reference, show
    from intently.checker import check
    from intently.core import kernels, positions, scores
    from intently.core.attention import Attention, attend, attention
    from intently.core.biases import Bias, alibi, relative_buckets
    from intently.core.drop_in import scaled_dot_product_attention
    from intently.core.masks import (
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
    from intently.core.matrix import Dense, LazyMatrix, Merged, rollout, stack_rows
    from intently.core.positions import Learned, Rotary, sinusoidal
    from intently.core.scores import Additive, Cosine, Dot, General, Score, concat
    from intently.observe import edit, edits, effects, heads, load_recording, path_effects, watch

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
    "edit",
    "heads",
    "effects",
    "path_effects",
    "edits",
    "check",
    "show",
    "scores",
    "positions",
    "reference",
    "kernels",
    "errors",
]

_HOMES = {
    "core": ("kernels", "positions", "scores"),
    "core.attention": ("attend", "attention", "Attention"),
    "core.drop_in": ("scaled_dot_product_attention",),
    "core.matrix": ("LazyMatrix", "Dense", "Merged", "stack_rows", "rollout"),
    "core.masks": (
        *("Mask", "causal", "padding", "window", "prefix", "segments", "dilated", "grid"),
        "allowed",
    ),
    "core.scores": ("Score", "Dot", "Additive", "concat", "General", "Cosine"),
    "core.biases": ("Bias", "alibi", "relative_buckets"),
    "core.positions": ("sinusoidal", "Learned", "Rotary"),
    "observe": ("watch", "load_recording", "edit", "heads", "effects", "path_effects", "edits"),
    "checker": ("check",),
}
"""Module: what it holds of the names above."""

__getattr__ = names(__name__, _HOMES)

_PACKAGES = ("core", "nn", "observe", "show", "interop", "checker", "tasks")
"""The rooms, in the order of the map."""

__dir__ = listed(__name__, "__version__", *_PACKAGES)
