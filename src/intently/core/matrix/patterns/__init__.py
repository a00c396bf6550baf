"""Patterns of heads: what they follow, how they differ, and what their weights carry."""

from intently.core.matrix.patterns.heads import jensen_shannon
from intently.core.matrix.patterns.kinds import duplicate, induction, mass_on, previous
from intently.core.matrix.patterns.links import links
from intently.core.matrix.patterns.measured import STATISTICS, Average, measure
from intently.core.matrix.patterns.weighted import by_gradient, by_value_norm

__all__ = [
    "STATISTICS",
    "Average",
    "by_gradient",
    "by_value_norm",
    "duplicate",
    "induction",
    "jensen_shannon",
    "links",
    "mass_on",
    "measure",
    "previous",
]
