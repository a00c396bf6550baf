"""Options: stored and read back, passed to the model, and refused by a message that helps."""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any

import pytest

from intently.errors import ArgumentError, DataError, IntentlyError, KindError
from intently.nn.models import RecurrentOptions, Transformer, TransformerOptions
from intently.tasks.training.optimiser import Optimiser
from intently.tasks.training.options import TrainingOptions

from ...messages import refused
from ...show.refusals import refuses

VARIANT: dict[str, Any] = {
    "positions": "rotary",
    "kv_heads": 2,
    "feed_forward": "gated",
    "norm": "post",
}
RECURRENT: dict[str, Any] = {
    "cell": "lstm",
    "attention": "dot",
    "bidirectional": False,
    "input_feeding": False,
}


def toml(tmp_path, text: str):
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_named_is_set_and_kept(tmp_path) -> None:
    path = toml(tmp_path, "[model]\nwidth = 256\n[schedule]\nlearning_rate = 1\nseconds = 600\n")
    options = TrainingOptions.from_toml(path)
    assert (options.model.width, options.schedule.learning_rate) == (256, 1.0)
    assert options.model.heads == TrainingOptions().model.heads
    options = options.with_flags(betas=(0.9, 0.95), width=None, seed=2**64 - 1)
    assert (options.model.width, options.run.seed) == (256, 2**64 - 1)
    assert TrainingOptions.from_dict(json.loads(json.dumps(options.to_dict()))) == options


def test_names_are_unique_and_groups_are_small() -> None:
    groups = typing.get_type_hints(TrainingOptions).values()
    names = [field.name for group in groups for field in dataclasses.fields(group)]
    assert len(names) == len(set(names)) == len(TrainingOptions.flags())
    assert all(len(dataclasses.fields(group)) <= 8 for group in groups)
    assert all(flag.help for flag in TrainingOptions.flags().values())


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("[modell]\n", ArgumentError, ["modell", "model, text, schedule", "mean model?"]),
        ("[model]\nwidht = 3\n", ArgumentError, ["[model] widht", "mean width?", "heads"]),
        ("[model]\nsteps = 3\n", ArgumentError, ["steps belongs to the section [schedule]"]),
        ("[model]\nstep = 3\n", ArgumentError, ["mean steps of [schedule]?"]),
        ("width = 3\n", ArgumentError, ["width belongs to the section [model]"]),
        ("model = 3\n", KindError, ["model: expected a section of options; got 3"]),
        ('[model]\nwidth = "3"\n', KindError, ["[model] width", "an integer", "'3' (str)"]),
        ("[model]\nwidth = true\n", KindError, ["width: expected an integer; got True"]),
        (f"[schedule]\nlearning_rate = 1{'0' * 400}\n", KindError, ["learning_rate: expected a f"]),
        ("[text]\nsource_size = 4000000000\n", ArgumentError, ["from 1 to 10,000,000; got 4"]),
        ("[model]\ndecoder_layers = 1001\n", ArgumentError, ["an integer from 1 to 1,000; got 1"]),
        ("[optimiser]\naccumulate = 10001\n", ArgumentError, ["from 1 to 10,000; got 10001."]),
        ("[optimiser]\nbatch_tokens = 10000000000000000000000\n", ArgumentError, ["2**31 - 1"]),
        ("[model]\nwidth = 130\n", ArgumentError, ["even multiple of heads=4", "Use 128"]),
        ("[model]\ndropout = 1.0\n", ArgumentError, ["dropout", "up to, but not, 1; got 1.0"]),
        (
            '[text]\nsource_tokenizer = "unigram"\n',
            ArgumentError,
            ["one of 'subword', 'word', 'character'; got 'unigram'. Unigram tokenizers were"],
        ),
        ('[model]\nnorm = "mid"\n', ArgumentError, ["norm", "one of 'pre', 'post'; got 'mid'"]),
        ("[schedule]\nlearning_rate = nan\n", KindError, ["a finite number; got nan"]),
        ("[optimiser]\nbetas = [0.9]\n", KindError, ["betas: expected 2 numbers; got [0.9]"]),
        (
            '[architecture]\ncell = "lstm"\n',
            ArgumentError,
            ["cell: expected the default 'gru', or mod"],
        ),
        ("[model\n", DataError, ["a TOML file of options", "line 1"]),
    ],
)
def test_refused_by_name(tmp_path, text: str, error: type[IntentlyError], words: list[str]) -> None:
    path = toml(tmp_path, text)
    with pytest.raises(error) as caught:
        TrainingOptions.from_toml(path)
    assert str(caught.value).startswith(str(path))
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_recurrent_model_has_no_heads_that_its_width_must_fit() -> None:
    for flags in ({"width": 50}, {"bidirectional": False, "width": 17}):
        options = TrainingOptions().with_flags(model="recurrent", **flags)
        assert options.model.width == flags["width"]


def test_broken_json_is_named(tmp_path) -> None:
    path = tmp_path / "options.json"
    for content, words in (
        ("{", "no JSON at line 1"),
        ("[1]", "JSON: a list where an object belongs"),
        ("[" * 100_000, "JSON nested more than 100 deep"),
    ):
        path.write_text(content)
        told = rf"options\.json: expected a JSON file of options; got {words}"
        with pytest.raises(DataError, match=told):
            TrainingOptions.from_json(path)


@pytest.mark.parametrize(
    ("flags", "kind", "told"),
    [
        ({"seed": -1}, ArgumentError, r"^seed: expected an integer from 0 to 2\*\*64 - 1; got -1"),
        ({"learning_rat": 1.0}, ArgumentError, "^learning_rat: .* Did you mean learning_rate?"),
        (
            {"model": "recurrent", "bidirectional": 1},
            KindError,
            r"^bidirectional: expected true or false; got 1 \(int\)\.",
        ),
    ],
)
def test_flags_that_are_refused(flags: dict[str, Any], kind: type[Exception], told: str) -> None:
    refuses(kind, {told: lambda: TrainingOptions().with_flags(**flags)})


def test_they_describe_the_model(tmp_path) -> None:
    """From flags, a TOML file and a dictionary; stored before there were variants, too."""
    assert TrainingOptions().shape(9, 8) == TransformerOptions(9, 8)
    options = TrainingOptions().with_flags(**VARIANT)
    assert options.shape(9, 8) == TransformerOptions(9, 8, **VARIANT)
    path = toml(
        tmp_path, '[transformer]\npositions = "learned"\nlearned_steps = 299\nkv_heads = 1\n'
    )
    expected = TransformerOptions(9, 8, positions="learned", learned_steps=299, kv_heads=1)
    assert TrainingOptions.from_toml(path).shape(9, 8) == expected
    stored = TrainingOptions().to_dict()
    for name in ("positions", "kv_heads", "feed_forward", "learned_steps"):
        del stored["transformer"][name]
    assert TrainingOptions.from_dict(stored) == TrainingOptions()


def test_they_describe_a_recurrent_model(tmp_path) -> None:
    options = TrainingOptions().with_flags(model="recurrent", width=64, **RECURRENT)
    expected = RecurrentOptions(9, 8, width=64, encoder_layers=2, decoder_layers=2, **RECURRENT)
    assert options.shape(9, 8) == expected
    assert TrainingOptions.from_dict(options.to_dict()) == options
    path = toml(tmp_path, '[architecture]\nmodel = "recurrent"\nbidirectional = false\n')
    found = TrainingOptions.from_toml(path).shape(9, 8)
    assert isinstance(found, RecurrentOptions) and not found.bidirectional


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"kv_heads": 3}, "kv_heads: expected a divisor of heads=4; got 3."),
        ({"kv_heads": 0}, "kv_heads: expected an integer from 1 to 2**31 - 1; got 0."),
        (
            {"positions": "learned", "learned_steps": 99},
            "learned_steps: expected at least 2·max_length + 10 = 266; got 99. The table of "
            "positions ends there, and a search may write as much.",
        ),
        (
            {"positions": "rotory"},
            "positions: expected one of 'sinusoidal', 'learned', 'rotary'; got 'rotory'.",
        ),
        (
            {"positions": "rotary", "width": 20},
            'positions: expected "sinusoidal" or "learned" for heads of an odd width; got "rotary" '
            "where width/heads=5. Rotary positions rotate pairs of numbers. Choose other heads or "
            "another width.",
        ),
        (
            {"model": "recurrent", "kv_heads": 2},
            "kv_heads: expected the default None, or model='transformer'; got 2. A model of the "
            "kind 'recurrent' has no option kv_heads.",
        ),
        (
            {"attention": "dot"},
            "attention: expected the default 'additive', or model='recurrent'; got 'dot'. A model "
            "of the kind 'transformer' has no option attention.",
        ),
        ({"model": "cnn"}, "model: expected one of 'transformer', 'recurrent'; got 'cnn'."),
    ],
)
def test_what_the_model_does_not_have_is_refused(flags: dict[str, Any], words: str) -> None:
    refused(lambda: TrainingOptions().with_flags(**flags), ArgumentError, words, whole=True)


def test_learned_positions_are_no_matrices_to_the_optimiser() -> None:
    """They are looked up as embeddings are: no weight decay, and none of Muon's steps."""
    model = Transformer(TransformerOptions(9, 9, width=8, heads=2, inner=8, positions="learned"))
    groups = Optimiser(model, TrainingOptions().optimiser).groups
    assert {"source_positions.weight", "target_positions.weight"} <= set(groups["others"])
