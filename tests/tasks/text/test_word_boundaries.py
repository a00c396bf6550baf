"""Words: a table of sentences, and what holds of every text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intently.tasks.text import word_spans, words
from intently.tasks.text.words import WORD

HOSTILE = st.text(
    st.sampled_from(
        "aàn'’tTsLdl-‐ 1_.<>▁\u0301\u200d\u200c\ufe0f\u20e3お日ーé"
        "👩🏽🚀🇫🇷\n\r\t\0\u0600\u00a0\u2028"
    )
)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("L'animal n'a pas", "L' animal n' a pas"),
        ("The dog's", "The dog 's"),
        ("The dog’s qu’il", "The dog ’s qu’ il"),
        ("I didn't, DON'T, won’t!", "I didn't , DON'T , won’t !"),
        ("I'd've said they're here, IT'S", "I 'd 've said they 're here , IT 'S"),
        ("S'EST-il levé ?", "S' EST-il levé ?"),
        ("Qu'est-ce que c'est ?", "Qu' est-ce que c' est ?"),
        ("Est-ce qu'Emma dort ?", "Est-ce qu' Emma dort ?"),
        ("parce qu'elle l'avait", "parce qu' elle l' avait"),
        ("the dogs' 'quoted' words -", "the dogs ' quoted ' words -"),
        ("a-b- --", "a-b - - -"),
        ("snake_case 3.14 x2", "snake_case 3 . 14 x2"),
        ("<s></s>", "< s > < / s >"),
        ("お元気ですか？", "お 元 気 で す か ？"),
        ("ABC日本 コーヒー", "ABC 日 本 コ ー ヒ ー"),
        ("안녕하세요 세계", "안녕하세요 세계"),
        ("می‌خواهم", "می‌خواهم"),
        ("👩🏽‍🚀👍🏽 🇫🇷🇩🇪 1️⃣", "👩🏽‍🚀 👍🏽 🇫🇷 🇩🇪 1️⃣"),
        ("e\u0301te\u0301 か\u3099 !\u0301", "e\u0301te\u0301 か\u3099 !\u0301"),
        ("co\u00adop", "co\u00adop"),
    ],
)
def test_the_table(sentence: str, expected: str) -> None:
    found = words(sentence)
    parts = expected.replace("dogs ' quoted", "dogs ' ' quoted").split(" ")
    assert found == parts


def test_nothing_has_no_words() -> None:
    assert words("") == words(" \t\n\u00a0") == []


@given(st.text() | HOSTILE)
def test_every_visible_character_is_in_exactly_one_word(sentence: str) -> None:
    spans = word_spans(sentence)
    inside = [place for start, end in spans for place in range(start, end)]
    assert inside == sorted(set(inside))
    assert all(start < end for start, end in spans)
    outside = set(range(len(sentence))) - set(inside)
    assert all(sentence[place].isspace() for place in outside)


@given(st.text() | HOSTILE)
def test_words_are_the_pieces_of_the_tokenizers_library(sentence: str) -> None:
    from tokenizers import Regex, pre_tokenizers

    cut = pre_tokenizers.Split(Regex(rf" ?(?:{WORD})|\s"), behavior="isolated")
    pieces = [piece for piece, _ in cut.pre_tokenize_str(" " + sentence)]
    assert "".join(pieces) == " " + sentence
    assert [piece.removeprefix(" ") for piece in pieces if not _white(piece)] == words(sentence)


def _white(piece: str) -> bool:
    return not words(piece)


def test_a_word_without_end_takes_no_time_without_end() -> None:
    assert words("a" * 100_000) == ["a" * 100_000]
    assert len(words("a-" * 50_000)) == 2
    assert len(words("a'" * 50_000)) == 50_001
    assert len(words("!\u0301" * 50_000)) == 50_000
