"""Edits: what a model should attend to instead, as values that `intently.edit` applies.

They join with ``&``. Heads, rows (queries) and keys are named by index, slice, token text or
booleans, pixels also by a region of the image; keys also by a mask, whose cells are meant.

>>> off(heads=[3]) & forbid(keys=[4], rows="because", heads=2)
off(heads=[3]) & forbid(heads=2, rows='because', keys=[4])
"""

from intently.edits.each import Attending, Each, each_head, each_key, each_layer
from intently.edits.edit import Edit, Joined, Scene, during
from intently.edits.given import replace, weights
from intently.edits.pictures import region
from intently.edits.rules import favour, forbid, look_only_at, off, previous, sharpen, uniform
from intently.foundation.on_demand import listed

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
