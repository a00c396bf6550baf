"""Decoding: from the probabilities of a model to the sentences it writes, and what it looked at."""

from intently.foundation.on_demand import listed
from intently.tasks.decoding.hypothesis import Hypothesis
from intently.tasks.decoding.options import SearchOptions
from intently.tasks.decoding.sampling import distribution, sample
from intently.tasks.decoding.search import search

__all__ = ["Hypothesis", "SearchOptions", "distribution", "sample", "search"]

__dir__ = listed(__name__)
