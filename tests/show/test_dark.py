"""Figures obey matplotlib's dark styles: dark paper, and everything on it can be read."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text

from intently import show
from intently.show.style import DARK, DARK_PAPER, light, luminance, on_dark, weight_map

from .drawing import milk
from .drawing import quiet as quiet
from .test_figures import DRAWINGS


def contrast(one, other) -> float:
    darker, lighter = sorted(luminance(to_rgb(colour)) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize(
    ("name", "chosen"), [*((name, "dark_background") for name in DRAWINGS), ("heatmap", "default")]
)
def test_words_can_be_read_on_the_paper(name, chosen, tmp_path):
    with plt.style.context(chosen):
        figure = DRAWINGS[name](save=tmp_path / "a.png")
    paper = figure.get_facecolor()
    assert (to_hex(paper) == DARK_PAPER) == (chosen == "dark_background")
    titles = [axes.title for axes in figure.axes]
    sides = [label for axes in figure.axes for label in (axes.xaxis.label, axes.yaxis.label)]
    numbers = [label for axes in figure.axes for label in axes.get_xticklabels()]
    words = [text for text in (*figure.texts, *titles, *sides, *numbers) if text.get_text()]
    assert words
    for text in words:
        assert contrast(text.get_color(), paper) >= 4.5, text
    light_ink = {to_hex(colour) for colour in DARK} - {"#ffffff"}
    if chosen == "dark_background":
        drawn = {to_hex(text.get_color()) for text in figure.findobj(Text)}
        assert not drawn & light_ink


def test_the_most_is_lightest_on_dark_paper_and_its_numbers_can_be_read():
    with plt.style.context("dark_background"):
        axes = show.heatmap(milk()).axes[0]
    shades = axes.images[0].to_rgba(axes.images[0].get_array())[..., :3]
    values = np.asarray(axes.images[0].get_array())
    lightness = np.array([luminance(shade) for shade in shades.reshape(-1, 3)])
    assert (np.diff(lightness[np.argsort(values.ravel())]) >= 0).all()
    for text in axes.texts:
        j, i = map(int, text.get_position())
        assert contrast(text.get_color(), shades[i, j]) >= 4.5


def test_animations_stay_on_white_paper():
    with plt.style.context("dark_background"), light():
        assert not on_dark()
        assert to_hex(weight_map()(0.0)) == "#ffffff"
    assert not on_dark()
