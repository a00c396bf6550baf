"""Which tokens make up which word: of a sentence, and of ids that a model produced."""

from __future__ import annotations

from itertools import chain, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intently.errors import ArgumentError
from intently.tasks.corpora import language
from intently.tasks.text import EOS, KINDS, PAD, SOS, UNK, Tokenizer, words

CORPUS = [text for pair in islice(language("train"), 300) for text in (pair.source, pair.target)]
ALL = {kind: Tokenizer.train(CORPUS, kind, 1500) for kind in KINDS}
HOSTILE = st.text(st.sampled_from("aelm'’ntL -\t\n\r\0<s>/0xF▁\u0301\u200d日👩🚀\u00a0é"))
KIND = st.sampled_from(sorted(ALL))


def said(tokenizer: Tokenizer, ids: list[int], group: list[int]) -> str:
    return tokenizer.decode([ids[position] for position in group]).removeprefix(" ")


@pytest.mark.parametrize("kind", sorted(ALL))
def test_groups_of_sentences_say_their_words(kind: str) -> None:
    tokenizer = ALL[kind]
    for sentence in CORPUS:
        ids = tokenizer.encode(sentence)
        groups = tokenizer.word_groups(sentence, ids)
        assert [said(tokenizer, ids, group) for group in groups] == words(sentence)
        assert sorted(list(chain.from_iterable(groups))) == list(range(len(ids)))
        assert tokenizer.group_ids(ids) == groups


@given(st.text() | HOSTILE)
def test_groups_of_any_text_say_its_words(text: str) -> None:
    tokenizer = ALL["subword"]
    ids = tokenizer.encode(text)
    groups = tokenizer.word_groups(text, ids)
    assert [said(tokenizer, ids, group) for group in groups] == words(text)
    assert tokenizer.group_ids(ids) == groups


@given(KIND, st.text() | HOSTILE)
def test_every_word_of_any_text_has_tokens_of_its_own(kind: str, text: str) -> None:
    tokenizer = ALL[kind]
    ids = tokenizer.encode(text)
    groups = tokenizer.word_groups(text, ids)
    assert len(groups) == len(words(text))
    assert all(groups)
    flat = list(chain.from_iterable(groups))
    assert flat == sorted(set(flat))
    assert not tokenizer.decode([ids[at] for at in range(len(ids)) if at not in flat]).strip()


@given(KIND, st.data())
def test_ids_in_any_order_have_groups(kind: str, data: st.DataObject) -> None:
    tokenizer = ALL[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.size - 1)))
    text = tokenizer.decode(ids)
    groups = tokenizer.group_ids(ids)
    assert len(groups) == len(words(text))
    assert all(groups)
    assert all(group == sorted(set(group)) for group in groups)
    entries = tokenizer.tokens(ids)
    for position in set(range(len(ids))) - set(chain.from_iterable(groups)):
        assert (
            ids[position] < 4
            or not entries[position].strip("▁ \u00a0")
            or "<0x" in entries[position]
        )


def test_special_tokens_around_the_sentence_are_in_no_group() -> None:
    tokenizer = ALL["subword"]
    sentence = CORPUS[0]
    ids = tokenizer.encode(sentence)
    plain = tokenizer.word_groups(sentence, ids)
    framed = [SOS, *ids, EOS, PAD, PAD]
    assert tokenizer.word_groups(sentence, framed) == [[at + 1 for at in group] for group in plain]
    assert tokenizer.group_ids(framed) == [[at + 1 for at in group] for group in plain]


def test_unknown_words_have_their_token() -> None:
    tokenizer = Tokenizer.train(["the cat"], kind="word")
    ids = tokenizer.encode("dog the dog")
    assert ids[0] == ids[2] == UNK
    assert tokenizer.word_groups("dog the dog", ids) == [[0], [1], [2]]
    assert tokenizer.group_ids(ids) == [[1]]


def test_a_character_cut_into_bytes_is_one_word() -> None:
    tokenizer = Tokenizer.train(["a b"], kind="subword")
    ids = tokenizer.encode("a 日")
    assert tokenizer.word_groups("a 日", ids) == [[0], [1, 2, 3, 4]]
    assert tokenizer.group_ids(ids) == [[0], [1, 2, 3, 4]]
    assert len(tokenizer.group_ids(ids[:-1])) == len(words(tokenizer.decode(ids[:-1]))) == 3


def test_a_token_of_two_words_is_in_both() -> None:
    tokenizer = Tokenizer.train(["L'animal", "the cat"], kind="word")
    ids = [*tokenizer.encode("L'animal")[:1], *tokenizer.encode("cat")]
    assert words(tokenizer.decode(ids)) == ["L", "'", "cat"]
    assert tokenizer.group_ids(ids) == [[0], [0], [1]]


def test_ids_of_another_sentence_are_refused() -> None:
    tokenizer = ALL["word"]
    with pytest.raises(ArgumentError, match=r"ids: expected the \d+ ids of the sentence .*; got 3"):
        tokenizer.word_groups(CORPUS[0], tokenizer.encode(CORPUS[0])[:3])
