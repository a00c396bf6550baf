"""Curves of positions are the rows and columns of the encoding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import intently as it
from intently.errors import ArgumentError, KindError, RangeError
from intently.show import positions

from .drawing import written
from .refusals import refusals


def curves(axes) -> list[np.ndarray]:
    return [line.get_ydata() for line in axes.lines]


def test_the_matrix_its_dimensions_and_its_positions():
    table = it.sinusoidal(40, 12)
    figure = positions(table, dimensions=[2, 3], at=[0, 7, 39], title="waves")
    whole, by_position, by_dimension = figure.axes
    apart = table[:, [*range(0, 12, 2), *range(1, 12, 2)]]  # even dimensions, then odd ones
    np.testing.assert_array_equal(whole.images[0].get_array(), apart.T)
    np.testing.assert_array_equal(curves(by_position), table[:, [2, 3]].T)
    sines, cosines = np.split(np.array(curves(by_dimension)), [7], axis=1)
    np.testing.assert_array_equal(sines[:, :-1], apart[[0, 7, 39], :6])
    np.testing.assert_array_equal(cosines, apart[[0, 7, 39], 6:])
    assert np.isnan(sines[:, -1]).all()  # no line leads from a sine to a cosine
    assert written(by_dimension.get_legend()) == ["0", "7", "39"]
    assert [axes.get_xlabel() for axes in (whole, by_position, by_dimension)] == [
        "position",
        "position",
        "dimension",
    ]
    dashes = [line.get_linestyle() for line in by_dimension.lines]
    assert len({str(line._dash_pattern) for line in by_dimension.lines}) == len(dashes)
    assert "waves" in written(figure)


def turns(curve: np.ndarray) -> int:
    rising = np.sign(np.diff(curve))
    return int((rising[1:] * rising[:-1] < 0).sum())


@pytest.mark.parametrize("shape", [(200, 512), (2000, 512), (50, 16), (100, 64), (4, 2)])
@pytest.mark.parametrize("change", [lambda x: x, lambda x: 3 * x[1:]], ids=["", "three times"])
def test_sines_and_cosines_stand_apart_in_a_few_curves_that_can_be_read(shape, change):
    table = change(it.sinusoidal(*shape)).numpy()
    _, by_position, by_dimension = positions(torch.tensor(table)).axes
    c = table.shape[1]
    assert 1 <= len(by_position.lines) <= 4 and 1 <= len(by_dimension.lines) <= 4
    assert all(turns(curve) <= 16 for curve in curves(by_position))
    assert all(turns(curve[: c // 2]) <= 6 for curve in curves(by_dimension))
    for line in by_dimension.lines:
        row = table[int(line.get_label())]
        np.testing.assert_array_equal(line.get_ydata()[: c // 2], row[::2])
        np.testing.assert_array_equal(line.get_ydata()[c // 2 + 1 :], row[1::2])
    ticks = by_dimension.get_xticks(), [text.get_text() for text in by_dimension.get_xticklabels()]
    for place, text in zip(*ticks, strict=True):
        assert int(text) == np.r_[0:c:2, 1:c:2][int(place)]


def test_a_table_without_pairs_keeps_its_order_and_draws_few_curves():
    table = torch.randn(300, 64)
    whole, by_position, by_dimension = positions(table).axes
    np.testing.assert_array_equal(whole.images[0].get_array(), table.T)
    assert len(by_position.lines) == len(by_dimension.lines) == 2
    positions(torch.ones(5, 4))
    positions(torch.full((5, 4), np.nan))


def test_rotary_positions_are_the_cosines_of_their_angles():
    rotary = it.Rotary(8, base=100.0)
    figure = positions(rotary, 30, dimensions=[1])
    angles = np.arange(30)[:, None] * 100.0 ** (-np.arange(0, 8, 2) / 8)
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), np.cos(angles).T)
    np.testing.assert_allclose(curves(figure.axes[1])[0], np.cos(angles[:, 1]))
    assert figure.axes[2].get_xlabel() == "pair"
    assert positions(rotary).axes[0].images[0].get_array().shape == (4, 64)


def test_learned_tables_are_drawn_whole_or_in_part():
    table = torch.randn(20, 6)
    for encoding in (it.Learned(table), table, table[None]):
        image = positions(encoding, 15).axes[0].images[0]
        np.testing.assert_array_equal(image.get_array(), table[:15].T)
        low, high = image.get_clim()
        assert low == -high == pytest.approx(-float(table[:15].abs().max()))


test_what_does_not_fit_is_named = refusals(
    {
        RangeError: {
            r"dimensions: expected numbers from 0 to 3; got 4": lambda: positions(
                torch.randn(5, 4), dimensions=[4]
            ),
            r"at: expected numbers from 0 to 4; got -1": lambda: positions(
                torch.randn(5, 4), at=[-1]
            ),
        },
        ArgumentError: {
            r"at: expected 1 to 6 curves; got 7": lambda: positions(torch.randn(9, 4), at=range(7)),
            r"encoding: expected shape \(t, c\); got shape \(5,\)": lambda: positions(
                torch.randn(5)
            ),
            r"shape \(t, c\) with t ≥ 6; got shape \(5, 4\)": lambda: positions(
                torch.randn(5, 4), 6
            ),
            r"t: expected an int ≥ 1; got 0": lambda: positions(it.Rotary(4), 0),
        },
        KindError: {
            r"encoding: expected a tensor, an array or .*got str": lambda: positions("sinusoidal")
        },
    }
)
