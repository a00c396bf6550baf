"""`intently train-lm`: any text in, a model, its loss by position and samples out."""

from __future__ import annotations

import gzip
import math
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

import intently
from intently.cli.train_lm import report, train_lm
from intently.errors import ArgumentError, CheckpointError, DataError, KindError
from intently.language.runs import fit, read_text
from intently.language.settings import (
    DEFAULTS,
    WARMUP,
    language_flags,
    language_options,
    read_config,
    split,
)
from intently.language.text_model import TextModel, Variant
from intently.language.windows import Windows, by_context, losses_by_position
from intently.training import TrainingOptions
from intently.training.schedule import settled

SMALL = {
    "width": 16,
    "heads": 2,
    "layers": 1,
    "window": 12,
    "steps": 30,
    "warmup": 5,
    "batch_tokens": 240,
    "evaluate_every": 10,
    "save_every": 10,
    "threads": 1,
    "dropout": 0.1,
    "learning_rate": 0.01,
}


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
    made = options(source, tokenizer=kind, size=300, steps=3)
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
    wanted = r"^window: expected 12, with which .* Resume with window=12,"
    with pytest.raises(ArgumentError, match=wanted):
        fit(source, options(source, window=8), tmp_path / "half", resume=True)


def test_a_short_run_rises_in_a_share_of_its_steps(tmp_path: Path) -> None:
    source = text()
    flags = {n: x for n, x in SMALL.items() if n not in ("steps", "warmup")}
    short, more = (language_options(source, **flags, steps=n) for n in (5, 15))
    assert fit(source, short, tmp_path).text_model.options.schedule.warmup == 1
    run = fit(source, more, tmp_path, resume=True)
    assert run.text_model.options.schedule.warmup == 1  # as it began
    assert settled(DEFAULTS, longest=WARMUP).schedule.warmup == 100


def test_a_long_window_foretells_what_a_short_one_cannot(tmp_path: Path) -> None:
    """Every second letter repeats the one seven before: a window of 4 never sees it."""
    draw = random.Random(0)
    letters = [draw.choice("abcdefgh") for _ in range(7)]
    for _ in range(5000):
        letters.append(letters[-7] if draw.random() < 0.9 else draw.choice("abcdefgh"))
    source = "".join(letters)
    flags = {"steps": 220, "width": 32, "layers": 2, "batch_tokens": 640, "dropout": 0.0}
    short, long = (
        fit(source, options(source, window=n, **flags), tmp_path / str(n)).losses for n in (4, 16)
    )
    assert float(short.min()) > 1.8
    assert float(long[:5].min()) > 1.8 and float(long[10:].mean()) < 1.2


def test_a_window_longer_than_what_is_measured(tmp_path: Path, monkeypatch) -> None:
    """The loss is measured on a window at the least: at an evaluation, and at the end."""
    for name in ("EVALUATED", "MEASURED"):
        monkeypatch.setattr(f"intently.language.runs.{name}", 9)
    source = text()
    run = fit(source, options(source, steps=2), tmp_path)
    assert len(run.history.evaluations) == 1 and run.losses.shape == (12,)


def test_windows_cover_the_text() -> None:
    windows = Windows(range(4, 30), 6)
    batch = windows.batch(torch.arange(len(windows)).numpy())
    assert batch.target_in[:, 0].tolist() == list(range(4, 24, 3))
    assert torch.equal(batch.target_out, batch.target_in + 1)
    assert batch.source is None and batch.source_lengths is None


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


def command(*given: object) -> Result:
    app = typer.Typer()
    app.command()(train_lm)
    return CliRunner().invoke(app, [str(x) for x in given])


def book(folder: Path) -> Path:
    file = folder / "book.txt"
    file.write_text(text(), encoding="utf-8")
    return file


SHORT = ("--window", 10, "--width", 16, "--heads", 2, "--layers", 1, "--threads", 1)


def test_the_command(tmp_path: Path) -> None:
    given = [book(tmp_path), "--out", tmp_path / "run", *SHORT]
    done = command(*given, "--steps", 5)
    assert done.exit_code == 0, done.output
    for said in ("the last tenth is held out", "step 5/5", "tokens before", "9–10", "sample 2"):
        assert said in done.output
    again = command(*given, "--steps", 8, "--resume")
    assert again.exit_code == 0 and "step 8/8" in again.output
    said = again.output.splitlines()[-1].strip()
    made = subprocess.run([sys.executable, "-c", said], capture_output=True, env=surroundings())
    assert made.returncode == 0 and made.stdout.decode().startswith("The ")


def surroundings() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(intently.__file__).parents[1])}


def test_flags_are_options_with_the_defaults_of_a_language_model() -> None:
    flags, hints = language_flags(), get_type_hints(train_lm, include_extras=True)
    assert {n: flags[n].default for n in ("layers", "window", "dropout", "learning_rate")} == {
        **{"layers": 2, "window": 128, "dropout": 0.0, "learning_rate": 3e-3}
    }
    told = {name: hints[name].__metadata__[0].help for name in flags if name in hints}
    assert len(told) == 16
    for name, help in told.items():
        assert f"{flags[name].default}" in help, name


def test_a_small_window_against_a_large_one(tmp_path: Path) -> None:
    given = [book(tmp_path), "--out", tmp_path / "run", *SHORT, "--steps", 5, "--against", 3]
    done = command(*given, "--samples", 1)
    assert done.exit_code == 0, done.output
    for said in (
        "window 10      window 3\n",
        "9–10",
        "–\n",
        "sample 1 of window 10",
        "of window 3",
    ):
        assert said in done.output
    small = TextModel.load(tmp_path / "run" / "window-3")
    assert small.options.text.max_length == 3
    assert TextModel.load(tmp_path / "run").tokenizer.size == small.tokenizer.size
    again = command(*given, "--resume", "--samples", 0)
    assert again.exit_code == 0 and "sample" not in again.output
    numbers = [line for line in done.output.splitlines() if line.startswith("  ") and "–" in line]
    assert all(line in again.output for line in numbers)
    wrong = command(*given[:-1], 10)
    assert isinstance(wrong.exception, ArgumentError)
    assert str(wrong.exception).startswith("--against: expected a window smaller than 10; got 10.")


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


def test_learned_positions_write_on_beyond_the_window(tmp_path: Path) -> None:
    """The next token after a text of at most the window is that of the model itself."""
    source = text()
    run = fit(source, options(source), tmp_path, variant=Variant(positions="learned"))
    model, tokenizer = run.text_model.model, run.text_model.tokenizer
    written = run.text_model.write("cat dog", 30, top_k=1)
    ids = tokenizer.encode(written)
    assert len(ids) == 37
    for end in range(7, 13):
        assert int(model(torch.tensor([ids[:end]]))[0, -1].argmax()) == ids[end]
    assert int(model(torch.tensor([ids[7:13]]))[0, -1].argmax()) == ids[13]
    dot = tokenizer.encode(".")[0]
    stopped = run.text_model.write("cat dog", 30, top_k=1, stop=dot)
    assert written.startswith(stopped) and "." not in stopped[7:]


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


def test_a_wrong_file_of_options(tmp_path: Path) -> None:
    file = tmp_path / "lm.toml"
    cases: list[tuple[str, type[Exception], str]] = [
        ("[model", DataError, ": expected a TOML file of options; got "),
        ("[optimizer]\n", ArgumentError, ": optimizer: expected one of the sections model, text,"),
        ("model = 3", KindError, ": model: expected a section of options; got 3."),
        (
            "[model]\nencoder_layers = 2",
            ArgumentError,
            ": [model] encoder_layers: expected one of the options width, heads, kv_heads, layers,",
        ),
        ("[run]\nbest_by = 'bleu'", ArgumentError, ": [run] best_by: expected one of the options"),
        ("[model]\nlayers = 'two'", KindError, ": layers: expected an integer; got 'two' (str)."),
        ("[text]\nwindow = 0", ArgumentError, ": window: expected an integer from 1 to 2**31 - 1"),
        ("[model]\nkv_heads = 0", ArgumentError, ": kv_heads: expected an int ≥ 1; got 0."),
        (
            "[model]\npositions = 'none'",
            ArgumentError,
            ': positions: expected "rotary" or "learned"; got \'none\'.',
        ),
    ]
    for content, kind, said in cases:
        file.write_text(content)
        with pytest.raises(kind) as caught:
            read_config(file)
        assert str(caught.value).startswith(str(file) + said), str(caught.value)
    with pytest.raises(DataError, match=r"expected a TOML file of options; got no such file"):
        read_config(tmp_path / "none.toml")


KILLED = """
import sys
import typer
from intently.cli.train_lm import train_lm
from intently.training import progress

say = progress.Lines.__call__

def say_and_wait(self, event):
    say(self, event)
    if type(event).__name__ == "Saved":
        sys.stdin.readline()

progress.Lines.__call__ = say_and_wait
typer.run(train_lm)
"""


def test_a_killed_command_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    """SIGKILL and Ctrl-C while training; what comes out is a run that was never stopped."""
    file, script = tmp_path / "lm.toml", tmp_path / "lm.py"
    file.write_text("[run]\nsave_every = 5\nevaluate_every = 10\nthreads = 1\n[text]\nwindow = 10")
    script.write_text(KILLED)
    source = book(tmp_path)
    size = [str(x) for x in (*SHORT[2:-2], "--steps", 40, "--batch-tokens", 200, "--config", file)]

    def run(out: str, stop: signal.Signals | None, *more: str) -> str:
        given = [sys.executable, str(script), str(source), "--out", str(tmp_path / out)]
        process = subprocess.Popen(
            [*given, *size, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=surroundings(),
        )
        assert process.stdin is not None and process.stdout is not None
        if stop is None:
            process.stdin.close()  # it waits for nobody
        said = ""
        for line in process.stdout:
            said += line
            if stop is not None and "saved" in line:
                process.send_signal(stop)
                process.stdin.close()
                stop = None
        process.wait()
        return said

    whole = run("whole", None)
    run("cut", signal.SIGKILL)
    assert "interrupted" in run("cut", signal.SIGINT, "--resume")
    last = run("cut", None, "--resume")
    table = whole[whole.index("held-out loss") : whole.index("the model is in")]
    assert table in last
    assert "sample 2" in table


def test_reading_files(tmp_path: Path) -> None:
    file = tmp_path / "a.gz"
    file.write_bytes(gzip.compress("un\r\n\ndeux é".encode()))
    assert read_text(file) == "un\n\ndeux é\n"
    (tmp_path / "b").write_bytes(b"\xff\xfa")
    (tmp_path / "d").write_bytes(b"")
    (tmp_path / "e").write_bytes(b"words\n\x7fELF\0\0")
    for name, message in [
        ("c", "no such file"),
        ("b", "is not UTF-8|UTF-16|not text"),
        ("d", "the file is empty"),
        ("e", "byte 5 of the line is NUL: this is no text"),
        (".", "a folder, not a file"),
    ]:
        with pytest.raises(DataError, match=rf"expected a text in UTF-8; got .*({message})"):
            read_text(tmp_path / name)
    (tmp_path / "f").write_bytes(b"\xe9\n" * 9)
    with pytest.raises(DataError, match=r"f:1: byte 1 .* not UTF-8 .*f:2: .*\); and 7 more\."):
        read_text(tmp_path / "f")


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"text: expected more than 130 tokens; got 36\. A tenth"):
        fit("cat dog " * 4 + "cat\n", options(""), tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(
        CheckpointError, match=r"expected a folder with language\.json.*; got an empty folder"
    ):
        TextModel.load(tmp_path)
    with pytest.raises(DataError, match=r"expected more tokens than the window of 12; got 3"):
        Windows([4, 5, 6], 12)
    with pytest.raises(ArgumentError, match=r"kv_heads: expected a divisor of heads=2; got 3"):
        fit(text(), options(""), tmp_path / "run", variant=Variant(kv_heads=3))
    with pytest.raises(ArgumentError, match=r"^layers: expected an integer from 1 to .*; got 0"):
        language_options("", layers=0)
    assert not (tmp_path / "run").exists()
    assert language_options("a").text.target_tokenizer == "character"


def test_damaged_models(tmp_path: Path) -> None:
    source = text()
    fit(source, options(source, steps=1), tmp_path)
    about = tmp_path / "model" / "language.json"
    whole = about.read_text()
    for damaged, message in [
        (whole[:50], "no JSON at line"),
        (whole.replace('"format": 2', '"format": 3'), "expected format 2 or older; got format 3"),
        (whole.replace('"width": 16', '"width": 32'), "another checksum than it was written with"),
        ("{}", "another checksum"),
    ]:
        about.write_text(damaged)
        with pytest.raises(CheckpointError, match=message):
            TextModel.load(tmp_path)
    for damaged in ("", "[" * 100_000, "[]", "null"):
        about.write_text(damaged)
        with pytest.raises(CheckpointError, match=r"language\.json: expected .*; got "):
            TextModel.load(tmp_path)
    about.write_text(whole)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"too few bytes for a header|another kind of file"):
        TextModel.load(tmp_path)


def test_a_damaged_variant_is_told_where_a_run_goes_on(tmp_path: Path) -> None:
    source = text()
    fit(source, options(source, steps=1), tmp_path)
    for damaged in (b"", b"garbage", b"[]", b"{}", b"[" * 100_000, b"null", b"\xff"):
        (tmp_path / "variant.json").write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"variant\.json: expected the variant of a run"):
            fit(source, options(source, steps=2), tmp_path, resume=True)
