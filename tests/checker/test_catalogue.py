"""The catalogue: whole, linked, and the same as its page in docs."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from intently.checker import checking
from intently.checker.catalogue import CATALOGUE, CHAPTERS

ROOT = Path(__file__).resolve().parents[2]
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
    assert drawn <= {*CATALOGUE}
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
        assert all(url.startswith("https://") for url in entry.cases), name


def test_no_name_stands_in_two_chapters() -> None:
    assert sum(map(len, CHAPTERS.values())) == len(CATALOGUE)


def test_every_finding_has_an_entry() -> None:
    folder = Path(str(checking.__file__)).parent
    named = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            at = {"Finding": 0, "_broken": 2}.get(node.func.id)
            if at is None or len(node.args) <= at:
                continue
            name = node.args[at]
            if isinstance(name, ast.Constant):
                named.add(name.value)
    assert len(named) > 15 and named <= {*CATALOGUE}, sorted(named - {*CATALOGUE})
