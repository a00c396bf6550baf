"""Corpora: the built-in language, public corpora by name, files, and word alignments."""

from __future__ import annotations

from intently.corpora.alignment import Alignment, alignment_error_rate
from intently.corpora.built_in import SHOWN, SPLITS, Pair, Pronoun, language, sample, vocabulary
from intently.corpora.files import ParallelText, read_parallel
from intently.corpora.named import CORPORA, Corpus, load_corpus
from intently.corpora.stories import stories
from intently.foundation.on_demand import listed

__all__ = [
    "CORPORA",
    "SHOWN",
    "SPLITS",
    "Alignment",
    "Corpus",
    "Pair",
    "ParallelText",
    "Pronoun",
    "alignment_error_rate",
    "language",
    "load_corpus",
    "read_parallel",
    "sample",
    "stories",
    "vocabulary",
]

__dir__ = listed(__name__)
