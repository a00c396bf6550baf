"""The states of a sentence by layer and by word: those of the model, under the right labels."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open

from intently.errors import ArgumentError, KindError, RangeError
from intently.nn.models import RecurrentOptions, RecurrentSeq2Seq
from intently.tasks.text import EOS, SOS, Tokenizer
from intently.tasks.translation import Translator
from intently.tasks.translation.translator import TranslationWarning

from .tiny import BECAUSE, untrained

TIRED = BECAUSE.replace("wide", "tired")


def test_states_are_those_of_the_model_for_what_it_writes(translator: Translator) -> None:
    states = translator.states(BECAUSE)
    (made,) = translator.translate([BECAUSE])
    source = [*translator.source_tokenizer.encode(BECAUSE), EOS]
    target = [SOS, *made.hypothesis.ids]
    with torch.no_grad():  # as the search runs: gradients may take another kernel
        expected = translator.model.states(torch.tensor([source]), torch.tensor([target]))
    assert list(states) == list(expected)
    assert all(torch.equal(states[name], x[0]) for name, x in expected.items())
    assert not any(x.requires_grad for x in states.values())
    assert states.source == (*translator.source_tokenizer.tokens(source[:-1]), "</s>")
    assert states.target == ("<s>", *translator.target_tokenizer.tokens(target[1:]))
    assert {layer.rpartition(".")[0] for layer in made.attention} <= set(states)


def test_a_word_is_found_by_its_text_or_its_position(translator: Translator) -> None:
    states = translator.states(BECAUSE)
    assert torch.equal(states["encoder.1", "it"], states["encoder.1"][7])
    assert torch.equal(states["encoder.1", "▁it"], states["encoder.1", 7])
    assert torch.equal(
        states["decoder.0", "route"], states["decoder.0"][states.target.index("▁route")]
    )


def test_the_decoder_reads_the_output_that_is_given(translator: Translator) -> None:
    states = translator.states(BECAUSE, "La route était")
    assert states.target == ("<s>", "▁La", "▁route", "▁était")
    table = translator.model.target_embedding.weight
    vector = table[translator.target_tokenizer.encode("route")[0]] * table.shape[1] ** 0.5
    assert torch.equal(states["decoder.embedding", "route"], vector)


def test_texts_do_not_disturb_each_other(translator: Translator) -> None:
    texts = [TIRED, "The road was wide."]
    for alone, together in zip(map(translator.states, texts), translator.states(texts)):
        assert alone.source == together.source
        assert all(torch.equal(alone[name], together[name]) for name in alone)


def test_context_moves_a_word_that_had_one_embedding(translator: Translator) -> None:
    one, other = translator.states([TIRED, "The road was too wide."])
    turned = translator.model.options.positions == "rotary"  # added to no state
    for layer in ("encoder.embedding", "encoder.input"):
        same = torch.equal(one[layer, "was"], other[layer, "was"])
        assert same == (turned or layer == "encoder.embedding")
    last = one["encoder.output", "was"], other["encoder.output", "was"]
    assert torch.cosine_similarity(*last, dim=0) < 0.99


@pytest.mark.parametrize("kind", ["word", "subword", "character"])
def test_words_are_the_mean_of_their_tokens(kind: str) -> None:
    states = untrained(kind).states("the cat sat", "the mat")
    words = states.words()
    assert (words.source, words.target) == (("the", "cat", "sat"), ("the", "mat"))
    assert list(words) == list(states)
    if kind == "character":
        assert states.source[3:7] == ("▁", "c", "a", "t")  # the space belongs to the word
        assert states.target[4:] == ("▁", "m", "a", "t")
        torch.testing.assert_close(words["encoder.1", "cat"], states["encoder.1"][3:7].mean(0))
        torch.testing.assert_close(words["decoder.1", "mat"], states["decoder.1"][4:].mean(0))
        with pytest.raises(
            ArgumentError, match=r"several tokens. Write states.words\(\)\['encoder.1', 'cat'\]"
        ):
            states["encoder.1", "cat"]
    if kind == "word":
        assert torch.equal(words["encoder.1"], states["encoder.1"][:-1])
        assert torch.equal(words["decoder.1"], states["decoder.1"][1:])
    again = words.words()
    assert again.source == words.source
    assert all(torch.equal(again[name], words[name]) for name in words)


def test_a_recurrent_translator_has_states_too() -> None:
    tokenizer = Tokenizer.train(["the cat sat"], "word")
    options = RecurrentOptions(tokenizer.size, tokenizer.size, width=16)
    states = Translator(RecurrentSeq2Seq(options), tokenizer, tokenizer).states("the cat", "sat")
    assert states["encoder.output"].shape == (3, 16)
    assert states["decoder.output", "sat"].shape == (16,)


def test_an_output_may_be_empty_or_unknown(translator: Translator) -> None:
    states = translator.states(BECAUSE, "")
    assert states.target == ("<s>",)
    assert states.words()["decoder.1"].shape == (0, translator.model.options.width)
    with pytest.warns(
        TranslationWarning, match="line 1: not in the model's vocabulary: Zxqv"
    ) as told:
        translator.states(["The road was wide."], ["Zxqv"])
    with pytest.warns(
        TranslationWarning, match="line 1: not in the model's vocabulary: Zxqv"
    ) as also:
        translator.states("The Zxqv was wide.")
    assert {warning.filename for warning in (*told, *also)} == {__file__}


def test_they_are_printed_and_saved_with_their_labels(translator: Translator, tmp_path) -> None:
    states = translator.states("The road was wide.", "La route")
    assert repr(states) == "States(10 layers of 6 source and 3 target tokens, c=128)"
    lines = str(states).splitlines()
    assert lines[1].split() == ["target", "<s>", "▁La", "▁route"]
    assert [line.split()[0] for line in lines[2:]] == list(states)
    states.save(tmp_path / "road.safetensors")
    with safe_open(tmp_path / "road.safetensors", "pt") as file:
        assert {*file.keys()} == {*states}
        assert all(torch.equal(file.get_tensor(name), states[name]) for name in states)
        assert tuple(json.loads(file.metadata()["target"])) == states.target


def test_what_does_not_fit_is_named(translator: Translator) -> None:
    states = translator.states(BECAUSE, "La route")
    with pytest.raises(ArgumentError, match=r"name: .*got 'encoder.7'. The names are 'encoder.\d'"):
        states["encoder.7"]
    with pytest.raises(ArgumentError, match=r"token: .* occurs once; got 'mouse'"):
        states["encoder.1", "mouse"]
    with pytest.raises(KindError, match=r"text: expected a string, or a list of them; got 3"):
        translator.states(3)  # type: ignore[call-overload]
    twice = translator.states("The road was too too wide.", "La route")
    with pytest.raises(ArgumentError, match=r"token: .*got 'too'. It stands at 3, 4"):
        twice["encoder.1", "too"]
    with pytest.raises(RangeError, match=r"token: .*from 0 to 12.*99"):
        states["encoder.1", 99]
    with pytest.raises(ArgumentError, match=r"output: expected 2, one for each text; got 1"):
        translator.states([BECAUSE, TIRED], ["La"])
    with pytest.raises(ArgumentError, match=r"text: expected a text with a word in it"):
        translator.states(" ")
    with pytest.raises(KindError, match=r"output\[0\]: "):
        translator.states([BECAUSE], [3])  # type: ignore[list-item]
