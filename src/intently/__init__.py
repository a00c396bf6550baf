"""Intently: attention you can compute, see and trust.

The names are listed in learning order: attend, the masks, scores, biases,
positions, kernels. Models, training and pictures are imported from their own packages.

Each name is imported when it is first used, so that the command line can answer ``--help``
without PyTorch.
"""

from typing import TYPE_CHECKING

from intently.foundation.on_demand import listed, names

if TYPE_CHECKING:
    from intently import edits, errors, kernels, positions, reference, scores, show
    from intently.attention_matrix import Attention, attend, attention
    from intently.biases import Bias, alibi, relative_buckets
    from intently.drop_in import scaled_dot_product_attention
    from intently.examiner import check
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
    from intently.observe import edit, effects, load_recording, path_effects, watch
    from intently.positions import Learned, Rotary, sinusoidal
    from intently.scores import Additive, Cosine, Dot, General, Score, concat

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
    "attention_matrix": ("attend", "attention", "Attention"),
    "drop_in": ("scaled_dot_product_attention",),
    "matrix": ("LazyMatrix", "Dense", "Merged", "stack_rows", "rollout"),
    "masks": (
        *("Mask", "causal", "padding", "window", "prefix", "segments", "dilated", "grid"),
        "allowed",
    ),
    "scores": ("Score", "Dot", "Additive", "concat", "General", "Cosine"),
    "biases": ("Bias", "alibi", "relative_buckets"),
    "positions": ("sinusoidal", "Learned", "Rotary"),
    "observe": ("watch", "load_recording", "edit", "effects", "path_effects"),
    "examiner": ("check",),
}
"""Module: what it holds of the names above."""

__getattr__ = names(__name__, _HOMES)

_PACKAGES = (
    *("corpora", "decoding", "interop", "language", "matrix", "models", "modules"),
    *("play", "recipes", "text", "training", "translation"),
)
"""What is imported from a package of its own."""

__dir__ = listed(__name__, "__version__", *_PACKAGES)
