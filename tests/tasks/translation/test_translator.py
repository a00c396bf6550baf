"""The translator: copying, cutting, labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from intently.errors import ArgumentError, KindError
from intently.tasks.decoding import SearchOptions
from intently.tasks.text import UNK, words
from intently.tasks.translation.translator import AlignmentHead, TranslationWarning, Translator

from .tiny import BECAUSE, untrained

# --- translating ----------------------------------------------------------------------------------


def test_the_embedded_translator_reads_the_adjective(translator: Translator) -> None:
    tired, wide = translator.translate([BECAUSE.replace("wide", "tired"), BECAUSE])
    assert tired.text == "L'animal n'a pas traversé la route parce qu'il était trop fatigué."
    assert wide.text == "L'animal n'a pas traversé la route parce qu'elle était trop large."


def test_results_come_in_order_and_empty_lines_stay_empty(translator: Translator) -> None:
    given = ["I drink milk.", "", " \t", BECAUSE, "I drink milk.\r"]
    found = translator.translate(given)
    assert [one.source for one in found] == given
    assert [one.text for one in found][1:3] == ["", ""]
    assert found[1].attention == found[1].words == {} and found[1].alignment.shape == (0, 0)
    assert found[0].text == found[4].text == "Je bois du lait."
    assert translator.translate([]) == []


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Mary saw Zxqv.", "Mary a vu Zxqv."),
        ("Zxqv drank milk because he was tired.", "Zxqv a bu du lait parce qu'il était fatigué."),
        (
            "The Zxqv drank milk because it was tired.",
            "Le Zxqv a bu du lait parce qu'il était fatigué.",
        ),
        ("Does Zxqv drink milk?", "Est-ce que Zxqv boit du lait ?"),
    ],
)
def test_unknown_words_are_copied(translator: Translator, sentence: str, expected: str) -> None:
    with pytest.warns(TranslationWarning, match=r"line 1: not in the model's vocabulary: Zxqv"):
        (made,) = translator.translate([sentence])
    assert made.text == expected
    assert made.notes == ("not in the model's vocabulary: Zxqv",)
    assert made.alignment.labels == (tuple(words(expected)), tuple(words(sentence)))
    row, column = words(expected).index("Zxqv"), words(sentence).index("Zxqv")
    assert int(made.alignment.argmax()[row]) == column


def test_a_warning_points_to_the_caller_and_has_no_control_characters(
    translator: Translator,
) -> None:
    with pytest.warns(TranslationWarning) as told:
        translator.translate(["I \x1b[31m drink\x07 milk."])
    assert str(told[0].message).isprintable() and told[0].filename == __file__


def test_cut_lines_are_named_by_their_number_over_chunks(translator: Translator) -> None:
    lines = ["I drink milk."] * 300
    lines[280] = "I drink milk. " * 20
    with pytest.warns(TranslationWarning) as told:
        found = list(translator.stream(iter(lines), SearchOptions(beam=1), chunk=64))
    assert [str(w.message) for w in told] == ["line 281: 80 tokens, cut after 48"]
    assert told[0].filename == __file__
    assert len(found) == 300
    assert found[280].notes == ("80 tokens, cut after 48",)
    assert len(found[280].sides[0].words) == 48


def test_a_very_long_line_costs_little(translator: Translator) -> None:
    with pytest.warns(TranslationWarning, match="200,000 tokens, cut after 48"):
        translator.translate(["The road " * 100_000], SearchOptions(beam=1))


def test_a_stream_reads_one_chunk_ahead_at_most(translator: Translator) -> None:
    read = []

    def lines() -> Any:
        for i in range(100):
            read.append(i)
            yield "I drink milk."

    stream = translator.stream(lines(), SearchOptions(beam=1), chunk=5)
    assert read == []
    next(stream)
    assert len(read) == 5


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        (["one text"], KindError, "sentences: expected a list of strings; got one string"),
        ([None], KindError, r"sentences: expected a list of strings; got None"),
        ([b"bytes"], KindError, "sentences: expected a list of strings; got one string"),
        ([["The road."], 3], KindError, r"options: expected SearchOptions or None; got 3\."),
        ([["I drink milk.", 3]], KindError, r"sentences\[1\]: expected a string; got int\."),
        ([["\ud800"]], ArgumentError, r"sentences\[0\]: .*lone surrogate U\+D800"),
    ],
    ids=["text", "none", "bytes", "beam", "number", "surrogate"],
)
def test_what_is_no_list_of_texts_is_refused(
    translator: Translator, given: list[Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        translator.translate(*given)


def test_alternatives(translator: Translator) -> None:
    (made,) = translator.translate([BECAUSE], SearchOptions(beam=4, n_best=3))
    scores = [made.score, *(one.score for one in made.alternatives)]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    for one in made.alternatives:
        assert one.alternatives == ()
        assert one.alignment.labels[0] == tuple(words(one.text))


# --- attention ------------------------------------------------------------------------------------


def test_labels_are_the_produced_tokens(translator: Translator) -> None:
    (made,) = translator.translate(["I drink milk."])
    cross, own = (
        made.attention["decoder.0.cross_attention"],
        made.attention["decoder.0.self_attention"],
    )
    assert cross.labels == (
        ("▁Je", "▁bois", "▁du", "▁lait", ".", "</s>"),
        ("▁I", "▁drink", "▁milk", ".", "</s>"),
    )
    assert own.labels[1] == ("<s>", "▁Je", "▁bois", "▁du", "▁lait", ".")
    assert cross.shape == (4, 6, 5) and own.shape == (4, 6, 6)


def test_words_of_a_word_model_are_its_tokens(translator: Translator) -> None:
    (made,) = translator.translate([BECAUSE])
    for name, matrix in made.words.items():
        whole = made.attention[name].dense()
        t, s = matrix.shape[-2:]
        assert torch.equal(matrix.dense(), whole[:, :t, :s])
    layer, head = translator.alignment_head or ("", 0)
    assert torch.equal(made.alignment.dense(), made.words[layer].dense()[head])


@pytest.mark.parametrize("kind", ["subword", "character", "word"])
def test_words_sum_columns_and_average_rows(kind: str) -> None:
    translator = untrained(kind)
    (made,) = translator.translate(["L'animal sat on ☃"], SearchOptions(beam=1, max_length=9))
    (_, s_words, s_groups), (y, y_words, y_groups) = made.sides
    assert s_words == ["L'", "animal", "sat", "on", "☃"]
    assert list(y_words) == words(made.text)
    assert not made.hypothesis.ended or made.hypothesis.ids == y
    for name, matrix in made.words.items():
        if name.endswith("cross_attention"):
            whole = made.attention[name].dense()
            for i, row in enumerate(y_groups):
                for j, column in enumerate(s_groups):
                    expected = whole[:, row][..., column].sum(-1).mean(-1)
                    assert torch.allclose(matrix[:, i, j], expected, atol=1e-6)
        assert matrix.labels[0] is not None and len(matrix.labels[0]) == matrix.shape[-2]
    assert made.alignment.shape == (len(y_words), 5)


def test_subwords_never_say_unknown() -> None:
    translator = untrained("subword")
    translator.model.target_embedding.weight.data[UNK] *= 50
    found = translator.translate(["the cat"] * 3, SearchOptions(beam=3, n_best=3, max_length=12))
    assert all(UNK not in one.hypothesis.ids for made in found for one in made.alternatives)


def test_a_cut_falls_between_characters() -> None:
    translator = untrained("subword")
    with pytest.warns(TranslationWarning, match="line 1: .* tokens, cut after 20"):
        (made,) = translator.translate(["漢" * 30], SearchOptions(beam=1, max_length=3))
    assert made.sides[0].words == ["漢"] * 6  # three bytes each, and the space before them


def test_a_head_that_was_not_measured_is_a_mean(translator: Translator, folder: Path) -> None:
    loaded = Translator.load(folder)
    loaded.alignment_head = None
    (made,) = loaded.translate(["I drink milk."])
    expected = made.words["decoder.0.cross_attention"].dense().mean(0)
    assert torch.allclose(made.alignment.dense(), expected)
    loaded.alignment_head = AlignmentHead("decoder.1.cross_attention", 2)
    expected = made.words["decoder.1.cross_attention"].dense()[2]
    assert torch.equal(made.alignment.dense(), expected)


def test_a_translator_reads_at_least_one_token(translator: Translator) -> None:
    with pytest.raises(ArgumentError, match="max_length: expected an int ≥ 1; got 0"):
        Translator(translator.model, *[translator.source_tokenizer] * 2, max_length=0)
