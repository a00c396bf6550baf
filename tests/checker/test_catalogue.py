"""The catalogue: whole, linked, and the same as its page in docs."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from intently.checker import checking
from intently.checker.catalogue import CATALOGUE, CHAPTERS, Kind

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(str(checking.__file__)).parent
NAME = re.compile(r"[a-z]+(-[a-z]+)*")


@pytest.fixture(scope="module")
def mistakes() -> Any:
    """The program that writes the page."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import make_mistakes
    finally:
        sys.path.pop(0)
    return make_mistakes


def test_the_page_is_that_of_the_catalogue(mistakes: Any) -> None:
    page = ROOT / "docs" / "mistakes.md"
    again = "python docs/make_mistakes.py writes it anew"
    assert page.read_text(encoding="utf-8") == mistakes.written(), again


def test_each_picture_stands_on_the_page_and_no_other_is_there(mistakes: Any) -> None:
    drawn = {*mistakes.DRAWN}
    assert drawn | {*mistakes.UNDRAWN} <= {*CATALOGUE} and drawn.isdisjoint(mistakes.UNDRAWN)
    assert {path.stem for path in mistakes.PICTURES.glob("*.png")} == drawn
    shown = set(re.findall(r'"pictures/mistakes/([\w-]+)\.png"', mistakes.written()))
    assert shown == drawn


@pytest.mark.parametrize(
    "name",
    ["mask-top-left", "lengths-off-by-one", "merged-by-reshape", "cache-prepended", "rotary-base"],
)
def test_a_picture_is_of_a_program_that_makes_the_mistake(
    mistakes: Any, name: str, tmp_path: Path
) -> None:
    shown = mistakes.example(name)
    i, j = (shown.queries.index(shown.cell[0]), shown.keys.index(shown.cell[1]))
    assert shown.expected[i][j] != pytest.approx(shown.found[i][j], abs=1e-3)
    mistakes.draw(shown, tmp_path / "it.png")
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["values-are-keys", "values-are-queries", "cross-exchanged"])
def test_a_program_without_a_picture_makes_the_mistake(mistakes: Any, name: str) -> None:
    assert name in mistakes.UNDRAWN and mistakes.example(name) is None


def test_links_lead_to_headings(mistakes: Any) -> None:
    text = mistakes.written()
    headings = [mistakes._anchor(x) for x in re.findall(r"^### (.*)$", text, re.MULTILINE)]
    assert len({*headings}) == len(headings) == len(CATALOGUE)
    chapters = [mistakes._anchor(x) for x in re.findall(r"^## (.*)$", text, re.MULTILINE)]
    assert re.findall(r"\]\(#([^)]*)\)", text) == chapters


def test_entries_are_whole() -> None:
    for name, entry in CATALOGUE.items():
        assert NAME.fullmatch(name)
        assert entry.title[0].isupper() and not entry.title.endswith("."), name
        for text in (entry.told, entry.cure, *filter(None, [entry.story])):
            assert text.endswith((".", "`.")) and "  " not in text, name
        cases = r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+"
        assert all(re.fullmatch(cases, url) for url in entry.cases), name
        assert entry.kind in get_args(Kind) and entry.told and entry.cure and entry.formula, name


def test_no_name_stands_in_two_chapters() -> None:
    assert sum(map(len, CHAPTERS.values())) == len(CATALOGUE)


def test_every_finding_has_an_entry() -> None:
    named = set()
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            at = {"Finding": 0, "broken": 2}.get(node.func.id)
            if at is None or len(node.args) <= at:
                continue
            name = node.args[at]
            if isinstance(name, ast.Constant):
                named.add(name.value)
    assert len(named) > 60 and named <= {*CATALOGUE}, sorted(named - {*CATALOGUE})


def test_every_entry_is_found_by_some_code() -> None:
    code = [p.read_text(encoding="utf-8") for p in FOLDER.rglob("*.py") if p.stem != "catalogue"]
    said = {*re.findall(r'"([a-z-]+)"', "\n".join(code))}
    made = [r"softmax-over-\w+", r"mask-(transposed|top-left)", r"\w+-in-one-path"]  # by f-strings
    idle = [n for n in CATALOGUE if n not in said and not any(re.fullmatch(x, n) for x in made)]
    assert not idle
