"""Tatoeba, English and French: short everyday sentences, split without leaks.

Half of the English sentences have several translations, and a French one may translate several
English ones. In a random split, half of the test sentences would occur in training. So pairs that
share a sentence form a connected component, and no component is in two parts.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from intently.errors import ArgumentError, DataError, build
from intently.tasks.corpora.download import RemoteFile, obtain
from intently.tasks.corpora.files import ParallelText, counted, read_parallel

CREDIT = (
    "sentence pairs of the Tatoeba project (tatoeba.org) from manythings.org/anki, 2019-04-07, "
    "CC BY 2.0 France"
)
FILE = RemoteFile(
    ("fra-eng.tsv", "fra.txt"),
    # manythings.org keeps only its newest file; Dive into Deep Learning keeps this one
    "https://d2l-data.s3-accelerate.amazonaws.com/fra-eng.zip",
    "0bb85dbaa1c896844649094d7eaf2e34bee34e84fe362b26ce7e8f2e12aae104",
    member="fra-eng/fra.txt",
)
SHARE = 0.0125
"""Share of the components in the test set, and in the dev set."""

GIANT = 100
"""A component of more pairs is trained on: a test keeps only one pair of each."""

NO_LETTERS = re.compile(r"[\W_]+")


def read_tatoeba(
    source: str, target: str, data_dir: Path | None
) -> tuple[ParallelText, ParallelText, dict[str, ParallelText]]:
    """Return the training pairs, the dev pairs and the test set; the same pairs in each direction.

    Raises DataError where a file of the user's has too few pairs for three parts.
    """
    (path,) = obtain("tatoeba", [FILE], data_dir)
    text = read_parallel(path)
    train, dev, test = split_without_leaks(text)
    if not (train and dev and test):
        raise build(
            DataError, str(path), "enough sentence pairs for three parts", counted(len(text))
        )
    if (source, target) == ("fr", "en"):
        train, dev, test = (
            replace(part, sources=part.targets, targets=part.sources) for part in (train, dev, test)
        )
    return train, dev, {"test": test}


def split_without_leaks(
    text: ParallelText, share: float = SHARE
) -> tuple[ParallelText, ParallelText, ParallelText]:
    """Split sentence pairs into train, dev and test so that no sentence is in two of them.

    ``share`` is the share of the components in test, and in dev. Sentences that differ only in
    case, punctuation and spaces count as the same. Each component in dev or test contributes one
    pair, and its others are left out, so no source and no target occurs twice. Checksums of the
    sentences decide the part of a component, its pair and the order of pairs: neither the order of
    the lines nor chance matters.

    >>> text = ParallelText([f"{n // 2}." for n in range(1000)], [f"{n} !" for n in range(1000)])
    >>> train, dev, test = split_without_leaks(text)
    >>> len(train) > 900, set(train.sources) & set(test.sources)
    (True, set())
    """
    if not 0 < share < 0.5:
        raise build(ArgumentError, "share", "a share above 0 and below 0.5", share)
    chosen: dict[str, list[int]] = {"train": [], "dev": [], "test": []}
    order = [_digest(f"{source}\t{target}") for source, target in zip(text.sources, text.targets)]
    for name, pairs in components(text.sources, text.targets).items():
        place = int.from_bytes(_digest(name)) / 256**8
        if len(pairs) > GIANT or place >= 2 * share:
            chosen["train"] += pairs
        else:
            name = "test" if place < share else "dev"
            chosen[name].append(min(pairs, key=order.__getitem__))

    def part(name: str) -> ParallelText:
        indices = sorted(chosen[name], key=order.__getitem__)
        return ParallelText(
            [text.sources[index] for index in indices],
            [text.targets[index] for index in indices],
            f"{len(indices):,} of {text.report or counted(len(text))}, {name}",
        )

    return part("train"), part("dev"), part("test")


def components(sources: Sequence[str], targets: Sequence[str]) -> dict[str, list[int]]:
    """Return the pairs of each connected component, keyed by its alphabetically first source.

    Sentences are the nodes of the graph, normalised, and pairs are its edges.

    >>> components(["Go.", "go!", "Stop."], ["Va !", "Pars !", "Arrête !"])
    {'go': [0, 1], 'stop': [2]}
    """
    left = [_same(sentence) for sentence in sources]
    right = [_same(sentence) for sentence in targets]
    parents: dict[tuple[str, str], tuple[str, str]] = {}

    def root(node: tuple[str, str]) -> tuple[str, str]:
        parents.setdefault(node, node)
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    for source, target in zip(left, right):
        # the alphabetically first source becomes the root, whatever the order of the pairs
        first, second = sorted((root(("source", source)), root(("target", target))))
        parents[second] = first
    found: dict[str, list[int]] = {}
    for index, source in enumerate(left):
        found.setdefault(root(("source", source))[1], []).append(index)
    return found


def _same(sentence: str) -> str:
    """Return the normalised sentence: equal for sentences that count as the same."""
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    return NO_LETTERS.sub("", folded) or folded


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:8]
