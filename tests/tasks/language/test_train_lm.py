"""`intently train-lm`: flags, files of options, tables, kills."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
import typer
from typer.testing import CliRunner, Result

import intently
from intently.cli.train_lm import train_lm
from intently.errors import ArgumentError
from intently.tasks.language.text_model import (
    DEFAULTS,
    FLAGS,
    TextModel,
    Variant,
    language_options,
    read_config,
    split,
)

from .book import text

SHORT = ("--window", 10, "--width", 16, "--heads", 2, "--layers", 1, "--threads", 1)


def surroundings() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(intently.__file__).parents[1])}


def book(folder: Path) -> Path:
    file = folder / "book.txt"
    file.write_text(text(), encoding="utf-8")
    return file


def command(*given: object) -> Result:
    app = typer.Typer()
    app.command()(train_lm)
    return CliRunner().invoke(app, [str(x) for x in given])


def test_the_command(tmp_path: Path) -> None:
    given = [book(tmp_path), "--out", tmp_path / "run", *SHORT]
    done = command(*given, "--steps", 5)
    assert done.exit_code == 0, done.output
    for said in ("the last tenth is held out", "step 5/5", "tokens before", "9–10", "sample 2"):
        assert said in done.output
    assert "warning: window 10 is undertrained: too few steps" in done.output
    assert {"context.json", "context.png"} <= {file.name for file in (tmp_path / "run").iterdir()}
    again = command(*given, "--steps", 8, "--resume")
    assert again.exit_code == 0 and "step 8/8" in again.output
    name, *said = shlex.split(again.output.splitlines()[-1])
    made = subprocess.run(
        [sys.executable, "-m", name, *said], capture_output=True, env=surroundings()
    )
    assert made.returncode == 0 and made.stdout.decode().startswith("The ")


def test_flags_are_options_with_the_defaults_of_a_language_model() -> None:
    hints = get_type_hints(train_lm, include_extras=True)
    assert {n: FLAGS[n].default for n in ("layers", "window", "dropout", "learning_rate")} == {
        **{"layers": 2, "window": 128, "dropout": 0.0, "learning_rate": 3e-3}
    }
    told = {name: hints[name].__metadata__[0].help for name in FLAGS if name in hints}
    assert len(told) == 16
    for name, help in told.items():
        default = FLAGS[name].default
        assert (f"{default}" in help) == (default is not None), name


def test_a_small_window_against_a_large_one(tmp_path: Path) -> None:
    given = [book(tmp_path), "--out", tmp_path / "run", *SHORT, "--steps", 5, "--against", 3]
    done = command(*given, "--samples", 1)
    assert done.exit_code == 0, done.output
    samples = ("sample 1 of window 10", "of window 3")
    for said in ("window 10        window 3\n", "9–10", "–\n", "with all of its", *samples):
        assert said in done.output
    small = TextModel.load(tmp_path / "run" / "window-3")
    assert small.options.text.max_length == 3
    assert TextModel.load(tmp_path / "run").tokenizer.size == small.tokenizer.size
    again = command(*given, "--resume", "--samples", 0)
    assert again.exit_code == 0 and "sample" not in again.output
    numbers = [line for line in done.output.splitlines() if line.startswith("  ") and "–" in line]
    assert all(line in again.output for line in numbers)
    assert command(*given, "--samples", 10**11).exit_code == 2
    wrong = command(*given[:-1], 10)
    assert isinstance(wrong.exception, ArgumentError)
    assert str(wrong.exception).startswith("--against: expected a window smaller than 10; got 10.")
    for more in (3, 5, 4), (3,):
        wrong = command(*given, *(x for window in more for x in ("--against", window)))
        expected = "--against: expected at most 2 different windows; got "
        assert str(wrong.exception).startswith(expected)


def test_the_result_is_in_the_folder(tmp_path: Path) -> None:
    given = [book(tmp_path), "--out", tmp_path / "run", *SHORT, "--steps", 3, "--samples", 0]
    done = command(*given, "--against", 2, "--against", 4)
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "run" / "context.json").read_text(encoding="utf-8"))
    assert [model["window"] for model in result["models"]] == [10, 4, 2]
    assert result["text"] == "book.txt"
    for warning in result["warnings"]:
        assert f"warning: {warning}" in " ".join(done.output.split())


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_variants(tmp_path: Path, positions: str) -> None:
    given = [book(tmp_path), "--out", tmp_path / "run", *SHORT, "--steps", 2, "--seed", 3]
    kind = ["--kv-heads", 1, "--positions", positions]
    done = command(*given, *kind)
    assert done.exit_code == 0, done.output
    loaded = TextModel.load(tmp_path / "run")
    assert loaded.variant == Variant(1, positions) and loaded.model.options.kv_heads == 1  # type: ignore[arg-type]
    assert loaded.model.max_length == (10 if positions == "learned" else None)
    assert len(loaded.write("cat ", 25)) > 4
    assert command(*given, *kind, "--resume").exit_code == 0
    wrong = command(*given, "--positions", positions, "--resume")
    assert isinstance(wrong.exception, ArgumentError)
    assert str(wrong.exception) == (
        "kv_heads: expected 1, with which the run began; got None. Resume with kv_heads=1, or "
        "start a new run in another folder."
    )


def test_a_file_of_options(tmp_path: Path) -> None:
    file = tmp_path / "lm.toml"
    file.write_text(
        "[model]\nwidth = 16\nheads = 2\nlayers = 1\nkv_heads = 1\ninner = 24\n[text]\nwindow = 9\n"
        "[schedule]\nsteps = 3\nwarmup = 1\n[run]\nthreads = 1\n"
    )
    variant, rest = split(read_config(file))
    made = language_options("", **rest)
    assert variant == Variant(kv_heads=1) and made.model.inner == 24
    assert (made.text.max_length, made.schedule.warmup) == (9, 1)
    assert made.optimiser == DEFAULTS.optimiser  # what is not said is as without the file
    run = [book(tmp_path), "--out", tmp_path / "run", "--config", file]
    done = command(*run, "--steps", 4, "--window", 11)  # a flag comes before the file
    assert done.exit_code == 0 and "step 4/4" in done.output and "window 11" in done.output
    assert TextModel.load(tmp_path / "run").variant == variant
