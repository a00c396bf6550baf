"""What *it* looks at: counted by pass single sentences, and by forbidding cells."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import intently as it
from intently import edits
from intently.errors import ArgumentError
from intently.tasks.corpora import SHOWN, Pair, sample
from intently.tasks.text import EOS, SOS
from intently.tasks.translation.evaluation import flips, forced, noun_choices, telling_choices
from intently.tasks.translation.translator import AlignmentHead, Translator

HEAD = AlignmentHead("encoder.1.self_attention", 2)


@pytest.fixture(scope="module")
def because() -> list[Pair]:
    return [pair for pair in sample("novel", 300) if pair.pronoun][:30]


def test_it_looks_at_nouns(translator: Translator, because: list[Pair]) -> None:
    choices = noun_choices(translator, because)
    assert len(choices) == 8
    assert all(0 <= share <= 1 for share in choices.values())
    (own,) = forced(translator, [(because[0].source, because[0].target)])
    p = because[0].pronoun
    assert p is not None
    looks = own[HEAD.layer].dense()[HEAD.head, p.source]
    assert noun_choices(translator, because[:1])[HEAD] == float(looks[p.right] > looks[p.wrong])


def test_looks_at_the_word_that_tells_are_counted(
    translator: Translator, because: list[Pair]
) -> None:
    choices = telling_choices(translator, because)
    assert len(choices) == 8
    best = max(choices, key=lambda head: choices[head])
    (own,) = forced(translator, [(because[0].source, because[0].target)])
    p, words = because[0].pronoun, because[0].source_words
    assert p is not None
    looks = own[best.layer].dense()[best.head, p.target]
    tells = words[int(looks.argmax())] == words[-2]
    assert telling_choices(translator, because[:1])[best] == float(tells)


@pytest.mark.parametrize("measure", [noun_choices, telling_choices])
def test_sentences_without_a_pronoun_are_refused(
    translator: Translator, measure: Callable[..., object]
) -> None:
    with pytest.raises(ArgumentError, match=r"pairs: expected because-sentences.*got none"):
        measure(translator, [])


def test_the_shipped_head_looks_at_its_noun_and_that_decides(translator: Translator) -> None:
    head = translator.guided
    assert head is not None and head.layer.startswith("encoder")
    fresh = [pair for pair in sample("novel", 400) if pair.pronoun]
    two = [p for p in fresh if p.pronoun and p.pronoun.expected != p.pronoun.other]
    assert len(two) > 50
    assert noun_choices(translator, two)[head] >= 0.95
    found = flips(translator, two, head)
    assert found.noun >= 0.8 and found.others <= 0.05
    assert 0.9 * len(two) <= found.sentences <= len(two)


def test_a_flip_is_that_of_an_edit_by_hand(translator: Translator) -> None:
    pair = next(pair for pair in SHOWN if pair.source.endswith("too wide."))
    head, p = translator.guided, pair.pronoun
    assert head is not None and p is not None and (p.expected, p.other) == ("elle", "il")
    read, written = translator.source_tokenizer, translator.target_tokenizer
    source = torch.tensor([[*read.encode(pair.source), EOS]])
    ids = written.encode(pair.target)
    before = torch.tensor([[SOS, *ids[: p.target]]])
    elle, il = ids[p.target], written.encode(pair.target.replace("qu'elle", "qu'il"))[p.target]
    noun = edits.forbid([p.right], rows=[p.source], heads=[head.head])
    with torch.no_grad(), it.edit(translator.model, {head.layer: noun}):
        logits = translator.model(source, before)[0, -1]
    assert flips(translator, [pair], head).noun == float(logits[elle] <= logits[il])


def test_sentences_without_two_genders_cannot_flip(translator: Translator) -> None:
    same = [p for p in sample("novel", 300) if p.pronoun and p.pronoun.expected == p.pronoun.other]
    with pytest.raises(ArgumentError, match="nouns of two genders"):
        flips(translator, same[:3], HEAD)
