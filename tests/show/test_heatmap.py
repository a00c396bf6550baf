"""A heatmap holds a matrix of any size, and its statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import intently as it
from intently import show
from intently.errors import ArgumentError
from intently.matrix import Dense

from .drawing import milk, shaded, ticks, weights, written
from .drawing import quiet as quiet
from .refusals import refusals


# --- heatmap --------------------------------------------------------------------------------------
def test_heatmap_is_exact_when_it_fits():
    A = it.attend(torch.randn(40, 8), torch.randn(60, 8))
    figure = show.heatmap(A)
    image, entropy, received, _ = figure.axes
    np.testing.assert_array_equal(shaded(image), A.dense().numpy())
    np.testing.assert_allclose(entropy.patches[0].get_data().values, A.entropy(), rtol=1e-6)
    np.testing.assert_allclose(received.patches[0].get_data().values, A.received(), rtol=1e-6)
    assert image.get_xlabel() == "key steps"
    assert image.get_ylabel() == "query steps"
    assert entropy.get_xlabel() == "entropy (nats)"


@pytest.mark.parametrize("how", ["mean", "max"])
def test_heatmap_pools_what_is_larger_than_its_cells(how):
    A = it.attend(torch.randn(1500, 8), torch.randn(700, 8), mask=it.causal())
    figure = show.heatmap(A, how=how, save=None)
    image, entropy, *_ = figure.axes
    np.testing.assert_allclose(shaded(image), A.pool(512, 512, how=how), rtol=1e-5, atol=1e-7)
    assert image.get_xlim() == (-0.5, 699.5)
    assert image.get_ylim() == (1499.5, -0.5)
    said = f"each cell the {how} of about 2.93 × 1.37 weights"
    if how == "mean":
        said += f"; the largest single weight is {float(A.dense().max()):.2g}"
    assert [text.replace("\n", " ") for text in written(figure)] == [said]
    assert figure.axes[-1].get_ylabel() == {"mean": "mean weight", "max": "largest weight"}[how]
    steps = entropy.patches[0].get_data()
    members = np.arange(1500) * 512 // 1500
    exact = A.entropy().numpy()
    expected = [exact[members == cell].mean() for cell in range(512)]
    np.testing.assert_allclose(steps.values, expected, rtol=1e-4, atol=1e-6)
    assert (steps.edges[0], steps.edges[-1]) == (-0.5, 1499.5)


def test_heatmap_on_a_logarithmic_scale():
    A = it.attend(torch.randn(30, 8), torch.randn(30, 8), mask=it.causal())
    image = show.heatmap(A, scale="log").axes[0].images[0]
    low, high = image.get_clim()
    dense = A.dense().numpy()
    assert high == dense.max()
    assert low == pytest.approx(max(dense[dense > 0].min(), high * 1e-6))
    masked = image.cmap(image.norm(shaded(image.axes)[0, 5]))
    assert masked == (1, 1, 1, 1)
    show.heatmap(Dense(torch.zeros(3, 3)), scale="log")


@pytest.mark.parametrize("size", [40, 1500])
def test_the_sink_is_hatched_and_left_out_of_the_scale(size):
    values = torch.full((size, size), 0.5 / (size - 2))
    values[:, 0], values[:, 1] = 0, 0.5
    figure = show.heatmap(Dense(values), sink="hide")
    image, _, received, _ = figure.axes
    cells = min(size, 512)
    key = 1 * cells // size
    assert np.isnan(shaded(image)[:, key]).all()
    assert np.isfinite(np.delete(shaded(image), key, 1)).all()
    assert image.images[0].get_clim()[1] < 10 / size
    if size == 40:  # of many cells one in two hundred may lie above in any case
        assert show.heatmap(Dense(values)).axes[0].images[0].get_clim()[1] == 0.5
    assert received.get_ylim()[0] < 1
    note = {
        40: "hatched, not in the scale: key 1; it takes 50% of all weight",
        1500: "hatched, not in the scale: keys 0 to 2; key 1 takes 50% of all weight",
    }[size]
    assert note in "\n".join(written(figure))
    assert "hatched" not in "\n".join(written(show.heatmap(Dense(torch.zeros(3, 3)), sink="hide")))


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (1, 1)])
def test_a_single_query_or_key_is_number_0(shape):
    axes = show.heatmap(Dense(weights(*shape))).axes[0]
    for side, count in zip("yx", shape):
        places = axes.get_yticks() if side == "y" else axes.get_xticks()
        inside = [float(place) for place in places if -0.5 <= place <= count - 0.5]
        assert all(place == int(place) for place in inside)
        assert count > 1 or inside == [0]


@pytest.mark.parametrize("n", [6, 600])
def test_a_row_that_is_no_number_leaves_the_column_sums_of_the_others(n):
    W = weights(n, n)
    W[2] = math.nan
    figure = show.heatmap(Dense(W))
    (stairs,) = figure.axes[2].patches[:1]
    finite = W[W.isfinite().all(-1)].sum(0).numpy()
    cells = min(n, 512)
    members = np.arange(n) * cells // n
    sums = np.bincount(members, finite) / np.bincount(members)
    np.testing.assert_allclose(stairs.get_data().values, sums, rtol=1e-5)
    assert "not finite, and left out of the column sums" in written(figure)[-1]


THREE = Dense(weights(3, 5, 4))
test_scales_sinks_and_heads_are_named = refusals(
    {
        ArgumentError: {
            r"""scale: expected "linear" or "log"; got 'ln'""": lambda: show.heatmap(
                milk(), scale="ln"
            ),
            r"""sink: expected "show" or "hide"; got True""": lambda: show.heatmap(
                milk(), sink=True
            ),
            r"head: expected a name, or .*of 'a'; got 'x'": lambda: show.heatmap(
                {"a": THREE}, head="x"
            ),
            r"of 'a', 'b'; got 1": lambda: show.heatmap({"a": THREE, "b": THREE}, head=1),
        }
    }
)


def test_one_head_is_chosen_and_named():
    for draw in (show.heatmap, show.alignment):
        figure = draw({"a": THREE, "b": Dense(weights(3, 5, 4, seed=1))}, head=("a", 2))
        np.testing.assert_array_equal(shaded(figure.axes[0]), weights(3, 5, 4)[2].numpy())
        assert "a, head 2" in written(figure)
    assert "mean of 3 heads" in show.blocks(Dense(weights(1, 3, 5, 4)), width=60)


@pytest.mark.parametrize("head", [2, np.int64(2), np.uint8(2), torch.tensor(2)])
def test_whole_numbers_of_any_library_choose_a_head(head):
    figure = show.heatmap(THREE, head=head)
    np.testing.assert_array_equal(shaded(figure.axes[0]), weights(3, 5, 4)[2].numpy())
    assert written(figure)[0] == "head 2"
    assert "head 2" in show.blocks({"a": THREE}, head=("a", head), width=60, colour=False)


@pytest.mark.parametrize("head", [-1, 3, True, 1.0, np.bool_(True), torch.tensor(True), [1]])
def test_what_is_no_head_is_refused(head):
    with pytest.raises(ArgumentError, match="head: expected a head from 0 to 2; got"):
        show.heatmap(THREE, head=head)


@pytest.mark.parametrize("width", ["x", 5, 19, 40.5, True])
def test_widths_are_counted_in_cells(width):
    expected = f"width: expected at least 20 terminal cells; got {width!r}"
    with pytest.raises(ArgumentError, match=expected):
        show.blocks(milk(), width=width)


def test_heatmap_names_and_thins_words():
    words = [f"w{i}" for i in range(300)]
    axes = show.heatmap(Dense(weights(300, 300), labels=(tuple(words), tuple(words)))).axes[0]
    shown = ticks(axes, "x")
    assert 10 < len(shown) < 80
    assert shown == [words[int(at)] for at in axes.get_xticks()]
    assert axes.get_xlabel() == "keys"
