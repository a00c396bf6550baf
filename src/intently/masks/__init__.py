"""Masks as values: True means attend, queries have positions, and every mask draws itself.

A mask is made without knowing t and s; it is asked about some rows and columns of a matrix whose
`Geometry` is known by then. By default query i of t stands at position s − t + i, so the last
query sees the last key (contract 3 of the design), and masks join with ``&``, ``|`` and ``~``:

>>> print(causal().draw(3, 5))
█ █ █ · ·
█ █ █ █ ·
█ █ █ █ █
>>> causal() & ~window(1, 0)
causal() & ~window(1, 0)
"""

from intently.masks.by_content import grid, padding, prefix, segments
from intently.masks.by_position import causal, dilated, is_plain_causal, window
from intently.masks.geometry import Geometry, check_broadcast
from intently.masks.rule import Mask, allowed, as_mask, indexed

__all__ = [
    "Geometry",
    "Mask",
    "allowed",
    "as_mask",
    "causal",
    "check_broadcast",
    "dilated",
    "grid",
    "indexed",
    "is_plain_causal",
    "padding",
    "prefix",
    "segments",
    "window",
]
