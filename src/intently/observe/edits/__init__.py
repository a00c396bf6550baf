"""Edits: what a model should attend to instead, as values that `intently.edit` applies.

They join with ``&``. Heads, rows (queries) and keys are named by index, slice, token text or
booleans, pixels also by a region of the image; keys also by a mask, whose cells are meant.

>>> off(heads=[3]) & forbid(keys=[4], rows="because", heads=2)
off(heads=[3]) & forbid(heads=2, rows='because', keys=[4])
"""

from intently.foundation.on_demand import listed
from intently.observe.edits.edit import Edit, Joined, Scene, during, region
from intently.observe.edits.rules import (
    Attending,
    Each,
    each_head,
    each_key,
    each_layer,
    favour,
    forbid,
    look_only_at,
    off,
    previous,
    replace,
    sharpen,
    uniform,
    weights,
)

__all__ = [
    "Attending",
    "Each",
    "Edit",
    "Joined",
    "Scene",
    "during",
    "each_head",
    "each_key",
    "each_layer",
    "favour",
    "forbid",
    "look_only_at",
    "off",
    "previous",
    "region",
    "replace",
    "sharpen",
    "uniform",
    "weights",
]

__dir__ = listed(__name__)
