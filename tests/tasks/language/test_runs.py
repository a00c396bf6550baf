"""`intently train-lm`: any text in, a model, its loss by position and samples out."""

from __future__ import annotations

import gzip
import math
import random
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch

from intently.cli.train_lm import report
from intently.errors import ArgumentError, CheckpointError, DataError, KindError
from intently.nn.models.language import LanguageModel, LanguageOptions
from intently.tasks.corpora import stories
from intently.tasks.language.comparison import measure
from intently.tasks.language.runs import Windows, fit, losses_of_windows, read_text
from intently.tasks.language.text_model import (
    DEFAULTS,
    WARMUP,
    TextModel,
    Variant,
    language_options,
    read_config,
)
from intently.tasks.training import TrainingOptions
from intently.tasks.training.optimiser import settled

from ...messages import refused
from .book import text

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


def options(source: str, **flags) -> TrainingOptions:
    return language_options(source, **{**SMALL, **flags})


def test_a_run_learns_saves_and_loads(tmp_path: Path) -> None:
    source = text()
    run = fit(source, options(source), tmp_path)
    scores = [e.scores["loss"] for e in run.history.evaluations]
    assert run.history.stopped == "finished" and scores[-1] < scores[0] < 6
    assert run.text_model.tokenizer.kind == "character"
    assert run.losses.shape[1] == 12 and float(run.losses.mean()) < math.log(20)
    assert source.endswith(run.held_out) and len(run.held_out) == len(source) // 10
    loaded = TextModel.load(tmp_path)
    how = {"temperature": 0.9, "top_p": 0.9}
    one, other = (
        m.write("cat dog", 40, generator=torch.Generator().manual_seed(1), **how)
        for m in (run.text_model, loaded)
    )
    assert one == other and one.startswith("cat dog") and 40 < len(one) <= 47
    assert TextModel.load(tmp_path / "model").options == run.text_model.options
    ids = torch.arange(20)[None] % 9  # its last token sees the 12 of a window
    model, other = loaded.model, torch.cat([ids[:, :8] + 1, ids[:, 8:]], 1)
    torch.testing.assert_close(model(ids)[0, -1], model(other)[0, -1])


def test_another_tokenizer(tmp_path: Path) -> None:
    source = text(300)
    run = fit(source, options(source, tokenizer="subword", size=300, steps=3), tmp_path)
    assert run.text_model.tokenizer.kind == "subword"
    beginning = run.held_out[:7]
    assert run.text_model.write(beginning, 3, top_k=1).startswith(beginning)
    assert run.text_model.write("", 0) == ""
    assert "sample 1" in report(measure([run], "a text"), [run], 1)


def test_a_run_that_is_stopped_and_resumed_takes_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EVALUATED", "MEASURED"):  # a window at the least is scored
        monkeypatch.setattr(f"intently.tasks.language.runs.{name}", 9)
    source = text()
    whole = fit(source, options(source), tmp_path / "whole")

    def stop(event) -> None:
        if type(event).__name__ == "Stepped" and event.step == 13:
            signal.raise_signal(signal.SIGTERM)

    assert whole.losses.shape == (1, 12)
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
        fit(source, options(source, window=n, **flags), tmp_path / str(n)).losses.mean(0)
        for n in (4, 16)
    )
    assert float(short.min()) > 1.8
    assert float(long[:5].min()) > 1.8 and float(long[10:].mean()) < 1.2


def test_losses_are_those_of_each_window_alone() -> None:
    windows = Windows(range(4, 30), 6)
    batch = windows.batch(torch.arange(len(windows)).numpy())
    assert batch.target_in[:, 0].tolist() == list(range(4, 24, 3))
    assert torch.equal(batch.target_out, batch.target_in + 1) and batch.source is None
    model = LanguageModel(LanguageOptions(11, width=16)).eval()
    ids = torch.randint(11, (23,))
    losses = losses_of_windows(model, ids, 5)
    for row, start in enumerate((0, 5, 10, 15)):
        logits = model(ids[None, start : start + 5])[0]
        alone = torch.nn.functional.cross_entropy(
            logits, ids[start + 1 : start + 6], reduction="none"
        )
        torch.testing.assert_close(losses[row], alone.detach())


def test_stories_are_a_text_of_that_name_unless_there_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("intently.tasks.language.runs.STORIES", 3)
    made = read_text("stories")
    assert made.splitlines() == list(islice(stories(), 3))
    Path("stories").write_text("mine")
    assert read_text("stories") == "mine\n"


def test_learned_positions_write_on_beyond_the_window(tmp_path: Path) -> None:
    """The next token after a text of at most the window is that of the model itself."""
    source = text()
    run = fit(source, options(source), tmp_path, variant=Variant(positions="learned"))
    model, tokenizer = run.text_model.model, run.text_model.tokenizer
    written = run.text_model.write("cat dog", 30, top_k=1)
    ids = tokenizer.encode(written)
    assert len(ids) == 37
    for start, end in (*((0, end) for end in range(7, 13)), (7, 13)):
        assert int(model(torch.tensor([ids[start:end]]))[0, -1].argmax()) == ids[end]
    dot = tokenizer.encode(".")[0]
    stopped = run.text_model.write("cat dog", 30, top_k=1, stop=dot)
    assert written.startswith(stopped) and "." not in stopped[7:]


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (None, DataError, ": expected a TOML file of options; got no such file"),
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
        ("[model]\nkv_heads = 0", ArgumentError, ": kv_heads: expected an integer from 1 to 2**31"),
        (
            "[model]\npositions = 'none'",
            ArgumentError,
            ": positions: expected one of 'rotary', 'learned'; got 'none'.",
        ),
    ],
)
def test_a_wrong_file_of_options(
    tmp_path: Path, content: str | None, kind: type[Exception], said: str
) -> None:
    file = tmp_path / "lm.toml"
    if content is not None:
        file.write_text(content)
    refused(lambda: read_config(file), kind, str(file) + said)


def test_reading_files(tmp_path: Path) -> None:
    file = tmp_path / "a.gz"
    file.write_bytes(gzip.compress("un\r\n\ndeux é".encode()))
    assert read_text(file) == "un\n\ndeux é\n"
    for content, message in [
        (b"\xff\xfa", "is not UTF-8|UTF-16|not text"),
        (b"", "the file is empty"),
        (b"words\n\x7fELF\0\0", "byte 5 of the line is NUL: this is not text"),
        (b"\xe9\n" * 9, r"a\.gz:1: byte 1 .* not UTF-8 .*a\.gz:2: .*\); and 7 more\."),
    ]:
        file.write_bytes(content)
        with pytest.raises(DataError, match=rf"expected a text in UTF-8; got .*({message})"):
            read_text(file)
    for path, message in ((tmp_path / "c", "no such file"), (tmp_path, "a folder, not a file")):
        with pytest.raises(DataError, match=f"expected a text in UTF-8; got .*{message}"):
            read_text(path)


def test_bad_input(tmp_path: Path) -> None:
    short, thirds = "cat dog " * 4 + "cat\n", Variant(kv_heads=3)
    with pytest.raises(DataError, match=r"text: expected more than 130 tokens; got 36\. A tenth"):
        fit(short, options(""), tmp_path)
    with pytest.raises(CheckpointError, match=r"folder with language\.json.*; got an empty fold"):
        TextModel.load(tmp_path)
    with pytest.raises(DataError, match="expected more tokens than the window of 12; got 3"):
        Windows([4, 5, 6], 12)
    with pytest.raises(ArgumentError, match="kv_heads: expected a divisor of heads=2; got 3"):
        fit(text(), options(""), tmp_path, variant=thirds)
    with pytest.raises(ArgumentError, match=r"^layers: expected an integer from 1 to .*; got 0"):
        language_options("", layers=0)
    assert not list(tmp_path.iterdir())


NO_MODEL = r"language\.json: expected .*; got "


def test_damaged_models(tmp_path: Path) -> None:
    fit(text(), options(text(), steps=1), tmp_path)
    about = tmp_path / "model" / "language.json"
    whole = about.read_text()
    for damaged, message in [
        (whole[:50], "no JSON at line"),
        (whole.replace('"format": 2', '"format": 3'), "expected format 2 or older; got format 3"),
        (whole.replace('"width": 16', '"width": 32'), "another checksum than it was written with"),
        ("{}", "another checksum"),
        *((content, NO_MODEL) for content in ("", "[" * 100_000, "[]", "null")),
    ]:
        about.write_text(damaged)
        with pytest.raises(CheckpointError, match=message):
            TextModel.load(tmp_path)
    about.write_text(whole)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"too few bytes for a header|another kind of file"):
        TextModel.load(tmp_path)
    (tmp_path / "variant.json").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"variant\.json: expected the variant of a run"):
        fit(text(), options(text(), steps=2), tmp_path, resume=True)


def test_a_saved_model_is_read_without_the_trainer() -> None:
    code = (
        "import sys; from intently.tasks.language import TextModel; "
        "from intently.tasks.translation import Translator; "
        "print(*sorted(m for m in sys.modules if m.startswith('intently.tasks.training.')))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert found.split() == ["intently.tasks.training.options"]
