"""Unigram vocabularies: the expectation by enumeration, likelihood, long words, determinism."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import tokenizers

from intently.errors import ArgumentError
from intently.text import unigram
from intently.text.unigram import fitted

WORDS = {" the": 40, " then": 11, " there": 9, " hen": 5, "e": 3}
SEED = ["the", "he", "th", "en", " the", "re", *" thenr"]


def cuts(word: str, pieces: set[str]) -> Iterator[list[str]]:
    """Every way to make the word of pieces."""
    if not word:
        yield []
    for end in range(1, len(word) + 1):
        if word[:end] in pieces:
            yield from ([word[:end], *rest] for rest in cuts(word[end:], pieces))


def by_enumeration(words: dict[str, int], seed: list[str], rounds: int) -> dict[str, float]:
    """Probabilities after some rounds: each way to cut a word weighs as much as it is likely."""
    pieces = sorted(set(seed))
    found = {
        piece: sum(
            count * sum(word.startswith(piece, at) for at in range(len(word)))
            for word, count in words.items()
        )
        for piece in pieces
    }
    p: dict[str, float] = {}
    for _ in range(rounds + 1):
        total = sum(found.values())
        p = {piece: count / total for piece, count in found.items()}
        found = dict.fromkeys(pieces, 0.0)
        for word, count in words.items():
            ways = [(way, math.prod(p[piece] for piece in way)) for way in cuts(word, set(pieces))]
            whole = sum(weight for _, weight in ways)
            for way, weight in ways:
                for piece in way:
                    found[piece] += count * weight / whole
    return p


def test_expectation_and_maximisation_by_enumeration() -> None:
    expected = by_enumeration(WORDS, SEED, unigram.ROUNDS)
    got = dict(fitted(WORDS, SEED, size=99))
    likely = {piece for piece in expected if piece in got}
    assert {piece for piece in expected if len(piece) == 1} <= likely
    for piece in likely:
        if expected[piece] > 1e-6:
            assert math.exp(got[piece]) == pytest.approx(expected[piece], rel=1e-9), piece


def likelihood(words: dict[str, int], scores: dict[str, float]) -> float:
    return sum(
        count * math.log(sum(math.exp(sum(map(scores.get, w))) for w in cuts(word, set(scores))))  # pyright: ignore
        for word, count in words.items()
    )


def test_more_rounds_make_the_text_no_less_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for rounds in (1, 2, 4, 8):
        monkeypatch.setattr(unigram, "ROUNDS", rounds)
        monkeypatch.setattr(unigram, "RAREST", 0.0)
        found.append(likelihood(WORDS, dict(fitted(WORDS, SEED, size=99))))
    assert all(before < after + 1e-9 for before, after in pairwise(found))


def test_what_is_pruned_is_what_costs_least() -> None:
    words = {"abcd": 100, "wxyz": 2, "a": 50, "bc": 30}
    seed = ["abcd", "wxyz", *"abcdwxyz", "bc"]
    pieces = [piece for piece, _ in fitted(words, seed, size=10)]
    assert {"abcd", "bc"} <= set(pieces) and "wxyz" not in pieces
    assert set("abcdwxyz") <= set(pieces)


def test_scores_are_sorted_and_of_one_distribution() -> None:
    scores = [score for _, score in fitted(WORDS, SEED, size=9)]
    assert scores == sorted(scores, reverse=True)
    assert sum(map(math.exp, scores)) == pytest.approx(1, abs=0.02)  # but for what was left out


def test_the_order_of_words_and_pieces_does_not_matter() -> None:
    backwards = dict(reversed(WORDS.items()))
    assert fitted(WORDS, SEED, 9) == fitted(backwards, reversed(SEED), 9)


def test_a_long_word_does_not_underflow() -> None:
    pieces = dict(fitted({"ab" * 5000: 3, "a": 1}, ["a", "b", "ab", "ba"], size=9))
    assert all(map(math.isfinite, pieces.values()))
    assert max(pieces, key=pieces.__getitem__) == "ab"


def test_the_library_cuts_by_these_scores() -> None:
    """The likeliest of all ways to cut a word is the one that the tokenizers library takes."""
    pieces = fitted(WORDS, SEED, size=99)
    scores = dict(pieces)
    model = tokenizers.models.Unigram([("<unk>", 0.0), *pieces], 0, byte_fallback=False)
    for word in (*WORDS, " thethen", "here"):
        best = max(
            cuts(word, set(scores)), key=lambda way: math.fsum(scores[piece] for piece in way)
        )
        assert tokenizers.Tokenizer(model).encode(word).tokens == best


def test_more_characters_than_room_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They always stay, so no pruning would ever end."""
    rounds = 0
    expected = unigram._expected

    def counted(*given: Any) -> dict[str, float]:
        nonlocal rounds
        rounds += 1
        assert rounds < 20, "it prunes for ever"
        return expected(*given)

    monkeypatch.setattr(unigram, "_expected", counted)
    assert len(fitted({"abc": 2}, ["a", "b", "c", "ab"], size=3)) == 3
    with pytest.raises(ArgumentError) as caught:
        fitted({"abc": 2}, ["a", "b", "c", "ab"], size=2)
    assert str(caught.value) == (
        "size: expected 3 or more, the single characters of the seed; got 2. They always stay, so "
        "that every word can be said."
    )
