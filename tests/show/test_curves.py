"""Curves show their numbers: series with their intervals, and a run by step and by the clock."""

from __future__ import annotations

import math

import numpy as np
import pytest

from intently.errors import ArgumentError, KindError
from intently.show import curves

from .drawing import written
from .refusals import refusals


def run(lines: int = 40, **more: float) -> list[dict[str, float]]:
    return [{"step": 10 * n, "seconds": n / 2, "loss": 5 / n, **more} for n in range(1, lines + 1)]


def named(figure) -> dict[str, object]:
    """Panels by name."""
    return {axes.get_title(loc="left"): axes for axes in figure.axes}


def test_losses_stand_against_steps_once_and_seconds_below_them():
    history = run()
    history[9]["validation_loss"] = 0.7
    history[39]["validation_loss"] = 0.2
    figure = curves(history)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "loss (log scale)"
    training, validation = axes.lines
    np.testing.assert_array_equal(training.get_xdata(), [row["step"] for row in history])
    np.testing.assert_array_equal(training.get_ydata(), [row["loss"] for row in history])
    np.testing.assert_array_equal(validation.get_ydata(), [0.7, 0.2])
    assert set(written(axes)) == {"training", "validation"}
    assert axes.get_xlabel() == "steps; below, seconds"
    marks = [label.get_text().split("\n") for label in axes.get_xticklabels()]
    inside = [mark for mark in marks if len(mark) == 2]
    assert len(inside) >= 3
    for step, seconds in inside:
        assert float(seconds) == pytest.approx(float(step) / 20)


def test_steps_are_whole_numbers():
    history = [{"step": n, "seconds": n / 10, "loss": 4.0 - n} for n in range(1, 4)]
    (steps,) = curves(history).axes
    assert all(float(tick).is_integer() for tick in steps.get_xticks())


def test_quality_and_pace_have_panels_of_their_own():
    history = run(learning_rate=0.001, tokens_per_second=15_000.0)
    history[-1].update(exact_match=0.98, bleu=97.5)
    panels = named(curves(history))
    quality = ["loss (log scale)", "exact match", "BLEU"]
    assert list(panels) == [*quality, "learning rate", "tokens per second"]
    assert written(panels["BLEU"]) == ["97.5"]
    assert written(panels["tokens per second"]) == ["15,000"]


def test_long_runs_are_drawn_pale_under_their_running_mean():
    history = [{"step": n, "loss": 2.0 + (-1) ** n} for n in range(400)]
    figure = curves(history)
    assert [axes.get_xlabel() for axes in figure.axes] == ["steps"]
    raw, smooth = figure.axes[0].lines
    assert raw.get_alpha() < 0.5
    assert np.ptp(raw.get_ydata()) == 2
    assert np.ptp(smooth.get_ydata()[10:-10]) < 0.3
    assert len(smooth.get_ydata()) == 400


def test_a_loss_that_hardly_falls_stands_on_a_plain_axis():
    figure = curves([{"step": n, "loss": 3 - n / 10} for n in range(5)])
    assert figure.axes[0].get_yscale() == "linear"
    assert figure.axes[0].get_title(loc="left") == "loss"


def test_losses_that_are_no_number_are_said():
    history = run()
    history[3]["loss"] = math.nan
    history[4]["loss"] = math.inf
    figure = curves(history)
    assert figure.texts[0].get_text() == "the loss was not finite in 2 lines, first at step 40"
    assert len(figure.axes[0].lines[0].get_xdata()) == 38


def test_one_line_and_absent_values_are_drawn():
    curves([{"step": 1, "seconds": 0.1, "loss": 4.0}])
    curves([{"step": 1, "loss": 4.0, "bleu": None}, {"step": 2, "validation_loss": 3.0}])
    curves([{"step": 0, "seconds": 0.0, "loss": 0.0}, {"step": 0, "seconds": 0.0, "loss": 0}])


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([], r"history: expected a finite .loss. .*got 0 lines"),
        ([{"step": 1}], r"history: expected a finite .loss."),
        ([{"step": 1, "loss": math.nan}], r"history: expected a finite .loss."),
        ([{"loss": 1.0}], r"history: expected a step in every line; got none in line 0"),
    ],
)
def test_histories_without_content_are_refused(history, message):
    with pytest.raises(ArgumentError, match=message):
        curves(history)


# --- series ---------------------------------------------------------------------------------------
FIXED = [(24.6, 14.0, 34.2), (32.4, 30.1, 34.6), (20.8, 17.4, 24.0)]
SCORES = {"BLEU": {"fixed": FIXED, "attention": [30, 38, 36]}, "exact": {"fixed": [0.2, 0.1]}}
LENGTHS = ["1–5", "6–10", ">10\n82"]


def test_a_panel_for_each_name_a_line_for_each_series_and_a_band_for_each_interval():
    bleu, exact = curves(SCORES, LENGTHS, across="words").axes
    assert [axes.get_title(loc="left") for axes in (bleu, exact)] == ["BLEU", "exact"]
    assert [line.get_ydata().tolist() for line in bleu.lines] == [[24.6, 32.4, 20.8], [30, 38, 36]]
    (band,) = bleu.collections
    corners = band.get_paths()[0].vertices[:, 1]
    assert {low for _, low, _ in FIXED} | {high for *_, high in FIXED} <= set(corners)
    assert written(bleu) == ["fixed", "attention"]
    assert exact.get_xlabel() == "words"
    assert [label.get_text() for label in exact.get_xticklabels()] == LENGTHS
    assert exact.get_ylim() == (0, 1.04) and bleu.get_ylim()[0] == 0
    marks = {line.get_marker() for line in bleu.lines}
    assert len(marks) == 2


def test_a_series_that_ends_early_goes_on_as_dots():
    exact = curves(SCORES, LENGTHS).axes[1]
    solid, dots = exact.lines
    assert solid.get_xdata().tolist() == [0, 1]
    assert dots.get_linestyle() == ":" and set(dots.get_ydata()) == {0.1}


def test_names_at_the_ends_do_not_touch():
    (axes,) = curves({name: [1.0, 1.0] for name in "abcdefgh"}).axes
    heights = sorted(text.xyann[1] for text in axes.texts)
    assert len(heights) == 8 and min(np.diff(heights)) >= 10


def test_numbers_are_places_too_and_one_place_has_no_band():
    (axes,) = curves({"": [-1.0, 2.0]}, [10, 20]).axes
    assert axes.lines[0].get_xdata().tolist() == [10, 20]
    assert axes.get_ylim()[0] < 0
    (axes,) = curves({"one": [(2.0, 1.0, 3.0)]}, ["here"]).axes
    (segment,) = axes.collections[0].get_segments()
    assert segment[:, 1].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "values: expected at least one series"),
        ({"a": {}}, "values: expected at least one series"),
        ({"a": []}, r"values\['a'\]: expected at least one number"),
        ({"p": {"a": [1, 2, 3, 4]}}, r"values\['p'\]\['a'\]: expected one to 3 numbers.*got 4"),
        ({"a": [math.nan]}, r"values\['a'\]: expected finite numbers"),
        ({"a": [(1, 3, 2)]}, r"values\['a'\]: expected finite numbers.*got \(1, 3, 2\)"),
        ({"a": [(1, 2)]}, r"values\['a'\]: expected finite numbers"),
        ({"a": ["x"]}, r"values\['a'\]: expected finite numbers"),
    ],
)
def test_series_without_content_are_refused(values, message):
    with pytest.raises(ArgumentError, match=message):
        curves(values, LENGTHS)


test_what_are_no_series_or_places_is_refused = refusals(
    {
        KindError: {
            r"values: expected series by name.* or the lines of": lambda: curves("x"),
            r"values: expected series by name.*; got list": lambda: curves([1, 2]),
            r"values: expected series by name, or panels of them; got both": lambda: curves(
                {"a": [1], "b": {"c": [1]}}
            ),
            r"values\['a'\]: expected the numbers of a series; got int": lambda: curves({"a": 5}),
        },
        ArgumentError: {
            r"at: .* for each place, or a n": lambda: curves({"a": [1, 2]}, ["x", 2]),
            r"at: .*; got \[1, None\]": lambda: curves({"a": [1, 2]}, [1, None]),
            r"at: .*; got \[1, inf\]": lambda: curves({"a": [1, 2]}, [1, math.inf]),
        },
    }
)
