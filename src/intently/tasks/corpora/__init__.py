"""Corpora: the built-in language, public corpora by name, files, and word alignments."""

from __future__ import annotations

from intently.foundation.on_demand import listed
from intently.tasks.corpora.built_in import SHOWN, SPLITS, Pair, Pronoun, language, sample
from intently.tasks.corpora.files import ParallelText, read_parallel
from intently.tasks.corpora.named import CORPORA, Corpus, load_corpus
from intently.tasks.corpora.stories import stories

__all__ = [
    "CORPORA",
    "SHOWN",
    "SPLITS",
    "Corpus",
    "Pair",
    "ParallelText",
    "Pronoun",
    "language",
    "load_corpus",
    "read_parallel",
    "sample",
    "stories",
]

__dir__ = listed(__name__)
