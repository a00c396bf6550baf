"""Losses by tokens of context: a line and a band for each window."""

from __future__ import annotations

import math

import numpy as np
import pytest

from intently import show
from intently.errors import ArgumentError

from .drawing import ticks

CONTEXTS = ["1", "2", "3–4", "5–8"]
LARGE = [(3.0, 2.9, 3.1), (2.5, 2.4, 2.6), (2.0, 1.9, 2.1), (1.5, 1.4, 1.6)]
LOSSES = {"window 8": LARGE, "window 2": LARGE[:2]}


def test_lines_and_bands_stand_at_their_numbers() -> None:
    [axes] = show.by_context(LOSSES, CONTEXTS).axes
    assert ticks(axes, "x") == CONTEXTS
    marked = [line for line in axes.lines if line.get_marker() in "os^"]
    for line, expected in zip(marked, LOSSES.values(), strict=True):
        np.testing.assert_allclose(line.get_ydata(), [middle for middle, *_ in expected])
        np.testing.assert_allclose(line.get_xdata(), range(len(expected)))
    for band, expected in zip(axes.collections, LOSSES.values(), strict=True):
        corners = band.get_paths()[0].vertices
        for x, (_, low, high) in enumerate(expected):
            at = corners[corners[:, 0] == x][:, 1]
            assert (at.min(), at.max()) == pytest.approx((low, high))


def test_a_smaller_window_stays_at_its_last_loss() -> None:
    [axes] = show.by_context(LOSSES, CONTEXTS).axes
    [dots] = [line for line in axes.lines if line.get_linestyle() == ":"]
    np.testing.assert_allclose(dots.get_ydata(), [2.5, 2.5])
    assert dots.get_xdata()[0] == 1
    assert dots.get_xdata()[1] == pytest.approx(axes.get_xlim()[1])


def test_each_name_stands_at_the_height_of_its_end_in_the_colour_of_its_line() -> None:
    [axes] = show.by_context(LOSSES, CONTEXTS).axes
    ends = {text.get_text(): (text.xy[1], text.get_color()) for text in axes.texts}
    colours = [line.get_color() for line in axes.lines if line.get_marker() in "os^"]
    assert ends == {"window 8": (1.5, colours[0]), "window 2": (2.5, colours[1])}


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ({}, "losses: expected one to 3 models; got 0"),
        ({str(n): LARGE for n in range(4)}, "expected one to 3 models; got 4.*[Dd]raw two figures"),
        ({"a": []}, r"losses\['a'\]: expected one to 4 numbers, .*; got 0"),
        ({"a": LARGE * 2}, r"losses\['a'\]: expected one to 4 numbers, .*; got 8"),
        ({"a": [(math.nan, 0, 1)]}, "expected finite numbers, each with the two ends"),
        ({"a": [(2, 3, 1)]}, r"each with the two ends .*; got \(2, 3, 1\)"),
        ({"a": [2]}, "each with the two ends .*; got 2"),
    ],
)
def test_what_cannot_be_drawn_is_refused(losses, message) -> None:
    with pytest.raises(ArgumentError, match=message):
        show.by_context(losses, CONTEXTS)
