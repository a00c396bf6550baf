"""`intently train --recipe`, its resuming and refusals, and `intently recipes`."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from intently.cli import train_lm
from intently.nn.models.kinds import cross_heads
from intently.tasks.corpora import Corpus
from intently.tasks.language.text_model import FLAGS
from intently.tasks.recipes import Origin, recipe, recipe_text, recipes
from intently.tasks.training import Stepped, TrainingOptions, progress
from intently.tasks.training.folder_lock import sole_writer
from intently.tasks.training.options import Flag
from intently.tasks.training.processes import Processes
from intently.tasks.translation.runs import WRITES
from intently.tasks.translation.translator import Translator

from ..command_line import Command, refused
from ..samples import parallel, write_pairs

RECIPE = "multi30k-de-en-bahdanau"
TINY = [
    *("--width", "16", "--batch-tokens", "300", "--steps", "4", "--warmup", "2"),
    *("--threads", "1", "--max-length", "12"),
]


pytestmark = pytest.mark.usefixtures("asked")


# --- recipes --------------------------------------------------------------------------------------


def test_recipes_are_listed_on_a_screen(intently: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = intently("recipes")
    assert outcome.status == 0
    lines = outcome.out.splitlines()
    assert len(lines) <= 24
    for each in recipes():
        (line,) = (line for line in lines if line.startswith(each.name + " "))
        assert re.search(rf"≈ \d\.\d M +{each.options.schedule.steps:,} +", line)
        assert each.about in line
    assert "≈ 2.2 M" in outcome.out
    assert "intently recipes NAME" in lines[-1]
    monkeypatch.setenv("COLUMNS", "80")
    narrow = intently("recipes").out
    assert max(map(len, narrow.splitlines())) <= 80 and "…" not in narrow
    for each in recipes():
        row = rf"^{each.name} +≈ \d\.\d M +{each.options.schedule.steps:,} "
        assert len(re.findall(row, narrow, re.MULTILINE)) == 1


def interrupt_at_2(self: progress.Lines, event: object) -> None:
    """Press Ctrl-C at step 2, in place of printing."""
    if isinstance(event, Stepped) and event.step == 2:
        signal.raise_signal(signal.SIGINT)


# --- training by a recipe -------------------------------------------------------------------------


def test_a_recipe_trains_and_is_scored(intently: Command, asked: list[object]) -> None:
    outcome = intently("train", "--recipe", RECIPE, "--data-dir", "data", "--out", "run", *TINY)
    assert outcome.status == 0, outcome.err
    assert asked == [("multi30k", "de", "en", str(Path("data").absolute()))]
    assert f"recipe {RECIPE}, multi30k:de-en: 60 sentence pairs\nmade by hand\n" in outcome.out
    assert "test_one: 4 sentences\nexact match 0.0%" in outcome.out
    assert "alignment error" not in outcome.out
    translator = Translator.load("run")
    assert translator.model.options.width == 16  # the flag's
    assert cross_heads(translator.model.options) == {"attention": 1}  # the recipe's
    scores = json.loads(Path("run/scores.json").read_text())
    assert scores["tests"]["test_one"]["sentences"] == 4
    kept = Origin.load("run")
    assert kept == Origin("multi30k", "de", "en", str(Path("data").absolute()), RECIPE)
    assert "Resume it (--resume" in refused(
        intently("train", "--recipe", "tatoeba-en-fr", "--out", "run", *TINY)
    )
    assert Origin.load("run") == kept


def test_what_was_measured_before_is_printed(
    intently: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = replace(recipe(RECIPE), result="BLEU 28 on the test")
    monkeypatch.setattr("intently.tasks.recipes.recipe", lambda name: measured)
    outcome = intently("train", "--recipe", RECIPE, "--out", "run", *TINY)
    assert f"expected of {RECIPE} with its own options: BLEU 28 on the test\n" in outcome.out


def test_an_interrupted_recipe_goes_on_by_its_folder_alone(
    intently: Command, asked: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(progress.Lines, "__call__", interrupt_at_2)
        outcome = intently("train", "--recipe", RECIPE, "--out", "run", *TINY)
    assert outcome.status == 1 and "intently train --out run --resume" in outcome.out
    outcome = intently("train", "--recipe", "tatoeba-en-fr", "--out", "run", "--resume")
    assert refused(outcome) == (
        f"intently: --recipe: expected {RECIPE}, with which the run began; got tatoeba-en-fr.\n"
    )
    outcome = intently("train", "--out", "run", "--resume")
    assert outcome.status == 0, outcome.err
    assert "step 4/4" in outcome.out and "lower-cased BLEU" in outcome.out
    assert asked[-1] == ("multi30k", "de", "en", None)
    assert Translator.load("run").model.options.width == 16  # the flag of the beginning


def test_a_run_that_another_corpus_was_refused_for_stays_as_it_was(
    intently: Command, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ("train", *files, "--out", "files", *TINY)
    assert intently(*first).status == 0
    outcome = intently("train", "--recipe", RECIPE, "--out", "files", "--resume", *TINY)
    assert outcome.status == 2 and "with which the run began" in outcome.err
    assert Origin.load("files") is None
    assert intently(*first, "--resume").status == 0
    recipe = ("train", "--recipe", RECIPE, "--data-dir", "data", "--out", "run", *TINY)
    assert intently(*recipe).status == 0
    kept = Origin.load("run")
    pairs = parallel("train", 30)
    changed = Corpus("", "", "", pairs, pairs, {"test": pairs}, "")
    with monkeypatch.context() as patch:
        patch.setattr("intently.tasks.recipes.load_corpus", lambda *asked: changed)
        outcome = intently("train", "--out", "run", "--resume", "--data-dir", "changed")
        assert outcome.status == 2 and "data: expected the data the run began" in outcome.err
    assert Origin.load("run") == kept
    assert intently("train", "--out", "run", "--resume", "--data-dir", "moved").status == 0
    moved = Origin.load("run")
    assert moved is not None and moved.data_dir == str(Path("moved").absolute())


def test_what_a_killed_recipe_left_does_not_stand_in_the_way_of_files(
    intently: Command, files: tuple[str, str]
) -> None:
    """It was killed before its first checkpoint."""
    for name in ("run", "other"):
        with sole_writer(name, WRITES):
            Origin("language", "en", "fr", recipe="language-fixed").save(name)
    command = ("train", *files, "--out", "run", *TINY)
    assert intently(*command, "--steps", "3", "--resume").status == 0
    assert Origin.load("run") is None
    assert intently("train", *files, "--out", "other", *TINY).status == 0
    assert Origin.load("other") is None
    assert intently(*command, "--resume").status == 0


def test_a_run_of_an_experiment_goes_on_too(intently: Command) -> None:
    """Its recipe is none that `intently recipes` lists."""
    assert intently("train", "--recipe", RECIPE, "--out", "run", *TINY).status == 0
    kept = Origin.load("run")
    assert kept is not None
    replace(kept, recipe="multi30k-general").save("run")
    outcome = intently("train", "--out", "run", "--resume", "--steps", "6")
    assert outcome.status == 0, outcome.err
    assert "step 6/6" in outcome.out and "expected of" not in outcome.out


def test_a_printed_recipe_is_a_file_of_options(intently: Command, files: tuple[str, str]) -> None:
    assert "Did you mean tatoeba-en-fr?" in refused(intently("recipes", "tatoeba"))
    printed = intently("recipes", RECIPE)
    assert printed == (0, recipe_text(RECIPE), "")
    Path("mine.toml").write_text(printed.out)
    outcome = intently("train", *files, "--config", "mine.toml", "--out", "run", *TINY)
    assert outcome.status == 0, outcome.err
    stored = TrainingOptions.from_json("run/options.json")
    assert stored.architecture == recipe(RECIPE).options.architecture
    assert stored.optimiser.label_smoothing == recipe(RECIPE).options.optimiser.label_smoothing


def test_a_damaged_checkpoint_is_passed_over_as_the_message_says(
    intently: Command, files: tuple[str, str]
) -> None:
    command = ("train", *files, "--out", "run", *TINY, "--save-every", "2")
    assert refused(intently(*command, "--resume-from", "step-000002")) == (
        "intently: step-000002: expected one of the checkpoints here (none); got no such.\n"
    )
    assert not Path("run").exists()
    assert intently(*command).status == 0
    weights = Path("run/checkpoints/step-000004.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    outcome = intently(*command, "--resume")
    found = re.search(r"continue with (--resume-from \S+),", outcome.err)
    assert outcome.status == 2 and found is not None, outcome.err
    outcome = intently(*command, *found[1].split())
    assert outcome.status == 0 and "step 4/4" in outcome.out
    none = intently(*command, "--resume-from", "step-000007").err
    assert "step-000007: expected one of the checkpoints here (step-" in none, none


def test_going_on_says_where_it_stands(intently: Command, files: tuple[str, str]) -> None:
    command = ("train", *files, "--out", "run", *TINY, "--resume")
    first = intently(*command)
    assert first.status == 0 and first.out.startswith("run has no checkpoint to resume from: a n")
    again = intently(*command)
    assert again.status == 0
    assert "going on after step 4/4: none is left (more: a higher steps)" in again.out
    Path("run/files.json").unlink()  # as in a run of an earlier version
    assert refused(intently("train", "--out", "run", "--resume")) == (
        "intently: SOURCE: expected the files that the run in run is trained on; got none. "
        "Give the command that began it, with --resume.\n"
    )


def test_a_run_on_files_resumes_by_its_folder_alone(
    intently: Command, files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = [tmp_path / "d.tsv"]
    dev[0].write_text("Hello.\tBonjour.\nI drink milk.\tJe bois du lait.\n", encoding="utf-8")
    first = intently("train", *files, "--dev", *dev, "--out", "run 1", *TINY, "--steps", "2")
    assert first.status == 0, first.err
    assert "2 sentence pairs from" in first.out
    assert "\nkept: the weights of step 2, the best on dev by bleu (" in first.out
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    again = intently("train", "--out", tmp_path / "run 1", "--resume", "--steps", "4")
    assert again.status == 0, again.err
    assert "going on after step 2/4" in again.out and "step 4/4" in again.out
    assert "2 sentence pairs from" in again.out
    assert Translator.load(tmp_path / "run 1").model.options.width == 16


def test_an_interrupted_run_says_how_it_resumes(
    intently: Command, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(progress.Lines, "__call__", interrupt_at_2)
        outcome = intently("train", *files, "--out", "my run", *TINY)
    assert outcome.status == 1
    assert "interrupted; my run/model has the weights of step 2, the last." in outcome.out
    line = outcome.out.splitlines()[-1]
    assert line == "  intently train --out 'my run' --resume"
    assert intently(*shlex.split(line)[1:]).status == 0


# --- dev sets, tables and small texts -------------------------------------------------------------


def test_a_dev_set_is_one_table_or_two_files(intently: Command, files: tuple[str, str]) -> None:
    lines = zip(*(Path(name).read_text("utf-8").splitlines() for name in files), strict=True)
    Path("d.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in list(lines)[:7]), encoding="utf-8")
    for n, dev in enumerate([["--dev", "d.tsv"], ["--dev=d.tsv"], ["--dev", *files]]):
        outcome = intently("train", *files, *dev, "--out", f"run{n}", *TINY)
        assert outcome.status == 0, outcome.err
        told = "60 sentence pairs from s.txt and t.txt" if n == 2 else "7 sentence pairs from d.tsv"
        assert told in outcome.out.splitlines()[1]
    table = intently("train", "--out", "t", *TINY, "--dev", "d.tsv", "--seed", "3", "d.tsv")
    assert table.status == 0, table.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["s.txt", "t.txt", "--dev", "--seconds", "5"], "'--dev' requires an argument; --seconds"),
        (["s.txt", "t.txt", "--config", "--resume"], "'--config' requires an argument; --resume"),
        (["--dev", "a.tsv", "b.tsv"], "--dev took a.tsv and b.tsv. Write SOURCE before --dev."),
        (["s.txt", "t.txt", "--dev", "no.tsv"], "no.tsv: no such file"),
        (
            ["s.txt", "t.txt", "--dev", "a", "b", "--dev", "c"],
            "--dev: expected one TSV, or source and target sentences; got 3 files.",
        ),
    ],
)
def test_a_dev_set_takes_no_option_and_no_more(
    intently: Command, files: tuple[str, str], arguments: list[str], said: str
) -> None:
    outcome = intently("train", *arguments, "--out", "run", *TINY)
    assert outcome.status == 2 and said in " ".join(outcome.err.replace("│", " ").split())
    assert not Path("run").exists()


def test_a_header_is_not_learned(intently: Command) -> None:
    rows = "".join(f"{n}\tHello {n}.\tBonjour {n}.\n" for n in range(1, 9))
    Path("h.tsv").write_text(f"id\tsrc\ttgt\n{rows}", encoding="utf-8")
    outcome = intently("train", "h.tsv", "--out", "run", *TINY)
    found = re.search(r"the header id, src, tgt; `(.*?)` keeps the pairs", outcome.err)
    assert outcome.status == 2 and found is not None, outcome.err
    pairs = subprocess.run(found[1], shell=True, capture_output=True, check=True).stdout
    assert pairs.decode().splitlines()[0] == "Hello 1.\tBonjour 1."
    Path("p.tsv").write_bytes(pairs)
    assert intently("train", "p.tsv", "--out", "run", *TINY).status == 0


@pytest.mark.parametrize("command", ["train", "train-lm", "evaluate", "play", "write", "effects"])
def test_help_has_one_word_for_each_kind_of_value(
    intently: Command, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    all_of_it = "--help-all" if command.startswith("train") else "--help"
    out = intently(command, all_of_it).out
    assert not re.search(r"<[a-z, ]+>|<bool>", out, re.I), out
    assert not re.search(r"│ [ *]*--[a-z-]+ +[A-Z ]* +(of|that|what|to) ", out)
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("train", TrainingOptions.flags()),
        ("train-lm", {name: FLAGS[name] for name in train_lm.NAMES}),
    ],
)
def test_help_fits_a_screen_and_all_of_it_describes_every_option(
    intently: Command, monkeypatch: pytest.MonkeyPatch, command: str, options: dict[str, Flag]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    short = intently(command, "--help").out
    assert len(short.splitlines()) <= 45
    assert "--help-all" in short
    assert f"other {sum(f' --{dashed(name)} ' not in short for name in options)} options" in short
    whole = intently(command, "--help-all").out
    told = " ".join(whole.replace("│", " ").split())
    for name, flag in options.items():
        assert f" --{dashed(name)} " in told
        assert " ".join(flag.help.split()[:3]) in told
        assert f"─ {flag.group.capitalize()} ─" in whole
    assert intently(command, "--help").out == short
    if command == "train":  # and what an option may be
        assert "Luong): none, additive (default), dot, general, concat" in told
        assert "after the warm-up: inverse_sqrt (default), cosine, constant" in told


def dashed(name: str) -> str:
    return name.replace("_", "-")


def test_what_is_unusual_is_said(intently: Command) -> None:
    files = write_pairs(parallel("train", 700))
    outcome = intently("train", *files, "--out", "long", *TINY, "--dev", *files)
    assert "the first 500 of 700 dev pairs are used\n" in outcome.out
    Path("two.tsv").write_text("Hello.\tBonjour.\nMilk.\tLait.\n", encoding="utf-8")
    outcome = intently("train", "two.tsv", "--out", "few", *TINY)
    assert "1 pair to learn from: too few for a translator; thousands are usual" in outcome.out
    # a run that time ends before its first record has no curves
    short = (*TINY, "--steps", "100000", "--seconds", "0.001")
    outcome = intently("train", "--recipe", RECIPE, "--out", "run", *short)
    assert outcome.status == 0 and "the translator is in run/model. Now try:" in outcome.out
    assert not Path("run/training.png").exists()


def test_the_folder_of_a_run_is_read_by_the_first_process_alone(
    intently: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert intently("train", "--recipe", RECIPE, "--out", "run", *TINY).status == 0
    (tmp_path / "second").mkdir()

    class Second(Processes):
        """A process on a machine of its own, where the folder of the run is not."""

        def from_first(self, make: Callable[[], Any]) -> Any:
            with contextlib.chdir(tmp_path):
                return make()

    monkeypatch.chdir("second")
    monkeypatch.setattr("intently.tasks.training.processes.current", lambda: Second(rank=1))
    outcome = intently("train", "--out", "run", "--resume")
    assert outcome == (0, "", "")
    assert not Path("run").exists()


BESIDE = "expected none beside a recipe, which names its corpus and its options; got"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("s.txt", "--recipe", RECIPE),
            f"SOURCE: {BESIDE} s.txt. Print a recipe by intently recipes NAME, to begin a --config",
        ),
        (("--config", "c.toml", "--recipe", RECIPE), f"--config: {BESIDE} c.toml"),
        (("--recipe", RECIPE, "--dev", "a", "b"), f"--dev: {BESIDE} a"),
        ((), "SOURCE: expected source sentences, or --recipe NAME; got neither. See them by"),
        (("s.txt", "--data-dir", "d"), "--data-dir: expected none without a recipe"),
        (("--recipe", "none"), "recipe: expected one of language-bahdanau"),
        (("--recipe", RECIPE, "--keep", "0"), "keep: expected an integer from 1 to 2**31 - 1"),
    ],
)
def test_what_contradicts_a_recipe_is_refused(
    intently: Command, arguments: tuple[str, ...], said: str
) -> None:
    assert said in refused(intently("train", *arguments, "--out", "run", *TINY))
    assert not Path("run").exists()


def test_only_the_first_of_many_processes_speaks(
    intently: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = contextlib.nullcontext(Processes(rank=1, count=1))
    monkeypatch.setattr("intently.cli.train.sole_writer", lambda out, writes: second)
    outcome = intently("train", "--recipe", RECIPE, "--out", "run", *TINY)
    assert outcome.status == 0 and outcome.out == ""
    assert not Path("run/scores.json").exists()
