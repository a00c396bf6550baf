"""The recipes in the package: they can be read, they are comparable, and wrong names are told."""

from __future__ import annotations

import json
import re
import tomllib
from functools import partial
from pathlib import Path

import pytest

from intently.cli.train import parameters
from intently.errors import ArgumentError, DataError
from intently.tasks.corpora.named import CORPORA
from intently.tasks.recipes import FILE, Origin, recipe, recipe_file, recipe_text, recipes

from .messages import raises, refused

ROOT = Path(__file__).resolve().parents[1]
NAMES = [
    *("language-bahdanau", "language-fixed", "language-luong", "language-transformer"),
    *("multi30k-de-en-bahdanau", "multi30k-de-en-fixed", "multi30k-de-en-transformer"),
    *("multi30k-en-de", "tatoeba-en-fr"),
]


def test_a_recipe_holds_what_its_file_says() -> None:
    assert [each.name for each in recipes()] == NAMES
    for one in recipes():
        sections = tomllib.loads(recipe_file(one.name))
        head, stored = sections.pop("recipe"), one.options.to_dict()
        assert {key: getattr(one, key) for key in head} == head
        assert tomllib.loads(recipe_text(one.name)) == sections
        assert all(stored[s] == stored[s] | keys for s, keys in sections.items())
        assert one.corpus in CORPORA and one.about and one.name.startswith(one.corpus)


@pytest.mark.parametrize("beginning", ["language-", "multi30k-de-en-"])
def test_recipes_of_a_corpus_are_comparable(beginning: str) -> None:
    found = [each for each in recipes() if each.name.startswith(beginning)]
    assert len(found) >= 3
    corpora = {(r.corpus, r.source, r.target, r.options.text) for r in found}
    tokens = {r.options.schedule.steps * r.options.optimiser.batch_tokens for r in found}
    assert len(corpora) == len(tokens) == 1
    sizes = [parameters(each.options) for each in found]
    assert max(sizes) <= 1.2 * min(sizes)

    assert parameters(recipe("multi30k-en-de").options) <= 3_000_000
    fixed, bahdanau = (recipe(f"{beginning}{kind}").options for kind in ("fixed", "bahdanau"))
    assert fixed.with_flags(attention="additive") == bahdanau  # they differ in attention alone


EXPECTED = f"recipe: expected one of {', '.join(NAMES)}; got "
test_an_unknown_name_is_told_with_those_there_are = raises(
    [
        (
            lambda: recipe("language-bahdnau"),
            ArgumentError,
            f"{EXPECTED}'language-bahdnau'. Did you mean language-bahdanau?",
        ),
        (lambda: recipe_text("xyz"), ArgumentError, f"{EXPECTED}'xyz'."),
        (lambda: recipe("../recipes/x"), ArgumentError, f"{EXPECTED}'../recipes/x'."),
    ],
    whole=True,
)


def test_the_files_are_in_the_wheel() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "tasks/recipes/*.toml" in data["tool"]["setuptools"]["package-data"]["intently"]


# --- where a run's sentences come from ------------------------------------------------------------


def test_an_origin_is_kept_in_the_folder(tmp_path: Path, monkeypatch) -> None:
    assert Origin.load(tmp_path) is Origin.load(tmp_path / "none") is None
    origin = Origin("multi30k", "de", "en", "/data", "multi30k-de-en-fixed")
    origin.save(tmp_path / "run")
    assert Origin.load(tmp_path / "run") == origin
    assert str(origin) == "multi30k:de-en" and Origin.of("multi30k:de-en") == Origin(
        "multi30k", "de", "en"
    )
    monkeypatch.chdir(tmp_path)
    local = Origin.of("tatoeba:en-fr", Path("data"))
    assert local.data_dir == str(tmp_path / "data") and local.read_from(None) is local


def test_a_damaged_origin_is_told(tmp_path: Path) -> None:
    broken = "{", "[]", '{"corpus": "a"}', '{"colour": 1}', "[" * 100_000
    mistyped = (
        *({"corpus": 5}, {"corpus": ["language"]}, {"target": None}, {"data_dir": 5}),
        *({"data_dir": "a\0b"}, {"recipe": ["language-fixed"]}),
    )
    right = {"corpus": "language", "source": "en", "target": "fr"}
    for text in (*broken, *(json.dumps(right | wrong) for wrong in mistyped)):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(DataError, match=re.escape(f"{tmp_path / FILE}: expected the origin")):
            Origin.load(tmp_path)


def test_a_direction_is_written_out() -> None:
    for direction in ("multi30k", "multi30k:en", "en-de", "multi30k:en-de-fr", ""):
        said = f"--corpus: expected NAME:SOURCE-TARGET, such as multi30k:de-en; got {direction!r}."
        refused(partial(Origin.of, direction), ArgumentError, said, whole=True)
