"""Recurrent translators: trained, saved, loaded, evaluated and asked what they looked at."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from intently.errors import ArgumentError, CheckpointError
from intently.foundation.files import sealed
from intently.nn.models import RecurrentOptions, RecurrentSeq2Seq
from intently.tasks.corpora import language
from intently.tasks.corpora.files import ParallelText
from intently.tasks.decoding import SearchOptions
from intently.tasks.text import Tokenizer
from intently.tasks.training import TrainingOptions
from intently.tasks.translation.evaluation import alignment_errors, best_alignment_head, evaluate
from intently.tasks.translation.runs import fit
from intently.tasks.translation.translator import AlignmentHead, TranslationWarning, Translator

from ...command_line import Command
from ...samples import write_pairs

PAIRS = list(islice(language("train"), 60))
TEXT = ParallelText([p.source for p in PAIRS], [p.target for p in PAIRS])
OPTIONS = TrainingOptions().with_flags(
    model="recurrent",
    width=16,
    encoder_layers=1,
    decoder_layers=1,
    steps=4,
    batch_tokens=200,
    source_tokenizer="word",
    target_tokenizer="word",
    save_every=2,
    evaluate_every=100,
)


def tiny(attention: Any = "additive", kind: str = "word") -> Translator:
    source, target = (Tokenizer.train(side, kind, 300) for side in (TEXT.sources, TEXT.targets))
    options = RecurrentOptions(source.size, target.size, width=16, attention=attention)
    return Translator(RecurrentSeq2Seq(options), source, target)


@pytest.mark.parametrize("attention", ["none", "additive", "general"])
def test_a_run_trains_saves_and_goes_on(tmp_path: Path, attention: str) -> None:
    options = OPTIONS.with_flags(attention=attention, cell="lstm")
    whole = fit(TEXT, options, tmp_path / "whole", dev=TEXT.split_off(2)[1])
    assert [len(whole.history.records), whole.history.stopped] == [4, "finished"]
    fit(TEXT, options.with_flags(steps=2), tmp_path / "parts")
    again = fit(TEXT, options, tmp_path / "parts", resume=True)
    ours, theirs = (run.translator.model.state_dict() for run in (whole, again))
    last = whole.history.checkpoint
    assert last is not None and list(ours) == list(theirs)
    if whole.history.best == last:
        assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    loaded = Translator.load(tmp_path / "whole")
    assert isinstance(loaded.model, RecurrentSeq2Seq)
    assert loaded.model.options == RecurrentOptions(
        whole.translator.source_tokenizer.size,
        whole.translator.target_tokenizer.size,
        width=16,
        cell="lstm",
        attention=attention,  # pyright: ignore[reportArgumentType]
    )
    some = TEXT.sources[:3]
    assert [t.text for t in loaded.translate(some)] == [
        t.text for t in whole.translator.translate(some)
    ]


def test_a_translation_says_what_was_looked_at(tmp_path: Path) -> None:
    translator = Translator.load(tiny().save(tmp_path, half=True))
    [one] = translator.translate([TEXT.sources[0]], SearchOptions(beam=2, max_length=5))
    [(name, words)] = one.words.items()
    assert name == "attention" and words.labels[1] == tuple(one.sides[0].words)
    assert one.alignment.shape == (len(one.sides[1].words), len(one.sides[0].words))
    errors = alignment_errors(translator, PAIRS[:5])
    assert list(errors) == [AlignmentHead("attention", 0)]
    assert best_alignment_head(translator, PAIRS[:5])[0] == AlignmentHead("attention", 0)


def test_unknown_words_are_copied_from_where_it_looked() -> None:
    translator = tiny("dot")
    others = tuple(range(4, translator.target_tokenizer.size))  # it can write nothing but unknowns
    options = SearchOptions(beam=1, max_length=4, min_length=3, forbid=others)
    with pytest.warns(TranslationWarning, match="not in the model's vocabulary: zebra"):
        [one] = translator.translate(["The zebra sleeps"], options)
    assert one.hypothesis.ids[:3] == [3, 3, 3]
    looked = one.hypothesis.attention["attention"].dense()[0, :, :3].argmax(-1).tolist()
    copied = [["The", "zebra", "sleeps"][i] for i in looked[: len(one.hypothesis.ids)]]
    assert one.text == " ".join(copied)


def test_without_attention_there_is_nothing_to_copy_by_or_to_show() -> None:
    translator = tiny("none")
    with torch.no_grad():
        translator.model.output_weight[3] = 10.0 * translator.model.output_weight.abs().sum(0)
    with pytest.warns(TranslationWarning, match="zebra"):
        [one] = translator.translate(["The zebra sleeps."], SearchOptions(beam=2, max_length=4))
    assert 3 not in one.hypothesis.ids and one.attention == one.words == {}
    with pytest.raises(ArgumentError, match=r"^alignment: expected a model with attention; got"):
        _ = one.alignment
    for measure in (alignment_errors, best_alignment_head):
        with pytest.raises(ArgumentError) as error:
            measure(translator, PAIRS[:2])
        assert str(error.value) == "translator: expected a model with attention; got one without."
    assert evaluate(translator, TEXT.sources[:2], TEXT.targets[:2])[0].sentences == 2
    assert translator.translate([""])[0].alignment.shape == (0, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architecture": "convolution"}, 'kind: expected "transformer" or "recurrent"'),
        ({"architecture": "transformer"}, "leave out cell"),
        (
            {"alignment_head": ["decoder.1.cross_attention", 0]},
            "no alignment head decoder.1.cross_attention, 0",
        ),
        ({"alignment_head": ["attention", 1]}, "no alignment head attention, 1"),
    ],
)
def test_a_folder_that_lies_is_refused(tmp_path: Path, change: dict, words: str) -> None:
    about = tiny().save(tmp_path) / "translator.json"
    said = json.loads(about.read_text()) | change
    del said["sha256"]
    about.write_bytes(sealed(said))
    with pytest.raises(CheckpointError, match="a file as `save` wrote it; got no ") as caught:
        Translator.load(tmp_path)
    assert words in str(caught.value)


def test_the_command_line_trains_and_translates_with_it(intently: Command) -> None:
    flags = (
        *("--model", "recurrent", "--attention", "concat", "--cell", "rnn", "--width", "16"),
        *("--no-input-feeding", "--no-bidirectional", "--evaluate-every", "9", "--steps", "1"),
    )
    assert intently("train", *write_pairs(TEXT), "--out", "run", *flags).status == 0
    options = Translator.load("run").model.options
    assert isinstance(options, RecurrentOptions)
    assert (options.attention, options.cell, options.width) == ("concat", "rnn", 16)
    assert not options.bidirectional and not options.input_feeding
    assert intently("translate", "run", TEXT.sources[0], "--beam", "2").status == 0
    seen = intently("watch", "run", TEXT.sources[0])
    assert seen.status == 0 and "attention" in seen.out
