"""What the page computes in a browser is what Python computes from the same stored numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intently.show.page import save_page

from ...show.page_reader import Page
from .driving import numbers
from .pages import forms

NEAR = 1e-5


@pytest.fixture(scope="module", params=["half", "full"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Path:
    path = tmp_path_factory.mktemp("numbers") / "forms.html"
    return save_page(forms(), path, request.param)


def test_rows_columns_and_tiles(stored: Path, opened: Callable[..., Any]) -> None:
    read = Page.read(stored)
    wanted, right = [], []
    for entry, name in enumerate(forms()):
        every = read.weights(name)
        for h in (0, 3):
            w = every[h]
            questions = {
                "row(7)": w[7],
                "column(11)": w[:, 11],
                "tile(3, 30, 5, 36)": w[3:30, 5:36],
                "pooled(2, 30, 4, 36, 7, 8)": w[2:30, 4:36].reshape(7, 4, 8, 4).mean((1, 3)),
                "entropy()": _entropy(w),
                "received()": w.sum(0),
            }
            wanted += [(entry, str(h), question) for question in questions]
            right += questions.values()
        wanted.append((entry, "mean", "tile(0, 33, 0, 37)"))
        right.append(every.mean(0)[:33, :37])
    assert len(right) == 13 * len(forms())
    for question, found, expected in zip(wanted, numbers(opened(stored), wanted), right):
        np.testing.assert_allclose(found, expected.ravel(), 0, NEAR, err_msg=str(question))


def test_the_page_says_how_near_it_is(stored: Path, opened: Callable[..., Any]) -> None:
    said = opened(stored).text_content("[data-bound]")
    meta = Page.read(stored).meta
    bound = meta["bound"]["weights"]
    digits, power = f"{bound:.1e}".split("e-")
    assert meta["precision"] in said
    # float32 products round otherwise on every kind of processor: up to 1.3e-6 was seen
    assert 0 < bound < (2e-3 if meta["precision"] == "half" else NEAR)
    assert digits in said
    assert str(int(power)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")) in said


def _entropy(w: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.nan_to_num(w * np.log(w)).sum(-1)
