"""Masks and biases are drawn as they are: cell for cell, head for head."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import intently as it
from intently import show
from intently.core.masks import Geometry
from intently.errors import ArgumentError, IntentlyError, KindError

from .drawing import panels, shaded, ticks, written
from .refusals import refusals

WORDS = ["The", "cat", "sat", "down"]
MASKS = {
    "causal": it.causal(),
    "window": it.causal() & it.window(1, 0),
    "prefix": it.causal() | it.prefix(2),
    "turned": ~it.dilated(2),
    "segments": it.segments(torch.tensor([0, 0, 1, 1])),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_drawn_cell_for_cell(name):
    mask = MASKS[name]
    (axes,) = panels(show.mask(mask, 4))
    expected = mask.dense(Geometry((), 4, 4, torch.device("cpu"))).expand(4, 4)
    np.testing.assert_array_equal(shaded(axes), expected)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("keys", "queries")


def test_words_name_both_sides_and_queries_are_the_last():
    (axes,) = panels(show.mask(it.causal(), 2, words=WORDS, s=4))
    np.testing.assert_array_equal(shaded(axes), [[1, 1, 1, 0], [1, 1, 1, 1]])
    assert ticks(axes, "x") == WORDS
    assert ticks(axes, "y") == WORDS[2:]
    assert shaded(panels(show.mask(it.causal(), words=WORDS))[0]).shape == (4, 4)


def test_a_mask_of_a_batch_has_a_panel_for_each_row():
    figure = show.mask(it.causal() & it.padding(torch.tensor([1, 2, 4])), 4)
    drawn = panels(figure)
    assert [axes.get_title() for axes in drawn] == ["row 0", "row 1", "row 2"]
    assert [int(shaded(axes)[3].sum()) for axes in drawn] == [1, 2, 4]
    many = show.mask(it.padding(torch.arange(1, 31)), 4, 30)
    assert len(panels(many)) == 12
    assert "the first 12 of 30" in "\n".join(written(many))


def test_large_masks_are_shares_of_cells():
    (axes,) = panels(figure := show.mask(it.causal(), 1500))
    cells = shaded(axes)
    whole = np.tril(np.ones((1500, 1500)))
    edges = -(-np.arange(513) * 1500 // 512)
    for i, j in ((0, 0), (7, 7), (100, 101), (511, 0), (511, 511)):
        part = whole[edges[i] : edges[i + 1], edges[j] : edges[j + 1]]
        assert cells[i, j] == pytest.approx(part.mean())
    assert "each cell the share of about 2.93 × 2.93" in "\n".join(written(figure))


def test_tensors_and_masks_that_know_their_size_need_none():
    given = torch.tensor([[True, False, True], [False, True, True]])
    (axes,) = panels(show.mask(given))
    np.testing.assert_array_equal(shaded(axes), given)
    (axes,) = panels(show.mask(it.grid(3, 4, 1)))
    assert shaded(axes).shape == (12, 12)


def test_alibi_has_a_panel_for_each_head_with_its_own_slope():
    figure = show.bias(it.alibi(4), 6)
    drawn = panels(figure)
    assert [axes.get_title() for axes in drawn] == [f"head {n}" for n in range(4)]
    distance = np.abs(np.arange(6)[:, None] - np.arange(6))
    for head, axes in enumerate(drawn):
        np.testing.assert_allclose(shaded(axes), -(2.0 ** (-2 * (head + 1))) * distance)
    assert len({axes.images[0].get_clim() for axes in drawn}) == 1
    low, high = drawn[0].images[0].get_clim()
    assert low == -high == pytest.approx(-5 / 4)


def test_buckets_sums_and_tensors_are_drawn_as_they_add():
    table = torch.randn(32, 2)
    rows = torch.arange(9)
    for bias, lead in (
        (it.relative_buckets(table), (2,)),
        (it.relative_buckets(table) + torch.randn(9, 9), (2,)),
        (torch.randn(3, 9, 9), (3,)),
        (torch.randn(9, 9), ()),
    ):
        drawn = panels(show.bias(bias, 9))
        value = bias if isinstance(bias, it.Bias) else it.core.biases.as_bias(bias)
        g = Geometry(lead, 9, 9, torch.device("cpu"))
        expected = value.tile(g, rows, rows).expand(*lead, 9, 9).reshape(-1, 9, 9)
        assert len(drawn) == len(expected)
        for axes, head in zip(drawn, expected):
            np.testing.assert_allclose(shaded(axes), head, rtol=1e-6)


def test_what_is_no_number_is_not_called_masked():
    table = torch.tensor([[0.0, -math.inf], [math.nan, math.inf]])
    notes = " ".join("\n".join(written(show.bias(table))).split())
    assert "hatched, too: NaN and +∞, 2 of the numbers shown" in notes


def test_what_cannot_be_attended_is_hatched():
    bias = torch.zeros(3, 4)
    bias[:, 3] = -torch.inf
    figure = show.bias(bias)
    (axes,) = panels(figure)
    assert np.isnan(shaded(axes)).sum() == 3
    assert any(patch.get_hatch() for patch in axes.patches)
    assert "cannot be attended to" in "\n".join(written(figure))


def test_a_colour_bar_that_is_higher_than_its_panel_lies_on_the_paper():
    panel, bar = (axes.get_position() for axes in show.bias(torch.eye(2)).axes)
    assert bar.height > panel.height and bar.y0 > 0


def test_a_mask_of_one_query_counts_it_as_0():
    axes = panels(show.mask(it.causal(), 1, 6))[0]
    assert [float(place) for place in axes.get_yticks()] == [0]


NO_MASK = r"mask: expected a mask such as it.causal\(\)"
test_what_does_not_fit_is_named = refusals(
    {
        ArgumentError: {
            r"at most 1,073,741,824 entries.*t=1024, s=1024": lambda: show.mask(
                it.causal(), 100_000, 100_000
            ),
            r"words: expected 5 words, one for each key; got 4": lambda: show.mask(
                it.causal(), 5, words=WORDS
            ),
            r"t: expected an int ≥ 1; got 0": lambda: show.mask(it.causal(), 0),
        },
        KindError: {
            f"{NO_MASK}.*None": lambda: show.mask(None),
            f"{NO_MASK}.*str": lambda: show.mask("causal"),
            r"s: expected an int ≥ 1; got 2.5": lambda: show.bias(it.alibi(2), 4, 2.5),
        },
        IntentlyError: {
            r"mask: .* got shape \(3, 3\)": lambda: show.mask(
                torch.ones(3, 3, dtype=torch.bool), 4
            ),
            "mask: expected a boolean tensor": lambda: show.mask(torch.ones(3, 3)),
        },
    }
)


def test_a_tensor_of_one_cell_is_one_cell():
    assert shaded(show.mask([[True]]).axes[0]).shape == (1, 1)
