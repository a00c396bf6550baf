"""Curves of positions are the rows and columns of the encoding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import intently as it
from intently import show
from intently.errors import ArgumentError, KindError, RangeError


def curves(axes) -> list[np.ndarray]:
    return [line.get_ydata() for line in axes.lines]


def test_the_matrix_its_dimensions_and_its_positions():
    table = it.sinusoidal(40, 12)
    figure = show.positions(table, dimensions=[2, 3], at=[0, 7, 39], title="waves")
    whole, by_position, by_dimension, _ = figure.axes
    np.testing.assert_array_equal(whole.images[0].get_array(), table.T)
    np.testing.assert_array_equal(curves(by_position), table[:, [2, 3]].T)
    np.testing.assert_array_equal(curves(by_dimension), table[[0, 7, 39]])
    labels = [text.get_text() for text in by_dimension.get_legend().get_texts()]
    assert labels == ["0", "7", "39"]
    assert [axes.get_xlabel() for axes in (whole, by_position, by_dimension)] == [
        "position",
        "position",
        "dimension",
    ]
    dashes = [line.get_linestyle() for line in by_dimension.lines]
    assert len({str(line._dash_pattern) for line in by_dimension.lines}) == len(dashes)
    assert "waves" in [text.get_text() for text in figure.texts]


def test_rotary_positions_are_the_cosines_of_their_angles():
    rotary = it.Rotary(8, base=100.0)
    figure = show.positions(rotary, 30, dimensions=[1])
    angles = np.arange(30)[:, None] * 100.0 ** (-np.arange(0, 8, 2) / 8)
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), np.cos(angles).T)
    np.testing.assert_allclose(curves(figure.axes[1])[0], np.cos(angles[:, 1]))
    assert figure.axes[2].get_xlabel() == "pair"
    assert show.positions(rotary).axes[0].images[0].get_array().shape == (4, 64)


def test_learned_tables_are_drawn_whole_or_in_part():
    table = torch.randn(20, 6)
    for encoding in (it.Learned(table), table, table[None]):
        image = show.positions(encoding, 15).axes[0].images[0]
        np.testing.assert_array_equal(image.get_array(), table[:15].T)
        low, high = image.get_clim()
        assert low == -high == pytest.approx(-float(table[:15].abs().max()))


def test_what_does_not_fit_is_named():
    with pytest.raises(RangeError, match=r"dimensions: expected numbers from 0 to 3; got 4"):
        show.positions(torch.randn(5, 4), dimensions=[4])
    with pytest.raises(RangeError, match=r"at: expected numbers from 0 to 4; got -1"):
        show.positions(torch.randn(5, 4), at=[-1])
    with pytest.raises(ArgumentError, match=r"at: expected 1 to 6 curves; got 7"):
        show.positions(torch.randn(9, 4), at=range(7))
    with pytest.raises(ArgumentError, match=r"encoding: expected shape \(t, c\); got shape \(5,\)"):
        show.positions(torch.randn(5))
    with pytest.raises(ArgumentError, match=r"shape \(t, c\) with t ≥ 6; got shape \(5, 4\)"):
        show.positions(torch.randn(5, 4), 6)
    with pytest.raises(ArgumentError, match=r"t: expected a number of positions ≥ 1; got 0"):
        show.positions(it.Rotary(4), 0)
    with pytest.raises(KindError, match=r"encoding: expected a tensor .*got list"):
        show.positions([1.0])  # pyright: ignore[reportArgumentType]
