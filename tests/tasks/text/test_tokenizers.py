"""Tokenizers: round trips, special tokens in user text, determinism, refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from intently.errors import ArgumentError, KindError
from intently.tasks.corpora import language
from intently.tasks.text import EOS, KINDS, PAD, SOS, SPECIALS, UNK, Tokenizer, words

CORPUS = [text for pair in islice(language("train"), 400) for text in (pair.source, pair.target)]
SUBWORD = Tokenizer.train(CORPUS, size=600)
WORD = Tokenizer.train(CORPUS, kind="word")
CHARACTER = Tokenizer.train(CORPUS, kind="character")
ALL = {"word": WORD, "character": CHARACTER, "subword": SUBWORD}

TRICKY = [
    "",
    " ",
    "  two  spaces  ",
    "\ttab\nline\r\nend\n",
    "\0",
    "\u0301alone",
    "👩🏽‍🚀 🇫🇷",
    "<s>",
    "a <pad></s> <unk>b",
    "▁animal ▁",
    "<0x41>",
    " <0x00> <0xFF>",
    "\ufeff\u2028\u0085\u00a0",
    "\U0010ffff\ufffd",
    "L'animal dort.",
]
HOSTILE = st.text(st.sampled_from("ae'’ntL -\t\n\r\0<s>/0xF▁\u0301\u200d日👩🚀\u00a0\ufffd"))


@given(st.text() | HOSTILE)
def test_pieces_give_back_any_text(text: str) -> None:
    ids = SUBWORD.encode(text)
    assert SUBWORD.decode(ids) == text
    assert not set(ids) & {PAD, SOS, EOS, UNK}


@given(texts=st.lists(st.text(min_size=1) | HOSTILE, min_size=1))
def test_pieces_trained_on_hostile_text_give_it_back(texts: list[str]) -> None:
    if not any(text.strip() for text in texts):
        texts = [*texts, "word"]
    tokenizer = Tokenizer.train(texts * 3, size=400)
    for text in [*texts, *TRICKY]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not set(ids) & {PAD, SOS, EOS, UNK}


def test_frequent_special_names_in_the_corpus_never_become_special() -> None:
    corpus = ["<s> <unk> </s> <pad> <0x41> a<0x42>b"] * 50
    for kind in KINDS:
        tokenizer = Tokenizer.train(corpus, kind=kind, size=800)
        ids = tokenizer.encode(corpus[0])
        assert min(ids) >= len(SPECIALS)
        assert tokenizer.decode(ids) == corpus[0]


@pytest.mark.parametrize("kind", ["word", "character"])
def test_known_text_is_given_back(kind: str) -> None:
    for sentence in CORPUS:
        assert ALL[kind].decode(ALL[kind].encode(sentence)) == sentence


def test_words_carry_the_space_before_them() -> None:
    tokenizer = Tokenizer.train(["Est-ce que l'animal dort ?", "animal"], kind="word")
    assert tokenizer.tokens(tokenizer.encode("Est-ce que l'animal dort ?")) == [
        *("▁Est-ce", "▁que", "▁l'", "animal", "▁dort", "▁?")
    ]
    assert tokenizer.tokens(tokenizer.encode("animal")) == ["▁animal"]
    for kind in ("word", "subword"):
        tokenizer = Tokenizer.train(["Emma saw Emma"], kind=kind)
        first, *_, last = tokenizer.encode("Emma saw Emma")
        assert first == last


def test_words_make_white_space_one_space() -> None:
    tokenizer = Tokenizer.train(["to be or not"], kind="word")
    ids = tokenizer.encode(" \t to\u00a0be\n")
    assert ids == tokenizer.encode("to be")
    assert tokenizer.decode(ids) == "to be"
    assert tokenizer.encode(" \n ") == []


def test_unknown_words_and_characters_become_unk() -> None:
    tokenizer = Tokenizer.train(["the cat"], kind="word")
    assert tokenizer.encode("the dog")[1] == UNK
    assert tokenizer.unknown("the dog saw the dog") == ["dog", "saw"]
    letters = Tokenizer.train(["the cat"], kind="character")
    assert letters.encode("hug") == [*letters.encode("h"), UNK, UNK]
    assert letters.unknown("hug the \t cat!") == ["hug", "!"]
    assert SUBWORD.unknown("日本 <unk> 🚀") == []
    assert [kind for kind in KINDS if ALL[kind].complete] == ["subword"]


def test_special_tokens_say_nothing() -> None:
    for tokenizer in ALL.values():
        ids = tokenizer.encode(CORPUS[0])
        framed = [SOS, *ids[:2], UNK, *ids[2:], EOS, PAD, PAD]
        assert tokenizer.decode(framed) == CORPUS[0]
        assert tokenizer.tokens([PAD, SOS, EOS, UNK]) == list(SPECIALS)


def test_invalid_bytes_are_shown_not_raised() -> None:
    lone = SUBWORD.encode("日")[1:]
    assert SUBWORD.decode(lone[:2]) == "\ufffd\ufffd"
    assert SUBWORD.tokens(lone) == ["<0xE6>", "<0x97>", "<0xA5>"]


def test_a_batch_is_each_of_its_sentences() -> None:
    for tokenizer in ALL.values():
        texts = (CORPUS + TRICKY) * 6
        assert tokenizer.encode_batch(iter(texts)) == [tokenizer.encode(text) for text in texts]
        assert tokenizer.encode_batch([]) == []


def test_the_size_is_an_upper_bound_that_is_met() -> None:
    for kind in KINDS:
        assert Tokenizer.train(CORPUS, kind=kind, size=280).size <= 280
    assert Tokenizer.train(CORPUS, kind="subword", size=400).size == 400
    assert Tokenizer.train(CORPUS, kind="word", size=100).size == 100
    assert Tokenizer.train(CORPUS, kind="character", size=20).size == 20


def test_min_frequency_keeps_the_rare_out() -> None:
    corpus = ["the cat", "the dog", "the crow"]
    assert Tokenizer.train(corpus, kind="word", min_frequency=2).size == 5
    letters = Tokenizer.train(corpus, kind="character", min_frequency=2)
    assert set(letters.tokens(range(4, letters.size))) == set("▁theco")
    pieces = Tokenizer.train(corpus, min_frequency=3)
    assert pieces.tokens(pieces.encode("the dog")) == ["▁the", "▁", "<0x64>", "<0x6F>", "<0x67>"]


def test_many_rare_characters_leave_room_for_pieces() -> None:
    corpus = ["the cat sat on the mat", "".join(map(chr, range(0x4E00, 0x4F00)))]
    tokenizer = Tokenizer.train(corpus * 5, size=290)
    assert tokenizer.size <= 290
    assert any(len(entry) > 2 for entry in tokenizer.tokens(range(260, tokenizer.size)))
    assert tokenizer.decode(tokenizer.encode(corpus[1])) == corpus[1]


TRAIN = """
import sys
from intently.tasks.text import Tokenizer
corpus = sys.stdin.read().split("\\n")
for kind in ("word", "character", "subword"):
    Tokenizer.train(corpus, kind=kind, size=450).save(f"{sys.argv[1]}/{kind}.json")
"""


def test_the_same_corpus_gives_the_same_file_in_every_run(tmp_path: Path) -> None:
    rare = [f"{text} {chr(0x4E00 + i % 700)}" for i, text in enumerate(CORPUS)]
    for run in ("1", "2"):
        (tmp_path / run).mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": run, "PYTHONUTF8": "1"}
        command = [sys.executable, "-c", TRAIN, str(tmp_path / run)]
        subprocess.run(
            command, input="\n".join(rare), env=environment, encoding="utf-8", check=True
        )
    for kind in KINDS:
        files = {(tmp_path / run / f"{kind}.json").read_bytes() for run in ("1", "2")}
        assert len(files) == 1, kind


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_the_sentences_does_not_matter(kind: str, tmp_path: Path) -> None:
    Tokenizer.train(CORPUS, kind=kind, size=400).save(tmp_path / "a.json")
    Tokenizer.train(reversed(CORPUS), kind=kind, size=400).save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_is_one_of_the_tokenizers_library(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    ALL[kind].save(path)
    foreign = tokenizers.Tokenizer.from_file(str(path))
    for text in [*CORPUS[:50], *TRICKY]:
        ids = ALL[kind].encode(text)
        assert foreign.encode(text).ids == ids
        assert foreign.decode(ids, skip_special_tokens=False) == ALL[kind].decode(ids) or UNK in ids


train, encode, decode, tokens = Tokenizer.train, SUBWORD.encode, SUBWORD.decode, SUBWORD.tokens
batch = SUBWORD.encode_batch


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: train(["a"], "bpe"), ArgumentError, 'kind: expected "word", "character" or "subw'),
        (lambda: train(["a"], size=260), ArgumentError, "at least 261 for kind 'subword'; got 260"),
        (lambda: train(["a"], "word", 4), ArgumentError, "expected at least 5 for kind 'word"),
        (lambda: train(["a"], min_frequency=0), ArgumentError, "expected 1 or more; got 0"),
        (lambda: train(iter([])), ArgumentError, r"with a word in it; got no sentences\. A gener"),
        (lambda: train(["", " \n"]), ArgumentError, "got 2 sentences of white space only"),
        (lambda: train("a b"), KindError, r"sentences: expected several strings; got one\. Put it"),
        (lambda: train(["a", None]), KindError, r"sentences\[1\]: expected a string; got NoneType"),
        (lambda: train(["a"], "word", 9, 9), ArgumentError, "No word occurs 9 times"),
        (lambda: encode(3), KindError, "sentence: expected a string; got int"),
        (lambda: encode("a\ud800"), ArgumentError, r"the lone surrogate U\+D800 at character 1"),
        (lambda: batch(["a", "\udcff"]), ArgumentError, r"sentences\[1\]: expected Unicode text"),
        (lambda: batch("abc"), KindError, "sentences: expected several strings; got one"),
        (lambda: words("\ud800"), ArgumentError, "sentence: expected Unicode text"),
        (lambda: words(b"a"), KindError, "sentence: expected a string; got bytes"),
        (lambda: decode([5, 600]), ArgumentError, "ids: expected ids from 0 to 599; got 600"),
        (lambda: tokens([-1]), ArgumentError, "ids: expected ids from 0 to 599; got -1"),
        (lambda: decode([[5, 6]]), KindError, "expected a flat sequence of integers; got list"),
        (lambda: decode([5.0]), KindError, "expected a flat sequence of integers; got list"),
        (lambda: decode(5), KindError, "expected a flat sequence of integers; got int"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_cannot_be_used_is_refused(
    call: Callable[[], object], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        call()
