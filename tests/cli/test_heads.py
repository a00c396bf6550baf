"""`intently heads`: names of heads in the terminal and in files."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ..command_line import Command


@pytest.fixture
def named(intently: Any) -> Command:
    return partial(intently, "heads")


def test_the_embedded_translator(named: Command, tmp_path: Path) -> None:
    out = named("--top", "5", "--csv", tmp_path / "h.csv", "--json", tmp_path / "h.json")
    assert out.status == 0, out.err
    rows = json.loads((tmp_path / "h.json").read_text())
    with (tmp_path / "h.csv").open() as file:
        assert len(rows) == len(list(csv.DictReader(file)))
    table = out.out.split("none of these\n\n")[1].splitlines()
    assert len(table) <= 6 and all(len(line) <= 80 for line in table)
    assert {row["kind"] for row in rows if "cross" in row["layer"]} == {"alignment"}
    previous = named("--kind", "previous").out.split("none of these\n\n")[1]
    assert all(" previous " in line for line in previous.splitlines()[1:])


def test_what_is_no_kind_or_has_few_words(named: Command, folders: Path) -> None:
    assert "--kind: expected one of previous, self" in named("--kind", "nothing").err
    assert "tokenizer: expected at least 48 tokens" in named(folders / "llama").err
