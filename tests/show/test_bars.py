"""Bars: a panel for each measure, a row for each name, the interval on the bar."""

from __future__ import annotations

import math

import pytest

from intently import show
from intently.errors import ArgumentError

ERRORS = {"additive": (0.15, 0.13, 0.17), "dot": (0.3, 0.27, 0.33)}
BLEU = {"dot": (80.0, 75.0, 85.0), "fixed": (40.0, 35.0, 45.0)}


def test_bars_and_intervals_stand_at_their_numbers():
    [axes] = show.bars({"error": ERRORS}).axes
    assert [bar.get_width() for bar in axes.patches] == [0.15, 0.3]
    lines = [lines.get_segments()[0] for lines in axes.collections]
    assert [segment[:, 0].tolist() for segment in lines] == [[0.13, 0.17], [0.27, 0.33]]
    assert [text.get_text() for text in axes.texts] == ["0.150", "0.300"]
    assert axes.get_ylabel() == "error"


def test_rows_of_a_panel_that_lacks_names_stay_in_their_line():
    first, second = show.bars({"error": ERRORS, "BLEU": BLEU}).axes
    assert [label.get_text() for label in first.get_yticklabels()] == ["additive", "dot", "fixed"]
    middles = [bar.get_y() + bar.get_height() / 2 for bar in second.patches]
    assert middles == pytest.approx([1, 2])
    assert first.get_ylim() == second.get_ylim() == (2.5, -0.5)
    assert [text.get_text() for text in second.texts] == ["80.0", "40.0"]


def test_only_zeros_are_drawn():
    [axes] = show.bars({"error": {"none": (0.0, 0.0, 0.0)}}).axes
    assert axes.get_xlim() == (0, 1)


def test_exact_match_counts_to_one():
    shares = {"dot": (0.0, 0.0, 0.006)}
    exact, error = show.bars({"exact match": shares, "error": shares}).axes
    assert exact.get_xlim() == (0, 1) and error.get_xlim() == (0, 0.006)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "values: expected at least one panel; got none"),
        ({"error": {}}, r"values\['error'\]: expected at least one number; got none"),
        (
            {"error": {"dot": (math.inf, 0, 1)}},
            r"values\['error'\]\['dot'\]: expected a finite number ≥ 0 with the two ends",
        ),
        ({"error": {"dot": (-0.1, -0.2, 0.0)}}, "expected a finite number ≥ 0"),
        ({"error": {"dot": (0.1, 0.2)}}, "expected a finite number ≥ 0"),
        ({"error": {"dot": (5, 6, 4)}}, "expected a finite number ≥ 0"),
        ({"error": {"dot": 5}}, "expected a finite number ≥ 0 .*; got 5"),
    ],
)
def test_what_cannot_be_drawn_is_refused(values, message):
    with pytest.raises(ArgumentError, match=message):
        show.bars(values)
