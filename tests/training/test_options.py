"""Options: stored and read back, and refused by a message that helps."""

from __future__ import annotations

import dataclasses
import json
import typing

import pytest

from intently.errors import ArgumentError, DataError, IntentlyError, KindError
from intently.training.options import TrainingOptions


def toml(tmp_path, text: str):
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_toml_sets_what_it_names(tmp_path) -> None:
    path = toml(tmp_path, "[model]\nwidth = 256\n[schedule]\nlearning_rate = 1\nseconds = 600\n")
    options = TrainingOptions.from_toml(path)
    assert (options.model.width, options.schedule.learning_rate) == (256, 1.0)
    assert options.model.heads == TrainingOptions().model.heads


def test_json_round_trip() -> None:
    options = TrainingOptions().with_flags(seconds=60, betas=(0.9, 0.95), threads=2)
    assert TrainingOptions.from_dict(json.loads(json.dumps(options.to_dict()))) == options


def test_flags_that_are_not_given_change_nothing() -> None:
    assert TrainingOptions().with_flags(width=None, steps=None) == TrainingOptions()


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
        ("[model]\nwidth = 3.0\n", KindError, ["width: expected an integer"]),
        ("[model]\nwidth = true\n", KindError, ["width: expected an integer; got True"]),
        (f"[schedule]\nlearning_rate = 1{'0' * 400}\n", KindError, ["learning_rate: expected a f"]),
        ("[text]\nsource_size = 4000000000\n", ArgumentError, ["from 1 to 10,000,000; got 4"]),
        ("[optimiser]\nbatch_tokens = 10000000000000000000000\n", ArgumentError, ["2**31 - 1"]),
        ("[model]\nwidth = 0\n", ArgumentError, ["width: expected an integer from 1 to 2**31 - 1"]),
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
        ("[optimiser]\nbetas = [0.9, 1]\n", ArgumentError, ["betas: expected two numbers"]),
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
    assert TrainingOptions().with_flags(model="recurrent", width=50).model.width == 50
    odd = {"model": "recurrent", "bidirectional": False, "width": 17}
    assert TrainingOptions().with_flags(**odd).model.width == 17
    with pytest.raises(ArgumentError, match="width: expected an even multiple of heads=4; got 50"):
        TrainingOptions().with_flags(width=50)


def test_a_missing_file_and_wrong_bytes_are_named(tmp_path) -> None:
    with pytest.raises(DataError, match="got no such file"):
        TrainingOptions.from_toml(tmp_path / "nothing.toml")
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(DataError, match=r"latin\.toml"):
        TrainingOptions.from_toml(tmp_path / "latin.toml")


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


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_is_one_that_pytorch_takes(seed: int) -> None:
    TrainingOptions().with_flags(seed=2**64 - 1)
    with pytest.raises(
        ArgumentError, match=r"seed: expected an integer from 0 to 2\*\*64 - 1; got"
    ):
        TrainingOptions().with_flags(seed=seed)


def test_an_unknown_flag_names_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="Did you mean learning_rate"):
        TrainingOptions().with_flags(learning_rat=1.0)
