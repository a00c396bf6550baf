"""A heatmap holds a matrix of any size, and its statistics."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle

import intently as it
from intently.core.matrix import Dense
from intently.errors import ArgumentError, KindError
from intently.observe.measuring.effects import Effects
from intently.show import blocks, heatmap

from .drawing import GOLD, SOURCE, TARGET, milk, shaded, ticks, weights, written
from .drawing import quiet as quiet
from .refusals import refusals


# --- heatmap --------------------------------------------------------------------------------------
def test_heatmap_is_exact_when_it_fits():
    A = it.attend(torch.randn(40, 8), torch.randn(60, 8))
    figure = heatmap(A)
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
    figure = heatmap(A, reduce=how, save=None)
    image, entropy, *_ = figure.axes
    np.testing.assert_allclose(shaded(image), A.pool(512, 512, reduce=how), rtol=1e-5, atol=1e-7)
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
    image = heatmap(A, scale="log").axes[0].images[0]
    low, high = image.get_clim()
    dense = A.dense().numpy()
    assert high == dense.max()
    assert low == pytest.approx(max(dense[dense > 0].min(), high * 1e-6))
    masked = image.cmap(image.norm(shaded(image.axes)[0, 5]))
    assert masked == (1, 1, 1, 1)
    heatmap(Dense(torch.zeros(3, 3)), scale="log")


@pytest.mark.parametrize("size", [40, 1500])
def test_the_sink_is_hatched_and_left_out_of_the_scale(size):
    values = torch.full((size, size), 0.5 / (size - 2))
    values[:, 0], values[:, 1] = 0, 0.5
    figure = heatmap(Dense(values), sink="hide")
    image, _, received, _ = figure.axes
    cells = min(size, 512)
    key = 1 * cells // size
    assert np.isnan(shaded(image)[:, key]).all()
    assert np.isfinite(np.delete(shaded(image), key, 1)).all()
    assert image.images[0].get_clim()[1] < 10 / size
    if size == 40:  # of many cells one in two hundred may lie above in any case
        assert heatmap(Dense(values)).axes[0].images[0].get_clim()[1] == 0.5
    assert received.get_ylim()[0] < 1
    note = {
        40: "hatched, not in the scale: key 1; it takes 50% of all weight",
        1500: "hatched, not in the scale: keys 0 to 2; key 1 takes 50% of all weight",
    }[size]
    assert note in "\n".join(written(figure))
    assert "hatched" not in "\n".join(written(heatmap(Dense(torch.zeros(3, 3)), sink="hide")))


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (1, 1)])
def test_a_single_query_or_key_is_number_0(shape):
    axes = heatmap(Dense(weights(*shape))).axes[0]
    for side, count in zip("yx", shape):
        places = axes.get_yticks() if side == "y" else axes.get_xticks()
        inside = [float(place) for place in places if -0.5 <= place <= count - 0.5]
        assert all(place == int(place) for place in inside)
        assert count > 1 or inside == [0]


@pytest.mark.parametrize("n", [6, 600])
def test_a_row_that_is_no_number_leaves_the_column_sums_of_the_others(n):
    W = weights(n, n)
    W[2] = math.nan
    figure = heatmap(Dense(W))
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
            r"""scale: expected "linear" or "log"; got 'ln'""": lambda: heatmap(milk(), scale="ln"),
            r"""sink: expected "show" or "hide"; got True""": lambda: heatmap(milk(), sink=True),
            r"head: expected a name, or .*of 'a'; got 'x'": lambda: heatmap({"a": THREE}, head="x"),
            r"of 'a', 'b'; got 1": lambda: heatmap({"a": THREE, "b": THREE}, head=1),
        }
    }
)


@pytest.mark.parametrize("head", [2, np.int64(2), np.uint8(2), torch.tensor(2)])
def test_whole_numbers_of_any_library_choose_a_head(head):
    figure = heatmap(THREE, head=head)
    np.testing.assert_array_equal(shaded(figure.axes[0]), weights(3, 5, 4)[2].numpy())
    assert written(figure)[0] == "head 2"
    assert "head 2" in blocks({"a": THREE}, head=("a", head), width=60, colour=False)


@pytest.mark.parametrize("head", [-1, 3, True, 1.0, np.bool_(True), torch.tensor(True), [1]])
def test_what_is_no_head_is_refused(head):
    with pytest.raises(ArgumentError, match="head: expected a head from 0 to 2; got"):
        heatmap(THREE, head=head)


@pytest.mark.parametrize("width", ["x", 5, 19, 40.5, True])
def test_widths_are_counted_in_cells(width):
    expected = f"width: expected at least 20 terminal cells; got {width!r}"
    with pytest.raises(ArgumentError, match=expected):
        blocks(milk(), width=width)


def test_heatmap_names_and_thins_words():
    words = [f"w{i}" for i in range(300)]
    axes = heatmap(Dense(weights(300, 300), labels=(tuple(words), tuple(words)))).axes[0]
    shown = ticks(axes, "x")
    assert 10 < len(shown) < 80
    assert shown == [words[int(at)] for at in axes.get_xticks()]
    assert axes.get_xlabel() == "keys"


# --- alignment ------------------------------------------------------------------------------------
def test_alignment_shows_the_weights_and_the_words():
    figure = heatmap(milk(), margins=False, title="a sentence")
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


def test_gold_links_are_outlined_where_they_are():
    figure = heatmap(milk(), gold=GOLD)
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


def test_values_are_printed_in_few_cells_only():
    assert len(heatmap(Dense(weights(12, 12))).axes[0].texts) == 144
    assert not heatmap(Dense(weights(13, 12))).axes[0].texts


@pytest.mark.parametrize(("top", "count"), [(1.0, 4), (3e-4, 0), (1e38, 0)])
def test_numbers_that_no_cell_can_hold_are_left_to_the_colour_bar(top, count):
    figure = heatmap([[top, 0.5 * top], [-top, 0.2 * top]])
    assert len(figure.axes[0].texts) == count


@pytest.mark.parametrize(
    ("values", "top"),
    [(torch.eye(3), 1), (torch.full((3, 20), 0.05), 0.05), (torch.full((3, 3), 7.0), 10)],
)
def test_the_scale_fits_the_weights_and_ends_at_a_round_number(values, top):
    assert heatmap(Dense(values)).axes[0].images[0].get_clim() == (0, top)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
@pytest.mark.parametrize("draw", [heatmap, blocks])
def test_empty_matrices_are_refused_in_our_words(draw, shape):
    with pytest.raises(ArgumentError, match=r"matrix: expected at least one query and one key"):
        draw(Dense(torch.zeros(shape)))


test_what_cannot_be_drawn_is_named = refusals(
    {
        ArgumentError: {
            r"shape \(2, 3, 4, 4\).*A\[0\]": lambda: heatmap(Dense(weights(2, 3, 4, 4))),
            r"gold: .*the link \(4, 0\).*Merged": lambda: heatmap(
                milk(), gold=SimpleNamespace(sure={(4, 0)}, possible={(4, 0)})
            ),
        },
        KindError: {
            r"matrix: expected a lazy matrix, or weights .*got str": lambda: heatmap("A"),
            r"gold: expected links .*Alignment\.of": lambda: heatmap(milk(), gold=[(0, 0)]),
        },
    }
)


def test_half_types_and_gradients_are_drawn():
    q = torch.randn(4, 8, dtype=torch.bfloat16, requires_grad=True)
    A = it.attend(q, q, mask=it.causal())
    np.testing.assert_array_equal(shaded(heatmap(A).axes[0]), A.dense().detach().float().numpy())


# --- what edits do --------------------------------------------------------------------------------
def table(*rows: tuple[str, int | None, float], across: str = "head") -> Effects:
    names = ("layer", across, "difference") if across else ("layer", "difference")
    return Effects(
        ({"layer": layer, across: place, "difference": gap} for layer, place, gap in rows), names
    )


def test_layers_down_and_heads_across_with_zero_in_the_middle():
    found = table(("h.0.attn", 0, 1.0), ("h.0.attn", 1, -4.0), ("h.10.attn", 1, 0.5))
    panel, bar = heatmap(found, title="off").axes
    np.testing.assert_array_equal(shaded(panel), [[1.0, -4.0], [math.nan, 0.5]])
    assert panel.images[0].get_clim() == (-4.0, 4.0)
    assert ticks(panel, "y") == ["h.0.attn", "h.10.attn"] and ticks(panel, "x") == ["0", "1"]
    assert (panel.get_ylabel(), panel.get_xlabel()) == ("layer", "head")
    assert bar.get_ylabel() == "difference"
    assert panel.images[0].cmap(0.5)[:3] == pytest.approx((1, 1, 1), abs=0.01)
    assert written(panel) == ["1.00", "−4.00", "0.50"]


def test_keys_layers_alone_and_no_effect_at_all():
    assert heatmap(table(("h.0", 3, 1.0), across="key")).axes[0].get_xlabel() == "key"
    alone = heatmap(table(("h.0", None, 0.0), ("h.1", None, 0.0), across="")).axes[0]
    assert shaded(alone).shape == (2, 1) and alone.images[0].get_clim() == (-1.0, 1.0)


test_tables_without_effects_are_refused = refusals(
    {
        ArgumentError: {
            "columns layer and difference": lambda: heatmap(
                Effects([{"edit": "a", "difference": 1.0}], ("edit", "difference"))
            ),
            "at least one row": lambda: heatmap(table()),
        }
    }
)
