"""Edits: what a model should attend to instead, as values that `intently.edit` applies.

They join with ``&``. Heads, rows (queries) and keys are named by index, slice, token text or
booleans, pixels also by a region of the image; keys also by a mask, whose cells are meant.

>>> off(heads=[3]) & forbid(keys=[4], rows="because", heads=2)
off(heads=[3]) & forbid(heads=2, rows='because', keys=[4])
"""

from intently.foundation.on_demand import listed
from intently.observe.edits.each import Attending, Each, each_head, each_key, each_layer
from intently.observe.edits.edit import Edit, Joined, Scene, during
from intently.observe.edits.given import replace, weights
from intently.observe.edits.places import region
from intently.observe.edits.rules import (
    favour,
    forbid,
    look_only_at,
    off,
    previous,
    sharpen,
    uniform,
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
