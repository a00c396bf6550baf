"""The unigram language model over pieces: a vocabulary by expectation maximisation.

A word consists of independently drawn pieces; pieces and probabilities are fitted to the text.
Source: Kudo 2018, "Subword Regularization", section 3.2.

The trainer of the ``tokenizers`` library sums in the order of a hash table, which differs in every
run, and so breaks ties by chance. Here the same text gives the same vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from intently.errors import ArgumentError, build

Scores = dict[str, float]
"""The natural logarithm of the probability of each piece."""

ROUNDS = 2
"""EM iterations before each pruning."""

KEPT = 0.75
"""The share of pieces kept by a pruning."""

RAREST = 0.5
"""Pieces with a smaller expected count are removed even where there is room."""


class _Lattice(NamedTuple):
    """A word, its count, and its pieces that end after 1, 2, … characters."""

    word: str
    times: int
    ending: list[list[tuple[int, str]]]


def fitted(words: Mapping[str, int], seed: Iterable[str], size: int) -> list[tuple[str, float]]:
    """Return at most ``size`` pieces of ``seed`` with their scores, the likeliest first.

    ``words`` maps words to counts. Pieces of one character, which must be in ``seed``, always stay,
    so that every word can be encoded. Raises `ArgumentError` where they alone exceed ``size``.

    >>> pieces = fitted({"aab": 9, "aa": 3, "b": 1}, ["a", "b", "aa", "ab"], size=3)
    >>> [(piece, round(score, 2)) for piece, score in pieces]
    [('a', -0.44), ('ab', -1.55), ('b', -1.94)]
    """
    scores = dict.fromkeys(sorted(seed), 0.0)
    single = sum(len(piece) == 1 for piece in scores)
    if size < single:
        raise build(
            ArgumentError,
            "size",
            f"{single} or more, the single characters of the seed",
            size,
            "they always stay, so that every word can be said",
        )
    lattices = _lattices(words, scores)
    found = Counter[str]()
    for _, count, ending in lattices:
        for _, piece in chain.from_iterable(ending):
            found[piece] += count
    scores = _maximised({piece: found[piece] for piece in scores})
    while True:
        lattices = _lattices(words, scores)
        counts: dict[str, float] = {}
        for _ in range(ROUNDS):
            counts = _expected(lattices, scores)
            scores = _maximised(counts)
        scores = {p: score for p, score in scores.items() if len(p) == 1 or counts[p] >= RAREST}
        if len(scores) <= size:
            return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
        scores = _pruned(scores, counts, max(size, int(KEPT * len(scores))))


def _lattices(words: Mapping[str, int], scores: Scores) -> list[_Lattice]:
    longest = max(map(len, scores))
    return [
        _Lattice(
            word,
            words[word],
            [
                [
                    (start, word[start:end])
                    for start in range(max(0, end - longest), end)
                    if word[start:end] in scores
                ]
                for end in range(1, len(word) + 1)
            ],
        )
        for word in sorted(words)  # so that sums are the same in every run
    ]


def _expected(lattices: list[_Lattice], scores: Scores) -> dict[str, float]:
    """Return the expected count of each piece, over all segmentations of the words."""
    counts = dict.fromkeys(scores, 0.0)
    for word, count, ending in lattices:
        # before[i]: log-probability of the first i characters, over all segmentations
        before = [0.0]
        for pieces in ending:
            before.append(_log_sum([before[start] + scores[piece] for start, piece in pieces]))
        # cut[i]: expected number of cuts after i characters
        cut = [0.0] * len(word) + [float(count)]
        for end in range(len(word), 0, -1):
            for start, piece in ending[end - 1]:
                times = cut[end] * math.exp(before[start] + scores[piece] - before[end])
                cut[start] += times
                counts[piece] += times
    return counts


def _log_sum(terms: list[float]) -> float:
    if len(terms) == 1:
        return terms[0]
    top = max(terms)
    return top + math.log(sum([math.exp(term - top) for term in terms]))


def _maximised(counts: Mapping[str, float]) -> Scores:
    """Return the scores of maximum likelihood for the counts, all finite."""
    total = sum(counts.values())
    return {piece: math.log(max(n, 1e-9) / total) for piece, n in counts.items()}


def _pruned(scores: Scores, counts: Mapping[str, float], size: int) -> Scores:
    """Return the ``size`` pieces whose removal would cost the most likelihood.

    The loss of a piece is the drop in log-likelihood when its occurrences are cut into others. Ties
    are broken alphabetically.
    """
    losses = {
        piece: counts[piece] * (score - _cut_up(piece, scores))
        for piece, score in scores.items()
        if len(piece) > 1
    }
    single = {piece: score for piece, score in scores.items() if len(piece) == 1}
    kept = sorted(losses, key=lambda piece: (-losses[piece], piece))[: size - len(single)]
    return single | {piece: scores[piece] for piece in kept}


def _cut_up(piece: str, scores: Scores) -> float:
    """Return the score of the best segmentation of a piece into smaller ones."""
    best = [0.0]
    for end in range(1, len(piece) + 1):
        found = [
            best[start] + scores[piece[start:end]]
            for start in range(end)
            if end - start < len(piece) and piece[start:end] in scores
        ]
        best.append(max(found))
    return best[-1]
