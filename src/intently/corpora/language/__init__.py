"""The built-in language: English and French sentences of a grammar, with their alignment."""

from __future__ import annotations

from intently.corpora.language.pair import Pair, Pronoun
from intently.corpora.language.shown import SHOWN
from intently.corpora.language.splits import SPLITS, language, sample, vocabulary
from intently.foundation.on_demand import listed

__all__ = ["SHOWN", "SPLITS", "Pair", "Pronoun", "language", "sample", "vocabulary"]

__dir__ = listed(__name__)
