"""What experiments share: runs found or trained, and intervals against what is known of them."""

from __future__ import annotations

import io
import json
import math
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from intently.errors import ArgumentError
from intently.experiments import comparison
from intently.recipes import recipe
from intently.recipes.origin import Origin
from intently.training import History, Stepped
from intently.training.history import Evaluation, Record
from intently.training.progress import Listener, Resumed

from ..samples import small_corpus
from .tiny import TINY


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def entry(name: str = "language-bahdanau", **flags: object) -> comparison.System:
    return comparison.System(name.partition("-")[2], recipe(name)).with_flags(**(TINY | flags))


pytestmark = pytest.mark.filterwarnings(
    "ignore::intently.translation.translator.TranslationWarning"
)


def test_runs_are_trained_once(tmp_path: Path) -> None:
    both = [entry(), entry("language-transformer", inner=16, heads=2)]
    corpus = small_corpus()
    first = comparison.train_all(both, corpus, tmp_path, quiet())
    assert first is not None
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/checkpoints/*")}
    assert {path.parts[-3] for path in written} == {"language-bahdanau", "language-transformer"}
    again = comparison.train_all(both, corpus, tmp_path, quiet())
    assert again is not None
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/checkpoints/*")} == written
    assert [run.history.records for run in again] == [run.history.records for run in first]
    about = comparison.described(both[0], first[0])
    assert (about["recipe"], about["steps"]) == ("language-bahdanau", 4)
    assert about["training_seconds"] > 0
    assert comparison.described(both[0], again[0]) == about
    assert about["options"]["run"]["seed"] == both[0].recipe.options.run.seed
    numbers = first[0].translator.model.parameters()
    assert about["parameters"] == sum(parameter.numel() for parameter in numbers)
    for one in both:
        name = one.recipe.name
        assert Origin.load(tmp_path / name) == Origin("language", "en", "fr", None, name)


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, both = small_corpus(), [entry(), entry("language-fixed")]
    with monkeypatch.context() as patch:
        patch.setattr("intently.experiments.comparison.display", Stopping)
        assert comparison.train_all(both, corpus, tmp_path, quiet()) is None
    assert not (tmp_path / "language-fixed").exists()
    assert Origin.load(tmp_path / "language-bahdanau") is not None
    runs = comparison.train_all(both, corpus, tmp_path, quiet())
    assert runs is not None
    assert [run.history.stopped for run in runs] == ["finished", "finished"]


class Stopping:
    """Progress that asks the run to stop after its first step."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Stopping:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __call__(self, event: object) -> None:
        if isinstance(event, Stepped):
            signal.raise_signal(signal.SIGINT)


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    corpus = small_corpus()
    comparison.train_all([entry()], corpus, tmp_path, quiet())
    with pytest.raises(ArgumentError, match="seed: expected 1, with which the run began; got 2"):
        comparison.train_all([entry(seed=2)], replace(corpus, data_dir=tmp_path), tmp_path, quiet())
    kept = Origin.load(tmp_path / "language-bahdanau")
    assert kept is not None and kept.data_dir is None


@pytest.mark.parametrize("steps", [2, 8])
def test_a_run_of_other_steps_is_refused_before_anything_is_trained(
    tmp_path: Path, steps: int
) -> None:
    folder = tmp_path / "language-bahdanau"
    folder.mkdir()
    (folder / "options.json").write_text(json.dumps(entry().recipe.options.to_dict()))
    both = [entry("language-fixed", steps=steps), entry(steps=steps)]
    with pytest.raises(ArgumentError) as caught:
        comparison.train_all(both, small_corpus(), tmp_path, quiet())
    assert str(caught.value) == (
        f"steps: expected 4, with which the run in {folder} was made; got {steps}. "
        "Choose another folder, or steps=4."
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["language-bahdanau", "options.json"]


def test_entries_that_would_share_a_folder_or_a_line_are_refused(tmp_path: Path) -> None:
    one = entry()
    for other, what in (
        (replace(one, label="other"), "recipe's name"),
        (replace(one, recipe=replace(one.recipe, name="another")), "label"),
    ):
        with pytest.raises(ArgumentError, match=rf"systems: .* a {what} for each .* got more"):
            comparison.train_all([one, other], small_corpus(), tmp_path, quiet())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["language", "of my own"])
def test_a_run_keeps_the_corpus_of_its_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run = SimpleNamespace(history=History(stopped="finished"))

    def fit(*_: object, progress: Listener, **__: object) -> object:
        progress(Resumed(0, 1))
        return run

    monkeypatch.setattr("intently.experiments.comparison.fit", fit)
    given = replace(small_corpus(), name=name, data_dir=tmp_path / "copy")
    comparison.train_all([entry()], given, tmp_path, quiet())
    kept = Origin("language", "en", "fr", str(tmp_path / "copy"), "language-bahdanau")
    expected = kept if name == "language" else None
    assert Origin.load(tmp_path / "language-bahdanau") == expected


def test_a_result_tells_the_end_of_a_run_and_not_of_its_curve(tmp_path: Path) -> None:
    model = SimpleNamespace(model=SimpleNamespace(parameters=list))
    history = History(
        [Record(2, 6.5, 1e-3, 900, 3.0)],
        [Evaluation(3, {"bleu": 1.0}, 4.26)],
        checkpoint=tmp_path / "step-000003-2",
    )
    about = comparison.described(
        entry(), cast(Any, SimpleNamespace(history=history, translator=model))
    )
    assert (about["steps"], about["training_seconds"]) == (3, 4.3)
    nothing = comparison.described(
        entry(), cast(Any, SimpleNamespace(history=History(), translator=model))
    )
    assert (nothing["steps"], nothing["training_seconds"]) == (0, 0.0)


def test_a_result_says_under_what_it_was_made(tmp_path: Path) -> None:
    comparison.write_result(tmp_path / "none.json", {"experiment": "none", "name": "élan"})
    found = json.loads((tmp_path / "none.json").read_text(encoding="utf-8"))
    assert found["name"] == "élan"
    assert found["versions"]["torch"] and found["threads"] >= 1


# --- intervals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("right", "total"), [(0, 20), (1, 20), (10, 20), (20, 20), (299, 300)])
def test_the_ends_of_a_share_are_where_it_is_unlikely(right: int, total: int) -> None:
    """Wilson's ends are the shares from which what was seen is 1.96 standard deviations away."""
    share, low, high = comparison.share_interval(right, total)
    assert share == right / total
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            deviation = math.sqrt(end * (1 - end) / total)
            assert abs(share - end) / deviation == pytest.approx(1.959964, rel=1e-4)
    assert high > low


def test_a_bootstrap_covers_what_it_estimates() -> None:
    """Of 200 samples from a known ratio, about 95 % of the intervals hold it."""
    random = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        below = random.integers(1, 10, 100)
        above = random.binomial(below, 0.3)
        value, low, high = comparison.ratio_interval(above.tolist(), below.tolist())
        assert low <= value <= high
        held += low <= 0.3 <= high
    assert 176 <= held <= 200


def test_a_bootstrap_is_the_same_each_time_and_of_the_sums() -> None:
    one = comparison.ratio_interval([1, 0, 3], [1, 4, 3])
    assert one == comparison.ratio_interval([1, 0, 3], [1, 4, 3])
    assert one[0] == 0.5
    assert comparison.ratio_interval([0, 0], [0, 0]) == (0.0, 0.0, 0.0)
