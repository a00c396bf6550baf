"""The experiment on lengths: buckets, where their sentences are from, and the whole, very small."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console
from typer.testing import CliRunner

from intently.cli.app import app
from intently.corpora import Corpus
from intently.decoding import SearchOptions
from intently.errors import ArgumentError, DataError
from intently.experiments import lengths
from intently.experiments.comparison import System
from intently.recipes import recipe
from intently.show.files import destination

from ..samples import small_corpus
from .tiny import tiny

pytestmark = pytest.mark.filterwarnings(
    "ignore::intently.translation.translator.TranslationWarning"
)


def test_every_length_has_one_bucket() -> None:
    edges = (4, 6, 10)
    order = lengths.names(edges)
    assert order == ["1–4", "5–6", "7–10", ">10"]
    found = [lengths.bucket_of(words, edges) for words in range(1, 13)]
    assert found == ["1–4"] * 4 + ["5–6"] * 2 + ["7–10"] * 4 + [">10"] * 2


def test_grouping_loses_no_sentence_and_drops_empty_buckets() -> None:
    pairs = [(" ".join("w" * n), str(n)) for n in (1, 2, 5, 5, 40)]
    found = lengths.grouped(pairs, (2, 4, 6))
    assert {name: [t for _, t in some] for name, some in found.items()} == {
        "1–2": ["1", "2"],
        "5–6": ["5", "5"],
        ">6": ["40"],
    }


def test_buckets_of_the_language_are_full_and_longest_ones_from_deeper() -> None:
    found = lengths.buckets(small_corpus(), lengths.EDGES["language"])
    assert [b.name for b in found] == ["1–4", "5–6", "7–8", "9–10", "11–12", "13–14", "15–16"]
    assert all(len(b) >= 100 for b in found)
    assert [b.split for b in found] == ["test"] * 5 + ["deeper"] * 2
    for bucket in found:
        sizes = {lengths.length(source) for source in bucket.sources}
        names = {lengths.bucket_of(words, lengths.EDGES["language"]) for words in sizes}
        assert names == {bucket.name}
        assert len(set(bucket.sources)) == len(bucket)
    assert found[-1].trained == 0
    assert sum(bucket.trained for bucket in found) == 60


def test_a_public_corpus_is_taken_whole_and_small_buckets_are_left_out() -> None:
    public = small_corpus("multi30k", tests=60)
    found = lengths.buckets(public, (5, 7, 9))
    test = public.tests["test"]
    groups = lengths.grouped(zip(test.sources, test.targets), (5, 7, 9))
    large = {name: len(some) for name, some in groups.items() if len(some) >= 10}
    assert {b.name: len(b) for b in found} == large
    assert {b.split for b in found} == {"test"}


@pytest.mark.parametrize(("hit", "exact"), [(10, 0.5), (20, 1.0), (0, 0.0)])
def test_scores_are_those_of_what_was_written(hit: int, exact: float) -> None:
    targets = [f"le chat numéro {n} dort sur le tapis" for n in range(20)]
    made = targets[:hit] + ["rien du tout ici non plus"] * (20 - hit)

    class Told:
        def stream(self, sources: Any, options: Any) -> Any:
            assert options.beam == 3
            return [SimpleNamespace(text=text) for text in made]

    bucket = lengths.Bucket("1–5", ["x"] * 20, targets, "test")
    told, options = cast(Any, Told()), SearchOptions(beam=3)
    shares, bleu, signature = lengths.measure(told, bucket, options, True)
    assert shares[0] == exact
    assert shares[1] <= exact <= shares[2]
    assert 0 <= bleu[1] <= bleu[0] <= bleu[2] <= 100
    assert bleu[0] == pytest.approx(100 * exact, abs=12)
    assert "case:lc" in signature and "tok:13a" in signature
    assert "case:mixed" in lengths.measure(told, bucket, options, False)[2]


def test_the_experiment_writes_numbers_and_a_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lengths, "DRAWN", {"test": 60, "deeper": 30})
    monkeypatch.setattr(lengths, "SENTENCES", 10)
    monkeypatch.setattr(lengths, "RESAMPLED", 20)
    console = Console(file=io.StringIO(), width=200)
    entries = tiny(lengths.systems("language"))
    result = lengths.compare(entries, small_corpus(), tmp_path, console, edges=(6, 10, 16))
    assert result is not None
    stored = json.loads((tmp_path / "lengths.json").read_text(encoding="utf-8"))
    assert stored.items() >= json.loads(json.dumps(result)).items()
    kinds = ("fixed", "bahdanau", "transformer")
    assert [model["recipe"] for model in result["models"]] == [f"language-{x}" for x in kinds]
    assert [b["words"] for b in result["buckets"]] == ["1–6", "7–10", "11–16"]
    for model in result["models"]:
        assert len(model["exact_match"]) == len(model["bleu"]) == 3
        assert model["steps"] == 4
    assert (tmp_path / "lengths.png").read_bytes().startswith(b"\x89PNG")
    again = tmp_path / "again.png"
    lengths.draw(stored, again)  # what is stored is all that the figure needs
    assert again.read_bytes() == (tmp_path / "lengths.png").read_bytes()
    lengths.table(stored, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for word in ("fixed vector", "additive attention", "Transformer", "11–16", "case:mixed"):
        assert word in printed
    assert "then BLEU with its 95 % interval in brackets" in " ".join(printed.split())


@pytest.mark.parametrize(("corpus", "panels"), [("language", 2), ("multi30k", 1)])
def test_exact_match_is_drawn_where_a_sentence_has_one_right_translation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: str, panels: int
) -> None:
    drawn = []
    monkeypatch.setattr(lengths, "by_length", lambda scores, *_, **__: drawn.append(list(scores)))
    scores = {"label": "fixed", "exact_match": [(0.5, 0.4, 0.6)], "bleu": [(30, 25, 35)]}
    bucket = {"words": "1–5", "sentences": 9, "in_training": 1}
    about = {"corpus": corpus, "direction": "de-en", "beam": 1}
    lengths.draw({**about, "buckets": [bucket], "models": [scores]}, tmp_path / "x.png")
    assert drawn == [["exact match", "BLEU"][-panels:]]


def test_only_buckets_at_the_end_are_called_longer_than_in_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = []
    monkeypatch.setattr(lengths, "by_length", lambda *_, unseen, **__: told.append(unseen))
    for trained in ([5, 0, 0], [0, 5, 0], [5, 5, 5], [0, 0, 0]):
        buckets = [{"words": n, "sentences": 1, "in_training": t} for n, t in enumerate(trained)]
        result = {"corpus": "language", "direction": "en-fr", "beam": 1, "models": []}
        lengths.draw({**result, "buckets": buckets}, tmp_path / "x.png")
    assert told == [2, 1, 0, 3]


def test_other_corpora_are_refused() -> None:
    with pytest.raises(ArgumentError, match='corpus: expected "language" or "multi30k"'):
        lengths.systems("tatoeba")


@pytest.mark.parametrize("edges", [(), (5, 5), (10, 5), (0, 5)])
def test_edges_that_do_not_rise_are_refused(edges: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match=r"edges: expected rising numbers of words from 1 on"):
        lengths.buckets(small_corpus("other"), edges)


FIXED, *OTHERS = lengths.systems("language")


@pytest.mark.parametrize(
    ("entries", "tests", "how", "said"),
    [
        ([FIXED], 5, {"edges": (8,)}, r"corpus\.tests: expected a bucket of at least 10.*; got 5"),
        ([FIXED, *OTHERS, FIXED], 30, {}, "compared: expected one to 3 models; got 4"),
        ([FIXED], 30, {"beam": 0}, "beam: expected .*; got 0"),
        ([FIXED] * 2, 30, {}, "systems: expected a label .* more than one 'fixed"),
    ],
    ids=["few sentences", "four models", "no beam", "twice"],
)
def test_what_cannot_be_compared_is_refused_before_it_is_trained(
    tmp_path: Path, entries: list[System], tests: int, how: dict[str, Any], said: str
) -> None:
    how, corpus = {"edges": (50,), **how}, small_corpus("other", tests)
    with pytest.raises(DataError if tests == 5 else ArgumentError, match=said):
        lengths.compare(tiny(entries), corpus, tmp_path, Console(file=io.StringIO()), **how)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["language", "multi30k"])
def test_what_is_compared_differs_in_the_model_alone(name: str) -> None:
    compared = [entry.recipe for entry in lengths.systems(name)]
    assert compared[0].corpus == name
    common = {(r.corpus, r.source, r.target, r.options.text) for r in compared}
    budgets = {(r.options.schedule.steps, r.options.optimiser.batch_tokens) for r in compared}
    assert len(common) == len(budgets) == 1
    fixed, additive, transformer = (r.options.architecture for r in compared)
    assert (fixed.model, fixed.attention) == ("recurrent", "none")
    assert (additive.model, additive.attention) == ("recurrent", "additive")
    assert transformer.model == "transformer"


def test_the_command_passes_on_what_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def compare(entries: list[System], text: Corpus, out: Path, *_: Any, **more: Any) -> None:
        asked.update(entries=entries, text=text, out=out, **more)

    public = small_corpus("multi30k")
    monkeypatch.setattr("intently.cli.experiments.load_corpus", lambda *_: public)
    monkeypatch.setattr(lengths, "compare", compare)
    flags = ["--corpus", "multi30k", "--beam", "3", "--seed", "7", "--steps", "9"]
    done = CliRunner().invoke(app, ["lengths", "--out", str(tmp_path), *flags])
    assert done.exit_code == 1  # None: it was interrupted
    assert "The same command resumes where it stopped" in done.output
    told = asked["beam"], asked["edges"], asked["out"]
    assert told == (3, lengths.EDGES["multi30k"], tmp_path)
    options = [entry.recipe.options for entry in asked["entries"]]
    assert {(one.run.seed, one.schedule.steps) for one in options} == {(7, 9)}
    assert asked["entries"][0].recipe.name == recipe("multi30k-de-en-fixed").name
    assert destination(asked["out"] / "lengths.png") is not None


def test_the_command_has_no_folder_for_the_built_in_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lengths, "compare", lambda *_, **__: None)  # else hours, where it fails
    flags = ["--out", str(tmp_path / "out"), "--data-dir", str(tmp_path)]
    done = CliRunner().invoke(app, ["lengths", *flags])
    assert "data_dir: expected none" in str(done.exception)
    assert not (tmp_path / "out").exists()
