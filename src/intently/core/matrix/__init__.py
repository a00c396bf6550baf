"""The lazy matrix: weights that are never materialised as a whole, and all statistics."""

from intently.core.matrix.joined import Dense, Merged, Stacked, rollout, stack_rows
from intently.core.matrix.lazy import Labels, LazyMatrix, MeanHeads, Transposed
from intently.foundation.on_demand import listed

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
