"""Scores: alignment error by hand, and pronouns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from intently.core.matrix import Dense
from intently.core.matrix.alignment import Alignment, alignment_error_rate
from intently.errors import ArgumentError
from intently.nn.models.kinds import cross_heads, new_model
from intently.nn.models.recurrent import ATTENTIONS
from intently.tasks.corpora import Pair, sample
from intently.tasks.decoding import SearchOptions
from intently.tasks.text import Tokenizer, words
from intently.tasks.training import TrainingOptions
from intently.tasks.training.metrics import bleu
from intently.tasks.translation.evaluation import (
    alignment_errors,
    best_alignment_head,
    evaluate,
    evaluate_pairs,
    forced,
    links,
    pronoun,
)
from intently.tasks.translation.translator import AlignmentHead, Translator

HEAD = AlignmentHead("encoder.1.self_attention", 2)


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return sample("test", 40)


@pytest.fixture(scope="module")
def because() -> list[Pair]:
    return [pair for pair in sample("novel", 300) if pair.pronoun][:30]


ENGLISH, FRENCH = ["The", "black", "cat", "."], ["Le", "chat", "noir", "."]


def test_a_perfect_matrix_has_no_error() -> None:
    gold = Alignment.of(sure=[(0, 0), (2, 1), (1, 2)])
    weights = torch.eye(4)[[0, 2, 1, 3]]
    found = links(weights, ENGLISH, FRENCH)
    assert found == {(0, 0), (2, 1), (1, 2)}
    assert alignment_error_rate([found], [gold]) == 0
    assert alignment_error_rate([links(weights[[1, 2, 0, 3]], ENGLISH, FRENCH)], [gold]) == 1


def test_only_a_final_stop_is_left_out() -> None:
    assert links(torch.eye(2), ["Yes", "sleeps"], ["Oui", "dort"]) == {(0, 0), (1, 1)}
    assert links(torch.eye(2), [".", "sleeps"], [".", "dort"]) == {(0, 0), (1, 1)}
    assert links(torch.eye(4)[[3, 2, 1, 3]], ENGLISH, FRENCH) == {(2, 1), (1, 2)}


def test_the_embedded_translator_aligns(translator: Translator, pairs: list[Pair]) -> None:
    errors = alignment_errors(translator, pairs)
    assert set(errors) == {
        AlignmentHead(f"decoder.{layer}.cross_attention", head)
        for layer in range(2)
        for head in range(4)
    }
    head, error = best_alignment_head(translator, pairs)
    assert error == errors[head] == min(errors.values()) <= 0.25


def test_forced_attention_is_that_of_the_search(translator: Translator) -> None:
    pair = sample("test", 1)[0]
    (made,) = translator.translate([pair.source])
    (found,) = forced(translator, [(pair.source, made.text)])
    for name, matrix in found.items():
        assert matrix.labels == made.words[name].labels
        assert torch.allclose(matrix.dense(), made.words[name].dense(), atol=1e-5)


def test_forced_attention_has_a_row_and_column_for_unknown_words(translator: Translator) -> None:
    sides = [("The Zxqv saw Mary.", "Le Zxqv a vu Mary."), ("I drink.", "Je bois.")]
    for (source, target), found in zip(sides, forced(translator, sides)):
        shape = len(words(target)), len(words(source))
        assert {m.shape[-2:] for name, m in found.items() if "cross" in name} == {shape}
        assert {m.shape[-2:] for name, m in found.items() if "encoder" in name} == {(shape[1],) * 2}


def test_the_references_themselves_have_the_right_pronoun(because: list[Pair]) -> None:
    for pair in [*because, *(p for p in sample("deeper", 300) if p.pronoun)]:
        assert pair.pronoun is not None
        assert pronoun(pair.target) == pair.pronoun.expected


def test_pronouns_are_scored(translator: Translator, because: list[Pair]) -> None:
    scores = evaluate_pairs(translator, because)
    assert scores.because == len(because)
    assert scores.pronouns is not None and scores.pronouns >= 0.9
    plain = [pair for pair in sample("test", 60) if not pair.pronoun][:5]
    assert evaluate_pairs(translator, plain).pronouns is None
    assert pronoun("Le chat dort.") is None


# --- every kind of attention ----------------------------------------------------------------------


def tiny(pairs: list[Pair], **flags: Any) -> Translator:
    """Return a translator of some kind with random weights."""
    sides = [p.source for p in pairs], [p.target for p in pairs]
    source, target = (Tokenizer.train(side, "word") for side in sides)
    options = TrainingOptions().with_flags(width=16, **flags).shape(source.size, target.size)
    return Translator(new_model(options).eval(), source, target)


KINDS: list[dict[str, Any]] = [
    {"model": "transformer", "heads": 2, "inner": 16},
    *({"model": "recurrent", "attention": name} for name in ATTENTIONS if name != "none"),
    {"model": "recurrent", "cell": "lstm", "attention": "additive", "input_feeding": False},
]


@pytest.mark.parametrize("flags", KINDS, ids=lambda flags: "-".join(map(str, flags.values())))
@pytest.mark.filterwarnings("ignore::intently.tasks.translation.translator.TranslationWarning")
def test_every_attention_is_measured(pairs: list[Pair], flags: dict[str, Any]) -> None:
    translator = tiny(pairs, **flags)
    errors = alignment_errors(translator, pairs[:10])
    heads = cross_heads(translator.model.options)
    assert set(errors) == {AlignmentHead(name, n) for name in heads for n in range(heads[name])}
    assert all(0 < error <= 1 for error in errors.values())
    assert best_alignment_head(translator, pairs[:10])[1] == min(errors.values())
    # what it looked at while it wrote is what it looks at when it is made to write the same
    made = translator.translate([p.source for p in pairs], SearchOptions(beam=1, max_length=4))
    read = translator.target_tokenizer.encode_batch(one.text for one in made)
    same = [one for one, ids in zip(made, read) if ids == one.hypothesis.ids]
    assert same
    for one, found in zip(same, forced(translator, [(one.source, one.text) for one in same])):
        for name in heads:
            assert torch.allclose(found[name].dense(), one.words[name].dense(), atol=1e-5)


def test_a_head_that_aligns_perfectly_is_found(
    pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = tiny(pairs, model="recurrent")
    pair = next(
        p
        for p in pairs
        if sorted(t for _, t in p.alignment.sure) == list(range(len(p.target_words)))
    )
    weights = torch.zeros(1, len(pair.target_words), len(pair.source_words))
    for source, target in pair.alignment.sure:
        weights[0, target, source] = 1

    def look(translator: Translator, sides: object) -> Iterator[dict[str, Dense]]:
        yield {"attention": Dense(weights)}

    monkeypatch.setattr("intently.tasks.translation.evaluation.forced", look)
    assert best_alignment_head(translator, [pair]) == (AlignmentHead("attention", 0), 0.0)


# --- scores ---------------------------------------------------------------------------------------


def test_scores_of_files(translator: Translator) -> None:
    scores, texts = evaluate(translator, ["I drink milk.", ""], ["Je bois du lait.", "Non."])
    assert texts == ["Je bois du lait.", ""]
    assert scores.exact == 0.5 and scores.sentences == 2
    assert "version:" in scores.bleu.signature and "version:" in scores.chrf.signature
    assert scores.to_dict()["bleu"]["name"] == "BLEU"
    assert scores.bleu.interval is None


def test_every_bleu_has_its_interval(translator: Translator, pairs: list[Pair]) -> None:
    sides = [p.source for p in pairs], [p.target.upper() for p in pairs]
    scores, texts = evaluate(translator, *sides, bootstrap=20)
    assert scores.lowercased == bleu(texts, sides[1], lowercase=True, bootstrap=20)
    assert scores.bleu == bleu(texts, sides[1], bootstrap=20)
    assert scores.bleu.interval is not None


@pytest.mark.parametrize(
    ("measure", "given", "said"),
    [
        (
            evaluate,
            (["a", "b"], ["a"]),
            "sources: expected one for each of 1 references, and at least one; got 2 sentences",
        ),
        (evaluate, ([], []), "one for each of 0 references.*got 0 sentences"),
        (best_alignment_head, ([],), "pairs: expected at least one pair.*got none"),
    ],
)
def test_sentences_without_references_are_refused(
    translator: Translator, measure: Callable[..., object], given: tuple[object, ...], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        measure(translator, *given)
