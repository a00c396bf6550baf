"""An alignment holds the weights, the words and the gold links it was given."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle

import intently as it
from intently import show
from intently.errors import ArgumentError, KindError
from intently.matrix import Dense

from .drawing import GOLD, SOURCE, TARGET, milk, shaded, ticks, weights, written
from .drawing import quiet as quiet
from .refusals import refusals


# --- alignment ------------------------------------------------------------------------------------
def test_alignment_shows_the_weights_and_the_words():
    figure = show.alignment(milk(), title="a sentence")
    axes, bar = figure.axes
    np.testing.assert_array_equal(shaded(axes), weights(5, 4).numpy())
    assert ticks(axes, "x") == list(SOURCE)
    assert ticks(axes, "y") == list(TARGET)
    assert (axes.get_xlabel(), axes.get_ylabel(), bar.get_ylabel()) == (
        "source",
        "produced",
        "weight",
    )
    assert axes.xaxis.get_label_position() == "top"
    assert axes.xaxis.get_ticks_position() == "top"
    assert written(figure) == ["a sentence"]
    assert written(axes) == [f"{w:.2f}" for w in weights(5, 4).ravel()]


def test_the_words_on_the_left_have_the_name_they_are_given():
    axes = show.alignment(milk(), beside="reference $x").axes[0]
    assert axes.get_ylabel() == "reference $x"


def test_gold_links_are_outlined_where_they_are():
    figure = show.alignment(milk(), gold=GOLD)
    boxes = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    centres = {
        kind: {
            (round(box.get_x() + box.get_width() / 2), round(box.get_y() + box.get_height() / 2))
            for box in boxes
            if box.get_label() == kind
        }
        for kind in ("sure", "possible")
    }
    assert centres == {"sure": GOLD.sure, "possible": {(2, 2)}}
    styles = {box.get_label(): box.get_linestyle() for box in boxes}
    assert styles["sure"] in ("-", "solid")
    assert styles["possible"] not in ("-", "solid")
    assert any("gold" in text for text in written(figure))


def test_several_heads_are_averaged_and_the_title_says_so():
    figure = show.alignment(Dense(weights(3, 5, 4), labels=(TARGET, SOURCE)), title="cross")
    np.testing.assert_allclose(shaded(figure.axes[0]), weights(3, 5, 4).mean(0), rtol=1e-6)
    assert ticks(figure.axes[0], "y") == list(TARGET)
    assert written(figure) == ["cross, mean of 3 heads"]


def test_values_are_printed_in_few_cells_only():
    assert len(show.alignment(Dense(weights(12, 12))).axes[0].texts) == 144
    assert not show.alignment(Dense(weights(13, 12))).axes[0].texts


def test_long_sentences_thin_their_labels():
    axes = show.alignment(Dense(weights(150, 200))).axes[0]
    assert ticks(axes, "x")[:2] == ["0", str(axes.get_xticks()[1])]
    assert 10 < len(ticks(axes, "x")) < 70
    assert 10 < len(ticks(axes, "y")) < 70


@pytest.mark.parametrize(
    ("values", "top"),
    [(torch.eye(3), 1), (torch.full((3, 20), 0.05), 0.05), (torch.full((3, 3), 7.0), 10)],
)
def test_the_scale_fits_the_weights_and_ends_at_a_round_number(values, top):
    assert show.alignment(Dense(values)).axes[0].images[0].get_clim() == (0, top)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
@pytest.mark.parametrize("draw", [show.alignment, show.heatmap, show.blocks])
def test_empty_matrices_are_refused_in_our_words(draw, shape):
    with pytest.raises(ArgumentError, match=r"matrix: expected at least one query and one key"):
        draw(Dense(torch.zeros(shape)))


test_what_cannot_be_drawn_is_named = refusals(
    {
        ArgumentError: {
            r"shape \(2, 3, 4, 4\).*A\[0\]": lambda: show.alignment(Dense(weights(2, 3, 4, 4))),
            r"at most 1024.*heatmap": lambda: show.alignment(Dense(torch.zeros(1025, 2))),
            r"gold: .*the link \(4, 0\).*Merged": lambda: show.alignment(
                milk(), gold=SimpleNamespace(sure={(4, 0)}, possible={(4, 0)})
            ),
        },
        KindError: {
            r"matrix: expected a lazy matrix, or weights .*got str": lambda: show.alignment("A")
        },
    }
)


def test_half_types_and_gradients_are_drawn():
    q = torch.randn(4, 8, dtype=torch.bfloat16, requires_grad=True)
    A = it.attend(q, q, mask=it.causal())
    np.testing.assert_array_equal(
        shaded(show.alignment(A).axes[0]), A.dense().detach().float().numpy()
    )
