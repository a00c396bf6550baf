"""What the page computes in a browser is what Python computes from the same stored numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intently.show.page import items_of, save_page

from ...show.page_reader import Page
from .driving import numbers
from .pages import forms
from .serving import running

NEAR = 1e-5


@pytest.fixture(scope="module", params=["half", "full"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Path:
    path = tmp_path_factory.mktemp("numbers") / "forms.html"
    return save_page(forms(), path, request.param)


def asked_of(w: np.ndarray) -> dict[str, np.ndarray]:
    """What one may ask of a head of 33 × 37 weights at least, and what is right."""
    logs = np.log(np.where(w > 0, w, 1))
    return {
        "row(7)": w[7],
        "column(11)": w[:, 11],
        "tile(3, 30, 5, 36)": w[3:30, 5:36],
        "pooled(2, 30, 4, 36, 7, 8)": w[2:30, 4:36].reshape(7, 4, 8, 4).mean((1, 3)),
        "entropy()": -(w * logs).sum(-1),
        "received()": w.sum(0),
    }


def compare(page: Any, every: Sequence[np.ndarray], near: float, source: str) -> None:
    """Ask a page for parts of two heads and of the mean of all, entry by entry."""
    right = {
        (entry, heads, what): found
        for entry, w in enumerate(every)
        for heads, head in (("0", w[0]), ("3", w[3]), ("mean", w.mean(0)))
        for what, found in asked_of(head).items()
    }
    for (question, wanted), found in zip(right.items(), numbers(page, list(right), source)):
        np.testing.assert_allclose(found, wanted.ravel(), 0, near, err_msg=str(question))


def test_rows_columns_and_tiles(stored: Path, opened: Callable[..., Any]) -> None:
    read = Page.read(stored)
    compare(opened(stored), [read.weights(name) for name in forms()], NEAR, "headSource(stored)")


def test_numbers_of_the_server_are_those_of_the_recording(opened: Callable[..., Any]) -> None:
    matrices = {name: matrix for name, matrix in forms().items() if name != "weights"}
    every = [matrix.dense()[0].double().numpy() for matrix in matrices.values()]
    with running(items_of(matrices)) as server:
        compare(opened(server.address), every, 2e-5, "servedHeads(stored)")


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
