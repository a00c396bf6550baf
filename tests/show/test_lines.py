"""Lines join the right words, as wide as the weight."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from intently import show
from intently.core.matrix import Dense
from intently.errors import ArgumentError
from intently.show import lines
from intently.show.figures.lines import WIDEST

from .drawing import written

ROWS, COLUMNS = ("Je", "bois", "du"), ("I", "drink")


def joined(figure) -> dict[tuple[str, str], float]:
    """Return (left word, right word) → width in points of each line."""
    axes = figure.axes[0]
    drawn = axes.collections[0]
    left, right = {}, {}
    for text in axes.texts:
        x, y = text.get_position()
        (left if x < 0 else right)[round(y, 6)] = text.get_text()
    return {
        (left[round(segment[0][1], 6)], right[round(segment[1][1], 6)]): width
        for segment, width in zip(drawn.get_segments(), drawn.get_linewidths())
    }


def test_lines_are_as_wide_as_the_weights_and_join_their_words():
    values = torch.tensor([[0.9, 0.1], [0.25, 0.75], [0.004, 0.996]])
    found = joined(lines(Dense(values, labels=(ROWS, COLUMNS))))
    expected = {
        (row, column): WIDEST * float(values[i, j])
        for i, row in enumerate(ROWS)
        for j, column in enumerate(COLUMNS)
        if values[i, j] > 0.01
    }
    assert found == pytest.approx(expected)


def test_widths_follow_the_scale_that_the_legend_says():
    figure = lines(Dense(torch.full((3, 20), 0.05)))
    assert set(joined(figure).values()) == {WIDEST}
    assert written(figure.axes[1]) == ["weight", "0.005", "0.025", "0.05"]
    widths = [line.get_linewidth() for line in figure.axes[1].lines]
    assert widths == pytest.approx([0.1 * WIDEST, 0.5 * WIDEST, WIDEST])


def test_a_token_brings_out_its_own_lines():
    figure = lines(Dense(torch.full((3, 2), 0.5), labels=(ROWS, COLUMNS)), "bois")
    drawn = figure.axes[0].collections[0]
    strong = [tuple(c) for c in drawn.get_colors() if c[3] == 1]
    assert len(strong) == 2
    names = list(joined(figure))
    assert {name for name, colour in zip(names, drawn.get_colors()) if colour[3] == 1} == {
        ("bois", "I"),
        ("bois", "drink"),
    }
    assert names[-1][0] == names[-2][0] == "bois"  # drawn last, over the others
    inks = {text.get_text(): text.get_color() for text in figure.axes[0].texts}
    assert inks["bois"] == show.style.ACCENT


@pytest.mark.parametrize(
    ("labels", "sides"),
    [
        ((ROWS, ("I", "drink", "milk")), {"produced", "source"}),
        ((ROWS, ROWS), {"queries", "keys"}),
        ((None, None), {"queries", "keys"}),
    ],
)
def test_sides_are_named_for_what_they_are(labels, sides):
    figure = lines(Dense(torch.full((3, 3), 0.3), labels=labels))
    assert sides <= set(written(figure.axes[0]))


def test_more_words_than_lines_can_show_are_refused():
    with pytest.raises(ArgumentError, match=r"at most 64 words.*\(65, 3\).*heatmap"):
        lines(Dense(torch.ones(65, 3)))
    assert lines(Dense(torch.ones(64, 64) / 64)).get_size_inches()[1] < 17


def test_weights_that_are_no_number_have_no_line():
    values = torch.tensor([[float("nan"), 1.0], [float("inf"), 0.5]])
    figure = lines(Dense(values, labels=(ROWS[:2], COLUMNS)))
    assert set(joined(figure)) == {("Je", "drink"), ("bois", "drink")}
    assert "no line: 2 of 4" in "\n".join(written(figure))
    assert np.isfinite(list(joined(figure).values())).all()


def test_several_heads_have_a_colour_each():
    eye, words = torch.eye(3), ("a", "b", "c")
    A = Dense(torch.stack([eye, eye.flip(0)]), labels=(words, words))
    figure = lines(A, "a", head=[0, 1])
    first, second = figure.axes[0].collections
    assert len(first.get_segments()) == len(second.get_segments()) == 3
    assert not np.allclose(first.get_colors()[-1], second.get_colors()[-1])
    assert {"head 0", "head 1"} <= {text for axes in figure.axes for text in written(axes)}
    for wrong in ([], [0, 1, 2, 3]):
        with pytest.raises(ArgumentError, match="one to 3 heads"):
            lines(eye.expand(4, 3, 3), head=wrong)
    with pytest.raises(ArgumentError, match="got heads of different words or sizes"):
        lines({"x": A, "y": A[:, :2]}, head=[("x", 0), ("y", 0)])


def test_what_one_of_several_heads_lacks_is_said():
    values = torch.full((2, 3, 3), 1 / 3)
    values[1, 2, 0] = torch.nan
    values[1, 1] = torch.tensor([0.25, 0.25, 0.0])
    said = " ".join(written(lines(Dense(values, labels=(("a", "b", "c"),) * 2), head=[0, 1])))
    assert "no line: 1 of 18 weights is not finite" in said
    assert "up to 0.50 of the weight of a row (‘b’)" in said


def test_a_head_that_is_named_twice_is_drawn_once():
    once, twice = (lines(torch.eye(3)[None], head=head) for head in ([0], [0, 0]))
    first, second = (len(x.axes[0].collections[0].get_segments()) for x in (once, twice))
    assert first == second and written(once) == written(twice)
