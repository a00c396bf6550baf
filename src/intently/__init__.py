"""Intently: attention you can compute, see and trust.

The names stand in the order in which one learns them: attend, the masks, positions, kernels.
Models, training and pictures are imported from their own packages.
"""

from intently import errors, kernels, reference
from intently.attention import Attention, attend, attention
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
from intently.matrix import Dense, LazyMatrix, Merged, stack_rows
from intently.positions import sinusoidal

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 - in the order of learning
    "attend",
    "attention",
    "LazyMatrix",
    "Attention",
    "Dense",
    "Merged",
    "stack_rows",
    "Mask",
    "causal",
    "padding",
    "window",
    "prefix",
    "segments",
    "dilated",
    "grid",
    "allowed",
    "sinusoidal",
    "reference",
    "kernels",
    "errors",
]
