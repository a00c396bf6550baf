"""The built-in language: English and French sentences with their gold alignment, in files.

A grammar that is not installed, `tools/grammar`, wrote them. Each split is a compressed table of
tab-separated lines: both sentences, the kind of sentence, the links between words (``0-1``, or
``0?1`` where only possible), and the numbers and words of a `Pronoun`.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from intently.core.matrix.alignment import Alignment
from intently.errors import DataError, build
from intently.foundation.checks import check_word, whole_number
from intently.tasks.text.words import words

FOLDER = Path(str(files("intently") / "tasks" / "embedded" / "language"))
SPLITS = ("train", "validation", "test", "novel", "deeper")


class Pronoun(NamedTuple):
    """Which noun a pronoun stands for, as word indices of the pair.

    `source` is the index of it or they among the source words, `target` that of the French
    pronoun among the target words; `right` and `wrong` are the source indices of the noun it
    stands for and of the other one; `expected` is il, elle, ils or elles, `other` what would stand
    for the wrong noun, the same word where both are of one gender.
    """

    source: int
    target: int
    right: int
    wrong: int
    expected: str
    other: str


class Pair(NamedTuple):
    """A sentence in English and in French, its words, and how they are aligned.

    >>> SHOWN[0].source, SHOWN[0].target_words
    ('I drink milk.', ('Je', 'bois', 'du', 'lait', '.'))
    >>> sorted(SHOWN[0].alignment.possible - SHOWN[0].alignment.sure)  # milk, du
    [(2, 2)]
    """

    source: str
    target: str
    kind: str
    links: str
    referent: str = ""

    @property
    def source_words(self) -> tuple[str, ...]:
        """The English words."""
        return tuple(words(self.source))

    @property
    def target_words(self) -> tuple[str, ...]:
        """The French words."""
        return tuple(words(self.target))

    @property
    def alignment(self) -> Alignment:
        """The gold word alignment, as the grammar knows it."""
        links = [re.split("([-?])", link) for link in self.links.split()]
        sure = [(int(i), int(j)) for i, mark, j in links if mark == "-"]
        return Alignment.of(sure, [(int(i), int(j)) for i, _, j in links])

    @property
    def pronoun(self) -> Pronoun | None:
        """The referent of the pronoun of a because-sentence, or None."""
        if not self.referent:
            return None
        *indices, expected, other = self.referent.split()
        source, target, right, wrong = map(int, indices)
        return Pronoun(source, target, right, wrong, expected, other)


def language(split: str) -> Iterator[Pair]:
    """Return the pairs of a split, read as they are asked for.

    `train` (100,000), `validation` and `test` share one distribution and no English sentence;
    `novel` holds combinations of words that these never show, `deeper` a clause more than they ever
    have. Greetings ("How are you?") are set phrases: all are in `train`, none in the other splits.

    >>> next(language("train")) == next(language("train"))
    True
    """
    check_word(split, "split", SPLITS)
    return _read(split)


def _read(name: str) -> Iterator[Pair]:
    path = FOLDER / f"{name}.tsv.xz"
    try:
        with lzma.open(path, "rt", encoding="utf-8", newline="\n") as lines:
            for line in lines:
                yield Pair(*line[:-1].split("\t"))
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        fix = "install Intently again"
        raise build(DataError, str(path), "a table of sentences", error, fix=fix) from None


def sample(split: str, count: int) -> list[Pair]:
    """Return the first `count` pairs of a split with distinct English sides, or all there are.

    >>> len({pair.source for pair in sample("test", 50)})
    50
    """
    whole_number(count, "count", 0)
    distinct: dict[str, Pair] = {}
    for pair in language(split):
        if len(distinct) >= count:
            break
        distinct.setdefault(pair.source, pair)
    return list(distinct.values())


SHOWN: tuple[Pair, ...] = tuple(_read("shown"))
"""Thirteen sentences for demonstrations, with gold alignments: in the grammar, but in no split."""
