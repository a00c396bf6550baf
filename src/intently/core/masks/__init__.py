"""Masks as values: True means attend, queries have positions, and every mask can draw itself.

A mask is made without knowing t and s; its rows and columns are evaluated later, when the
`Geometry` of the matrix is known. By default, query i of t is at position s − t + i, so the last
query sees the last key (contract 3). Masks combine with ``&``, ``|`` and ``~``:

>>> print(causal().draw(3, 5))
█ █ █ · ·
█ █ █ █ ·
█ █ █ █ █
>>> causal() & ~window(1, 0)
causal() & ~window(1, 0)

Kernels ask which blocks of the matrix are EMPTY (0), FULL (2) or PARTIAL (1), to skip or simplify
them; the answer has a closed form for any size:

>>> import torch
>>> causal().blocks(Geometry((), 6, 6, torch.device("cpu")), 2, 2)
tensor([[1, 0, 0],
        [2, 1, 0],
        [2, 2, 1]], dtype=torch.int8)

In a notebook a mask shows itself as a picture.
"""

from intently.core.masks.block_states import EMPTY, FULL, PARTIAL
from intently.core.masks.by_position import causal, dilated, grid, is_plain_causal, window
from intently.core.masks.geometry import Geometry, check_broadcast, indexed
from intently.core.masks.mask import Mask, allowed, as_mask
from intently.core.masks.ragged import padding, prefix, segments
from intently.foundation.on_demand import listed

__all__ = [
    "EMPTY",
    "FULL",
    "PARTIAL",
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

__dir__ = listed(__name__)
