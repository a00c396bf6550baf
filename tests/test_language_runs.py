"""`intently train-lm`: any text in, a model, its loss by position and samples out."""

from __future__ import annotations

import gzip
import math
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from intently.errors import ArgumentError, CheckpointError, DataError
from intently.language_cli import report, train_lm
from intently.language_runs import (
    DEFAULTS,
    TextModel,
    Windows,
    by_context,
    fit,
    language_options,
    losses_by_position,
    read_text,
)
from intently.training import TrainingOptions


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SMALL = {
    "width": 16, "heads": 2, "decoder_layers": 1, "max_length": 12, "steps": 30, "warmup": 5,
    "batch_tokens": 240, "evaluate_every": 10, "save_every": 10, "threads": 1, "dropout": 0.1,
    "learning_rate": 0.01,
}  # fmt: skip


def text(lines: int = 120) -> str:
    """Lines that say a word, then the same word again after five others."""
    draw = random.Random(1)
    words = ["cat", "dog", "sun", "sea", "ice", "oak"]
    return "".join(" ".join(draw.choices(words, k=6)) + ".\n" for _ in range(lines))


def options(source: str, **flags) -> TrainingOptions:
    return language_options(source, **{**SMALL, **flags})


def test_a_run_learns_saves_and_loads(tmp_path: Path) -> None:
    source = text()
    run = fit(source, options(source), tmp_path)
    scores = [e.scores["loss"] for e in run.history.evaluations]
    assert run.history.stopped == "finished" and scores[-1] < scores[0] < 6
    assert run.losses.shape == (12,) and float(run.losses.mean()) < math.log(20)
    assert source.endswith(run.held_out) and len(run.held_out) == len(source) // 10
    loaded = TextModel.load(tmp_path)
    how = {"temperature": 0.9, "top_p": 0.9}
    one, other = (
        m.write("cat dog", 40, generator=torch.Generator().manual_seed(1), **how)
        for m in (run.text_model, loaded)
    )
    assert one == other and one.startswith("cat dog") and 40 < len(one) <= 47
    assert TextModel.load(tmp_path / "model").options == run.text_model.options


@pytest.mark.parametrize("kind", ["subword", "word"])
def test_other_tokenizers(tmp_path: Path, kind: str) -> None:
    source = text(300)
    made = options(source, target_tokenizer=kind, target_size=300, steps=3)
    run = fit(source, made, tmp_path)
    assert run.text_model.tokenizer.kind == kind
    beginning = run.held_out[:7]
    assert run.text_model.write(beginning, 3, top_k=1).startswith(beginning)
    assert run.text_model.write("", 0) == ""
    assert "sample 1" in report(run, 1)


def test_a_run_that_is_stopped_and_resumed_takes_the_same_steps(tmp_path: Path) -> None:
    source = text()
    whole = fit(source, options(source), tmp_path / "whole")

    def stop(event) -> None:
        if type(event).__name__ == "Stepped" and event.step == 13:
            signal.raise_signal(signal.SIGTERM)

    half = fit(source, options(source), tmp_path / "half", progress=stop)
    assert half.history.stopped == "interrupted"
    with pytest.raises(ArgumentError, match=r"out: expected a folder without a run; got .*half"):
        fit(source, options(source), tmp_path / "half")
    resumed = fit(source, options(source), tmp_path / "half", resume=True)
    for a, b in zip(whole.text_model.model.parameters(), resumed.text_model.model.parameters()):
        assert torch.equal(a, b)
    with pytest.raises(ArgumentError, match=r"max_length: expected 12, with which the run began"):
        fit(source, options(source, max_length=8), tmp_path / "half", resume=True)


def test_a_long_window_foretells_what_a_short_one_cannot(tmp_path: Path) -> None:
    """Every second letter repeats the one seven before: a window of 4 never sees it."""
    draw = random.Random(0)
    letters = [draw.choice("abcdefgh") for _ in range(7)]
    for _ in range(5000):
        letters.append(letters[-7] if draw.random() < 0.9 else draw.choice("abcdefgh"))
    source = "".join(letters)
    flags = {"steps": 220, "width": 32, "decoder_layers": 2, "batch_tokens": 640, "dropout": 0.0}
    short, long = (
        fit(source, options(source, max_length=n, **flags), tmp_path / str(n)).losses
        for n in (4, 16)
    )
    assert float(short.min()) > 1.8
    assert float(long[:5].min()) > 1.8 and float(long[10:].mean()) < 1.2


def test_windows_cover_the_text() -> None:
    windows = Windows(range(4, 30), 6)
    batch = windows.batch(torch.arange(len(windows)).numpy())
    assert batch.target_in[:, 0].tolist() == list(range(4, 24, 3))
    assert torch.equal(batch.target_out, batch.target_in + 1)
    assert batch.source_lengths is None and batch.source.shape[1] == 1


def test_losses_are_those_of_each_window_alone() -> None:
    from intently.models.language import LanguageModel, LanguageOptions

    model = LanguageModel(LanguageOptions(11, width=16)).eval()
    ids = torch.randint(11, (23,))
    losses = losses_by_position(model, ids, 5)
    expected = torch.zeros(5)
    for start in (0, 5, 10, 15):
        logits = model(ids[None, start : start + 5])[0]
        expected += torch.nn.functional.cross_entropy(
            logits, ids[start + 1 : start + 6], reduction="none"
        ).detach()
    torch.testing.assert_close(losses, expected / 4)
    assert by_context(torch.ones(9)) == [(1, 1, 1), (2, 2, 1), (3, 4, 1), (5, 8, 1), (9, 9, 1)]


def test_the_command(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(train_lm)
    file = tmp_path / "book.txt"
    file.write_text(text(), encoding="utf-8")
    given = [str(file), "--out", str(tmp_path / "run"), "--window", "10", "--width", "16"]
    given += ["--heads", "2", "--layers", "1", "--steps", "5", "--threads", "1"]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    for said in ("the last tenth is held out", "step 5/5", "tokens before", "9–10", "sample 2"):
        assert said in done.output
    longer = [x if x != "5" else "8" for x in given]
    again = CliRunner().invoke(app, [*longer, "--resume"])
    assert again.exit_code == 0 and "step 8/8" in again.output


def test_reading_files(tmp_path: Path) -> None:
    file = tmp_path / "a.gz"
    file.write_bytes(gzip.compress("un\r\n\ndeux é".encode()))
    assert read_text(file) == "un\n\ndeux é\n"
    (tmp_path / "b").write_bytes(b"\xff\xfa")
    for name, message in [("c", "no such file"), ("b", "is not UTF-8|UTF-16|not text")]:
        with pytest.raises(DataError, match=rf"expected a text in UTF-8; got .*({message})"):
            read_text(tmp_path / name)


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"text: expected more than 130 tokens; got 36\. A tenth"):
        fit("cat dog " * 4 + "cat\n", options(""), tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(
        CheckpointError, match=r"expected the folder of a language model.*got no fi"
    ):
        TextModel.load(tmp_path)
    with pytest.raises(DataError, match=r"expected more tokens than the window of 12; got 3"):
        Windows([4, 5, 6], 12)
    assert language_options("a").text.target_tokenizer == "character"
    assert DEFAULTS.run.best_by == "loss"


def test_damaged_models(tmp_path: Path) -> None:
    source = text()
    fit(source, options(source, steps=1), tmp_path)
    about = tmp_path / "model" / "language.json"
    whole = about.read_text()
    for damaged, message in [
        (whole[:50], "JSONDecodeError"),
        (whole.replace('"format": 1', '"format": 2'), r"expected format 1 or older; got 2"),
        (whole.replace('"width": 16', '"width": 32'), r"weights are of a model with other options"),
        ("{}", "KeyError"),
    ]:
        about.write_text(damaged)
        with pytest.raises(CheckpointError, match=message):
            TextModel.load(tmp_path)
    about.write_text(whole)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="SafetensorError"):
        TextModel.load(tmp_path)
