"""Scores by length: a panel for each score, a line and a band for each model."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from intently import show
from intently.errors import ArgumentError

from .drawing import ticks, written

BUCKETS = {"1–5": 1200, "6–10": 300, ">10": 41}
FIXED = [(0.9, 0.85, 0.95), (0.6, 0.5, 0.7), (0.1, 0.05, 0.2)]
ATTENTION = [(0.95, 0.9, 1.0), (0.9, 0.85, 0.95), (0.88, 0.8, 0.93)]


def scores(**more):
    exact = {"fixed": FIXED, "attention": ATTENTION}
    bleu = {name: [tuple(100 * x for x in at) for at in line] for name, line in exact.items()}
    return {"exact match": exact, "BLEU": bleu, **more}


def test_lines_and_bands_stand_at_their_numbers():
    figure = show.by_length(scores(), BUCKETS)
    exact, bleu = figure.axes
    assert [axes.get_ylabel() for axes in (exact, bleu)] == ["exact match", "BLEU"]
    for line, expected in zip(exact.lines, (FIXED, ATTENTION), strict=True):
        np.testing.assert_allclose(line.get_ydata(), [middle for middle, *_ in expected])
    for band, expected in zip(exact.collections, (FIXED, ATTENTION), strict=True):
        corners = band.get_paths()[0].vertices
        for x, (_, low, high) in enumerate(expected):
            at = corners[corners[:, 0] == x][:, 1]
            assert (at.min(), at.max()) == pytest.approx((low, high))
    np.testing.assert_allclose(bleu.lines[1].get_ydata(), [95, 90, 88])


def test_lengths_and_their_sentences_stand_under_the_axis():
    figure = show.by_length(scores(), BUCKETS)
    for axes in figure.axes:
        assert ticks(axes, "x") == ["1–5\n1,200", "6–10\n300", ">10\n41"]


def test_a_share_counts_to_one_and_a_score_above_its_highest():
    exact, bleu = show.by_length(scores(), BUCKETS).axes
    assert exact.get_ylim() == (0, 1.04)
    assert bleu.get_ylim()[1] > 100


def test_each_line_has_a_colour_and_a_mark_of_its_own_and_its_name():
    axes = show.by_length(scores(), BUCKETS).axes[1]
    assert len({line.get_color() for line in axes.lines}) == 2
    assert len({line.get_marker() for line in axes.lines}) == 2
    names = {text.get_text(): text.get_color() for text in axes.texts}
    assert names == dict(zip(("fixed", "attention"), (line.get_color() for line in axes.lines)))


def test_names_of_lines_that_end_together_do_not_touch():
    same = {name: ATTENTION for name in ("one", "two", "three")}
    figure = show.by_length({"exact match": same}, BUCKETS)
    figure.draw_without_rendering()
    boxes = sorted(
        (text.get_window_extent() for text in figure.axes[0].texts), key=lambda box: box.y0
    )
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))


@pytest.mark.parametrize("buckets", [1, 3])
def test_names_of_lines_stand_beside_the_panel(buckets: int):
    some = dict(list(BUCKETS.items())[:buckets])
    [axes] = show.by_length({"BLEU": {"fixed": FIXED[:buckets]}}, some, unseen=1).axes
    axes.figure.draw_without_rendering()
    [name] = [text for text in axes.texts if text.get_text() == "fixed"]
    assert name.get_window_extent().x0 > axes.get_window_extent().x1


def test_lengths_under_the_axis_do_not_touch():
    many = {f"{5 * n + 1}–{5 * n + 5}": 1_000_000 for n in range(14)}
    [axes] = show.by_length({"BLEU": {"fixed": [FIXED[0]] * 14}}, many).axes
    axes.figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_a_long_name_of_a_panel_leaves_room_for_the_next():
    long = "a score whose name is longer than the panel that shows it"
    first = show.by_length({long: {"fixed": FIXED}, "BLEU": {"fixed": FIXED}}, BUCKETS).axes[0]
    assert first.get_ylabel().endswith("…")


def test_buckets_longer_than_in_training_are_shaded():
    plain = show.by_length(scores(), BUCKETS).axes[0]
    shaded = show.by_length(scores(), BUCKETS, unseen=1).axes[0]
    assert len(shaded.patches) == len(plain.patches) + 1
    box = shaded.patches[0].get_extents().transformed(shaded.transData.inverted())
    assert box.x0 == pytest.approx(1.5)
    assert "longer than in training" in written(shaded)
    assert "longer than in training" not in written(plain)


def test_one_bucket_shows_its_interval():
    axes = show.by_length({"BLEU": {"fixed": [(30.0, 25.0, 35.0)]}}, {"1–5": 50}).axes[0]
    [bar] = axes.collections
    assert bar.get_segments()[0][:, 1].tolist() == [25.0, 35.0]


NAN = [(math.nan, 0.0, 1.0)] * 3


@pytest.mark.parametrize(
    ("given", "buckets", "unseen", "message"),
    [
        ({}, BUCKETS, 0, "scores: expected at least one panel; got none"),
        (scores(), {}, 0, "buckets: expected at least one bucket of lengths; got none"),
        (scores(), BUCKETS, 4, "unseen: expected 0 to 3, the buckets; got 4"),
        ({"BLEU": {}}, BUCKETS, 0, r"scores\['BLEU'\]: expected one to 3 models; got 0"),
        (
            {"BLEU": {str(n): FIXED for n in range(4)}},
            BUCKETS,
            0,
            r"expected one to 3 models; got 4.*[Dd]raw two figures",
        ),
        (
            scores(chrF={"fixed": FIXED}),
            BUCKETS,
            0,
            r"scores\['chrF'\]: expected the models fixed, attention; got fixed",
        ),
        (
            {"BLEU": {"fixed": FIXED[:2]}},
            BUCKETS,
            0,
            r"scores\['BLEU'\]\['fixed'\]: expected a number for each of 3 buckets; got 2",
        ),
        ({"BLEU": {"fixed": NAN}}, BUCKETS, 0, "expected finite numbers, each with the two ends"),
        ({"BLEU": {"fixed": [1, 2, 3]}}, BUCKETS, 0, "each with the two ends .*; got 1"),
        ({"BLEU": {"fixed": [(5, 6, 4)] * 3}}, BUCKETS, 0, r"each with .*; got \(5, 6, 4\)"),
        ({"BLEU": {"fixed": [(-5, -6, -4)] * 3}}, BUCKETS, 0, "each with the two ends .* ≥ 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(given, buckets, unseen, message):
    with pytest.raises(ArgumentError, match=message):
        show.by_length(given, buckets, unseen=unseen)
