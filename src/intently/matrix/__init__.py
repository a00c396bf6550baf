"""The lazy matrix: weights that are never materialised as a whole, and all statistics."""

from intently.foundation.on_demand import listed
from intently.matrix.joined import Dense, Merged, Stacked, stack_rows
from intently.matrix.lazy import Labels, LazyMatrix, MeanHeads, Transposed
from intently.matrix.rollout import rollout

__all__ = [
    "Dense",
    "Labels",
    "LazyMatrix",
    "MeanHeads",
    "Merged",
    "Stacked",
    "Transposed",
    "rollout",
    "stack_rows",
]

__dir__ = listed(__name__)
