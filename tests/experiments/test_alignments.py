"""Every kind of attention as word alignment: the same number as elsewhere, and the whole, small."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from intently.cli.app import app
from intently.corpora import Corpus, sample
from intently.errors import ArgumentError
from intently.experiments import alignments
from intently.translation.evaluation import alignment_errors
from intently.translation.translator import AlignmentHead, Translator

from ..samples import small_corpus
from .tiny import tiny

pytestmark = pytest.mark.filterwarnings(
    "ignore::intently.translation.translator.TranslationWarning"
)


def test_the_error_of_one_head_is_that_of_the_evaluation() -> None:
    translator, pairs = Translator.load(), sample("test", 40)
    everywhere = alignment_errors(translator, pairs)
    for number in (0, 3):
        head = AlignmentHead("decoder.1.cross_attention", number)
        error, low, high = alignments.error_rate(translator, head, pairs)
        assert error == pytest.approx(everywhere[head])
        assert low < error < high


@pytest.mark.parametrize(
    "head",
    [
        ("decoder.9.cross_attention", 0),
        ("encoder.0.self_attention", 0),
        ("decoder.0.cross_attention", 4),
        ("x", -1),
    ],
)
def test_a_head_that_is_not_there_is_refused_by_those_there_are(head: tuple[str, int]) -> None:
    translator = Translator.load()
    with pytest.raises(ArgumentError) as caught:
        alignments.error_rate(translator, AlignmentHead(*head), sample("test", 1))
    assert str(caught.value) == (
        "head: expected one of decoder.0.cross_attention (0 to 3) or decoder.1.cross_attention "
        "(0 to 3); "
        f"got {head[1]} of {head[0]}."
    )


def test_the_kinds_differ_in_their_attention() -> None:
    entries = alignments.systems()
    names = [entry.recipe.name for entry in entries]
    assert len(set(names)) == len(entries) == 5
    kinds = [entry.recipe.options.architecture.attention for entry in entries[:4]]
    assert kinds == ["additive", "dot", "general", "concat"]
    assert entries[4].recipe.options.architecture.model == "transformer"
    dot, general, concat = (entry.recipe.options for entry in entries[1:4])
    assert dot.with_flags(attention="general") == general == concat.with_flags(attention="general")


def test_the_experiment_measures_on_other_pairs_than_it_chooses_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: dict[str, list[str]] = {}
    choose, measure = alignments.best_alignment_head, alignments.error_rate

    def chosen(translator: Translator, pairs: Any) -> Any:
        used["chosen"] = [pair.source for pair in pairs]
        return choose(translator, pairs)

    def measured(translator: Translator, head: AlignmentHead, pairs: Any) -> Any:
        used["measured"] = [pair.source for pair in pairs]
        return measure(translator, head, pairs)

    monkeypatch.setattr(alignments, "best_alignment_head", chosen)
    monkeypatch.setattr(alignments, "error_rate", measured)
    systems, console = alignments.systems(), Console(file=io.StringIO(), width=200)
    entries = tiny([systems[1], systems[-1]])
    result = alignments.compare(entries, small_corpus(), tmp_path, console, pairs=6)
    assert result is not None
    assert not set(used["chosen"]) & set(used["measured"])
    assert len(used["measured"]) == 6
    stored = json.loads((tmp_path / "alignments.json").read_text(encoding="utf-8"))
    assert stored.items() >= json.loads(json.dumps(result)).items()
    for model in result["models"]:
        error, low, high = model["alignment_error"]
        assert 0 <= low <= error <= high <= 1
        assert Translator.load(tmp_path / model["recipe"]).alignment_head == tuple(model["head"])
        assert (tmp_path / f"{model['recipe']}.png").read_bytes().startswith(b"\x89PNG")
    again = tmp_path / "again.png"
    alignments.draw(stored, again)
    assert again.read_bytes() == (tmp_path / "alignments.png").read_bytes()
    alignments.table(stored, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(model["label"] in printed for model in result["models"])
    assert "with its 95 % interval in brackets" in " ".join(printed.split())
    narrow = Console(file=io.StringIO(), width=80)
    alignments.table(stored, narrow)
    assert "…" not in narrow.file.getvalue()  # type: ignore[attr-defined]


def test_two_of_one_recipe_are_refused(tmp_path: Path) -> None:
    one = alignments.systems()[0]
    two = [one, replace(one, label="other")]
    with pytest.raises(ArgumentError, match="systems: expected a recipe's name for each"):
        alignments.compare(two, small_corpus(), tmp_path, Console(file=io.StringIO()))


def test_the_command_passes_on_what_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def compare(entries: Any, text: Corpus, out: Path, console: Console) -> None:
        asked.update(entries=entries, text=text, out=out)

    monkeypatch.setattr("intently.cli.experiments.load_corpus", lambda *_: small_corpus())
    monkeypatch.setattr(alignments, "compare", compare)
    done = CliRunner().invoke(app, ["alignments", "--out", str(tmp_path), "--steps", "9"])
    assert done.exit_code == 1
    assert "The same command resumes where it stopped" in done.output
    assert {e.recipe.options.schedule.steps for e in asked["entries"]} == {9}
    assert asked["out"] == tmp_path
