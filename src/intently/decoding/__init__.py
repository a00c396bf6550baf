"""Decoding: from the probabilities of a model to the sentences it writes, and what it looked at."""

from intently.decoding.hypothesis import Hypothesis
from intently.decoding.options import SearchOptions
from intently.decoding.sampling import distribution, sample
from intently.decoding.search import search
from intently.foundation.on_demand import listed

__all__ = ["Hypothesis", "SearchOptions", "distribution", "sample", "search"]

__dir__ = listed(__name__)
