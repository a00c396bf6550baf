"""Mistakes as others made them, each named, and their mended twins, each right."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch

from intently.checker import check

FIELD = Path(__file__).parents[2] / "benchmarks/checking/field"


@pytest.mark.parametrize("name", (FIELD / "held.txt").read_text().split())
def test_a_mistake_is_named_and_its_twin_is_right(name: str) -> None:
    case = import_module(f"benchmarks.checking.field.dev.{name}")
    torch.manual_seed(0)
    wrong, right = (check(subject(), **case.asks()) for subject in (case.wrong, case.right))
    assert (wrong.ok, right.ok) == (False, True), f"{wrong}\n{right}"
    told = {x.name for x in (*wrong.mistakes, *wrong.hazards)}
    assert not case.expect or told & {*case.expect}, str(wrong)
